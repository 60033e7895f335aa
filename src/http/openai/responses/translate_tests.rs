//! Runs as responses: their items, their frames, and the same frames after each cut.

use super::*;
use crate::domain::agent::AgentProfile;
use crate::domain::conversation::message::{Message, ReasoningPart, Role, TextPart, ToolCallPart, ToolContent};
use crate::domain::event::NewEvent;
use crate::domain::ids::{ConversationId, InputId, MessageId, RunId};
use crate::domain::problem::ProblemCode;
use crate::domain::run::question::{InputKind, InputState, Question};
use crate::domain::run::{Run, RunStatus, WaitReason};
use crate::domain::tool::approval::{ApprovalRequest, ApprovalState};
use crate::domain::tool::client_tool::{ClientCall, ClientTool};
use crate::support::clock::UnixMillis;
use crate::support::ids::SequentialIds;

struct Log {
    ids: SequentialIds,
    run: Run,
    events: Vec<StoredEvent>,
}

fn run(ids: &SequentialIds) -> Run {
    Run {
        id: RunId::generate(ids),
        conversation_id: ConversationId::generate(ids),
        status: RunStatus::Processing,
        reason: None,
        agent: "default".to_owned(),
        agent_version: 1,
        model: "acme/large".to_owned(),
        attempt: 1,
        finish_reason: None,
        usage: None,
        output: None,
        error: None,
        trace_id: None,
        created_at: "2026-01-01T00:00:00.000Z".to_owned(),
        started_at: None,
        finished_at: None,
    }
}

impl Log {
    fn new() -> Self {
        let ids = SequentialIds::default();
        let run = run(&ids);
        let mut log = Self { ids, run, events: Vec::new() };
        let of = (log.run.id.clone(), log.run.conversation_id.clone());
        let message = Message::new(MessageId::generate(&log.ids), of, Role::User, Vec::new());
        log.add(EventBody::MessageCreated { message });
        log.add(EventBody::RunQueued { position: 0, supersedes: Vec::new() });
        let (model, agent) = (log.run.model.clone(), log.run.agent.clone());
        log.add(EventBody::RunStarted { model, agent, agent_version: 1, left_out: Vec::new() });
        log
    }

    fn add(&mut self, body: EventBody) {
        // Events of other runs lie between those of this one.
        let seq = 40 + 3 * i64::try_from(self.events.len()).unwrap();
        let event = NewEvent::new(&body, Some(self.run.id.clone()), 1, UnixMillis(1_767_225_600_000 + seq));
        self.events.push(event.stored(self.run.conversation_id.clone(), seq));
    }

    fn step(&mut self, step: u32) {
        self.add(EventBody::StepStarted { step, kind: "model".to_owned(), tools: None });
    }

    fn part(&mut self, kind: &str, deltas: &[&str], is_complete: bool) {
        let (message_id, id) = (MessageId::generate(&self.ids), PartId::generate(&self.ids));
        let (call_id, name) = (None, None);
        let (part_id, kind_name) = (id.clone(), kind.to_owned());
        self.add(EventBody::PartStarted { message_id: message_id.clone(), part_id, index: 0, kind: kind_name, call_id, name });
        for delta in deltas {
            self.add(EventBody::PartDelta { part_id: id.clone(), delta: (*delta).to_owned() });
        }
        let text = deltas.concat();
        if is_complete {
            let part = match kind {
                "text" => Part::Text(TextPart { id, text }),
                _ => Part::Reasoning(ReasoningPart { id, text, raw: None }),
            };
            self.add(EventBody::PartCompleted { message_id, part });
        }
    }

    fn call(&mut self, name: &str, is_error: bool) {
        let call_id = CallId::generate(&self.ids);
        self.add(EventBody::ToolStarted {
            call_id: call_id.clone(),
            name: name.to_owned(),
            server: None,
            arguments: json!({"path": "a"}),
            repair: None,
            undoes: None,
        });
        self.result(call_id, name, is_error);
    }

    /// Adds a call that is refused before it starts.
    fn refused_call(&mut self, name: &str) {
        let (message_id, id, call_id) = (MessageId::generate(&self.ids), PartId::generate(&self.ids), CallId::generate(&self.ids));
        let part = ToolCallPart::new(id, call_id.clone(), name.to_owned(), json!({"path": "b"}));
        self.add(EventBody::PartCompleted { message_id, part: Part::ToolCall(part) });
        self.result(call_id, name, true);
    }

    fn result(&mut self, call_id: CallId, name: &str, is_error: bool) {
        self.add(EventBody::ToolCompleted {
            call_id,
            name: name.to_owned(),
            server: None,
            state: if is_error { ToolCallState::Failed } else { ToolCallState::Done },
            content: vec![ToolContent::text("the result")],
            is_error,
            duration_ms: 1,
            truncated: false,
            undoable: false,
        });
    }

    fn ask_client(&mut self) -> CallId {
        let call_id = CallId::generate(&self.ids);
        let (name, arguments) = ("look".to_owned(), json!({"at": 1}));
        let started = EventBody::ToolStarted {
            call_id: call_id.clone(),
            name: name.clone(),
            server: None,
            arguments: arguments.clone(),
            repair: None,
            undoes: None,
        };
        self.add(started);
        self.add(EventBody::ToolRequested { call: ClientCall { call_id: call_id.clone(), name, arguments, expires_at: None } });
        self.add(EventBody::RunWaiting { reason: WaitReason::ClientTool, id: None, detail: None });
        call_id
    }

    fn completed(&mut self, finish_reason: FinishReason) {
        self.add(EventBody::RunCompleted { finish_reason, usage: Usage::default(), output: None, error: None, notice: None });
    }

    fn translator(&self, segment: u32, after: Option<i64>) -> ResponseTranslator {
        let client_tools = vec![ClientTool { name: "look".to_owned(), description: String::new(), parameters: None }];
        let profile = AgentProfile { client_tools, ..AgentProfile::default() };
        ResponseTranslator::new(ResponseDetails::of(&self.run, segment, &profile, &Value::Null), after)
    }

    /// Returns the frames of a response, and the response.
    fn read(&self, segment: u32, after: Option<i64>) -> (Vec<Value>, Value) {
        let mut translator = self.translator(segment, after);
        let mut frames = String::new();
        for event in &self.events {
            let chunks = translator.translate(event);
            translator.write(&chunks, &mut frames);
            if translator.is_over() {
                break;
            }
        }
        (parsed(&frames), translator.response())
    }
}

fn parsed(frames: &str) -> Vec<Value> {
    let frames = frames.strip_suffix("data: [DONE]\n\n").unwrap().split_terminator("\n\n").map(|frame| {
        let (name, data) = frame.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        data
    });
    frames.collect()
}

fn kinds(frames: &[Value]) -> Vec<&str> {
    frames.iter().map(|frame| frame["type"].as_str().unwrap().strip_prefix("response.").unwrap()).collect()
}

/// Returns a run with every kind of item, a step that began again, and two answers of its client.
fn eventful() -> Log {
    let mut log = Log::new();
    log.step(1);
    log.part("reasoning", &["so", "me"], true);
    log.part("text", &["Hello wor"], false);
    log.add(EventBody::StepReset { step: 1, reason: "crash".to_owned() });
    log.part("text", &["Hello", " world"], true);
    log.call("files__read", false);
    log.call("calculate", true);
    log.ask_client();
    log.add(EventBody::RunResumed { cause: "request".to_owned() });
    log.step(3);
    let (id, call_id) = (InputId::generate(&log.ids), Some(CallId::generate(&log.ids)));
    let request = ApprovalRequest {
        name: "mail__send".to_owned(),
        server: Some("mail".to_owned()),
        tool: "send".to_owned(),
        description: String::new(),
        arguments: json!({"to": "b"}),
        arguments_hash: String::new(),
        rationale: None,
        preview: String::new(),
        destructive: false,
        undoable: false,
        scopes: Vec::new(),
    };
    log.add(EventBody::ApprovalRequested { id, call_id, request: Box::new(request) });
    log.add(EventBody::RunWaiting { reason: WaitReason::Approval, id: None, detail: None });
    log.add(EventBody::RunResumed { cause: "request".to_owned() });
    log.step(5);
    log.part("text", &["Done", "."], true);
    log.completed(FinishReason::Stop);
    log
}

#[test]
fn text_run_has_the_minimal_grammar() {
    let mut log = Log::new();
    log.step(1);
    log.part("text", &["Hel", "lo"], true);
    log.add(EventBody::StepCompleted { step: 1, usage: Some(Usage { input_tokens: 5, output_tokens: 2, ..Usage::default() }) });
    log.completed(FinishReason::Stop);
    let (frames, response) = log.read(0, None);
    let expected = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ];
    assert_eq!(kinds(&frames), expected);
    assert_eq!((&response["status"], &response["output"][0]["content"][0]["text"]), (&json!("completed"), &json!("Hello")));
    assert_eq!((&response["usage"]["total_tokens"], &response["model"]), (&json!(7), &json!("acme/large")));
    assert_eq!(frames.last().unwrap()["response"], response);
    assert_eq!(response["id"], log.run.id.as_str().replace("run_", "resp_"));
}

#[test]
fn run_has_one_response_for_each_answer_of_its_client() {
    let log = eventful();
    let (frames, first) = log.read(0, None);
    let types = |response: &Value| -> Vec<String> {
        response["output"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap().to_owned()).collect()
    };
    // The first text and the reasoning before it were taken back.
    assert_eq!(types(&first), ["message", "mcp_call", "mcp_call", "function_call"]);
    let output = first["output"].as_array().unwrap();
    assert_eq!((&output[1]["server_label"], &output[1]["name"]), (&json!("files"), &json!("read")));
    assert_eq!((&output[1]["output"], &output[2]["status"]), (&json!("the result"), &json!("failed")));
    assert_eq!((&output[2]["server_label"], &output[3]["arguments"]), (&json!("capstan"), &json!("{\"at\":1}")));
    let incomplete: Vec<&Value> = frames.iter().filter(|frame| frame["item"]["status"] == "incomplete").collect();
    assert_eq!((incomplete.len(), &incomplete[0]["type"]), (1, &json!("response.output_item.done")));
    let (frames, second) = log.read(1, None);
    assert_eq!(types(&second), ["mcp_approval_request"]);
    assert_eq!(kinds(&frames), ["created", "in_progress", "output_item.added", "output_item.done", "completed"]);
    assert_eq!(second["previous_response_id"], first["id"]);
    let (_, third) = log.read(2, None);
    assert_eq!((types(&third), &third["previous_response_id"]), (vec!["message".to_owned()], &second["id"]));
    let mut translator = log.translator(3, None);
    let chunks: Vec<Value> = log.events.iter().flat_map(|event| translator.translate(event)).collect();
    assert_eq!(chunks, [Value::Null; 0], "there is no fourth response");
}

#[test]
fn question_is_a_message_until_it_is_answered() {
    let mut log = Log::new();
    log.step(1);
    let (id, call_id) = (InputId::generate(&log.ids), Some(CallId::generate(&log.ids)));
    let question = Question { text: "Which?".to_owned(), ..Question::default() };
    log.add(EventBody::InputRequested { id: id.clone(), kind: InputKind::Question, call_id, question });
    let waiting = || EventBody::RunWaiting { reason: WaitReason::Input, id: None, detail: None };
    log.add(waiting());
    log.add(EventBody::RunResumed { cause: "request".to_owned() });
    // Another call has woken the run.
    log.add(waiting());
    log.add(EventBody::InputResolved { id, state: InputState::Answered, answer: None, by: None });
    log.completed(FinishReason::Stop);
    for segment in [0, 1] {
        let (frames, response) = log.read(segment, None);
        assert_eq!(response["output"][0]["content"][0]["text"], "Which?", "{response}");
        assert_eq!((*kinds(&frames).last().unwrap(), &response["status"]), ("completed", &json!("completed")));
    }
    assert_eq!(log.read(2, None).1["output"], json!([]));
}

// The worker claims the run at the first of two decisions, and reports a wait for the second, which is stored already.
#[test]
fn wait_for_a_stored_decision_is_no_response() {
    let mut log = Log::new();
    let [first, second] = [(), ()].map(|()| InputId::generate(&log.ids));
    let waiting = |id: &InputId| EventBody::RunWaiting { reason: WaitReason::Approval, id: Some(id.to_string()), detail: None };
    let allowed = |id: &InputId| EventBody::ApprovalResolved {
        id: id.clone(),
        call_id: None,
        status: ApprovalState::Allowed,
        scope: None,
        edited_arguments: None,
        reason: None,
        by: None,
    };
    for body in [waiting(&first), allowed(&first), allowed(&second), waiting(&second)] {
        log.add(body);
    }
    log.step(3);
    log.part("text", &["Done."], true);
    log.completed(FinishReason::Stop);
    let (frames, response) = log.read(1, None);
    assert_eq!((*kinds(&frames).last().unwrap(), &response["output"][0]["content"][0]["text"]), ("completed", &json!("Done.")));
}

// Clients append the deltas to the arguments of the item that was added.
#[test]
fn server_call_is_added_before_its_arguments() {
    let mut log = Log::new();
    log.step(1);
    log.call("files__read", false);
    log.refused_call("files__drop");
    log.completed(FinishReason::Stop);
    let (frames, response) = log.read(0, None);
    let texts = |kind: &str, pointer: &str| -> Vec<String> {
        let frames = frames.iter().filter(|frame| frame["type"] == format!("response.{kind}"));
        frames.map(|frame| frame.pointer(pointer).unwrap().as_str().unwrap().to_owned()).collect()
    };
    let arguments = [r#"{"path":"a"}"#, r#"{"path":"b"}"#];
    assert_eq!(texts("output_item.added", "/item/arguments"), ["", ""]);
    assert_eq!(texts("mcp_call_arguments.delta", "/delta"), arguments);
    assert_eq!(texts("mcp_call_arguments.done", "/arguments"), arguments);
    assert_eq!(texts("output_item.done", "/item/arguments"), arguments);
    let output = response["output"].as_array().unwrap();
    assert_eq!(output.iter().map(|item| item["arguments"].as_str().unwrap()).collect::<Vec<_>>(), arguments);
}

#[test]
fn text_cut_by_its_limit_is_incomplete() {
    let mut log = Log::new();
    log.step(1);
    log.part("text", &["Hello wor"], true);
    let of = (log.run.id.clone(), log.run.conversation_id.clone());
    let message = Message::new(MessageId::generate(&log.ids), of, Role::Assistant, Vec::new());
    log.add(EventBody::MessageCompleted { message: Message { finish_reason: Some(FinishReason::Length), ..message } });
    log.completed(FinishReason::Length);
    let (frames, response) = log.read(0, None);
    let done = frames.iter().find(|frame| frame["type"] == "response.output_item.done").unwrap();
    assert_eq!((&done["item"]["status"], &response["output"][0]["status"]), (&json!("incomplete"), &json!("incomplete")));
}

#[test]
fn calls_above_the_limit_are_no_items() {
    let mut log = Log::new();
    log.call("files__read", false);
    let (call_id, name) = (CallId::generate(&log.ids), "files__read".to_owned());
    let refused = EventBody::ToolCompleted {
        call_id,
        name,
        server: None,
        state: ToolCallState::Cancelled,
        content: Vec::new(),
        is_error: true,
        duration_ms: 0,
        truncated: false,
        undoable: false,
    };
    log.add(refused);
    log.completed(FinishReason::Stop);
    let count = |max_server_calls: Option<u32>| {
        let profile = AgentProfile { max_server_calls, ..AgentProfile::default() };
        let mut translator = ResponseTranslator::new(ResponseDetails::of(&log.run, 0, &profile, &Value::Null), None);
        log.events.iter().for_each(|event| _ = translator.translate(event));
        translator.response()["output"].as_array().unwrap().len()
    };
    assert_eq!((count(Some(1)), count(None)), (1, 2));
}

#[test]
fn response_cut_at_each_frame_resumes_with_the_same_frames() {
    let log = eventful();
    for segment in 0..3 {
        let (whole, response) = log.read(segment, None);
        let numbers: Vec<i64> = whole.iter().map(|frame| frame["sequence_number"].as_i64().unwrap()).collect();
        assert_eq!(numbers[0], 0);
        assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
        for cut in 0..whole.len() {
            let (rest, same) = log.read(segment, Some(numbers[cut]));
            assert_eq!((rest.as_slice(), &same), (&whole[cut + 1..], &response), "cut after frame {cut} of response {segment}");
        }
    }
}

#[test]
fn end_of_run_is_the_end_of_its_response() {
    for (body, kind, status) in [
        (EventBody::RunFailed { error: ProblemCode::ProviderRateLimit.body("slow down") }, "failed", "failed"),
        (EventBody::RunCancelled { by: "user".to_owned() }, "incomplete", "cancelled"),
    ] {
        let mut log = Log::new();
        log.step(1);
        log.part("text", &["Hel"], false);
        log.add(body);
        let (frames, response) = log.read(0, None);
        assert_eq!((*kinds(&frames).last().unwrap(), &response["status"]), (kind, &json!(status)));
        let opened = kinds(&frames).iter().filter(|kind| **kind == "output_item.added").count();
        let closed = kinds(&frames).iter().filter(|kind| **kind == "output_item.done").count();
        assert_eq!((opened, closed), (1, 1), "each item is closed");
        assert!(!kinds(&frames).contains(&"output_text.done"), "a client would parse the text");
    }
    for (reason, shown) in [(FinishReason::Length, "max_output_tokens"), (FinishReason::Refused, "content_filter")] {
        let mut log = Log::new();
        log.completed(reason);
        let (frames, response) = log.read(0, None);
        assert_eq!((*kinds(&frames).last().unwrap(), &response["incomplete_details"]["reason"]), ("incomplete", &json!(shown)));
    }
}
