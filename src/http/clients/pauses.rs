//! Pauses of a run. A pause is an event at which the run waits for an answer. Other protocols end their response there, and
//! continue in a new one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::domain::access::principal::Principal;
use crate::domain::conversation::message::ToolContent;
use crate::domain::event::{EventBody, StoredEvent};
use crate::domain::ids::{CallId, InputId, RunId};
use crate::domain::run::WaitReason;
use crate::domain::tool::approval::ApprovalState;
use crate::http::wire::problem::HttpResult;
use crate::service::Service;

/// The events that pause a run, answer what it waits for, or void a step.
const KINDS: [&str; 7] =
    ["run.waiting", "approval.resolved", "input.resolved", "tool.requested", "tool.completed", "step.started", "step.reset"];

/// The part of a run that a response shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::http) struct Section {
    /// The `seq` of the last event that the client already has; 0 for none.
    pub after: i64,
    /// Pauses up to this `seq` are over.
    pub passed: i64,
    /// The `seq` ranges of reset model steps, from their first event to the reset. A response that begins later omits their parts.
    pub voided: Vec<RangeInclusive<i64>>,
    /// The ids of the approvals, questions and client tool calls that have an answer: one of the client, or one in the events so far.
    pub answered: BTreeSet<String>,
}

impl Section {
    /// Records the answer in an event, and returns whether the run pauses there. A translator calls this for each event of the run, in
    /// order.
    ///
    /// A worker claims the run after the first of several answers. It then reports a wait for the next one, although that answer is
    /// stored, and the run continues.
    pub fn observe_pause(&mut self, seq: i64, body: &EventBody) -> bool {
        match body {
            EventBody::ApprovalResolved { id, .. } | EventBody::InputResolved { id, .. } => {
                self.answered.insert(id.to_string());
                false
            }
            // The earlier response ended at this pause, because the client had sent no answer then.
            EventBody::RunWaiting { reason, id, .. } => {
                pauses_at(*reason, id.as_ref(), |id| seq > self.after && self.answered.contains(id))
            }
            _ => false,
        }
    }

    /// Returns whether an event belongs to a voided part, or is the reset that voids it.
    pub fn is_void(&self, event: &StoredEvent) -> bool {
        let shows = event.kind.starts_with("part.") || event.kind == "step.reset";
        shows && self.voided.iter().any(|events| events.contains(&event.seq))
    }

    /// Shows the voided steps that began before the event `seq`, the last one that the client has: it may have some of their parts,
    /// and must get the reset.
    pub fn keep_shown(&mut self, seq: i64) {
        self.voided.retain(|events| *events.start() >= seq);
    }
}

#[derive(Debug)]
pub(in crate::http) enum GivenAnswer {
    /// A whole result of a client tool.
    Result {
        call: CallId,
        content: Vec<ToolContent>,
    },
    Decision {
        id: InputId,
        is_allowed: bool,
    },
}

/// Returns whether a run pauses where it reports a wait. It does not if the answer is stored already.
fn pauses_at(reason: WaitReason, id: Option<&String>, is_answered: impl FnOnce(&String) -> bool) -> bool {
    reason.needs_answer() && !id.is_some_and(is_answered)
}

/// The pauses of a run, and the answers to them, so far.
#[derive(Debug, Default)]
pub(in crate::http) struct RunPauses {
    pauses: Vec<i64>,
    /// The `seq` of each answer, by the id of an approval, a question or a client tool call.
    answers: BTreeMap<String, i64>,
    /// The client tool calls without a result, with the names of their tools.
    pub requested: BTreeMap<CallId, String>,
    /// The results of client tools and the decisions about approvals, oldest first.
    pub given: Vec<GivenAnswer>,
    /// The number and the `seq` of the newest step, if it is a model call.
    model_step: Option<(u32, i64)>,
    voided: Vec<RangeInclusive<i64>>,
    head: i64,
    /// Whether the client has sent results that no event shows yet.
    has_new_results: bool,
}

impl RunPauses {
    pub async fn read(service: &Service, principal: &Principal, run: &RunId) -> HttpResult<Self> {
        let log = service.run_events_of_kinds(principal, run, &KINDS).await?;
        let mut found = Self::default();
        for event in &log.events {
            found.add(event);
        }
        found.head = log.last_seq;
        Ok(found)
    }

    /// Reads also whether the client has sent results that no event shows yet, for [`newest_response`](Self::newest_response).
    pub async fn read_with_results(service: &Service, principal: &Principal, run: &RunId) -> HttpResult<Self> {
        // This is read before the log: results that a worker applies between both reads are in the log.
        let has_new_results = service.has_new_results(principal, run).await?;
        Ok(Self { has_new_results, ..Self::read(service, principal, run).await? })
    }

    pub fn add(&mut self, event: &StoredEvent) {
        self.head = event.seq;
        if KINDS.contains(&event.kind.as_ref())
            && let Some(body) = event.body()
        {
            self.event(event.seq, body);
        }
    }

    fn event(&mut self, seq: i64, body: EventBody) {
        match body {
            EventBody::RunWaiting { reason, id, .. } if pauses_at(reason, id.as_ref(), |id| self.answers.contains_key(id)) => {
                self.pauses.push(seq);
            }
            EventBody::ApprovalResolved { id, status, .. } => {
                self.answers.insert(id.to_string(), seq);
                self.given.push(GivenAnswer::Decision { id, is_allowed: status == ApprovalState::Allowed });
            }
            EventBody::InputResolved { id, .. } => {
                self.answers.insert(id.to_string(), seq);
            }
            EventBody::ToolRequested { call } => {
                self.requested.insert(call.call_id, call.name);
            }
            EventBody::ToolCompleted { call_id, content, truncated, .. } => {
                self.answers.insert(call_id.to_string(), seq);
                if self.requested.remove(&call_id).is_some() && !truncated {
                    self.given.push(GivenAnswer::Result { call: call_id, content });
                }
            }
            EventBody::StepStarted { step, kind, .. } => self.model_step = (kind == "model").then_some((step, seq)),
            EventBody::StepReset { step, .. } => {
                let of_model = self.model_step.filter(|(model_step, _)| *model_step == step);
                self.voided.extend(of_model.map(|(_, started)| started..=seq));
            }
            _ => {}
        }
    }

    /// Returns the number of responses that have ended in a pause: each pause ends a response of OpenAI's protocol.
    pub fn ended_responses(&self) -> u32 {
        u32::try_from(self.pauses.len()).unwrap_or(u32::MAX)
    }

    /// Returns the section of the whole run. Its pauses up to `passed` are over.
    pub fn whole(self, passed: i64) -> Section {
        Section { passed, voided: self.voided, ..Section::default() }
    }

    /// Returns the section of the whole run, whose pauses so far are over, except one at which the run waits.
    pub fn after_pauses(self) -> Section {
        let passed = if self.is_paused() { self.before_last() } else { self.head };
        self.whole(passed)
    }

    /// Returns the number of the newest response, counted from 0. The client's results, or the first event after a pause, begin the
    /// next response. Only pauses that were read with results are exact here.
    pub fn newest_response(&self) -> u32 {
        self.ended_responses() - u32::from(self.is_paused())
    }

    /// Returns whether the run has no event and no result since its last pause.
    pub fn is_paused(&self) -> bool {
        self.pauses.last() == Some(&self.head) && !self.has_new_results
    }

    pub fn has_requested(&self, call: &CallId) -> bool {
        self.requested.contains_key(call) || self.answers.contains_key(call.as_str())
    }

    /// Returns whether the log has an answer with each of these ids.
    pub fn has_answers(&self, ids: &[&str]) -> bool {
        ids.iter().all(|id| self.answers.contains_key(*id))
    }

    /// Returns the `seq` of the pause that ended a response.
    pub fn end_of_response(&self, number: u32) -> Option<i64> {
        self.pauses.get(usize::try_from(number).ok()?).copied()
    }

    /// Returns the ids of the answers after the pause that ended a response, up to the next pause.
    pub fn answers_after(&self, response: u32) -> impl Iterator<Item = &str> {
        let pause = |number: u32| self.end_of_response(number).unwrap_or(i64::MAX);
        let (after, until) = (pause(response), pause(response.saturating_add(1)));
        self.answers.iter().filter(move |(_, seq)| **seq > after && **seq < until).map(|(id, _)| id.as_str())
    }

    /// Returns the `seq` directly before the newest pause: all earlier pauses are over.
    pub fn before_last(&self) -> i64 {
        self.pauses.last().map_or(self.head, |pause| pause - 1)
    }

    /// Returns the call with the newest result among these calls, if any has a result.
    pub fn newest_result<'c>(&self, calls: impl Iterator<Item = &'c CallId>) -> Option<String> {
        let answered = calls.filter_map(|call| Some((self.answers.get(call.as_str())?, call)));
        answered.max_by_key(|(seq, _)| **seq).map(|(_, call)| call.to_string())
    }

    /// Returns the section after the answers with these ids. It begins at the last pause before the first of them, and pauses
    /// between them are over. An answer that is not in the log yet is newer than all events.
    pub fn section_after(&self, ids: &BTreeSet<String>) -> Section {
        let known: Vec<i64> = ids.iter().filter_map(|id| self.answers.get(id).copied()).collect();
        let is_complete = known.len() == ids.len() && !known.is_empty();
        let first = known.iter().min().copied().unwrap_or(i64::MAX);
        let after = self.pauses.iter().rev().find(|pause| **pause < first).copied().unwrap_or(0);
        let passed = if is_complete { known.iter().max().copied().unwrap_or(after) } else { self.head };
        Section { after, passed, voided: self.voided.clone(), answered: ids.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::clients::tests::{answers_together, id, seqs};

    #[test]
    fn section_begins_at_the_pause_before_the_first_answer() {
        let answers = [("a", 12), ("b", 22), ("c", 21)].map(|(id, seq)| (id.to_owned(), seq));
        let pauses = RunPauses { pauses: vec![10, 20], answers: answers.into(), head: 30, ..RunPauses::default() };
        let section = |ids: &[&str]| {
            let Section { after, passed, .. } = pauses.section_after(&ids.iter().map(|id| (*id).to_owned()).collect());
            (after, passed)
        };
        assert_eq!(section(&["a"]), (10, 12));
        assert_eq!(section(&["b", "c"]), (20, 22));
        assert_eq!(section(&["a", "b"]), (10, 22), "the pause between two answers is over");
        assert_eq!(section(&["new"]), (20, 30), "the answer is not in the log yet");
        assert_eq!(section(&["a", "new"]), (10, 30));
    }

    #[test]
    fn wait_with_an_earlier_answer_is_no_pause() {
        let log = answers_together();
        let mut pauses = RunPauses::default();
        log.iter().for_each(|event| pauses.add(event));
        let (waits, answers) = (seqs(&log, "run.waiting"), seqs(&log, "approval.resolved"));
        assert_eq!((waits.len(), pauses.pauses.as_slice()), (2, &waits[..1]));
        let ids = [1, 2].map(|number| id("input", number)).into();
        let mut section = pauses.section_after(&ids);
        assert_eq!((section.after, section.passed), (waits[0], answers[1]));
        let pausing = |section: &mut Section| -> Vec<i64> {
            log.iter().filter(|event| section.observe_pause(event.seq, &event.body().unwrap())).map(|event| event.seq).collect()
        };
        assert_eq!(pausing(&mut section), [waits[0]]);
        assert_eq!(pausing(&mut Section::default()), [waits[0]], "the log has the answer");
    }

    #[test]
    fn wait_for_an_answer_of_the_request_is_no_pause() {
        let waits = EventBody::RunWaiting { reason: WaitReason::ClientTool, id: Some(id("call", 1)), detail: None };
        let mut section = Section { after: 10, answered: [id("call", 1)].into(), ..Section::default() };
        assert!(section.observe_pause(10, &waits), "the earlier response ended here");
        assert!(!section.observe_pause(12, &waits), "no event shows the result yet");
    }

    #[test]
    fn response_begins_with_the_event_after_a_pause() {
        let newest = |pauses: &[i64], head| RunPauses { pauses: pauses.to_vec(), head, ..RunPauses::default() }.newest_response();
        assert_eq!((newest(&[], 9), newest(&[9], 9), newest(&[9], 10), newest(&[9, 14], 14)), (0, 0, 1, 1));
        let answered = RunPauses { pauses: vec![9], head: 9, has_new_results: true, ..RunPauses::default() };
        assert_eq!(answered.newest_response(), 1, "no worker has claimed the run yet");
    }

    #[test]
    fn newest_result_is_the_last_in_the_log() {
        let call = |number: u32| CallId::parse(&format!("call_{number:032x}")).unwrap();
        let answers = [(1, 12), (2, 22)].map(|(number, seq)| (call(number).to_string(), seq));
        let pauses = RunPauses { pauses: vec![10, 20], answers: answers.into(), head: 30, ..RunPauses::default() };
        let newest = |calls: &[u32]| pauses.newest_result(calls.iter().map(|number| call(*number)).collect::<Vec<_>>().iter());
        assert_eq!(newest(&[1, 2, 3]), Some(call(2).to_string()));
        assert_eq!((newest(&[1]), newest(&[3])), (Some(call(1).to_string()), None));
    }
}
