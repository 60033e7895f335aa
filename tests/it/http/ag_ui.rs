//! The routes of AG-UI and of CopilotKit's runtime.

use axum::http::{Method, StatusCode};
use capstan::domain::conversation::message::{Message, Part, Role, ToolCallPart};
use capstan::domain::event::EventBody;
use capstan::domain::ids::{CallId, InputId, MessageId, PartId};
use capstan::domain::run::WaitReason;
use capstan::domain::run::change::Change;
use capstan::domain::run::question::{InputKind, InputRequest, Question};
use capstan::domain::tool::ToolCallState;
use capstan::http::HttpLimits;
use capstan::support::ids::UuidIds;
use serde_json::{Value, json};

use super::rig::{Keys, Reply, Rig, text};

fn input(thread: &str, run: &str, words: &str) -> Value {
    let message = json!({ "id": format!("m-{run}"), "role": "user", "content": words });
    json!({ "threadId": thread, "runId": run, "messages": [message], "tools": [], "context": [], "state": {}, "forwardedProps": {} })
}

/// Returns the frames of a complete stream: their ids and events.
pub(super) fn frames(reply: &Reply) -> Vec<(String, Value)> {
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    let frame = |block: &str| {
        let (id, data) = block.split_once('\n')?;
        Some((id.strip_prefix("id: ")?.to_owned(), serde_json::from_str(data.strip_prefix("data: ")?).unwrap()))
    };
    reply.body.split("\n\n").filter_map(frame).collect()
}

pub(super) fn said(frames: &[(String, Value)]) -> String {
    frames.iter().filter(|(_, event)| event["type"] == "TEXT_MESSAGE_CONTENT").map(|(_, event)| text(&event["delta"])).collect()
}

async fn post(rig: &Rig, body: &Value, headers: &[(&str, &str)]) -> Reply {
    rig.exchange(Method::POST, "/ag-ui/default", headers, Some(body.clone())).await
}

/// Posts the input of a run, and plays the run that it starts.
async fn played(rig: &Rig, body: &Value) -> Vec<(String, Value)> {
    let (reply, ()) = tokio::join!(post(rig, body, &[]), rig.play_next());
    frames(&reply)
}

#[tokio::test]
async fn known_run_is_shown_again_and_not_repeated() {
    let rig = Rig::new().await;
    let body = input("thread-1", "run-1", "hello");
    let first = played(&rig, &body).await;
    assert_eq!(said(&first), "Hello\nworld");
    assert_eq!((&first[0].1["threadId"], &first[0].1["runId"]), (&json!("thread-1"), &json!("run-1")));
    assert_eq!(frames(&post(&rig, &body, &[]).await), first);
    assert_eq!(rig.get("/api/v1/runs").await.json()["data"].as_array().unwrap().len(), 1);

    // A client that returns with its last frame gets the rest, however the first part ended.
    for (at, (id, _)) in first.iter().enumerate() {
        assert_eq!(frames(&post(&rig, &body, &[("last-event-id", id)]).await), first[at + 1..], "after {id}");
    }
    let other = post(&rig, &input("thread-2", "run-1", "hello"), &[]).await;
    assert_eq!(other.status, StatusCode::CONFLICT, "{}", other.body);
    // A client that returns to a deleted run begins no other one.
    let lost = post(&rig, &input("thread-1", "run-2", "hello"), &[("last-event-id", &first[0].0)]).await;
    assert_eq!(lost.status, StatusCode::NOT_FOUND, "{}", lost.body);
}

#[tokio::test]
async fn requests_at_the_same_time_begin_one_run() {
    let rig = Rig::new().await;
    let body = input("thread-1", "run-1", "hello");
    let (one, two, three, ()) =
        tokio::join!(post(&rig, &body, &[]), post(&rig, &body, &[]), post(&rig, &body, &[]), rig.play_next());
    let first = frames(&one);
    assert_eq!(said(&first), "Hello\nworld");
    assert_eq!((frames(&two), frames(&three)), (first.clone(), first));
    assert_eq!(rig.get("/api/v1/runs").await.json()["data"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn run_is_joined_by_its_name_and_its_id() {
    let rig = Rig::new().await;
    let first = played(&rig, &input("thread-1", "run-1", "hello")).await;
    let run = text(&rig.get("/api/v1/runs").await.json()["data"][0]["id"]);
    assert_eq!(frames(&rig.get("/ag-ui/default?offset=-1&runId=run-1").await), first);
    let joined = frames(&rig.get(&format!("/ag-ui/default?offset=-1&runId={run}")).await);
    assert_eq!((said(&joined), &joined[0].1["threadId"]), (said(&first), &json!("thread-1")));
    let after = &first[2].0;
    assert_eq!(frames(&rig.get(&format!("/ag-ui/default?offset={after}&runId=run-1")).await), first[3..]);
}

/// A step that begins again takes back its text in every client that follows the run: the one that joined it, and CopilotKit.
#[tokio::test]
async fn joined_run_voids_what_a_step_has_shown() {
    let rig = Rig::new().await;
    let (conversation, run) = rig.start("hello").await;
    let fence = rig.claim().await;
    let act = rig.play_half(&fence).await;
    let joined = rig.begin(Method::GET, &format!("/ag-ui/default?offset=-1&runId={run}"), &[], None).await;
    let body = input(&conversation, "connect-1", "");
    let connected = rig.begin(Method::POST, "/copilotkit/agent/default/connect", &[], Some(body)).await;
    rig.write(&fence, &[EventBody::StepReset { step: 1, reason: "crash".to_owned() }], Vec::new()).await;
    rig.play_rest(&fence, act).await;
    for stream in [joined, connected] {
        let events: Vec<Value> = frames(&stream.rest().await).into_iter().map(|(_, event)| event).collect();
        let reset = events.iter().position(|event| event["name"] == "step.reset").unwrap();
        let snapshot = &events[reset - 1];
        let shown: Vec<Value> =
            snapshot["messages"].as_array().unwrap().iter().map(|shown| json!([shown["role"], shown["content"]])).collect();
        assert_eq!(shown, [json!(["user", "hello"]), json!(["assistant", ""])], "{snapshot}");
    }
    // A client that joins later does not see the void text.
    let late = frames(&rig.get(&format!("/ag-ui/default?offset=-1&runId={run}")).await);
    assert!(late.iter().all(|(_, event)| event["type"] != "MESSAGES_SNAPSHOT"));
    assert_eq!(said(&late), "Hello\nworld");
}

/// A snapshot replaces all messages of the client, so it must have those that wait behind the run.
#[tokio::test]
async fn joined_run_keeps_messages_that_wait_behind_it() {
    let (rig, conversation, run, fence, act) = Rig::with_half_played_run("hello").await;
    let queue = async |words: &str| {
        let body = json!({ "content": words, "on_busy": "queue" });
        let queued = rig.post(&format!("/api/v1/conversations/{conversation}/messages"), body).await;
        assert_eq!(queued.status, StatusCode::ACCEPTED, "{}", queued.body);
    };
    queue("before").await;
    let path = format!("/ag-ui/default?offset=-1&runId={run}");
    let joined = rig.begin(Method::GET, &path, &[], None).await;
    queue("after").await;
    rig.write(&fence, &[EventBody::StepReset { step: 1, reason: "crash".to_owned() }], Vec::new()).await;
    rig.play_rest(&fence, act).await;
    let events = frames(&joined.rest().await);
    let (_, snapshot) = events.iter().find(|(_, event)| event["type"] == "MESSAGES_SNAPSHOT").unwrap();
    let shown: Vec<&str> =
        snapshot["messages"].as_array().unwrap().iter().map(|shown| shown["content"].as_str().unwrap()).collect();
    assert_eq!(shown, ["hello", "before", "after", ""]);
}

/// Clients send their whole history, with results that the server has or never asked for.
#[tokio::test]
async fn odd_result_of_a_tool_fails_no_request() {
    let rig = Rig::new().await;
    let result = |call: &str, content: Value| json!({ "id": "r", "role": "tool", "toolCallId": call, "content": content });
    let user = |words: &str| json!({ "id": words, "role": "user", "content": words });
    let body = |run: &str, messages: Value| {
        let mut body = input("thread-1", run, "");
        body["messages"] = messages;
        body
    };
    let mut begin = body("run-1", json!([user("look")]));
    begin["tools"] = json!([{ "name": "look", "description": "Looks", "parameters": {} }]);
    let first = rig.begin(Method::POST, "/ag-ui/default", &[], Some(begin)).await;
    let call = rig.asks_client(&rig.claim().await).await;
    frames(&first.rest().await);

    let unknown = format!("call_{:032x}", 7);
    for messages in [json!([result(&unknown, json!("x"))]), json!([result("foreign", json!("x"))])] {
        let refused = post(&rig, &body("run-2", messages), &[]).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.body);
        assert_eq!(refused.json()["errors"][0]["pointer"], "/messages", "{}", refused.body);
    }
    let unreadable = result(&unknown, json!(7));
    let answer = body("run-2", json!([user("look"), { "role": "assistant" }, unreadable, result(&call, json!("a door"))]));
    let answered = rig.begin(Method::POST, "/ag-ui/default", &[], Some(answer)).await;
    let fence = rig.claim().await;
    let call_id: CallId = call.parse().unwrap();
    let part = ToolCallPart::new(PartId::generate(&UuidIds), call_id.clone(), "look".to_owned(), json!({}));
    let of = (fence.run_id.clone(), fence.conversation_id.clone());
    let asked = Message::new(MessageId::generate(&UuidIds), of, Role::Assistant, vec![Part::ToolCall(part)]);
    let completed = EventBody::ToolCompleted {
        call_id,
        name: "look".to_owned(),
        server: None,
        state: ToolCallState::Done,
        content: Vec::new(),
        is_error: false,
        duration_ms: 1,
        truncated: false,
        undoable: false,
    };
    rig.write(&fence, &[completed], vec![Change::AddMessage(asked)]).await;
    let act = rig.play_half(&fence).await;
    rig.play_rest(&fence, act).await;
    assert_eq!(said(&frames(&answered.rest().await)), "Hello\nworld");

    // A repeated result is shown with what followed it, and never hides a new message.
    let count = async || rig.get("/api/v1/runs").await.json()["data"].as_array().unwrap().len();
    let repeated = body("run-3", json!([user("look"), result(&call, json!(7))]));
    assert_eq!(said(&frames(&post(&rig, &repeated, &[]).await)), "Hello\nworld");
    assert_eq!(count().await, 1);
    for (runs, call) in [(2, &call), (3, &unknown)] {
        let words = format!("next {runs}");
        played(&rig, &body(&words, json!([user(&words), result(call, json!("a door"))]))).await;
        assert_eq!(count().await, runs);
    }
    // A result of an earlier run begins nothing: late, behind the newest message or behind its answer.
    for messages in [
        json!([user("next 3"), result(&call, json!("a door"))]),
        json!([user("next 3"), { "role": "assistant" }, result(&call, json!("a door"))]),
    ] {
        assert_eq!(said(&frames(&post(&rig, &body("late", messages), &[]).await)), "Hello\nworld");
        assert_eq!(count().await, 3);
    }
}

/// Begins a run that waits for a question and for its client. Returns the run, the question and the call.
async fn waiting_run(rig: &Rig) -> (String, String, String) {
    let mut begin = input("thread-1", "run-1", "look");
    begin["tools"] = json!([{ "name": "look", "description": "Looks", "parameters": {} }]);
    let first = rig.begin(Method::POST, "/ag-ui/default", &[], Some(begin)).await;
    let fence = rig.claim().await;
    let (asker, id) = (CallId::generate(&UuidIds), InputId::generate(&UuidIds));
    let question = Question { text: "Which colour?".to_owned(), ..Question::default() };
    let of = (fence.run_id.clone(), fence.conversation_id.clone());
    let asked = InputRequest::about(&asker, id.clone(), of, InputKind::Question, question.clone(), 0);
    let requested = EventBody::InputRequested { id: id.clone(), kind: InputKind::Question, call_id: Some(asker), question };
    rig.write(&fence, &[requested], vec![Change::RequestInput(asked)]).await;
    let call = rig.asks_client(&fence).await;
    let events = frames(&first.rest().await);
    let interrupts = &events.last().unwrap().1["outcome"]["interrupts"];
    assert_eq!((interrupts.as_array().unwrap().len(), &interrupts[0]["id"]), (1, &json!(id)));
    (fence.run_id.to_string(), id.to_string(), call)
}

/// Clients answer and write at once: everything is stored, and the message joins the run that the answers continue.
#[tokio::test]
async fn new_message_joins_the_run_that_its_answers_continue() {
    let user = |id: &str, words: &str| json!({ "id": id, "role": "user", "content": words });
    let (look, assistant, new) = (user("m-run-1", "look"), json!({ "role": "assistant" }), user("m2", "and then?"));
    for (place, resumes) in [("before", false), ("behind", false), ("behind", true)] {
        let rig = Rig::new().await;
        let (run, question, call) = waiting_run(&rig).await;
        let result = json!({ "id": "r", "role": "tool", "toolCallId": call, "content": "a door" });
        let mut second = input("thread-1", "run-2", "");
        second["messages"] = match place {
            "before" => json!([new, result]),
            _ => json!([look, assistant, result, new]),
        };
        if resumes {
            second["resume"] = json!([{ "interruptId": question, "status": "resolved", "payload": { "text": "red" } }]);
        }
        let answered = rig.begin(Method::POST, "/ag-ui/default", &[], Some(second)).await;
        let read = rig.get("/ag-ui/default?threadId=thread-1").await.json();
        let users = read["messages"].as_array().unwrap().iter().filter(|one| one["role"] == "user").count();
        let runs = rig.get("/api/v1/runs").await.json()["data"].as_array().unwrap().len();
        assert_eq!((users, runs), (2, 1), "{place} {resumes}: {read}");
        let again = json!({ "results": [{ "call_id": call, "content": "a window" }] });
        let again = rig.post(&format!("/api/v1/runs/{run}/tool-results"), again).await;
        assert_eq!(again.status, StatusCode::CONFLICT, "{place} {resumes}: {}", again.body);
        let asked = rig.get(&format!("/api/v1/input-requests/{question}")).await.json();
        assert_eq!(asked["state"] == "pending", !resumes, "{asked}");
        drop(answered);
    }
}

/// The tool of a stopped run may return late, and its result stays in the history of the client.
#[tokio::test]
async fn late_result_of_a_stopped_run_refuses_no_message() {
    let rig = Rig::new().await;
    let (run, _, call) = waiting_run(&rig).await;
    let stopped = rig.post("/copilotkit/agent/default/stop/thread-1", json!({ "runId": "run-1" })).await;
    assert_eq!(stopped.json(), json!({ "stopped": true }));
    assert_eq!(rig.get(&format!("/api/v1/runs/{run}")).await.json()["status"], "cancelled");
    let result = json!({ "id": "r", "role": "tool", "toolCallId": call, "content": "a door" });
    let mut next = input("thread-1", "run-2", "next");
    next["messages"] = json!([{ "role": "assistant" }, result, next["messages"][0]]);
    assert_eq!(said(&played(&rig, &next).await), "Hello\nworld");
}

#[tokio::test]
async fn result_beside_a_decision_is_stored() {
    let rig = Rig::new().await;
    let (run, question, call) = waiting_run(&rig).await;
    let result = json!({ "id": "r", "role": "tool", "toolCallId": call, "content": "a door" });
    let mut second = input("thread-1", "run-2", "");
    second["messages"] = json!([{ "id": "m-run-1", "role": "user", "content": "look" }, { "role": "assistant" }, result]);
    second["resume"] = json!([{ "interruptId": question, "status": "resolved", "payload": { "text": "red" } }]);
    let answered = rig.begin(Method::POST, "/ag-ui/default", &[], Some(second)).await;
    let again = json!({ "results": [{ "call_id": call, "content": "a window" }] });
    let again = rig.post(&format!("/api/v1/runs/{run}/tool-results"), again).await;
    assert_eq!(again.status, StatusCode::CONFLICT, "{}", again.body);
    // Both answers are in the one response, which begins behind the pause.
    let fence = rig.claim().await;
    let act = rig.play_half(&fence).await;
    rig.play_rest(&fence, act).await;
    let events = frames(&answered.rest().await);
    assert_eq!((said(&events), &events[0].1["runId"]), ("Hello\nworld".to_owned(), &json!("run-2")));
}

/// Clients regenerate by sending their newest message again, in a new run.
#[tokio::test]
async fn repeated_message_in_a_new_run_replaces_the_answer() {
    let rig = Rig::new().await;
    played(&rig, &input("thread-1", "run-1", "hello")).await;
    let mut again = input("thread-1", "run-2", "hello");
    again["messages"][0]["id"] = json!("m-run-1");
    let second = played(&rig, &again).await;
    assert_eq!((said(&second), &second[0].1["runId"]), ("Hello\nworld".to_owned(), &json!("run-2")));
    let roles = async || {
        let read = rig.get("/ag-ui/default?threadId=thread-1").await.json();
        read["messages"].as_array().unwrap().iter().map(|message| text(&message["role"])).collect::<Vec<_>>()
    };
    assert_eq!(roles().await, ["user", "assistant"]);
    // The same request attaches to its run.
    assert_eq!(frames(&post(&rig, &again, &[]).await), second);
    assert_eq!(frames(&rig.get("/ag-ui/default?offset=-1&runId=run-2").await), second);
    assert_eq!((roles().await.len(), rig.get("/api/v1/runs").await.json()["data"].as_array().unwrap().len()), (2, 2));

    // A run that has not ended is cancelled for the next one.
    again["runId"] = json!("run-3");
    let third = rig.begin(Method::POST, "/ag-ui/default", &[], Some(again.clone())).await;
    again["runId"] = json!("run-4");
    let fourth = rig.begin(Method::POST, "/ag-ui/default", &[], Some(again)).await;
    assert_eq!(frames(&third.rest().await).last().unwrap().1["code"], "cancelled");
    rig.play().await;
    assert_eq!(said(&frames(&fourth.rest().await)), "Hello\nworld");
    assert_eq!(roles().await, ["user", "assistant"]);
}

/// The message of a waiting run is stored before the answer of the run before it.
#[tokio::test]
async fn thread_is_read_in_the_order_of_its_runs() {
    let (rig, conversation, _, fence, act) = Rig::with_half_played_run("one").await;
    let body = json!({ "content": "two", "on_busy": "queue" });
    assert_eq!(rig.post(&format!("/api/v1/conversations/{conversation}/messages"), body).await.status, StatusCode::ACCEPTED);
    rig.play_rest(&fence, act).await;
    rig.play().await;
    let read = rig.get(&format!("/ag-ui/default?threadId={conversation}")).await.json();
    let texts: Vec<&Value> = read["messages"].as_array().unwrap().iter().map(|message| &message["parts"][0]["content"]).collect();
    assert_eq!(texts, ["one", "Hello\nworld", "two", "Hello\nworld"], "{read}");
    let body = input(&conversation, "connect-1", "");
    let connected = frames(&rig.post("/copilotkit/agent/default/connect", body).await);
    let shown: Vec<&Value> = connected[1].1["messages"].as_array().unwrap().iter().map(|message| &message["content"]).collect();
    assert_eq!(shown, texts);
}

#[tokio::test]
async fn null_in_the_input_is_an_absent_field() {
    let rig = Rig::new().await;
    let mut body = input("thread-1", "run-1", "hello");
    for field in ["tools", "context", "state", "forwardedProps", "resume", "protocolVersion"] {
        body[field] = Value::Null;
    }
    assert_eq!(said(&played(&rig, &body).await), "Hello\nworld");
    body["messages"] = Value::Null;
    assert_eq!(frames(&post(&rig, &body, &[]).await)[0].1["runId"], "run-1");
}

#[tokio::test]
async fn thread_is_hydrated_with_messages_and_active_run() {
    let rig = Rig::new().await;
    let empty = rig.get("/ag-ui/default?threadId=thread-1").await.json();
    assert_eq!((&empty["messages"], &empty["activeRun"]), (&json!([]), &Value::Null));
    played(&rig, &input("thread-1", "run-1", "hello")).await;
    let read = rig.get("/ag-ui/default?threadId=thread-1").await.json();
    assert_eq!(read["messages"][1]["parts"], json!([{ "type": "text", "content": "Hello\nworld" }]));
    assert_eq!(rig.get("/ag-ui/default?threadId=thread-1").await.json()["activeRun"], Value::Null);

    let (conversation, run) = rig.start("hello").await;
    let fence = rig.claim().await;
    let path = format!("/ag-ui/default?threadId={conversation}");
    assert_eq!(rig.get(&path).await.json()["activeRun"], json!({ "runId": run }));
    rig.waits(&fence, WaitReason::Approval, None).await;
    assert_eq!(rig.get(&path).await.json()["activeRun"], Value::Null, "a run that waits sends nothing");
}

#[tokio::test]
async fn names_of_another_user_do_not_exist() {
    let mut rig = Rig::with_keys().await;
    let (conversation, run) = rig.start("hello").await;
    rig.key = Some(rig.user("bob").await);
    let resume = |id: &str| {
        let mut body = input("mine", "run-2", "hello");
        body["resume"] = json!([{ "interruptId": id, "status": "resolved", "payload": true }]);
        body
    };
    let rig = &rig;
    let get = |path: String| async move { rig.exchange(Method::GET, &path, &[], None).await };
    let replies = [
        post(rig, &input(&conversation, "run-1", "hello"), &[]).await,
        post(rig, &resume("input_00000000000000000000000000000001"), &[]).await,
        post(rig, &resume("nonsense"), &[]).await,
        get(format!("/ag-ui/default?runId={run}")).await,
        get("/ag-ui/default?runId=unknown".to_owned()).await,
        get(format!("/ag-ui/default?threadId={conversation}")).await,
        rig.exchange(Method::POST, &format!("/copilotkit/agent/default/stop/{conversation}"), &[], None).await,
    ];
    for (at, reply) in replies.iter().enumerate() {
        assert_eq!(reply.status, StatusCode::NOT_FOUND, "{at}: {}", reply.body);
    }
}

#[tokio::test]
async fn bad_input_is_explained() {
    let rig = Rig::new().await;
    let without_message = json!({ "threadId": "t", "runId": "r", "messages": [] });
    for body in [without_message, input("", "r", "x"), input("t", "", "x"), input("t", "r", "")] {
        let reply = post(&rig, &body, &[]).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{body}: {}", reply.body);
    }
    assert_eq!(rig.get("/ag-ui/default").await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn copilotkit_lists_runs_connects_and_stops() {
    let rig = Rig::new().await;
    let info = rig.get("/copilotkit/info").await.json();
    assert_eq!(info["agents"]["default"]["name"], "default", "{info}");
    let body = input("thread-1", "run-1", "hello");
    let path = "/copilotkit/agent/default";
    let run_path = format!("{path}/run");
    let (reply, ()) = tokio::join!(rig.exchange(Method::POST, &run_path, &[], Some(body.clone())), rig.play_next());
    assert_eq!(said(&frames(&reply)), "Hello\nworld");

    let connected = frames(&rig.post(&format!("{path}/connect"), body.clone()).await);
    let types: Vec<&Value> = connected.iter().map(|(_, event)| &event["type"]).collect();
    assert_eq!(types, ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]);
    assert_eq!(connected[1].1["messages"][1]["content"], "Hello\nworld");

    // An active run follows the history.
    let (conversation, run) = rig.start("hello").await;
    let fence = rig.claim().await;
    let act = rig.play_half(&fence).await;
    let body = input(&conversation, "x", "hi");
    let connected = rig.begin(Method::POST, &format!("{path}/connect"), &[], Some(body)).await;
    rig.play_rest(&fence, act).await;
    let connected = frames(&connected.rest().await);
    assert_eq!((said(&connected), &connected[3].1["runId"]), ("Hello\nworld".to_owned(), &json!(run)));
    assert_eq!(rig.post(&format!("{path}/stop/thread-1"), json!({})).await.json(), json!({ "stopped": false }));
}

#[tokio::test]
async fn copilotkit_stops_the_named_run_only() {
    let rig = Rig::new().await;
    played(&rig, &input("thread-1", "run-1", "hello")).await;
    let second = rig.begin(Method::POST, "/ag-ui/default", &[], Some(input("thread-1", "run-2", "again"))).await;
    let stop = async |body: Value| rig.post("/copilotkit/agent/default/stop/thread-1", body).await.json()["stopped"].clone();
    assert_eq!(stop(json!({ "runId": "run-1" })).await, json!(false), "a late stop of the run before");
    assert_eq!(rig.get("/api/v1/runs").await.json()["data"][0]["status"], "queued");
    assert_eq!(stop(json!({ "runId": "run-2" })).await, json!(true));
    assert_eq!(frames(&second.rest().await).last().unwrap().1["code"], "cancelled");
    // A request that continued a run names no run of its own.
    let third = rig.begin(Method::POST, "/ag-ui/default", &[], Some(input("thread-1", "run-3", "again"))).await;
    assert_eq!(stop(json!({ "runId": "continued" })).await, json!(true));
    assert_eq!(frames(&third.rest().await).last().unwrap().1["code"], "cancelled");
}

/// A browser asks before each request of TanStack AI, which has a header of its own.
#[tokio::test]
async fn page_of_an_allowed_origin_sends_the_header_of_tanstack() {
    let page = "https://app.example";
    let rig = Rig::with(HttpLimits::default(), |options| options.cors_origins = vec![page.to_owned()], Keys::None).await;
    let headers =
        [("origin", page), ("access-control-request-method", "POST"), ("access-control-request-headers", "content-type,x-run-id")];
    let reply = rig.exchange(Method::OPTIONS, "/ag-ui/default", &headers, None).await;
    let allowed = reply.header("access-control-allow-headers");
    assert!(allowed.split(',').any(|name| name == "x-run-id"), "{allowed}");
}
