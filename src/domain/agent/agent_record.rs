//! Agents that are stored through the API, in versions that never change. A version contains only its differences from the default
//! agent in the settings. This module must not know where an agent is stored.

use serde_json::{Map, Value};

use crate::domain::agent::AgentProfile;
use crate::domain::ids::{AgentId, UserId};
use crate::domain::invalid::{InvalidProfile, invalid};
use crate::domain::model::Usd;
use crate::domain::run::Budget;
use crate::support::clock::UnixMillis;
use crate::support::suggestion::with_suggestion;

/// Fields of an [`AgentProfile`], without name and version.
pub type ProfileDocument = Map<String, Value>;

#[derive(Debug, Clone, PartialEq)]
pub struct AgentRecord {
    pub id: AgentId,
    /// `None` for an agent that all users may use.
    pub owner: Option<UserId>,
    /// Unique among those of its owner.
    pub name: String,
    pub description: String,
    /// The version that runs use; the newest one if absent.
    pub pinned: Option<u32>,
    pub latest: u32,
    /// The profile of the version that runs use.
    pub profile: ProfileDocument,
    pub created_at: UnixMillis,
    pub updated_at: UnixMillis,
    /// Incremented at each change.
    pub revision: i64,
}

impl AgentRecord {
    pub fn current(&self) -> u32 {
        self.pinned.unwrap_or(self.latest)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct AgentVersion {
    pub number: u32,
    pub profile: ProfileDocument,
    pub note: String,
    pub created_by: UserId,
    pub created_at: UnixMillis,
}

/// Limits of one run. A request may lower the limits of its agent.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunLimits {
    /// Maximum number of the model's answers, except malformed and forced ones.
    #[schema(minimum = 1)]
    pub max_rounds: Option<u32>,
    /// Maximum duration of the run in milliseconds, from its first start and including waiting times.
    #[schema(minimum = 1)]
    pub max_run_ms: Option<u64>,
    /// Maximum number of input and output tokens of the run.
    #[schema(minimum = 1)]
    pub max_run_tokens: Option<u64>,
    /// Maximum cost of the run in US dollars.
    pub max_run_usd: Option<Usd>,
    /// Maximum number of input and output tokens of all runs of the conversation.
    #[schema(minimum = 1)]
    pub max_conversation_tokens: Option<u64>,
    /// Maximum cost of all runs of the conversation in US dollars.
    pub max_conversation_usd: Option<Usd>,
    /// Maximum number of input and output tokens per day, for all runs of the owner that have such a limit.
    #[schema(minimum = 1)]
    pub max_day_tokens: Option<u64>,
    /// Maximum cost per day in US dollars, for all runs of the owner that have such a limit.
    pub max_day_usd: Option<Usd>,
    /// Maximum duration of one tool call in milliseconds.
    #[schema(minimum = 1)]
    pub tool_timeout_ms: Option<u64>,
    /// Maximum number of tool calls of one answer that run in parallel.
    #[schema(minimum = 1)]
    pub tool_parallelism: Option<u32>,
}

impl RunLimits {
    /// Replaces the profile's limits by these. Returns [`InvalidProfile`] if a limit is 0, or higher than the one it replaces.
    pub fn lower(self, profile: &mut AgentProfile) -> Result<(), InvalidProfile> {
        let Self { max_rounds, max_run_ms, max_run_tokens, tool_timeout_ms, tool_parallelism, .. } = self;
        lower("max_rounds", max_rounds, &mut profile.max_rounds, None)?;
        lower("max_run_ms", max_run_ms, &mut profile.max_run_ms, Some(0))?;
        lower("max_run_tokens", max_run_tokens, &mut profile.max_run_tokens, Some(0))?;
        let Budget { run_usd, conversation, day, on_day_spent: _ } = &mut profile.budget;
        lower_budget("max_run_usd", self.max_run_usd, run_usd)?;
        lower_budget("max_conversation_tokens", self.max_conversation_tokens, &mut conversation.tokens)?;
        lower_budget("max_conversation_usd", self.max_conversation_usd, &mut conversation.usd)?;
        lower_budget("max_day_tokens", self.max_day_tokens, &mut day.tokens)?;
        lower_budget("max_day_usd", self.max_day_usd, &mut day.usd)?;
        lower("tool_timeout_ms", tool_timeout_ms, &mut profile.tool_timeout_ms, None)?;
        lower("tool_parallelism", tool_parallelism, &mut profile.tool_parallelism, None)
    }
}

fn lower_budget<T: Copy + Ord + Default + std::fmt::Display>(
    field: &str,
    requested: Option<T>,
    limit: &mut Option<T>,
) -> Result<(), InvalidProfile> {
    match (requested, limit) {
        (None, _) => Ok(()),
        (requested, Some(limit)) => lower(field, requested, limit, None),
        (requested, limit @ None) => {
            let mut lowered = T::default();
            lower(field, requested, &mut lowered, Some(T::default()))?;
            *limit = Some(lowered);
            Ok(())
        }
    }
}

fn lower<T: Copy + Ord + Default + std::fmt::Display>(
    field: &str,
    requested: Option<T>,
    limit: &mut T,
    unlimited: Option<T>,
) -> Result<(), InvalidProfile> {
    let Some(requested) = requested else { return Ok(()) };
    let reason = match () {
        () if requested == T::default() => "must be more than 0".to_owned(),
        () if unlimited != Some(*limit) && requested > *limit => format!("a request may only lower it, and the agent has {limit}"),
        () => {
            *limit = requested;
            return Ok(());
        }
    };
    Err(invalid(field, reason))
}

/// Merges a document into the default agent of the settings.
pub fn profile_of(
    base: &AgentProfile,
    name: &str,
    version: u32,
    document: &ProfileDocument,
) -> Result<AgentProfile, InvalidProfile> {
    if let Some(field) = ["name", "version"].into_iter().find(|field| document.contains_key(*field)) {
        return Err(invalid(field, "is not part of the profile"));
    }
    let mut merged = serde_json::to_value(base).map_err(|error| invalid("", error.to_string()))?;
    merge(&mut merged, document);
    let read: Result<AgentProfile, _> = serde_path_to_error::deserialize(merged);
    let mut profile =
        read.map_err(|error| invalid(error.path().to_string().replace('.', "/"), with_suggestion(&error.inner().to_string())))?;
    (profile.name, profile.version) = (name.to_owned(), version);
    profile.check()?;
    Ok(profile)
}

/// Merges objects, and replaces all other values.
fn merge(value: &mut Value, document: &ProfileDocument) {
    let Value::Object(map) = value else { return };
    for (key, value) in document {
        match (map.get_mut(key), value) {
            (Some(existing @ Value::Object(_)), Value::Object(inner)) => merge(existing, inner),
            (Some(existing), _) => *existing = value.clone(),
            (None, _) => {
                map.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn document(value: Value) -> ProfileDocument {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn a_document_says_what_differs() {
        let base = AgentProfile { model: "a/b".to_owned(), max_rounds: 7, ..AgentProfile::default() };
        let said =
            document(json!({"system_prompt": "Be brief.", "approval": {"ask_untrusted": true}, "llm_retry": {"delays_ms": [1]}}));
        let profile = profile_of(&base, "brief", 3, &said).unwrap();
        assert_eq!((profile.name.as_str(), profile.version, profile.model.as_str(), profile.max_rounds), ("brief", 3, "a/b", 7));
        assert!(profile.approval.ask_untrusted);
        assert_eq!(profile.approval.expires_ms, base.approval.expires_ms, "a field that an inner object omits keeps its value");
        assert_eq!(profile.llm_retry.delays_ms, [1]);
        assert_eq!(profile_of(&base, "same", 1, &document(json!({}))).unwrap().system_prompt, base.system_prompt);
    }

    #[rstest]
    #[case(json!({"max_round": 3}), "max_round")]
    #[case(json!({"max_rounds": -1}), "max_rounds")]
    #[case(json!({"max_rounds": 0}), "max_rounds")]
    #[case(json!({"max_parallel_calls": 0}), "max_parallel_calls")]
    #[case(json!({"name": "x"}), "name")]
    #[case(json!({"on_limit": "explode"}), "on_limit")]
    #[case(json!({"llm_retry": {"delays": []}}), "llm_retry/delays")]
    #[case(json!({"model": "gpt"}), "model")]
    #[case(json!({"fallbacks": ["x/"]}), "fallbacks")]
    #[case(json!({"title": "long"}), "title")]
    #[case(json!({"title_model": "gpt"}), "title_model")]
    #[case(json!({"tool_filter": {"k": 0}}), "tool_filter/k")]
    #[case(json!({"tool_filter": {"mode": "some"}}), "tool_filter/mode")]
    #[case(json!({"options": {"temperature": 9.0}}), "options/temperature")]
    #[case(json!({"sampling": {"tool_turn": {"top_p": 2.0}}}), "sampling/tool_turn/top_p")]
    #[case(json!({"response_analysis": {"deflection": 11}}), "response_analysis/deflection")]
    #[case(json!({"response_analysis": {"phrases": {"claim": [""]}}}), "response_analysis/phrases/claim")]
    #[case(json!({"llm_retry": {"validation_retries": 101}}), "llm_retry/validation_retries")]
    #[case(json!({"tools": ["m__a", "m__*"]}), "tools/1")]
    #[case(json!({"approval": {"tools": {"m__*": "ask"}}}), "approval/tools/m__*")]
    #[case(json!({"approval": {"tools": {"m__a b": "ask"}}}), "approval/tools/m__a b")]
    #[case(json!({"repair": {"aliases": {"find": "m__*"}}}), "repair/aliases/find")]
    #[case(json!({"tool_filter": {"servers": {"m*": {}}}}), "tool_filter/servers/m*")]
    #[case(json!({"tool_filter": {"skip_models": ["*/gpt-5"]}}), "tool_filter/skip_models")]
    #[case(json!({"options": {"tool_choice": {"tool": "m__*"}}}), "options/tool_choice/tool")]
    fn invalid_provider_field_is_named(#[case] said: Value, #[case] field: &str) {
        let error = profile_of(&AgentProfile::default(), "x", 1, &document(said)).unwrap_err();
        assert!(error.field.starts_with(field) || error.reason.contains(field), "{error:?}");
    }

    #[test]
    fn a_request_only_lowers() {
        let mut profile = AgentProfile { max_rounds: 5, max_run_ms: 0, max_run_tokens: 100, ..AgentProfile::default() };
        let limits = RunLimits { max_rounds: Some(2), max_run_ms: Some(9), max_run_tokens: Some(100), ..RunLimits::default() };
        limits.lower(&mut profile).unwrap();
        assert_eq!((profile.max_rounds, profile.max_run_ms, profile.max_run_tokens), (2, 9, 100));
        let usd = |dollars: &str| serde_json::from_str(dollars).ok();
        let limits = RunLimits { max_run_usd: usd("0.5"), max_day_tokens: Some(7), ..RunLimits::default() };
        limits.lower(&mut profile).unwrap();
        assert_eq!((profile.budget.run_usd, profile.budget.day.tokens), (usd("0.5"), Some(7)));
        for limits in [
            RunLimits { max_run_usd: usd("0.6"), ..RunLimits::default() },
            RunLimits { max_conversation_usd: usd("0"), ..RunLimits::default() },
            RunLimits { max_day_tokens: Some(8), ..RunLimits::default() },
            RunLimits { max_rounds: Some(3), ..RunLimits::default() },
            RunLimits { max_run_ms: Some(10), ..RunLimits::default() },
            RunLimits { max_run_tokens: Some(0), ..RunLimits::default() },
            RunLimits { tool_parallelism: Some(99), ..RunLimits::default() },
        ] {
            assert!(limits.lower(&mut profile).is_err(), "{limits:?}");
        }
    }
}
