//! Starting, following and changing runs.

use axum::http::{Method, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use capstan::domain::ids::NodeId;
use capstan::domain::run::WaitReason;
use capstan::support::ids::UuidIds;
use serde_json::{Value, json};

use super::rig::{Rig, new_conversation_id, text};
use super::sockets::connect;
use support::documents::PNG;

#[tokio::test]
async fn a_message_makes_conversation_and_run() {
    let rig = Rig::new().await;
    let reply = rig.post("/api/v1/runs", json!({"input": "  What time is it?\nplease"})).await;
    assert_eq!(reply.status, StatusCode::ACCEPTED);
    let body = reply.json();
    let run = text(&body["run"]["id"]);
    assert_eq!(reply.header("location"), format!("/api/v1/runs/{run}"));
    assert_eq!(body["run"]["status"], "queued");
    assert_eq!(body["message"]["parts"][0]["text"], "  What time is it?\nplease");
    assert_eq!(rig.get(&format!("/api/v1/runs/{run}")).await.json(), body["run"]);
    let conversation = text(&body["run"]["conversation_id"]);
    let shown = rig.get(&format!("/api/v1/conversations/{conversation}")).await.json();
    assert_eq!((&shown["status"], &shown["active_run_id"]), (&json!("queued"), &json!(run)));
    assert_eq!(shown["title"], "What time is it? please");
}

#[tokio::test]
async fn a_client_may_mint_the_conversation_id_and_send_parts() {
    let rig = Rig::new().await;
    let id = new_conversation_id();
    let picture = STANDARD.encode(PNG);
    let parts = json!([
        {"type": "text", "text": "look\u{0}"},
        {"type": "image", "media_type": "image/png", "url": "https://example.com/a.png"},
        {"type": "image", "media_type": "image/jpeg", "url": format!("data:image/jpeg;base64,{}", picture.trim_end_matches('='))},
    ]);
    let reply = rig.post("/api/v1/runs", json!({"input": parts, "conversation_id": id, "options": {"temperature": 0.5}})).await;
    assert_eq!(reply.status, StatusCode::ACCEPTED, "{}", reply.body);
    assert_eq!(reply.json()["run"]["conversation_id"], id);
    let message = &reply.json()["message"];
    assert_eq!(message["parts"][0]["text"], "look\u{fffd}");
    assert_eq!(message["parts"][1]["type"], "image");
    // The bytes of an image decide its type.
    assert_eq!(message["parts"][2]["media_type"], "image/png");
    let id = message["parts"][2]["file_id"].as_str().unwrap();
    assert_eq!(message["parts"][2]["url"], format!("/api/v1/files/{id}/content"), "a reference to a stored file");
    assert_eq!(message["parts"][2]["size"], PNG.len());
    // A message to a missing conversation does not create it.
    let missing = format!("/api/v1/conversations/{}/messages", new_conversation_id());
    assert_eq!(rig.post(&missing, json!({"content": "hello"})).await.code(), "not_found");
}

#[tokio::test]
async fn a_busy_conversation_queues_or_refuses() {
    let rig = Rig::new().await;
    let (conversation, first) = rig.start("one").await;
    let messages = format!("/api/v1/conversations/{conversation}/messages");
    let reply = rig.post(&messages, json!({"content": "two", "on_busy": "reject"})).await;
    assert_eq!((reply.status, reply.code().as_str()), (StatusCode::CONFLICT, "run_active"));
    assert!(text(&reply.json()["detail"]).contains(&first));
    let second = text(&rig.post(&messages, json!({"content": "two"})).await.json()["run"]["id"]);
    let explained = rig.get(&format!("/api/v1/runs/{second}/explain")).await.json();
    assert_eq!((&explained["behind_run"], &explained["moving"]), (&json!(first), &json!(true)));
    rig.play().await;
    assert_eq!(rig.get(&format!("/api/v1/runs/{first}")).await.json()["status"], "completed");
    assert_eq!(rig.claim().await.run_id.as_str(), second);
    let explained = rig.get(&format!("/api/v1/runs/{second}/explain")).await.json();
    assert!(text(&explained["summary"]).starts_with("Worker node_"), "{explained}");
    assert!(explained["lease"]["age_ms"].as_i64().unwrap() >= 0);
}

#[tokio::test]
async fn waiting_ends_with_the_run_or_with_the_time() {
    let rig = Rig::new().await;
    let (_, run) = rig.start("hello").await;
    let path = format!("/api/v1/runs/{run}");
    let wait = |seconds: &'static str| {
        let (rig, path) = (&rig, &path);
        async move { rig.send(Method::GET, path, &[("prefer", seconds)], None).await }
    };
    let reply = wait("wait=0").await;
    assert_eq!((reply.status, reply.header("preference-applied")), (StatusCode::ACCEPTED, "wait=0"));
    let (reply, ()) = tokio::join!(wait("respond-async, wait=30"), rig.play());
    assert_eq!(reply.status, StatusCode::OK);
    assert_eq!(reply.json()["status"], "completed");
    assert_eq!(wait("wait=9999").await.header("preference-applied"), "wait=60");
    let prefer = [("prefer", "wait=30")];
    let posting = rig.send(Method::POST, "/api/v1/runs", &prefer, Some(json!({"input": "again"})));
    let playing = async {
        while rig.store.next_claimable_in().await.unwrap().is_none() {
            tokio::task::yield_now().await;
        }
        rig.play().await;
    };
    let (reply, ()) = tokio::join!(posting, playing);
    assert_eq!((reply.status, reply.json()["run"]["status"].as_str()), (StatusCode::OK, Some("completed")));
    assert_eq!(reply.json()["message"]["role"], "user", "the same shape as without a wait");
}

/// A wait for a retry or a budget ends by itself. Other waits need a human, so the request returns early.
#[tokio::test]
async fn a_wait_is_answered_early_only_for_a_human() {
    let rig = Rig::new().await;
    for reason in [WaitReason::Backoff, WaitReason::Budget] {
        let (_, run) = rig.start("hello").await;
        let fence = rig.claim().await;
        let path = format!("/api/v1/runs/{run}");
        let waiting = rig.send(Method::GET, &path, &[("prefer", "wait=30")], None);
        let playing = async {
            rig.waits(&fence, reason, Some(0)).await;
            assert_eq!(rig.get(&path).await.json()["reason"], reason.as_str());
            rig.play().await;
        };
        let (reply, ()) = tokio::join!(waiting, playing);
        assert_eq!((reply.status, reply.json()["status"].as_str()), (StatusCode::OK, Some("completed")), "{reason:?}");
        // If the time is over first, the answer has the current run and says that it is not settled.
        let (_, run) = rig.start("hello").await;
        rig.waits(&rig.claim().await, reason, None).await;
        let reply = rig.send(Method::GET, &format!("/api/v1/runs/{run}"), &[("prefer", "wait=1")], None).await;
        assert_eq!((reply.status, reply.json()["reason"].as_str()), (StatusCode::ACCEPTED, Some(reason.as_str())));
    }
    for reason in [WaitReason::Approval, WaitReason::Input, WaitReason::ClientTool] {
        let (_, run) = rig.start("hello").await;
        rig.waits(&rig.claim().await, reason, None).await;
        let reply = rig.send(Method::GET, &format!("/api/v1/runs/{run}"), &[("prefer", "wait=30")], None).await;
        assert_eq!((reply.status, reply.json()["reason"].as_str()), (StatusCode::OK, Some(reason.as_str())));
    }
}

#[tokio::test]
async fn runs_are_listed_newest_first_in_pages() {
    let (rig, conversation, first) = Rig::with_played_run("one").await;
    let messages = format!("/api/v1/conversations/{conversation}/messages");
    let second = text(&rig.post(&messages, json!({"content": "two"})).await.json()["run"]["id"]);
    let (_, other) = rig.start("elsewhere").await;
    let pages = async |list: &str| {
        let (mut ids, mut path) = (Vec::new(), format!("{list}limit=1"));
        loop {
            let page = rig.get(&path).await;
            assert_eq!(page.status, StatusCode::OK, "{}", page.body);
            ids.extend(page.json()["data"].as_array().unwrap().iter().map(|run| text(&run["id"])));
            let Some(next) = page.header("link").strip_prefix('<').and_then(|link| link.strip_suffix(">; rel=\"next\"")) else {
                assert_eq!(page.json()["next_cursor"], Value::Null);
                return ids;
            };
            path = next.to_owned();
        }
    };
    assert_eq!(pages("/api/v1/runs?").await, [other.as_str(), &second, &first]);
    let of_conversation = format!("/api/v1/conversations/{conversation}/runs?");
    assert_eq!(pages(&of_conversation).await, [second.as_str(), &first]);
    // The next page has the same filters.
    assert_eq!(pages("/api/v1/runs?status=queued&agent=default&").await, [other.as_str(), &second]);
    assert_eq!(pages(&format!("{of_conversation}status=completed&")).await, [first.as_str()]);
    assert_eq!(pages("/api/v1/runs?agent=nobody&").await, [""; 0]);
    assert_eq!(pages("/api/v1/runs?created_after=2000-01-01T00:00:00Z&created_before=2100-01-01T00%3A00%3A00Z&").await.len(), 3);
    assert_eq!(pages("/api/v1/runs?created_after=2100-01-01T00:00:00Z&").await, [""; 0]);
    assert_eq!(pages("/api/v1/runs?created_before=2000-01-01T00:00:00Z&").await, [""; 0]);
    let shown = rig.get(&format!("{of_conversation}limit=1&status=completed")).await.json();
    // Lists omit the output of runs.
    let mut run = rig.get(&format!("/api/v1/runs/{first}")).await.json();
    assert!(run.as_object_mut().unwrap().remove("output").is_some(), "{run}");
    assert_eq!(shown["data"][0], run);
    for query in ["status=odd", "created_after=yesterday", "created_before=1", "limit=0", "limit=101", "cursor=AA"] {
        for list in ["/api/v1/runs?", &of_conversation] {
            assert_eq!(rig.get(&format!("{list}{query}")).await.status, StatusCode::BAD_REQUEST, "{query}");
        }
    }
}

#[tokio::test]
async fn runs_of_another_user_are_not_listed() {
    let rig = Rig::with_keys().await;
    let (conversation, _) = rig.start("mine").await;
    let bob = format!("Bearer {}", rig.user("bob").await);
    let of_bob = async |path: &str| rig.send(Method::GET, path, &[("authorization", &bob)], None).await;
    assert_eq!(of_bob("/api/v1/runs").await.json(), json!({"data": [], "next_cursor": null}));
    let path = format!("/api/v1/conversations/{conversation}/runs");
    assert_eq!((of_bob(&path).await.status, of_bob(&path).await.code().as_str()), (StatusCode::NOT_FOUND, "not_found"));
    let missing = format!("/api/v1/conversations/{}/runs", new_conversation_id());
    assert_eq!(rig.get(&missing).await.code(), "not_found");
    assert_eq!(rig.get(&path).await.json()["data"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn when_the_time_runs_out_the_run_is_shown_as_it_is_then() {
    let rig = Rig::new().await;
    let prefer = [("prefer", "wait=1")];
    let posting = rig.send(Method::POST, "/api/v1/runs", &prefer, Some(json!({"input": "hello"})));
    let playing = async {
        while rig.store.next_claimable_in().await.unwrap().is_none() {
            tokio::task::yield_now().await;
        }
        rig.play_half(&rig.claim().await).await
    };
    let (reply, _) = tokio::join!(posting, playing);
    assert_eq!((reply.status, reply.json()["run"]["status"].as_str()), (StatusCode::ACCEPTED, Some("processing")));
}

#[tokio::test]
async fn unclaimed_run_is_cancelled_at_once() {
    let rig = Rig::new().await;
    let (_, run) = rig.start("hello").await;
    let path = format!("/api/v1/runs/{run}");
    let reply = rig.send(Method::POST, &format!("{path}/cancel"), &[], None).await;
    assert_eq!((reply.status, reply.json()["status"].as_str()), (StatusCode::ACCEPTED, Some("cancelled")));
    let events = rig.get(&format!("{path}/events")).await.json();
    assert_eq!(events["data"].as_array().unwrap().last().unwrap()["type"], "run.cancelled");
    let reply = rig.post(&format!("{path}/resume"), json!({})).await;
    assert_eq!(reply.code(), "conflict", "{}", reply.body);
}

#[tokio::test]
async fn a_run_in_progress_is_asked_to_end() {
    let (rig, _, run, fence, act) = Rig::with_half_played_run("hello").await;
    let reply = rig.post(&format!("/api/v1/runs/{run}/cancel"), json!({})).await;
    assert_eq!(reply.json()["status"], "processing");
    tokio::time::timeout(super::rig::SOON, rig.hub.control_signal().notified()).await.expect("the worker is woken");
    let signals = rig.store.control_signals(std::slice::from_ref(&fence.run_id)).await.unwrap();
    assert_eq!(signals[0].cancel_by.as_deref(), Some("user"));
    rig.play_rest(&fence, act).await;
}

#[tokio::test]
async fn tools_are_listed() {
    let rig = Rig::new().await;
    let listed = rig.get("/api/v1/tools").await.json();
    assert_eq!(listed["data"][0]["name"], "clock");
    let server = &listed["servers"][0];
    assert_eq!(
        (&server["error"], &server["stderr"]),
        (&json!("it ended"), &json!("its own words")),
        "the local user sees the details"
    );
    let member = Rig::with_keys().await.get("/api/v1/tools").await.json();
    let server = &member["servers"][0];
    assert_eq!((&server["status"], server.get("error"), server.get("stderr")), (&json!("error"), None, None), "a member does not");
}

#[tokio::test]
async fn a_run_is_in_the_trace_of_its_request() {
    let mut rig = Rig::new().await;
    let address = rig.listen().await;
    let traceparent = |n: u8| format!("00-{n:032x}-00f067aa0ba902b7-01");
    let post = async |path: &str, header: &str, body: Value| {
        let reply = rig.send(Method::POST, path, &[("traceparent", header)], Some(body)).await;
        assert_eq!(reply.status, StatusCode::ACCEPTED, "{}", reply.body);
    };
    let claimed = async || {
        let claim = rig.store.claim_runs(&NodeId::generate(&UuidIds), 1, 600_000).await.unwrap().remove(0);
        claim.trace.unwrap().as_str().to_owned()
    };
    post("/api/v1/runs", &traceparent(1), json!({"input": "a"})).await;
    assert_eq!(claimed().await, format!("{:032x}", 1));
    let conversation = text(&rig.post("/api/v1/conversations", json!({})).await.json()["id"]);
    post(&format!("/api/v1/conversations/{conversation}/messages"), &traceparent(2), json!({"content": "b"})).await;
    assert_eq!(claimed().await, format!("{:032x}", 2));
    // Without a valid trace, each request gets its own.
    let mut made = Vec::new();
    for header in ["", "00-nonsense-01"] {
        post("/api/v1/runs", header, json!({"input": "c"})).await;
        made.push(claimed().await);
    }
    assert!(made[0] != made[1] && made.iter().all(|trace| trace.len() == 32), "{made:?}");
    let header = traceparent(5);
    let mut socket = connect(&address, &[("traceparent", &header)]).await.unwrap();
    assert!(socket.call("run.start", json!({"input": "e"})).await["result"].is_object());
    assert_eq!(claimed().await, format!("{:032x}", 5));
}
