//! Providers as people keep them: model endpoints with a key, of one owner or of the server.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::cost::Prices;
use super::ids::{ProviderId, UserId};
use super::words::words;
use crate::support::clock::UnixMillis;
pub use crate::support::outbound::Reach;
use crate::support::seal::{Place, Sealed};
use crate::support::tokens::Tokenizer;

/// The wire that a provider speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProviderKind {
    /// OpenAI's chat completions, which most providers speak.
    Openai,
    /// OpenAI's Responses API.
    OpenaiResponses,
    /// Anthropic's Messages API.
    Anthropic,
    /// Google's `generateContent`.
    Gemini,
    /// Ollama's own API.
    Ollama,
}

words!(ProviderKind {
    Openai = "openai",
    OpenaiResponses = "openai-responses",
    Anthropic = "anthropic",
    Gemini = "gemini",
    Ollama = "ollama",
});

/// The longest limit of a call that a record may have: an hour. A call under way takes a place among the runs.
pub const MAX_LIMIT_MS: u64 = 3_600_000;

/// How long model calls may take, in milliseconds. What is absent is as for all providers.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CallLimits {
    /// Until the connection stands; 5,000.
    #[schema(minimum = 1, maximum = 3_600_000)]
    pub connect_ms: Option<u64>,
    /// The longest wait for the first byte of an answer; 30,000 unless the model is known to think longer.
    #[schema(minimum = 1, maximum = 3_600_000)]
    pub first_byte_ms: Option<u64>,
    /// The longest silence on the wire within an answer; 30,000.
    #[schema(minimum = 1, maximum = 3_600_000)]
    pub idle_ms: Option<u64>,
    /// The longest time without anything of the answer itself; 120,000.
    #[schema(minimum = 1, maximum = 3_600_000)]
    pub progress_ms: Option<u64>,
    /// The longest that one answer may take; no limit unless set, and 600,000 for an answer in one piece.
    #[schema(minimum = 1, maximum = 3_600_000)]
    pub total_ms: Option<u64>,
}

impl CallLimits {
    /// Each limit with its name.
    #[must_use]
    pub fn named(&self) -> [(&'static str, Option<u64>); 5] {
        let Self { connect_ms, first_byte_ms, idle_ms, progress_ms, total_ms } = *self;
        [
            ("connect_ms", connect_ms),
            ("first_byte_ms", first_byte_ms),
            ("idle_ms", idle_ms),
            ("progress_ms", progress_ms),
            ("total_ms", total_ms),
        ]
    }

    /// Whether nothing is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether something is said of how long an answer may take, once the connection stands.
    #[must_use]
    pub fn limits_answers(&self) -> bool {
        !Self { connect_ms: None, ..*self }.is_empty()
    }
}

/// What is said of a model of a provider. What is absent is taken from the provider's own list, or is unknown.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelEntry {
    /// The model's name at the provider.
    #[schema(min_length = 1, max_length = 200)]
    pub name: String,
    /// Tokens of its window.
    #[schema(minimum = 1)]
    pub context: Option<u64>,
    /// The most tokens of one answer.
    #[schema(minimum = 1)]
    pub max_output: Option<u64>,
    /// What cuts its texts into tokens.
    pub tokenizer: Option<Tokenizer>,
    /// What it costs.
    pub prices: Option<Prices>,
    /// Whether it calls tools.
    pub tools: Option<bool>,
    /// Whether it sees pictures.
    pub vision: Option<bool>,
    /// How long it may take, where that is not as long as the provider's other models; all but `connect_ms`.
    pub limits: Option<CallLimits>,
}

impl ModelEntry {
    /// A model of which nothing is known.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            context: None,
            max_output: None,
            tokenizer: None,
            prices: None,
            tools: None,
            vision: None,
            limits: None,
        }
    }

    /// The same, with what `other` knows of it where it is unknown here.
    #[must_use]
    pub fn or(self, other: &Self) -> Self {
        Self {
            name: self.name,
            context: self.context.or(other.context),
            max_output: self.max_output.or(other.max_output),
            tokenizer: self.tokenizer.or(other.tokenizer),
            prices: self.prices.or(other.prices),
            tools: self.tools.or(other.tools),
            vision: self.vision.or(other.vision),
            limits: self.limits.or(other.limits),
        }
    }
}

/// A key as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSecret {
    /// The key, sealed for [`key_place`].
    pub sealed: Sealed,
    /// Its last characters, if it is long enough to show any.
    pub hint: Option<String>,
}

/// A provider as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderRecord {
    /// The id.
    pub id: ProviderId,
    /// Whose it is; `None` if it is the server's, for everybody's use.
    pub owner: Option<UserId>,
    /// What stands before the slash of its models' names. Unique among those of its owner.
    pub name: String,
    /// The wire.
    pub kind: ProviderKind,
    /// Where the API is.
    pub base_url: String,
    /// Where that may be, by the role of whoever gave the URL alone: what the settings allow members beyond it holds as long as
    /// they do, and is asked at each use.
    pub reach: Reach,
    /// The key.
    pub key: Option<StoredSecret>,
    /// Its models, as far as somebody has said something of them.
    pub models: Vec<ModelEntry>,
    /// How long its calls may take.
    pub limits: CallLimits,
    /// How its chat completions differ from OpenAI's own, where that is not known by where it is.
    pub accent: Option<Map<String, Value>>,
    /// Whether runs may use it.
    pub enabled: bool,
    /// When it was made.
    pub created_at: UnixMillis,
    /// When it was changed.
    pub updated_at: UnixMillis,
    /// Raised by one at each change.
    pub version: i64,
}

impl ProviderRecord {
    /// The place that its key is sealed for.
    #[must_use]
    pub fn key_place(&self) -> Place<'_> {
        key_place(self.owner.as_ref(), self.id.as_str())
    }
}

/// The place that the key of a provider is sealed for.
#[must_use]
pub fn key_place<'a>(owner: Option<&'a UserId>, id: &'a str) -> Place<'a> {
    Place { purpose: "provider_key", owner: owner.map(UserId::as_str), record: id }
}
