//! Turns the events of a stream, or a whole answer, into what the model says.

use std::borrow::Cow;
use std::collections::VecDeque;

use serde_json::{Value, json};

use super::calls::Calls;
use super::details::{self, Details};
use super::own::{self, Own};
use super::wire::{BaseResponse, Choice, Chunk, Delta, Envelope, Fragment, Said, says_something};
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelFinish, ModelRequest, Usage};
use crate::provider::dialect::{Decode, Progress};
use crate::provider::error_facts::vendor_code;
use crate::provider::failure;
use crate::provider::json_text::whole_characters;
use crate::provider::tally::{Tally, storable};
use crate::provider::think::{ThinkTags, Told};
#[cfg(any(test, feature = "fuzzing"))]
use crate::provider::{quirk_forms::ThoughtsInText, quirks::Quirks};
use crate::support::failpoint;

/// What the request says about its answer.
#[derive(Debug)]
pub(super) struct Expectation {
    tools: Vec<String>,
    max_output_tokens: Option<u32>,
    request_bytes: usize,
    /// Takes thoughts out of the text.
    tags: ThinkTags,
}

impl Expectation {
    pub(super) fn of(request: &ModelRequest, request_bytes: usize, tags: ThinkTags) -> Self {
        Self {
            tools: request.tools.iter().map(|tool| tool.name.clone()).collect(),
            max_output_tokens: request.options.max_output_tokens,
            request_bytes,
            tags,
        }
    }

    /// That some tools were on offer, and nothing else.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn offering<const N: usize>(tools: [&str; N]) -> Self {
        let quirks = Quirks { thoughts_in_text: ThoughtsInText::Always, ..Quirks::default() };
        let tags = quirks.think_tags("");
        Self { tools: tools.map(str::to_owned).into(), max_output_tokens: None, request_bytes: 0, tags }
    }
}

/// The state of one answer.
#[derive(Debug)]
pub(super) struct Decoder {
    max_output_tokens: Option<u32>,
    calls: Calls,
    finish: Option<ModelFinish>,
    refused: bool,
    marked_whole: bool,
    text_bytes: usize,
    /// Reasoning in a form that goes back, as far as it was not passed on yet.
    details: Details,
    /// The same, in the form of `LiteLLM`.
    blocks: Details,
    /// Takes thoughts out of the text.
    tags: ThinkTags,
    /// The choice that the answer is in.
    place: Place,
    /// Whether anything was said in pieces: a whole message then repeats it.
    spoke: bool,
    /// Whether a whole message was taken in.
    is_message: bool,
    /// Whether an event said something without a reason to stop.
    goes_on_unasked: bool,
    /// Whether the answer went on after a reason to stop: then no later one is believed before the answer is over.
    went_on: bool,
    /// What the provider wants back with the message.
    own: Own,
    tally: Tally,
    frames: u64,
}

/// Where the answer stands among the choices, of which we never ask for more than one.
#[derive(Debug, Default)]
struct Place {
    first: Option<i64>,
    last: Option<i64>,
    /// Whether an index came twice. Some servers count the events instead of the choices.
    repeats: bool,
}

impl Place {
    /// Whether the only choice of an event is the answer.
    fn is_here(&mut self, index: Option<i64>) -> bool {
        let index = index.unwrap_or(0);
        let first = *self.first.get_or_insert(index);
        let rises = !self.repeats && self.last.is_some_and(|last| last.checked_add(1) == Some(index));
        self.repeats |= self.last.is_some() && !rises;
        self.last = Some(index);
        index == first || index == 0 || rises
    }
}

impl Decoder {
    pub(super) fn new(expectation: Expectation) -> Self {
        let Expectation { tools, max_output_tokens, request_bytes, tags } = expectation;
        Self {
            max_output_tokens,
            calls: Calls::new(tools),
            finish: None,
            refused: false,
            marked_whole: false,
            text_bytes: 0,
            details: Details::new(details::OPENROUTER),
            blocks: Details::new(details::LITELLM),
            tags,
            place: Place::default(),
            spoke: false,
            is_message: false,
            goes_on_unasked: false,
            went_on: false,
            own: Own::default(),
            tally: Tally::new(request_bytes),
            frames: 0,
        }
    }
}

impl Decode for Decoder {
    fn frame(&mut self, event: Option<&str>, data: &str, out: &mut VecDeque<ModelEvent>) -> Result<Progress, ModelError> {
        self.frames += 1;
        let data = data.trim();
        if data.is_empty() {
            return Ok(self.progress());
        }
        if data == "[DONE]" {
            self.marked_whole = true;
            return Ok(Progress::Whole);
        }
        if event == Some("error") {
            let error = serde_json::from_str(data).unwrap_or_else(|_| Value::String(data.to_owned()));
            return Err(failure::from_event(&error));
        }
        let (finished, before) = (self.finish.is_some(), (out.len(), self.calls.bytes()));
        self.json(data, out)?;
        let said = (out.len(), self.calls.bytes()) != before;
        self.goes_on_unasked |= said && self.finish.is_none();
        self.went_on |= said && finished;
        // Some gateways say why the model stopped with every event, from the first one on, or between any two: an answer that goes
        // on has not stopped, and of the first event it is not known yet. A whole message does not go on.
        let may_go_on = (self.went_on || (said && !self.goes_on_unasked)) && !self.is_message;
        Ok(match may_go_on {
            true if self.finish.is_some() && !self.went_on && self.tally.has_figures() => Progress::MayGoOn,
            true => Progress::Open,
            false => self.progress(),
        })
    }

    fn document(mut self, document: &[u8], out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        self.frames += 1;
        let text = std::str::from_utf8(document).map_err(|error| self.bad_frame(&error.to_string()))?;
        let text = text.trim_start_matches('\u{feff}');
        if serde_json::from_str::<serde::de::IgnoredAny>(text).is_err_and(|error| error.is_eof()) {
            return Err(ModelError::new(ModelErrorKind::IncompleteStream, "the answer was cut"));
        }
        self.json(text, out)?;
        // All of the document is there, so its message is whole, too, whether or not it says why it ended.
        self.marked_whole = self.is_message;
        self.close(out)
    }

    fn close(&mut self, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        // What a cut stream held back may be half of a mark.
        if self.finish.is_some() || self.marked_whole {
            let held = self.tags.finish();
            self.tell(held, out);
            let had_its_say = !matches!(self.finish, Some(ModelFinish::Length | ModelFinish::Refused));
            if had_its_say && self.text_bytes == 0 && self.calls.is_empty() {
                let answer = self.tags.unclosed();
                self.say(answer.into(), out);
            }
        }
        let mut finish = match self.finish {
            Some(finish) => finish,
            None => self.unsaid_finish()?,
        };
        if self.refused {
            finish = ModelFinish::Refused;
        }
        self.calls.finish(finish, out)?;
        self.pass_details_on(out);
        self.own.pass_on(out);
        self.tally.said(self.calls.bytes());
        let usage = self.tally.usage();
        if let ModelFinish::Stop | ModelFinish::ToolCalls = finish {
            finish = self.judge(finish, &usage);
        }
        out.push_back(ModelEvent::Usage(usage));
        out.push_back(ModelEvent::Finished(finish));
        Ok(())
    }
}

impl Decoder {
    fn progress(&self) -> Progress {
        if self.finish.is_some() { Progress::Closing } else { Progress::Open }
    }

    /// Servers that mark the end but give no reason exist; a cut connection looks the same but for the mark.
    fn unsaid_finish(&self) -> Result<ModelFinish, ModelError> {
        let whole = self.marked_whole && (self.text_bytes > 0 || !self.calls.is_empty()) && self.calls.all_complete();
        if whole {
            return Ok(if self.calls.is_empty() { ModelFinish::Stop } else { ModelFinish::ToolCalls });
        }
        if self.marked_whole && !self.calls.is_empty() && self.is_at_limit(&self.tally.usage()) {
            return Ok(ModelFinish::Length);
        }
        if failpoint::is_planted("cut-call-run") && !self.calls.is_empty() {
            return Ok(ModelFinish::ToolCalls);
        }
        Err(ModelError::new(ModelErrorKind::IncompleteStream, "the answer ended before the model said why it stopped"))
    }

    /// Whether the answer has as many tokens as the request allows.
    fn is_at_limit(&self, usage: &Usage) -> bool {
        !usage.estimated && self.max_output_tokens.is_some_and(|limit| usage.output_tokens >= u64::from(limit))
    }

    /// What an answer that the provider calls finished really is: the calls that are there decide, not the word. Where nothing is
    /// at all, the loop judges.
    fn judge(&self, finish: ModelFinish, usage: &Usage) -> ModelFinish {
        if self.calls.is_empty() {
            return finish;
        }
        // Some servers report an answer that ran into its limit as one that wants tools. Its last call may be cut.
        if self.is_at_limit(usage) { ModelFinish::Length } else { ModelFinish::ToolCalls }
    }

    fn json(&mut self, data: &str, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let data = whole_characters(data.trim_start());
        let other = |why: &str| failure::unannounced(&data).unwrap_or_else(|| self.bad_frame(why));
        // A list would be read as the fields of an object.
        if !data.starts_with('{') {
            return Err(other("it is no JSON object"));
        }
        let chunk = serde_json::from_str::<Chunk<'_>>(&data).map_err(|error| other(&error.to_string()))?;
        self.chunk(chunk, &data, out)
    }

    fn bad_frame(&self, why: &str) -> ModelError {
        ModelError::new(ModelErrorKind::BadStream, &format!("bad_frame: event {} of the answer: {why}", self.frames))
    }

    fn chunk(&mut self, chunk: Chunk<'_>, data: &str, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        if chunk.is_error() {
            // What stands beside the words may say more than they do.
            return Err(failure::from_event(&serde_json::from_str(data).unwrap_or_default()));
        }
        if let Some(BaseResponse { status_code: Some(status_code @ 1..), status_msg }) = &chunk.base_resp {
            return Err(failure::from_event(
                &json!({ "code": vendor_code("minimax", &status_code.to_string()), "message": status_msg.0 }),
            ));
        }
        if chunk.says_nothing() {
            if let Some(error) = failure::unannounced(data) {
                return Err(error);
            }
            if let Some((result, json)) = Envelope::open(data) {
                return self.chunk(result, json, out);
            }
        }
        for figures in [chunk.x_groq.as_ref().and_then(|groq| groq.usage), chunk.usage].into_iter().flatten() {
            self.tally.given(figures.into());
        }
        if let Some(error) = chunk.x_groq.and_then(|groq| groq.error).filter(says_something) {
            return Err(failure::from_event(&error));
        }
        let mut choices = chunk.choices.0;
        // Copilot divides one answer of Claude among several choices without an index, or all with 0.
        if let [only] = choices.as_slice() {
            if !self.place.is_here(only.index) {
                return Ok(());
            }
        } else {
            choices.retain(|choice| choice.index.unwrap_or(0) == 0);
        }
        if choices.is_empty() {
            // Cloudflare's own form names no reason in a document either.
            self.is_message |= !chunk.response.0.is_empty() || !chunk.tool_calls.is_empty();
            let content = Said { text: chunk.response.0, ..Said::default() };
            return self.delta(Delta { content, tool_calls: chunk.tool_calls, ..Delta::default() }, out);
        }
        let repeats = self.spoke;
        choices.into_iter().try_for_each(|choice| self.choice(choice, repeats, out))
    }

    /// A choice. Its whole message, if it has one, counts unless it repeats what was said before.
    fn choice(&mut self, choice: Choice<'_>, repeats: bool, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        if let Some(error) = choice.error.filter(says_something) {
            return Err(failure::from_event(&error));
        }
        if let Some(figures) = choice.usage {
            self.tally.given(figures.into());
        }
        let spoke = std::mem::take(&mut self.spoke);
        let bare = choice.text.0;
        let older = Some(bare).filter(|text| !text.is_empty() && choice.delta.is_none() && choice.message.is_none());
        let older = older.map(|text| Delta { content: Said { text, ..Said::default() }, ..Delta::default() });
        if let Some(delta) = choice.delta.or(older) {
            self.delta(delta, out)?;
        }
        // Perplexity repeats in each event all that was said before.
        let repeats = repeats || self.spoke;
        if let Some(mut message) = choice.message.filter(|_| !repeats) {
            self.is_message = true;
            // The calls of a whole message are whole themselves, each with its place in the list.
            for (place, call) in (0..).zip(&mut message.tool_calls) {
                call.index = Some(place);
            }
            self.delta(message, out)?;
        }
        self.spoke |= spoke;
        let words = [choice.finish_reason.0, choice.own_finish_reason.0];
        if let Some(word) = words.iter().find(|word| !matches!(&***word, "" | "null")) {
            self.finish_word(word)?;
        }
        Ok(())
    }

    fn delta(&mut self, delta: Delta<'_>, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        self.own.take(&delta);
        let is_thought = own::is_thought(&delta.extra_content);
        let Delta { content: Said { thought, mut text }, reasoning_content, reasoning, reasoning_text, .. } = delta;
        let (reasoning_details, refusal) = (delta.reasoning_details, delta.refusal);
        let list = |value: Value| if let Value::Array(list) = value { list } else { Vec::new() };
        let (details, blocks) = (list(reasoning_details), list(delta.thinking_blocks));
        // Gateways that know several names send the same text under all of them.
        let mut thoughts =
            [reasoning_content.0, reasoning.0, reasoning_text.0, thought].into_iter().filter(|thought| !thought.is_empty());
        let thought = thoughts.next().unwrap_or_else(|| {
            let words = details::OPENROUTER.words(&details);
            if words.is_empty() { self.blocks.news(&blocks).into() } else { words.into() }
        });
        let named = if is_thought { std::mem::take(&mut text) } else { Cow::default() };
        if !named.is_empty() {
            self.spoke = true;
            let told = self.tags.feed_thought(&named);
            self.tell(told, out);
        } else if !thought.is_empty() {
            self.tags.came_elsewhere(&thought);
            self.think(thought, out);
        }
        if !details.is_empty() || !blocks.is_empty() {
            self.settle(out);
        }
        self.details.take(details);
        self.blocks.take(blocks);
        self.refused |= !refusal.0.is_empty();
        if self.tags.is_over() {
            self.say(text, out);
        } else if !text.is_empty() {
            self.spoke = true;
            let told = self.tags.feed(&text);
            self.tell(told, out);
        }
        if !refusal.0.is_empty() {
            self.settle(out);
        }
        self.say(refusal.0, out);
        // llama-cpp-python says each call in both forms.
        let older = delta.function_call.filter(|_| delta.tool_calls.is_empty()).map(|function| Fragment {
            index: Some(0),
            function: Some(function),
            ..Fragment::default()
        });
        for fragment in delta.tool_calls.iter().chain(&older) {
            self.settle(out);
            self.pass_details_on(out);
            self.spoke = true;
            self.calls.push(fragment, out)?;
        }
        Ok(())
    }

    /// Says what a piece of text was. What was shown as the answer and is a thought is shown anew.
    fn tell(&mut self, told: Told, out: &mut VecDeque<ModelEvent>) {
        if told.taken_back > 0 {
            out.push_back(ModelEvent::Restarted);
            self.text_bytes = 0;
            self.tally.unsaid(told.taken_back);
        }
        self.think(told.thought.into(), out);
        self.say(told.text.into(), out);
    }

    /// Something else than text comes, so that the text before it stays.
    fn settle(&mut self, out: &mut VecDeque<ModelEvent>) {
        let held = self.tags.settle();
        self.say(held.into(), out);
    }

    fn think(&mut self, thought: Cow<'_, str>, out: &mut VecDeque<ModelEvent>) {
        if !thought.is_empty() {
            self.spoke = true;
            self.tally.said(thought.len());
            out.push_back(ModelEvent::Reasoning(storable(thought)));
        }
    }

    fn say(&mut self, text: Cow<'_, str>, out: &mut VecDeque<ModelEvent>) {
        if !text.is_empty() {
            self.pass_details_on(out);
            self.spoke = true;
            self.text_bytes += text.len();
            self.tally.said(text.len());
            out.push_back(ModelEvent::Text(storable(text)));
        }
    }

    /// Passes on the reasoning in the form that goes back: it is over.
    fn pass_details_on(&mut self, out: &mut VecDeque<ModelEvent>) {
        self.details.pass_on(out);
        self.blocks.pass_on(out);
    }

    /// The words for why a model stopped, of this dialect and of those that gateways translate it from.
    fn finish_word(&mut self, word: &str) -> Result<(), ModelError> {
        let lower = word.to_ascii_lowercase().replace('-', "_");
        // Gemini's compatible endpoint says `content_filter: RECITATION` and `function_call_filter: MALFORMED_FUNCTION_CALL`.
        let finish = match lower.split(": ").next().unwrap_or_default() {
            "stop" | "end" | "end_turn" | "eos" | "eos_token" | "stop_sequence" | "stop_token" | "complete" | "completed"
            // Baidu's.
            | "normal" => ModelFinish::Stop,
            "tool_calls" | "tool_call" | "tool_use" | "function_call" => ModelFinish::ToolCalls,
            "length"
            | "max_tokens"
            | "max_output_tokens"
            | "max_completion_tokens"
            | "max_length"
            | "maximum_tokens"
            // MiniMax's, and watsonx's, of their windows.
            | "max_output"
            | "token_limit"
            | "model_length"
            | "model_context_window_exceeded"
            // Cohere's, of its window.
            | "error_limit"
            // vLLM's, which cuts a model that says the same again and again.
            | "repetition" => ModelFinish::Length,
            "content_filter"
            | "content_filtered"
            | "guardrail_intervened"
            | "refusal"
            | "safety"
            | "sensitive"
            | "recitation"
            | "prohibited_content"
            | "blocklist"
            | "spii"
            | "language"
            | "model_armor"
            | "image_safety"
            | "image_prohibited_content"
            | "image_recitation"
            // GigaChat's.
            | "blacklist"
            // Cohere's.
            | "error_toxic" => ModelFinish::Refused,
            // Gateways that were told no reason, or one that they have no word for: what else says that the answer is whole counts.
            "other" | "unknown" | "not_finished" => return Ok(()),
            "insufficient_system_resource" => {
                return Err(ModelError::new(ModelErrorKind::Overloaded, "the provider ran out of capacity within the answer"));
            }
            "error" | "network_error" | "engine_error" => {
                return Err(ModelError::new(ModelErrorKind::Unavailable, "the provider broke off with an error"));
            }
            // watsonx's, and Cohere's.
            "time_limit" | "timeout" => {
                return Err(ModelError::new(ModelErrorKind::Timeout, "the provider broke off because it took too long"));
            }
            "abort" | "cancelled" | "canceled" | "user_cancel" => {
                return Err(ModelError::new(ModelErrorKind::IncompleteStream, "the provider broke off"));
            }
            "malformed_function_call" | "unexpected_tool_call" | "too_many_tool_calls" | "function_call_filter" => {
                return Err(ModelError::new(
                    ModelErrorKind::BadStream,
                    "the model wrote a tool call that its provider cannot read",
                ));
            }
            _ => {
                let message = format!("the model stopped for an unknown reason, {word:?}");
                return Err(ModelError::new(ModelErrorKind::BadStream, &message));
            }
        };
        // A cut or refused answer does not become whole by a second word.
        self.finish = match self.finish {
            Some(ModelFinish::Length | ModelFinish::Refused) => self.finish,
            Some(ModelFinish::Stop | ModelFinish::ToolCalls) | None => Some(finish),
        };
        Ok(())
    }
}
