//! The record of a model step: what the model was sent, in a compact form that is stored with the step.
//!
//! A record names stored messages by their ids, and contains only the messages that differ from their rows. It also refers to the record of an
//! earlier step of the same run, so that each text is stored once for each claim. Must not know how a request is built.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hasher as _};
use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::conversation::{Message, Part, Role, TextLimit};
use crate::domain::ids::{MessageId, PartId};
use crate::domain::model::ModelRequest;
use crate::domain::run::ContextUnit;
use crate::domain::tool::ToolDefinition;

/// The largest stored record. A larger one is stored without its largest messages, or without anything but the model.
pub const MAX_RECORD_BYTES: usize = 256 * 1024;

/// The maximum number of rows that are searched for the rest of a joined message.
const MAX_JOINED_ROWS: usize = 16;

/// The stored form of a request. An absent field equals that of the base, or was too large if the record has no base.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// The earlier step of the run whose record this one continues.
    pub base: Option<u32>,
    pub model: String,
    pub system: Option<String>,
    pub tools: Option<RecordedTools>,
    /// As JSON, because a newer version may have added options.
    pub options: Option<Value>,
    pub window: Option<u64>,
    pub budget: Option<RequestBudget>,
    /// `None` if they are too large.
    pub messages: Option<Vec<RecordedMessages>>,
}

/// The offered tools, in order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordedTools {
    pub names: Vec<String>,
    /// The definitions that are not among the run's frozen tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own: Vec<SentTool>,
}

/// A tool as the model sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SentTool {
    pub name: String,
    pub description: String,
    #[schema(value_type = Object)]
    pub input_schema: Arc<Value>,
}

impl SentTool {
    pub fn of(tool: &ToolDefinition) -> Self {
        Self { name: tool.name.clone(), description: tool.description.clone(), input_schema: Arc::clone(&tool.parameters) }
    }

    fn is_of(tool: &ToolDefinition, other: &ToolDefinition) -> bool {
        let is_same_schema = Arc::ptr_eq(&tool.parameters, &other.parameters) || tool.parameters == other.parameters;
        is_same_schema && tool.name == other.name && tool.description == other.description
    }
}

/// The use of the request's budget, as in the event `context.budget`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RequestBudget {
    pub unit: ContextUnit,
    pub window: u64,
    pub used: u64,
    /// Negative if the request does not fit.
    pub remaining: i64,
}

/// Consecutive messages of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordedMessages {
    /// Messages of the base's request: the index of the first one, and their number.
    Same(usize, usize),
    /// Stored messages, each sent as it is.
    Rows(Vec<MessageId>),
    /// Stored messages whose parts were sent as one message.
    Joined(Vec<MessageId>),
    /// A message that differs from its row, or has none.
    Sent(Box<SentMessage>),
    /// A message that is too large for the record.
    LeftOut,
}

/// A message in its sent form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SentMessage {
    pub message: Message,
    /// The limits of the texts of files, by part.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub text_limits: BTreeMap<PartId, TextLimit>,
}

impl SentMessage {
    fn of(message: &Message) -> Self {
        Self { message: message.clone(), text_limits: text_limits(message).collect() }
    }

    /// Returns the message with the limits in its parts.
    pub fn restored(&self) -> Message {
        let mut message = self.message.clone();
        for part in &mut message.parts {
            let limit = self.text_limits.get(part.id()).copied();
            if let Part::Image(file) | Part::File(file) = part {
                file.text_limit = limit;
            }
        }
        message
    }
}

/// Lists the limits of the texts of a message's files.
pub fn text_limits(message: &Message) -> impl Iterator<Item = (PartId, TextLimit)> + '_ {
    message.parts.iter().filter_map(|part| match part {
        Part::Image(file) | Part::File(file) => Some((file.id.clone(), file.text_limit?)),
        Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) | Part::Source(_) => None,
    })
}

/// Digests of a recorded request. The worker keeps them in memory, and compares them with the next request of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestDigest {
    pub step: u32,
    system: Option<u64>,
    tools: Option<u64>,
    options: Option<u64>,
    messages: Vec<Option<u64>>,
}

/// The record of a model step before it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRequestRecord {
    /// The [`RequestRecord`] as JSON.
    pub text: String,
    /// `None` if the record is incomplete, so that no later one may refer to it.
    pub digest: Option<Arc<RequestDigest>>,
}

/// The rows that a record may refer to.
pub struct RecordSources<'a> {
    pub history: Vec<&'a Message>,
    /// The run's frozen tools.
    pub tools: &'a [Arc<ToolDefinition>],
}

impl NewRequestRecord {
    /// Returns the record of a request. `last` is the run's last complete record of this claim.
    pub fn of(
        step: u32,
        request: &ModelRequest,
        budget: Option<RequestBudget>,
        sources: &RecordSources<'_>,
        last: Option<&RequestDigest>,
    ) -> Self {
        // A repeated step replaces its own record.
        let base = last.filter(|base| base.step < step);
        let mut entries = compare_with_rows(&request.messages, &sources.history);
        let tools = compact_tools(&request.tools, sources.tools);
        let mut digest = RequestDigest {
            step,
            system: digest(&request.system),
            tools: digest(&tools),
            options: digest(&request.options),
            messages: entries.iter().map(MessageEntry::digest).collect(),
        };
        let is_same = |of: fn(&RequestDigest) -> Option<u64>| of(&digest).is_some() && base.map(of) == Some(of(&digest));
        let mut record = RequestRecord {
            base: base.map(|base| base.step),
            model: request.model.clone(),
            system: (!is_same(|digest| digest.system)).then(|| request.system.clone()),
            tools: (!is_same(|digest| digest.tools)).then_some(tools),
            options: if is_same(|digest| digest.options) { None } else { serde_json::to_value(&request.options).ok() },
            window: request.window,
            budget,
            messages: Some(compact_messages(&entries, &digest.messages, base)),
        };
        let mut text = json_of(&record);
        if let Some(excess) = text.len().checked_sub(MAX_RECORD_BYTES + 1) {
            leave_out_largest(&mut entries, &mut digest.messages, base, excess);
            record.messages = Some(compact_messages(&entries, &digest.messages, base));
            text = json_of(&record);
        }
        if text.len() <= MAX_RECORD_BYTES {
            return Self { text, digest: Some(Arc::new(digest)) };
        }
        let RequestRecord { model, window, budget, .. } = record;
        Self { text: json_of(&RequestRecord { model, window, budget, ..RequestRecord::default() }), digest: None }
    }
}

fn json_of(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Leaves out the largest messages that the base does not have, until the others need `excess` bytes less.
fn leave_out_largest(entries: &mut [MessageEntry<'_>], digests: &mut [Option<u64>], base: Option<&RequestDigest>, excess: usize) {
    let is_new = |digest: &Option<u64>| digest.is_none() || base.is_none_or(|base| !base.messages.contains(digest));
    let mut sizes: Vec<(usize, usize)> = Vec::new();
    for (at, (entry, digest)) in entries.iter().zip(&*digests).enumerate() {
        if let MessageEntry::Sent(sent) = entry
            && is_new(digest)
        {
            sizes.push((json_of(sent).len(), at));
        }
    }
    sizes.sort_unstable();
    let mut left = excess;
    while let Some((size, at)) = sizes.pop() {
        entries[at] = MessageEntry::LeftOut;
        digests[at] = None;
        match left.checked_sub(size) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

fn compact_tools(sent: &[Arc<ToolDefinition>], frozen: &[Arc<ToolDefinition>]) -> RecordedTools {
    let frozen: HashMap<&str, &ToolDefinition> = frozen.iter().map(|tool| (tool.name.as_str(), tool.as_ref())).collect();
    let is_own = |tool: &&Arc<ToolDefinition>| frozen.get(tool.name.as_str()).is_none_or(|frozen| !SentTool::is_of(tool, frozen));
    RecordedTools {
        names: sent.iter().map(|tool| tool.name.clone()).collect(),
        own: sent.iter().filter(is_own).map(|tool| SentTool::of(tool)).collect(),
    }
}

/// A message of a request, compared with the rows.
enum MessageEntry<'a> {
    /// The rows whose parts the message has.
    Rows(Vec<&'a MessageId>),
    Sent(Box<SentMessage>),
    LeftOut,
}

impl MessageEntry<'_> {
    fn digest(&self) -> Option<u64> {
        match self {
            Self::Rows(ids) => digest(ids),
            Self::Sent(sent) => digest(sent),
            Self::LeftOut => None,
        }
    }
}

fn compare_with_rows<'a>(sent: &[Message], history: &[&'a Message]) -> Vec<MessageEntry<'a>> {
    let places: HashMap<&MessageId, usize> = history.iter().zip(0..).map(|(row, at)| (&row.id, at)).collect();
    let entry = |message: &Message| {
        let rows = places.get(&message.id).and_then(|at| rows_of(message, history.get(*at..)?));
        rows.map_or_else(|| MessageEntry::Sent(Box::new(SentMessage::of(message))), MessageEntry::Rows)
    };
    sent.iter().map(entry).collect()
}

/// Returns the rows whose parts make up the message. `rows` begins with the row whose id the message has.
fn rows_of<'a>(message: &Message, rows: &[&'a Message]) -> Option<Vec<&'a MessageId>> {
    if message.role == Role::Tool {
        // Results have the id of the answer whose calls they belong to.
        let mut results = rows.iter().skip(1).take_while(|row| row.role != Role::Assistant);
        return results.find(|row| row.role == Role::Tool && row.parts == message.parts).map(|row| vec![&row.id]);
    }
    let (mut ids, mut rest) = (Vec::new(), message.parts.as_slice());
    for row in rows.iter().filter(|row| row.role == message.role).take(MAX_JOINED_ROWS) {
        if let Some(after) = rest.strip_prefix(row.parts.as_slice()).filter(|_| !row.parts.is_empty()) {
            ids.push(&row.id);
            rest = after;
        } else if ids.is_empty() {
            return None;
        }
        if rest.is_empty() {
            return Some(ids).filter(|ids| ids.first() == Some(&&message.id));
        }
    }
    None
}

/// Returns the messages in their compact form. Messages that the base has too are not repeated.
fn compact_messages(entries: &[MessageEntry<'_>], digests: &[Option<u64>], base: Option<&RequestDigest>) -> Vec<RecordedMessages> {
    let mut places: HashMap<u64, usize> = HashMap::new();
    for (digest, at) in base.iter().flat_map(|base| &base.messages).zip(0..) {
        if let Some(digest) = digest {
            places.entry(*digest).or_insert(at);
        }
    }
    let mut recorded: Vec<RecordedMessages> = Vec::new();
    for (entry, digest) in entries.iter().zip(digests) {
        let place = digest.and_then(|digest| places.get(&digest).copied());
        match (place, entry, recorded.last_mut()) {
            (Some(at), _, Some(RecordedMessages::Same(first, count))) if *first + *count == at => *count += 1,
            (Some(at), _, _) => recorded.push(RecordedMessages::Same(at, 1)),
            (None, MessageEntry::Rows(ids), last) => match (ids.as_slice(), last) {
                ([id], Some(RecordedMessages::Rows(rows))) => rows.push((*id).clone()),
                ([id], _) => recorded.push(RecordedMessages::Rows(vec![(*id).clone()])),
                (ids, _) => recorded.push(RecordedMessages::Joined(ids.iter().map(|id| (*id).clone()).collect())),
            },
            (None, MessageEntry::Sent(sent), _) => recorded.push(RecordedMessages::Sent(sent.clone())),
            (None, MessageEntry::LeftOut, _) => recorded.push(RecordedMessages::LeftOut),
        }
    }
    recorded
}

struct DigestWriter(DefaultHasher);

impl io::Write for DigestWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns a digest of the value's JSON. It is compared within a process only.
fn digest(value: &impl Serialize) -> Option<u64> {
    let mut writer = DigestWriter(DefaultHasher::new());
    serde_json::to_writer(&mut writer, value).ok()?;
    Some(writer.0.finish())
}
