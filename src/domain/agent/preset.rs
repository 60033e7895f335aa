//! The built-in agents, as files.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::domain::agent::ProfileDocument;
use crate::domain::ids::AgentId;

const FILES: [(&str, &str); 5] = [
    ("chat", include_str!("presets/chat.toml")),
    ("cms", include_str!("presets/cms.toml")),
    ("desktop", include_str!("presets/desktop.toml")),
    ("docker-tools", include_str!("presets/docker-tools.toml")),
    ("react", include_str!("presets/react.toml")),
];

#[derive(Debug, Clone, PartialEq)]
pub struct Preset {
    pub id: AgentId,
    pub name: &'static str,
    pub description: String,
    /// The differences from the default agent of the settings.
    pub profile: ProfileDocument,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    description: String,
    profile: ProfileDocument,
}

/// Parsed once, because each run that names an agent searches here. A test parses each file.
static PRESETS: LazyLock<Vec<Preset>> = LazyLock::new(|| {
    let read = |(name, text): (&'static str, &str)| {
        let File { description, profile } = toml::from_str(text).ok()?;
        Some(Preset { id: preset_id(name), name, description, profile })
    };
    FILES.into_iter().filter_map(read).collect()
});

pub fn presets() -> &'static [Preset] {
    &PRESETS
}

pub fn is_preset(name: &str) -> bool {
    FILES.iter().any(|(known, _)| *known == name)
}

pub fn preset_id(name: &str) -> AgentId {
    AgentId::derived("capstan.agent", name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::agent::agent_record::profile_of;
    use crate::domain::agent::{
        AgentProfile, BreakerAction, BreakerScope, FinalTextFor, OnLimit, OnUnknown, ToolErrorPolicy, ToolsPolicy,
    };
    use crate::domain::model::{ModelErrorKind, ToolChoice};
    use crate::domain::run::admission::Admission;
    use crate::domain::run::plan::RankingFallback;
    use crate::domain::tool::approval::OnDeny;

    fn profile(name: &str) -> AgentProfile {
        let preset = presets().iter().find(|preset| preset.name == name).unwrap();
        profile_of(&AgentProfile::default(), name, 1, &preset.profile).unwrap()
    }

    #[test]
    fn every_file_is_an_agent() {
        let names: Vec<&str> = presets().iter().map(|preset| preset.name).collect();
        assert_eq!(names, FILES.map(|(name, _)| name));
        assert!(names.is_sorted());
        for name in names {
            assert_eq!(profile(name).name, name);
            assert_eq!(AgentId::parse(preset_id(name).as_str()).unwrap(), preset_id(name));
        }
    }

    #[test]
    fn they_have_the_constants_of_their_ancestors() {
        let cms = profile("cms");
        assert_eq!((cms.max_rounds, cms.on_limit, cms.tool_parallelism), (20, OnLimit::Fail, 1));
        assert!(cms.llm_retry.covers(ModelErrorKind::Overloaded) && !cms.llm_retry.covers(ModelErrorKind::Unavailable));
        let Admission { max_message_chars, max_active_runs, max_conversations } = cms.admission;
        assert_eq!((max_message_chars, max_active_runs, max_conversations), (10_000, 3, 50));
        assert_eq!((cms.llm_retry.delays_ms.clone(), cms.tool_error), (vec![3_000, 6_000], ToolErrorPolicy::FeedBack));
        assert_eq!(cms.on_unknown, OnUnknown::Rerun);
        assert!(cms.llm_retry.covers_message("Rate limit exceeded") && !cms.llm_retry.covers_message("could not generate"));
        assert_eq!(cms.builtin_tools, Some(Vec::new()));
        let desktop = profile("desktop");
        assert_eq!((desktop.max_rounds, desktop.on_limit, desktop.tool_result_chars), (10, OnLimit::Summarize, 6_000));
        assert_eq!((desktop.context.limit, desktop.context.keep_last, desktop.context.compress_results), (Some(32_768), 10, true));
        assert_eq!((desktop.breaker_failures, desktop.duplicate_calls, desktop.empty_replies, desktop.error_rounds), (3, 2, 2, 2));
        let analysis = &desktop.response_analysis;
        assert_eq!((analysis.incomplete, analysis.deflection, analysis.deflection_calls), (3, 3, 0));
        assert_eq!((analysis.before_success, desktop.final_text_for), (true, FinalTextFor::All));
        assert_eq!((desktop.sampling.tool_turn.temperature, desktop.sampling.talk_turn.top_p), (Some(0.1), Some(0.9)));
        assert_eq!((desktop.llm_retry.delays_ms.len(), desktop.llm_retry.fallback_first), (1, true));
        assert!(cms.response_analysis.claims && !desktop.response_analysis.claims);
        assert_eq!(desktop.plan.without_vectors, RankingFallback::Loop);
        let react = profile("react");
        assert_eq!((react.max_rounds, react.on_limit, react.breaker_action), (5, OnLimit::Message, BreakerAction::ForceFinal));
        assert_eq!((react.context.limit, react.tool_result_chars), (Some(200_000), 200_000));
        assert_eq!((react.breaker_failures, react.breaker_scope), (3, BreakerScope::Conversation));
        assert_eq!((react.llm_retry.delays_ms, react.approval.on_deny), (vec![1_000, 2_000, 4_000], OnDeny::EndTurn));
        assert_eq!((react.sampling.tool_turn.temperature, react.sampling.talk_turn.temperature), (Some(0.0), Some(0.7)));
        assert!(react.approval.ask_untrusted && react.approval.rationale);
        let chat = profile("chat");
        assert_eq!((chat.max_rounds, chat.on_limit), (10, OnLimit::Message));
        assert_eq!((chat.sampling.tool_turn.temperature, chat.sampling.talk_turn.temperature), (Some(0.7), Some(0.7)));
        let tools = profile("docker-tools");
        assert_eq!((tools.max_rounds, tools.tools_policy), (5, ToolsPolicy::FirstRoundOnly));
        assert!(tools.tool_parallelism >= tools.max_parallel_calls);
        assert_eq!(tools.options.tool_choice, Some(ToolChoice::Auto));
    }
}
