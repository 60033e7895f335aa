//! JSON numbers: their accepted length, and which ones are equal.
//!
//! A number is kept as its text, because a float cannot represent `20000000000000000001` or the last digit of `1.10`. The feature
//! `arbitrary_precision` of `serde_json` does this, with one exception: it adds a sign to a positive exponent.

use serde_json::{Number, Value};

use super::json::outside_strings;

/// The longest accepted number, in characters. Limits the cost of calculating with it.
pub const MAX_NUMBER_CHARS: usize = 1_000;

/// The error of a number that is longer than [`MAX_NUMBER_CHARS`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a number has {0} characters, and at most {MAX_NUMBER_CHARS} are accepted: send it as a string")]
pub struct NumberTooLong(usize);

fn check_length(chars: usize) -> Result<(), NumberTooLong> {
    if chars > MAX_NUMBER_CHARS { Err(NumberTooLong(chars)) } else { Ok(()) }
}

/// Checks the length of each number in a text, which is usually JSON.
pub fn check_text(json: &[u8]) -> Result<(), NumberTooLong> {
    let mut chars = 0;
    for byte in outside_strings(json) {
        if matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E') {
            chars += 1;
        } else {
            check_length(chars)?;
            chars = 0;
        }
    }
    check_length(chars)
}

pub fn check_value(value: &Value) -> Result<(), NumberTooLong> {
    match value {
        Value::Number(number) => check_length(number.as_str().len()),
        Value::Array(items) => items.iter().try_for_each(check_value),
        Value::Object(fields) => fields.values().try_for_each(check_value),
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}

/// Returns the canonical spelling of a number for hashes and comparisons: that of the integer or float that equals it exactly, else its
/// digits. `1.10` and `1.1` are equal; `1` and `1.0` are not, because tools distinguish integers from floats.
pub fn canonical(number: &Number) -> Number {
    if (number.is_i64() || number.is_u64()) && number.as_str() != "-0" {
        return number.clone();
    }
    let Some(exact) = Decimal::of(number.as_str()) else { return number.clone() };
    match number.as_f64().and_then(Number::from_f64) {
        Some(float) if Decimal::of(float.as_str()) == Some(exact.clone()) => float,
        Some(_) | None => exact.plain_digits().parse().unwrap_or_else(|_| number.clone()),
    }
}

/// A decimal number: its digits without zeros at either end, and a power of ten.
#[derive(Clone, PartialEq)]
struct Decimal {
    is_negative: bool,
    digits: String,
    exponent: i64,
}

impl Decimal {
    /// Reads a number of JSON. `None` if its exponent is beyond 64 bits.
    fn of(text: &str) -> Option<Self> {
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let exponent: i64 = exponent.parse().ok()?;
        let is_negative = mantissa.starts_with('-');
        let (whole, fraction) = mantissa.trim_start_matches('-').split_once('.').unwrap_or((mantissa.trim_start_matches('-'), ""));
        let written = format!("{whole}{fraction}");
        let cut = written.trim_end_matches('0');
        let digits = cut.trim_start_matches('0').to_owned();
        let shift = i64::try_from(written.len() - cut.len()).ok()? - i64::try_from(fraction.len()).ok()?;
        let exponent = if digits.is_empty() { 0 } else { exponent.checked_add(shift)? };
        Some(Self { is_negative, digits, exponent })
    }

    fn plain_digits(&self) -> String {
        let sign = if self.is_negative { "-" } else { "" };
        let digits = if self.digits.is_empty() { "0" } else { &self.digits };
        format!("{sign}{digits}e{}", self.exponent)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn number(text: &str) -> Number {
        serde_json::from_str(text).unwrap()
    }

    /// Older versions stored and hashed the same spelling of integers and floats.
    #[rstest]
    #[case("1", "1")]
    #[case("-7", "-7")]
    #[case("18446744073709551615", "18446744073709551615")]
    #[case("1.0", "1.0")]
    #[case("1.10", "1.1")]
    #[case("1e2", "100.0")]
    #[case("1E+2", "100.0")]
    #[case("0.1", "0.1")]
    #[case("1e-7", "1e-7")]
    #[case("-0", "-0.0")]
    #[case("0.000", "0.0")]
    #[case("1e300", "1e+300")]
    #[case("20000000000000000001", "20000000000000000001e+0")]
    #[case("20000000000000000001.00", "20000000000000000001e+0")]
    #[case("0.10000000000000000000000001", "10000000000000000000000001e-26")]
    #[case("1e400", "1e+400")]
    #[case("10e399", "1e+400")]
    #[case("1e99999999999999999999", "1e+99999999999999999999")]
    fn canonical_number_has_one_spelling(#[case] written: &str, #[case] spelling: &str) {
        assert_eq!(canonical(&number(written)).as_str(), spelling);
    }

    #[test]
    fn value_keeps_spelling_of_numbers_and_order_of_keys() {
        let written = r#"{"z":20000000000000000001,"a":1.10,"m":[-0,0.1,1e-7,1e+2],"b":{"y":1,"x":0.10000000000000000000001}}"#;
        let value: Value = serde_json::from_str(written).unwrap();
        assert_eq!(value.to_string(), written);
        let again = serde_json::to_value(&value).unwrap();
        assert_eq!(again.to_string(), written);
        // The one spelling that changes.
        assert_eq!(number("1E2").as_str(), "1e+2");
    }

    #[test]
    fn number_beyond_the_limit_is_refused() {
        let longest = "9".repeat(MAX_NUMBER_CHARS);
        for (text, fits) in [
            (format!("[{longest},-1.5]"), true),
            (format!("{longest}9"), false),
            (format!(r#"{{"a":[{longest}9]}}"#), false),
            (format!(r#"{{"a":0.{longest}}}"#), false),
            (format!(r#"{{"{longest}9":"{longest}9\"{longest}9"}}"#), true),
        ] {
            assert_eq!(check_text(text.as_bytes()).is_ok(), fits, "{text}");
            assert_eq!(check_value(&serde_json::from_str(&text).unwrap()).is_ok(), fits, "{text}");
        }
        let refused = check_value(&json!([number(&format!("{longest}9"))])).unwrap_err().to_string();
        assert_eq!(refused, "a number has 1001 characters, and at most 1000 are accepted: send it as a string");
    }
}
