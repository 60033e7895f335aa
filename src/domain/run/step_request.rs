//! The request of a model step as clients see it, rebuilt from its record and the rows that the record names.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::domain::conversation::{Message, TextLimit};
use crate::domain::enum_names::named_enum;
use crate::domain::ids::{MessageId, PartId, RunId};
use crate::domain::model::ModelOptions;
use crate::domain::run::request_record::{MAX_RECORD_BYTES, text_limits};
use crate::domain::run::{RecordedMessages, RequestBudget, RequestRecord, SentMessage, SentTool};
use crate::domain::tool::ToolDefinition;

named_enum! {
    /// The reason why a step has no request, as the end of the sentence "no such ...".
    pub enum MissingStepRequest {
        /// The run is missing or belongs to another owner.
        Run = "run",
        /// The run has no such step, or it is no model step.
        Step = "model step in this run",
        /// The newest attempt of the step has no record.
        Record = "recorded request of this step; steps of copied runs and of earlier versions have none",
    }
}

/// The last request of a model step, before the provider's dialect changes its form.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct StepRequest {
    pub run_id: RunId,
    pub step: u32,
    pub model: String,
    /// Absent if it cannot be rebuilt.
    pub system: Option<String>,
    pub tools: Vec<SentTool>,
    // As JSON, because a newer version may have stored other options.
    #[schema(value_type = ModelOptions)]
    pub options: Value,
    pub messages: Vec<Message>,
    pub window: Option<u64>,
    pub budget: Option<RequestBudget>,
    /// The limits of the texts of files, by part.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, TextLimit>)]
    pub text_limits: BTreeMap<PartId, TextLimit>,
    /// Sentences about what cannot be rebuilt. Empty if the request is exact.
    pub missing: Vec<String>,
}

/// The records of a run's model steps, up to the requested one.
#[derive(Debug, Clone, Default)]
pub struct RecordedSteps {
    records: BTreeMap<u32, RequestRecord>,
}

const BASE_MISSING: &str = "messages are not recorded: the record of an earlier step is gone";

/// A message of a request.
#[derive(Clone, Copy)]
enum MessageSource<'a> {
    Rows(&'a [MessageId]),
    Sent(&'a SentMessage),
    LeftOut,
}

impl RecordedSteps {
    pub fn new(records: impl IntoIterator<Item = (u32, RequestRecord)>) -> Self {
        Self { records: records.into_iter().collect() }
    }

    pub fn has(&self, step: u32) -> bool {
        self.records.contains_key(&step)
    }

    /// Returns the ids of the rows that the request of a step needs.
    pub fn message_ids(&self, step: u32) -> Vec<&MessageId> {
        let ids = self.sources(step).0.into_iter().flat_map(|source| match source {
            MessageSource::Rows(ids) => ids,
            MessageSource::Sent(_) | MessageSource::LeftOut => &[],
        });
        ids.collect()
    }

    /// Rebuilds the request of a step. `None` if the step has no record.
    pub fn rebuild(
        &self,
        run_id: &RunId,
        step: u32,
        rows: &HashMap<MessageId, Message>,
        frozen: &[Arc<ToolDefinition>],
    ) -> Option<StepRequest> {
        let record = self.records.get(&step)?;
        let (sources, mut missing) = self.sources(step);
        let system = self.inherited(step, |record| record.system.as_ref()).cloned();
        if system.is_none() {
            missing.push("the system prompt is not recorded".to_owned());
        }
        let tools = self.tools(step, frozen, &mut missing);
        let options = self.inherited(step, |record| record.options.as_ref()).cloned();
        if options.is_none() {
            missing.push("the options are not recorded".to_owned());
        }
        let mut messages = Vec::with_capacity(sources.len());
        let mut left_out = 0_u32;
        for source in sources {
            match source {
                MessageSource::Sent(sent) => messages.push(sent.restored()),
                MessageSource::Rows(ids) => messages.extend(join_rows(ids, rows, &mut missing)),
                MessageSource::LeftOut => left_out += 1,
            }
        }
        if left_out > 0 {
            let limit = MAX_RECORD_BYTES / 1024;
            missing.push(format!("{left_out} of the messages, the largest: they do not fit into the record of {limit} KiB"));
        }
        Some(StepRequest {
            run_id: run_id.clone(),
            step,
            model: record.model.clone(),
            system,
            tools,
            options: options.unwrap_or_else(|| Value::Object(Map::new())),
            text_limits: messages.iter().flat_map(text_limits).collect(),
            messages,
            window: record.window,
            budget: record.budget,
            missing,
        })
    }

    /// Lists the records from a step to the oldest one that it builds on.
    fn chain(&self, step: u32) -> impl Iterator<Item = &RequestRecord> {
        let first = self.records.get(&step).map(|record| (step, record));
        let next = |(step, record): &(u32, &RequestRecord)| {
            let base = record.base.filter(|base| base < step)?;
            self.records.get(&base).map(|record| (base, record))
        };
        std::iter::successors(first, next).map(|(_, record)| record)
    }

    /// Returns a field from the newest record that has it.
    fn inherited<'a, T>(&'a self, step: u32, field: impl Fn(&'a RequestRecord) -> Option<T>) -> Option<T> {
        self.chain(step).find_map(field)
    }

    fn tools(&self, step: u32, frozen: &[Arc<ToolDefinition>], missing: &mut Vec<String>) -> Vec<SentTool> {
        let Some(tools) = self.inherited(step, |record| record.tools.as_ref()) else {
            missing.push("the tools are not recorded".to_owned());
            return Vec::new();
        };
        let mut found = Vec::with_capacity(tools.names.len());
        for name in &tools.names {
            let own = tools.own.iter().find(|tool| tool.name == *name).cloned();
            match own.or_else(|| frozen.iter().find(|tool| tool.name == *name).map(|tool| SentTool::of(tool))) {
                Some(tool) => found.push(tool),
                None => missing.push(format!("the definition of the tool {name} is not stored any more")),
            }
        }
        found
    }

    /// Returns the sources of the messages, and sentences about those that are not recorded.
    fn sources(&self, step: u32) -> (Vec<MessageSource<'_>>, Vec<String>) {
        let chain: Vec<&RequestRecord> = self.chain(step).collect();
        let (mut sources, mut missing): (Vec<MessageSource<'_>>, _) = (Vec::new(), Vec::new());
        for record in chain.into_iter().rev() {
            let base = std::mem::take(&mut sources);
            missing.clear();
            let Some(messages) = &record.messages else {
                missing.push(format!("the messages are not recorded: they need more than {} KiB", MAX_RECORD_BYTES / 1024));
                continue;
            };
            for recorded in messages {
                match recorded {
                    RecordedMessages::Same(first, count) => match base.get(*first..first.saturating_add(*count)) {
                        Some(same) => sources.extend(same),
                        None => missing = vec![BASE_MISSING.to_owned()],
                    },
                    RecordedMessages::Rows(ids) => {
                        sources.extend(ids.iter().map(|id| MessageSource::Rows(std::slice::from_ref(id))));
                    }
                    RecordedMessages::Joined(ids) => sources.push(MessageSource::Rows(ids)),
                    RecordedMessages::Sent(sent) => sources.push(MessageSource::Sent(sent)),
                    RecordedMessages::LeftOut => sources.push(MessageSource::LeftOut),
                }
            }
        }
        (sources, missing)
    }
}

/// Joins the parts of stored messages to one message.
fn join_rows(ids: &[MessageId], rows: &HashMap<MessageId, Message>, missing: &mut Vec<String>) -> Option<Message> {
    let mut whole: Option<Message> = None;
    for id in ids {
        let Some(row) = rows.get(id) else {
            missing.push(format!("the message {id} is not stored any more"));
            continue;
        };
        match &mut whole {
            Some(whole) => whole.parts.extend(row.parts.iter().cloned()),
            None => whole = Some(row.clone()),
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::conversation::message::{FilePart, Part, Role, TextPart};
    use crate::domain::ids::ConversationId;
    use crate::domain::model::ModelRequest;
    use crate::domain::run::request_record::{NewRequestRecord, RecordSources, RequestDigest};
    use crate::domain::tool::ReplayClass;
    use crate::support::ids::SequentialIds;

    /// A run with its stored messages, and the records of its steps.
    struct Recorder {
        ids: SequentialIds,
        of: (RunId, ConversationId),
        rows: Vec<Message>,
        frozen: Vec<Arc<ToolDefinition>>,
        texts: BTreeMap<u32, String>,
        last: Option<Arc<RequestDigest>>,
    }

    impl Recorder {
        fn new() -> Self {
            let ids = SequentialIds::default();
            let of = (RunId::generate(&ids), ConversationId::generate(&ids));
            let frozen = vec![Arc::new(tool("read"))];
            Self { ids, of, rows: Vec::new(), frozen, texts: BTreeMap::new(), last: None }
        }

        fn message(&self, role: Role, text: &str) -> Message {
            let part = TextPart { id: PartId::generate(&self.ids), text: text.to_owned() };
            Message::new(MessageId::generate(&self.ids), self.of.clone(), role, vec![Part::Text(part)])
        }

        fn store(&mut self, role: Role, text: &str) -> Message {
            let message = self.message(role, text);
            self.rows.push(message.clone());
            message
        }

        fn request(&self, messages: Vec<Message>) -> ModelRequest {
            let (model, system) = ("demo/demo".to_owned(), "Be brief.".to_owned());
            ModelRequest { model, system, messages, tools: self.frozen.clone(), ..ModelRequest::default() }
        }

        /// Records a request, and checks that it is rebuilt as it was.
        fn record(&mut self, step: u32, request: &ModelRequest) -> RequestRecord {
            let record = self.store_record(step, request);
            let rebuilt = self.rebuild(step);
            assert_eq!((rebuilt.system.as_ref(), rebuilt.options), (Some(&request.system), json!(request.options)));
            assert_eq!(rebuilt.tools, request.tools.iter().map(|tool| SentTool::of(tool)).collect::<Vec<_>>());
            assert_eq!((rebuilt.messages, rebuilt.missing), (request.messages.clone(), Vec::new()));
            record
        }

        fn store_record(&mut self, step: u32, request: &ModelRequest) -> RequestRecord {
            let sources = RecordSources { history: self.rows.iter().collect(), tools: &self.frozen };
            let new = NewRequestRecord::of(step, request, None, &sources, self.last.as_deref());
            self.last = new.digest.or(self.last.take());
            let record = serde_json::from_str(&new.text).unwrap();
            assert!(new.text.len() <= MAX_RECORD_BYTES);
            self.texts.insert(step, new.text);
            record
        }

        fn rebuild(&self, step: u32) -> StepRequest {
            let steps = RecordedSteps::new(self.texts.iter().map(|(step, text)| (*step, serde_json::from_str(text).unwrap())));
            let rows = self.rows.iter().map(|row| (row.id.clone(), row.clone())).collect();
            steps.rebuild(&self.of.0, step, &rows, &self.frozen).unwrap()
        }
    }

    fn tool(name: &str) -> ToolDefinition {
        ToolDefinition::new(name, "Reads", json!({"type": "object"}), ReplayClass::Read)
    }

    fn ids(messages: &[&Message]) -> Vec<MessageId> {
        messages.iter().map(|message| message.id.clone()).collect()
    }

    #[test]
    fn later_record_repeats_nothing_of_earlier_one() {
        let mut recorder = Recorder::new();
        let (question, answer) = (recorder.store(Role::User, "one"), recorder.store(Role::Assistant, "two"));
        let hint = recorder.message(Role::User, "only in the request");
        let first = recorder.record(1, &recorder.request(vec![question.clone(), answer.clone(), hint.clone()]));
        let sent = Box::new(SentMessage { message: hint.clone(), text_limits: BTreeMap::new() });
        assert_eq!(first.messages, Some(vec![RecordedMessages::Rows(ids(&[&question, &answer])), RecordedMessages::Sent(sent)]));
        let next = recorder.store(Role::Assistant, "three");
        let second = recorder.record(3, &recorder.request(vec![question, answer.clone(), hint.clone(), next.clone()]));
        let expected = RequestRecord {
            base: Some(1),
            model: "demo/demo".to_owned(),
            messages: Some(vec![RecordedMessages::Same(0, 3), RecordedMessages::Rows(ids(&[&next]))]),
            ..RequestRecord::default()
        };
        assert_eq!(second, expected);
        // The third record builds on the second one, without the evicted question.
        let third = recorder.record(5, &recorder.request(vec![answer, hint, next]));
        assert_eq!((third.base, third.messages), (Some(3), Some(vec![RecordedMessages::Same(1, 3)])));
    }

    #[test]
    fn record_of_repeated_step_is_complete() {
        let mut recorder = Recorder::new();
        let question = recorder.store(Role::User, "one");
        recorder.record(1, &recorder.request(vec![question.clone()]));
        let other = ModelRequest { model: "demo/other".to_owned(), ..recorder.request(vec![question]) };
        let again = recorder.record(1, &other);
        assert_eq!((again.base, again.system.as_deref()), (None, Some("Be brief.")));
        assert_eq!(recorder.rebuild(1).model, "demo/other");
    }

    #[test]
    fn joined_rows_and_changed_parts_are_rebuilt() {
        let mut recorder = Recorder::new();
        let (first, second) = (recorder.store(Role::User, "one"), recorder.store(Role::User, "two"));
        let joined = Message { parts: [first.parts.clone(), second.parts.clone()].concat(), ..first.clone() };
        let record = recorder.record(1, &recorder.request(vec![joined]));
        assert_eq!(record.messages, Some(vec![RecordedMessages::Joined(ids(&[&first, &second]))]));
        let limit = TextLimit { chars: 5, bytes: 9 };
        let file = FilePart { text_limit: Some(limit), ..FilePart::of(PartId::generate(&recorder.ids), "text/plain") };
        let id = file.id.clone();
        let own = ModelRequest { tools: vec![Arc::new(tool("choose"))], ..recorder.request(vec![first.clone()]) };
        let cut = Message { parts: vec![Part::File(file)], ..first };
        recorder.record(3, &ModelRequest { messages: vec![cut], ..own });
        assert_eq!(recorder.rebuild(3).text_limits, BTreeMap::from([(id, limit)]));
    }

    #[test]
    fn record_above_the_limit_lacks_the_largest_messages() {
        let mut recorder = Recorder::new();
        let question = recorder.store(Role::User, "one");
        recorder.record(1, &recorder.request(vec![question.clone()]));
        let long = recorder.message(Role::User, &"x".repeat(MAX_RECORD_BYTES));
        let hint = recorder.message(Role::User, "short");
        recorder.store_record(3, &recorder.request(vec![question.clone(), long.clone(), hint.clone()]));
        let rebuilt = recorder.rebuild(3);
        assert_eq!(rebuilt.missing, ["1 of the messages, the largest: they do not fit into the record of 256 KiB"]);
        assert_eq!((rebuilt.tools.len(), rebuilt.messages), (1, vec![question.clone(), hint]));
        assert_eq!(recorder.record(5, &recorder.request(vec![question])).base, Some(3));
        let system = "x".repeat(MAX_RECORD_BYTES);
        recorder.store_record(7, &ModelRequest { system, ..recorder.request(vec![long]) });
        let rebuilt = recorder.rebuild(7);
        assert_eq!((rebuilt.model.as_str(), rebuilt.system, rebuilt.missing.len()), ("demo/demo", None, 4));
    }

    #[test]
    fn deleted_rows_and_records_are_named_as_missing() {
        let mut recorder = Recorder::new();
        let (question, answer) = (recorder.store(Role::User, "one"), recorder.store(Role::Assistant, "two"));
        recorder.record(1, &recorder.request(vec![question.clone()]));
        recorder.record(3, &recorder.request(vec![question, answer.clone()]));
        recorder.rows.pop();
        recorder.frozen.clear();
        let rebuilt = recorder.rebuild(3);
        let message = format!("the message {} is not stored any more", answer.id);
        assert_eq!(rebuilt.missing, ["the definition of the tool read is not stored any more", message.as_str()]);
        assert_eq!(rebuilt.messages.len(), 1);
        recorder.texts.remove(&1);
        let rebuilt = recorder.rebuild(3);
        assert!(rebuilt.missing.contains(&BASE_MISSING.to_owned()));
        assert_eq!(rebuilt.system, None);
    }
}
