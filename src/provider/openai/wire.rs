//! What a provider sends, read without copying. Everything that is not needed is skipped; `null`, absence and the other
//! spellings of nothing are one.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer};
use serde_json::Value;

/// One event of a stream, or a whole answer.
#[derive(Debug, Deserialize)]
pub(super) struct Chunk<'a> {
    #[serde(borrow, default)]
    pub(super) choices: First<'a>,
    #[serde(default)]
    pub(super) usage: Option<Figures>,
    #[serde(default)]
    pub(super) error: Option<Value>,
    /// `error` when the whole event is one, as vLLM sends it.
    #[serde(borrow, default)]
    pub(super) object: Text<'a>,
}

/// The choice with index 0 (or without any); we never ask for more than one.
#[derive(Debug, Default)]
pub(super) struct First<'a>(pub(super) Option<Choice<'a>>);

/// One answer of the model.
#[derive(Debug, Deserialize)]
pub(super) struct Choice<'a> {
    #[serde(default)]
    index: Option<i64>,
    #[serde(borrow, default)]
    pub(super) delta: Option<Delta<'a>>,
    /// In place of `delta` in an answer that is not streamed.
    #[serde(borrow, default)]
    pub(super) message: Option<Delta<'a>>,
    #[serde(borrow, default)]
    pub(super) finish_reason: Text<'a>,
    #[serde(default)]
    pub(super) error: Option<Value>,
    /// Moonshot's figures are here.
    #[serde(default)]
    pub(super) usage: Option<Figures>,
}

/// More of an answer, or all of it.
#[derive(Debug, Deserialize)]
pub(super) struct Delta<'a> {
    #[serde(borrow, default)]
    pub(super) content: Text<'a>,
    #[serde(borrow, default)]
    pub(super) reasoning_content: Text<'a>,
    #[serde(borrow, default)]
    pub(super) reasoning: Text<'a>,
    #[serde(borrow, default)]
    pub(super) refusal: Text<'a>,
    #[serde(borrow, default)]
    pub(super) tool_calls: Option<Vec<Fragment<'a>>>,
}

/// A piece of a tool call. Which call it belongs to is a question of its own: see [`super::calls`].
#[derive(Debug, Default, Deserialize)]
pub(super) struct Fragment<'a> {
    #[serde(default)]
    pub(super) index: Option<i64>,
    #[serde(borrow, default)]
    pub(super) id: Text<'a>,
    #[serde(borrow, default)]
    pub(super) function: Option<Function<'a>>,
}

/// What is called.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Function<'a> {
    #[serde(borrow, default)]
    pub(super) name: Text<'a>,
    #[serde(borrow, default)]
    pub(super) arguments: Arguments<'a>,
}

/// A text. Nothing is the empty text; of a list of content parts the text parts count.
#[derive(Debug, Default)]
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

/// Arguments as text: most providers send a text of JSON, some the JSON itself.
#[derive(Debug, Default)]
pub(super) struct Arguments<'a>(pub(super) Cow<'a, str>);

/// Tokens used.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(super) struct Figures {
    #[serde(default)]
    pub(super) prompt_tokens: Count,
    #[serde(default)]
    pub(super) completion_tokens: Count,
    #[serde(default)]
    pub(super) prompt_tokens_details: Option<PromptDetails>,
    #[serde(default)]
    pub(super) completion_tokens_details: Option<CompletionDetails>,
    /// `DeepSeek`'s name for the cached part.
    #[serde(default)]
    pub(super) prompt_cache_hit_tokens: Count,
}

/// Parts of the input.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(super) struct PromptDetails {
    #[serde(default)]
    pub(super) cached_tokens: Count,
}

/// Parts of the output.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(super) struct CompletionDetails {
    #[serde(default)]
    pub(super) reasoning_tokens: Count,
}

/// A number of tokens, if it is one that can be true.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Count(pub(super) Option<u64>);

/// More tokens than any model takes or gives in one call.
const ABSURD_TOKENS: u64 = 1_000_000_000;

impl<'de: 'a, 'a> Deserialize<'de> for First<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Choices;
        impl<'de> Visitor<'de> for Choices {
            type Value = First<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of choices")
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(First(None))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut choices: A) -> Result<Self::Value, A::Error> {
                let mut first = None;
                while let Some(choice) = choices.next_element::<Choice<'de>>()? {
                    if first.is_none() && choice.index.unwrap_or(0) == 0 {
                        first = Some(choice);
                    }
                }
                Ok(First(first))
            }
        }
        deserializer.deserialize_any(Choices)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct ContentPart<'a> {
            #[serde(borrow, default)]
            text: Text<'a>,
        }

        struct Said;
        impl<'de> Visitor<'de> for Said {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }

            fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text)))
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Text::default())
            }

            fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(number.to_string())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Self::Value, A::Error> {
                let mut text = String::new();
                while let Some(part) = parts.next_element::<ContentPart<'de>>()? {
                    text.push_str(&part.text.0);
                }
                Ok(Text(Cow::Owned(text)))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Text::default())
            }
        }
        deserializer.deserialize_any(Said)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Arguments<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Given;
        impl<'de> Visitor<'de> for Given {
            type Value = Arguments<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("arguments as a text of JSON or as an object")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Arguments(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Arguments(Cow::Owned(text.to_owned())))
            }

            fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
                Ok(Arguments(Cow::Owned(text)))
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Arguments::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let object = Value::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Arguments(Cow::Owned(object.to_string())))
            }
        }
        deserializer.deserialize_any(Given)
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Figures are no reason to lose an answer: what is no number counts as none.
        let number = Value::deserialize(deserializer)?;
        let count = number.as_u64().or_else(|| number.as_f64().filter(|float| *float >= 0.0).map(|float| float as u64));
        Ok(Self(count.filter(|count| *count < ABSURD_TOKENS)))
    }
}
