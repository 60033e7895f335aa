//! What is known of the models, as data. A model that is not listed is taken for a new one of Anthropic if its name says so,
//! and else for one of another provider that speaks this wire.

/// How a model is told to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Thinking {
    /// It cannot.
    No,
    /// By a budget of tokens.
    Budget,
    /// By an effort. It decides itself how much that is.
    Adaptive,
    /// By an effort, and it cannot be told not to think.
    Always,
}

/// What a model takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Traits {
    pub(super) thinking: Thinking,
    /// Whether it takes temperature and `top_p`.
    pub(super) sampling: bool,
    /// Whether it takes a schema for its answer.
    pub(super) output_schema: bool,
    /// The output limit if the caller names none: the wire wants one.
    pub(super) max_tokens: u32,
}

const OLD: Traits = Traits { thinking: Thinking::No, sampling: true, output_schema: false, max_tokens: 4_096 };
const BUDGET: Traits = Traits { thinking: Thinking::Budget, sampling: true, output_schema: false, max_tokens: 16_384 };
const ADAPTIVE: Traits = Traits { thinking: Thinking::Adaptive, sampling: true, output_schema: true, max_tokens: 16_384 };

/// By the beginning of the name from `claude` on; the first that fits counts. Sources:
/// <https://docs.anthropic.com/en/docs/about-claude/models/overview>,
/// <https://docs.anthropic.com/en/docs/build-with-claude/adaptive-thinking>,
/// <https://docs.anthropic.com/en/docs/build-with-claude/structured-outputs>.
const KNOWN: [(&str, Traits); 15] = [
    ("claude-3-7", BUDGET),
    ("claude-3-5", Traits { max_tokens: 8_192, ..OLD }),
    ("claude-3", OLD),
    ("claude-2", OLD),
    ("claude-instant", OLD),
    ("claude-opus-4-1", Traits { output_schema: true, ..BUDGET }),
    ("claude-opus-4-5", Traits { output_schema: true, ..BUDGET }),
    ("claude-sonnet-4-5", Traits { output_schema: true, ..BUDGET }),
    ("claude-haiku-4-5", Traits { output_schema: true, ..BUDGET }),
    ("claude-opus-4-6", ADAPTIVE),
    ("claude-sonnet-4-6", ADAPTIVE),
    ("claude-opus-4-2", BUDGET),
    ("claude-sonnet-4-2", BUDGET),
    ("claude-mythos", Traits { thinking: Thinking::Always, sampling: false, ..ADAPTIVE }),
    ("claude-fable", Traits { thinking: Thinking::Always, sampling: false, ..ADAPTIVE }),
];

/// Names without a date or a minor version, and with the version before the family, as some gateways write them.
const UNDATED: [(&str, Traits); 9] = [
    ("claude-opus-4-0", BUDGET),
    ("claude-sonnet-4-0", BUDGET),
    ("claude-4-0", BUDGET),
    ("claude-4-1", Traits { output_schema: true, ..BUDGET }),
    ("claude-4-5", Traits { output_schema: true, ..BUDGET }),
    ("claude-4-6", ADAPTIVE),
    ("claude-4-opus", BUDGET),
    ("claude-4-sonnet", BUDGET),
    ("claude-", Traits { thinking: Thinking::Adaptive, sampling: false, output_schema: true, max_tokens: 16_384 }),
];

/// Whole names of the first models of a generation, which name no minor version. What may follow is no number.
const BARE: [&str; 2] = ["claude-opus-4", "claude-sonnet-4"];

/// A model of somebody else.
const OTHER: Traits = Traits { max_tokens: 8_192, ..BUDGET };

impl Traits {
    /// Gateways put their own words before a name, and write versions with a dot, Vertex with an `@`.
    pub(super) fn of(model: &str) -> Self {
        let Some(at) = model.find("claude-") else { return OTHER };
        let name = model[at..].replace(['.', '@'], "-");
        let is_bare = |rest: &str| !rest.trim_start_matches('-').starts_with(|first: char| first.is_ascii_digit());
        if BARE.iter().filter_map(|bare| name.strip_prefix(bare)).any(is_bare) {
            return BUDGET;
        }
        KNOWN.iter().chain(&UNDATED).find(|(start, _)| name.starts_with(start)).map_or(OTHER, |(_, traits)| *traits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_sorts() {
        for (name, thinking, max_tokens) in [
            ("claude-3-haiku-20240307", Thinking::No, 4_096),
            ("claude-3-5-sonnet-latest", Thinking::No, 8_192),
            ("claude-3-7-sonnet-20250219", Thinking::Budget, 16_384),
            ("claude-sonnet-4-20250514", Thinking::Budget, 16_384),
            ("claude-sonnet-4-5", Thinking::Budget, 16_384),
            ("anthropic/claude-opus-4.6", Thinking::Adaptive, 16_384),
            ("us.anthropic.claude-opus-4-7-v1:0", Thinking::Adaptive, 16_384),
            ("claude-opus-5", Thinking::Adaptive, 16_384),
            ("claude-fable-5", Thinking::Always, 16_384),
            ("kimi-k2", Thinking::Budget, 8_192),
            ("claude-sonnet-4", Thinking::Budget, 16_384),
            ("claude-opus-4@20250514", Thinking::Budget, 16_384),
            ("claude-sonnet-4-5@20250929", Thinking::Budget, 16_384),
            ("anthropic/claude-sonnet-4:thinking", Thinking::Budget, 16_384),
            ("claude-4-sonnet", Thinking::Budget, 16_384),
            ("claude-4.6-opus", Thinking::Adaptive, 16_384),
            ("claude-opus-4-7@20260401", Thinking::Adaptive, 16_384),
        ] {
            let traits = Traits::of(name);
            assert_eq!((traits.thinking, traits.max_tokens), (thinking, max_tokens), "{name}");
        }
        assert!(Traits::of("claude-opus-4-6").sampling && !Traits::of("claude-opus-4-7").sampling);
        assert!(!Traits::of("claude-sonnet-4-20250514").output_schema && Traits::of("claude-sonnet-4-5").output_schema);
    }
}
