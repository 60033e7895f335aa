//! Renders stream items as the JSON text that every transport sends. No item exceeds the size limit of a frame.

use serde_json::json;

use crate::domain::frame::{MAX_FRAME_JSON, fit};
use crate::http::wire::page;
use crate::service::{Scope, StreamItem};
use crate::support::clock::UnixMillis;

/// One line of JSON, and the cursor that a client has reached when it has read it, if that moved.
pub(crate) struct Line {
    pub cursor: Option<i64>,
    pub json: String,
}

pub(crate) fn line(item: &StreamItem, scope: &Scope, now: UnixMillis) -> Line {
    match item {
        StreamItem::Event(event) => Line { cursor: Some(event.seq), json: event.frame() },
        StreamItem::Snapshot(snapshot) => {
            let before = snapshot.before.map(|before| page::encode(&before.to_string()));
            let json = control("stream.snapshot", scope, now, &snapshot.data(before.as_deref()));
            let json = fit(json, MAX_FRAME_JSON, || Some(format!("/api/v1/conversations/{}", scope.conversation_id())));
            // The snapshot replaces all events up to its head. The client reconnects for the events after it.
            Line { cursor: Some(snapshot.head), json }
        }
        StreamItem::Reset { reason, oldest, head } => {
            let data = json!({ "reason": reason.as_str(), "oldest": oldest, "head": head }).to_string();
            Line { cursor: None, json: control("stream.reset", scope, now, &data) }
        }
        StreamItem::End { last_seq } => {
            Line { cursor: None, json: control("stream.end", scope, now, &json!({ "last_seq": last_seq }).to_string()) }
        }
        StreamItem::Deleted { last_seq } => {
            let data = json!({ "last_seq": last_seq, "reason": "deleted" }).to_string();
            Line { cursor: None, json: control("stream.end", scope, now, &data) }
        }
    }
}

pub(crate) fn ping(scope: &Scope, now: UnixMillis, head: i64) -> String {
    control("stream.ping", scope, now, &json!({ "head": head }).to_string())
}

/// Renders an envelope that is not stored and has no `seq`. `data` is JSON.
fn control(kind: &str, scope: &Scope, now: UnixMillis, data: &str) -> String {
    let run = scope.run_id().map_or_else(String::new, |run_id| format!(",\"run_id\":\"{run_id}\""));
    let (conversation, at) = (scope.conversation_id(), now.to_rfc3339());
    format!("{{\"type\":\"{kind}\",\"conversation_id\":\"{conversation}\"{run},\"at\":\"{at}\",\"data\":{data}}}")
}
