//! The tool calls of an answer. The name arrives complete, the arguments in pieces; an event completes the call.

use serde_json::{Value, json};

use super::items::ItemRef;
use super::wire::Item;
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent};
use crate::provider::stream::{AnswerAssembler, incomplete};
use crate::support::json::is_same;
use crate::support::text;

#[derive(Debug, Default)]
pub(super) struct Calls {
    calls: Vec<Call>,
}

#[derive(Debug, Default)]
struct Call {
    output: Option<i64>,
    id: String,
    call_id: String,
    name: String,
    arguments: String,
    is_started: bool,
    /// Whether an event has completed the arguments.
    is_whole: bool,
    is_done: bool,
    /// Whether the complete answer has listed the call.
    is_answered: bool,
}

fn ambiguous(why: &str) -> ModelError {
    ModelError::new(ModelErrorKind::BadStream, &format!("an event of a tool call matches no single call: {why}"))
}

impl Calls {
    /// Begins a call. Its arguments arrive later, so the arguments of the item are ignored.
    pub(super) fn begin(&mut self, item_ref: ItemRef<'_>, item: &Item<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        let nameless = self.calls.iter().position(|call| call.name.is_empty() && call.output == item_ref.output);
        let at = match self.with_call_id(&item.call_id.0).or(nameless) {
            Some(at) => at,
            None => self.open(item_ref, answer)?,
        };
        self.store_identity(at, item, answer)
    }

    pub(super) fn piece(&mut self, item_ref: ItemRef<'_>, delta: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        if delta.is_empty() {
            return Ok(());
        }
        let at = self.at(item_ref, answer)?;
        let call = &mut self.calls[at];
        if call.is_whole {
            return Err(ambiguous("arguments arrived after the complete arguments"));
        }
        call.append(at, delta, answer);
        Ok(())
    }

    pub(super) fn arguments(
        &mut self,
        item_ref: ItemRef<'_>,
        is_whole: &str,
        answer: &mut AnswerAssembler,
    ) -> Result<(), ModelError> {
        let at = self.at(item_ref, answer)?;
        self.calls[at].take_whole(at, is_whole, answer)
    }

    pub(super) fn item(&mut self, item_ref: ItemRef<'_>, item: &Item<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        let at = match self.with_call_id(&item.call_id.0) {
            Some(at) => at,
            None => {
                let at = self.at(item_ref, answer)?;
                // Another id at the same position is a new call without earlier events, or a second id of the same call.
                if self.calls[at].may_be(item) { at } else { self.open(item_ref, answer)? }
            }
        };
        self.complete(at, item, answer)
    }

    fn complete(&mut self, at: usize, item: &Item<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        self.store_identity(at, item, answer)?;
        let call = &mut self.calls[at];
        if item.status.0 != "incomplete" {
            call.take_whole(at, &item.arguments.0, answer)?;
        }
        if !item.id.0.is_empty() && !call.is_done && call.is_started {
            answer.emit(ModelEvent::ToolCallBlock { index: at, raw: json!({ "id": item.id.0 }) });
        }
        call.is_done = true;
        Ok(())
    }

    /// Accepts the `nth` call of the complete answer. Its id may differ from that in the events.
    pub(super) fn of_answer(&mut self, nth: usize, item: &Item<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        let new = |call: &&Call| !call.is_answered && call.name == item.name.0;
        let position = |is: &dyn Fn(&Call) -> bool| self.calls.iter().position(|call| new(&call) && is(call));
        let known = self
            .with_call_id(&item.call_id.0)
            .or_else(|| position(&|call| !call.arguments.is_empty() && same_json(&call.arguments, &item.arguments.0)))
            .or_else(|| self.calls.get(nth).filter(new).map(|_| nth));
        let at = match known {
            Some(at) => at,
            None => {
                let at = self.open(ItemRef { output: None, id: &item.id.0 }, answer)?;
                // A position that no event has.
                self.calls[at].output = Some(i64::MIN + i64::try_from(at).unwrap_or(i64::MAX));
                at
            }
        };
        let call = &mut self.calls[at];
        call.is_answered = true;
        if call.is_done { Ok(()) } else { self.complete(at, item, answer) }
    }

    /// Fails if a call is cut, although the provider reports a complete answer.
    pub(super) fn finish(&self) -> Result<(), ModelError> {
        for call in &self.calls {
            if !call.is_started {
                return Err(ambiguous("a call has no name"));
            }
            if !call.is_whole && serde_json::from_str::<serde::de::IgnoredAny>(&call.arguments).is_err() {
                return Err(incomplete("the answer ended within the arguments of a tool call"));
            }
        }
        Ok(())
    }

    fn open(&mut self, item_ref: ItemRef<'_>, answer: &mut AnswerAssembler) -> Result<usize, ModelError> {
        self.calls.push(Call { output: item_ref.output, id: item_ref.id.to_owned(), ..Call::default() });
        answer.open_call()
    }

    fn with_call_id(&self, call_id: &str) -> Option<usize> {
        if call_id.is_empty() { None } else { self.calls.iter().rposition(|call| call.call_id == call_id) }
    }

    /// Returns the call of an event: at its position, with its id, or the open one.
    fn at(&mut self, item_ref: ItemRef<'_>, answer: &mut AnswerAssembler) -> Result<usize, ModelError> {
        let with = |is: &dyn Fn(&Call) -> bool| -> Vec<usize> {
            self.calls.iter().enumerate().filter(|(_, call)| is(call)).map(|(at, _)| at).collect()
        };
        let has_id = |call: &Call| !item_ref.id.is_empty() && call.id == item_ref.id;
        let mut candidates = with(&|call| item_ref.output.is_some() && call.output == item_ref.output);
        if candidates.is_empty() {
            candidates = with(&has_id);
        }
        if candidates.is_empty() {
            candidates = with(&|call| !call.is_done && (item_ref.output.is_none() || call.output.is_none()));
        }
        if candidates.len() > 1 {
            let mut with_id = candidates.clone();
            with_id.retain(|at| has_id(&self.calls[*at]));
            if with_id.len() == 1 {
                candidates = with_id;
            } else {
                candidates.retain(|at| !self.calls[*at].is_done);
            }
        }
        match candidates.as_slice() {
            [at] => Ok(*at),
            [] => self.open(item_ref, answer),
            [_, _, ..] => Err(ambiguous("several calls are unfinished")),
        }
    }

    /// Stores id and name, and starts the call once its name is known.
    fn store_identity(&mut self, at: usize, item: &Item<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        let call = &mut self.calls[at];
        if call.call_id.is_empty() {
            item.call_id.0.as_ref().clone_into(&mut call.call_id);
        }
        if call.name.is_empty() {
            item.name.0.as_ref().clone_into(&mut call.name);
        } else if !item.name.0.is_empty() && call.name != item.name.0 {
            return Err(ambiguous("the name of a call changed"));
        }
        if !call.is_started && !call.name.is_empty() {
            call.is_started = true;
            answer.start_call(at, call.call_id.clone(), call.name.clone());
            answer.call_arguments(at, text::storable(&call.arguments).into_owned());
        }
        Ok(())
    }
}

fn same_json(one: &str, other: &str) -> bool {
    let read = |text: &str| serde_json::from_str::<Value>(text).ok();
    one == other || read(one).zip(read(other)).is_some_and(|(one, other)| is_same(&one, &other))
}

impl Call {
    /// Returns whether a complete item at the position of this call is this call. Its id may differ, because vLLM generates a new one.
    fn may_be(&self, item: &Item<'_>) -> bool {
        if self.call_id.is_empty() || item.call_id.0.is_empty() {
            return true;
        }
        let says_as_much = item.arguments.0.starts_with(&self.arguments) || same_json(&self.arguments, &item.arguments.0);
        !self.is_done && self.name == item.name.0 && says_as_much
    }

    fn append(&mut self, at: usize, delta: &str, answer: &mut AnswerAssembler) {
        self.arguments.push_str(delta);
        if self.is_started {
            answer.call_arguments(at, text::storable(delta).into_owned());
        }
    }

    fn take_whole(&mut self, at: usize, is_whole: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        match is_whole.strip_prefix(self.arguments.as_str()) {
            Some(rest) => self.append(at, rest, answer),
            None if is_whole.is_empty() => return Ok(()),
            None => {
                if !same_json(is_whole, &self.arguments) {
                    return Err(ModelError::new(
                        ModelErrorKind::BadStream,
                        "the arguments of a tool call arrived in two different versions",
                    ));
                }
            }
        }
        self.is_whole = true;
        Ok(())
    }
}
