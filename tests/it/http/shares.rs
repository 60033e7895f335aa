//! Shares of conversations: their life, their limits, and what they do not show.

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use capstan::domain::event::EventBody;
use capstan::domain::ids::{ConversationId, ShareId};
use capstan::domain::run::change::Change;
use capstan::domain::run::{FinishReason, RunStatus};
use capstan::service::{ShareLimits, ShareRules, hash_key};
use capstan::store::{IdempotentOutcome, NewShare, ShareOutcome};
use capstan::support::clock::UnixMillis;
use capstan::support::ids::UuidIds;
use serde_json::{Value, json};

use super::rig::{Reply, Rig, text};

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// Starts a server with keys, on which a run has ended. Returns the path of its conversation, too.
async fn played() -> (Rig, String) {
    played_with(ShareRules::default()).await
}

async fn played_with(rules: ShareRules) -> (Rig, String) {
    let rig = Rig::with_shares(rules).await;
    let (id, _) = rig.start("first").await;
    rig.play().await;
    (rig, format!("/api/v1/conversations/{id}"))
}

async fn share(rig: &Rig, conversation: &str, body: Value) -> Reply {
    rig.post(&format!("{conversation}/shares"), body).await
}

/// Shares a conversation and returns the share.
async fn shared(rig: &Rig, conversation: &str) -> Value {
    let reply = share(rig, conversation, json!({})).await;
    assert_eq!(reply.status, StatusCode::CREATED, "{}", reply.body);
    reply.json()
}

async fn listed(rig: &Rig, conversation: &str) -> Vec<Value> {
    rig.get(&format!("{conversation}/shares")).await.json()["data"].as_array().unwrap().clone()
}

/// Reads a share as everyone does who has its link: without a key.
async fn read(rig: &Rig, token: &str) -> Reply {
    let headers = [("authorization", ""), ("share-token", token), ("x-request-id", "same")];
    rig.send(Method::GET, "/api/v1/shared", &headers, None).await
}

async fn revoke(rig: &Rig, conversation: &str, share: &Value) -> StatusCode {
    rig.send(Method::DELETE, &format!("{conversation}/shares/{}", text(&share["id"])), &[], None).await.status
}

/// Stores a share that has expired or will expire, in the role of an earlier request. Returns its token.
async fn stored(rig: &Rig, conversation: &str, lifetime_ms: u64) -> String {
    let token = format!("link_{lifetime_ms}");
    let id = conversation.rsplit('/').next().unwrap().parse::<ConversationId>().unwrap();
    let owner = rig.store.user_by_key_hash(&hash_key(rig.key.as_ref().unwrap())).await.unwrap().unwrap().id;
    let limits = ShareLimits { per_conversation: 100, ..ShareRules::default().limits };
    let hash = hash_key(&token);
    let new = NewShare { id: ShareId::generate(&UuidIds), owner, conversation_id: id, hash, lifetime_ms, limits };
    let outcome = rig.store.create_share(new, None).await.unwrap();
    assert!(matches!(outcome, IdempotentOutcome::Fresh(ShareOutcome::Shared(_))), "{outcome:?}");
    token
}

fn time(value: &Value) -> i64 {
    UnixMillis::from_rfc3339(value.as_str().unwrap()).unwrap().0
}

fn assert_private(reply: &Reply) {
    for (name, value) in [("cache-control", "no-store"), ("x-robots-tag", "noindex"), ("referrer-policy", "no-referrer")] {
        assert_eq!(reply.header(name), value, "{name}: {}", reply.body);
    }
    assert_eq!(reply.header("set-cookie"), "");
}

#[tokio::test]
async fn share_shows_the_conversation_until_it_is_revoked() {
    let (rig, conversation) = played().await;
    let created = share(&rig, &conversation, json!({"expires_in_days": 7})).await;
    assert_eq!((created.status, created.header("cache-control")), (StatusCode::CREATED, "no-store"), "{}", created.body);
    let mut first = created.json();
    let token = text(&first.as_object_mut().unwrap().remove("token").unwrap());
    assert_eq!(time(&first["expires_at"]) - time(&first["created_at"]), 7 * DAY_MS);
    assert_eq!(json!([first["title"], first["message_count"]]), json!(["first", 2]));
    assert!(conversation.ends_with(&text(&first["conversation_id"])), "{first}");
    assert_eq!(listed(&rig, &conversation).await, [first.clone()], "without the token");
    assert_eq!(rig.get(&format!("{conversation}/shares")).await.json()["next_cursor"], Value::Null);

    let shown = read(&rig, &token).await;
    assert_eq!(shown.status, StatusCode::OK, "{}", shown.body);
    assert_private(&shown);
    let own = rig.get(&format!("{conversation}/messages")).await.json()["data"].clone();
    let said = |index: usize, role: &str, words: &str| json!({"role": role, "created_at": own[index]["created_at"], "parts": [{"type": "text", "text": words}]});
    let expected = json!({
        "title": "first", "created_at": first["created_at"], "expires_at": first["expires_at"],
        "messages": [said(0, "user", "first"), said(1, "assistant", "Hello\nworld")],
    });
    assert_eq!(shown.json(), expected);

    // Later changes of the conversation leave the share as it is.
    rig.send(Method::PATCH, &conversation, &[], Some(json!({"title": "Renamed"}))).await;
    rig.post(&format!("{conversation}/messages"), json!({"content": "second"})).await;
    rig.play().await;
    let edit = format!("{conversation}/messages/{}/edit", text(&own[0]["id"]));
    assert_eq!(rig.post(&edit, json!({"content": "edited"})).await.status, StatusCode::ACCEPTED);
    assert_eq!(read(&rig, &token).await.body, shown.body);
    let second = shared(&rig, &conversation).await;
    let later = read(&rig, &text(&second["token"])).await.json();
    assert_eq!((&later["title"], &later["messages"][0]["parts"][0]["text"]), (&json!("Renamed"), &json!("edited")));
    assert_eq!(time(&second["expires_at"]) - time(&second["created_at"]), 30 * DAY_MS, "the default");

    assert_eq!(revoke(&rig, &conversation, &first).await, StatusCode::NO_CONTENT);
    assert_eq!(read(&rig, &token).await.status, StatusCode::NOT_FOUND, "at once");
    assert_eq!(revoke(&rig, &conversation, &first).await, StatusCode::NOT_FOUND);
    assert_eq!(read(&rig, &text(&second["token"])).await.status, StatusCode::OK, "the other share stays");
    assert_eq!(rig.send(Method::DELETE, &conversation, &[], None).await.status, StatusCode::NO_CONTENT);
    assert_eq!(read(&rig, &text(&second["token"])).await.status, StatusCode::NOT_FOUND);
    assert_eq!(rig.get(&format!("{conversation}/shares")).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn every_refused_token_gets_the_same_answer() {
    let (rig, conversation) = played().await;
    let revoked = shared(&rig, &conversation).await;
    assert_eq!(revoke(&rig, &conversation, &revoked).await, StatusCode::NO_CONTENT);
    let expired = stored(&rig, &conversation, 0).await;
    let valid = stored(&rig, &conversation, 600_000).await;
    assert_eq!(read(&rig, &valid).await.status, StatusCode::OK);
    let missing = read(&rig, "").await;
    assert_eq!((missing.status, missing.code().as_str()), (StatusCode::NOT_FOUND, "not_found"));
    assert_private(&missing);
    let key = rig.key.clone().unwrap();
    let long = "x".repeat(2_000);
    for token in [expired.as_str(), &text(&revoked["token"]), &text(&revoked["id"]), &format!("{valid}x"), "' OR 1=1", &key, &long]
    {
        let refused = read(&rig, token).await;
        assert_eq!((refused.status, &refused.body), (StatusCode::NOT_FOUND, &missing.body), "{token}");
        assert_eq!(refused.headers, missing.headers, "{token}");
    }
    // Neither a key nor the place of another secret helps.
    assert_eq!(rig.get("/api/v1/shared").await.status, StatusCode::NOT_FOUND);
    assert_eq!(rig.get(&format!("/api/v1/shared?token={valid}")).await.status, StatusCode::NOT_FOUND);
    let request = Request::get("/api/v1/shared").header("share-token", [0xff_u8, 0xfe].as_slice()).body(Body::empty()).unwrap();
    assert_eq!(rig.raw(request).await.status(), StatusCode::NOT_FOUND);
    // A wrong key does not hurt.
    let headers = [("authorization", "Bearer cap_wrong"), ("share-token", valid.as_str())];
    assert_eq!(rig.send(Method::GET, "/api/v1/shared", &headers, None).await.status, StatusCode::OK);
    assert_eq!(listed(&rig, &conversation).await.len(), 1, "the expired share is not listed");
}

#[tokio::test]
async fn share_belongs_to_its_conversation() {
    let (rig, conversation) = played().await;
    let first = shared(&rig, &conversation).await;
    let (other, _) = rig.start("another").await;
    let other = format!("/api/v1/conversations/{other}");
    assert_eq!(revoke(&rig, &other, &first).await, StatusCode::NOT_FOUND);
    assert_eq!(listed(&rig, &other).await, Vec::<Value>::new());
    let bob = format!("Bearer {}", rig.user("bob").await);
    for (method, path) in [
        (Method::POST, format!("{conversation}/shares")),
        (Method::GET, format!("{conversation}/shares")),
        (Method::DELETE, format!("{conversation}/shares/{}", text(&first["id"]))),
    ] {
        let reply = rig.send(method, &path, &[("authorization", &bob)], None).await;
        assert_eq!(reply.status, StatusCode::NOT_FOUND, "{path}");
    }
    assert_eq!(read(&rig, &text(&first["token"])).await.status, StatusCode::OK);
}

#[tokio::test]
async fn shares_of_all_conversations_are_listed_in_pages() {
    let (rig, conversation) = played().await;
    let (other, _) = rig.start("another").await;
    let other = format!("/api/v1/conversations/{other}");
    let mut expected = Vec::new();
    for of in [&conversation, &other, &conversation] {
        let mut made = shared(&rig, of).await;
        made.as_object_mut().unwrap().remove("token");
        expected.push(made);
    }
    stored(&rig, &other, 0).await;
    expected.sort_by_key(|share| std::cmp::Reverse((time(&share["created_at"]), text(&share["id"]))));
    let whole = rig.get("/api/v1/shares").await;
    assert_eq!((&whole.json()["data"], &whole.json()["next_cursor"]), (&json!(expected), &Value::Null), "without tokens");
    assert_eq!(whole.header("link"), "");

    let first = rig.get("/api/v1/shares?limit=2").await;
    assert_eq!(first.json()["data"], json!(expected[..2]));
    let cursor = text(&first.json()["next_cursor"]);
    let next = format!("/api/v1/shares?limit=2&cursor={cursor}");
    assert_eq!(first.header("link"), format!("<{next}>; rel=\"next\""));
    let second = rig.get(&next).await.json();
    assert_eq!((&second["data"], &second["next_cursor"]), (&json!(expected[2..]), &Value::Null));
    for query in ["limit=0", "limit=101", "cursor=abc"] {
        assert_eq!(rig.get(&format!("/api/v1/shares?{query}")).await.status, StatusCode::BAD_REQUEST, "{query}");
    }

    let bob = format!("Bearer {}", rig.user("bob").await);
    let foreign = rig.send(Method::GET, &next, &[("authorization", &bob)], None).await;
    assert_eq!((foreign.status, &foreign.json()["data"]), (StatusCode::OK, &json!([])), "also with a cursor of another user");
    assert_eq!(rig.send(Method::DELETE, &other, &[], None).await.status, StatusCode::NO_CONTENT);
    expected.retain(|share| conversation.ends_with(&text(&share["conversation_id"])));
    let left = rig.get("/api/v1/shares").await.json();
    assert_eq!((expected.len(), &left["data"]), (2, &json!(expected)));
    assert_eq!(revoke(&rig, &conversation, &expected[0]).await, StatusCode::NO_CONTENT);
    assert_eq!(rig.get("/api/v1/shares").await.json()["data"], json!([expected[1]]));
}

#[tokio::test]
async fn account_states_the_limit_of_shares() {
    let limit =
        async |rules: ShareRules| Rig::with_shares(rules).await.get("/api/v1/me").await.json().get("max_share_days").cloned();
    assert_eq!(limit(ShareRules { max_days: 10, ..ShareRules::default() }).await, Some(json!(10)));
    assert_eq!(limit(ShareRules { enabled: false, ..ShareRules::default() }).await, None);
}

#[tokio::test]
async fn limits_of_shares_are_explained() {
    let rules = ShareRules {
        max_days: 10,
        limits: ShareLimits { per_conversation: 2, bytes: 1_000, ..ShareRules::default().limits },
        ..ShareRules::default()
    };
    let (rig, conversation) = played_with(rules).await;
    for (days, code) in [(json!(0), 400), (json!(11), 400), (json!(-1), 400), (json!("7"), 400), (json!(10), 201)] {
        let reply = share(&rig, &conversation, json!({ "expires_in_days": days })).await;
        assert_eq!(reply.status.as_u16(), code, "{days}: {}", reply.body);
    }
    let refused = share(&rig, &conversation, json!({"expires_in_days": 11})).await.json();
    assert_eq!(refused["errors"][0]["pointer"], "/expires_in_days");
    assert!(text(&refused["detail"]).contains("limits.max_share_days"), "{refused}");
    assert_eq!(share(&rig, &conversation, json!({"days": 1})).await.status, StatusCode::BAD_REQUEST);
    let default = rig.send(Method::POST, &format!("{conversation}/shares"), &[], None).await;
    assert_eq!(default.status, StatusCode::CREATED, "without a body");
    let default = default.json();
    assert_eq!(time(&default["expires_at"]) - time(&default["created_at"]), 10 * DAY_MS, "not more than the limit");
    let many = share(&rig, &conversation, json!({})).await;
    assert_eq!((many.status, many.code().as_str()), (StatusCode::CONFLICT, "conflict"));
    assert!(many.body.contains("limits.max_shares_per_conversation"), "{}", many.body);
    assert_eq!(revoke(&rig, &conversation, &default).await, StatusCode::NO_CONTENT);
    shared(&rig, &conversation).await;

    let (large, _) = rig.start(&"long ".repeat(200)).await;
    let large = format!("/api/v1/conversations/{large}");
    let refused = share(&rig, &large, json!({})).await;
    assert_eq!((refused.status, refused.code().as_str()), (StatusCode::CONFLICT, "conflict"));
    assert!(refused.body.contains("limits.max_share_bytes") && refused.body.contains("fork"), "{}", refused.body);
}

#[tokio::test]
async fn repeated_creation_shows_no_token() {
    let (rig, conversation) = played().await;
    let create = async |body: Value| {
        rig.send(Method::POST, &format!("{conversation}/shares"), &[("idempotency-key", "once")], Some(body)).await
    };
    let first = create(json!({})).await;
    assert_eq!(first.status, StatusCode::CREATED, "{}", first.body);
    let again = create(json!({})).await;
    assert_eq!((again.status, again.code().as_str()), (StatusCode::CONFLICT, "conflict"));
    assert!(again.body.contains(&text(&first.json()["id"])) && !again.body.contains(&text(&first.json()["token"])));
    assert_eq!(create(json!({"expires_in_days": 1})).await.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(listed(&rig, &conversation).await.len(), 1);
}

#[tokio::test]
async fn server_without_shares_only_lists_and_revokes() {
    let (rig, conversation) = played_with(ShareRules { enabled: false, ..ShareRules::default() }).await;
    let token = stored(&rig, &conversation, 600_000).await;
    let refused = share(&rig, &conversation, json!({})).await;
    assert_eq!((refused.status, refused.code().as_str()), (StatusCode::FORBIDDEN, "forbidden"));
    let (hidden, wrong) = (read(&rig, &token).await, read(&rig, "share_wrong").await);
    assert_eq!((hidden.status, &hidden.body), (StatusCode::NOT_FOUND, &wrong.body));
    let left = listed(&rig, &conversation).await;
    assert_eq!(left.len(), 1);
    assert_eq!(revoke(&rig, &conversation, &left[0]).await, StatusCode::NO_CONTENT);
    assert_eq!(listed(&rig, &conversation).await, Vec::<Value>::new());
}

/// Text that no share shows.
const SECRET: &str = "canary";

#[tokio::test]
async fn share_shows_texts_and_tool_names_only() {
    let rig = Rig::with_keys().await;
    let (id, run) = rig.start("Question").await;
    let conversation = format!("/api/v1/conversations/{id}");
    let wishes = json!({"system_prompt": SECRET, "instructions": SECRET, "tags": [SECRET]});
    assert_eq!(rig.send(Method::PATCH, &conversation, &[], Some(wishes)).await.status, StatusCode::OK);
    let fence = rig.claim().await;
    let part = |number: u32| format!("part_{number:032x}");
    let call = |number: u32, name: &str| {
        json!({
            "type": "tool_call", "id": part(number), "call_id": format!("call_{number:032x}"), "name": name,
            "arguments": {"path": SECRET}, "provider_call_id": SECRET, "raw": {"signature": SECRET},
        })
    };
    let result = |number: u32, name: &str, state: &str| {
        json!({
            "type": "tool_result", "id": part(number), "call_id": format!("call_{number:032x}"), "name": name, "state": state,
            "is_error": state != "done", "content": [
                {"type": "text", "text": SECRET},
                {"type": "file", "media_type": "text/plain", "name": SECRET, "url": format!("https://{SECRET}.example/a")},
            ],
        })
    };
    let file = json!({"type": "file", "id": part(20), "media_type": "text/plain", "name": SECRET, "url": format!("https://{SECRET}.example/d")});
    let image = json!({"type": "image", "id": part(21), "media_type": "image/png", "url": format!("https://{SECRET}.example/b")});
    let source =
        json!({"type": "source", "id": part(22), "url": format!("https://{SECRET}.example/c"), "title": SECRET, "text": SECRET});
    let reasoning = json!({"type": "reasoning", "id": part(23), "text": SECRET, "raw": {"signature": SECRET}});
    let words = |text: &str| json!({"type": "text", "id": part(24), "text": text});
    let answered = |number: u32, role: &str, more: Value| {
        let mut message = json!({
            "id": format!("msg_{number:032x}"), "conversation_id": id, "run_id": run, "role": role, "status": "complete",
            "created_at": format!("2026-01-01T00:00:0{number}.000Z"),
        });
        message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        message
    };
    let messages = [
        answered(
            1,
            "assistant",
            json!({"model": SECRET, "usage": {"input_tokens": 987_654, "output_tokens": 1}, "parts": [
                reasoning, words("I look."), call(1, "clock"), call(2, "denied_canary"), call(3, "stopped_canary"),
            ]}),
        ),
        answered(
            2,
            "tool",
            json!({"parts": [
                result(1, "clock", "done"), result(2, "denied_canary", "denied"), result(3, "stopped_canary", "cancelled"),
            ]}),
        ),
        answered(3, "user", json!({"internal": true, "parts": [words(SECRET)]})),
        answered(8, "assistant", json!({"internal": true, "parts": [words(SECRET)]})),
        answered(4, "assistant", json!({"parts": [call(4, "search")]})),
        answered(5, "tool", json!({"parts": [result(4, "search", "failed")]})),
        answered(6, "user", json!({"parts": [file]})),
        answered(7, "assistant", json!({"status": "partial", "parts": [image, source, words("Done.")]})),
    ];
    let event = EventBody::StepCompleted { step: 1, usage: None };
    for message in messages {
        let change = Change::AddMessage(serde_json::from_value(message).unwrap());
        rig.write(&fence, std::slice::from_ref(&event), vec![change]).await;
    }
    let finish =
        Change::Finish { status: RunStatus::Completed, finish_reason: Some(FinishReason::Stop), error: None, joined: None };
    rig.write(&fence, &[event], vec![finish]).await;
    // A superseded question with its answer.
    let sent = rig.post(&format!("{conversation}/messages"), json!({"content": SECRET})).await.json();
    rig.play().await;
    let rewind = json!({"before_message_id": sent["message"]["id"]});
    assert_eq!(rig.post(&format!("{conversation}/rewind"), rewind).await.status, StatusCode::OK);
    let all = rig.get(&format!("{conversation}/messages")).await;
    assert!(all.body.matches(SECRET).count() > 10, "{}", all.body);

    let share = shared(&rig, &conversation).await;
    let shown = read(&rig, &text(&share["token"])).await;
    let asked = all.json()["data"][0]["created_at"].clone();
    let said = |text: &str| json!({"type": "text", "text": text});
    let tool = |name: &str| json!({"type": "tool", "name": name});
    let expected = json!({
        "title": "Question", "created_at": share["created_at"], "expires_at": share["expires_at"],
        "messages": [
            {"role": "user", "created_at": asked, "parts": [said("Question")]},
            {"role": "assistant", "created_at": "2026-01-01T00:00:01.000Z", "parts": [said("I look."), tool("clock")]},
            {"role": "assistant", "created_at": "2026-01-01T00:00:04.000Z", "parts": [tool("search")]},
            {"role": "assistant", "created_at": "2026-01-01T00:00:07.000Z", "parts": [said("Done.")]},
        ],
    });
    assert_eq!(shown.json(), expected);
    assert_eq!(share["message_count"], 4);
    let owner = rig.get("/api/v1/me").await.json()["id"].clone();
    for hidden in [SECRET, "987654", "demo/demo", &id, &run, &text(&owner), "msg_", "part_", "call_", "conv_", "user_", "\"id\""] {
        assert!(!shown.body.contains(hidden), "{hidden}: {}", shown.body);
    }
}

#[tokio::test]
async fn message_that_waited_is_shown_after_the_answer_before_it() {
    let rig = Rig::with_keys().await;
    let (id, _) = rig.start("first").await;
    let conversation = format!("/api/v1/conversations/{id}");
    let queued = rig.post(&format!("{conversation}/messages"), json!({"content": "second", "on_busy": "queue"})).await;
    assert_eq!(queued.status, StatusCode::ACCEPTED, "{}", queued.body);
    rig.play().await;
    rig.play().await;
    let share = shared(&rig, &conversation).await;
    let shown = read(&rig, &text(&share["token"])).await.json();
    let roles: Vec<_> = shown["messages"].as_array().unwrap().iter().map(|message| message["role"].clone()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    assert_eq!(shown["messages"][2]["parts"][0]["text"], "second");
}
