//! Assembles tool calls of chat completions from their pieces.
//!
//! In OpenAI's protocol, a piece has the index of its call, and the first piece has id and name. Providers omit or repeat each of the
//! three. A piece is assigned by the earlier pieces of a call; if several calls match, the answer fails. Two calls are never merged, and no
//! call is invented.

use serde_json::{Map, Value};

use super::wire::Fragment;
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelFinish};
use crate::provider::stream::{AnswerAssembler, Shape};
use crate::support::text;

#[derive(Debug)]
pub(super) struct Calls {
    /// The names on offer, which distinguish a second call from the second half of a split name.
    offered: Vec<String>,
    calls: Vec<Call>,
    /// Indices of pieces without id and name that were assigned to the open call. No later call may begin at one of them.
    continued_indices: Vec<i64>,
}

#[derive(Debug, Default)]
struct Call {
    index: Option<i64>,
    id: String,
    name: String,
    /// Whether `ToolCallStarted` was emitted: from then on the name is fixed.
    is_started: bool,
    arguments: String,
    /// Whether the arguments `{}` are held back: gateways to Claude send them before the real ones.
    holds_empty_arguments: bool,
    shape: Shape,
    /// Whether each piece has a new id, as some servers generate them.
    has_changing_ids: bool,
    /// The name was repeated after complete arguments. If arguments follow, it was the start of the next call.
    repeats_name: bool,
    /// Fields that go back to the provider with the call.
    provider_fields: Map<String, Value>,
}

/// The call that a piece belongs to.
enum Target {
    Call(usize),
    New,
    /// A new call, whose name the given call repeated.
    NewWithNameOf(usize),
    /// No call: the piece repeats known content.
    Repeated,
}

fn ambiguous(why: &str) -> ModelError {
    ModelError::new(ModelErrorKind::BadStream, &format!("a piece of a tool call matches no single call: {why}"))
}

impl Calls {
    pub(super) fn new(offered: Vec<String>) -> Self {
        Self { offered, calls: Vec::new(), continued_indices: Vec::new() }
    }

    pub(super) fn all_complete(&self) -> bool {
        self.calls.iter().all(|call| {
            call.shape.is_complete
                && (call.holds_empty_arguments || serde_json::from_str::<serde::de::IgnoredAny>(&call.arguments).is_ok())
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.calls.iter().map(|call| call.name.len() + call.arguments.len()).sum()
    }

    pub(super) fn push(&mut self, fragment: &Fragment<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        let piece = Piece::of(fragment);
        if piece.is_blank() {
            return Ok(());
        }
        let at = match self.target(&piece)? {
            Target::Repeated => return Ok(()),
            Target::Call(at) => at,
            Target::New => self.open(Call { index: piece.index, ..Call::default() }, answer)?,
            Target::NewWithNameOf(before) => {
                self.calls[before].repeats_name = false;
                let name = self.calls[before].name.clone();
                self.open(Call { index: piece.index, name, ..Call::default() }, answer)?
            }
        };
        let call = &mut self.calls[at];
        call.take(at, &piece, answer)?;
        let provider_fields =
            [("extra_content", &fragment.extra_content), ("provider_specific_fields", &fragment.provider_specific_fields)];
        for (name, value) in provider_fields {
            if let Some(value) = value {
                call.provider_fields.insert(name.to_owned(), value.clone());
            }
        }
        Ok(())
    }

    /// Emits the calls that still wait for arguments at the end of the answer.
    pub(super) fn finish(&mut self, finish: ModelFinish, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        for (at, call) in self.calls.iter_mut().enumerate() {
            if call.name.is_empty() {
                call.unwrap(&self.offered);
            }
            if call.name.is_empty() {
                // The output limit cut the call before its name.
                if finish == ModelFinish::Length {
                    continue;
                }
                return Err(ambiguous("a call has no name"));
            }
            call.start(at, answer);
            call.emit_empty_arguments(at, answer);
            if !call.provider_fields.is_empty() {
                let raw = Value::Object(std::mem::take(&mut call.provider_fields));
                answer.emit(ModelEvent::ToolCallBlock { index: at, raw });
            }
        }
        Ok(())
    }

    fn open(&mut self, call: Call, answer: &mut AnswerAssembler) -> Result<usize, ModelError> {
        self.calls.push(call);
        answer.open_call()
    }

    fn target(&mut self, piece: &Piece<'_>) -> Result<Target, ModelError> {
        let Some(index) = piece.index else { return self.without_index(piece) };
        match self.calls.iter().rposition(|call| call.index == Some(index)) {
            Some(at) => self.with_known_index(piece, at),
            None => self.with_new_index(piece, index),
        }
    }

    fn with_known_index(&mut self, piece: &Piece<'_>, at: usize) -> Result<Target, ModelError> {
        let call = &self.calls[at];
        if piece.id.is_empty() || call.id.is_empty() || piece.id == call.id {
            return Ok(self.same_call_or_next(piece, at));
        }
        match self.with_id(piece.id) {
            None if piece.name.is_empty() || piece.name == call.name => self.with_new_id(piece, at),
            None => Ok(Target::New),
            Some(other) if self.calls[other].index == call.index => Ok(self.same_call_or_next(piece, other)),
            Some(_) => Err(ambiguous("index and id belong to different calls")),
        }
    }

    /// Assigns a piece with a known index, a new id and no other name: to the call at that index, until it is complete.
    fn with_new_id(&mut self, piece: &Piece<'_>, at: usize) -> Result<Target, ModelError> {
        let has_same_start = self.calls[..at].last().is_some_and(|before| before.starts_like(&self.calls[at]));
        let call = &mut self.calls[at];
        let has_no_arguments = piece.arguments.trim().is_empty();
        // Two starts without arguments are two calls of a tool, unless each piece of the call has a new id.
        if has_no_arguments && !piece.name.is_empty() && !call.shape.has_begun && !call.has_changing_ids {
            return Ok(Target::New);
        }
        if !call.shape.is_complete
            || (call.holds_empty_arguments && piece.name.is_empty() && piece.arguments.trim_start().starts_with('{'))
        {
            if has_same_start && !has_no_arguments {
                return Err(ambiguous("its id differs from those of the two calls that were started"));
            }
            call.has_changing_ids = true;
            return Ok(Target::Call(at));
        }
        // The last piece of a call is often empty. In calls with constant ids it starts the next call.
        Ok(if has_no_arguments && (piece.name.is_empty() || call.has_changing_ids) { Target::Repeated } else { Target::New })
    }

    fn with_new_index(&mut self, piece: &Piece<'_>, index: i64) -> Result<Target, ModelError> {
        if let Some(at) = self.with_id(piece.id) {
            if piece.name.is_empty() {
                return Ok(Target::Call(at));
            }
            if self.calls[at].shape.is_partial() && self.calls[at].name == piece.name {
                return Err(ambiguous("a new index repeats id and name of an unfinished call"));
            }
            return Ok(Target::New);
        }
        if !piece.id.is_empty() || !piece.name.is_empty() {
            if self.continued_indices.contains(&index) {
                return Err(ambiguous("a call begins at an index that was already in use"));
            }
            return Ok(Target::New);
        }
        match self.open_call()? {
            Some(at) => {
                if self.continued_indices.last() != Some(&index) {
                    self.continued_indices.push(index);
                }
                Ok(Target::Call(at))
            }
            None => Ok(Target::New),
        }
    }

    fn without_index(&self, piece: &Piece<'_>) -> Result<Target, ModelError> {
        if let Some(at) = self.with_id(piece.id) {
            return Ok(self.same_call_or_next(piece, at));
        }
        let Some(at) = self.calls.len().checked_sub(1) else { return Ok(Target::New) };
        let last = &self.calls[at];
        if !piece.id.is_empty() {
            if !piece.name.is_empty() || last.shape.is_complete {
                return Ok(Target::New);
            }
            if last.id.is_empty() {
                return Ok(Target::Call(at));
            }
            return Ok(self.open_call()?.map_or(Target::New, Target::Call));
        }
        if piece.name.is_empty() {
            return Ok(match self.open_call()? {
                Some(open) => Target::Call(open),
                None => self.same_call_or_next(piece, at),
            });
        }
        if last.shape.is_partial() && !last.name.is_empty() && last.name != piece.name {
            return Ok(Target::New);
        }
        Ok(self.same_call_or_next(piece, at))
    }

    /// Assigns a piece that matches a call: to that call, or to a new one if the call is complete.
    fn same_call_or_next(&self, piece: &Piece<'_>, at: usize) -> Target {
        let call = &self.calls[at];
        if !call.shape.is_complete {
            let is_second_call = !call.name.is_empty()
                && call.arguments.is_empty()
                && piece.name != call.name
                && self.is_offered(&call.name)
                && self.is_offered(piece.name);
            return if is_second_call { Target::New } else { Target::Call(at) };
        }
        let has_arguments = !piece.arguments.trim().is_empty();
        let has_call_id = !piece.id.is_empty() && piece.id == call.id;
        if piece.name.is_empty() {
            return match has_arguments {
                true if call.repeats_name => Target::NewWithNameOf(at),
                true if !call.holds_empty_arguments && call.repeats_arguments(piece.arguments) => Target::Repeated,
                true | false => Target::Call(at),
            };
        }
        if call.name.is_empty() {
            // The name arrives last.
            return Target::Call(at);
        }
        if piece.name != call.name {
            return Target::New;
        }
        // The real arguments after `{}`: partial, with index and id of this call. Another call would have another id.
        if call.holds_empty_arguments
            && has_call_id
            && piece.index.is_some()
            && piece.index == call.index
            && piece.begins_arguments()
        {
            return Target::Call(at);
        }
        if has_call_id && (!has_arguments || call.repeats_arguments(piece.arguments)) {
            return Target::Repeated;
        }
        if has_arguments { Target::New } else { Target::Call(at) }
    }

    fn with_id(&self, id: &str) -> Option<usize> {
        if id.is_empty() { None } else { self.calls.iter().rposition(|call| call.id == id) }
    }

    fn is_offered(&self, name: &str) -> bool {
        self.offered.iter().any(|offered| offered == name)
    }

    /// Returns the only call with partial arguments, else the last call if its arguments have not begun.
    fn open_call(&self) -> Result<Option<usize>, ModelError> {
        let mut partial = self.calls.iter().enumerate().filter(|(_, call)| call.shape.is_partial()).map(|(at, _)| at);
        match (partial.next(), partial.next()) {
            (Some(_), Some(_)) => Err(ambiguous("several calls are unfinished")),
            (Some(at), None) => Ok(Some(at)),
            (None, _) => Ok(self.calls.iter().rposition(|_| true).filter(|at| !self.calls[*at].shape.has_begun)),
        }
    }
}

impl Call {
    /// Returns whether two calls have the same index and name, and no arguments yet.
    fn starts_like(&self, other: &Self) -> bool {
        let is_bare = !self.shape.has_begun && !other.shape.has_begun;
        is_bare && self.index == other.index && self.name == other.name
    }

    fn take(&mut self, at: usize, piece: &Piece<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        if self.id.is_empty() {
            piece.id.clone_into(&mut self.id);
        }
        self.take_name(piece)?;
        if self.holds_empty_arguments {
            if piece.arguments.trim().is_empty() {
                return Ok(());
            }
            if piece.arguments.trim_start().starts_with('{') {
                (self.holds_empty_arguments, self.shape) = (false, Shape::default());
            }
            self.emit_empty_arguments(at, answer);
        }
        let delta = text::storable(piece.arguments);
        self.shape.feed(delta.as_bytes());
        if self.arguments.is_empty() && delta.trim() == "{}" {
            self.holds_empty_arguments = true;
        } else {
            self.arguments.push_str(&delta);
            if self.is_started {
                answer.call_arguments(at, delta.into_owned());
            }
        }
        if (self.holds_empty_arguments || !self.arguments.is_empty()) && !self.name.is_empty() {
            // Arguments have begun, so the name is complete.
            self.start(at, answer);
        }
        Ok(())
    }

    /// Returns whether a piece repeats the known arguments, as gateways do at the end: unchanged, or as a JSON string.
    fn repeats_arguments(&self, arguments: &str) -> bool {
        let (known, arguments) = (self.arguments.trim(), arguments.trim());
        let within = || serde_json::from_str::<String>(arguments).is_ok_and(|within| within.trim() == known);
        arguments == known || (arguments.starts_with('"') && within())
    }

    /// Emits a held-back `{}`, because no other arguments have followed.
    fn emit_empty_arguments(&mut self, at: usize, answer: &mut AnswerAssembler) {
        if !std::mem::take(&mut self.holds_empty_arguments) {
            return;
        }
        self.arguments.push_str("{}");
        if self.is_started {
            answer.call_arguments(at, "{}".to_owned());
        }
    }

    /// Unwraps a call of Text Generation Inference: `{"function": {"_name": "f", "x": 1}}`, possibly followed by end tokens.
    fn unwrap(&mut self, offered: &[String]) {
        let mut values = serde_json::Deserializer::from_str(&self.arguments).into_iter::<Value>();
        let Some(Ok(Value::Object(mut outer))) = values.next() else { return };
        let rest = self.arguments.get(values.byte_offset()..).unwrap_or_default().trim();
        let ends = rest.is_empty() || rest == "</s>" || (rest.starts_with("<|") && rest.ends_with("|>"));
        let (true, 1, Some(Value::Object(mut call))) = (ends, outer.len(), outer.shift_remove("function")) else { return };
        match call.shift_remove("_name") {
            Some(Value::String(name)) if offered.contains(&name) => {
                self.arguments = Value::Object(call).to_string();
                self.name = name;
            }
            Some(_) | None => {}
        }
    }

    fn take_name(&mut self, piece: &Piece<'_>) -> Result<(), ModelError> {
        if piece.name.is_empty() {
            return Ok(());
        }
        if self.name == piece.name {
            self.repeats_name = self.shape.is_complete && piece.id.is_empty();
        } else if self.is_started {
            return Err(ambiguous("the name of a call changed"));
        } else if piece.name.starts_with(&self.name) {
            piece.name.clone_into(&mut self.name);
        } else {
            self.name.push_str(piece.name);
        }
        Ok(())
    }

    fn start(&mut self, at: usize, answer: &mut AnswerAssembler) {
        if self.is_started {
            return;
        }
        self.is_started = true;
        answer.start_call(at, self.id.clone(), self.name.clone());
        answer.call_arguments(at, self.arguments.clone());
    }
}

/// A fragment with empty texts for absent fields.
struct Piece<'a> {
    index: Option<i64>,
    id: &'a str,
    name: &'a str,
    arguments: &'a str,
}

impl<'a> Piece<'a> {
    fn of(fragment: &'a Fragment<'_>) -> Self {
        let (name, arguments) = match &fragment.function {
            Some(function) => (&*function.name.0, &*function.arguments.0),
            None => (&*fragment.name.0, &*fragment.arguments.0),
        };
        Self { index: fragment.index, id: &fragment.id.0, name, arguments }
    }

    /// Returns whether the arguments are the beginning of an object, but not all of it.
    fn begins_arguments(&self) -> bool {
        let mut shape = Shape::default();
        shape.feed(self.arguments.as_bytes());
        self.arguments.trim_start().starts_with('{') && shape.is_partial()
    }

    fn is_blank(&self) -> bool {
        self.id.is_empty() && self.name.is_empty() && self.arguments.is_empty()
    }
}
