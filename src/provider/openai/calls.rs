//! Assembles tool calls from their pieces.
//!
//! The documented form: a piece has the index of its call, and the first one has id and name. Providers leave out or repeat each of the
//! three. A piece is assigned by what its call has shown before; if that fits several calls, the answer fails. Two calls are never merged,
//! and no call is invented.

use serde_json::{Map, Value};

use super::wire::Fragment;
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelFinish};
use crate::provider::stream::{AnswerAssembler, Shape};
use crate::support::text;

#[derive(Debug)]
pub(super) struct Calls {
    /// The offered names, which tell a second call from the second half of a split name.
    offered: Vec<String>,
    calls: Vec<Call>,
    /// Indices of pieces that were assigned to an open call. No later call may begin at one of them.
    lent: Vec<i64>,
}

#[derive(Debug, Default)]
struct Call {
    index: Option<i64>,
    id: String,
    name: String,
    /// Whether `ToolCallStarted` was sent: from then on the name is fixed.
    started: bool,
    arguments: String,
    /// Whether arguments `{}` are held back: gateways before Claude send them before the real ones.
    held: bool,
    shape: Shape,
    /// Whether each piece has a new id, which some servers make up.
    renamed: bool,
    /// The name came again after complete arguments. If arguments follow, it was the beginning of the next call.
    named_again: bool,
    /// Fields that go back to the provider with the call.
    own: Map<String, Value>,
}

/// The call that a piece belongs to.
enum Target {
    Call(usize),
    New,
    /// A new call with the name that this call repeated.
    NewNamed(usize),
    /// None: the piece repeats known content.
    Nowhere,
}

fn ambiguous(why: &str) -> ModelError {
    ModelError::new(ModelErrorKind::BadStream, &format!("a piece of a tool call fits no single call: {why}"))
}

impl Calls {
    pub(super) fn new(offered: Vec<String>) -> Self {
        Self { offered, calls: Vec::new(), lent: Vec::new() }
    }

    pub(super) fn all_complete(&self) -> bool {
        self.calls.iter().all(|call| {
            call.shape.complete && (call.held || serde_json::from_str::<serde::de::IgnoredAny>(&call.arguments).is_ok())
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
            Target::Nowhere => return Ok(()),
            Target::Call(at) => at,
            Target::New => self.open(Call { index: piece.index, ..Call::default() }, answer)?,
            Target::NewNamed(before) => {
                self.calls[before].named_again = false;
                let name = self.calls[before].name.clone();
                self.open(Call { index: piece.index, name, ..Call::default() }, answer)?
            }
        };
        let call = &mut self.calls[at];
        call.take(at, &piece, answer)?;
        let own = [("extra_content", &fragment.extra_content), ("provider_specific_fields", &fragment.provider_specific_fields)];
        for (name, value) in own {
            if let Some(value) = value {
                call.own.insert(name.to_owned(), value.clone());
            }
        }
        Ok(())
    }

    /// Emits the calls without arguments at the end of the answer.
    pub(super) fn finish(&mut self, finish: ModelFinish, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        for (at, call) in self.calls.iter_mut().enumerate() {
            if call.name.is_empty() {
                call.unwrap(&self.offered);
            }
            if call.name.is_empty() {
                // The output limit has cut the call before its name came.
                if finish == ModelFinish::Length {
                    continue;
                }
                return Err(ambiguous("a call has no name"));
            }
            call.start(at, answer);
            call.release(at, answer);
            if !call.own.is_empty() {
                let raw = Value::Object(std::mem::take(&mut call.own));
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
            None if piece.name.is_empty() || piece.name == call.name => self.under_fresh_id(piece, at),
            None => Ok(Target::New),
            Some(other) if self.calls[other].index == call.index => Ok(self.same_call_or_next(piece, other)),
            Some(_) => Err(ambiguous("index and id belong to different calls")),
        }
    }

    /// Assigns a piece at the index of a call with a new id and no other name: to that call, until the call is complete.
    fn under_fresh_id(&mut self, piece: &Piece<'_>, at: usize) -> Result<Target, ModelError> {
        let has_twin = self.calls[..at].last().is_some_and(|before| before.is_twin_of(&self.calls[at]));
        let call = &mut self.calls[at];
        let says_nothing = piece.arguments.trim().is_empty();
        // Two beginnings are two calls of a tool without arguments, unless each piece has a new id.
        if says_nothing && !piece.name.is_empty() && !call.shape.begun && !call.renamed {
            return Ok(Target::New);
        }
        if !call.shape.complete || (call.held && piece.name.is_empty() && piece.arguments.trim_start().starts_with('{')) {
            if has_twin && !says_nothing {
                return Err(ambiguous("it has another id than the two calls that were begun"));
            }
            call.renamed = true;
            return Ok(Target::Call(at));
        }
        // The last piece of a call is often empty. For calls that keep their ids it begins the next one.
        Ok(if says_nothing && (piece.name.is_empty() || call.renamed) { Target::Nowhere } else { Target::New })
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
            if self.lent.contains(&index) {
                return Err(ambiguous("a call begins at an index that was already in use"));
            }
            return Ok(Target::New);
        }
        match self.open_call()? {
            Some(at) => {
                if self.lent.last() != Some(&index) {
                    self.lent.push(index);
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
            if !piece.name.is_empty() || last.shape.complete {
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

    /// Assigns a piece that points to a call: to that call, or to a new one if it is complete.
    fn same_call_or_next(&self, piece: &Piece<'_>, at: usize) -> Target {
        let call = &self.calls[at];
        if !call.shape.complete {
            let second = !call.name.is_empty()
                && call.arguments.is_empty()
                && piece.name != call.name
                && self.is_offered(&call.name)
                && self.is_offered(piece.name);
            return if second { Target::New } else { Target::Call(at) };
        }
        let has_arguments = !piece.arguments.trim().is_empty();
        let has_own_id = !piece.id.is_empty() && piece.id == call.id;
        if piece.name.is_empty() {
            return match has_arguments {
                true if call.named_again => Target::NewNamed(at),
                true if !call.held && call.is_said_again(piece.arguments) => Target::Nowhere,
                true | false => Target::Call(at),
            };
        }
        if call.name.is_empty() {
            // The name came last.
            return Target::Call(at);
        }
        if piece.name != call.name {
            return Target::New;
        }
        // The real arguments after `{}`: partial, with index and id of this call. Another call would have another id.
        if call.held && has_own_id && piece.index.is_some() && piece.index == call.index && piece.begins_arguments() {
            return Target::Call(at);
        }
        if has_own_id && (!has_arguments || call.is_said_again(piece.arguments)) {
            return Target::Nowhere;
        }
        if has_arguments { Target::New } else { Target::Call(at) }
    }

    fn with_id(&self, id: &str) -> Option<usize> {
        if id.is_empty() { None } else { self.calls.iter().rposition(|call| call.id == id) }
    }

    fn is_offered(&self, name: &str) -> bool {
        self.offered.iter().any(|offered| offered == name)
    }

    /// Returns the only call with partial arguments, or else the last one if its arguments have not begun.
    fn open_call(&self) -> Result<Option<usize>, ModelError> {
        let mut partial = self.calls.iter().enumerate().filter(|(_, call)| call.shape.is_partial()).map(|(at, _)| at);
        match (partial.next(), partial.next()) {
            (Some(_), Some(_)) => Err(ambiguous("several calls are unfinished")),
            (Some(at), None) => Ok(Some(at)),
            (None, _) => Ok(self.calls.iter().rposition(|_| true).filter(|at| !self.calls[*at].shape.begun)),
        }
    }
}

impl Call {
    /// Returns whether both have the same index and name, and no arguments yet.
    fn is_twin_of(&self, other: &Self) -> bool {
        let is_bare = !self.shape.begun && !other.shape.begun;
        is_bare && self.index == other.index && self.name == other.name
    }

    fn take(&mut self, at: usize, piece: &Piece<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        if self.id.is_empty() {
            piece.id.clone_into(&mut self.id);
        }
        self.take_name(piece)?;
        if self.held {
            if piece.arguments.trim().is_empty() {
                return Ok(());
            }
            if piece.arguments.trim_start().starts_with('{') {
                (self.held, self.shape) = (false, Shape::default());
            }
            self.release(at, answer);
        }
        let delta = text::storable(piece.arguments);
        self.shape.feed(delta.as_bytes());
        if self.arguments.is_empty() && delta.trim() == "{}" {
            self.held = true;
        } else {
            self.arguments.push_str(&delta);
            if self.started {
                answer.call_arguments(at, delta.into_owned());
            }
        }
        if (self.held || !self.arguments.is_empty()) && !self.name.is_empty() {
            // Arguments have begun, so the name has ended.
            self.start(at, answer);
        }
        Ok(())
    }

    /// Returns whether these are the known arguments, which gateways repeat at the end: unchanged, or as a JSON string.
    fn is_said_again(&self, arguments: &str) -> bool {
        let (known, arguments) = (self.arguments.trim(), arguments.trim());
        let within = || serde_json::from_str::<String>(arguments).is_ok_and(|within| within.trim() == known);
        arguments == known || (arguments.starts_with('"') && within())
    }

    /// Emits a held `{}`, as no other arguments have followed.
    fn release(&mut self, at: usize, answer: &mut AnswerAssembler) {
        if !std::mem::take(&mut self.held) {
            return;
        }
        self.arguments.push_str("{}");
        if self.started {
            answer.call_arguments(at, "{}".to_owned());
        }
    }

    /// Reads the form of Text Generation Inference: `{"function": {"_name": "f", "x": 1}}`, perhaps with end tokens behind it.
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
            self.named_again = self.shape.complete && piece.id.is_empty();
        } else if self.started {
            return Err(ambiguous("a call changed its name"));
        } else if piece.name.starts_with(&self.name) {
            piece.name.clone_into(&mut self.name);
        } else {
            self.name.push_str(piece.name);
        }
        Ok(())
    }

    fn start(&mut self, at: usize, answer: &mut AnswerAssembler) {
        if self.started {
            return;
        }
        self.started = true;
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

    /// Returns whether it has the beginning of an object, but not all of it.
    fn begins_arguments(&self) -> bool {
        let mut shape = Shape::default();
        shape.feed(self.arguments.as_bytes());
        self.arguments.trim_start().starts_with('{') && shape.is_partial()
    }

    fn is_blank(&self) -> bool {
        self.id.is_empty() && self.name.is_empty() && self.arguments.is_empty()
    }
}
