//! What a request costs of its budget: estimates that rather say too much, because a request that is too large costs a call.

use crate::domain::context::{ContextUnit, prose_tokens};
use crate::domain::message::{Message, Part, ToolContent};
use crate::domain::model::ModelRequest;
use crate::engine::size;

/// What a message costs beside its words, and a call beside its arguments, in tokens.
const MESSAGE: u64 = 4;
const CALL: u64 = 10;

/// Words, at 3.2 bytes a token.
pub(super) fn prose(unit: ContextUnit, text: &str) -> u64 {
    match unit {
        ContextUnit::Tokens => prose_tokens(text.len()),
        ContextUnit::Chars => text.chars().count() as u64,
    }
}

/// JSON of so many bytes, at 2.8 bytes a token.
fn json(unit: ContextUnit, bytes: usize) -> u64 {
    match unit {
        ContextUnit::Tokens => (bytes as u64).saturating_mul(5).div_ceil(14),
        ContextUnit::Chars => bytes as u64,
    }
}

/// Instructions and tools, as they are. What the messages come to is not in it.
pub(super) fn frame(unit: ContextUnit, request: &ModelRequest) -> u64 {
    let tools = request.tools.iter();
    let tools = tools.map(|tool| json(unit, tool.name.len() + tool.description.len() + size::json(&tool.parameters)));
    let schema = request.options.output_schema.as_ref().map_or(0, |wanted| json(unit, size::json(&wanted.schema)));
    prose(unit, &request.system).saturating_add(tools.sum()).saturating_add(schema)
}

/// Messages.
pub(super) fn messages(unit: ContextUnit, messages: &[Message]) -> u64 {
    messages.iter().map(|one| message(unit, one)).sum()
}

/// A message.
pub(super) fn message(unit: ContextUnit, message: &Message) -> u64 {
    let head = match unit {
        ContextUnit::Tokens => MESSAGE,
        ContextUnit::Chars => 0,
    };
    head + message.parts.iter().map(|one| part(unit, one)).sum::<u64>()
}

fn part(unit: ContextUnit, part: &Part) -> u64 {
    match part {
        Part::Text(text) => prose(unit, &text.text),
        Part::Reasoning(reasoning) => prose(unit, &reasoning.text),
        Part::ToolCall(call) => {
            let head = match unit {
                ContextUnit::Tokens => CALL,
                ContextUnit::Chars => 0,
            };
            head + json(unit, call.name.len() + size::json(&call.arguments))
        }
        Part::ToolResult(result) => result.content.iter().map(|one| content(unit, one)).sum(),
        Part::Image(file) | Part::File(file) => bytes(unit, size::file(file)),
    }
}

/// What a tool has said: JSON, if it begins like that, and else words.
pub(super) fn content(unit: ContextUnit, content: &ToolContent) -> u64 {
    match content {
        ToolContent::Text { text } if text.trim_start().starts_with(['{', '[']) => json(
            unit,
            match unit {
                ContextUnit::Tokens => text.len(),
                ContextUnit::Chars => text.chars().count(),
            },
        ),
        ToolContent::Text { text } => prose(unit, text),
        ToolContent::Image { .. } => picture(unit),
    }
}

fn picture(unit: ContextUnit) -> u64 {
    bytes(unit, size::PICTURE)
}

fn bytes(unit: ContextUnit, bytes: usize) -> u64 {
    match unit {
        ContextUnit::Tokens => prose_tokens(bytes),
        ContextUnit::Chars => bytes as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::PartId;
    use crate::domain::message::FilePart;
    use rstest::rstest;

    #[rstest]
    #[case(ContextUnit::Tokens, "", 0)]
    #[case(ContextUnit::Tokens, "0123456789abcdef", 5)]
    #[case(ContextUnit::Tokens, "0123456789abcdef0", 6)]
    #[case(ContextUnit::Tokens, "\u{e9}\u{e9}", 2)]
    #[case(ContextUnit::Chars, "\u{e9}\u{e9}", 2)]
    fn words_cost_a_token_for_3_2_bytes(#[case] unit: ContextUnit, #[case] text: &str, #[case] cost: u64) {
        assert_eq!(prose(unit, text), cost);
    }

    #[rstest]
    #[case("[4,5,6,7,8,9]", 5)]
    #[case("{4,5,6,7,8,9, 0}", 6)]
    #[case("4,5,6,7,8,9,0,1,", 5)]
    fn json_costs_a_token_for_2_8_bytes(#[case] text: &str, #[case] cost: u64) {
        assert_eq!(content(ContextUnit::Tokens, &ToolContent::text(text)), cost);
    }

    #[rstest]
    #[case(None, 6_000, 1_875)]
    #[case(Some(10), 6_000, 1_875)]
    #[case(Some(100_000), 100_000, 31_250)]
    fn a_file_costs_what_its_text_costs(#[case] text_chars: Option<u64>, #[case] chars: u64, #[case] tokens: u64) {
        let id = PartId::from_stored("part_1".to_owned());
        let (media_type, file_id) = ("application/pdf".to_owned(), Some("file_1".to_owned()));
        let file = Part::File(FilePart { id, media_type, url: None, file_id, name: None, text_chars, text: None });
        assert_eq!((part(ContextUnit::Chars, &file), part(ContextUnit::Tokens, &file)), (chars, tokens));
    }
}
