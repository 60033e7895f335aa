//! The feed of the caller's list of conversations on a WebSocket.

use axum::http::{Method, StatusCode};
use capstan::domain::ids::{ToolReviewId, UserId};
use capstan::http::HttpLimits;
use capstan::service::hash_key;
use capstan::store::ListedDefinition;
use capstan::support::ids::UuidIds;
use serde_json::{Value, json};

use super::rig::{Keys, Rig, text};
use super::sockets::{Socket, connect};

/// Opens a socket that follows the list of a key's user.
async fn follow(address: &str, key: &str) -> Socket {
    let mut socket = connect(address, &[("authorization", &format!("Bearer {key}"))]).await.unwrap();
    let reply = socket.call("subscribe", json!({"scope": "owner"})).await;
    assert_eq!(reply["result"], json!({"scope": "owner"}));
    socket
}

/// Returns the next change of the conversation that `is` accepts, without what was sent.
async fn changed(socket: &mut Socket, is: impl Fn(&Value) -> bool) -> Value {
    loop {
        let event = socket.next().await.unwrap();
        assert_eq!(event["type"], "owner.changed", "{event}");
        if is(&event["data"]["conversation"]) {
            assert!(event["at"].is_string(), "{event}");
            return event["data"].clone();
        }
    }
}

async fn listed(rig: &Rig, query: &str) -> Value {
    rig.get(&format!("/api/v1/conversations{query}")).await.json()["data"][0].clone()
}

#[tokio::test]
async fn changes_reach_the_owner_as_lists_show_them() {
    let mut rig = Rig::with_keys().await;
    rig.poll();
    let address = rig.listen().await;
    let ann = rig.key.clone().unwrap();
    let bob = rig.user("bob").await;
    let (mut feed, mut of_bob) = (follow(&address, &ann).await, follow(&address, &bob).await);

    let made = rig.post("/api/v1/conversations", json!({"title": "one", "system_prompt": "long"})).await.json();
    let path = format!("/api/v1/conversations/{}", text(&made["id"]));
    let item = changed(&mut feed, |_| true).await;
    assert_eq!(item, json!({"conversation": listed(&rig, "").await, "open_questions": []}));
    let patch = async |rig: &Rig, body: Value| rig.send(Method::PATCH, &path, &[], Some(body)).await.json();
    patch(&rig, json!({"title": "two", "tags": ["a"], "pinned": true})).await;
    let item = changed(&mut feed, |conversation| conversation["title"] == "two").await;
    assert_eq!((&item["conversation"], &item["conversation"]["tags"]), (&listed(&rig, "").await, &json!(["a"])));
    patch(&rig, json!({"archived": true})).await;
    let item = changed(&mut feed, |conversation| conversation["archived_at"].is_string()).await;
    assert_eq!(item["conversation"], listed(&rig, "?archived=true").await);

    let (second, run) = rig.start("hello").await;
    let is_second = |conversation: &Value| conversation["id"] == second.as_str();
    let item = changed(&mut feed, |conversation| is_second(conversation) && conversation["status"] == "queued").await;
    assert_eq!(item["conversation"]["active_run_id"], run.as_str());
    rig.play().await;
    let item = changed(&mut feed, |conversation| conversation["last_run"]["status"] == "completed").await;
    assert_eq!((is_second(&item["conversation"]), &item["conversation"]["status"]), (true, &json!("idle")));
    let copy = rig.post(&format!("/api/v1/conversations/{second}/fork"), json!({})).await.json();
    changed(&mut feed, |conversation| conversation["id"] == copy["id"]).await;

    // No list shows the conversation of one request.
    let request = json!({"model": "demo/demo", "messages": [{"role": "user", "content": "hidden"}]});
    let (reply, ()) = tokio::join!(rig.exchange(Method::POST, "/v1/chat/completions", &[], Some(request)), rig.play_next());
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    patch(&rig, json!({"title": "three"})).await;
    assert_eq!(changed(&mut feed, |_| true).await["conversation"]["title"], "three");

    rig.send(Method::DELETE, &path, &[], None).await;
    let removed = feed.next().await.unwrap();
    assert_eq!((&removed["type"], &removed["data"]), (&json!("owner.removed"), &json!({"conversation_id": made["id"]})));

    rig.key = Some(bob);
    let own = rig.post("/api/v1/conversations", json!({})).await.json();
    assert_eq!(changed(&mut of_bob, |_| true).await["conversation"]["id"], own["id"], "nothing of ann came before");
}

#[tokio::test]
async fn feed_is_one_subscription_of_its_socket() {
    let limits = HttpLimits { ws_max_subscriptions: 1, ..HttpLimits::default() };
    let mut rig = Rig::with(limits, |_| {}, Keys::One).await;
    rig.poll();
    let address = rig.listen().await;
    let key = rig.key.clone().unwrap();
    let (mut feed, mut other) = (follow(&address, &key).await, follow(&address, &key).await);
    let (conversation, _) = rig.start("hello").await;
    changed(&mut feed, |_| true).await;
    changed(&mut other, |_| true).await;
    for (params, code) in [
        (json!({"scope": "owner", "after": 1}), "invalid_request"),
        (json!({"scope": "owner", "conversation_id": conversation}), "invalid_request"),
        (json!({"scope": "server"}), "invalid_request"),
        (json!({"conversation_id": conversation}), "too_many_requests"),
    ] {
        assert_eq!(feed.call("subscribe", params.clone()).await["error"]["code"], code, "{params}");
    }
    assert_eq!(feed.call("subscribe", json!({"scope": "owner"})).await["result"]["scope"], "owner");
    for is_held in [true, false] {
        assert_eq!(feed.call("unsubscribe", json!({"scope": "owner"})).await["result"]["unsubscribed"], is_held);
    }
    rig.post("/api/v1/conversations", json!({"title": "later"})).await;
    changed(&mut other, |conversation| conversation["title"] == "later").await;
    feed.call("ping", json!({})).await;
    // Hints that were lost make each client read its list again.
    rig.hub.lists().lose_hints();
    assert_eq!(other.next().await.unwrap()["type"], "owner.reset");
}

/// Stores a definition of a tool as a worker does. Returns the id of its review.
async fn see_definition(rig: &Rig, owner: &UserId, description: &str) -> ToolReviewId {
    let seen = ListedDefinition {
        id: ToolReviewId::generate(&UuidIds),
        owner: Some(owner.clone()),
        server: "files".to_owned(),
        tool: "read".to_owned(),
        definition_hash: capstan::support::json::hash(&json!(description)),
        description: description.to_owned(),
        parameters: "{}".to_owned(),
        hints: "null".to_owned(),
    };
    rig.store.compare_tool_definitions(std::slice::from_ref(&seen)).await.unwrap();
    seen.id
}

#[tokio::test]
async fn tool_reviews_reach_the_users_who_can_read_them() {
    let mut rig = Rig::with_keys().await;
    rig.poll();
    let address = rig.listen().await;
    let ann = rig.key.clone().unwrap();
    let bob = rig.user("bob").await;
    let (mut feed, mut of_bob) = (follow(&address, &ann).await, follow(&address, &bob).await);
    let owner = rig.store.user_by_key_hash(&hash_key(&ann)).await.unwrap().unwrap().id;
    see_definition(&rig, &owner, "reads").await;
    let review = see_definition(&rig, &owner, "reads and sends").await;
    let accept = format!("/api/v1/tool-pins/{review}/accept");
    let accepted = rig.post(&accept, json!({})).await;
    assert_eq!(accepted.status, StatusCode::OK, "{}", accepted.body);
    let event = feed.next().await.unwrap();
    assert_eq!((&event["type"], &event["data"]), (&json!("owner.reviews_changed"), &json!({})));
    assert!(event["at"].is_string(), "{event}");

    let bearer = format!("Bearer {bob}");
    let refused = rig.send(Method::POST, &accept, &[("authorization", &bearer)], Some(json!({}))).await;
    assert_eq!(refused.status, StatusCode::NOT_FOUND);
    rig.send(Method::POST, "/api/v1/conversations", &[("authorization", &bearer)], Some(json!({"title": "own"}))).await;
    assert_eq!(changed(&mut of_bob, |_| true).await["conversation"]["title"], "own", "nothing of ann came before");
    // Every user can read the reviews of a server for all users.
    rig.hub.reviews_changed(None);
    for feed in [&mut feed, &mut of_bob] {
        assert_eq!(feed.next().await.unwrap()["type"], "owner.reviews_changed");
    }
}
