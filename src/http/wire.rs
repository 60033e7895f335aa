//! What a stream says, as the JSON text that every wire sends.

use serde_json::{Value, json};

use crate::service::{Scope, StreamItem};
use crate::support::clock::UnixMillis;

/// One line of JSON, and the cursor that a client has reached when it has read it, if that moved.
pub(crate) struct Line {
    pub cursor: Option<i64>,
    pub json: String,
}

/// Renders one item of a stream.
pub(crate) fn line(item: &StreamItem, scope: &Scope, now: UnixMillis) -> Line {
    match item {
        StreamItem::Event(event) => Line { cursor: Some(event.seq), json: event.envelope() },
        StreamItem::Snapshot(snapshot) => {
            let data = serde_json::to_value(snapshot).unwrap_or_default();
            // The snapshot stands for all events up to its head: whoever has it comes back for what follows.
            Line { cursor: Some(snapshot.head), json: control("stream.snapshot", scope, now, data) }
        }
        StreamItem::Reset { reason, oldest, head } => {
            let data = json!({ "reason": reason.as_str(), "oldest": oldest, "head": head });
            Line { cursor: None, json: control("stream.reset", scope, now, data) }
        }
        StreamItem::End { last_seq } => {
            Line { cursor: None, json: control("stream.end", scope, now, json!({ "last_seq": last_seq })) }
        }
        StreamItem::Deleted { last_seq } => {
            let data = json!({ "last_seq": last_seq, "reason": "deleted" });
            Line { cursor: None, json: control("stream.end", scope, now, data) }
        }
    }
}

/// A sign of life.
pub(crate) fn ping(scope: &Scope, now: UnixMillis, head: i64) -> String {
    control("stream.ping", scope, now, json!({ "head": head }))
}

/// An envelope that is not stored and has no `seq`.
fn control(kind: &str, scope: &Scope, now: UnixMillis, data: Value) -> String {
    let mut envelope = serde_json::Map::new();
    envelope.insert("type".to_owned(), kind.into());
    envelope.insert("conversation_id".to_owned(), scope.conversation_id().as_str().into());
    if let Some(run_id) = scope.run_id() {
        envelope.insert("run_id".to_owned(), run_id.as_str().into());
    }
    envelope.insert("at".to_owned(), now.to_rfc3339().into());
    envelope.insert("data".to_owned(), data);
    Value::Object(envelope).to_string()
}
