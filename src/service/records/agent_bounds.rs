//! Limits of members' agents: no higher limits and no weaker safety than the default agent of the settings.

use crate::domain::agent::{AgentProfile, InvalidProfile, OnUnknown, ToolsPolicy};
use crate::domain::model::cost::{Cost, Usd};
use crate::domain::run::admission::stricter;
use crate::domain::run::budget::Allowance;
use crate::domain::tool::approval::{ApprovalMode, OnDeny};

/// Checks that a member's agent has no higher limits and no weaker safety than the default agent of the settings.
pub fn within(base: &AgentProfile, profile: &AgentProfile) -> Result<(), InvalidProfile> {
    if let Some(Bound { field, most, .. }) = bounds(base, profile).into_iter().find(Bound::is_passed) {
        let most = if field.ends_with("usd") { Cost::from_trillionths(most).to_string() } else { most.to_string() };
        return refuse(field, format!("only an administrator can exceed the limit of the server's default agent, which is {most}"));
    }
    let guards = [
        ("breaker_failures", base.breaker_failures, profile.breaker_failures),
        ("duplicate_calls", base.duplicate_calls, profile.duplicate_calls),
        ("empty_replies", base.empty_replies, profile.empty_replies),
        ("error_rounds", base.error_rounds, profile.error_rounds),
        ("max_crashes", base.max_crashes, profile.max_crashes),
    ];
    if let Some((field, most, _)) = guards.into_iter().find(|(_, most, requested)| *most > 0 && !(1..=*most).contains(requested)) {
        let reason = format!("must be 1 to {most}, the limit of the server's default agent, unless an administrator sets it");
        return refuse(field, reason);
    }
    if base.counts_earlier_failures() && !profile.counts_earlier_failures() {
        let reason = "only an administrator can ignore failures of earlier runs, which the server's default agent counts";
        return refuse("breaker_scope", reason);
    }
    if profile.on_unknown == OnUnknown::Rerun && base.on_unknown != OnUnknown::Rerun {
        let reason = "only an administrator can repeat calls with an unknown outcome";
        return refuse("on_unknown", reason);
    }
    if base.context.limit.is_some() && profile.context.unit != base.context.unit {
        return refuse("context/unit", "only an administrator can change the unit of the server's default agent");
    }
    if profile.prompt.server != base.prompt.server {
        return refuse("prompt/server", "only an administrator can change the first layer of the system prompt");
    }
    if let Some(name) = profile.context_providers.iter().find(|name| !base.context_providers.contains(name)) {
        let reason =
            format!("only an administrator can add context providers that the server's default agent does not use, such as {name}");
        return refuse("context_providers", reason);
    }
    if profile.groups != base.groups {
        return refuse("groups", "only an administrator can set the groups of an agent");
    }
    let lists = [("tools", &base.tools, &profile.tools), ("builtin_tools", &base.builtin_tools, &profile.builtin_tools)];
    for (field, allowed, requested) in lists {
        let may_offer = match allowed {
            None => true,
            Some(allowed) => requested.as_ref().is_some_and(|requested| requested.iter().all(|tool| allowed.contains(tool))),
        };
        if !may_offer {
            return refuse(field, "only an administrator can offer tools that the server's default agent does not offer");
        }
    }
    if !offers_no_more_often(base.tools_policy, profile.tools_policy) {
        return refuse("tools_policy", "only an administrator can offer tools more often than the server's default agent");
    }
    asks_no_less(base, profile)
}

/// Reduces a preset to the limits of the default agent of the settings, so that members can use it wherever they can use that
/// agent. The guards of the preset against loops stay, even if they are weaker: they define the preset.
pub fn bring_within(base: &AgentProfile, profile: &mut AgentProfile) {
    profile.groups.clone_from(&base.groups);
    profile.max_rounds = profile.max_rounds.min(base.max_rounds);
    profile.tool_timeout_ms = profile.tool_timeout_ms.min(base.tool_timeout_ms);
    profile.tool_parallelism = profile.tool_parallelism.min(base.tool_parallelism);
    let is_larger = profile.context.unit != base.context.unit
        || profile.context.limit.unwrap_or(u64::MAX) > base.context.limit.unwrap_or(u64::MAX);
    if base.context.limit.is_some() && is_larger {
        profile.context = base.context.clone();
    }
    profile.tool_result_chars = profile.tool_result_chars.min(base.tool_result_chars);
    profile.admission = profile.admission.and(base.admission);
    profile.approval.expires_ms = stricter(base.approval.expires_ms, profile.approval.expires_ms);
    profile.ask_expires_ms = stricter(base.ask_expires_ms, profile.ask_expires_ms);
    if base.approval.on_deny == OnDeny::EndTurn {
        profile.approval.on_deny = OnDeny::EndTurn;
    }
    profile.llm_retry.max_retry_after_ms = profile.llm_retry.max_retry_after_ms.min(base.llm_retry.max_retry_after_ms);
    if !offers_no_more_often(base.tools_policy, profile.tools_policy) {
        profile.tools_policy = base.tools_policy;
    }
    if profile.on_unknown == OnUnknown::Rerun {
        profile.on_unknown = base.on_unknown;
    }
}

fn refuse(field: &str, reason: impl Into<String>) -> Result<(), InvalidProfile> {
    Err(InvalidProfile { field: field.to_owned(), reason: reason.into() })
}

fn offers_no_more_often(base: ToolsPolicy, requested: ToolsPolicy) -> bool {
    base == ToolsPolicy::EveryRound || requested == ToolsPolicy::None || requested == base
}

/// Checks that a member's agent asks for no fewer approvals. A member may add only `always_ask` rules, because an agent's rule has
/// priority over that of the tool's server.
fn asks_no_less(base: &AgentProfile, profile: &AgentProfile) -> Result<(), InvalidProfile> {
    let (required, requested) = (&base.approval.tools, &profile.approval.tools);
    let eased = requested.iter().find(|(tool, mode)| **mode != ApprovalMode::AlwaysAsk && required.get(*tool) != Some(*mode));
    if let Some((tool, _)) = eased {
        return refuse(&format!("approval/tools/{tool}"), "a member can only set always_ask");
    }
    if !required.keys().all(|tool| requested.contains_key(tool)) {
        return refuse("approval/tools", "only an administrator can remove a rule");
    }
    if base.approval.ask_untrusted && !profile.approval.ask_untrusted {
        return refuse("approval/ask_untrusted", "only an administrator can turn it off");
    }
    if base.approval.on_deny == OnDeny::EndTurn && profile.approval.on_deny != OnDeny::EndTurn {
        return refuse("approval/on_deny", "only an administrator can let the run continue after a denial");
    }
    Ok(())
}

struct Bound {
    field: &'static str,
    most: u64,
    requested: u64,
    /// Whether 0 means no limit.
    zero_is_none: bool,
}

impl Bound {
    fn is_passed(&self) -> bool {
        match (self.most, self.requested) {
            (0, _) if self.zero_is_none => false,
            (_, 0) if self.zero_is_none => true,
            (most, requested) => requested > most,
        }
    }
}

fn bounds(base: &AgentProfile, profile: &AgentProfile) -> [Bound; 23] {
    let bound = |field, most, requested| Bound { field, most, requested, zero_is_none: false };
    let limit = |field, most, requested| Bound { field, most, requested, zero_is_none: true };
    let tokens = |allowance: Allowance| allowance.tokens.unwrap_or(0);
    let money = |field, most: Option<Usd>, requested: Option<Usd>| {
        let parts = |usd: Option<Usd>| usd.map_or(0, |usd| usd.cost().as_trillionths());
        limit(field, parts(most), parts(requested))
    };
    let output = |profile: &AgentProfile| profile.options.max_output_tokens.map_or(0, u64::from);
    let retries = |profile: &AgentProfile| profile.llm_retry.delays_ms.len() as u64;
    let checks = |profile: &AgentProfile| u64::from(profile.llm_retry.validation_retries);
    [
        bound("max_rounds", base.max_rounds.into(), profile.max_rounds.into()),
        bound("tool_timeout_ms", base.tool_timeout_ms, profile.tool_timeout_ms),
        bound("tool_parallelism", base.tool_parallelism.into(), profile.tool_parallelism.into()),
        bound("max_parallel_calls", base.max_parallel_calls.into(), profile.max_parallel_calls.into()),
        bound("tool_result_chars", base.tool_result_chars as u64, profile.tool_result_chars as u64),
        bound("llm_retry/max_retry_after_ms", base.llm_retry.max_retry_after_ms, profile.llm_retry.max_retry_after_ms),
        bound("llm_retry/delays_ms", retries(base).max(FEW_RETRIES), retries(profile)),
        bound("plan/max_steps", base.plan.max_steps.into(), profile.plan.max_steps.into()),
        bound("llm_retry/validation_retries", checks(base).max(FEW_RETRIES), checks(profile)),
        limit("max_run_ms", base.max_run_ms, profile.max_run_ms),
        limit("max_run_tokens", base.max_run_tokens, profile.max_run_tokens),
        money("budget/run_usd", base.budget.run_usd, profile.budget.run_usd),
        limit("budget/conversation/tokens", tokens(base.budget.conversation), tokens(profile.budget.conversation)),
        money("budget/conversation/usd", base.budget.conversation.usd, profile.budget.conversation.usd),
        limit("budget/day/tokens", tokens(base.budget.day), tokens(profile.budget.day)),
        money("budget/day/usd", base.budget.day.usd, profile.budget.day.usd),
        limit("context/limit", base.context.limit.unwrap_or(0), profile.context.limit.unwrap_or(0)),
        limit("options/max_output_tokens", output(base), output(profile)),
        limit("approval/expires_ms", base.approval.expires_ms, profile.approval.expires_ms),
        limit("ask_expires_ms", base.ask_expires_ms, profile.ask_expires_ms),
        limit("admission/max_message_chars", base.admission.max_message_chars, profile.admission.max_message_chars),
        limit("admission/max_active_runs", base.admission.max_active_runs.into(), profile.admission.max_active_runs.into()),
        limit("admission/max_conversations", base.admission.max_conversations.into(), profile.admission.max_conversations.into()),
    ]
}

/// The number of retries that any member may set.
const FEW_RETRIES: u64 = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::agent::agent_record::profile_of;
    use crate::domain::agent::preset::presets;
    use crate::domain::run::admission::Admission;
    use rstest::rstest;
    use serde_json::{Value, json};
    use std::collections::BTreeSet;

    fn profile(base: &AgentProfile, said: Value) -> AgentProfile {
        profile_of(base, "mine", 1, &said.as_object().cloned().unwrap()).unwrap()
    }

    fn strict() -> AgentProfile {
        let said = json!({"max_run_ms": 1_000, "breaker_scope": "conversation", "tools": ["a", "b"], "builtin_tools": ["a"], "tools_policy": "first_round_only",
            "groups": ["staff"], "context": {"limit": 8_000}, "budget": {"day": {"usd": 2.5}}, "options": {"max_output_tokens": 100}, "ask_expires_ms": 1_000,
            "approval": {"ask_untrusted": true, "tools": {"strict": "always_ask"}, "on_deny": "end_turn", "expires_ms": 2_000}});
        profile(&AgentProfile::default(), said)
    }

    #[rstest]
    #[case(json!({}), None)]
    #[case(json!({"max_rounds": 21}), Some("max_rounds"))]
    #[case(json!({"groups": []}), Some("groups"))]
    #[case(json!({"groups": ["staff", "others"]}), Some("groups"))]
    #[case(json!({"groups": ["staff"]}), None)]
    #[case(json!({"max_run_ms": 0}), Some("max_run_ms"))]
    #[case(json!({"max_run_ms": 500}), None)]
    #[case(json!({"approval": {"tools": {"x": "auto"}}}), Some("approval/tools/x"))]
    #[case(json!({"approval": {"tools": {"strict": "ask"}}}), Some("approval/tools/strict"))]
    #[case(json!({"approval": {"tools": {"x": "ask"}}}), Some("approval/tools/x"))]
    #[case(json!({"approval": {"tools": {"x": "always_ask"}}}), None)]
    #[case(json!({"approval": {"ask_untrusted": false}}), Some("approval/ask_untrusted"))]
    #[case(json!({"approval": {"expires_ms": 0}}), Some("approval/expires_ms"))]
    #[case(json!({"approval": {"expires_ms": 2_001}}), Some("approval/expires_ms"))]
    #[case(json!({"approval": {"expires_ms": 1_999}}), None)]
    #[case(json!({"approval": {"on_deny": "feed_back"}}), Some("approval/on_deny"))]
    #[case(json!({"ask_expires_ms": 0}), Some("ask_expires_ms"))]
    #[case(json!({"tools": null}), Some("tools"))]
    #[case(json!({"tools": ["b"]}), None)]
    #[case(json!({"tools": ["b", "c"]}), Some("tools"))]
    #[case(json!({"builtin_tools": "none"}), None)]
    #[case(json!({"builtin_tools": ["b"]}), Some("builtin_tools"))]
    #[case(json!({"tools_policy": "every_round"}), Some("tools_policy"))]
    #[case(json!({"tools_policy": "none"}), None)]
    #[case(json!({"on_unknown": "rerun"}), Some("on_unknown"))]
    #[case(json!({"on_unknown": "ask"}), None)]
    #[case(json!({"breaker_failures": 0}), Some("breaker_failures"))]
    #[case(json!({"breaker_scope": "run"}), Some("breaker_scope"))]
    #[case(json!({"duplicate_calls": 9}), Some("duplicate_calls"))]
    #[case(json!({"max_crashes": 0}), Some("max_crashes"))]
    #[case(json!({"options": {"max_output_tokens": 101}}), Some("options/max_output_tokens"))]
    #[case(json!({"options": {"max_output_tokens": null}}), Some("options/max_output_tokens"))]
    #[case(json!({"llm_retry": {"delays_ms": [1, 1, 1, 1, 1, 1]}}), Some("llm_retry/delays_ms"))]
    #[case(json!({"context": {"limit": 9_000}}), Some("context/limit"))]
    #[case(json!({"budget": {"day": {"usd": 2.6}}}), Some("budget/day/usd"))]
    #[case(json!({"budget": {"day": {"usd": null}}}), Some("budget/day/usd"))]
    #[case(json!({"budget": {"day": {"usd": 0.5}, "conversation": {"tokens": 9}, "run_usd": 0.1}}), None)]
    #[case(json!({"context": {"limit": null}}), Some("context/limit"))]
    #[case(json!({"context": {"unit": "chars"}}), Some("context/unit"))]
    #[case(json!({"context": {"limit": 6_000, "keep_last": 4}}), None)]
    fn members_stay_within_the_server_s_agent(#[case] said: Value, #[case] refused: Option<&str>) {
        let base = strict();
        let requested = profile(&base, said);
        assert_eq!(within(&base, &requested).err().map(|error| error.field).as_deref(), refused);
    }

    #[test]
    fn no_preset_exceeds_a_strict_default_agent() {
        let base = AgentProfile {
            max_rounds: 1,
            tool_timeout_ms: 1_000,
            tool_parallelism: 1,
            max_parallel_calls: 1,
            tool_result_chars: 100,
            admission: Admission { max_message_chars: 10, max_active_runs: 1, max_conversations: 1 },
            ..strict()
        };
        for preset in presets() {
            let mut profile = profile_of(&base, preset.name, 1, &preset.profile).unwrap();
            bring_within(&base, &mut profile);
            let exceeded = bounds(&base, &profile).into_iter().find(Bound::is_passed).map(|bound| bound.field);
            assert_eq!(exceeded, None, "{}", preset.name);
        }
    }

    #[test]
    fn built_in_agent_is_clamped_to_the_bounds() {
        let groups = BTreeSet::from(["staff".to_owned()]);
        let base =
            AgentProfile { groups, max_rounds: 3, tool_parallelism: 1, tools_policy: ToolsPolicy::None, ..AgentProfile::default() };
        let mut preset =
            profile(&base, json!({"max_rounds": 20, "tool_parallelism": 32, "tools_policy": "every_round", "on_unknown": "rerun"}));
        preset.groups.clear();
        bring_within(&base, &mut preset);
        assert_eq!(preset.context, base.context, "without a limit there is nothing to reduce");
        assert_eq!(preset.groups, base.groups);
        let small = profile(&base, json!({"context": {"limit": 8_000}}));
        for said in [json!({"context": {"limit": 32_768}}), json!({"context": {"unit": "chars", "limit": 7_000}})] {
            let mut larger = profile(&base, said);
            bring_within(&small, &mut larger);
            assert_eq!(larger.context, small.context);
        }
        assert_eq!((preset.max_rounds, preset.tool_parallelism, preset.tools_policy), (3, 1, ToolsPolicy::None));
        let first = profile(
            &AgentProfile::default(),
            json!({"tools_policy": "first_round_only", "tool_result_chars": 2_000, "llm_retry": {"max_retry_after_ms": 1_000}}),
        );
        let mut preset = profile(&AgentProfile::default(), json!({"tool_result_chars": 6_000, "duplicate_calls": 0}));
        bring_within(&first, &mut preset);
        assert_eq!((preset.tools_policy, preset.tool_result_chars), (ToolsPolicy::FirstRoundOnly, 2_000));
        assert_eq!((preset.llm_retry.max_retry_after_ms, preset.duplicate_calls), (1_000, 0), "guards are the preset's own");
        assert_eq!(preset.on_unknown, OnUnknown::TellModel);
        let mut preset = profile(&AgentProfile::default(), json!({"approval": {"expires_ms": 0}, "ask_expires_ms": 500}));
        bring_within(&strict(), &mut preset);
        assert_eq!((preset.approval.expires_ms, preset.ask_expires_ms, preset.approval.on_deny), (2_000, 500, OnDeny::EndTurn));
    }
}
