//! Providers that are stored through the API: model endpoints with a key.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::domain::ids::{ProviderId, UserId};
use crate::domain::model::cost::Prices;
use crate::domain::words::words;
use crate::support::clock::UnixMillis;
pub use crate::support::net::outbound::Reach;
use crate::support::seal::{Place, Sealed};
use crate::support::tokens::Tokenizer;

/// The dialect of a provider.
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

/// The highest limit of a call: one hour. A running call occupies a slot.
pub const MAX_LIMIT_MS: u64 = 3_600_000;

/// Time limits of model calls in milliseconds. An absent limit has the default of all providers.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CallLimits {
    /// Limit until the connection is established. Default: 5,000.
    #[schema(minimum = 1, maximum = 3_600_000)]
    pub connect_ms: Option<u64>,
    /// Limit until the first byte of an answer. Default: 30,000, or longer for models with long reasoning.
    #[schema(minimum = 1, maximum = 3_600_000)]
    pub first_byte_ms: Option<u64>,
    /// Maximum time without any byte within an answer. Default: 30,000.
    #[schema(minimum = 1, maximum = 3_600_000)]
    pub idle_ms: Option<u64>,
    /// Maximum time without any content of the answer. Default: 120,000.
    #[schema(minimum = 1, maximum = 3_600_000)]
    pub progress_ms: Option<u64>,
    /// Maximum total duration of one answer. Default: no limit, and 600,000 for an answer that is not streamed.
    #[schema(minimum = 1, maximum = 3_600_000)]
    pub total_ms: Option<u64>,
}

impl CallLimits {
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

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether the duration of answers is limited, once the connection is established.
    pub fn limits_answers(&self) -> bool {
        !Self { connect_ms: None, ..*self }.is_empty()
    }
}

/// Facts about a model of a provider. An absent fact comes from the provider's own list, or is unknown.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelEntry {
    /// The name of the model at the provider.
    #[schema(min_length = 1, max_length = 200)]
    pub name: String,
    /// Size of the context window in tokens.
    #[schema(minimum = 1)]
    pub context: Option<u64>,
    /// Maximum number of tokens of one answer.
    #[schema(minimum = 1)]
    pub max_output: Option<u64>,
    /// The tokenizer of the model.
    pub tokenizer: Option<Tokenizer>,
    /// The prices of the model.
    pub prices: Option<Prices>,
    /// Whether the model supports tool calls.
    pub tools: Option<bool>,
    /// Whether the model accepts pictures.
    pub vision: Option<bool>,
    /// Time limits that differ from the provider's other models. `connect_ms` cannot be set here.
    pub limits: Option<CallLimits>,
}

impl ModelEntry {
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Fills unknown facts from `other`.
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSecret {
    /// Encrypted for [`key_place`].
    pub sealed: Sealed,
    /// Its last characters, if it is long enough to show any.
    pub hint: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderRecord {
    pub id: ProviderId,
    /// `None` for a provider that all users may use.
    pub owner: Option<UserId>,
    /// The first half of its models' names. Unique among those of its owner.
    pub name: String,
    pub kind: ProviderKind,
    pub base_url: String,
    /// Where the URL may lead, by the role of the user who gave it. Addresses that the settings allow to members are checked at
    /// each use.
    pub reach: Reach,
    pub key: Option<StoredSecret>,
    /// Models with facts given by a user.
    pub models: Vec<ModelEntry>,
    pub limits: CallLimits,
    /// Quirks of its chat completions, if the host does not imply them.
    pub accent: Option<Map<String, Value>>,
    pub enabled: bool,
    pub created_at: UnixMillis,
    pub updated_at: UnixMillis,
    /// Incremented at each change.
    pub version: i64,
}

impl ProviderRecord {
    /// Returns a record without a key and without facts about its models.
    pub fn new(id: ProviderId, owner: Option<UserId>, name: String, kind: ProviderKind, now: UnixMillis) -> Self {
        Self {
            id,
            owner,
            name,
            kind,
            base_url: String::new(),
            reach: Reach::Public,
            key: None,
            models: Vec::new(),
            limits: CallLimits::default(),
            accent: None,
            enabled: true,
            created_at: now,
            updated_at: now,
            version: 1,
        }
    }

    pub fn key_place(&self) -> Place<'_> {
        key_place(self.owner.as_ref(), self.id.as_str())
    }
}

/// Returns the place that the key of a provider is encrypted for.
pub fn key_place<'a>(owner: Option<&'a UserId>, id: &'a str) -> Place<'a> {
    Place { purpose: "provider_key", owner: owner.map(UserId::as_str), record: id }
}
