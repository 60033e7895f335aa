//! The wait that a provider requests before the next request.

use reqwest::header::{HeaderMap, RETRY_AFTER};

use crate::provider::errors::facts::after_wait_phrase;
use crate::support::clock::UnixMillis;

/// A number of at least this value is a time in milliseconds since 1970. From `TIMESTAMP_S` on it is a time in seconds; a smaller
/// one is a wait in seconds.
const TIMESTAMP_MS: f64 = 1e11;
const TIMESTAMP_S: f64 = 1e8;

/// Returns the wait in the first readable header of a refusal, in milliseconds, rounded up. A time in the past means no wait.
pub(in crate::provider) fn retry_after(headers: &HeaderMap, now: UnixMillis) -> Option<u64> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    if let Some(millis) = text("retry-after-ms").and_then(|text| duration(text, 1.0)) {
        return Some(millis);
    }
    let after = text(RETRY_AFTER.as_str()).and_then(|after| {
        let until = |date: jiff::Timestamp| u64::try_from(date.as_millisecond().saturating_sub(now.0)).unwrap_or(0);
        duration(after, 1_000.0).or_else(|| in_units(after)).or_else(|| date(after).map(until))
    });
    after.or_else(|| of_exhausted_limits(headers, now))
}

/// Returns the longest wait for an exhausted limit, such as `x-ratelimit-reset-tokens: 6m0s` beside `x-ratelimit-remaining-tokens: 0`.
fn of_exhausted_limits(headers: &HeaderMap, now: UnixMillis) -> Option<u64> {
    let waits = headers.iter().filter_map(|(name, value)| {
        let which = name.as_str().strip_prefix("x-ratelimit-reset")?;
        let left = headers.get(format!("x-ratelimit-remaining{which}"))?.to_str().ok()?;
        let is_used_up = left.trim().parse::<f64>().is_ok_and(|left| left <= 0.0);
        let text = value.to_str().ok().filter(|_| is_used_up)?.trim();
        let Ok(number) = text.parse::<f64>() else { return in_units(text) };
        let now = now.0 as f64;
        match number {
            _ if number >= TIMESTAMP_MS => duration(&(number - now).max(0.0).to_string(), 1.0),
            _ if number >= TIMESTAMP_S => duration(&(number - now / 1_000.0).max(0.0).to_string(), 1_000.0),
            _ => duration(text, 1_000.0),
        }
    });
    waits.max()
}

/// Returns the wait in a sentence such as `Please try again in 1m2.5s`.
pub(in crate::provider) fn in_words(words: &str) -> Option<u64> {
    let lower = words.to_ascii_lowercase();
    after_wait_phrase(&lower).find_map(|rest| {
        let text = rest.split(|c: char| c.is_whitespace() || matches!(c, ',' | ';')).next()?.trim_end_matches('.');
        in_units(text)
    })
}

/// Converts a number of a unit to milliseconds, rounded up.
pub(in crate::provider) fn duration(text: &str, unit_ms: f64) -> Option<u64> {
    let amount: f64 = text.parse().ok().filter(|amount: &f64| amount.is_finite() && *amount >= 0.0)?;
    // The cast saturates at the largest integer.
    Some((amount * unit_ms).ceil() as u64)
}

/// Parses `1h2m3.5s`, `34s`, `120ms`.
fn in_units(text: &str) -> Option<u64> {
    let mut rest = text.trim();
    let mut sum: Option<u64> = None;
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
        let units = [("ms", 1.0), ("s", 1_000.0), ("m", 60_000.0), ("h", 3_600_000.0), ("d", 86_400_000.0)];
        let (unit, in_ms) = units.into_iter().find(|(unit, _)| after.starts_with(unit))?;
        sum = Some(sum.unwrap_or(0).saturating_add(duration(number, in_ms)?));
        rest = after.get(unit.len()..)?;
    }
    sum
}

/// Parses an HTTP date in any format: <https://www.rfc-editor.org/rfc/rfc9110#name-date-time-formats>.
fn date(text: &str) -> Option<jiff::Timestamp> {
    let usual = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok();
    usual.or_else(|| {
        // The day name is redundant, and may be wrong.
        let civil = match text.split_once(", ") {
            Some((_, date)) => jiff::civil::DateTime::strptime("%d-%b-%y %H:%M:%S GMT", date),
            None => jiff::civil::DateTime::strptime("%b %e %H:%M:%S %Y", text.get(4..)?.trim_start()),
        };
        Some(civil.ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const NOW: UnixMillis = UnixMillis(1_767_225_600_000); // Thu, 01 Jan 2026 00:00:00 GMT

    #[rstest]
    #[case::seconds(&[("retry-after", "3")], Some(3_000))]
    #[case::fraction_is_rounded_up(&[("retry-after", "0.0001")], Some(1))]
    #[case::milliseconds(&[("retry-after-ms", "1250.2")], Some(1_251))]
    #[case::both(&[("retry-after", "3"), ("retry-after-ms", "250")], Some(250))]
    #[case::one_is_garbage(&[("retry-after", "3"), ("retry-after-ms", "soon")], Some(3_000))]
    #[case::date(&[("retry-after", "Thu, 01 Jan 2026 00:01:30 GMT")], Some(90_000))]
    #[case::past(&[("retry-after", "Wed, 31 Dec 2025 23:00:00 GMT")], Some(0))]
    #[case::three_hours(&[("retry-after", "10800")], Some(10_800_000))]
    #[case::garbage(&[("retry-after", "in a while")], None)]
    #[case::negative(&[("retry-after", "-4")], None)]
    #[case::endless(&[("retry-after", "inf")], None)]
    #[case::none(&[], None)]
    #[case::rfc_850(&[("retry-after", "Thursday, 01-Jan-26 00:01:30 GMT")], Some(90_000))]
    #[case::asctime(&[("retry-after", "Thu Jan  1 00:01:30 2026")], Some(90_000))]
    #[case::half_a_date(&[("retry-after", "Thu")], None)]
    #[case::with_its_unit(&[("retry-after", "34s")], Some(34_000))]
    #[case::in_units(&[("retry-after", "1h2m3.5s")], Some(3_723_500))]
    #[case::openai(&[("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "6m0s"),
        ("x-ratelimit-remaining-requests", "9"), ("x-ratelimit-reset-requests", "8h")], Some(360_000))]
    #[case::cerebras(&[("x-ratelimit-remaining-tokens-minute", "0"), ("x-ratelimit-reset-tokens-minute", "12.5")], Some(12_500))]
    #[case::openrouter(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1767225660000")], Some(60_000))]
    #[case::github(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1767225660")], Some(60_000))]
    #[case::limit_that_is_past(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1767225000")], Some(0))]
    #[case::something_is_left(&[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "1767225660")], None)]
    fn waits(#[case] headers: &'static [(&'static str, &'static str)], #[case] wait: Option<u64>) {
        let headers: HeaderMap = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        assert_eq!(retry_after(&headers, NOW), wait);
    }

    #[rstest]
    #[case("Rate limit reached for gpt-5 in organization o on tokens per min. Please try again in 1m2.5s. Visit x", Some(62_500))]
    #[case("Please try again in 6ms.", Some(6))]
    #[case("Please retry in 34.5s.", Some(34_500))]
    #[case("Please try again in a while", None)]
    #[case("Please try again in 5 minutes", None)]
    #[case("Please try again in", None)]
    fn waits_in_words(#[case] words: &str, #[case] wait: Option<u64>) {
        assert_eq!(in_words(words), wait);
    }
}
