//! Error kinds by status, code and phrase, from the tables `catalog/errors.toml` and `catalog/vendors.toml`.
//!
//! Owns the lookups. Must not know the fields of an error.

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

use serde::Deserialize;

use crate::domain::model::{ModelError, ModelErrorKind};
use crate::provider::catalog::table::Table;
use crate::provider::http::endpoint::host;

static ERRORS: Table<ErrorFacts> = Table::new("errors", include_str!("../catalog/errors.toml"));
static VENDORS: Table<BTreeMap<String, VendorCodes>> = Table::new("vendors", include_str!("../catalog/vendors.toml"));

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::provider) struct ErrorFacts {
    statuses: HashMap<ModelErrorKind, Vec<u16>>,
    codes: HashMap<ModelErrorKind, Vec<String>>,
    codes_without_status: HashMap<ModelErrorKind, Vec<String>>,
    phrases: Vec<Phrases>,
    pub(in crate::provider) fields: Fields,
    refused_reasoning: Texts,
    pub(in crate::provider) refused_tool: RefusedToolFacts,
    waits: Texts,
    served_over_responses: Texts,
    loading: Texts,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Phrases {
    kind: ModelErrorKind,
    precedence: PhrasePrecedence,
    status: Vec<u16>,
    texts: Vec<String>,
    #[serde(default)]
    unless: Vec<String>,
}

/// The precedence of phrases relative to codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::provider) enum PhrasePrecedence {
    /// Before any code.
    First,
    /// Only without a specific code.
    Last,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::provider) struct Fields {
    pub(in crate::provider) words: Vec<String>,
    pub(in crate::provider) codes: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Texts {
    #[serde(default)]
    status: Vec<u16>,
    texts: Vec<String>,
}

/// The places and names by which providers identify a refused tool.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::provider) struct RefusedToolFacts {
    pub(in crate::provider) lists: Vec<String>,
    pub(in crate::provider) names: Vec<[String; 2]>,
    pub(in crate::provider) not_of_codes: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::provider) struct VendorCodes {
    pub(in crate::provider) providers: Vec<String>,
    pub(in crate::provider) hosts: Vec<String>,
    pub(in crate::provider) codes: BTreeMap<String, ModelErrorKind>,
    pub(in crate::provider) statuses: BTreeMap<String, ModelErrorKind>,
}

pub(in crate::provider) fn error_facts() -> &'static ErrorFacts {
    ERRORS.get()
}

pub(in crate::provider) fn vendors() -> &'static BTreeMap<String, VendorCodes> {
    VENDORS.get()
}

/// Returns a code that only this vendor uses, with the vendor's name as prefix.
pub(in crate::provider) fn vendor_code(vendor: &str, code: &str) -> String {
    format!("{vendor}_{code}")
}

pub(in crate::provider) fn kind_of_status(status: u16) -> ModelErrorKind {
    let known = error_facts().statuses.iter().find(|(_, statuses)| statuses.contains(&status)).map(|(kind, _)| *kind);
    known.unwrap_or(if status >= 500 { ModelErrorKind::Unavailable } else { ModelErrorKind::InvalidRequest })
}

/// Returns the kind of a lower-case code or type. If it is unknown, drops the part before the first dot and looks again.
pub(in crate::provider) fn kind_of_code(code: &str) -> Option<ModelErrorKind> {
    static CODES: OnceLock<HashMap<String, ModelErrorKind>> = OnceLock::new();
    let codes = CODES.get_or_init(|| {
        let shared = error_facts().codes.iter().flat_map(|(kind, codes)| codes.iter().map(|code| (code.clone(), *kind)));
        let own = vendors().iter().flat_map(|(vendor, own)| {
            own.codes.iter().chain(&own.statuses).map(move |(code, kind)| (vendor_code(vendor, code), *kind))
        });
        shared.chain(own).collect()
    });
    codes.get(code).copied().or_else(|| kind_of_code(code.split_once('.')?.0))
}

/// Returns the kind of a code that applies only to an error without a status.
pub(in crate::provider) fn kind_without_status(code: &str) -> Option<ModelErrorKind> {
    let mut known = error_facts().codes_without_status.iter();
    known.find(|(_, codes)| codes.iter().any(|known| known == code)).map(|(kind, _)| *kind)
}

/// Returns the kind of an error by its text. An error without a status matches phrases of every status.
pub(in crate::provider) fn kind_of_words(words: &str, status: Option<u16>, precedence: PhrasePrecedence) -> Option<ModelErrorKind> {
    let words = words.to_lowercase();
    let has = |phrases: &[String]| phrases.iter().any(|phrase| words.contains(phrase.as_str()));
    let mut known = error_facts().phrases.iter().filter(|phrases| phrases.precedence == precedence);
    let found = known.find(|phrases| {
        status.is_none_or(|status| phrases.status.contains(&status)) && has(&phrases.texts) && !has(&phrases.unless)
    });
    found.map(|phrases| phrases.kind)
}

/// Returns whether a text says that the provider refuses reasoning in the history.
pub(in crate::provider) fn refuses_reasoning(text: &str) -> bool {
    let text = text.to_lowercase();
    error_facts().refused_reasoning.texts.iter().any(|phrase| text.contains(phrase.as_str()))
}

/// Returns whether an error says that the model is available only over Responses.
pub(in crate::provider) fn is_served_over_responses(error: &ModelError) -> bool {
    let facts = &error_facts().served_over_responses;
    error.status.is_some_and(|status| facts.status.contains(&status)) && facts.texts.iter().any(|text| error.message.contains(text))
}

/// Returns whether an error says that the model is being loaded.
pub(in crate::provider) fn is_loading(error: &ModelError) -> bool {
    let facts = &error_facts().loading;
    let words = error.message.to_lowercase();
    error.status.is_some_and(|status| facts.status.contains(&status))
        && facts.texts.iter().any(|text| words.contains(text.as_str()))
}

/// Returns the text after each phrase that announces a wait ("try again in"), in lower case.
pub(in crate::provider) fn after_wait_phrase(lower: &str) -> impl Iterator<Item = &str> {
    error_facts().waits.texts.iter().filter_map(move |before| Some(lower.split_once(before.as_str())?.1))
}

pub(in crate::provider) fn is_specific(kind: ModelErrorKind) -> bool {
    matches!(
        kind,
        ModelErrorKind::Auth
            | ModelErrorKind::Quota
            | ModelErrorKind::RateLimit
            | ModelErrorKind::Overloaded
            | ModelErrorKind::ContextOverflow
            | ModelErrorKind::BadStream
            | ModelErrorKind::ContentFilter
    )
}

/// The vendor of an endpoint, if it has error codes of its own.
#[derive(Debug, Clone, Copy, Default)]
pub struct Vendor(Option<&'static VendorCodes>);

impl Vendor {
    /// Returns the vendor of a base URL, by its host.
    pub fn at(base_url: &str) -> Self {
        let Some(host) = host(base_url) else { return Self(None) };
        let is_below = |own: &String| host.strip_suffix(own.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        Self(vendors().values().find(|vendor| vendor.hosts.iter().any(is_below)))
    }

    /// Returns the vendor of a provider by its name, which takes precedence over the host: the host may be a gateway.
    pub fn named(self, provider: &str) -> Self {
        Self(vendors().values().find(|vendor| vendor.providers.iter().any(|name| name == provider)).or(self.0))
    }

    /// Corrects the kind of an error by the vendor's own codes.
    pub(in crate::provider) fn classify(self, mut error: ModelError) -> ModelError {
        let Some(vendor) = self.0 else { return error };
        let codes = error.details.iter().flat_map(|details| &details.codes);
        let by_code = codes.filter_map(|code| vendor.codes.get(code)).copied().next();
        let by_code = by_code.filter(|kind| is_specific(*kind) || error.status.is_none());
        let by_status = || vendor.statuses.get(&error.status?.to_string()).copied();
        if let Some(kind) = by_code.or_else(by_status) {
            error.kind = kind;
            error.retry_after_ms = error.retry_after_ms.filter(|_| kind.is_retryable());
            error.refused_tool = error.refused_tool.filter(|_| kind == ModelErrorKind::InvalidRequest);
            error.refused_signed &= kind == ModelErrorKind::InvalidRequest;
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn facts() -> &'static ErrorFacts {
        ERRORS.checked().unwrap()
    }

    #[test]
    fn error_table_statuses_are_reachable() {
        for (kind, statuses) in &facts().statuses {
            assert!(statuses.iter().all(|status| kind_of_status(*status) == *kind), "{kind:?}: a status stands twice");
        }
        assert_eq!([400, 500, 599].map(kind_of_status)[1..], [ModelErrorKind::Unavailable; 2]);
    }

    #[test]
    fn error_table_codes_are_reachable() {
        let mut seen = HashSet::new();
        for (kind, codes) in facts().codes.iter().chain(&facts().codes_without_status) {
            for code in codes {
                assert!(seen.insert(code), "{code} stands twice");
                assert_eq!(*code, code.to_lowercase());
                assert_eq!(kind_of_code(code).or_else(|| kind_without_status(code)), Some(*kind), "{code}");
                assert!(code.parse::<u64>().is_err(), "{code}: a bare number means something at one vendor only");
            }
        }
    }

    #[test]
    fn vendor_table_codes_are_reachable() {
        for (vendor, own) in VENDORS.checked().unwrap() {
            assert!(!own.codes.is_empty() || !own.statuses.is_empty(), "{vendor}");
            for (code, kind) in own.codes.iter().chain(&own.statuses) {
                assert_eq!(kind_of_code(&vendor_code(vendor, code)), Some(*kind), "{vendor} {code}");
                assert_eq!(kind_of_code(code), None, "{vendor} {code} counts for others, too");
            }
            assert!(own.statuses.keys().all(|status| status.parse::<u16>().is_ok_and(|status| (400..600).contains(&status))));
        }
    }

    #[test]
    fn error_table_phrases_are_reachable() {
        for phrases in &facts().phrases {
            for text in &phrases.texts {
                assert_eq!(*text, text.to_lowercase());
                for status in phrases.status.iter().copied().map(Some).chain([None]) {
                    assert_eq!(kind_of_words(text, status, phrases.precedence), Some(phrases.kind), "{text}");
                }
                let shorter = phrases.texts.iter().find(|other| *other != text && text.contains(other.as_str()));
                assert_eq!(shorter, None, "covers {text}");
            }
            assert!(phrases.unless.iter().all(|text| *text == text.to_lowercase()));
        }
        let facts = facts();
        let all = [&facts.refused_reasoning.texts, &facts.waits.texts, &facts.fields.words, &facts.refused_tool.lists];
        assert!(!facts.served_over_responses.texts.is_empty() && !facts.served_over_responses.status.is_empty());
        assert!(all.iter().all(|texts| !texts.is_empty() && texts.iter().all(|text| !text.is_empty())));
    }
}

#[cfg(test)]
mod vendors_tests {
    use super::*;
    use crate::domain::model::ErrorDetails;

    fn error(status: Option<u16>, code: &str) -> ModelError {
        let details = ErrorDetails { codes: vec![code.to_owned()], fields: Vec::new() };
        let error = ModelError::new(ModelErrorKind::InvalidRequest, "x");
        ModelError { status, details: Some(Box::new(details)), ..error }
    }

    #[test]
    fn vendor_codes_count_for_their_vendor_only() {
        let zhipu =
            [Vendor::at("https://api.z.ai/api/paas/v4"), Vendor::at("https://open.bigmodel.cn"), Vendor::default().named("zai")];
        for vendor in zhipu {
            assert_eq!(vendor.classify(error(Some(400), "1113")).kind, ModelErrorKind::Quota);
            assert_eq!(vendor.classify(error(Some(400), "2013")).kind, ModelErrorKind::InvalidRequest);
            assert_eq!(vendor.classify(error(Some(434), "x")).kind, ModelErrorKind::InvalidRequest);
        }
        for place in ["https://api.openai.com/v1", "http://127.0.0.1:1", "https://notz.ai", "https://z.ai.example", "z.ai", ""] {
            assert_eq!(Vendor::at(place).classify(error(Some(400), "1113")).kind, ModelErrorKind::InvalidRequest, "{place}");
        }
        let named = |name: &str, status: u16| Vendor::at("http://127.0.0.1:1").named(name).classify(error(Some(status), "")).kind;
        assert_eq!(named("iflow", 449), ModelErrorKind::RateLimit);
        assert_eq!(named("groq", 498), ModelErrorKind::Overloaded);
        assert_eq!(named("openai", 498), ModelErrorKind::InvalidRequest);
    }
}
