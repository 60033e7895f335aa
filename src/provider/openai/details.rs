//! Signed and encrypted reasoning, which goes back unchanged: `OpenRouter`'s reasoning details and `LiteLLM`'s thinking blocks.
//!
//! Facts about the wire: <https://openrouter.ai/docs/use-cases/reasoning-tokens>.

use serde_json::{Value, json};

use crate::domain::model::ModelEvent;
use crate::provider::stream::AnswerAssembler;

#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    pub(super) field: &'static str,
    /// Returns the text field of a piece by its type. Encrypted pieces have none.
    words: fn(Option<&str>) -> Option<&'static str>,
}

/// `OpenRouter`'s; `MiniMax` names no type.
pub(super) const OPENROUTER: Form = Form {
    field: "reasoning_details",
    words: |kind| match kind {
        Some("reasoning.text") | None => Some("text"),
        Some("reasoning.summary") => Some("summary"),
        Some(_) => None,
    },
};

/// `LiteLLM`'s: <https://docs.litellm.ai/docs/reasoning_content>.
pub(super) const LITELLM: Form = Form {
    field: "thinking_blocks",
    words: |kind| match kind {
        Some("thinking") | None => Some("thinking"),
        Some(_) => None,
    },
};

impl Form {
    /// Returns the text of the pieces, for providers that send it nowhere else.
    pub(super) fn words(self, pieces: &[Value]) -> String {
        pieces.iter().filter_map(|piece| self.said(piece)).collect()
    }

    fn name(self, piece: &Value) -> Option<&'static str> {
        let name = (self.words)(piece.get("type").and_then(Value::as_str))?;
        (piece.get("type").is_some() || piece.get(name).is_some()).then_some(name)
    }

    fn said(self, piece: &Value) -> Option<&str> {
        piece.get(self.name(piece)?)?.as_str()
    }

    /// Joins a piece with the one before, or returns it if it does not continue that one. Encrypted pieces come whole.
    fn join(self, last: &mut Value, piece: Value) -> Option<Value> {
        let is_blank = |value: Option<&Value>| value.is_none_or(|value| value.is_null() || value == "");
        let continues = self.name(last).is_some()
            && self.name(last) == self.name(&piece)
            && last.get("index") == piece.get("index")
            // A signature ends what it signs.
            && is_blank(last.get("signature"));
        let (true, Some(name), Value::Object(fields), Some(known)) = (continues, self.name(&piece), &piece, last.as_object_mut())
        else {
            return Some(piece);
        };
        let is_signed = !is_blank(fields.get("signature"));
        for (field, value) in fields {
            match (known.get_mut(field), value) {
                (Some(Value::String(words)), Value::String(more)) if field == name => match more.strip_prefix(words.as_str()) {
                    // With the signature, some gateways repeat all that it signs.
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

    /// Returns the new text of the pieces. A signed one may repeat the pieces before it.
    pub(super) fn news(&self, pieces: &[Value]) -> String {
        let known = self.list.last().and_then(|last| self.form.said(last)).unwrap_or_default();
        let news = pieces.iter().filter_map(|piece| {
            let said = self.form.said(piece)?;
            let is_signed = piece.get("signature").and_then(Value::as_str).is_some_and(|signature| !signature.is_empty());
            Some(said.strip_prefix(known).filter(|_| is_signed).unwrap_or(said))
        });
        news.collect()
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

    /// Emits the pieces, as the reasoning or the answer is over.
    pub(super) fn pass_on(&mut self, answer: &mut AnswerAssembler) {
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
        details.pass_on(&mut answer);
        details.pass_on(&mut answer);
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
            assert_eq!(details.news(&signed), if last.is_empty() { "" } else { " see" });
            details.take(signed);
            details.take(vec![json!({"type": "redacted_thinking", "data": "AA=="}), block("More", "other")]);
            let mut answer = AnswerAssembler::new(None, 0);
            details.pass_on(&mut answer);
            let whole = if last.is_empty() { "Let me" } else { "Let me see" };
            let expected = [block(whole, "sig=="), json!({"type": "redacted_thinking", "data": "AA=="}), block("More", "other")];
            assert_eq!(answer.events(), &[ModelEvent::ReasoningBlock(json!({ "thinking_blocks": expected }))]);
        }
    }
}
