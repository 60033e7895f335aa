//! The two framings of event streams over HTTP: `text/event-stream` for browsers, and one JSON document per line
//! (`application/x-ndjson`) for programs. The events and their order are the same.
//!
//! The framing needs no library: every event is one line of JSON, sent as stored.

use std::fmt::Write as _;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// `text/event-stream`, of the HTML standard.
    EventStream,
    /// `application/x-ndjson`: one event in each line, without comments and reconnection times.
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

    pub(in crate::http) fn content_type(self) -> &'static str {
        match self {
            Self::EventStream => "text/event-stream",
            Self::JsonLines => "application/x-ndjson",
        }
    }

    pub(in crate::http) fn transport(self) -> &'static str {
        match self {
            Self::EventStream => "sse",
            Self::JsonLines => "ndjson",
        }
    }

    /// Returns the first bytes of a stream, which show proxies and clients that it is open. JSON lines have none.
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

    /// Ends a stream whose key was revoked. A client of JSON lines sees that `stream.end` is missing, reconnects and is refused.
    pub(in crate::http) fn key_is_over(self) -> Option<String> {
        match self {
            Self::EventStream => Some(": the key is no longer valid\n\n".to_owned()),
            Self::JsonLines => None,
        }
    }

    /// Ends a stream because the server restarts. Clients reconnect after a random delay of 0.5 to 2.5 seconds.
    pub(in crate::http) fn restart_frame(self) -> Option<String> {
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
