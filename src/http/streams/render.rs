//! Renders stream items as the JSON text that every transport sends. No item exceeds the size limit of a frame.

use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::domain::conversation::Conversation;
use crate::domain::conversation::list_item::OpenQuestion;
use crate::domain::conversation::message::Message;
use crate::domain::frame_limit::{MAX_FRAME_JSON, fit};
use crate::domain::ids::{ConversationId, RunId};
use crate::domain::run::question::InputRequest;
use crate::domain::tool::approval::Approval;
use crate::domain::tool::client_tool::ClientCall;
use crate::http::wire::page;
use crate::http::wire::types::Shortened;
use crate::service::{ActiveRun, ListChange, Scope, StreamItem};
use crate::support::clock::UnixMillis;

/// An event of a stream: an event of the log, or an event of the stream itself. Clients must ignore types that they do not know.
#[derive(ToSchema)]
#[serde(tag = "type", content = "data")]
#[expect(dead_code, clippy::large_enum_variant, reason = "these events are written as text; this is their description")]
pub(in crate::http) enum StreamEvent {
    /// The first event of a conversation's stream without a cursor. It replaces all events up to its `head`.
    #[serde(rename = "stream.snapshot")]
    Snapshot {
        /// The newest messages that are complete, oldest first.
        messages: Vec<Message>,
        /// Whether the conversation has earlier messages.
        truncated: bool,
        /// The cursor of the earlier messages, for the parameter `before`.
        #[schema(required)]
        before: Option<String>,
        /// The active run.
        #[schema(required)]
        active_run: Option<ActiveRun>,
        /// The approvals that wait for a decision.
        pending_approvals: Vec<Approval>,
        /// The questions that wait for an answer.
        pending_inputs: Vec<InputRequest>,
        /// The calls of client tools that wait for a result.
        pending_calls: Vec<ClientCall>,
        /// The `seq` of the last event in the snapshot.
        head: i64,
    },
    /// A keep-alive.
    #[serde(rename = "stream.ping")]
    Ping {
        /// The `seq` of the last event that the stream has sent.
        head: i64,
    },
    /// The cursor is not usable. The stream continues as without a cursor.
    #[serde(rename = "stream.reset")]
    Reset {
        /// `cursor_in_future` or `cursor_expired`.
        reason: String,
        /// The `seq` of the oldest event in the log.
        oldest: i64,
        /// The `seq` of the newest event in the log.
        head: i64,
    },
    /// The end of the stream.
    #[serde(rename = "stream.end")]
    End {
        /// The `seq` of the last event.
        last_seq: i64,
        /// `deleted` if the conversation was deleted.
        reason: Option<String>,
    },
}

/// The fields of each event that a stream adds to those of the log.
#[derive(ToSchema)]
#[expect(dead_code, reason = "these events are written as text; this is their description")]
pub(in crate::http) struct StreamEnvelope {
    /// The conversation of the stream.
    conversation_id: ConversationId,
    /// The run of the stream. Absent in the stream of a conversation.
    run_id: Option<RunId>,
    /// When the event was sent, RFC 3339.
    at: String,
    /// Present if the event was shortened to the size of a frame.
    shortened: Option<Shortened>,
}

/// The type of an event of the owner feed.
#[derive(ToSchema)]
#[expect(dead_code, reason = "these events are written as text; this is their description")]
enum OwnerEventType {
    #[serde(rename = "owner.changed")]
    Changed,
    #[serde(rename = "owner.removed")]
    Removed,
    #[serde(rename = "owner.reviews_changed")]
    ReviewsChanged,
    #[serde(rename = "owner.reset")]
    Reset,
}

#[derive(ToSchema)]
#[expect(dead_code, reason = "these events are written as text; this is their description")]
struct OwnerEventData {
    /// The conversation that was created or changed, as lists show it.
    conversation: Option<Conversation>,
    /// The approvals and questions of the conversation that wait for an answer, oldest first.
    open_questions: Option<Vec<OpenQuestion>>,
    /// The conversation that was deleted.
    conversation_id: Option<ConversationId>,
}

/// A change of the caller's list of conversations, on a WebSocket that has subscribed with `{"scope":"owner"}`. After
/// `owner.reviews_changed`, read the tool reviews again. After `owner.reset`, changes may be missing: read both lists again.
#[derive(ToSchema)]
#[expect(dead_code, reason = "these events are written as text; this is their description")]
pub(in crate::http) struct OwnerEvent {
    #[schema(inline)]
    r#type: OwnerEventType,
    /// When the event was sent, RFC 3339.
    at: String,
    #[schema(inline)]
    data: OwnerEventData,
}

/// One line of JSON, and the client's cursor after it, if it changes.
pub(crate) struct StreamLine {
    pub cursor: Option<i64>,
    pub json: String,
}

pub(crate) fn line(item: &StreamItem, scope: &Scope, now: UnixMillis) -> StreamLine {
    let control_line = |kind, data: Value| StreamLine { cursor: None, json: control(kind, scope, now, &data.to_string()) };
    match item {
        StreamItem::Event(event) => StreamLine { cursor: Some(event.seq), json: event.frame() },
        StreamItem::Snapshot(snapshot) => {
            let before = snapshot.before.map(|before| page::encode(&before.to_string()));
            let json = control("stream.snapshot", scope, now, &snapshot.data(before.as_deref()));
            let json = fit(json, MAX_FRAME_JSON, || Some(format!("/api/v1/conversations/{}", scope.conversation_id())));
            // The snapshot replaces all events up to its head. The client reconnects for the events after it.
            StreamLine { cursor: Some(snapshot.head), json }
        }
        StreamItem::Reset { reason, oldest, head } => {
            control_line("stream.reset", json!({ "reason": reason.as_str(), "oldest": oldest, "head": head }))
        }
        StreamItem::End { last_seq } => control_line("stream.end", json!({ "last_seq": last_seq })),
        StreamItem::Deleted { last_seq } => control_line("stream.end", json!({ "last_seq": last_seq, "reason": "deleted" })),
    }
}

pub(crate) fn ping(scope: &Scope, now: UnixMillis, head: i64) -> String {
    control("stream.ping", scope, now, &json!({ "head": head }).to_string())
}

pub(crate) fn list_change(change: &ListChange, now: UnixMillis) -> String {
    let (kind, data) = match change {
        ListChange::Changed(item) => ("owner.changed", json!(item)),
        ListChange::Removed(conversation) => ("owner.removed", json!({ "conversation_id": conversation })),
        ListChange::ReviewsChanged => ("owner.reviews_changed", json!({})),
        ListChange::Reset => ("owner.reset", json!({})),
    };
    let json = json!({ "type": kind, "at": now.to_rfc3339(), "data": data }).to_string();
    fit(json, MAX_FRAME_JSON, || match change {
        ListChange::Changed(item) => Some(format!("/api/v1/conversations/{}", item.conversation.id)),
        ListChange::Removed(_) | ListChange::ReviewsChanged | ListChange::Reset => None,
    })
}

/// Renders an envelope that is not stored and has no `seq`. `data` is JSON.
fn control(kind: &str, scope: &Scope, now: UnixMillis, data: &str) -> String {
    let run = scope.run_id().map_or_else(String::new, |run_id| format!(",\"run_id\":\"{run_id}\""));
    let (conversation, at) = (scope.conversation_id(), now.to_rfc3339());
    format!("{{\"type\":\"{kind}\",\"conversation_id\":\"{conversation}\"{run},\"at\":\"{at}\",\"data\":{data}}}")
}
