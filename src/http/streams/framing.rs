//! Framing of event streams over HTTP: `text/event-stream` for browsers, or one JSON document a line (`application/x-ndjson`) for programs
//! that read lines. The events are the same, and so is their order.
//!
//! The framing is written by hand: every event is one line of JSON that is stored as it is sent.

use std::fmt::Write as _;

use axum::http::HeaderValue;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// `text/event-stream`, of the HTML standard.
    EventStream,
    /// `application/x-ndjson`: only events, each with its `seq`, where the other form has comments and hints as well.
    JsonLines,
}

impl Framing {
    pub(crate) fn named(media_type: &str) -> Option<Self> {
        match media_type {
            "text/event-stream" => Some(Self::EventStream),
            "application/x-ndjson" | "application/jsonl" => Some(Self::JsonLines),
            _ => None,
        }
    }

    pub(in crate::http) fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::EventStream => "text/event-stream",
            Self::JsonLines => "application/x-ndjson",
        })
    }

    pub(in crate::http) fn transport(self) -> &'static str {
        match self {
            Self::EventStream => "sse",
            Self::JsonLines => "ndjson",
        }
    }

    /// Returns the first bytes of a stream, so that proxies and clients see that it is open. JSON lines have none.
    pub(in crate::http) fn opening(self) -> Option<&'static str> {
        match self {
            Self::EventStream => Some(": connected\nretry: 1000\n\n"),
            Self::JsonLines => None,
        }
    }

    pub(in crate::http) fn event(self, frame: &mut String, cursor: Option<i64>, json: &str) {
        // Writing to a String cannot fail.
        let _ = match (self, cursor) {
            (Self::EventStream, Some(cursor)) => write!(frame, "id: {cursor}\ndata: {json}\n\n"),
            (Self::EventStream, None) => write!(frame, "data: {json}\n\n"),
            (Self::JsonLines, _) => writeln!(frame, "{json}"),
        };
    }

    pub(in crate::http) fn ping(self, json: &str) -> String {
        match self {
            Self::EventStream => format!(": ping\ndata: {json}\n\n"),
            Self::JsonLines => format!("{json}\n"),
        }
    }

    /// Ends a stream whose key was revoked. A reader of lines sees that `stream.end` is missing, reconnects and is refused.
    pub(in crate::http) fn key_is_over(self) -> Option<String> {
        match self {
            Self::EventStream => Some(": the key is not valid any more\n\n".to_owned()),
            Self::JsonLines => None,
        }
    }

    /// Ends a stream because the server restarts. Clients reconnect after 0.5 to 2.5 seconds, at random times.
    pub(in crate::http) fn farewell(self) -> Option<String> {
        match self {
            Self::EventStream => {
                let mut random = [0_u8; 2];
                // Without random bytes, all clients reconnect at the same time. This is load, not an error.
                let _ = getrandom::fill(&mut random);
                let retry = 500 + u16::from_le_bytes(random) % 2_000;
                Some(format!(": the server restarts\nretry: {retry}\n\n"))
            }
            Self::JsonLines => None,
        }
    }
}
