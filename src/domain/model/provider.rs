//! Providers that are stored through the API: model endpoints with a key.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::domain::enum_names::named_enum;
use crate::domain::ids::{ProviderId, UserId};
use crate::domain::model::Prices;
use crate::support::clock::UnixMillis;
use crate::support::encryption::{AssociatedData, EncryptedSecret};
pub use crate::support::net::egress::EgressScope;
use crate::support::tokens::Tokenizer;

named_enum! {
    /// The dialect of a provider.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum ProviderKind {
        /// OpenAI's chat completions, which most providers implement.
        Openai = "openai",
        /// OpenAI's Responses API.
        OpenaiResponses = "openai-responses",
        /// Anthropic's Messages API.
        Anthropic = "anthropic",
        /// Google's `generateContent`.
        Gemini = "gemini",
        /// Ollama's own API.
        Ollama = "ollama",
    }
}

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
    /// Limit until the first byte of an answer. Default: 30,000, or longer for models with long reasoning and for local endpoints.
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
    /// Maximum number of tools of one request.
    #[schema(minimum = 1)]
    pub max_tools: Option<u32>,
    /// Whether the model accepts pictures.
    pub vision: Option<bool>,
    /// Time limits that differ from the provider's other models. `connect_ms` cannot be set here.
    pub limits: Option<CallLimits>,
    /// Whether the model answers messages. A model for embeddings does not. Known only for models from the provider's list.
    #[serde(skip)]
    #[schema(ignore)]
    pub chats: Option<bool>,
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
            max_tools: self.max_tools.or(other.max_tools),
            vision: self.vision.or(other.vision),
            limits: self.limits.or(other.limits),
            chats: self.chats.or(other.chats),
        }
    }
}

/// A limitation of a model, learned from a refused request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LearnedLimitation {
    pub model: String,
    /// As JSON, which only the provider's client reads.
    pub limitation: String,
    /// The change of requests to the model.
    pub change: String,
    /// The time at which the limitation is forgotten.
    pub until: UnixMillis,
}

impl LearnedLimitation {
    /// Corrects the facts about the model by this limitation.
    pub fn apply(&self, model: &mut ModelEntry) {
        match self.change.split_once(':') {
            Some(("tools_limited", most)) => model.max_tools = most.parse().ok().or(model.max_tools),
            Some(("output_limited", most)) => model.max_output = most.parse().ok().or(model.max_output),
            Some(_) => {}
            None if self.change == "tools_left_out" => model.tools = Some(false),
            None if self.change == "images_left_out" => model.vision = Some(false),
            None => {}
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSecret {
    /// The key, encrypted for [`key_place`].
    pub encrypted: EncryptedSecret,
    /// The last characters of the key, if it is long enough to show any.
    pub hint: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderRecord {
    pub id: ProviderId,
    /// `None` for a provider that all users may use.
    pub owner: Option<UserId>,
    /// The first half of its models' names. Unique per owner.
    pub name: String,
    pub kind: ProviderKind,
    pub base_url: String,
    /// Addresses that the URL may have, by the role of the user who set it. Addresses that the settings allow to members are
    /// checked at each use.
    pub egress: EgressScope,
    pub key: Option<StoredSecret>,
    /// Models with facts given by a user.
    pub models: Vec<ModelEntry>,
    pub limits: CallLimits,
    /// Quirks of its chat completions that the host does not imply.
    pub quirks: Option<Map<String, Value>>,
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
            egress: EgressScope::Public,
            key: None,
            models: Vec::new(),
            limits: CallLimits::default(),
            quirks: None,
            enabled: true,
            created_at: now,
            updated_at: now,
            version: 1,
        }
    }

    pub fn key_place(&self) -> AssociatedData<'_> {
        key_place(self.owner.as_ref(), self.id.as_str())
    }
}

/// Returns the associated data of a provider key's encryption.
pub fn key_place<'a>(owner: Option<&'a UserId>, id: &'a str) -> AssociatedData<'a> {
    AssociatedData { purpose: "provider_key", owner: owner.map(UserId::as_str), record: id }
}
