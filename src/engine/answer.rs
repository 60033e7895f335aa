//! The answer assembler: builds one answer from the events of a model.

use std::collections::HashMap;

use serde_json::Value;

use crate::domain::agent::OutputMode;
use crate::domain::conversation::{
    BinaryContent, FilePart, Message, MessageStatus, Part, ReasoningPart, Role, SourcePart, TextPart, ToolCallPart,
};
use crate::domain::event::EventBody;
use crate::domain::ids::{CallId, ConversationId, MessageId, PartId, RunId};
use crate::domain::model::{
    Adaptation, ModelError, ModelErrorKind, ModelEvent, ModelFinish, ModelRequest, ModelTurn, Prices, Source as AnswerSource, Usage,
};
use crate::domain::run::{FinishReason, PlanPhase};
use crate::engine::calls::arguments;
use crate::engine::machine::{PartialAnswer, RunState};
use crate::engine::offer::usable::Prerequisite;
use crate::engine::request::build::tool_choice;
use crate::engine::request::request_source::RequestSource;
use crate::engine::request::size;
use crate::engine::strategy::json_answers::offer::Offer;
use crate::engine::strategy::json_answers::read::{AnswerFormat, Reader};
use crate::engine::strategy::plan::progress;
use crate::support::clock::UnixMillis;
use crate::support::ids::IdSource;

/// The maximum size of an answer, in bytes. A larger answer is a fault of the provider.
pub const MAX_ANSWER_BYTES: usize = 64 << 20;

const TOO_LARGE: &str = "the answer is larger than 64 MiB";

/// An item of the run's log.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "an item is written as soon as it is made")]
pub enum StreamItem {
    Event(EventBody),
    /// Separate from events, because deltas of one part are merged before they are stored.
    Delta(PartId, String),
}

enum Kind {
    Text,
    Reasoning {
        raw: Option<Value>,
    },
    Call {
        call_id: CallId,
        provider_call_id: String,
        name: String,
        raw: Option<Value>,
    },
    /// A stored picture.
    Picture(BinaryContent),
}

struct Slot {
    id: PartId,
    kind: Kind,
    text: String,
    is_closed: bool,
}

impl Slot {
    fn part(&self) -> Part {
        let id = self.id.clone();
        match &self.kind {
            Kind::Picture(picture) => Part::Image(FilePart {
                url: picture.url.clone(),
                file_id: picture.file_id.clone(),
                size: picture.size,
                name: picture.name.clone(),
                ..FilePart::of(id, picture.media_type.clone())
            }),
            Kind::Text => Part::Text(TextPart { id, text: self.text.clone() }),
            Kind::Reasoning { raw } => Part::Reasoning(ReasoningPart { id, text: self.text.clone(), raw: raw.clone() }),
            Kind::Call { call_id, provider_call_id, name, raw } => Part::ToolCall(ToolCallPart {
                id,
                call_id: call_id.clone(),
                name: name.clone(),
                arguments: arguments::parse(&self.text).value,
                provider_call_id: if provider_call_id.is_empty() { None } else { Some(provider_call_id.clone()) },
                raw: raw.clone(),
                undoes: None,
            }),
        }
    }
}

pub struct Assembler {
    of: (RunId, ConversationId),
    model: String,
    /// The model that the request was sent to. A planner may use another model than the run.
    requested_model: String,
    step: u32,
    message_id: Option<MessageId>,
    slots: Vec<Slot>,
    /// The index in `slots` of each call of the dialect.
    calls: HashMap<usize, usize>,
    /// The sources of the answer, which follow its other parts.
    sources: Vec<SourcePart>,
    bytes: usize,
    /// The estimated tokens of the request.
    request_tokens: u64,
    /// Whether the provider has begun to answer.
    has_begun: bool,
    prices: Option<Prices>,
    usage: Option<Usage>,
    finish: Option<ModelFinish>,
    broken: Option<ModelError>,
    /// Converts JSON answers into ordinary events, if the agent wants JSON objects.
    reader: Option<Reader>,
    /// Whether the answer is hidden from clients, because only the engine reads it.
    is_silent: bool,
}

impl Assembler {
    /// Returns an empty answer to the request of the current model step.
    pub fn of(state: &RunState, request: &ModelRequest) -> Self {
        let record = &state.record;
        let step = record.steps.last().map_or(0, |step| step.step);
        let (run_id, conversation_id) = record.fence.ids();
        let reader = reader(state);
        let is_planning = progress::phase(record) == Some(PlanPhase::Planning);
        let is_silent = is_planning || RequestSource::of(state).missing_prerequisite() == Prerequisite::Categories;
        let prices = state.facts.capacity_of(record.model()).prices;
        Self {
            reader,
            is_silent,
            prices,
            ..Self::new(run_id, conversation_id, record.model().to_owned(), step).for_request(request)
        }
    }

    /// Returns an empty answer. The first part opens the message with `message.started`.
    pub fn new(run_id: RunId, conversation_id: ConversationId, model: String, step: u32) -> Self {
        Self {
            of: (run_id, conversation_id),
            requested_model: model.clone(),
            model,
            step,
            message_id: None,
            slots: Vec::new(),
            calls: HashMap::new(),
            sources: Vec::new(),
            bytes: 0,
            request_tokens: 0,
            has_begun: false,
            prices: None,
            usage: None,
            finish: None,
            broken: None,
            reader: None,
            is_silent: false,
        }
    }

    /// Sets the request. Its estimated size replaces input tokens that the provider does not report.
    pub fn for_request(self, request: &ModelRequest) -> Self {
        Self { request_tokens: size::tokens(size::request(request)), requested_model: request.model.clone(), ..self }
    }

    pub fn request_tokens(&self) -> u64 {
        self.request_tokens
    }

    /// Adds an event and returns the items to show. Ignores events after [`ModelEvent::Finished`] and after a fault
    /// ([`Assembler::broken`]).
    pub fn push(&mut self, event: ModelEvent, ids: &dyn IdSource) -> Vec<StreamItem> {
        let mut items = Vec::new();
        if self.finish.is_some() || self.broken.is_some() {
            return items;
        }
        if let ModelEvent::Prices(prices) = event {
            self.prices = Some(prices);
            return items;
        }
        if let ModelEvent::Adapted(Adaptation { change, reason }) = event {
            // Clients see this event even if the answer is silent.
            let model = self.requested_model.clone();
            return vec![StreamItem::Event(EventBody::ModelAdapted { model, change, reason })];
        }
        self.has_begun = true;
        let Some(reader) = &mut self.reader else {
            self.take(event, ids, &mut items);
            return if self.is_silent { Vec::new() } else { items };
        };
        let reported = reader.read(event);
        if reader.bytes() > MAX_ANSWER_BYTES {
            self.fail(TOO_LARGE);
        }
        for event in reported {
            self.take(event, ids, &mut items);
        }
        if self.is_silent { Vec::new() } else { items }
    }

    fn take(&mut self, event: ModelEvent, ids: &dyn IdSource, items: &mut Vec<StreamItem>) {
        match event {
            ModelEvent::Text(text) => self.flow(Kind::Text, text, ids, items),
            ModelEvent::Reasoning(text) => self.flow(Kind::Reasoning { raw: None }, text, ids, items),
            ModelEvent::ReasoningBlock(raw) => self.reasoning_block(raw, ids, items),
            ModelEvent::ToolCallStarted { index, provider_call_id, name } => {
                self.close_flow(items);
                let kind = Kind::Call { call_id: CallId::generate(ids), provider_call_id, name, raw: None };
                let at = self.open(kind, ids, items);
                // A reused index starts another call: fragments are never added to a complete call.
                self.calls.insert(index, at);
            }
            ModelEvent::ToolCallArguments { index, delta } => match self.calls.get(&index) {
                Some(&at) => self.append(at, delta, items),
                None => self.fail("the provider sent arguments of a tool call that it did not start"),
            },
            ModelEvent::ToolCallBlock { index, raw } => match self.calls.get(&index).and_then(|at| self.slots.get_mut(*at)) {
                Some(Slot { kind: Kind::Call { raw: kept, .. }, .. }) => *kept = Some(raw),
                Some(_) | None => self.fail("the provider sent a signature of a tool call that it did not start"),
            },
            // A message contains only stored pictures, so other pictures are dropped.
            ModelEvent::Picture(picture) if picture.file_id.is_some() => {
                self.close_flow(items);
                let at = self.open(Kind::Picture(picture), ids, items);
                self.close(at, items);
            }
            ModelEvent::Picture(_) => {}
            ModelEvent::Source(AnswerSource { url, title, text }) => {
                self.sources.push(SourcePart { id: PartId::generate(ids), url, title, text });
            }
            ModelEvent::Restarted => self.restart(items),
            ModelEvent::Usage(usage) => self.usage = Some(usage),
            ModelEvent::Prices(prices) => self.prices = Some(prices),
            ModelEvent::Adapted(_) => {}
            ModelEvent::Finished(finish) => self.finish = Some(finish),
        }
    }

    /// Returns the fault of an unusable answer, so that the caller can abort the model call early.
    pub fn broken(&self) -> Option<&ModelError> {
        self.broken.as_ref()
    }

    /// Returns the message, the `ModelTurn`, and the events that close the open parts and add the sources. Fails if the answer is
    /// incomplete, too long or contradictory. An answer without parts is no error here; the caller decides about it.
    pub fn finish(mut self, ids: &dyn IdSource, now: UnixMillis) -> Result<(Message, ModelTurn, Vec<EventBody>), ModelError> {
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        let Some(finish) = self.finish else {
            return Err(ModelError::new(ModelErrorKind::IncompleteStream, "the stream ended before the answer was complete"));
        };
        let message_id = self.message_id.take().unwrap_or_else(|| MessageId::generate(ids));
        let usage = self.counted_usage();
        if self.slots.is_empty() {
            // Sources alone are not an answer.
            self.sources.clear();
        }
        let open = self.slots.iter().filter(|slot| !slot.is_closed);
        let mut closing: Vec<EventBody> =
            open.map(|slot| EventBody::PartCompleted { message_id: message_id.clone(), part: slot.part() }).collect();
        for (source, index) in self.sources.iter().zip(self.slots.len()..) {
            closing.push(EventBody::PartStarted {
                message_id: message_id.clone(),
                part_id: source.id.clone(),
                index: u32::try_from(index).unwrap_or(u32::MAX),
                kind: "source".to_owned(),
                call_id: None,
                name: None,
            });
            closing.push(EventBody::PartCompleted { message_id: message_id.clone(), part: Part::Source(source.clone()) });
        }
        let mut message = self.message(message_id, finish.as_finish_reason(), usage, now);
        message.parts.extend(std::mem::take(&mut self.sources).into_iter().map(Part::Source));
        let malformed = self.reader.and_then(Reader::malformed);
        let calls = self.slots.into_iter().filter(|slot| matches!(slot.kind, Kind::Call { .. }));
        let turn = ModelTurn { finish, arguments: calls.map(|slot| slot.text).collect(), usage, malformed };
        Ok((message, turn, closing))
    }

    fn message(&self, id: MessageId, reason: FinishReason, usage: Usage, now: UnixMillis) -> Message {
        Message {
            finish_reason: Some(reason),
            model: Some(self.model.clone()),
            usage: Some(usage),
            created_at: now.to_rfc3339(),
            ..Message::new(id, self.of.clone(), Role::Assistant, self.slots.iter().map(Slot::part).collect())
        }
    }

    /// Returns the parts of a dropped answer that clients saw, including its calls. Returns `None` if they saw nothing.
    pub fn partial(mut self, now: UnixMillis) -> Option<PartialAnswer> {
        let usage = self.spent();
        let id = self.message_id.take().filter(|_| !self.is_silent)?;
        let open = self.slots.iter().filter(|slot| !slot.is_closed);
        let closing = open.map(|slot| EventBody::PartCompleted { message_id: id.clone(), part: slot.part() }).collect();
        let message = Message { status: MessageStatus::Partial, ..self.message(id, FinishReason::Cancelled, usage, now) };
        Some(PartialAnswer { message, closing })
    }

    /// Adds text or reasoning to the open part, or to a new part if another kind arrived in between.
    fn flow(&mut self, kind: Kind, text: String, ids: &dyn IdSource, items: &mut Vec<StreamItem>) {
        if text.is_empty() {
            return;
        }
        let continues = self.slots.last().is_some_and(|slot| {
            !slot.is_closed
                && matches!((&slot.kind, &kind), (Kind::Text, Kind::Text) | (Kind::Reasoning { .. }, Kind::Reasoning { .. }))
        });
        let at = if continues {
            self.slots.len() - 1
        } else {
            self.close_flow(items);
            self.open(kind, ids, items)
        };
        self.append(at, text, items);
    }

    /// Adds the provider's block to the open reasoning part, or to a new one, and closes the part.
    fn reasoning_block(&mut self, block: Value, ids: &dyn IdSource, items: &mut Vec<StreamItem>) {
        let is_open = self.slots.last().is_some_and(|slot| !slot.is_closed && matches!(slot.kind, Kind::Reasoning { .. }));
        if !is_open {
            self.close_flow(items);
            self.open(Kind::Reasoning { raw: None }, ids, items);
        }
        if let Some(Slot { kind: Kind::Reasoning { raw }, .. }) = self.slots.last_mut() {
            *raw = Some(block);
        }
        self.close_flow(items);
    }

    /// Discards the answer so far, and voids the shown parts.
    fn restart(&mut self, items: &mut Vec<StreamItem>) {
        if self.message_id.take().is_some() {
            items.push(StreamItem::Event(EventBody::StepReset { step: self.step, reason: "restarted".to_owned() }));
        }
        self.slots.clear();
        self.calls.clear();
        self.sources.clear();
        self.bytes = 0;
        self.usage = None;
    }

    /// Closes an open text or reasoning part. Calls stay open until the end, because their fragments may interleave.
    fn close_flow(&mut self, items: &mut Vec<StreamItem>) {
        let is_flow = |slot: &Slot| !slot.is_closed && matches!(slot.kind, Kind::Text | Kind::Reasoning { .. });
        if self.slots.last().is_some_and(is_flow) {
            self.close(self.slots.len() - 1, items);
        }
    }

    fn close(&mut self, at: usize, items: &mut Vec<StreamItem>) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        slot.is_closed = true;
        if let Some(message_id) = &self.message_id {
            items.push(StreamItem::Event(EventBody::PartCompleted { message_id: message_id.clone(), part: slot.part() }));
        }
    }

    fn open(&mut self, kind: Kind, ids: &dyn IdSource, items: &mut Vec<StreamItem>) -> usize {
        let message_id = match &self.message_id {
            Some(id) => id.clone(),
            None => {
                let id = MessageId::generate(ids);
                items.push(StreamItem::Event(EventBody::MessageStarted { message_id: id.clone(), role: Role::Assistant }));
                self.message_id = Some(id.clone());
                id
            }
        };
        let at = self.slots.len();
        let part_id = PartId::generate(ids);
        let (word, call_id, name) = match &kind {
            Kind::Text => ("text", None, None),
            Kind::Reasoning { .. } => ("reasoning", None, None),
            Kind::Picture(_) => ("image", None, None),
            Kind::Call { call_id, name, .. } => ("tool_call", Some(call_id.clone()), Some(name.clone())),
        };
        items.push(StreamItem::Event(EventBody::PartStarted {
            message_id,
            part_id: part_id.clone(),
            index: u32::try_from(at).unwrap_or(u32::MAX),
            kind: word.to_owned(),
            call_id,
            name,
        }));
        self.slots.push(Slot { id: part_id, kind, text: String::new(), is_closed: false });
        at
    }

    fn append(&mut self, at: usize, delta: String, items: &mut Vec<StreamItem>) {
        if delta.is_empty() {
            return;
        }
        self.bytes = self.bytes.saturating_add(delta.len());
        if self.bytes > MAX_ANSWER_BYTES {
            self.fail(TOO_LARGE);
            return;
        }
        if let Some(slot) = self.slots.get_mut(at) {
            slot.text.push_str(&delta);
            items.push(StreamItem::Delta(slot.id.clone(), delta));
        }
    }

    fn fail(&mut self, reason: &str) {
        self.broken = Some(ModelError::new(ModelErrorKind::BadStream, reason));
    }

    /// Returns the usage of a failed answer, or zero if the provider had not begun to answer. The output tokens are at least the
    /// estimate of the received text.
    pub fn spent(&self) -> Usage {
        if !self.has_begun {
            return Usage::default();
        }
        let estimate = self.estimate();
        let reported = self.usage.unwrap_or_default();
        let input_tokens = if reported.input_tokens == 0 { estimate.input_tokens } else { reported.input_tokens };
        let output_tokens = reported.output_tokens.max(estimate.output_tokens);
        self.priced(Usage { input_tokens, output_tokens, model_calls: 1, abandoned_calls: 1, estimated: true, ..reported })
    }

    /// Returns the usage of a dropped model call. Counts the request even if no answer began, because the provider may have read
    /// it.
    pub fn given_up(&self) -> Usage {
        match self.has_begun {
            true => self.spent(),
            false => self.priced(Usage { abandoned_calls: 1, ..self.estimate() }),
        }
    }

    fn counted_usage(&self) -> Usage {
        self.priced(self.usage.map_or_else(|| self.estimate(), |usage| Usage { model_calls: 1, ..usage }))
    }

    fn estimate(&self) -> Usage {
        let chars: usize = self.slots.iter().map(|slot| slot.text.chars().count()).sum();
        let written = chars.max(self.reader.as_ref().map_or(0, Reader::bytes));
        let (input_tokens, output_tokens) = (self.request_tokens, size::tokens(written));
        Usage { input_tokens, output_tokens, model_calls: 1, estimated: true, ..Usage::default() }
    }

    /// Adds the cost, unless the provider reported it.
    fn priced(&self, usage: Usage) -> Usage {
        Usage { cost: usage.cost.or_else(|| Some(self.prices?.cost(&usage))), ..usage }
    }
}

/// Returns the reader of the current model step, if its agent wants JSON objects.
fn reader(state: &RunState) -> Option<Reader> {
    match state.record.profile.output {
        OutputMode::Tools => None,
        // A planner writes its plan and its report in plain text.
        OutputMode::Structured if progress::phase(&state.record).is_some_and(|phase| phase != PlanPhase::Executing) => None,
        OutputMode::Structured => {
            let is_choosing = RequestSource::of(state).missing_prerequisite() == Prerequisite::Categories;
            let choice = tool_choice(state).filter(|_| !is_choosing);
            let has_tools = !RequestSource::of(state).offered_in_step().is_empty();
            let shape = if state.record.profile.options.output_schema.is_some() && !is_choosing {
                AnswerFormat::Any
            } else {
                AnswerFormat::Text
            };
            Some(Reader::new(Offer::of(choice.as_ref(), has_tools), shape))
        }
    }
}
