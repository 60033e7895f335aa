//! The answer of a run as a chat completion, whole or in chunks.
//!
//! A chat completion cannot show calls of server tools, so it contains only the text before, between and after them. It cannot take
//! text back either: a repeated step must begin with the sent text, or the stream ends with an error.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::domain::event::{EventBody, StoredEvent};
use crate::domain::ids::PartId;
use crate::domain::model::Usage;
use crate::domain::problem::{ProblemBody, ProblemCode};
use crate::domain::run::question::InputKind;
use crate::domain::run::{FinishReason, Run, WaitReason};
use crate::domain::tool::client_tool::ClientCall;
use crate::http::clients::stream::{ChunkTranslator, push_chunk};
use crate::http::openai::content::{chat_usage, question_text};
use crate::http::openai::error;
use crate::http::openai::events::{Flow, Translator};
use crate::http::openai::ids::{derived, seconds};

/// The facts of a completion besides its answer.
#[derive(Default)]
pub(super) struct CompletionDetails {
    id: String,
    created: i64,
    model: String,
    include_usage: bool,
}

impl CompletionDetails {
    /// Returns the details of a run's completion. `model` is the model name in the request.
    pub(super) fn of(run: &Run, model: String, include_usage: bool) -> Self {
        Self { id: derived("chatcmpl-", run.id.as_str()), created: seconds(&run.created_at), model, include_usage }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Reasoning,
}

/// Translates the events of a run into one completion.
#[derive(Default)]
pub(super) struct Completion {
    facts: CompletionDetails,
    kinds: HashMap<PartId, Kind>,
    /// The text so far, without the text of reset steps.
    text: String,
    /// The length of the text when the step began.
    step_start: usize,
    /// The text that a stream has sent. It is longer than `text` while a reset step runs again.
    sent: String,
    /// Whether the answer does not begin with the sent text.
    is_torn: bool,
    reasoning: String,
    calls: Vec<ClientCall>,
    usage: Usage,
    /// The open question of the model to the user.
    question: Option<String>,
    end: Option<Result<&'static str, ProblemBody>>,
    flow: Flow,
    /// Whether the stream ends with `[DONE]`.
    is_done: bool,
    /// The chunks of the newest event.
    chunks: Vec<Value>,
}

impl Completion {
    pub(super) fn new(facts: CompletionDetails) -> Self {
        Self { facts, ..Self::default() }
    }

    /// Returns the whole completion, or the problem of a run without an answer.
    pub(super) fn answer(self) -> Result<Value, Box<ProblemBody>> {
        let Self { facts, text, reasoning, calls, usage, end, .. } = self;
        let finish_reason = end.unwrap_or(Ok("stop")).map_err(Box::new)?;
        let mut message = json!({ "role": "assistant", "content": text, "refusal": null });
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.into();
        }
        if !calls.is_empty() {
            if text.is_empty() {
                message["content"] = Value::Null;
            }
            message["tool_calls"] = calls.iter().map(wire_call).collect();
        }
        Ok(json!({
            "id": facts.id,
            "object": "chat.completion",
            "created": facts.created,
            "model": facts.model,
            "choices": [{ "index": 0, "message": message, "logprobs": null, "finish_reason": finish_reason }],
            "usage": chat_usage(&usage),
        }))
    }

    fn chunk(&mut self, delta: &Value, finish_reason: Option<&str>) {
        let CompletionDetails { id, created, model, include_usage } = &self.facts;
        let choice = json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish_reason });
        let mut chunk = json!({
            "id": id, "object": "chat.completion.chunk", "created": created, "model": model, "choices": [choice]
        });
        if *include_usage {
            chunk["usage"] = Value::Null;
        }
        self.chunks.push(chunk);
    }

    fn delta(&mut self, part: &PartId, delta: &str) {
        match self.kinds.get(part) {
            Some(Kind::Text) => self.add_text(delta),
            Some(Kind::Reasoning) => {
                self.reasoning.push_str(delta);
                self.chunk(&json!({ "reasoning_content": delta }), None);
            }
            None => {}
        }
    }

    /// Begins another paragraph, if there is a text.
    fn separate_text(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.add_text("\n\n");
        }
    }

    fn add_text(&mut self, delta: &str) {
        if self.sent.len() == self.text.len() {
            self.text.push_str(delta);
            self.sent.push_str(delta);
            return self.chunk(&json!({ "content": delta }), None);
        }
        self.text.push_str(delta);
        if self.sent.starts_with(&self.text) {
            return;
        }
        match self.text.strip_prefix(&self.sent).map(str::to_owned) {
            Some(rest) => {
                self.sent.push_str(&rest);
                self.chunk(&json!({ "content": rest }), None);
            }
            None => self.is_torn = true,
        }
    }

    fn finish(&mut self, reason: &'static str, flow: Flow) -> Flow {
        if self.is_torn || self.sent.len() > self.text.len() {
            let detail = "the model began its answer again, after a part of it was sent; repeat the request";
            self.fail(&ProblemCode::ProviderBadStream.body(detail));
            // A completion without a stream still has the whole answer.
            self.end = Some(Ok(reason));
            return flow;
        }
        self.end = Some(Ok(reason));
        self.chunk(&json!({}), Some(reason));
        if self.facts.include_usage {
            let CompletionDetails { id, created, model, .. } = &self.facts;
            let usage = chat_usage(&self.usage);
            let chunk = json!({
                "id": id, "object": "chat.completion.chunk", "created": created, "model": model, "choices": [], "usage": usage
            });
            self.chunks.push(chunk);
        }
        self.is_done = true;
        flow
    }

    fn fail(&mut self, problem: &ProblemBody) -> Flow {
        self.chunks.push(json!({ "error": error::error(problem) }));
        self.end = Some(Err(problem.clone()));
        Flow::End
    }

    fn apply(&mut self, body: EventBody) -> Flow {
        match body {
            EventBody::RunQueued { .. } => self.chunk(&json!({ "role": "assistant", "content": "" }), None),
            EventBody::StepStarted { .. } => self.step_start = self.text.len(),
            EventBody::StepReset { reason, .. } if reason != "continuation" => self.text.truncate(self.step_start),
            EventBody::PartStarted { part_id, kind, .. } => match kind.as_str() {
                "text" => {
                    self.kinds.insert(part_id, Kind::Text);
                    self.separate_text();
                }
                "reasoning" => {
                    self.kinds.insert(part_id, Kind::Reasoning);
                }
                _ => {}
            },
            EventBody::PartDelta { part_id, delta } => self.delta(&part_id, &delta),
            EventBody::StepCompleted { usage: Some(usage), .. } => self.usage.add(usage),
            EventBody::ToolRequested { call } => {
                let mut wire = wire_call(&call);
                wire["index"] = self.calls.len().into();
                self.calls.push(call);
                self.chunk(&json!({ "tool_calls": [wire] }), None);
            }
            EventBody::InputRequested { kind: InputKind::Question, question, .. } => self.question = Some(question_text(&question)),
            EventBody::InputResolved { .. } => self.question = None,
            EventBody::RunWaiting { reason: WaitReason::ClientTool, .. } => {
                return self.finish("tool_calls", Flow::Suspended);
            }
            EventBody::RunWaiting { reason: reason @ (WaitReason::Approval | WaitReason::Input), .. } => {
                // The next request repeats the question as a message of the assistant, before the user's answer.
                if let (WaitReason::Input, Some(question)) = (reason, self.question.take()) {
                    self.separate_text();
                    self.add_text(&question);
                    return self.finish("stop", Flow::Suspended);
                }
                let detail = "the agent waits for a human's answer, which chat completions cannot carry: use /v1/responses or the native API";
                self.fail(&ProblemCode::Conflict.body(detail));
                return Flow::Suspended;
            }
            EventBody::RunCompleted { finish_reason, usage, .. } => {
                self.usage = usage;
                return self.finish(wire_reason(finish_reason), Flow::End);
            }
            EventBody::RunFailed { error } => return self.fail(&error),
            EventBody::RunCancelled { .. } => {
                return self.fail(&ProblemCode::Conflict.body("the run was cancelled"));
            }
            _ => {}
        }
        Flow::Continue
    }
}

fn wire_call(call: &ClientCall) -> Value {
    let function = json!({ "name": call.name, "arguments": call.arguments.to_string() });
    json!({ "id": call.call_id, "type": "function", "function": function })
}

impl ChunkTranslator for Completion {
    fn translate(&mut self, event: &StoredEvent) -> Vec<Value> {
        if let Some(body) = event.body() {
            self.flow = self.apply(body);
        }
        std::mem::take(&mut self.chunks)
    }

    fn is_over(&self) -> bool {
        self.flow != Flow::Continue
    }
}

impl Translator for Completion {
    fn flow(&self) -> Flow {
        self.flow
    }

    fn interrupt(&mut self, problem: &ProblemBody) -> Vec<Value> {
        self.fail(problem);
        std::mem::take(&mut self.chunks)
    }

    fn write(&self, chunks: &[Value], out: &mut String) {
        for chunk in chunks {
            out.push_str("data: ");
            push_chunk(out, chunk);
        }
        if self.is_done {
            out.push_str("data: [DONE]\n\n");
        }
    }
}

fn wire_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::Length | FinishReason::MaxRounds | FinishReason::Budget => "length",
        FinishReason::Refused => "content_filter",
        FinishReason::Cancelled => "stop",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::event::NewEvent;
    use crate::domain::ids::{CallId, ConversationId, MessageId, RunId};
    use crate::support::clock::UnixMillis;
    use crate::support::ids::{SequentialIds, UuidIds};

    struct Log {
        ids: SequentialIds,
        frames: Vec<Value>,
        completion: Completion,
        flow: Flow,
        done: bool,
    }

    impl Log {
        fn new() -> Self {
            let facts = CompletionDetails { id: "chatcmpl-1".to_owned(), created: 1, model: "m".to_owned(), include_usage: true };
            let mut log = Self {
                ids: SequentialIds::default(),
                frames: Vec::new(),
                completion: Completion::new(facts),
                flow: Flow::Continue,
                done: false,
            };
            log.add(EventBody::RunQueued { position: 0, supersedes: Vec::new() });
            log
        }

        fn add(&mut self, body: EventBody) {
            let run = RunId::generate(&UuidIds);
            let stored = NewEvent::new(&body, Some(run), 1, UnixMillis(0)).stored(ConversationId::generate(&UuidIds), 1);
            let mut frames = String::new();
            let chunks = self.completion.translate(&stored);
            self.completion.write(&chunks, &mut frames);
            self.flow = self.completion.flow();
            for frame in frames.split_terminator("\n\n") {
                match frame.strip_prefix("data: ").unwrap() {
                    "[DONE]" => self.done = true,
                    json => self.frames.push(serde_json::from_str(json).unwrap()),
                }
            }
        }

        fn part(&mut self, kind: &str, deltas: &[&str]) {
            let (message_id, part_id) = (MessageId::generate(&self.ids), PartId::generate(&self.ids));
            let (kind, call_id) = (kind.to_owned(), None);
            self.add(EventBody::PartStarted { message_id, part_id: part_id.clone(), index: 0, kind, call_id, name: None });
            for delta in deltas {
                self.add(EventBody::PartDelta { part_id: part_id.clone(), delta: (*delta).to_owned() });
            }
        }

        fn step(&mut self, step: u32) {
            self.add(EventBody::StepStarted { step, kind: "model".to_owned(), tools: None });
        }

        fn completed(&mut self, finish_reason: FinishReason) {
            let usage = Usage { input_tokens: 7, output_tokens: 3, ..Usage::default() };
            self.add(EventBody::RunCompleted { finish_reason, usage, output: None, error: None, notice: None });
        }

        fn deltas(&self, field: &str) -> Vec<&Value> {
            let deltas = self.frames.iter().filter_map(|frame| frame["choices"][0]["delta"].get(field));
            deltas.collect()
        }
    }

    #[test]
    fn run_becomes_chunks_with_usage_and_done() {
        let mut log = Log::new();
        log.step(1);
        log.part("reasoning", &["hm"]);
        log.part("text", &["Hel", "lo"]);
        log.completed(FinishReason::Stop);
        assert_eq!(log.deltas("content"), [&json!(""), &json!("Hel"), &json!("lo")]);
        assert_eq!(log.deltas("reasoning_content"), [&json!("hm")]);
        let [.., last, usage] = log.frames.as_slice() else { panic!("two last chunks") };
        assert_eq!((&last["choices"][0]["finish_reason"], &last["usage"]), (&json!("stop"), &Value::Null));
        assert_eq!((&usage["choices"], &usage["usage"]["total_tokens"]), (&json!([]), &json!(10)));
        assert!(log.done && log.flow == Flow::End);
        let answer = log.completion.answer().unwrap();
        let message = &answer["choices"][0]["message"];
        assert_eq!((&message["content"], &message["reasoning_content"]), (&json!("Hello"), &json!("hm")));
    }

    #[test]
    fn client_call_ends_completion_with_tool_calls() {
        let mut log = Log::new();
        log.step(1);
        let call_id = CallId::generate(&UuidIds);
        let call = ClientCall { call_id: call_id.clone(), name: "look".to_owned(), arguments: json!({"at": 1}), expires_at: None };
        log.add(EventBody::ToolRequested { call });
        log.add(EventBody::RunWaiting { reason: WaitReason::ClientTool, id: None, detail: None });
        let calls = log.deltas("tool_calls");
        let function = json!({"name": "look", "arguments": "{\"at\":1}"});
        assert_eq!(*calls[0], json!([{"id": call_id, "type": "function", "function": function, "index": 0}]));
        assert!(log.done && log.flow == Flow::Suspended);
        let answer = log.completion.answer().unwrap();
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
        assert_eq!(answer["choices"][0]["message"]["content"], Value::Null);
    }

    #[test]
    fn repeated_step_sends_no_text_twice() {
        let mut log = Log::new();
        log.step(1);
        log.part("text", &["Hello wor"]);
        log.add(EventBody::StepReset { step: 1, reason: "retry".to_owned() });
        log.step(1);
        log.part("text", &["Hel", "lo world"]);
        log.completed(FinishReason::Stop);
        assert_eq!(log.deltas("content"), [&json!(""), &json!("Hello wor"), &json!("ld")]);
        assert!(log.done);
    }

    #[test]
    fn step_with_other_text_ends_stream_with_error() {
        let mut log = Log::new();
        log.step(1);
        log.part("text", &["Hello"]);
        log.add(EventBody::StepReset { step: 1, reason: "crash".to_owned() });
        log.step(1);
        log.part("text", &["Good day"]);
        log.completed(FinishReason::Stop);
        let last = log.frames.last().unwrap();
        assert!(last["error"]["message"].as_str().unwrap().contains("began its answer again"), "{last}");
        assert!(!log.done, "a torn answer is no success");
        assert_eq!(log.completion.answer().unwrap()["choices"][0]["message"]["content"], "Good day");
    }

    #[test]
    fn failed_run_ends_stream_with_error() {
        let mut log = Log::new();
        log.add(EventBody::RunFailed { error: ProblemCode::ProviderAuth.body("the key is wrong") });
        assert_eq!(log.frames.last().unwrap()["error"]["code"], "provider_auth");
        assert!(!log.done && log.flow == Flow::End);
        assert_eq!(log.completion.answer().unwrap_err().status, 502);
    }
}
