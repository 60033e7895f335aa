//! The answer assembler: makes the events of one answer from deltas of any dialect.
//!
//! Owns the order of events, the limit of calls, the usage, the stop reason, and the frame count for errors. Must not know the fields of a
//! dialect. The engine makes parts and their ids from these events.

use std::borrow::Cow;
use std::collections::VecDeque;

use serde::Deserialize;
use serde_json::Value;

use crate::domain::conversation::BinaryContent;
use crate::domain::conversation::file::{default_name, whole_picture};
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelFinish, Source};
use crate::provider::errors::failure;
use crate::provider::stream::lenient::storable_text;
use crate::provider::stream::reasoning_tags::{ReasoningTags, SplitText};
use crate::provider::stream::usage::{ReportedUsage, UsageCounter};

/// A limit above the number of tool calls in any real answer.
const MAX_CALLS: usize = 1_000;

/// The most pictures of one answer; further ones are left out.
const MAX_PICTURES: usize = 16;
/// The most sources of one answer; further ones are left out.
const MAX_SOURCES: usize = 100;

/// The state of one answer that all dialects share.
#[derive(Debug)]
pub(in crate::provider) struct AnswerAssembler {
    max_output_tokens: Option<u32>,
    pub(super) ready: VecDeque<ModelEvent>,
    pub(super) frames: u64,
    calls: usize,
    text_bytes: usize,
    pictures: Vec<String>,
    sources: Vec<Source>,
    pub(in crate::provider) tags: ReasoningTags,
    pub(in crate::provider) usage: UsageCounter,
    pub(in crate::provider) finish: Option<ModelFinish>,
    /// Whether an end mark arrived.
    pub(in crate::provider) is_ended: bool,
    /// Whether a complete message arrived in one event, after which no content follows.
    pub(in crate::provider) is_message: bool,
    pub(in crate::provider) is_refused: bool,
}

/// Returns the failure of an answer that was cut.
pub(in crate::provider) fn incomplete(why: &str) -> ModelError {
    ModelError::new(ModelErrorKind::IncompleteStream, why)
}

impl AnswerAssembler {
    pub(in crate::provider) fn new(max_output_tokens: Option<u32>, request_bytes: usize) -> Self {
        Self {
            max_output_tokens,
            ready: VecDeque::new(),
            frames: 0,
            calls: 0,
            text_bytes: 0,
            pictures: Vec::new(),
            sources: Vec::new(),
            tags: ReasoningTags::without_tag_detection(&[]),
            usage: UsageCounter::new(request_bytes),
            finish: None,
            is_ended: false,
            is_message: false,
            is_refused: false,
        }
    }

    /// Separates reasoning between tags from the text.
    pub(in crate::provider) fn with_tags(self, tags: ReasoningTags) -> Self {
        Self { tags, ..self }
    }

    /// Parses an event that is one JSON object. For other text, returns the failure that it reports in another shape, or `bad_frame`.
    pub(in crate::provider) fn parse<'a, T: Deserialize<'a>>(&self, json: &'a str) -> Result<T, ModelError> {
        // serde would read a list as the fields of an object.
        if !json.starts_with('{') {
            return Err(self.frame_failure(json, "it is not a JSON object"));
        }
        serde_json::from_str(json).map_err(|error| self.frame_failure(json, &error.to_string()))
    }

    /// Returns the failure that JSON other than an event reports, or `bad_frame`.
    pub(in crate::provider) fn frame_failure(&self, json: &str, why: &str) -> ModelError {
        failure::check_for_unusual_error(json).err().unwrap_or_else(|| self.bad_frame(why))
    }

    pub(in crate::provider) fn bad_frame(&self, why: &str) -> ModelError {
        ModelError::new(ModelErrorKind::BadStream, &format!("bad_frame: event {} of the answer: {why}", self.frames))
    }

    /// Emits an event and counts its output of the model.
    pub(in crate::provider) fn emit(&mut self, event: ModelEvent) {
        self.usage.answer_bytes += match &event {
            ModelEvent::Text(text) => {
                self.text_bytes += text.len();
                text.len()
            }
            ModelEvent::Reasoning(text) => text.len(),
            ModelEvent::ToolCallStarted { name, .. } => name.len(),
            ModelEvent::ToolCallArguments { delta, .. } => delta.len(),
            _ => 0,
        };
        self.ready.push_back(event);
    }

    pub(in crate::provider) fn text(&mut self, text: Cow<'_, str>) {
        if !text.is_empty() {
            self.emit(ModelEvent::Text(storable_text(text)));
        }
    }

    pub(in crate::provider) fn reasoning(&mut self, text: Cow<'_, str>) {
        if !text.is_empty() {
            self.emit(ModelEvent::Reasoning(storable_text(text)));
        }
    }

    /// Emits a complete picture once, because providers repeat pictures at the end. Other data becomes a note.
    pub(in crate::provider) fn picture(&mut self, base64: &str) {
        let base64: String = base64.split_ascii_whitespace().collect();
        let Some((media_type, data)) = whole_picture(&base64) else { return self.text("[a picture that cannot be shown]".into()) };
        if self.pictures.len() == MAX_PICTURES || self.pictures.contains(&data) {
            return;
        }
        self.pictures.push(data.clone());
        self.emit(ModelEvent::Picture(BinaryContent::inline(media_type, Some(default_name(media_type)), data)));
    }

    /// Emits a picture of a `data:` URL. A picture at an https URL becomes a link.
    pub(in crate::provider) fn picture_at(&mut self, url: &str) {
        match url.split_once(";base64,").filter(|(head, _)| head.starts_with("data:")) {
            Some((_, base64)) => self.picture(base64),
            None if url.starts_with("https://") => self.text(format!("![picture]({url})").into()),
            None => {}
        }
    }

    /// Emits the sources that came for the first time.
    pub(in crate::provider) fn add_sources(&mut self, value: &Value) {
        for source in read_sources(value) {
            if self.sources.len() == MAX_SOURCES || self.sources.iter().any(|known| known.is_same(&source)) {
                continue;
            }
            self.sources.push(source.clone());
            self.emit(ModelEvent::Source(source));
        }
    }

    /// Emits a piece of text. Text that was emitted as the answer and turns out to be reasoning is emitted again as reasoning.
    pub(in crate::provider) fn split_text(&mut self, split: SplitText) {
        self.void_text(split.voided_bytes);
        self.reasoning(split.reasoning.into());
        self.text(split.text.into());
    }

    /// Voids the emitted content if `bytes` of its text turned out to be reasoning.
    pub(in crate::provider) fn void_text(&mut self, bytes: usize) {
        if bytes > 0 {
            self.emit(ModelEvent::Restarted);
            (self.pictures, self.sources) = (Vec::new(), Vec::new());
            self.text_bytes = 0;
            self.usage.answer_bytes = self.usage.answer_bytes.saturating_sub(bytes);
        }
    }

    /// Returns the index of a new tool call.
    pub(in crate::provider) fn open_call(&mut self) -> Result<usize, ModelError> {
        if self.calls == MAX_CALLS {
            let message = format!("the answer has more than {MAX_CALLS} tool calls");
            return Err(ModelError::new(ModelErrorKind::BadStream, &message));
        }
        self.calls += 1;
        Ok(self.calls - 1)
    }

    pub(in crate::provider) fn start_call(&mut self, index: usize, provider_call_id: String, name: String) {
        self.emit(ModelEvent::ToolCallStarted { index, provider_call_id, name });
    }

    pub(in crate::provider) fn call_arguments(&mut self, index: usize, delta: String) {
        if !delta.is_empty() {
            self.emit(ModelEvent::ToolCallArguments { index, delta });
        }
    }

    #[cfg(test)]
    pub(in crate::provider) fn events(&self) -> &VecDeque<ModelEvent> {
        &self.ready
    }

    pub(in crate::provider) fn has_calls(&self) -> bool {
        self.calls > 0
    }

    pub(in crate::provider) fn has_content(&self) -> bool {
        self.text_bytes > 0 || self.calls > 0 || !self.pictures.is_empty()
    }

    /// Voids all earlier content, because the model restarts its answer.
    pub(in crate::provider) fn restart(&mut self) {
        (self.calls, self.text_bytes, self.finish) = (0, 0, None);
        (self.pictures, self.sources) = (Vec::new(), Vec::new());
        (self.is_ended, self.is_message, self.is_refused) = (false, false, false);
        self.usage = UsageCounter::new(self.usage.request_bytes);
        self.emit(ModelEvent::Restarted);
    }

    /// Stores the stop reason. A second reason does not complete a cut or refused answer.
    pub(in crate::provider) fn stop(&mut self, finish: ModelFinish) {
        match self.finish {
            Some(ModelFinish::Length | ModelFinish::Refused) => {}
            Some(ModelFinish::Stop | ModelFinish::ToolCalls) | None => self.finish = Some(finish),
        }
    }

    pub(in crate::provider) fn add_usage(&mut self, reported: impl Into<ReportedUsage>) {
        self.usage.take(reported.into());
    }

    /// Returns whether the answer has as many tokens as the request allows.
    pub(in crate::provider) fn is_at_limit(&self) -> bool {
        let output = self.usage.reported.output.filter(|_| self.usage.is_reported());
        self.max_output_tokens.zip(output).is_some_and(|(limit, output)| output >= u64::from(limit))
    }

    /// Emits the end of the answer. Its calls decide the finish, not the provider's reason.
    pub(super) fn end(&mut self, finish: ModelFinish) {
        let finish = match finish {
            _ if self.is_refused => ModelFinish::Refused,
            // Some servers report an answer that reached its limit as one with tool calls. Its last call may be cut.
            ModelFinish::Stop | ModelFinish::ToolCalls if self.calls > 0 && self.is_at_limit() => ModelFinish::Length,
            ModelFinish::Stop | ModelFinish::ToolCalls if self.calls > 0 => ModelFinish::ToolCalls,
            // The engine decides about an answer without content.
            ModelFinish::Stop | ModelFinish::ToolCalls | ModelFinish::Length | ModelFinish::Refused => finish,
        };
        self.emit(ModelEvent::Usage(self.usage.usage()));
        self.emit(ModelEvent::Finished(finish));
    }
}

/// Objects that hold the source itself: of OpenAI, and of Gemini.
const INNER: [&str; 4] = ["url_citation", "web", "retrievedContext", "retrieved_context"];

/// Returns the sources in a list of addresses or citations, or in one of them.
fn read_sources(value: &Value) -> Vec<Source> {
    match value {
        Value::Array(items) => items.iter().filter_map(source).collect(),
        Value::String(_) | Value::Object(_) => source(value).into_iter().collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => Vec::new(),
    }
}

fn source(item: &Value) -> Option<Source> {
    if let Value::String(url) = item {
        return Source::new(url, "", "");
    }
    let fields = INNER.iter().find_map(|name| item.get(name)).unwrap_or(item);
    let word = |names: [&str; 2]| names.iter().find_map(|name| fields.get(name)?.as_str()).unwrap_or_default();
    Source::new(word(["url", "uri"]), word(["title", "document_title"]), word(["cited_text", "snippet"]))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::no_call(ModelFinish::Stop, 0, 1, ModelFinish::Stop)]
    #[case::no_call_but_the_reason(ModelFinish::ToolCalls, 0, 1, ModelFinish::ToolCalls)]
    #[case::call_without_the_reason(ModelFinish::Stop, 1, 1, ModelFinish::ToolCalls)]
    #[case::call_at_the_limit(ModelFinish::ToolCalls, 1, 9, ModelFinish::Length)]
    #[case::text_at_the_limit(ModelFinish::Stop, 0, 9, ModelFinish::Stop)]
    #[case::cut(ModelFinish::Length, 1, 1, ModelFinish::Length)]
    fn finish_follows_calls_and_token_limit(
        #[case] stated: ModelFinish,
        #[case] calls: usize,
        #[case] output: u64,
        #[case] expected: ModelFinish,
    ) {
        let mut answer = AnswerAssembler::new(Some(9), 0);
        for _ in 0..calls {
            answer.open_call().unwrap();
        }
        answer.add_usage(ReportedUsage { input: Some(1), output: Some(output), ..ReportedUsage::default() });
        answer.end(stated);
        assert_eq!(answer.ready.pop_back(), Some(ModelEvent::Finished(expected)));
    }

    #[test]
    fn call_above_the_limit_fails_the_answer() {
        let mut answer = AnswerAssembler::new(None, 0);
        let last = (0..MAX_CALLS).map(|_| answer.open_call().unwrap()).last();
        assert_eq!(last, Some(MAX_CALLS - 1));
        assert_eq!(answer.open_call().unwrap_err().kind, ModelErrorKind::BadStream);
    }

    #[test]
    fn second_reason_does_not_complete_a_cut_answer() {
        let mut answer = AnswerAssembler::new(None, 0);
        for (stated, expected) in [
            (ModelFinish::Stop, ModelFinish::Stop),
            (ModelFinish::Length, ModelFinish::Length),
            (ModelFinish::Stop, ModelFinish::Length),
        ] {
            answer.stop(stated);
            assert_eq!(answer.finish, Some(expected));
        }
    }
}
