//! Rows as plain values, and how they become the domain's: shared by both backends.
//!
//! Owns no state. Must not know which database a row came from, nor send any statement.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::{ColumnIndex, Decode, Row, Type};

use super::{Claim, NewConversation, RunView, StoreError, StoreResult, UnnamedLease};
use crate::domain::admission::Admission;
use crate::domain::agent::{AgentProfile, LlmRetry, RepairPolicy};
use crate::domain::approval::ApprovalPolicy;
use crate::domain::budget::Budget;
use crate::domain::change::StepKind;
use crate::domain::context::ContextPolicy;
use crate::domain::conversation::{Conversation, ConversationStatus, LastRun};
use crate::domain::event::{EventBody, NewEvent, StoredEvent};
use crate::domain::ids::{CallId, ConversationId, InputId, RunId};
use crate::domain::input::{InputKind, InputRecord, InputRequest, InputState};
use crate::domain::message::Message;
use crate::domain::model::ModelOptions;
use crate::domain::plan::PlanPolicy;
use crate::domain::prompt::{OwnLayers, PromptPolicy};
use crate::domain::record::{ClaimCause, Fence};
use crate::domain::response_analysis::ResponseAnalysis;
use crate::domain::run::{FinishReason, Run, RunStatus, WaitReason};
use crate::domain::sampling::SamplingByTurn;
use crate::domain::tool_filter::{ServerHint, ToolFilter};
use crate::domain::trace::TraceId;
use crate::support::clock::UnixMillis;
use crate::support::json::{keep_fields, nesting};
use crate::support::text::{storable, storable_json};

/// The columns that make a [`RunRow`], for a table called `runs`.
pub(super) const RUN_COLUMNS: &str = "runs.id, runs.conversation_id, runs.status, runs.reason, runs.active, \
     runs.agent, runs.agent_version, runs.model, runs.usage, runs.attempt, runs.crashes, runs.first_seq, \
     runs.last_seq, runs.finish_reason, runs.error, runs.cancel_requested_by, runs.trace_id, runs.created_at, \
     runs.started_at, runs.finished_at";

/// A run without its wide columns: what clients and use cases ask for.
#[derive(Debug, Clone)]
pub(super) struct RunRow {
    pub id: String,
    pub conversation_id: String,
    pub status: String,
    pub reason: Option<String>,
    pub active: bool,
    pub agent: String,
    pub agent_version: i64,
    pub model: String,
    pub usage: String,
    pub attempt: i64,
    pub crashes: i64,
    pub first_seq: i64,
    pub last_seq: Option<i64>,
    pub finish_reason: Option<String>,
    pub error: Option<String>,
    pub cancel_requested_by: Option<String>,
    pub trace_id: Option<String>,
    pub created_at: i64,
    pub started_at: Option<i64>,
    pub finished_at: Option<i64>,
}

impl RunRow {
    /// Reads [`RUN_COLUMNS`].
    pub(super) fn read<'r, R>(row: &'r R) -> Result<Self, sqlx::Error>
    where
        R: Row,
        &'static str: ColumnIndex<R>,
        String: Decode<'r, R::Database> + Type<R::Database>,
        i64: Decode<'r, R::Database> + Type<R::Database>,
        bool: Decode<'r, R::Database> + Type<R::Database>,
    {
        Ok(Self {
            id: row.try_get("id")?,
            conversation_id: row.try_get("conversation_id")?,
            status: row.try_get("status")?,
            reason: row.try_get("reason")?,
            active: row.try_get("active")?,
            agent: row.try_get("agent")?,
            agent_version: row.try_get("agent_version")?,
            model: row.try_get("model")?,
            usage: row.try_get("usage")?,
            attempt: row.try_get("attempt")?,
            crashes: row.try_get("crashes")?,
            first_seq: row.try_get("first_seq")?,
            last_seq: row.try_get("last_seq")?,
            finish_reason: row.try_get("finish_reason")?,
            error: row.try_get("error")?,
            cancel_requested_by: row.try_get("cancel_requested_by")?,
            trace_id: row.try_get("trace_id")?,
            created_at: row.try_get("created_at")?,
            started_at: row.try_get("started_at")?,
            finished_at: row.try_get("finished_at")?,
        })
    }

    pub(super) fn run_id(&self) -> RunId {
        RunId::from_stored(self.id.clone())
    }

    pub(super) fn run_status(&self) -> StoreResult<RunStatus> {
        word("runs", "status", &self.id, &self.status, RunStatus::from_word)
    }

    /// The run as clients see it.
    pub(super) fn into_run(self) -> StoreResult<Run> {
        let status = self.run_status()?;
        let reason =
            self.reason.as_deref().map(|text| word("runs", "reason", &self.id, text, WaitReason::from_word)).transpose()?;
        let finish_reason = self.finish_reason.as_deref();
        let finish_reason =
            finish_reason.map(|text| word("runs", "finish_reason", &self.id, text, FinishReason::from_word)).transpose()?;
        let usage: crate::domain::model::Usage = decode("runs", "usage", &self.id, &self.usage)?;
        let error = self.error.as_deref().map(|text| decode("runs", "error", &self.id, text)).transpose()?;
        Ok(Run {
            id: RunId::from_stored(self.id),
            conversation_id: ConversationId::from_stored(self.conversation_id),
            status,
            reason,
            agent: self.agent,
            agent_version: unsigned(self.agent_version),
            model: self.model,
            attempt: unsigned(self.attempt),
            finish_reason,
            usage: (usage != crate::domain::model::Usage::default()).then_some(usage),
            error,
            trace_id: self.trace_id.map(TraceId::from_stored),
            created_at: UnixMillis(self.created_at).to_rfc3339(),
            started_at: self.started_at.map(|at| UnixMillis(at).to_rfc3339()),
            finished_at: self.finished_at.map(|at| UnixMillis(at).to_rfc3339()),
        })
    }

    /// The run with the bounds of its part of the log.
    pub(super) fn into_view(self) -> StoreResult<RunView> {
        let (first_seq, last_seq) = (self.first_seq, self.last_seq);
        Ok(RunView { run: self.into_run()?, first_seq, last_seq })
    }
}

/// A conversation with what belongs to it in other tables.
#[derive(Debug, Clone)]
pub struct ConversationRow {
    pub id: String,
    pub title: String,
    pub status: String,
    pub created_at: i64,
    pub updated_at: i64,
    pub last_seq: i64,
    pub active_run_id: Option<String>,
    pub reason: Option<String>,
    pub pinned: bool,
    pub archived_at: Option<i64>,
    pub tags: String,
    pub system_prompt: Option<String>,
    pub instructions: Option<String>,
    pub forked_from: Option<String>,
    pub agent: Option<String>,
    pub model: Option<String>,
    pub last_run_id: Option<String>,
    pub last_run_status: Option<String>,
    pub last_run_error: Option<String>,
}

impl ConversationRow {
    /// Reads columns with the names of the fields.
    pub(super) fn read<'r, R>(row: &'r R) -> Result<Self, sqlx::Error>
    where
        R: Row,
        &'static str: ColumnIndex<R>,
        String: Decode<'r, R::Database> + Type<R::Database>,
        i64: Decode<'r, R::Database> + Type<R::Database>,
        bool: Decode<'r, R::Database> + Type<R::Database>,
    {
        Ok(Self {
            pinned: row.try_get("pinned")?,
            archived_at: row.try_get("archived_at")?,
            tags: row.try_get("tags")?,
            system_prompt: row.try_get("system_prompt")?,
            instructions: row.try_get("instructions")?,
            forked_from: row.try_get("forked_from")?,
            agent: row.try_get("agent")?,
            model: row.try_get("model")?,
            last_run_id: row.try_get("last_run_id")?,
            last_run_status: row.try_get("last_run_status")?,
            last_run_error: row.try_get("last_run_error")?,
            id: row.try_get("id")?,
            title: row.try_get("title")?,
            status: row.try_get("status")?,
            created_at: row.try_get("created_at")?,
            updated_at: row.try_get("updated_at")?,
            last_seq: row.try_get("last_seq")?,
            active_run_id: row.try_get("active_run_id")?,
            reason: row.try_get("reason")?,
        })
    }

    /// The conversation as clients see it.
    pub(super) fn into_conversation(self) -> StoreResult<Conversation> {
        let status = word("conversations", "status", &self.id, &self.status, ConversationStatus::from_word)?;
        let tags = decode("conversations", "tags", &self.id, &self.tags)?;
        let reason =
            self.reason.as_deref().map(|reason| word("runs", "reason", &self.id, reason, WaitReason::from_word)).transpose()?;
        let forked_from = self.forked_from.as_deref();
        let forked_from = forked_from.map(|text| decode("conversations", "forked_from", &self.id, text)).transpose()?;
        let last_run = match (self.last_run_id, &self.last_run_status) {
            (Some(id), Some(status)) => Some(LastRun {
                status: word("runs", "status", &id, status, RunStatus::from_word)?,
                error: self.last_run_error.as_deref().map(|text| decode("runs", "error", &id, text)).transpose()?,
                id: RunId::from_stored(id),
            }),
            (Some(_) | None, _) => None,
        };
        Ok(Conversation {
            forked_from,
            last_run,
            agent: self.agent,
            model: self.model,
            id: ConversationId::from_stored(self.id),
            title: self.title,
            status,
            pinned: self.pinned,
            archived_at: self.archived_at.map(|at| UnixMillis(at).to_rfc3339()),
            tags,
            reason,
            system_prompt: self.system_prompt,
            instructions: self.instructions,
            active_run_id: self.active_run_id.map(RunId::from_stored),
            last_seq: self.last_seq,
            created_at: UnixMillis(self.created_at).to_rfc3339(),
            updated_at: UnixMillis(self.updated_at).to_rfc3339(),
        })
    }
}

/// Returns a conversation as it is made, with texts as the databases store them.
pub(super) fn new_conversation(new: &NewConversation) -> Conversation {
    let text = |text: &str| storable(text).into_owned();
    Conversation {
        id: new.id.clone(),
        title: text(&new.title),
        status: ConversationStatus::Idle,
        active_run_id: None,
        reason: None,
        pinned: false,
        archived_at: None,
        tags: Vec::new(),
        system_prompt: new.system_prompt.as_deref().map(text),
        instructions: new.instructions.as_deref().map(text),
        forked_from: None,
        last_run: None,
        agent: new.choice.agent.as_deref().map(text),
        model: new.choice.model.as_deref().map(text),
        last_seq: 0,
        created_at: new.now.to_rfc3339(),
        updated_at: new.now.to_rfc3339(),
    }
}

/// How far runs have come, by the greater word of the kinds of their steps: whoever has called tools has asked a model.
pub(super) fn reached(found: Vec<(String, String)>) -> StoreResult<Vec<(RunId, StepKind)>> {
    let read = |(run, kind): (String, String)| {
        let kind = word("run_steps", "kind", &run, &kind, StepKind::from_word)?;
        Ok((RunId::from_stored(run), kind))
    };
    found.into_iter().map(read).collect()
}

/// What a conversation adds to the system prompts of its runs.
pub(super) fn own_layers<'r, R>(row: &'r R) -> Result<OwnLayers, sqlx::Error>
where
    R: Row,
    &'static str: ColumnIndex<R>,
    Option<String>: Decode<'r, R::Database> + Type<R::Database>,
{
    let [system_prompt, instructions] = ["system_prompt", "instructions"].map(|column| row.try_get::<Option<String>, _>(column));
    Ok(OwnLayers { system_prompt: system_prompt?.unwrap_or_default(), instructions: instructions?.unwrap_or_default() })
}

/// The columns that make an [`InputRecord`].
pub(super) const INPUT_COLUMNS: &str = "id, conversation_id, run_id, call_id, kind, question, state, answer, resolved_by, \
     created_at, resolved_at, expires_at";

/// Reads [`INPUT_COLUMNS`].
pub(super) fn read_input<'r, R>(row: &'r R) -> StoreResult<InputRecord>
where
    R: Row,
    &'static str: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    let table = "input_requests";
    let text = |column: &'static str| -> Result<String, sqlx::Error> { row.try_get(column) };
    let id = text("id")?;
    let answer: Option<String> = row.try_get("answer")?;
    let time = |at: Option<i64>| at.map(|at| UnixMillis(at).to_rfc3339());
    let request = InputRequest {
        conversation_id: ConversationId::from_stored(text("conversation_id")?),
        run_id: RunId::from_stored(text("run_id")?),
        call_id: row.try_get::<Option<String>, _>("call_id")?.map(CallId::from_stored),
        kind: word(table, "kind", &id, &text("kind")?, InputKind::from_word)?,
        question: decode(table, "question", &id, &text("question")?)?,
        state: word(table, "state", &id, &text("state")?, InputState::from_word)?,
        answer: answer.map(|answer| decode(table, "answer", &id, &answer)).transpose()?,
        expires_in_ms: None,
        id: InputId::from_stored(id),
    };
    Ok(InputRecord {
        request,
        resolved_by: row.try_get("resolved_by")?,
        created_at: UnixMillis(row.try_get("created_at")?).to_rfc3339(),
        resolved_at: time(row.try_get("resolved_at")?),
        expires_at: time(row.try_get("expires_at")?),
    })
}

/// Reads [`INPUT_COLUMNS`] and `expires_in`, for the run's worker.
pub(super) fn read_open_input<'r, R>(row: &'r R) -> StoreResult<InputRequest>
where
    R: Row,
    &'static str: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    let left: Option<i64> = row.try_get("expires_in")?;
    let expires_in_ms = left.map(|left| u64::try_from(left).unwrap_or(0));
    Ok(InputRequest { expires_in_ms, ..read_input(row)?.request })
}

/// Reads a row with `seq, run_id, attempt, kind, at, data`.
pub(super) fn read_event<'r, R>(row: &'r R, conversation: &ConversationId) -> Result<StoredEvent, sqlx::Error>
where
    R: Row,
    &'static str: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    &'r str: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    let kind: &str = row.try_get("kind")?;
    let run_id: Option<String> = row.try_get("run_id")?;
    Ok(StoredEvent {
        seq: row.try_get("seq")?,
        kind: match EventBody::KINDS.iter().find(|known| **known == kind) {
            Some(known) => (*known).into(),
            None => kind.to_owned().into(),
        },
        conversation_id: conversation.clone(),
        run_id: run_id.map(RunId::from_stored),
        attempt: unsigned(row.try_get("attempt")?),
        at: UnixMillis(row.try_get("at")?),
        data: row.try_get("data")?,
    })
}

/// The event as it is stored with the number `seq`.
pub(super) fn stored(event: NewEvent, conversation: &ConversationId, seq: i64) -> StoredEvent {
    StoredEvent {
        seq,
        kind: event.kind.into(),
        conversation_id: conversation.clone(),
        run_id: event.run_id,
        attempt: event.attempt,
        at: event.at,
        data: event.data,
    }
}

/// The message without U+0000, and its body as stored: the row says what the log says.
pub(super) fn storable_message(message: Message) -> StoreResult<(Message, String)> {
    let rendered = encode("messages", "body", message.id.as_str(), &message)?;
    let body = storable_json(rendered.clone());
    if body == rendered {
        return Ok((message, body));
    }
    let message = decode("messages", "body", message.id.as_str(), &body)?;
    Ok((message, body))
}

/// A value as JSON text without U+0000.
pub(super) fn encode_storable<T: Serialize>(table: &'static str, column: &'static str, id: &str, value: &T) -> StoreResult<String> {
    encode(table, column, id, value).map(storable_json)
}

/// Why a write is refused that holds what could not be read again.
pub(super) const UNREADABLE: &str = "a value could not be read again";

/// The deepest nesting that [`decode`] takes. Writing has no such limit by itself, and a row that cannot be read again would
/// take its whole conversation with it.
const MAX_NESTING: usize = 127;

/// A value as JSON text, which [`decode`] can read.
pub(super) fn encode<T: Serialize>(table: &'static str, column: &'static str, id: &str, value: &T) -> StoreResult<String> {
    let text = serde_json::to_string(value).map_err(|error| corrupt(table, column, id, error))?;
    if nesting(&text) > MAX_NESTING {
        return Err(corrupt(table, column, id, format!("it is nested more than {MAX_NESTING} levels deep")));
    }
    Ok(text)
}

/// A value from JSON text.
pub(super) fn decode<T: DeserializeOwned>(table: &'static str, column: &'static str, id: &str, text: &str) -> StoreResult<T> {
    serde_json::from_str(text).map_err(|error| corrupt(table, column, id, error))
}

/// What was said in a conversation, from the bodies of its messages. It is kept as long as a run lasts, so it takes no more
/// room than it needs.
pub(super) fn history(conversation: &str, bodies: &[String]) -> StoreResult<Vec<Message>> {
    let mut messages = Vec::with_capacity(bodies.len() + 1);
    for body in bodies {
        let mut message: Message = decode("messages", "body", conversation, body)?;
        message.parts.shrink_to_fit();
        messages.push(message);
    }
    Ok(messages)
}

/// A frozen profile. What it says that this version does not know was added by a newer one and is left out: both may work on one
/// database, and a request that says such a thing is refused as ever.
pub(super) fn decode_profile(run: &str, text: &str) -> StoreResult<AgentProfile> {
    let strict = decode("runs", "profile", run, text);
    let Err(error) = strict else { return strict };
    let Ok(mut value) = serde_json::from_str::<serde_json::Value>(text) else { return Err(error) };
    keep_fields::<AgentProfile>(Some(&mut value));
    keep_fields::<ModelOptions>(value.get_mut("options"));
    keep_fields::<PlanPolicy>(value.get_mut("plan"));
    keep_fields::<SamplingByTurn>(value.get_mut("sampling"));
    keep_fields::<ResponseAnalysis>(value.get_mut("response_analysis"));
    keep_fields::<LlmRetry>(value.get_mut("llm_retry"));
    keep_fields::<ApprovalPolicy>(value.get_mut("approval"));
    keep_fields::<RepairPolicy>(value.get_mut("repair"));
    keep_fields::<ToolFilter>(value.get_mut("tool_filter"));
    keep_fields::<PromptPolicy>(value.get_mut("prompt"));
    keep_fields::<ContextPolicy>(value.get_mut("context"));
    keep_fields::<Budget>(value.get_mut("budget"));
    keep_fields::<Admission>(value.get_mut("admission"));
    let servers = value.pointer_mut("/tool_filter/servers").and_then(serde_json::Value::as_object_mut);
    servers.into_iter().flatten().for_each(|(_, server)| keep_fields::<ServerHint>(Some(server)));
    serde_json::from_value(value).map_err(|error| corrupt("runs", "profile", run, error))
}

/// Why a run was claimed. What this version cannot read is taken for a crash, after which everything is looked at most closely: the
/// claim is made already, and a run that is left to its lease for it would be claimed again and again and never end.
pub(super) fn claim_cause(run: &str, text: &str) -> ClaimCause {
    ClaimCause::from_word(text).unwrap_or_else(|| {
        tracing::warn!(
            run.id = run,
            cause = text,
            "a run was claimed for a cause that is not known, and is judged as after a crash"
        );
        ClaimCause::Crash
    })
}

/// A value from its word.
pub(super) fn word<T>(
    table: &'static str,
    column: &'static str,
    id: &str,
    text: &str,
    read: impl FnOnce(&str) -> Option<T>,
) -> StoreResult<T> {
    read(text).ok_or_else(|| corrupt(table, column, id, format!("unknown word {text:?}")))
}

fn corrupt(table: &'static str, column: &'static str, id: &str, reason: impl ToString) -> StoreError {
    StoreError::Corrupt { table, column, id: id.to_owned(), reason: reason.to_string() }
}

/// Returns the claims that can be read, and logs the others.
///
/// All of them are claimed already, and one error must not lose the rest. A claim that cannot be read becomes an orphaned claim of
/// its node, which releases it and may claim it again. Both schemas are typed, so that only a damaged database has one.
pub(super) fn readable_claims(claims: impl Iterator<Item = StoreResult<Claim>>) -> Vec<Claim> {
    let readable = claims.filter_map(|claim| {
        claim.inspect_err(|error| tracing::error!(error = error as &dyn std::error::Error, "a claim cannot be read")).ok()
    });
    readable.collect()
}

/// Reads an unnamed lease: run, conversation, epoch, and age in milliseconds.
pub(super) fn unnamed_lease((run, conversation, epoch, age_ms): (String, String, i64, i64)) -> UnnamedLease {
    let fence = Fence { run_id: RunId::from_stored(run), conversation_id: ConversationId::from_stored(conversation), epoch };
    UnnamedLease { fence, age: Duration::from_millis(u64::try_from(age_ms).unwrap_or(0)) }
}

/// How much is loaded of what was said in a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Words {
    /// All that its model is to read.
    All,
    /// Nothing.
    None,
}

/// A count as stored. No statement of ours makes it negative.
pub(super) fn unsigned(count: i64) -> u32 {
    u32::try_from(count).unwrap_or(0)
}

/// A count to store.
pub(super) fn signed(count: u32) -> i64 {
    i64::from(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_can_be_decoded() {
        let nested = |levels: usize| (0..levels).fold(serde_json::json!(1), |inner, _| serde_json::json!([inner]));
        for levels in 0..=MAX_NESTING {
            let text = encode("t", "c", "id", &nested(levels)).unwrap();
            assert_eq!(decode::<serde_json::Value>("t", "c", "id", &text).unwrap(), nested(levels));
        }
        assert!(encode("t", "c", "id", &nested(MAX_NESTING + 1)).is_err());
    }
}
