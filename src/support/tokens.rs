//! Counts the tokens of a text, for models whose tokenizer is published.
//!
//! Owns the tables of the tokenizers (some 40 MB each, loaded by the first count). Owns a cache of counts, because each model call
//! counts its conversation again, and nearly all of it is unchanged. Must not know which model uses which tokenizer.

use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;

use moka::sync::Cache;
use serde::{Deserialize, Serialize};
use tiktoken_rs::CoreBPE;
use utoipa::ToSchema;

use super::text;

/// The capacity of the cache in counts, which use some 10 MB.
const CACHED_COUNTS: u64 = 65_536;

/// The maximum bytes per call of a tokenizer. Its regular expressions overflow the stack on a million spaces.
const SEGMENT: usize = 16_384;

/// A published tokenizer. Its value is the publisher's name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tokenizer {
    /// OpenAI's models since GPT-4o, gpt-oss included.
    O200kBase,
    /// GPT-4 and GPT-3.5.
    Cl100kBase,
}

impl Tokenizer {
    /// Returns the number of tokens of a text. Control tokens in it count as text, as they do at the providers.
    pub fn count(self, text: &str) -> u64 {
        static COUNTS: LazyLock<Cache<(Tokenizer, usize, u64), u64>> = LazyLock::new(|| Cache::new(CACHED_COUNTS));
        // The hasher has a random key, because an attacker could construct two texts with the same unkeyed hash.
        static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        if text.is_empty() {
            return 0;
        }
        let key = (self, text.len(), HASHER.hash_one(text));
        COUNTS.get_with(key, || segments(text).map(|segment| self.of_segment(segment)).sum())
    }

    /// Returns the text of tokens, or `None` if a number is no token.
    pub fn text_of(self, tokens: &[u32]) -> Option<String> {
        let bytes = self.table().decode_bytes(tokens).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn of_segment(self, segment: &str) -> u64 {
        // The library panics where its regular expressions fail. Counting bytes instead never underestimates, because a token has at least
        // one byte.
        let count = catch_unwind(AssertUnwindSafe(|| self.table().count_ordinary(segment)));
        count.unwrap_or(segment.len()) as u64
    }

    fn table(self) -> &'static CoreBPE {
        match self {
            Self::O200kBase => tiktoken_rs::o200k_base_singleton(),
            Self::Cl100kBase => tiktoken_rs::cl100k_base_singleton(),
        }
    }
}

/// Splits a text into segments that end between a word and a space, where a token also ends. Only a text without such boundaries may have a
/// token cut in two.
fn segments(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let longest = text::prefix(rest, SEGMENT);
        let is_whole = longest.len() == rest.len();
        let is_end = |at: &usize| longest.as_bytes()[*at] == b' ' && longest.as_bytes()[*at - 1].is_ascii_alphanumeric();
        let end = (1..longest.len()).rev().find(is_end).filter(|_| !is_whole).unwrap_or(longest.len());
        let (segment, after) = rest.split_at(end);
        rest = after;
        Some(segment)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    /// Checks the publisher's examples, and counts derived from them.
    #[rstest]
    #[case(Tokenizer::O200kBase, "", 0)]
    #[case(Tokenizer::O200kBase, "antidisestablishmentarianism", 6)]
    #[case(Tokenizer::O200kBase, "2 + 2 = 4", 7)]
    #[case(Tokenizer::O200kBase, "お誕生日おめでとう", 8)]
    #[case(Tokenizer::Cl100kBase, "antidisestablishmentarianism", 6)]
    #[case(Tokenizer::Cl100kBase, "2 + 2 = 4", 7)]
    #[case(Tokenizer::Cl100kBase, "お誕生日おめでとう", 9)]
    #[case::no_control_token(Tokenizer::O200kBase, "<|endoftext|>", 7)]
    fn texts_are_counted_as_their_models_do(#[case] tokenizer: Tokenizer, #[case] text: &str, #[case] count: u64) {
        assert_eq!(tokenizer.count(text), count);
        assert_eq!(tokenizer.count(text), count, "the second time, too");
    }

    /// Texts that overflow the library's regular expressions, or make its merging quadratic.
    #[rstest]
    #[case::spaces(" ")]
    #[case::lines("\n")]
    #[case::mixed(" \n\t\r")]
    #[case::one_word("a")]
    #[case::marks("!")]
    #[case::accents("e\u{301}")]
    #[case::emoji("\u{1f468}\u{200d}")]
    #[case::apostrophes("'s")]
    fn the_worst_texts_are_counted(#[case] piece: &str) {
        let text = piece.repeat((1 << 20) / piece.len());
        let count = Tokenizer::O200kBase.count(&text);
        assert!(count > 0 && count <= text.len() as u64, "{count}");
    }

    #[test]
    fn a_long_text_costs_what_it_costs_at_once() {
        let text = "the quick brown fox jumps over 42 lazy dogs, isn't it?\n".repeat(2_000);
        assert!(text.len() > 6 * SEGMENT);
        assert_eq!(Tokenizer::O200kBase.count(&text), tiktoken_rs::o200k_base_singleton().count_ordinary(&text) as u64);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn segments_are_the_text(
            pieces in prop::collection::vec(prop_oneof!["[a-z]{1,9} ", Just("é".to_owned()), Just(" \n".to_owned()), "\\PC{1,20}"], 0..40),
            times in 1..2_000_usize,
        ) {
            let text = pieces.concat().repeat(times);
            prop_assert!(segments(&text).all(|segment| segment.len() <= SEGMENT && !segment.is_empty()));
            prop_assert_eq!(segments(&text).collect::<String>(), text);
        }
    }
}
