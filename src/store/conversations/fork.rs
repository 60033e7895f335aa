//! Creates a conversation from existing messages: a fork of another conversation, or an imported document.
//!
//! A copy is a transcript. Each turn becomes a run that has ended, because history is ordered by runs. Its log contains complete
//! messages and the end of the run. A copy executes nothing and charges nothing.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::domain::conversation::{
    AgentChoice, Conversation, ConversationStatus, Feedback, ForkedFrom, LastRun, Message, Part, Role,
};
use crate::domain::event::{EventBody, NewEvent};
use crate::domain::ids::{CallId, ConversationId, MessageId, PartId, RunId, UserId};
use crate::domain::model::Usage;
use crate::domain::problem::ProblemBody;
use crate::domain::run::{FinishReason, RunStatus};
use crate::store::runs::created_rows;
use crate::store::sql::Row;
use crate::store::{StoreResult, rows};
use crate::support::clock::UnixMillis;
use crate::support::ids::{IdSource, SharedIds};
use crate::support::text::storable;

/// The `by` of `run.cancelled` for a turn whose end was not copied.
const BY_COPY: &str = "copy";

#[derive(Clone)]
pub struct CopyConversation {
    pub id: ConversationId,
    /// The owner of the copy and of the source.
    pub owner: UserId,
    pub title: Option<String>,
    pub source: CopySource,
    pub limits: CopyLimits,
    /// Limit of conversations of the owner that are not archived, including this one. 0 for no limit.
    pub max_conversations: u32,
    /// Generates new ids for everything that is copied.
    pub ids: SharedIds,
    pub now: UnixMillis,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyLimits {
    pub messages: u32,
    /// Total size of the stored messages in bytes.
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub enum CopySource {
    /// The ended turns of another conversation.
    Conversation { id: ConversationId, until: CopyUntil },
    /// A transcript in the request.
    Document(CopiedDocument),
}

/// The end of a copy, in the order in which models read: run by run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyUntil {
    /// The end of the last turn before the first unfinished one.
    End,
    /// This message, which is copied.
    After(MessageId),
    /// This message, which is not copied.
    Before(MessageId),
    Run(RunId),
}

/// A transcript with the facts about its conversation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CopiedDocument {
    pub title: String,
    pub tags: Vec<String>,
    pub system_prompt: Option<String>,
    pub instructions: Option<String>,
    pub choice: AgentChoice,
    pub metadata: Map<String, Value>,
    /// The turns, in the order in which models read them.
    pub turns: Vec<CopiedTurn>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct CopiedTurn {
    /// The position of its beginning among all messages.
    pub begins: i64,
    /// Its agent profile as JSON, which a retry of the turn uses.
    pub profile: String,
    pub agent: String,
    pub agent_version: u32,
    pub model: String,
    pub end: CopiedEnd,
    /// Its messages, each with its position in the list of all messages. Never empty.
    pub messages: Vec<(i64, Message)>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum CopiedEnd {
    Completed(FinishReason),
    Failed(ProblemBody),
    /// Cancelled before its answer, or not copied to its end.
    Cancelled,
}

impl CopiedEnd {
    fn status(&self) -> RunStatus {
        match self {
            Self::Completed(_) => RunStatus::Completed,
            Self::Failed(_) => RunStatus::Failed,
            Self::Cancelled => RunStatus::Cancelled,
        }
    }

    fn error(&self) -> Option<&ProblemBody> {
        match self {
            Self::Failed(error) => Some(error),
            Self::Completed(_) | Self::Cancelled => None,
        }
    }

    fn event(&self) -> EventBody {
        match self {
            Self::Completed(finish_reason) => EventBody::RunCompleted {
                finish_reason: *finish_reason,
                usage: Usage::default(),
                output: None,
                error: None,
                notice: None,
            },
            Self::Failed(error) => EventBody::RunFailed { error: error.clone() },
            Self::Cancelled => EventBody::RunCancelled { by: BY_COPY.to_owned() },
        }
    }
}

/// The outcome of a copy. Stored with the idempotency key, so fields are only ever added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyOutcome {
    Conversation(Box<Conversation>),
    /// The end is inside or after an unfinished run.
    Active {
        run_id: RunId,
    },
    /// The copy would contain calls without their results.
    PartsCalls,
    /// The copy exceeds the limits of one request.
    TooLarge,
    /// The owner has reached the limit of conversations.
    TooMany,
    /// The conversation does not contain this message or run, or no longer does.
    NoPoint,
    /// The conversation is missing, or belongs to another owner.
    NoConversation,
}

/// A message's row with the columns of its run, in the order in which models read.
pub struct SourceRow<'r> {
    id: &'r str,
    run_id: &'r str,
    role: &'r str,
    is_open: bool,
    row: &'r Row,
}

impl<'r> SourceRow<'r> {
    pub(in crate::store) fn read(row: &'r Row) -> Result<Self, sqlx::Error> {
        let (id, run_id, role) = (row.get("id")?, row.get("run_id")?, row.get("role")?);
        Ok(Self { id, run_id, role, is_open: row.get("is_open")?, row })
    }
}

/// Returns the transcript of a conversation with its origin, or why it cannot be copied. `rows` contains at most one row more than
/// the limit.
///
/// A copy is neither pinned nor archived, and has no grants. A summary of older messages is created again when it is needed.
pub fn select(
    source: Conversation,
    rows: &[SourceRow<'_>],
    until: &CopyUntil,
    limits: CopyLimits,
) -> StoreResult<Result<(CopiedDocument, ForkedFrom), CopyOutcome>> {
    let open = rows.iter().position(|row| row.is_open).unwrap_or(rows.len());
    let most = usize::try_from(limits.messages).unwrap_or(usize::MAX);
    let found = match until {
        CopyUntil::End => Some(open),
        CopyUntil::After(id) => rows.iter().position(|row| row.id == id.as_str()).map(|at| at + 1),
        CopyUntil::Before(id) => rows.iter().position(|row| row.id == id.as_str()),
        CopyUntil::Run(id) => rows.iter().rposition(|row| row.run_id == id.as_str()).map(|at| at + 1),
    };
    let is_cut_off = rows.len() > most;
    let Some(end) = found else { return Ok(Err(if is_cut_off { CopyOutcome::TooLarge } else { CopyOutcome::NoPoint })) };
    if end > open {
        return Ok(Err(CopyOutcome::Active { run_id: RunId::from_stored(rows[open].run_id.to_owned()) }));
    }
    if end > most {
        return Ok(Err(CopyOutcome::TooLarge));
    }
    let (taken, rest) = rows.split_at(end);
    let last_run = taken.last().map(|row| row.run_id);
    let mut cut = rest.iter().take_while(|row| Some(row.run_id) == last_run).peekable();
    let is_cut = cut.peek().is_some();
    // Within a run, the results of a call precede the next answer. Only user messages may be between them.
    if cut.find(|row| row.role != Role::User.as_str()).is_some_and(|row| row.role == Role::Tool.as_str()) {
        return Ok(Err(CopyOutcome::PartsCalls));
    }
    let mut turns: Vec<CopiedTurn> = Vec::new();
    let mut run_id = None;
    for SourceRow { id, run_id: of_run, row, .. } in taken {
        // The body is absent if it exceeds the limit of bytes.
        let Some(body) = row.get::<Option<&str>>("body")? else { return Ok(Err(CopyOutcome::TooLarge)) };
        let (position, message): (i64, Message) = (row.get("position")?, rows::decode("messages", "body", id, body)?);
        if let Some(turn) = turns.last_mut().filter(|_| run_id == Some(*of_run)) {
            turn.messages.push((position, message));
            continue;
        }
        run_id = Some(*of_run);
        turns.push(CopiedTurn {
            begins: row.get("first_seq")?,
            // Only the first row of a run contains the profile.
            profile: row.get::<Option<String>>("profile")?.unwrap_or_default(),
            agent: row.get("agent")?,
            agent_version: rows::unsigned_count(row.get("agent_version")?),
            model: row.get("model")?,
            end: copied_end(row, of_run)?,
            messages: vec![(position, message)],
        });
    }
    if let Some(turn) = turns.last_mut().filter(|_| is_cut) {
        turn.end = CopiedEnd::Cancelled;
    }
    let message_id = taken.last().map(|row| MessageId::from_stored(row.id.to_owned()));
    let Conversation { id, title, tags, system_prompt, instructions, agent, model, metadata, .. } = source;
    let from = ForkedFrom { conversation_id: id, message_id };
    let choice = AgentChoice { agent, model };
    Ok(Ok((CopiedDocument { title, tags, system_prompt, instructions, choice, metadata, turns }, from)))
}

fn copied_end(row: &Row, id: &str) -> StoreResult<CopiedEnd> {
    let reason = rows::read_optional_word(row, "runs", "finish_reason", id, FinishReason::from_name)?;
    let error: Option<ProblemBody> = rows::read_optional_json(row, "runs", "error", id)?;
    Ok(match (rows::read_word(row, "runs", "status", id, RunStatus::from_name)?, error) {
        (RunStatus::Completed, _) => CopiedEnd::Completed(reason.unwrap_or(FinishReason::Stop)),
        (RunStatus::Failed, Some(error)) => CopiedEnd::Failed(error),
        _ => CopiedEnd::Cancelled,
    })
}

/// The rows and events of turns in one conversation.
pub struct TurnRows {
    pub runs: Vec<WrittenRun>,
    pub messages: Vec<WrittenMessage>,
    /// The events in order, after those that the conversation has.
    pub events: Vec<NewEvent>,
}

impl TurnRows {
    /// Returns the status of a conversation that ends with these turns; `None` without turns.
    pub(in crate::store) fn status(&self) -> Option<ConversationStatus> {
        self.runs.last().map(|run| run.status.into())
    }
}

pub struct WrittenRun {
    pub id: RunId,
    pub turn: CopiedTurn,
    pub status: RunStatus,
    pub finish_reason: Option<FinishReason>,
    pub error: Option<String>,
    pub first_seq: i64,
    pub last_seq: i64,
}

pub struct WrittenMessage {
    pub id: MessageId,
    pub run_id: RunId,
    pub role: Role,
    pub position: i64,
    pub body: String,
    /// The feedback with its time, for documents only: feedback on a forked answer stays in its own conversation.
    pub rated: Option<(Feedback, UnixMillis)>,
}

impl WrittenMessage {
    /// Returns the row of a message with this body.
    pub(in crate::store) fn new(message: &Message, body: String, position: i64) -> Self {
        let (id, run_id, role) = (message.id.clone(), message.run_id.clone(), message.role);
        Self { id, run_id, role, position, body, rated: None }
    }
}

/// An entry at one position of the log. The order of the variants is the order at one position.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Entry {
    /// A message of a turn, by its index in the turn.
    Message(usize),
    Begun,
    Ended,
}

/// Returns the conversation of a copy with the rows and events of its turns, with new ids.
pub fn write(
    request: &CopyConversation,
    document: CopiedDocument,
    forked_from: Option<ForkedFrom>,
) -> StoreResult<(Conversation, TurnRows)> {
    let now = request.now;
    let mut turns = write_turns(&request.id, 0, document.turns, request.ids.as_ref(), now)?;
    let title = storable(request.title.as_deref().unwrap_or(&document.title)).into_owned();
    let status = turns.status().unwrap_or(ConversationStatus::Idle);
    turns.events.push(created_rows::conversation_updated(&title, status, now));
    let last_run = turns.runs.last();
    let conversation = Conversation {
        id: request.id.clone(),
        title,
        status,
        reason: None,
        active_run_id: None,
        pinned: false,
        archived_at: None,
        tags: document.tags,
        system_prompt: document.system_prompt.map(|text| storable(&text).into_owned()),
        instructions: document.instructions.map(|text| storable(&text).into_owned()),
        forked_from,
        metadata: document.metadata,
        last_run: last_run.map(|run| LastRun { id: run.id.clone(), status: run.status, error: run.turn.end.error().cloned() }),
        agent: document.choice.agent,
        model: document.choice.model,
        last_seq: i64::try_from(turns.events.len()).unwrap_or(i64::MAX),
        created_at: now.to_rfc3339(),
        updated_at: now.to_rfc3339(),
    };
    Ok((conversation, turns))
}

/// Returns the rows and events of turns in a conversation whose newest sequence number is `base`. The messages of the turns get new
/// ids.
pub fn write_turns(
    conversation: &ConversationId,
    base: i64,
    turns: Vec<CopiedTurn>,
    ids: &dyn IdSource,
    now: UnixMillis,
) -> StoreResult<TurnRows> {
    let mut entries: Vec<(i64, Entry, usize)> = Vec::new();
    for (at, turn) in turns.iter().enumerate() {
        let last = turn.messages.iter().map(|(place, _)| *place).max().unwrap_or(turn.begins);
        entries.push((turn.begins, Entry::Begun, at));
        entries.push((last.max(turn.begins), Entry::Ended, at));
        entries.extend(turn.messages.iter().enumerate().map(|(nth, (place, _))| (*place, Entry::Message(nth), at)));
    }
    entries.sort_unstable();
    let mut runs = Vec::with_capacity(turns.len());
    for turn in turns {
        let id = RunId::generate(ids);
        let finish_reason = match &turn.end {
            CopiedEnd::Completed(reason) => Some(*reason),
            CopiedEnd::Failed(_) => None,
            CopiedEnd::Cancelled => Some(FinishReason::Cancelled),
        };
        let error = turn.end.error().map(|error| rows::encode_storable("runs", "error", id.as_str(), error)).transpose()?;
        runs.push(WrittenRun { id, status: turn.end.status(), turn, finish_reason, error, first_seq: 0, last_seq: 0 });
    }
    let mut renamed = IdMap { ids, calls: HashMap::new() };
    let (mut events, mut messages) = (Vec::with_capacity(entries.len() + 1), Vec::new());
    for (_, entry, at) in entries {
        let run = &mut runs[at];
        let seq = base.saturating_add(i64::try_from(events.len()).unwrap_or(i64::MAX)).saturating_add(1);
        if run.first_seq == 0 {
            run.first_seq = seq;
        }
        let body = match entry {
            Entry::Begun => EventBody::RunQueued { position: 0, supersedes: Vec::new() },
            Entry::Ended => {
                run.last_seq = seq;
                run.turn.end.event()
            }
            Entry::Message(nth) => {
                let (_, message) = &mut run.turn.messages[nth];
                renamed.message(message, conversation, &run.id);
                // Times in the future become the present.
                let rated = message.feedback.take().map(|feedback| {
                    let at = UnixMillis::from_rfc3339(&feedback.at).map_or(now, |at| at.min(now));
                    (*feedback, at)
                });
                let (stored, body) = rows::storable_message(message.clone())?;
                *message = stored;
                messages.push(WrittenMessage { rated, ..WrittenMessage::new(message, body, seq) });
                EventBody::MessageCreated { message: message.clone() }
            }
        };
        events.push(NewEvent::new(&body, Some(run.id.clone()), 0, now));
    }
    Ok(TurnRows { runs, messages, events })
}

/// Maps the ids of copied items to new ids, so that calls keep their results.
struct IdMap<'a> {
    ids: &'a dyn IdSource,
    calls: HashMap<CallId, CallId>,
}

impl IdMap<'_> {
    fn message(&mut self, message: &mut Message, conversation: &ConversationId, run: &RunId) {
        message.id = MessageId::generate(self.ids);
        message.conversation_id = conversation.clone();
        message.run_id = run.clone();
        for part in &mut message.parts {
            let id = PartId::generate(self.ids);
            match part {
                Part::Text(part) => part.id = id,
                Part::Reasoning(part) => part.id = id,
                Part::ToolCall(part) => {
                    part.id = id;
                    part.call_id = self.call(&part.call_id);
                    part.undoes = part.undoes.take().and_then(|undone| self.calls.get(&undone).cloned());
                }
                Part::ToolResult(part) => {
                    part.id = id;
                    // The calls of a copy cannot be undone.
                    part.undoable = false;
                    part.call_id = self.call(&part.call_id);
                }
                Part::Image(part) | Part::File(part) => part.id = id,
                Part::Source(part) => part.id = id,
            }
        }
    }

    fn call(&mut self, id: &CallId) -> CallId {
        let ids = self.ids;
        self.calls.entry(id.clone()).or_insert_with(|| CallId::generate(ids)).clone()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::support::ids::SequentialIds;

    /// An undo call refers to the undone call by its new id. The calls of a copy cannot be undone.
    #[test]
    fn calls_of_a_copy_have_nothing_to_take_back() {
        let ids = SequentialIds::default();
        let (made, undoing, elsewhere) = (CallId::generate(&ids), CallId::generate(&ids), CallId::generate(&ids));
        let call = |id: &CallId, undoes: Option<&CallId>| json!({"type": "tool_call", "id": PartId::generate(&ids), "call_id": id, "name": "t", "arguments": {}, "undoes": undoes});
        let result = json!({
            "type": "tool_result", "id": PartId::generate(&ids), "call_id": made, "name": "t", "content": [], "is_error": false,
            "state": "done", "undoable": true
        });
        let message = json!({
            "id": MessageId::generate(&ids), "conversation_id": ConversationId::generate(&ids), "run_id": RunId::generate(&ids),
            "role": "assistant", "status": "complete", "created_at": "2026-01-01T00:00:00Z",
            "parts": [call(&made, None), result, call(&undoing, Some(&made)), call(&elsewhere, Some(&elsewhere))]
        });
        let mut message: Message = serde_json::from_value(message).unwrap();
        let mut renamed = IdMap { ids: &ids, calls: HashMap::new() };
        renamed.message(&mut message, &ConversationId::generate(&ids), &RunId::generate(&ids));
        let [Part::ToolCall(first), Part::ToolResult(result), Part::ToolCall(second), _] = &message.parts[..] else {
            panic!("{message:?}")
        };
        assert_ne!(first.call_id, made);
        assert_eq!((&result.call_id, result.undoable), (&first.call_id, false));
        assert_eq!(second.undoes.as_ref(), Some(&first.call_id));
    }
}
