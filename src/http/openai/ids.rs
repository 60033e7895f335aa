//! The identifiers of OpenAI, derived from ours: the same hexadecimal digits behind another prefix. Times are seconds.

use crate::support::clock::UnixMillis;

/// Returns an id of ours with the prefix of another kind, such as `chatcmpl-`.
pub(super) fn derived(prefix: &str, id: &str) -> String {
    let digits = id.split_once('_').map_or(id, |(_, digits)| digits);
    format!("{prefix}{digits}")
}

/// Returns a time of ours as seconds since the Unix epoch.
pub(super) fn seconds(rfc3339: &str) -> i64 {
    UnixMillis::from_rfc3339(rfc3339).map_or(0, |at| at.0 / 1000)
}
