//! The trace of a request, by which its log lines and those of its runs are found.

use serde::{Deserialize, Serialize};

use crate::support::ids::IdSource;

/// The id of a trace: 32 lower-case hexadecimal digits (W3C Trace Context).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TraceId(String);

impl TraceId {
    pub fn generate(ids: &dyn IdSource) -> Self {
        Self(ids.next())
    }

    /// Reads a `traceparent` header: version, trace, parent and flags. `None` if it is invalid, which callers ignore: a request is
    /// not refused because of its tracing.
    pub fn from_traceparent(header: &str) -> Option<Self> {
        let mut fields = header.split('-');
        let (version, trace, parent, flags) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        // Later versions may add fields behind these four; this one has no others.
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

    /// Trusts text from our own database, which was checked when it was written.
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
