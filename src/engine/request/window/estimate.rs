//! The cost of a request in its budget: counted if a tokenizer is known, else estimated. Estimates are high, because a request that is too
//! large costs a failed call.

use serde_json::Value;

use crate::domain::conversation::{Message, Part, ToolContent};
use crate::domain::model::ModelRequest;
use crate::domain::run::ContextUnit;
use crate::domain::run::context::{json_tokens, prose_tokens};
use crate::engine::request::request_source::RequestSource;
use crate::engine::request::size;
use crate::engine::request::size::Length;
use crate::support::tokens::Tokenizer;

/// The tokens of a message in addition to its parts, and of a call in addition to its name and arguments.
const MESSAGE: u64 = 4;
const CALL: u64 = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Counts characters.
    Chars,
    /// Estimates tokens by bytes.
    Estimate,
    /// Counts tokens of texts; estimates those of images and files.
    Count(Tokenizer),
}

impl Measure {
    pub fn of(source: &RequestSource<'_>) -> Self {
        match (source.record.profile.context.unit, source.capacity().tokenizer) {
            (ContextUnit::Chars, _) => Self::Chars,
            (ContextUnit::Tokens, None) => Self::Estimate,
            (ContextUnit::Tokens, Some(tokenizer)) => Self::Count(tokenizer),
        }
    }

    pub fn tokenizer(self) -> Option<Tokenizer> {
        match self {
            Self::Count(tokenizer) => Some(tokenizer),
            Self::Chars | Self::Estimate => None,
        }
    }

    fn prose(self, text: &str) -> u64 {
        match self {
            Self::Chars => text.chars().count() as u64,
            Self::Estimate => prose_tokens(text.len()),
            Self::Count(tokenizer) => tokenizer.count(text),
        }
    }

    /// Returns the cost of JSON, and of texts beside it.
    fn json(self, words: &[&str], value: &Value) -> u64 {
        let words_in = |count: fn(&str) -> usize| words.iter().map(|word| count(word)).sum::<usize>();
        match self {
            Self::Chars => (words_in(|word| word.chars().count()) + size::json(value).chars) as u64,
            Self::Estimate => json_tokens(words_in(str::len) + size::json(value).bytes),
            Self::Count(tokenizer) => {
                words.iter().map(|word| tokenizer.count(word)).sum::<u64>() + tokenizer.count(&value.to_string())
            }
        }
    }

    /// Returns the cost of provider data. It is always estimated: most of it is encrypted, and a tokenizer would count three times what the
    /// provider counts.
    fn provider_data(self, raw: Option<&Value>) -> u64 {
        let Length { bytes, chars } = size::provider_data(raw);
        match self {
            Self::Chars => chars as u64,
            Self::Estimate | Self::Count(_) => json_tokens(bytes),
        }
    }

    fn head(self, tokens: u64) -> u64 {
        match self {
            Self::Chars => 0,
            Self::Estimate | Self::Count(_) => tokens,
        }
    }

    fn length(self, length: Length) -> u64 {
        match self {
            Self::Chars => length.chars as u64,
            Self::Estimate | Self::Count(_) => prose_tokens(length.bytes),
        }
    }
}

pub fn request(measure: Measure, frame_of: &ModelRequest, messages_of: &[Message]) -> u64 {
    frame(measure, frame_of).saturating_add(messages(measure, messages_of))
}

/// Returns the cost of the system prompt, the tools and the output schema.
pub fn frame(measure: Measure, request: &ModelRequest) -> u64 {
    let tools = request.tools.iter();
    let tools = tools.map(|tool| measure.json(&[&tool.name, &tool.description], &tool.parameters));
    let schema = request.options.output_schema.as_ref().map_or(0, |schema| measure.json(&[], &schema.schema));
    measure.prose(&request.system).saturating_add(tools.sum()).saturating_add(schema)
}

pub fn messages(measure: Measure, messages: &[Message]) -> u64 {
    messages.iter().map(|one| message(measure, one)).sum()
}

pub fn message(measure: Measure, message: &Message) -> u64 {
    measure.head(MESSAGE) + message.parts.iter().map(|one| part(measure, one)).sum::<u64>()
}

fn part(measure: Measure, part: &Part) -> u64 {
    match part {
        Part::Text(text) => measure.prose(&text.text),
        Part::Reasoning(reasoning) => measure.prose(size::text_beside(reasoning)) + measure.provider_data(reasoning.raw.as_ref()),
        Part::ToolCall(call) => {
            measure.head(CALL) + measure.json(&[&call.name], &call.arguments) + measure.provider_data(call.raw.as_ref())
        }
        Part::ToolResult(result) => result.content.iter().map(|one| content(measure, one)).sum(),
        Part::Image(file) | Part::File(file) => measure.length(size::file(file)),
        Part::Source(_) => 0,
    }
}

pub fn picture(measure: Measure) -> u64 {
    measure.length(Length { bytes: size::IMAGE, chars: size::IMAGE })
}

/// Returns the cost of a tool result: as JSON if it begins like JSON, else as prose.
pub fn content(measure: Measure, content: &ToolContent) -> u64 {
    match content {
        ToolContent::Text { text } if measure == Measure::Estimate && text.trim_start().starts_with(['{', '[']) => {
            json_tokens(text.len())
        }
        ToolContent::Text { text } => measure.prose(text),
        ToolContent::Image(_) => picture(measure),
        ToolContent::File(file) => measure.prose(&file.note("file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::conversation::message::{FilePart, ReasoningPart, TextLimit, ToolCallPart};
    use crate::domain::ids::{CallId, PartId};
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case(Measure::Estimate, "", 0)]
    #[case(Measure::Estimate, "0123456789abcdef", 5)]
    #[case(Measure::Estimate, "0123456789abcdef0", 6)]
    #[case(Measure::Estimate, "\u{e9}\u{e9}", 2)]
    #[case(Measure::Chars, "\u{e9}\u{e9}", 2)]
    #[case(Measure::Count(Tokenizer::O200kBase), "hello world", 2)]
    fn words_cost_a_token_for_3_2_bytes_where_they_are_not_counted(
        #[case] measure: Measure,
        #[case] text: &str,
        #[case] cost: u64,
    ) {
        assert_eq!(measure.prose(text), cost);
    }

    #[rstest]
    #[case("[4,5,6,7,8,9]", 5)]
    #[case("{4,5,6,7,8,9, 0}", 6)]
    #[case("4,5,6,7,8,9,0,1,", 5)]
    fn json_costs_a_token_for_2_8_bytes(#[case] text: &str, #[case] cost: u64) {
        assert_eq!(content(Measure::Estimate, &ToolContent::text(text)), cost);
    }

    #[test]
    fn a_budget_of_characters_counts_those_of_calls_too() {
        let cost = |text: &str| Measure::Chars.json(&[text], &serde_json::json!({ "text": text }));
        assert_eq!(cost(&"\u{6c49}".repeat(100)), cost(&"a".repeat(100)));
    }

    #[rstest]
    #[case::sealed("", json!({ "encrypted_content": "A".repeat(2_800) }), 1_009)]
    #[case::said_twice("words of a thought", json!({ "text": "words of a thought", "data": "A".repeat(2_800) }), 1_014)]
    #[case::signed("0123456789abcdef", json!({ "signature": "A".repeat(2_800) }), 1_011)]
    fn thoughts_cost_what_goes_back_of_them(#[case] text: &str, #[case] raw: Value, #[case] cost: u64) {
        let reasoning =
            Part::Reasoning(ReasoningPart { id: PartId::from_stored("part_1".to_owned()), text: text.to_owned(), raw: Some(raw) });
        let estimated = part(Measure::Estimate, &reasoning);
        assert!(estimated.abs_diff(cost) <= 2, "{estimated}");
        let chars = part(Measure::Chars, &reasoning);
        assert!(chars.abs_diff(estimated * 14 / 5) <= 10, "{chars}");
        // No tokenizer can count encrypted reasoning, so that text is estimated.
        assert!(part(Measure::Count(Tokenizer::O200kBase), &reasoning).abs_diff(cost) <= 6);
    }

    #[test]
    fn a_call_costs_its_signature_too() {
        let call = |raw| {
            Part::ToolCall(ToolCallPart {
                id: PartId::from_stored("part_1".to_owned()),
                call_id: CallId::from_stored("call_1".to_owned()),
                name: "read".to_owned(),
                arguments: json!({}),
                provider_call_id: None,
                raw,
                undoes: None,
            })
        };
        let raw = json!({ "thoughtSignature": "A".repeat(2_779) });
        let length = size::json(&raw).chars as u64;
        for (measure, cost) in [(Measure::Chars, length), (Measure::Estimate, json_tokens(size::json(&raw).bytes))] {
            assert_eq!(part(measure, &call(Some(raw.clone()))), part(measure, &call(None)) + cost);
        }
    }

    fn file(media_type: &str) -> FilePart {
        let id = PartId::from_stored("part_1".to_owned());
        FilePart { file_id: Some("file_1".to_owned()), name: Some("a".to_owned()), ..FilePart::of(id, media_type) }
    }

    /// Returns the cost of a file, without its description.
    fn costs(file: FilePart) -> (u64, u64) {
        let around = file.words_around();
        let cost = |measure: Measure| part(measure, &Part::File(file.clone()));
        let without = |cost: u64| cost - around as u64;
        (without(cost(Measure::Chars)), cost(Measure::Estimate) - prose_tokens(around))
    }

    #[rstest]
    #[case::text("text/plain", Some(100), Some(100), (100, 31))]
    #[case::of_three_bytes_a_character("text/plain", Some(40_000), Some(120_000), (40_000, 37_500))]
    #[case::of_before("text/plain", Some(40_000), None, (40_000, 37_500))]
    #[case::document("application/pdf", Some(100_000), Some(100_000), (100_000, 31_250))]
    #[case::nothing("text/plain", None, None, (0, 0))]
    fn a_file_costs_what_its_text_costs(
        #[case] media_type: &str,
        #[case] text_chars: Option<u64>,
        #[case] text_bytes: Option<u64>,
        #[case] expected: (u64, u64),
    ) {
        let (chars, tokens) = expected;
        let (in_chars, in_tokens) = costs(FilePart { text_chars, text_bytes, ..file(media_type) });
        assert_eq!(in_chars, chars);
        assert!(in_tokens.abs_diff(tokens) <= 1, "{in_tokens}");
    }

    #[rstest]
    #[case("application/pdf", Some(10))]
    #[case("image/png", None)]
    fn visible_file_costs_as_much_as_an_image(#[case] media_type: &str, #[case] text_chars: Option<u64>) {
        let file = Part::File(FilePart { text_chars, ..file(media_type) });
        assert_eq!((part(Measure::Chars, &file), part(Measure::Estimate, &file)), (6_000, 1_875));
    }

    #[test]
    fn remaining_file_tokens_are_counted() {
        let text_limit = Some(TextLimit { chars: 100, bytes: 320 });
        let file = FilePart { text_chars: Some(9_000), text_bytes: Some(27_000), text_limit, ..file("application/pdf") };
        let (chars, tokens) = costs(file);
        assert!(chars == 100 && tokens.abs_diff(100) <= 1, "{chars} {tokens}");
    }
}
