//! The trace id of a request, which its log lines and those of its runs contain.

use serde::{Deserialize, Serialize};

use crate::domain::ids::RunId;
use crate::support::ids::IdSource;
use crate::support::json::hash_bytes;

/// The id of a trace: 32 lower-case hexadecimal digits (W3C Trace Context).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TraceId(String);

impl TraceId {
    pub fn generate(ids: &dyn IdSource) -> Self {
        Self(ids.next())
    }

    /// Parses a `traceparent` header: version, trace, parent and flags. `None` if it is invalid: callers ignore it, because tracing
    /// must not fail a request.
    pub fn from_traceparent(header: &str) -> Option<Self> {
        let mut fields = header.split('-');
        let (version, trace, parent, flags) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        // Later versions may add fields after these four; version 00 has no others.
        let more = fields.next().is_some();
        let sound = is_hex(version, 2)
            && version != "ff"
            && !(more && version == "00")
            && is_hex(trace, 32)
            && is_hex(parent, 16)
            && is_hex(flags, 2)
            && [trace, parent].iter().all(|id| id.bytes().any(|digit| digit != b'0'));
        sound.then(|| Self(trace.to_owned()))
    }

    /// Returns the header for requests that a run sends. The run is the parent: it has a span id, which no exporter knows.
    pub fn traceparent(&self, run: &RunId) -> String {
        let span = &hash_bytes(run.as_str().as_bytes())[..16];
        format!("00-{}-{span}-01", self.0)
    }

    /// Accepts text from the database without a check: it was checked before it was stored.
    pub fn from_stored(text: String) -> Self {
        Self(text)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for TraceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traceparent_of_run_keeps_the_trace() {
        let trace = TraceId::from_stored("4bf92f3577b34da6a3ce929d0e0e4736".to_owned());
        let of = |run: &str| trace.traceparent(&RunId::from_stored(run.to_owned()));
        assert_eq!(TraceId::from_traceparent(&of("run_1")), Some(trace.clone()));
        assert_ne!(of("run_1"), of("run_2"));
    }

    #[test]
    fn only_a_valid_header_names_a_trace() {
        const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
        let valid = [
            format!("00-{TRACE}-00f067aa0ba902b7-01"),
            format!("00-{TRACE}-00f067aa0ba902b7-00"),
            format!("cc-{TRACE}-00f067aa0ba902b7-01-what-the-future-brings"),
        ];
        for header in valid {
            assert_eq!(TraceId::from_traceparent(&header).as_ref().map(TraceId::as_str), Some(TRACE), "{header}");
        }
        let invalid = [
            String::new(),
            TRACE.to_owned(),
            format!("00-{TRACE}-00f067aa0ba902b7"),
            format!("00-{TRACE}-00f067aa0ba902b7-01-more"),
            format!("ff-{TRACE}-00f067aa0ba902b7-01"),
            format!("0-{TRACE}-00f067aa0ba902b7-01"),
            format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-{}-00f067aa0ba902b7-01", &TRACE[1..]),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{TRACE}-00f067aa0ba902bx-01"),
            format!("00-{TRACE}-00f067aa0ba902b7-1"),
            format!("00-{TRACE}-00f067aa0ba902b7-01 "),
            format!("00-{}\"-00f067aa0ba902b7-01", &TRACE[1..]),
        ];
        for header in invalid {
            assert_eq!(TraceId::from_traceparent(&header), None, "{header}");
        }
    }
}
