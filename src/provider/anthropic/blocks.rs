//! Assembles the content blocks of an answer.
//!
//! Blocks may interleave by index. Events of text and reasoning have no index, so a block waits until all text and reasoning blocks
//! before it have ended. Events of a call have an index, so a call delays no other block.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::wire::{Block, Delta};
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent};
use crate::provider::stream::AnswerAssembler;
use crate::provider::stream::lenient::{json_text, storable_text};

/// A limit above the number of blocks in any real answer.
const MAX_BLOCKS: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Blocks {
    blocks: Vec<Open>,
    /// The first block that may still emit text or reasoning. Later blocks wait.
    front: usize,
    /// Whether reasoning was emitted that no reasoning block has closed yet.
    is_reasoning_open: bool,
}

#[derive(Debug)]
struct Open {
    index: i64,
    kind: Kind,
    is_stopped: bool,
    waiting: Vec<ModelEvent>,
}

#[derive(Debug)]
enum Kind {
    Text,
    Thinking {
        signature: String,
    },
    Call {
        at: usize,
        initial_arguments: String,
        arguments: String,
    },
    /// Ignored content: of the provider's own tools, and of kinds that are newer than this code.
    Other,
}

fn violation(contradiction: &str) -> ModelError {
    ModelError::new(ModelErrorKind::BadStream, &format!("the answer contradicts itself: {contradiction}"))
}

impl Blocks {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.iter().all(|block| matches!(block.kind, Kind::Other))
    }

    pub(super) fn all_stopped(&self) -> bool {
        self.blocks.iter().all(|block| block.is_stopped || matches!(block.kind, Kind::Other))
    }

    /// Returns whether each call is complete: its block has ended, or its arguments are complete.
    pub(super) fn calls_are_complete(&self) -> bool {
        self.blocks.iter().all(|block| match &block.kind {
            Kind::Call { arguments, .. } => block.is_stopped || arguments.is_empty() || is_json(arguments),
            Kind::Text | Kind::Thinking { .. } | Kind::Other => true,
        })
    }

    pub(super) fn all_calls_parse(&self) -> bool {
        self.blocks.iter().all(|block| match &block.kind {
            Kind::Call { arguments, initial_arguments, .. } if arguments.is_empty() => {
                initial_arguments.is_empty() || is_json(initial_arguments)
            }
            Kind::Call { arguments, .. } => is_json(arguments),
            Kind::Text | Kind::Thinking { .. } | Kind::Other => true,
        })
    }

    pub(super) fn start(&mut self, index: Option<i64>, block: Block<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        let index = index.unwrap_or_else(|| self.next_index());
        match &*block.kind.0 {
            "text" => {
                answer.add_sources(&block.citations);
                let at = self.open(index, Kind::Text)?;
                self.emit_text(at, ModelEvent::Text, block.text.0, answer);
            }
            "thinking" => {
                let at = self.open(index, Kind::Thinking { signature: block.signature.0.into_owned() })?;
                // Begins a new part, even if the previous reasoning was never signed.
                self.emit(at, ModelEvent::ReasoningBlock(Value::Null), answer);
                self.emit_text(at, ModelEvent::Reasoning, block.thinking.0, answer);
            }
            "redacted_thinking" => {
                let at = self.open(index, Kind::Other)?;
                self.emit(at, ModelEvent::ReasoningBlock(Value::Null), answer);
                self.emit(at, ModelEvent::ReasoningBlock(json!({ "data": block.data.0 })), answer);
            }
            "tool_use" => {
                if block.name.0.is_empty() {
                    return Err(violation("a tool call has no name"));
                }
                let initial_arguments = block.input.map(json_text).filter(|text| !is_nothing(text)).unwrap_or_default();
                let call = answer.open_call()?;
                let at = self.open(index, Kind::Call { at: call, initial_arguments, arguments: String::new() })?;
                let (provider_call_id, name) = (storable_text(block.id.0), storable_text(block.name.0));
                self.emit(at, ModelEvent::ToolCallStarted { index: call, provider_call_id, name }, answer);
            }
            _ => {
                self.open(index, Kind::Other)?;
            }
        }
        self.advance(answer);
        Ok(())
    }

    pub(super) fn delta(&mut self, index: Option<i64>, delta: Delta<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        let mut known = self.find(index);
        // Some gateways begin one block for reasoning and text together.
        let is_of_another = |at: &usize| {
            let kinds = (&*delta.kind.0, &self.blocks[*at].kind);
            matches!(kinds, ("text_delta", Kind::Thinking { .. }) | ("thinking_delta", Kind::Text))
        };
        if let Some(at) = known.filter(is_of_another) {
            self.end(at, answer);
            self.advance(answer);
            known = None;
        }
        let at = match known {
            Some(at) => at,
            // Some gateways omit the start of a block. A call without a start has no name.
            None => {
                let index = index.unwrap_or_else(|| self.next_index());
                match &*delta.kind.0 {
                    "text_delta" => self.open(index, Kind::Text)?,
                    "thinking_delta" => self.open(index, Kind::Thinking { signature: String::new() })?,
                    "input_json_delta" => return Err(violation("arguments arrived for a call that was not started")),
                    _ => return Ok(()),
                }
            }
        };
        let Open { kind, is_stopped, .. } = &mut self.blocks[at];
        match (&*delta.kind.0, kind) {
            ("text_delta", Kind::Text) => self.emit_text(at, ModelEvent::Text, delta.text.0, answer),
            ("thinking_delta", Kind::Thinking { .. }) => self.emit_text(at, ModelEvent::Reasoning, delta.thinking.0, answer),
            ("signature_delta", Kind::Thinking { signature }) => {
                if !delta.signature.0.is_empty() {
                    *signature = delta.signature.0.into_owned();
                }
            }
            ("input_json_delta", Kind::Call { at: call, arguments, .. }) => {
                let (call, more) = (*call, storable_text(delta.partial_json.0));
                if more.is_empty() {
                    return Ok(());
                }
                if *is_stopped {
                    return Err(violation("arguments arrived for a call that was complete"));
                }
                arguments.push_str(&more);
                self.emit(at, ModelEvent::ToolCallArguments { index: call, delta: more }, answer);
            }
            ("input_json_delta", Kind::Text | Kind::Thinking { .. }) => {
                return Err(violation("arguments arrived for a block that is no call"));
            }
            ("citations_delta", Kind::Text) => answer.add_sources(&delta.citation),
            // Deltas that are newer than this code.
            (_, Kind::Text | Kind::Thinking { .. } | Kind::Call { .. } | Kind::Other) => {}
        }
        Ok(())
    }

    pub(super) fn stop(&mut self, index: Option<i64>, answer: &mut AnswerAssembler) {
        let Some(at) = self.find(index) else { return };
        self.end(at, answer);
        self.advance(answer);
    }

    /// Emits the rest of a complete answer that waited for earlier blocks.
    pub(super) fn finish(&mut self, answer: &mut AnswerAssembler) {
        for at in 0..self.blocks.len() {
            self.end(at, answer);
        }
        self.advance(answer);
    }

    fn find(&self, index: Option<i64>) -> Option<usize> {
        match index {
            Some(index) => self.blocks.iter().rposition(|block| block.index == index),
            None => self.blocks.len().checked_sub(1),
        }
    }

    fn next_index(&self) -> i64 {
        i64::try_from(self.blocks.len()).unwrap_or(i64::MAX)
    }

    fn open(&mut self, index: i64, kind: Kind) -> Result<usize, ModelError> {
        if self.blocks.len() == MAX_BLOCKS {
            return Err(violation(&format!("it has more than {MAX_BLOCKS} blocks")));
        }
        self.blocks.push(Open { index, kind, is_stopped: false, waiting: Vec::new() });
        Ok(self.blocks.len() - 1)
    }

    fn emit_text(&mut self, at: usize, event: fn(String) -> ModelEvent, text: Cow<'_, str>, answer: &mut AnswerAssembler) {
        if !text.is_empty() {
            self.emit(at, event(storable_text(text)), answer);
        }
    }

    fn end(&mut self, at: usize, answer: &mut AnswerAssembler) {
        let block = &mut self.blocks[at];
        if std::mem::replace(&mut block.is_stopped, true) {
            return;
        }
        match &mut block.kind {
            Kind::Thinking { signature } if !signature.is_empty() => {
                let signature = std::mem::take(signature);
                self.emit(at, ModelEvent::ReasoningBlock(json!({ "signature": signature })), answer);
            }
            // The arguments in the start of a block count only if no deltas followed.
            Kind::Call { at: call, initial_arguments, arguments } if arguments.is_empty() && !initial_arguments.is_empty() => {
                let (call, initial_arguments) = (*call, std::mem::take(initial_arguments));
                initial_arguments.clone_into(arguments);
                self.emit(at, ModelEvent::ToolCallArguments { index: call, delta: initial_arguments }, answer);
            }
            Kind::Text | Kind::Thinking { .. } | Kind::Call { .. } | Kind::Other => {}
        }
    }

    /// Emits an event of a block after all earlier blocks have ended.
    fn emit(&mut self, at: usize, event: ModelEvent, answer: &mut AnswerAssembler) {
        if at <= self.front {
            self.pass_on(event, answer);
        } else {
            self.blocks[at].waiting.push(event);
        }
    }

    fn advance(&mut self, answer: &mut AnswerAssembler) {
        while let Some(block) = self.blocks.get(self.front) {
            let holds = match block.kind {
                Kind::Text | Kind::Thinking { .. } => !block.is_stopped,
                Kind::Call { .. } | Kind::Other => false,
            };
            if holds {
                return;
            }
            self.front += 1;
            let waiting = self.blocks.get_mut(self.front).map(|next| std::mem::take(&mut next.waiting));
            for event in waiting.into_iter().flatten() {
                self.pass_on(event, answer);
            }
        }
    }

    fn pass_on(&mut self, event: ModelEvent, answer: &mut AnswerAssembler) {
        match &event {
            ModelEvent::Reasoning(_) => self.is_reasoning_open = true,
            // Marks the start of a block: an empty reasoning block closes unsigned reasoning before it.
            ModelEvent::ReasoningBlock(Value::Null) => {
                if std::mem::take(&mut self.is_reasoning_open) {
                    answer.emit(ModelEvent::ReasoningBlock(json!({})));
                }
                return;
            }
            ModelEvent::Text(_) | ModelEvent::ReasoningBlock(_) | ModelEvent::ToolCallStarted { .. } => {
                self.is_reasoning_open = false;
            }
            _ => {}
        }
        answer.emit(event);
    }
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

fn is_nothing(input: &str) -> bool {
    matches!(input.trim(), "" | "{}" | "null")
}
