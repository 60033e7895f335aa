//! The messages, runs and events that the store itself creates for a request. Pure functions, the same for both databases.

use crate::domain::agent::TitlePolicy;
use crate::domain::conversation::{ConversationStatus, Message, Part, Role};
use crate::domain::event::{EventBody, NewEvent, StoredEvent};
use crate::domain::ids::{ConversationId, MessageId, RunId};
use crate::domain::run::{Change, InputAnswer, InputKind, InputRequest, InputState, Run, RunStatus, RunWrite};
use crate::domain::tool::ApprovalState;
use crate::store::{AcceptRun, ResolveInput, ResumeKind, ResumeRun};
use crate::support::clock::UnixMillis;
use crate::support::text;

/// Limit of a generated title in characters.
const MAX_MADE_TITLE: usize = 80;

/// Returns a conversation's title from its first message: the beginning of its text on one line. Empty without text.
fn title_of(parts: &[Part]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        Part::Text(text) => Some(text.text.as_str()),
        Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) | Part::Image(_) | Part::File(_) | Part::Source(_) => None,
    });
    let mut line = String::new();
    for word in texts.flat_map(str::split_whitespace) {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.len() > 4 * MAX_MADE_TITLE {
            break;
        }
    }
    text::storable(text::prefix_chars(&line, MAX_MADE_TITLE)).trim_end().to_owned()
}

/// Returns the given title, or else one from the user's newest message. A transcript may end with a message that is not the user's.
pub fn title_of_accepted(title: &str, accept: &AcceptRun) -> String {
    let parts = match &accept.transcript {
        Some(transcript) if transcript.role != Role::User => {
            transcript.earlier.iter().rfind(|message| message.role == Role::User).map_or(&[][..], |message| &message.parts)
        }
        _ => &accept.parts,
    };
    title_or_made(title, accept.profile.title, parts)
}

/// Returns the given title, or else the beginning of the message, if the agent's policy allows that.
fn title_or_made(title: &str, policy: TitlePolicy, parts: &[Part]) -> String {
    if !title.is_empty() {
        return text::storable(title).into_owned();
    }
    match policy {
        TitlePolicy::FirstWords | TitlePolicy::Model => title_of(parts),
        TitlePolicy::None => String::new(),
    }
}

/// Returns the message that starts or joins `run`.
pub fn accepted_message(accept: &AcceptRun, run: &RunId) -> Message {
    let role = accept.transcript.as_ref().map_or(Role::User, |transcript| transcript.role);
    Message {
        created_at: accept.now.to_rfc3339(),
        ..Message::new(accept.message_id.clone(), (run.clone(), accept.conversation_id.clone()), role, accept.parts.clone())
    }
}

/// Returns the run of an accepted message.
pub fn queued_run(accept: &AcceptRun) -> Run {
    let profile = &accept.profile;
    Run {
        id: accept.run_id.clone(),
        conversation_id: accept.conversation_id.clone(),
        status: RunStatus::Queued,
        reason: None,
        agent: profile.name.clone(),
        agent_version: profile.version,
        model: profile.model.clone(),
        attempt: 0,
        finish_reason: None,
        usage: None,
        error: None,
        output: None,
        trace_id: Some(accept.trace.clone()),
        created_at: accept.now.to_rfc3339(),
        started_at: None,
        finished_at: None,
    }
}

/// Returns the `message.created` of a user's message, in a run's attempt.
pub fn message_created(message: &Message, attempt: u32, now: UnixMillis) -> NewEvent {
    let body = EventBody::MessageCreated { message: message.clone() };
    NewEvent::new(&body, Some(message.run_id.clone()), attempt, now)
}

/// Returns the `run.queued` behind `position` other runs of its conversation.
pub fn run_queued(run: &RunId, position: u32, now: UnixMillis) -> NewEvent {
    NewEvent::new(&EventBody::RunQueued { position, supersedes: Vec::new() }, Some(run.clone()), 0, now)
}

/// Returns the first events of a run that continues another one: `run.queued`, `conversation.updated` with this title if there is
/// one, and the message that the run takes over.
pub fn continuation_events(resume: &ResumeRun, supersedes: Vec<MessageId>, title: Option<&str>) -> Vec<NewEvent> {
    let (run, now) = (&resume.new_run_id, resume.now);
    let queued = NewEvent::new(&EventBody::RunQueued { position: 0, supersedes }, Some(run.clone()), 0, now);
    let updated = title.map(|title| conversation_updated(title, ConversationStatus::Queued, now));
    let taken_over = resume.how.batch().map(|batch| &batch.message);
    let taken_over_events = taken_over.into_iter().flat_map(|message| {
        let started = EventBody::MessageStarted { message_id: message.id.clone(), role: message.role };
        [started, EventBody::MessageCompleted { message: message.clone() }]
    });
    let taken_over_events = taken_over_events.map(|body| NewEvent::new(&body, Some(run.clone()), 0, now));
    [queued].into_iter().chain(updated).chain(taken_over_events).collect()
}

/// Returns whether the status of a run allows a new run to continue it.
pub fn can_be_gone_on_from(how: &ResumeKind, status: RunStatus) -> bool {
    match how {
        ResumeKind::Resume => status == RunStatus::Failed,
        ResumeKind::Turn | ResumeKind::Call(_) | ResumeKind::Undo { .. } => status.is_terminal(),
    }
}

/// Returns the `input.resolved` or `approval.resolved` of an answered question, in its run's attempt.
pub fn input_answered(request: &InputRequest, attempt: u32, resolve: &ResolveInput) -> NewEvent {
    let (id, answer, by) = (request.id.clone(), resolve.answer.clone(), Some(resolve.owner.clone()));
    let body = match request.kind {
        InputKind::UnknownOutcome | InputKind::Question | InputKind::Elicitation | InputKind::ClientTool => {
            // The event omits the content of a form, which only the server needs.
            EventBody::InputResolved { id, state: InputState::Answered, answer: Some(InputAnswer { content: None, ..answer }), by }
        }
        InputKind::Approval => EventBody::ApprovalResolved {
            id,
            call_id: request.call_id.clone(),
            status: ApprovalState::of(InputState::Answered, Some(&answer.choice)),
            scope: answer.scope,
            edited_arguments: answer.arguments,
            reason: answer.text,
            by,
        },
    };
    NewEvent::new(&body, Some(request.run_id.clone()), attempt, resolve.now)
}

/// Returns a `conversation.updated`, which belongs to no run.
pub fn conversation_updated(title: &str, status: ConversationStatus, now: UnixMillis) -> NewEvent {
    NewEvent::new(&EventBody::ConversationUpdated { title: Some(title.to_owned()), status, supersedes: Vec::new() }, None, 0, now)
}

/// Limit of message ids in one event, so that no event becomes large.
const MAX_NAMED: usize = 1_000;

/// Returns the `conversation.updated` after these messages were removed from an idle conversation.
pub fn rewind_events(title: &str, superseded: &[MessageId], now: UnixMillis) -> Vec<NewEvent> {
    let events = superseded.chunks(MAX_NAMED).map(|supersedes| {
        let (title, supersedes) = (Some(title.to_owned()), supersedes.to_vec());
        NewEvent::new(&EventBody::ConversationUpdated { title, status: ConversationStatus::Idle, supersedes }, None, 0, now)
    });
    events.collect()
}

/// The type of events whose title, and status at the end of a run, are known only to the transaction that stores them.
pub const UPDATED: &str = "conversation.updated";

/// Logs a refused write, which is a bug of the writer.
pub fn report_broken_rule(write: &RunWrite, reason: &str) {
    let run = &write.fence.run_id;
    tracing::error!(run.id = %run, reason, "a write of run {run} was refused because it violates a rule");
}

/// Returns the rule that a write violates by itself, regardless of the rows.
pub fn broken_rule(write: &RunWrite) -> Option<&'static str> {
    let mut messages = 0;
    let mut ended = false;
    for change in &write.changes {
        if ended {
            return Some("a change follows the end of the run");
        }
        match change {
            Change::SetStatus(status, _) if status.is_terminal() => return Some("a terminal status is set without ending the run"),
            Change::Finish { status, .. } if !status.is_terminal() => return Some("a run ends with a status that is not terminal"),
            Change::FinishCall(_, outcome) if !outcome.state.is_outcome() => {
                return Some("a tool call ends in a state without an outcome");
            }
            Change::AddMessage(_) => messages += 1,
            Change::Finish { .. } | Change::Release { .. } => ended = true,
            _ => {}
        }
    }
    // The status in the event would be unknown.
    let sets_status = |change: &Change| matches!(change, Change::SetStatus(..) | Change::Finish { .. });
    if write.events.iter().any(|event| event.kind == UPDATED) && !write.changes.iter().any(sets_status) {
        return Some("an event contains a conversation's status that the write does not change");
    }
    (messages > write.events.len()).then_some("more messages than events, so that positions would collide")
}

/// Returns the index of the event that ends a run. It need not be the write's last event.
pub fn terminal_event(write: &RunWrite) -> Option<usize> {
    write.events.iter().position(|event| matches!(event.kind, "run.completed" | "run.failed" | "run.cancelled"))
}

/// Returns the index of the event with the conversation's status after the run's end, if the write ends the run.
pub fn final_update(write: &RunWrite) -> Option<usize> {
    let ends = write.changes.iter().any(|change| matches!(change, Change::Finish { .. }));
    write.events.iter().rposition(|event| event.kind == UPDATED).filter(|_| ends)
}

/// Returns the stored data of a write's [`UPDATED`] events, with their indexes. `title` is JSON, and `status` is the current status
/// of the conversation. The Postgres statements produce the same bytes.
pub fn update_events(write: &RunWrite, title: &str, status: &str) -> Vec<(usize, String)> {
    let last = final_update(write);
    let updated = write.events.iter().enumerate().filter(|(_, event)| event.kind == UPDATED);
    updated
        .map(|(index, event)| {
            let stored = format!("{{\"status\":\"{status}\"}}");
            (index, with_title(if Some(index) == last { &stored } else { &event.data }, title))
        })
        .collect()
}

/// Returns the data of an [`UPDATED`] event with its title added. `title` is JSON.
pub fn with_title(data: &str, title: &str) -> String {
    format!("{{\"title\":{title},{}", data.strip_prefix('{').unwrap_or_default())
}

/// Returns the events of a message that starts a run: `message.created`, `run.queued`, and `conversation.updated` if title or
/// status differ from `before`. A new conversation was idle before.
pub fn accepted_events(
    message: &Message,
    position: u32,
    before: (&str, ConversationStatus),
    after: (&str, ConversationStatus),
    now: UnixMillis,
) -> Vec<NewEvent> {
    let mut events = vec![message_created(message, 0, now), run_queued(&message.run_id, position, now)];
    if before != after {
        events.push(conversation_updated(after.0, after.1, now));
    }
    events
}

/// Returns events as stored: numbered from `base + 1`.
pub fn number_events(conversation: &ConversationId, base: i64, events: Vec<NewEvent>) -> Vec<StoredEvent> {
    events.into_iter().zip(base + 1..).map(|(event, seq)| event.stored(conversation.clone(), seq)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::conversation::message::TextPart;
    use crate::domain::ids::PartId;

    #[test]
    fn many_messages_are_named_by_several_events() {
        let ids: Vec<_> = (0..=MAX_NAMED).map(|n| MessageId::from_stored(format!("msg_{n}"))).collect();
        let events = rewind_events("T", &ids, UnixMillis(0));
        assert_eq!(events.len(), 2);
        assert_eq!(events[1].data, r#"{"title":"T","status":"idle","supersedes":["msg_1000"]}"#);
        assert!(rewind_events("T", &[], UnixMillis(0)).is_empty());
    }

    #[test]
    fn titles_are_one_short_line() {
        let part = |text: &str| Part::Text(TextPart { id: PartId::from_stored("part_1".into()), text: text.into() });
        assert_eq!(title_of(&[part("  What\n time\tis it? ")]), "What time is it?");
        assert_eq!(title_of(&[part(&"wörd ".repeat(100))]).chars().count(), 79);
        assert_eq!(title_of(&[]), "");
        assert_eq!(title_or_made("Given", TitlePolicy::None, &[part("x")]), "Given");
        assert_eq!(title_or_made("", TitlePolicy::Model, &[part("x")]), "x");
        assert_eq!(title_or_made("", TitlePolicy::None, &[part("x")]), "");
    }
}
