//! What is known of the models, as data. A model that is not listed is taken for a new one of Anthropic if its name says so,
//! and else for one of another provider that speaks this wire.

/// How a model is told to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Thinking {
    /// It cannot.
    No,
    /// By a budget of tokens.
    Budget,
    /// By an effort. It decides itself how much that is, and does not think if it is not told to.
    Adaptive,
    /// By an effort, and it thinks unless it is told not to.
    OnByDefault,
    /// By an effort, and it can be told to think between its calls alone, but not to stop altogether.
    BetweenTools,
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
    /// Whether it refuses its own thoughts where anything before them has changed, unless it is asked to overlook them.
    pub(super) binds_thoughts: bool,
    /// The output limit if the caller names none: the wire wants one.
    pub(super) max_tokens: u32,
}

const OLD: Traits =
    Traits { thinking: Thinking::No, sampling: true, output_schema: false, binds_thoughts: false, max_tokens: 4_096 };
const BUDGET: Traits = Traits { thinking: Thinking::Budget, max_tokens: 16_384, ..OLD };
/// Its answers have 32,000 tokens at most, the greatest budget for thoughts included.
const BUDGET_OPUS: Traits = Traits { max_tokens: 15_616, ..BUDGET };
const ADAPTIVE: Traits = Traits { thinking: Thinking::Adaptive, output_schema: true, ..BUDGET };
const ADAPTIVE_ALONE: Traits = Traits { sampling: false, ..ADAPTIVE };
/// Its thoughts are a part of the limit.
const FIFTH: Traits = Traits { thinking: Thinking::OnByDefault, max_tokens: 32_000, ..ADAPTIVE_ALONE };
const FABLE: Traits = Traits { thinking: Thinking::Always, ..FIFTH };
const NEWEST: Traits = Traits { binds_thoughts: true, ..FABLE };

/// By the beginning of the name from `claude` on; the first that fits counts. Sources:
/// <https://platform.claude.com/docs/en/about-claude/models/overview>,
/// <https://platform.claude.com/docs/en/build-with-claude/adaptive-thinking>,
/// <https://platform.claude.com/docs/en/build-with-claude/preserved-thinking>,
/// <https://platform.claude.com/docs/en/build-with-claude/structured-outputs>.
const KNOWN: [(&str, Traits); 18] = [
    ("claude-3-7", BUDGET),
    ("claude-3-5", Traits { max_tokens: 8_192, ..OLD }),
    ("claude-3", OLD),
    ("claude-2", OLD),
    ("claude-instant", OLD),
    ("claude-opus-4-1", Traits { output_schema: true, ..BUDGET_OPUS }),
    ("claude-opus-4-5", Traits { output_schema: true, ..BUDGET }),
    ("claude-sonnet-4-5", Traits { output_schema: true, ..BUDGET }),
    ("claude-haiku-4-5", Traits { output_schema: true, ..BUDGET }),
    ("claude-opus-4-6", ADAPTIVE),
    ("claude-sonnet-4-6", ADAPTIVE),
    ("claude-opus-4-7", ADAPTIVE_ALONE),
    ("claude-opus-4-8", ADAPTIVE_ALONE),
    ("claude-sonnet-5-5", Traits { thinking: Thinking::BetweenTools, ..NEWEST }),
    ("claude-mythos", FABLE),
    // The version before the family, as some gateways write them.
    ("claude-4-1", Traits { output_schema: true, ..BUDGET_OPUS }),
    ("claude-4-7", ADAPTIVE_ALONE),
    ("claude-4-8", ADAPTIVE_ALONE),
];

/// Names without a date or a minor version, and with the version before the family.
const UNDATED: [(&str, Traits); 10] = [
    ("claude-opus-4-0", BUDGET_OPUS),
    ("claude-sonnet-4-0", BUDGET),
    ("claude-4-0", BUDGET_OPUS),
    ("claude-4-5", Traits { output_schema: true, ..BUDGET }),
    ("claude-4-6", ADAPTIVE),
    ("claude-4-opus", BUDGET_OPUS),
    ("claude-4-sonnet", BUDGET),
    ("claude-5-opus", FIFTH),
    ("claude-5-sonnet", FIFTH),
    ("claude-", NEWEST),
];

/// Whole names of the first models of a generation, which name no minor version. What may follow is a date, or no number.
const BARE: [(&str, Traits); 5] = [
    ("claude-opus-4", BUDGET_OPUS),
    ("claude-sonnet-4", BUDGET),
    ("claude-opus-5", FIFTH),
    ("claude-sonnet-5", FIFTH),
    ("claude-fable-5", FABLE),
];

/// A model of somebody else.
const OTHER: Traits = Traits { max_tokens: 8_192, ..BUDGET };

impl Traits {
    /// Gateways put their own words before a name, and write versions with a dot, Vertex with an `@`.
    pub(super) fn of(model: &str) -> Self {
        let Some(at) = model.find("claude-") else { return OTHER };
        let name = model[at..].replace(['.', '@'], "-");
        let is_whole = |rest: &str| {
            let digits = rest.trim_start_matches('-').bytes().take_while(u8::is_ascii_digit).count();
            digits == 0 || digits == 8
        };
        let bare = BARE.iter().find(|(bare, _)| name.strip_prefix(bare).is_some_and(is_whole));
        let listed = || KNOWN.iter().chain(&UNDATED).find(|(start, _)| name.starts_with(start));
        bare.or_else(listed).map_or(OTHER, |(_, traits)| *traits)
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
            ("claude-opus-5", Thinking::OnByDefault, 32_000),
            ("claude-opus-5-20260724", Thinking::OnByDefault, 32_000),
            ("us.anthropic.claude-sonnet-5-v1:0", Thinking::OnByDefault, 32_000),
            ("anthropic/claude-4.7-opus", Thinking::Adaptive, 16_384),
            ("claude-5-sonnet", Thinking::OnByDefault, 32_000),
            ("claude-opus-5-5", Thinking::Always, 32_000),
            ("anthropic/claude-sonnet-5.5", Thinking::BetweenTools, 32_000),
            ("claude-haiku-5-5", Thinking::Always, 32_000),
            ("claude-opus-6", Thinking::Always, 32_000),
            ("claude-fable-5", Thinking::Always, 32_000),
            ("kimi-k2", Thinking::Budget, 8_192),
            ("claude-sonnet-4", Thinking::Budget, 16_384),
            ("claude-opus-4@20250514", Thinking::Budget, 15_616),
            ("claude-opus-4-1-20250805", Thinking::Budget, 15_616),
            ("claude-opus-4-5", Thinking::Budget, 16_384),
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
        for (name, binds) in [
            ("claude-opus-5", false),
            ("claude-fable-5", false),
            ("claude-mythos-5-1", false),
            ("claude-fable-5-1", true),
            ("claude-fable-5-20260609", false),
            ("claude-opus-5-5", true),
            ("claude-sonnet-5-5-20260922", true),
        ] {
            assert_eq!(Traits::of(name).binds_thoughts, binds, "{name}");
        }
    }
}
