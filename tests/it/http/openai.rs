//! OpenAI's API: items that clients add to conversations, follow-ups of responses, and lists of files.

use axum::http::{Method, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use capstan::domain::conversation::message::{Role, ToolContent};
use capstan::domain::event::EventBody;
use capstan::domain::ids::{CallId, InputId};
use capstan::domain::run::WaitReason;
use capstan::domain::run::change::Change;
use capstan::domain::run::question::{InputKind, InputRequest, Question};
use capstan::domain::run::record::Fence;
use capstan::domain::tool::ToolCallState;
use capstan::support::ids::UuidIds;
use serde_json::{Value, json};

use super::rig::{Reply, Rig, text};
use support::documents::PNG;

async fn post(rig: &Rig, path: &str, headers: &[(&str, &str)], body: Value) -> Reply {
    rig.exchange(Method::POST, path, headers, Some(body)).await
}

async fn get(rig: &Rig, path: &str) -> Value {
    rig.exchange(Method::GET, path, &[], None).await.json()
}

/// Creates a conversation. Returns its id.
async fn conversation(rig: &Rig) -> String {
    text(&post(rig, "/v1/conversations", &[], json!({})).await.json()["id"])
}

fn say(words: &str) -> Value {
    json!({"role": "user", "content": words})
}

fn refer(id: &Value) -> Value {
    json!({"type": "item_reference", "id": id})
}

/// Begins a response whose request does not wait for it. Returns its id.
async fn begun(rig: &Rig, mut body: Value) -> String {
    (body["model"], body["background"]) = (json!("default"), json!(true));
    let begun = post(rig, "/v1/responses", &[], body).await;
    assert_eq!(begun.status, StatusCode::OK, "{}", begun.body);
    text(&begun.json()["id"])
}

fn error(reply: &Reply) -> (u16, Value, Value) {
    let error = reply.json()["error"].clone();
    (reply.status.as_u16(), error["code"].clone(), error["param"].clone())
}

#[tokio::test]
async fn added_items_keep_their_ids() {
    let rig = Rig::with_keys().await;
    let id = conversation(&rig).await;
    let path = format!("/v1/conversations/{id}/items");
    let picture = format!("data:image/png;base64,{}", STANDARD.encode(PNG));
    let parts = json!([{"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": picture}]);
    let items = json!({"items": [
        {"type": "message", "role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": parts},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{\"at\":\"x\"}"},
        {"type": "function_call_output", "call_id": "c1", "output": "a door"},
        {"role": "assistant", "content": "A door."},
        {"role": "system", "content": "Be kind."},
        say("thanks"),
    ]});
    let key = [("idempotency-key", "once")];
    let reply = post(&rig, &path, &key, items.clone()).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    let added = reply.json();
    let data = added["data"].as_array().unwrap();
    let types: Vec<&str> = data.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["message", "function_call", "function_call_output", "message", "message"]);
    let kinds: Vec<&Value> = data[0]["content"].as_array().unwrap().iter().map(|part| &part["type"]).collect();
    assert_eq!(kinds, ["input_text", "input_image"]);
    assert_eq!((&data[1]["call_id"], &data[1]["arguments"]), (&json!("c1"), &json!("{\"at\":\"x\"}")));
    assert_eq!(data[2]["call_id"], "c1");
    assert_eq!((&added["first_id"], &added["last_id"], &added["has_more"]), (&data[0]["id"], &data[4]["id"], &json!(false)));

    assert_eq!(get(&rig, &format!("{path}?order=asc")).await, added);
    for item in data {
        assert_eq!(get(&rig, &format!("{path}/{}", text(&item["id"]))).await, *item);
    }
    let conversation = rig.get(&format!("/api/v1/conversations/{id}")).await.json();
    assert_eq!(conversation["system_prompt"], "Be brief.\n\nBe kind.");

    assert_eq!(post(&rig, &path, &key, items).await.json(), added, "a repeated request adds nothing");
    assert_eq!(get(&rig, &format!("{path}?order=asc")).await, added);
    assert_eq!(error(&post(&rig, &path, &key, json!({"items": [say("more")]})).await).0, 422);

    let more = post(&rig, &path, &[], json!({"items": [say("more")]})).await.json();
    assert_eq!(get(&rig, &format!("{path}?order=desc&limit=1")).await["data"], more["data"]);
}

#[tokio::test]
async fn sent_call_is_found_by_the_id_of_its_item() {
    let rig = Rig::new().await;
    let path = format!("/v1/conversations/{}/items", conversation(&rig).await);
    let call = json!({"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"});
    let output = json!({"type": "function_call_output", "call_id": "c1", "output": "a door"});
    let added = post(&rig, &path, &[], json!({"items": [say("look"), call, output]})).await.json();
    let input = json!([say("look"), refer(&added["data"][1]["id"]), output, say("thanks")]);
    begun(&rig, json!({ "input": input })).await;
    let history = rig.store.load_run(&rig.claim().await).await.unwrap().unwrap().history;
    let roles: Vec<Role> = history.iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::User, Role::Assistant, Role::Tool, Role::User]);
}

#[tokio::test]
async fn items_that_cannot_be_added_are_refused() {
    let rig = Rig::with_keys().await;
    let path = format!("/v1/conversations/{}/items", conversation(&rig).await);
    let refused = async |items: Value| error(&post(&rig, &path, &[], json!({ "items": items })).await);
    let invalid = |param: &str| (400, json!("invalid_request"), json!(param));
    let many = |count: usize| json!(vec![say("x"); count]);
    for items in [many(21), many(0), Value::Null] {
        assert_eq!(refused(items).await, invalid("items"));
    }
    assert_eq!(refused(json!([{"role": "robot", "content": "x"}])).await, invalid("items[0].role"));
    let alone = json!([{"type": "function_call_output", "call_id": "c1", "output": "x"}]);
    assert_eq!(refused(alone).await, invalid("items[0].tool_call_id"));
    let long = json!([say("x"), {"role": "system", "content": "x".repeat(6_000)}]);
    assert_eq!(post(&rig, &path, &[], json!({ "items": long })).await.status, StatusCode::OK);
    assert_eq!(refused(long).await, invalid("items"), "the system prompt would be too long");
    assert_eq!(get(&rig, &path).await["data"].as_array().unwrap().len(), 1);
    assert_eq!(post(&rig, &path, &[], json!({ "items": many(20) })).await.status, StatusCode::OK);

    let bob = format!("Bearer {}", rig.user("bob").await);
    let missing = (404, json!("not_found"), Value::Null);
    let one = json!({ "items": many(1) });
    assert_eq!(error(&post(&rig, &path, &[("authorization", &bob)], one.clone()).await), missing);
    assert_eq!(error(&post(&rig, "/v1/conversations/conv_1/items", &[], one).await), missing);
    let item = text(&get(&rig, &path).await["data"][0]["id"]);
    assert_eq!(rig.exchange(Method::DELETE, &format!("{path}/{item}"), &[], None).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn items_wait_for_the_end_of_a_run() {
    let rig = Rig::new().await;
    let (id, run) = rig.start("first").await;
    let path = format!("/v1/conversations/{id}/items");
    let items = json!({"items": [say("second"), {"role": "assistant", "content": "third"}]});
    let key = [("idempotency-key", "once")];
    let reply = post(&rig, &path, &key, items.clone()).await;
    assert_eq!(error(&reply), (409, json!("run_active"), Value::Null));
    assert!(reply.body.contains(&run.replace("run_", "resp_")) && !reply.body.contains("on_busy"), "{}", reply.body);
    assert_eq!(reply.header("x-should-retry"), "false");
    rig.play().await;
    let added = post(&rig, &path, &key, items).await;
    assert_eq!(added.status, StatusCode::OK, "{}", added.body);

    // The model of the next response reads them.
    let background = json!({"model": "default", "input": "fourth", "conversation": id, "background": true});
    let begun = post(&rig, "/v1/responses", &[], background).await;
    assert_eq!(begun.status, StatusCode::OK, "{}", begun.body);
    let history = rig.store.load_run(&rig.claim().await).await.unwrap().unwrap().history;
    let read: Vec<_> = history.iter().map(|message| (message.role, message.text())).collect();
    let said = [(Role::User, "first"), (Role::Assistant, "Hello\nworld"), (Role::User, "second"), (Role::Assistant, "third")];
    let expected: Vec<_> = said.into_iter().chain([(Role::User, "fourth")]).map(|(role, text)| (role, text.to_owned())).collect();
    assert_eq!(read, expected);
}

#[tokio::test]
async fn repeated_follow_up_leaves_no_copy() {
    let rig = Rig::new().await;
    let (id, run) = rig.start("first").await;
    rig.play().await;
    let follow = json!({
        "model": "default", "input": "next", "previous_response_id": run.replace("run_", "resp_"), "background": true,
    });
    // The first follow-up continues the conversation, and the second one continues a copy.
    let mut places = Vec::new();
    for (key, conversations) in [("one", 1), ("two", 2)] {
        let key = [("idempotency-key", key)];
        let first = post(&rig, "/v1/responses", &key, follow.clone()).await;
        assert_eq!(first.status, StatusCode::OK, "{}", first.body);
        rig.play().await;
        for _ in 0..2 {
            let again = post(&rig, "/v1/responses", &key, follow.clone()).await;
            assert_eq!((again.status, &again.json()["id"]), (StatusCode::OK, &first.json()["id"]), "{}", again.body);
        }
        let all = rig.get("/api/v1/conversations").await.json();
        assert_eq!(all["data"].as_array().unwrap().len(), conversations, "{all}");
        let run = text(&first.json()["id"]).replace("resp_", "run_");
        places.push(text(&rig.get(&format!("/api/v1/runs/{run}")).await.json()["conversation_id"]));
        let mut other = follow.clone();
        other["input"] = json!("other");
        assert_eq!(post(&rig, "/v1/responses", &key, other).await.status.as_u16(), 422);
    }
    assert!(places[0] == id && places[1] != id, "{places:?}");
    assert_eq!(rig.get("/api/v1/conversations").await.json()["data"].as_array().unwrap().len(), 2, "nor does a refused one");
}

/// Creates a response, and plays its run. Returns its id.
async fn played(rig: &Rig, mut body: Value) -> String {
    (body["model"], body["input"]) = (json!("default"), json!("say"));
    let (reply, ()) = tokio::join!(post(rig, "/v1/responses", &[], body), rig.play_next());
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    text(&reply.json()["id"])
}

/// The fields of a response that Open Responses requires, and their values for a request that sets none of them.
#[tokio::test]
async fn response_has_the_fields_of_open_responses() {
    let rig = Rig::new().await;
    let tools = json!([{"type": "function", "name": "look"}]);
    let id = played(&rig, json!({"tools": tools, "prompt_cache_key": "a", "top_p": 0.5})).await;
    let response = get(&rig, &format!("/v1/responses/{id}")).await;
    let expected = json!({
        "object": "response", "status": "completed", "incomplete_details": null, "model": "default", "previous_response_id": null,
        "instructions": null, "error": null, "tool_choice": "auto", "truncation": "disabled", "parallel_tool_calls": true,
        "text": {"format": {"type": "text"}}, "top_p": 0.5, "presence_penalty": 0.0, "frequency_penalty": 0.0, "top_logprobs": 0,
        "temperature": 1.0, "max_output_tokens": null, "max_tool_calls": null, "store": true, "background": false,
        "service_tier": "default", "metadata": {}, "safety_identifier": null, "prompt_cache_key": "a",
        "tools": [{"type": "function", "name": "look", "description": null, "parameters": null, "strict": null}],
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(&response[field], value, "{field}: {response}");
    }
    for field in ["created_at", "completed_at"] {
        assert!(response[field].is_i64(), "{field}: {response}");
    }
    assert!(response["output"].is_array() && response["reasoning"].is_object() && response["usage"].is_object(), "{response}");
}

#[tokio::test]
async fn request_that_no_run_can_follow_is_refused_by_field() {
    let rig = Rig::new().await;
    let allowed = json!({"type": "allowed_tools", "tools": [{"type": "function", "name": "fly"}]});
    for (field, value, param) in [("max_tool_calls", json!(-1), "max_tool_calls"), ("tool_choice", allowed, "tool_choice")] {
        let mut body = json!({"model": "demo/demo", "input": "hi", "tools": [{"type": "function", "name": "look"}]});
        body[field] = value;
        let refused = post(&rig, "/v1/responses", &[], body).await;
        assert_eq!(error(&refused), (400, json!("invalid_request"), json!(param)), "{}", refused.body);
    }
}

#[tokio::test]
async fn reference_stands_for_its_item() {
    let mut rig = Rig::with_keys().await;
    let first = played(&rig, json!({})).await;
    let answer = get(&rig, &format!("/v1/responses/{first}")).await["output"][0]["id"].clone();
    let asked = get(&rig, &format!("/v1/responses/{first}/input_items")).await["data"][0]["id"].clone();
    // The type may be left out, reasoning has no effect, and a repeated reference counts once.
    let reasoning = json!("rs_01980000000070008000000000000001_0");
    let input = json!([{"id": asked}, refer(&reasoning), refer(&answer), refer(&answer), say("look")]);
    begun(&rig, json!({"input": input})).await;
    let loaded = rig.store.load_run(&rig.claim().await).await.unwrap().unwrap();
    let history: Vec<(Role, String)> = loaded.history.iter().map(|message| (message.role, message.text())).collect();
    let expected = [(Role::User, "say"), (Role::Assistant, "Hello\nworld"), (Role::User, "look")];
    assert_eq!(history, expected.map(|(role, words)| (role, words.to_owned())));
    let items = json!({"items": [refer(&asked), refer(&answer)]});
    let id = text(&post(&rig, "/v1/conversations", &[], items.clone()).await.json()["id"]);
    assert_eq!(get(&rig, &format!("/v1/conversations/{id}/items")).await["data"].as_array().unwrap().len(), 2);

    // An item of another user does not exist.
    rig.key = Some(rig.user("bob").await);
    let refer_to = |id: &Value| json!({"model": "default", "input": [refer(id), say("more")]});
    let missing = json!("msg_01980000000070008000000000000001_0");
    for id in [&answer, &asked, &missing, &json!("fc_01980000000070008000000000000001"), &json!("ws_1")] {
        let refused = post(&rig, "/v1/responses", &[], refer_to(id)).await;
        assert_eq!(error(&refused), (404, json!("not_found"), json!("input[0].id")), "{}", refused.body);
        assert!(refused.json()["error"]["message"].as_str().unwrap().contains(id.as_str().unwrap()), "{}", refused.body);
    }
    assert_eq!(error(&post(&rig, "/v1/conversations", &[], items).await), (404, json!("not_found"), json!("items[0].id")));
    let many: Vec<Value> = (0..=10_000).map(|number| refer(&json!(format!("fc_{number:032x}")))).collect();
    let refused = post(&rig, "/v1/responses", &[], json!({"model": "default", "input": many})).await;
    assert_eq!(error(&refused), (400, json!("invalid_request"), json!("input[0].id")), "{}", refused.body);
}

/// A stream shows the text of a step that is reset. SDKs refer to its item later, although its message is not stored.
#[tokio::test]
async fn reference_to_text_of_a_reset_step_has_no_effect() {
    let rig = Rig::new().await;
    let response = begun(&rig, json!({"input": "say"})).await;
    let fence = rig.claim().await;
    rig.play_half(&fence).await;
    rig.write(&fence, &[EventBody::StepReset { step: 1, reason: "crash".to_owned() }], Vec::new()).await;
    let act = rig.play_half(&fence).await;
    rig.play_rest(&fence, act).await;
    let stream = rig.exchange(Method::GET, &format!("/v1/responses/{response}?stream=true"), &[], None).await.body;
    let events = stream.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let items: Vec<Value> =
        events.filter(|event| event["type"] == "response.output_item.done").map(|event| event["item"].clone()).collect();
    let [void, answer] = items.as_slice() else { panic!("two items: {items:?}") };
    assert_eq!((&void["status"], &answer["status"]), (&json!("incomplete"), &json!("completed")));
    let input = json!([say("say"), refer(&void["id"]), refer(&answer["id"]), say("more")]);
    begun(&rig, json!({"input": input})).await;
    let history = rig.store.load_run(&rig.claim().await).await.unwrap().unwrap().history;
    assert_eq!(history.iter().map(|message| message.text()).collect::<Vec<_>>(), ["say", "Hello\nworld", "more"]);
    let input = json!([refer(&void["id"]), say("more")]);
    let alone = post(&rig, "/v1/responses", &[], json!({"model": "default", "input": input})).await;
    assert_eq!(error(&alone), (404, json!("not_found"), json!("input[0].id")), "nothing shows that its run was this user's");
}

/// Begins a response whose run asks its user. Returns the id of the response.
async fn response_with_question(rig: &Rig) -> (String, Fence) {
    let response = begun(rig, json!({"input": "paint"})).await;
    let fence = rig.claim().await;
    let (call, id) = (CallId::generate(&UuidIds), InputId::generate(&UuidIds));
    let question = Question { text: "Which colour?".to_owned(), ..Question::default() };
    let of = (fence.run_id.clone(), fence.conversation_id.clone());
    let asked = InputRequest::about(&call, id.clone(), of, InputKind::Question, question.clone(), 0);
    let requested = EventBody::InputRequested { id, kind: InputKind::Question, call_id: Some(call), question };
    rig.write(&fence, &[requested], vec![Change::RequestInput(asked)]).await;
    rig.waits(&fence, WaitReason::Input, None).await;
    (response, fence)
}

#[tokio::test]
async fn reference_to_an_answer_stands_for_its_text() {
    let rig = Rig::new().await;
    let (response, _) = response_with_question(&rig).await;
    let next = begun(&rig, json!({"input": "red", "previous_response_id": response})).await;
    let answer = get(&rig, &format!("/v1/responses/{next}/input_items")).await["data"][0].clone();
    let follow = begun(&rig, json!({"input": [refer(&answer["id"]), say("thanks")]})).await;
    let mut fence = rig.claim().await;
    if fence.run_id.as_str() != follow.replace("resp_", "run_") {
        fence = rig.claim().await;
    }
    let history = rig.store.load_run(&fence).await.unwrap().unwrap().history;
    assert_eq!(history.iter().map(|message| message.text()).collect::<Vec<_>>(), ["red", "thanks"]);
}

#[tokio::test]
async fn reference_to_a_question_ends_the_run_that_asks() {
    let rig = Rig::new().await;
    let (response, fence) = response_with_question(&rig).await;
    let item = get(&rig, &format!("/v1/responses/{response}")).await["output"][0].clone();
    begun(&rig, json!({"input": [say("paint"), refer(&item["id"]), say("red")]})).await;
    let history = rig.store.load_run(&rig.claim().await).await.unwrap().unwrap().history;
    assert_eq!(history.iter().map(|message| message.text()).collect::<Vec<_>>(), ["paint", "Which colour?", "red"]);
    let run = rig.get(&format!("/api/v1/runs/{}", fence.run_id)).await.json();
    assert_eq!(run["status"], "cancelled", "{run}");
}

#[tokio::test]
async fn deleted_response_leaves_its_chain() {
    let rig = Rig::new().await;
    let delete = async |id: &str| rig.exchange(Method::DELETE, &format!("/v1/responses/{id}"), &[], None).await;
    let status = async |path: String| rig.exchange(Method::GET, &path, &[], None).await.status.as_u16();
    let first = played(&rig, json!({})).await;
    let second = played(&rig, json!({"previous_response_id": first})).await;
    let third = played(&rig, json!({"previous_response_id": second})).await;
    let deleted = delete(&second).await;
    assert_eq!(deleted.json(), json!({"id": second, "object": "response", "deleted": true}));
    assert_eq!(delete(&second).await.status, StatusCode::NOT_FOUND);
    for path in ["", "?stream=true", "/input_items"] {
        assert_eq!(status(format!("/v1/responses/{second}{path}")).await, 404, "{path}");
    }
    let follow = post(&rig, "/v1/responses", &[], json!({"model": "default", "input": "x", "previous_response_id": second})).await;
    assert_eq!(error(&follow), (404, json!("previous_response_not_found"), json!("previous_response_id")));
    // The others go on, with the messages of the deleted one.
    assert_eq!((status(format!("/v1/responses/{first}")).await, status(format!("/v1/responses/{third}")).await), (200, 200));
    let fourth = begun(&rig, json!({"input": "x", "previous_response_id": third})).await;
    assert_eq!(error(&delete(&fourth).await), (409, json!("conflict"), Value::Null), "it is unfinished");
    let early = post(&rig, "/v1/responses", &[], json!({"model": "default", "input": "x", "previous_response_id": fourth})).await;
    assert_eq!(error(&early), (409, json!("run_active"), Value::Null));
    assert!(early.body.contains(&fourth) && !early.body.contains("on_busy"), "{}", early.body);
    let history = rig.store.load_run(&rig.claim().await).await.unwrap().unwrap().history;
    assert_eq!(history.len(), 7);
}

/// Begins a response whose run waits for its client. Returns the ids of the response and of the call.
async fn waiting_response(rig: &Rig) -> (String, String) {
    let tools = json!([{"type": "function", "name": "look"}]);
    (begun(rig, json!({"input": "look", "tools": tools})).await, rig.asks_client(&rig.claim().await).await)
}

/// Returns the request that answers the call of a response.
fn output(previous: &str, call: &str) -> Value {
    let output = json!([{"type": "function_call_output", "call_id": call, "output": "a door"}]);
    json!({"model": "default", "input": output, "previous_response_id": previous, "background": true})
}

#[tokio::test]
async fn answered_response_is_deleted_without_the_next_one() {
    let rig = Rig::new().await;
    let (first, call) = waiting_response(&rig).await;
    let next = text(&post(&rig, "/v1/responses", &[], output(&first, &call)).await.json()["id"]);
    assert_eq!(next, format!("{first}_1"));
    let status = async |id: &str| rig.exchange(Method::GET, &format!("/v1/responses/{id}"), &[], None).await.status.as_u16();
    assert_eq!((status(&first).await, status(&next).await), (200, 200), "no worker has claimed the run yet");
    let deleted = rig.exchange(Method::DELETE, &format!("/v1/responses/{first}"), &[], None).await;
    assert_eq!(deleted.status, StatusCode::OK, "{}", deleted.body);
    assert_eq!((status(&first).await, status(&next).await), (404, 200));
    rig.play().await;
    assert_eq!(get(&rig, &format!("/v1/responses/{next}")).await["status"], "completed");
    let frames = async |query: &str| {
        let path = format!("/v1/responses/{next}?stream=true{query}");
        rig.exchange(Method::GET, &path, &[], None).await.body.matches("\ndata: {").count()
    };
    assert_eq!(frames("").await, frames("&starting_after=0").await + 1);
}

/// Waits for a run, and plays it. Returns its system prompt, and its history before the answer.
async fn play_with_input(rig: &Rig) -> (String, Vec<(Role, String)>) {
    let fence = rig.claim_next().await;
    let loaded = rig.store.load_run(&fence).await.unwrap().unwrap();
    let act = rig.play_half(&fence).await;
    rig.play_rest(&fence, act).await;
    let history = loaded.history.iter().map(|message| (message.role, message.text())).collect();
    (loaded.profile.system_prompt.clone(), history)
}

#[tokio::test]
async fn system_items_apply_to_later_responses() {
    let rig = Rig::new().await;
    let developer = json!({"role": "developer", "content": "Speak French."});
    let first = begun(&rig, json!({"input": [developer, say("hi")]})).await;
    rig.play().await;
    let items = get(&rig, &format!("/v1/responses/{first}/input_items?order=asc")).await["data"].clone();
    assert_eq!((&items[0]["role"], &items[0]["content"][0]["text"]), (&json!("developer"), &json!("Speak French.")), "{items}");
    assert_eq!(items[1]["role"], "user", "{items}");
    let second =
        json!({"previous_response_id": first, "instructions": "Be brief.", "input": [refer(&items[0]["id"]), say("more")]});
    let second = begun(&rig, second).await;
    let (prompt, _) = play_with_input(&rig).await;
    assert!(prompt.ends_with("Be brief.\n\nSpeak French."), "{prompt}");
    assert_eq!(get(&rig, &format!("/v1/responses/{second}/input_items")).await["data"].as_array().unwrap().len(), 1);
    // The instructions apply to their own response only.
    begun(&rig, json!({"previous_response_id": second, "input": "more"})).await;
    let (prompt, _) = play_with_input(&rig).await;
    assert!(prompt.ends_with("Speak French.") && !prompt.contains("Be brief."), "{prompt}");
}

#[tokio::test]
async fn earlier_messages_of_a_request_join_its_conversation() {
    let rig = Rig::new().await;
    let id = conversation(&rig).await;
    let call = json!({"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"});
    let result = json!({"type": "function_call_output", "call_id": "c1", "output": "a door"});
    let input = json!([say("A"), call, result, {"role": "assistant", "content": "B"}, say("C")]);
    begun(&rig, json!({"conversation": id, "input": input})).await;
    let (_, history) = play_with_input(&rig).await;
    let roles: Vec<Role> = history.iter().map(|(role, _)| *role).collect();
    let expected = [Role::User, Role::Assistant, Role::Tool, Role::Assistant, Role::User];
    assert_eq!(roles, expected, "{history:?}");
    // A refused request stores nothing.
    let refused = json!({"model": "default", "conversation": id, "metadata": {"k": 7}, "input": [say("D"), {"role": "assistant", "content": "E"}, say("F")]});
    assert_eq!(error(&post(&rig, "/v1/responses", &[], refused).await).0, 400);
    begun(&rig, json!({"conversation": id, "input": "G"})).await;
    assert_eq!(play_with_input(&rig).await.1.len(), expected.len() + 2);
    let unknown = post(&rig, "/v1/responses", &[], json!({"model": "default", "conversation": "conv_123", "input": "x"})).await;
    assert_eq!(error(&unknown).0, 404, "{}", unknown.body);
}

#[tokio::test]
async fn request_of_instructions_alone_is_a_message() {
    let rig = Rig::new().await;
    let system = json!({"role": "system", "content": "Tell a joke."});
    for messages in [json!([system]), json!([system, say("")]), json!([say(" "), system])] {
        let body = json!({"model": "default", "messages": messages, "stream": false});
        let (reply, ()) = tokio::join!(post(&rig, "/v1/chat/completions", &[], body), async {
            let (prompt, history) = play_with_input(&rig).await;
            assert_eq!(history, [(Role::User, "Tell a joke.".to_owned())]);
            assert!(!prompt.contains("joke"), "{prompt}");
        });
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    }
    // It is listed once, and does not apply to later responses.
    let first = begun(&rig, json!({"input": [system]})).await;
    play_with_input(&rig).await;
    assert_eq!(get(&rig, &format!("/v1/responses/{first}/input_items")).await["data"].as_array().unwrap().len(), 1);
    begun(&rig, json!({"previous_response_id": first, "input": "Thanks"})).await;
    assert!(!play_with_input(&rig).await.0.contains("joke"));
    let blank = post(&rig, "/v1/chat/completions", &[], json!({"model": "default", "messages": [say("a"), say("")]})).await;
    assert_eq!(error(&blank).0, 400, "{}", blank.body);
}

#[tokio::test]
async fn history_that_ends_with_an_answer_is_continued() {
    let rig = Rig::new().await;
    let (question, begun_answer) = (say("Count."), json!({"role": "assistant", "content": "One, two"}));
    let expected = [(Role::User, "Count.".to_owned()), (Role::Assistant, "One, two".to_owned())];
    let body = json!({"model": "default", "messages": [question, begun_answer]});
    let (reply, (_, history)) = tokio::join!(post(&rig, "/v1/chat/completions", &[], body), play_with_input(&rig));
    assert_eq!((reply.status, history.as_slice()), (StatusCode::OK, &expected[..]), "{}", reply.body);
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "Hello\nworld");
    let first = begun(&rig, json!({"input": [question, begun_answer]})).await;
    assert_eq!(play_with_input(&rig).await.1, expected);
    let items = get(&rig, &format!("/v1/responses/{first}/input_items?order=asc")).await["data"].clone();
    assert_eq!((&items[0]["role"], &items[1]["role"]), (&json!("user"), &json!("assistant")), "{items}");
    assert_eq!(get(&rig, "/api/v1/conversations").await["data"][0]["title"], "Count.", "the title is the user's text");
    let call = json!({"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"});
    let open = post(&rig, "/v1/responses", &[], json!({"model": "default", "input": [question, call]})).await;
    assert_eq!(error(&open), (400, json!("invalid_request"), json!("input")), "a call needs its output");
}

#[tokio::test]
async fn assistant_messages_may_have_every_field_of_gateways() {
    let rig = Rig::new().await;
    let call = json!({"id": "c1", "type": "function", "function": {"name": "look", "arguments": null}});
    let messages = json!([
        say("A"),
        {"role": "assistant", "content": null, "refusal": "No.", "reasoning": null, "reasoning_content": null},
        say("B"),
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": ""}]},
    ]);
    let body = json!({"model": null, "messages": messages});
    let (reply, ()) = tokio::join!(post(&rig, "/v1/chat/completions", &[], body), async {
        let (_, history) = play_with_input(&rig).await;
        assert_eq!((history.len(), history[1].1.as_str()), (5, "No."), "{history:?}");
    });
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
}

#[tokio::test]
async fn another_answer_to_an_answered_response_is_refused() {
    let rig = Rig::new().await;
    let (first, call) = waiting_response(&rig).await;
    let answer = output(&first, &call);
    let next = text(&post(&rig, "/v1/responses", &[], answer.clone()).await.json()["id"]);
    let fence = rig.claim().await;
    let completed = EventBody::ToolCompleted {
        call_id: CallId::from_stored(call),
        name: "look".to_owned(),
        server: None,
        state: ToolCallState::Done,
        content: vec![ToolContent::text("a door")],
        is_error: false,
        duration_ms: 1,
        truncated: false,
        undoable: false,
    };
    rig.write(&fence, &[completed], Vec::new()).await;
    let act = rig.play_half(&fence).await;
    rig.play_rest(&fence, act).await;
    assert_eq!(post(&rig, "/v1/responses", &[], answer.clone()).await.json()["id"], json!(next), "the request is repeated");
    let mut other = answer;
    other["input"][0]["output"] = json!("a window");
    let refused = post(&rig, "/v1/responses", &[], other).await;
    assert_eq!(error(&refused), (400, json!("invalid_request"), json!("previous_response_id")), "{}", refused.body);
}

#[tokio::test]
async fn answer_with_fields_that_no_run_can_have_is_refused() {
    let rig = Rig::new().await;
    let (first, call) = waiting_response(&rig).await;
    for (field, value) in
        [("tools", json!([{"type": "web_search"}])), ("tool_choice", json!("bogus")), ("metadata", json!({"k": 7}))]
    {
        let mut body = output(&first, &call);
        body[field] = value;
        let refused = post(&rig, "/v1/responses", &[], body).await;
        assert_eq!(error(&refused).0, 400, "{field}: {}", refused.body);
    }
    assert_eq!(post(&rig, "/v1/responses", &[], output(&first, &call)).await.status, StatusCode::OK);
}

#[tokio::test]
async fn limit_of_tool_calls_is_a_part_of_the_run() {
    let rig = Rig::new().await;
    let response = begun(&rig, json!({"input": "look", "max_tool_calls": 2})).await;
    let loaded = rig.store.load_run(&rig.claim().await).await.unwrap().unwrap();
    assert_eq!(loaded.profile.max_server_calls, Some(2));
    assert_eq!(get(&rig, &format!("/v1/responses/{response}")).await["max_tool_calls"], 2);
}

#[tokio::test]
async fn continued_response_repeats_its_own_request() {
    let rig = Rig::new().await;
    let tools = json!([{"type": "function", "name": "look"}]);
    let asked = json!({"input": "look", "tools": tools, "instructions": "One.", "temperature": 0.5, "metadata": {"a": "b"}});
    let first = begun(&rig, asked).await;
    let call = rig.asks_client(&rig.claim().await).await;
    let mut answer = output(&first, &call);
    answer["input"].as_array_mut().unwrap().push(json!({"role": "developer", "content": "Be kind."}));
    (answer["instructions"], answer["metadata"], answer["max_output_tokens"]) = (json!("Two."), json!({"c": "d"}), json!(9));
    let continued = post(&rig, "/v1/responses", &[], answer).await.json();
    let next = get(&rig, &format!("/v1/responses/{first}_1")).await;
    for response in [&continued, &next] {
        let shown = ["instructions", "metadata", "max_output_tokens", "temperature"].map(|field| response[field].clone());
        assert_eq!(shown, [json!("Two."), json!({"c": "d"}), json!(9), json!(0.5)], "{response}");
        assert_eq!(response["previous_response_id"], json!(first));
    }
    let before = get(&rig, &format!("/v1/responses/{first}")).await;
    assert_eq!((&before["instructions"], &before["metadata"]), (&json!("One."), &json!({"a": "b"})));
    let items = get(&rig, &format!("/v1/responses/{first}_1/input_items?order=asc")).await["data"].clone();
    assert_eq!((&items[0]["role"], &items[0]["content"][0]["text"]), (&json!("developer"), &json!("Be kind.")), "{items}");
    // The run keeps its instructions, and later responses have the new text.
    let (prompt, _) = play_with_input(&rig).await;
    assert!(!prompt.contains("Be kind."), "{prompt}");
    begun(&rig, json!({"previous_response_id": format!("{first}_1"), "input": "more"})).await;
    let (prompt, _) = play_with_input(&rig).await;
    assert!(prompt.ends_with("Be kind."), "{prompt}");
}

#[tokio::test]
async fn cancelling_an_ended_response_leaves_the_next_one() {
    let rig = Rig::new().await;
    let (first, call) = waiting_response(&rig).await;
    let next = text(&post(&rig, "/v1/responses", &[], output(&first, &call)).await.json()["id"]);
    let cancelled = post(&rig, &format!("/v1/responses/{first}/cancel"), &[], json!({})).await;
    assert_eq!((cancelled.status, &cancelled.json()["status"]), (StatusCode::OK, &json!("completed")), "{}", cancelled.body);
    rig.play().await;
    assert_eq!(get(&rig, &format!("/v1/responses/{next}")).await["status"], "completed");
}

#[tokio::test]
async fn cancelled_pause_can_be_followed() {
    let rig = Rig::new().await;
    let (first, call) = waiting_response(&rig).await;
    post(&rig, &format!("/v1/responses/{first}/cancel"), &[], json!({})).await;
    let late = post(&rig, "/v1/responses", &[], output(&first, &call)).await;
    assert_eq!(error(&late).0, 400, "{}", late.body);
    begun(&rig, json!({"previous_response_id": first, "input": "go on"})).await;
    assert_eq!(play_with_input(&rig).await.1.last().unwrap().1, "go on");
}

#[tokio::test]
async fn response_that_ended_in_a_call_is_deleted() {
    let rig = Rig::new().await;
    let first = played(&rig, json!({})).await;
    let tools = json!([{"type": "function", "name": "look"}]);
    let second = begun(&rig, json!({"input": "look", "tools": tools, "previous_response_id": first})).await;
    rig.asks_client(&rig.claim().await).await;
    let deleted = rig.exchange(Method::DELETE, &format!("/v1/responses/{second}"), &[], None).await;
    assert_eq!(deleted.status, StatusCode::OK, "{}", deleted.body);
    assert_eq!(get(&rig, &format!("/v1/responses/{first}")).await["status"], "completed");
    let run = get(&rig, &format!("/api/v1/runs/{}", second.replace("resp_", "run_"))).await;
    assert_eq!(run["status"], "cancelled", "its run must not wait for an answer that no client can give");
    begun(&rig, json!({"previous_response_id": first, "input": "go on"})).await;
}

#[tokio::test]
async fn unfinished_response_is_named_by_its_number() {
    let rig = Rig::new().await;
    let (first, call) = waiting_response(&rig).await;
    let next = text(&post(&rig, "/v1/responses", &[], output(&first, &call)).await.json()["id"]);
    let run = get(&rig, &format!("/api/v1/runs/{}", first.replace("resp_", "run_"))).await;
    let follow = json!({"model": "default", "input": "x", "previous_response_id": next});
    let items = format!("/v1/conversations/{}/items", text(&run["conversation_id"]));
    for (path, body) in [("/v1/responses", follow), (items.as_str(), json!({"items": [say("x")]}))] {
        let refused = post(&rig, path, &[], body).await;
        assert_eq!(error(&refused), (409, json!("run_active"), Value::Null), "{path}");
        assert!(refused.body.contains(&format!("{next} ")), "{path}: {}", refused.body);
    }
}

#[tokio::test]
async fn conversation_is_deleted_with_the_last_of_its_responses() {
    let rig = Rig::new().await;
    let kept = conversation(&rig).await;
    let count = async || rig.get("/api/v1/conversations").await.json()["data"].as_array().unwrap().len();
    for (request, before) in [(json!({}), 2), (json!({"conversation": kept}), 1)] {
        let first = played(&rig, request).await;
        let second = played(&rig, json!({"previous_response_id": first})).await;
        let third = played(&rig, json!({"previous_response_id": second})).await;
        for id in [&first, &third] {
            assert_eq!(rig.exchange(Method::DELETE, &format!("/v1/responses/{id}"), &[], None).await.status, StatusCode::OK);
        }
        assert_eq!(count().await, before);
        assert_eq!(get(&rig, &format!("/v1/responses/{second}")).await["status"], "completed");
        assert_eq!(rig.exchange(Method::DELETE, &format!("/v1/responses/{second}"), &[], None).await.status, StatusCode::OK);
        assert_eq!(rig.exchange(Method::GET, &format!("/v1/responses/{second}"), &[], None).await.status, StatusCode::NOT_FOUND);
        assert_eq!(count().await, 1);
    }
    assert_eq!(get(&rig, &format!("/v1/conversations/{kept}")).await["id"], json!(kept), "the client has created it");

    // A second response after the first one begins in a copy of the conversation, which goes as well.
    let first = played(&rig, json!({})).await;
    let chain = [first.clone(), played(&rig, json!({"previous_response_id": first})).await];
    let branch = played(&rig, json!({"previous_response_id": first})).await;
    assert_eq!(count().await, 3);
    for id in chain.iter().chain([&branch]) {
        assert_eq!(rig.exchange(Method::DELETE, &format!("/v1/responses/{id}"), &[], None).await.status, StatusCode::OK);
    }
    assert_eq!(count().await, 1);
}

#[tokio::test]
async fn repeated_follow_up_of_a_deleted_response_is_replayed() {
    let rig = Rig::new().await;
    let repeat = async |key: &str, body: &Value| post(&rig, "/v1/responses", &[("idempotency-key", key)], body.clone()).await;
    let delete = async |id: &str| rig.exchange(Method::DELETE, &format!("/v1/responses/{id}"), &[], None).await;
    let first = played(&rig, json!({})).await;
    let follow = json!({"model": "default", "input": "next", "previous_response_id": first, "background": true});
    let second = text(&repeat("message", &follow).await.json()["id"]);
    rig.play().await;
    assert_eq!(delete(&first).await.status, StatusCode::OK);
    let again = repeat("message", &follow).await;
    assert_eq!((again.status, &again.json()["id"]), (StatusCode::OK, &json!(second)), "{}", again.body);
    let missing = (404, json!("previous_response_not_found"), json!("previous_response_id"));
    assert_eq!(error(&repeat("other", &follow).await), missing);
    let mut changed = follow.clone();
    changed["input"] = json!("changed");
    assert_eq!(error(&repeat("message", &changed).await).0, 422);
    assert_eq!(delete(&second).await.status, StatusCode::OK);
    assert_eq!(repeat("message", &follow).await.status, StatusCode::NOT_FOUND, "a deleted response does not come back");

    // Before and after a worker has claimed the run again.
    let (waiting, call) = waiting_response(&rig).await;
    let answer = output(&waiting, &call);
    let next = text(&repeat("answer", &answer).await.json()["id"]);
    assert_eq!(delete(&waiting).await.status, StatusCode::OK);
    for _ in 0..2 {
        let again = repeat("answer", &answer).await;
        assert_eq!((again.status, &again.json()["id"]), (StatusCode::OK, &json!(next)), "{}", again.body);
        if get(&rig, &format!("/v1/responses/{next}")).await["status"] != "completed" {
            rig.play().await;
        }
    }
    assert_eq!(error(&repeat("other answer", &answer).await), missing);

    // The follow-up continued a copy, and the original is gone.
    let original = played(&rig, json!({})).await;
    played(&rig, json!({"previous_response_id": original})).await;
    let follow = json!({"model": "default", "input": "next", "previous_response_id": original, "background": true});
    let copied = text(&repeat("copy", &follow).await.json()["id"]);
    let run = get(&rig, &format!("/api/v1/runs/{}", original.replace("resp_", "run_"))).await;
    let gone = format!("/api/v1/conversations/{}", text(&run["conversation_id"]));
    assert!(rig.exchange(Method::DELETE, &gone, &[], None).await.status.is_success());
    let again = repeat("copy", &follow).await;
    assert_eq!((again.status, &again.json()["id"]), (StatusCode::OK, &json!(copied)), "{}", again.body);
}

#[tokio::test]
async fn conversation_is_deleted_with_its_only_response() {
    let rig = Rig::new().await;
    let kept = conversation(&rig).await;
    let (alone, named) = (played(&rig, json!({})).await, played(&rig, json!({"conversation": kept})).await);
    for id in [alone, named] {
        assert_eq!(rig.exchange(Method::DELETE, &format!("/v1/responses/{id}"), &[], None).await.status, StatusCode::OK);
        assert_eq!(rig.exchange(Method::GET, &format!("/v1/responses/{id}"), &[], None).await.status, StatusCode::NOT_FOUND);
    }
    let left = rig.get("/api/v1/conversations").await.json();
    assert_eq!((left["data"].as_array().unwrap().len(), &left["data"][0]["id"]), (1, &json!(kept)));
}

#[tokio::test]
async fn page_of_files_after_no_file_is_refused() {
    let rig = Rig::new().await;
    let refused = rig.exchange(Method::GET, "/v1/files?after=file_1", &[], None).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["param"]), (400, &json!("after")), "{}", refused.body);
}
