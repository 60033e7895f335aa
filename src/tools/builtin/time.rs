//! The tool `current_time`.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::support::clock::UnixMillis;

/// Returns `now` in the time zone `zone`, as RFC 3339 and as readable text.
pub fn current_time(now: UnixMillis, zone: &str) -> Result<String, String> {
    let unknown = || format!("unknown time zone {zone:?}: use an IANA name such as Europe/Berlin or UTC");
    let timezone = if zone.eq_ignore_ascii_case("utc") { TimeZone::UTC } else { TimeZone::get(zone).map_err(|_| unknown())? };
    let timestamp = Timestamp::from_millisecond(now.0).map_err(|_| "the clock of the server is out of range".to_owned())?;
    let zoned = timestamp.to_zoned(timezone);
    Ok(format!("{} ({}, {zone})", zoned.strftime("%Y-%m-%dT%H:%M:%S%:z"), zoned.strftime("%A, %-d %B %Y, %H:%M:%S")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_time_uses_the_time_zone() {
        let now = UnixMillis(1_767_225_600_000);
        assert_eq!(current_time(now, "UTC").unwrap(), "2026-01-01T00:00:00+00:00 (Thursday, 1 January 2026, 00:00:00, UTC)");
        let berlin = current_time(now, "Europe/Berlin").unwrap();
        assert_eq!(berlin, "2026-01-01T01:00:00+01:00 (Thursday, 1 January 2026, 01:00:00, Europe/Berlin)");
        let error = current_time(now, "Mars/Olympus").unwrap_err();
        assert!(error.contains("Mars/Olympus") && error.contains("IANA"), "{error}");
    }
}
