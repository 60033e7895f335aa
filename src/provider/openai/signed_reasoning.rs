//! Signed and encrypted reasoning, which goes back unchanged: OpenRouter's reasoning details and LiteLLM's thinking blocks.
//!
//! Protocol: <https://openrouter.ai/docs/use-cases/reasoning-tokens>.

use serde_json::{Value, json};

use crate::domain::model::ModelEvent;
use crate::provider::stream::AnswerAssembler;

#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    pub(super) field: &'static str,
    /// Returns the name of the text field for a type of piece. Encrypted pieces have none.
    words: fn(Option<&str>) -> Option<&'static str>,
}

/// OpenRouter's reasoning details; MiniMax omits the type.
pub(super) const OPENROUTER: Form = Form {
    field: "reasoning_details",
    words: |kind| match kind {
        Some("reasoning.text") | None => Some("text"),
        Some("reasoning.summary") => Some("summary"),
        Some(_) => None,
    },
};

/// LiteLLM's thinking blocks: <https://docs.litellm.ai/docs/reasoning_content>.
pub(super) const LITELLM: Form = Form {
    field: "thinking_blocks",
    words: |kind| match kind {
        Some("thinking") | None => Some("thinking"),
        Some(_) => None,
    },
};

impl Form {
    /// Returns the text of the pieces, for providers without another field for it.
    pub(super) fn text(self, pieces: &[Value]) -> String {
        pieces.iter().filter_map(|piece| self.piece_text(piece)).collect()
    }

    fn name(self, piece: &Value) -> Option<&'static str> {
        let name = (self.words)(piece.get("type").and_then(Value::as_str))?;
        (piece.get("type").is_some() || piece.get(name).is_some()).then_some(name)
    }

    fn piece_text(self, piece: &Value) -> Option<&str> {
        piece.get(self.name(piece)?)?.as_str()
    }

    /// Joins a piece with the previous one, or returns it if it does not continue that one. Encrypted pieces are complete.
    fn join(self, last: &mut Value, piece: Value) -> Option<Value> {
        let is_blank = |value: Option<&Value>| value.is_none_or(|value| value.is_null() || value == "");
        let continues = self.name(last).is_some()
            && self.name(last) == self.name(&piece)
            && last.get("index") == piece.get("index")
            // A signature ends the signed text.
            && is_blank(last.get("signature"));
        let (true, Some(name), Value::Object(fields), Some(known)) = (continues, self.name(&piece), &piece, last.as_object_mut())
        else {
            return Some(piece);
        };
        let is_signed = !is_blank(fields.get("signature"));
        for (field, value) in fields {
            match (known.get_mut(field), value) {
                (Some(Value::String(words)), Value::String(more)) if field == name => match more.strip_prefix(words.as_str()) {
                    // With the signature, some gateways repeat the complete signed text.
                    Some(rest) if is_signed => words.push_str(rest),
                    Some(_) | None => words.push_str(more),
                },
                (Some(Value::String(blank)), value) if blank.is_empty() => {
                    known.insert(field.clone(), value.clone());
                }
                (Some(Value::Null) | None, value) => {
                    known.insert(field.clone(), value.clone());
                }
                (Some(_), _) => {}
            }
        }
        None
    }
}

/// The joined pieces that were not emitted yet.
#[derive(Debug)]
pub(super) struct Details {
    form: Form,
    list: Vec<Value>,
}

impl Details {
    pub(super) fn new(form: Form) -> Self {
        Self { form, list: Vec::new() }
    }

    /// Returns the new text of the pieces. A signed piece may repeat earlier ones.
    pub(super) fn new_text(&self, pieces: &[Value]) -> String {
        let known = self.list.last().and_then(|last| self.form.piece_text(last)).unwrap_or_default();
        let new_text = pieces.iter().filter_map(|piece| {
            let piece_text = self.form.piece_text(piece)?;
            let is_signed = piece.get("signature").and_then(Value::as_str).is_some_and(|signature| !signature.is_empty());
            Some(piece_text.strip_prefix(known).filter(|_| is_signed).unwrap_or(piece_text))
        });
        new_text.collect()
    }

    pub(super) fn take(&mut self, pieces: Vec<Value>) {
        for piece in pieces {
            let piece = match self.list.last_mut() {
                Some(last) => match self.form.join(last, piece) {
                    Some(piece) => piece,
                    None => continue,
                },
                None => piece,
            };
            self.list.push(piece);
        }
    }

    /// Emits the pieces, because the reasoning or the answer has ended.
    pub(super) fn emit(&mut self, answer: &mut AnswerAssembler) {
        if !self.list.is_empty() {
            answer.emit(ModelEvent::ReasoningBlock(json!({ self.form.field: std::mem::take(&mut self.list) })));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_joined_and_what_is_encrypted_is_kept() {
        let mut details = Details::new(OPENROUTER);
        let text = |text: &str, index: u8| json!({"type": "reasoning.text", "text": text, "index": index, "format": "f"});
        details.take(vec![text("Let ", 0), text("me", 0)]);
        details.take(vec![json!({"type": "reasoning.text", "signature": "sig==", "index": 0})]);
        details.take(vec![text("again", 1), json!({"type": "reasoning.encrypted", "data": "AA==", "index": 1})]);
        details.take(vec![json!({"type": "reasoning.encrypted", "data": "BB==", "index": 1})]);
        let mut answer = AnswerAssembler::new(None, 0);
        details.emit(&mut answer);
        details.emit(&mut answer);
        let expected = json!({"reasoning_details": [
            {"type": "reasoning.text", "text": "Let me", "index": 0, "format": "f", "signature": "sig=="},
            text("again", 1),
            {"type": "reasoning.encrypted", "data": "AA==", "index": 1},
            {"type": "reasoning.encrypted", "data": "BB==", "index": 1}]});
        assert_eq!(answer.events(), &[ModelEvent::ReasoningBlock(expected)]);
    }

    #[test]
    fn a_signed_block_may_repeat_what_it_signs() {
        let block = |thinking: &str, signature: &str| json!({"type": "thinking", "thinking": thinking, "signature": signature});
        for last in ["", " me"] {
            let mut details = Details::new(LITELLM);
            details.take(vec![block("Let", "")]);
            details.take(vec![json!({"type": "thinking", "thinking": " me"})]);
            let signed = vec![block(if last.is_empty() { "" } else { "Let me see" }, "sig==")];
            assert_eq!(details.new_text(&signed), if last.is_empty() { "" } else { " see" });
            details.take(signed);
            details.take(vec![json!({"type": "redacted_thinking", "data": "AA=="}), block("More", "other")]);
            let mut answer = AnswerAssembler::new(None, 0);
            details.emit(&mut answer);
            let whole = if last.is_empty() { "Let me" } else { "Let me see" };
            let expected = [block(whole, "sig=="), json!({"type": "redacted_thinking", "data": "AA=="}), block("More", "other")];
            assert_eq!(answer.events(), &[ModelEvent::ReasoningBlock(json!({ "thinking_blocks": expected }))]);
        }
    }
}
