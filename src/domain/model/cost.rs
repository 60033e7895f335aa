//! Tokens that model calls use, and what they cost in exact US dollars.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::domain::defaults::is_default;

/// The decimal places of a cost in US dollars.
const COST_DIGITS: usize = 12;

/// The highest accepted price, in US dollars per million tokens.
pub const MAX_PRICE: f64 = 1_000_000.0;

/// The highest accepted cost of one call, in US dollars.
const MAX_CALL_DOLLARS: f64 = 10_000.0;

/// Converts US dollars to the nearest whole number of units. Returns `None` for NaN, and outside of 0 to `max_dollars`.
fn whole_units(dollars: f64, max_dollars: f64, units_per_dollar: f64) -> Option<u64> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range check excludes other numbers")]
    let round = |units: f64| units.round() as u64;
    (0.0..=max_dollars).contains(&dollars).then(|| round(dollars * units_per_dollar))
}

/// A price in US dollars per million tokens, stored in millionths: 1.25 is 1,250,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Price(u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a price is a number of US dollars for a million tokens, from 0 to 1000000")]
pub struct InvalidPrice;

impl Price {
    /// Returns the price, rounded to the millionth of a US dollar. Fails for NaN, and outside of 0 to [`MAX_PRICE`].
    pub fn per_million(dollars: f64) -> Result<Self, InvalidPrice> {
        whole_units(dollars, MAX_PRICE, 1e6).map(Self).ok_or(InvalidPrice)
    }

    /// Returns US dollars per million tokens.
    pub fn dollars(self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "below 2^53: see MAX_PRICE")]
        let millionths = self.0 as f64;
        millionths / 1e6
    }

    /// Returns the cost of this many tokens, in trillionths of a US dollar.
    fn cost_of(self, tokens: u64) -> u64 {
        self.0.saturating_mul(tokens)
    }
}

impl Serialize for Price {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.dollars())
    }
}

impl<'de> Deserialize<'de> for Price {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::per_million(f64::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl PartialSchema for Price {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new().schema_type(Type::Number).minimum(Some(0.0)).maximum(Some(MAX_PRICE)).into()
    }
}

impl ToSchema for Price {}

/// The prices of a model in US dollars per million tokens.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// Price of input tokens.
    pub input: Price,
    /// Price of input tokens that the provider had cached. Defaults to the price of input tokens.
    pub cached_input: Option<Price>,
    /// Price of output tokens, reasoning included.
    pub output: Price,
    /// Prices for calls with a long request.
    pub long: Option<LongPrices>,
}

/// Prices for a call with a long request, in US dollars per million tokens. They apply to all tokens of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LongPrices {
    /// Maximum number of input tokens, cached ones included, to which the usual prices apply.
    pub above: u64,
    /// Price of input tokens.
    pub input: Price,
    /// Price of input tokens that the provider had cached. Defaults to the price of input tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<Price>,
    /// Price of output tokens, reasoning included.
    pub output: Price,
}

impl Prices {
    /// Returns the cost of one model call.
    pub fn cost(&self, usage: &Usage) -> Cost {
        let (input, cached_input, output) = match &self.long {
            Some(long) if usage.input_tokens > long.above => (long.input, long.cached_input, long.output),
            _ => (self.input, self.cached_input, self.output),
        };
        // A provider may report more cached tokens than input tokens.
        let cached = usage.cached_input_tokens.min(usage.input_tokens);
        let written_to_cache = usage.cache_write_tokens.min(usage.input_tokens - cached);
        let costs = [
            input.cost_of(usage.input_tokens - cached - written_to_cache),
            // A provider that charges for cache writes charges a quarter more than for input. Capstan never requests cache
            // lifetimes with other prices.
            input.cost_of(written_to_cache).saturating_add(input.cost_of(written_to_cache) / 4),
            cached_input.unwrap_or(input).cost_of(cached),
            output.cost_of(usage.output_tokens),
        ];
        Cost(costs.into_iter().fold(0, u64::saturating_add))
    }
}

/// An exact amount of money, in trillionths of a US dollar. The price of one token is a whole number of these units.
///
/// Serialized as `{"amount": "0.00125", "currency": "USD"}`. The amount is a decimal in a string, so that no reader rounds it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost(u64);

impl Cost {
    /// Converts the cost of a call in US dollars. Returns `None` for NaN, and outside of 0 to [`MAX_CALL_DOLLARS`].
    pub fn from_dollars(dollars: f64) -> Option<Self> {
        whole_units(dollars, MAX_CALL_DOLLARS, 1e12).map(Self)
    }

    pub fn from_trillionths(trillionths: u64) -> Self {
        Self(trillionths)
    }

    /// Adds a cost, up to the largest amount.
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Subtracts a cost, down to zero.
    pub fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    pub fn as_trillionths(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Cost {
    /// Writes US dollars as a decimal number without trailing zeros.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:0>width$}", self.0, width = COST_DIGITS + 1);
        let (dollars, decimals) = digits.split_at(digits.len() - COST_DIGITS);
        match decimals.trim_end_matches('0') {
            "" => f.write_str(dollars),
            decimals => write!(f, "{dollars}.{decimals}"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a cost is a decimal number of US dollars with at most 12 decimal places")]
pub struct InvalidCost;

impl FromStr for Cost {
    type Err = InvalidCost;

    fn from_str(text: &str) -> Result<Self, InvalidCost> {
        let (dollars, decimals) = text.split_once('.').unwrap_or((text, ""));
        let is_number = dollars.chars().chain(decimals.chars()).all(|c| c.is_ascii_digit());
        if dollars.is_empty() || decimals.len() > COST_DIGITS || !is_number {
            return Err(InvalidCost);
        }
        format!("{dollars}{decimals:0<COST_DIGITS$}").parse().map(Self).map_err(|_| InvalidCost)
    }
}

/// A [`Cost`] on the wire and in the database.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Cost)]
struct Money {
    /// A decimal number.
    amount: String,
    /// The currency, always `USD`.
    currency: String,
}

impl Serialize for Cost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Money { amount: self.to_string(), currency: "USD".to_owned() }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let money = Money::deserialize(deserializer)?;
        money.amount.parse().map_err(serde::de::Error::custom)
    }
}

impl PartialSchema for Cost {
    fn schema() -> RefOr<Schema> {
        Money::schema()
    }
}

impl ToSchema for Cost {}

/// The highest accepted limit, in US dollars.
pub const MAX_BUDGET: f64 = 1_000_000.0;

/// A limit in US dollars: a number, such as 2.5.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Usd(Cost);

impl Usd {
    pub fn cost(self) -> Cost {
        self.0
    }
}

impl fmt::Display for Usd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Usd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[expect(clippy::cast_precision_loss, reason = "exact to the trillionth up to 9,000 dollars, and to the millionth above")]
        let trillionths = self.0.0 as f64;
        serializer.serialize_f64(trillionths / 1e12)
    }
}

impl<'de> Deserialize<'de> for Usd {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Only a limit that is rounded to the millionth is written again as it was read.
        let millionths = whole_units(f64::deserialize(deserializer)?, MAX_BUDGET, 1e6);
        let millionths =
            millionths.ok_or_else(|| serde::de::Error::custom("a budget is a number of US dollars from 0 to 1000000"))?;
        Ok(Self(Cost(millionths.saturating_mul(1_000_000))))
    }
}

impl PartialSchema for Usd {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new().schema_type(Type::Number).minimum(Some(0.0)).maximum(Some(MAX_BUDGET)).into()
    }
}

impl ToSchema for Usd {}

/// Tokens that one or more model calls used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Number of input tokens.
    pub input_tokens: u64,
    /// Number of output tokens, reasoning included.
    pub output_tokens: u64,
    /// Number of input tokens that the provider had cached.
    #[serde(default)]
    pub cached_input_tokens: u64,
    /// Number of input tokens that the provider wrote to its cache, which cost more than other tokens. Set only until the cost of
    /// the call is computed.
    #[serde(skip)]
    pub cache_write_tokens: u64,
    /// Number of output tokens used for reasoning.
    #[serde(default)]
    pub reasoning_tokens: u64,
    /// Number of model calls that these figures include.
    #[serde(default)]
    pub model_calls: u64,
    /// Number of model calls without an answer: calls that failed, were given up, or were lost with their process. Absent if there
    /// are none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub abandoned_calls: u32,
    /// Whether the figures are estimates because a provider gave none.
    #[serde(default)]
    pub estimated: bool,
    /// Cost of the calls with known prices, at the prices when the calls were made. Absent if no price is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

impl Usage {
    /// Adds the usage of other model calls.
    pub fn add(&mut self, other: Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cached_input_tokens = self.cached_input_tokens.saturating_add(other.cached_input_tokens);
        self.reasoning_tokens = self.reasoning_tokens.saturating_add(other.reasoning_tokens);
        self.model_calls = self.model_calls.saturating_add(other.model_calls);
        self.abandoned_calls = self.abandoned_calls.saturating_add(other.abandoned_calls);
        self.estimated |= other.estimated;
        self.cost = match (self.cost, other.cost) {
            (Some(one), Some(other)) => Some(one.plus(other)),
            (one, other) => one.or(other),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cost_of_call_is_exact() {
        let prices: Prices = serde_json::from_value(json!({"input": 1.25, "cached_input": 0.125, "output": 10})).unwrap();
        assert_eq!(serde_json::to_value(prices).unwrap(), json!({"input": 1.25, "cached_input": 0.125, "output": 10.0}));
        let usage = Usage { input_tokens: 1_000, cached_input_tokens: 600, output_tokens: 3, ..Usage::default() };
        // 400 * 1.25 + 600 * 0.125 + 3 * 10 = 605 millionths.
        assert_eq!(prices.cost(&usage).to_string(), "0.000605");
        let one = Usage { input_tokens: 1, ..Usage::default() };
        assert_eq!(prices.cost(&one).to_string(), "0.00000125");
        let without_cache_price = Prices { cached_input: None, ..prices };
        assert_eq!(without_cache_price.cost(&usage).to_string(), "0.00128");
        let too_many_cached = Usage { cached_input_tokens: 5_000, ..one };
        assert_eq!(prices.cost(&too_many_cached).to_string(), "0.000000125", "cached tokens above the input tokens cost nothing");
        let with_cache_write = Usage { cache_write_tokens: 100, ..usage };
        assert_eq!(prices.cost(&with_cache_write).to_string(), "0.00063625", "100 of 400 tokens cost a quarter more");
        let largest = Usage { input_tokens: u64::MAX, output_tokens: u64::MAX, ..Usage::default() };
        assert_eq!(prices.cost(&largest), Cost(u64::MAX));
    }

    #[test]
    fn long_request_has_prices_of_its_own() {
        let long = json!({"above": 200_000, "input": 2.5, "cached_input": 0.25, "output": 15.0});
        let prices = json!({"input": 1.25, "cached_input": 0.125, "output": 10.0, "long": long});
        let read: Prices = serde_json::from_value(prices.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), prices);
        let usage = |input_tokens, cached_input_tokens| Usage {
            input_tokens,
            cached_input_tokens,
            output_tokens: 1_000,
            ..Usage::default()
        };
        for (input, cached, cost) in [
            (200_000, 0, "0.26"),
            // With one token more, the long prices apply to every token.
            (200_001, 0, "0.5150025"),
            // Cached tokens count towards the length of the request.
            (200_001, 100_001, "0.29000025"),
        ] {
            assert_eq!(read.cost(&usage(input, cached)).to_string(), cost, "{input}");
        }
        let long = read.long.map(|long| LongPrices { cached_input: None, ..long });
        let without_cache_price = Prices { long, ..read };
        let cost = without_cache_price.cost(&usage(200_001, 100_001));
        assert_eq!(cost.to_string(), "0.5150025", "the usual price of cached input does not apply");
    }

    #[test]
    fn provider_cost_is_used_within_bounds() {
        for (dollars, shown) in [(0.000_675, Some("0.000675")), (0.1, Some("0.1")), (0.0, Some("0")), (1e9, None), (-0.1, None)] {
            assert_eq!(Cost::from_dollars(dollars).map(|cost| cost.to_string()).as_deref(), shown);
        }
        assert_eq!(Cost::from_dollars(f64::NAN), None);
    }

    #[test]
    fn cost_text_is_read_and_written_unchanged() {
        for text in ["0", "1", "0.000605", "12.5", "0.000000000001", "18446744.073709551615"] {
            let cost: Cost = text.parse().unwrap();
            assert_eq!(cost.to_string(), text);
            let shown = json!({"amount": text, "currency": "USD"});
            assert_eq!(serde_json::to_value(cost).unwrap(), shown);
            assert_eq!(serde_json::from_value::<Cost>(shown).unwrap(), cost);
        }
        for text in ["", "-1", "1e3", "0.0000000000001", "a", "1.2.3", "+1", "99999999999999999999"] {
            assert!(text.parse::<Cost>().is_err(), "{text}");
        }
    }

    #[test]
    fn limit_in_dollars_is_read_and_written_unchanged() {
        for dollars in [0.0, 0.01, 2.5, 19.99, MAX_BUDGET] {
            let limit: Usd = serde_json::from_value(json!(dollars)).unwrap();
            assert_eq!(serde_json::to_value(limit).unwrap(), json!(dollars));
        }
        assert_eq!(serde_json::from_value::<Usd>(json!(2)).unwrap().to_string(), "2");
        for wrong in [json!(-0.5), json!(MAX_BUDGET * 2.0), json!("2"), json!(null)] {
            assert!(serde_json::from_value::<Usd>(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn price_outside_bounds_is_refused() {
        for price in [-0.1, f64::NAN, f64::INFINITY, MAX_PRICE * 2.0] {
            assert_eq!(Price::per_million(price), Err(InvalidPrice), "{price}");
        }
        for price in [0.0, 0.000001, 0.1, 2.5, 75.0, MAX_PRICE] {
            assert!((Price::per_million(price).unwrap().dollars() - price).abs() < f64::EPSILON, "{price}");
        }
    }
}
