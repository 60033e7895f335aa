//! Feedback of users on answers.

use axum::http::{Method, StatusCode};
use capstan::domain::access::principal::UserRole;
use serde_json::{Value, json};

use super::rig::{Rig, text};

async fn messages(rig: &Rig, conversation: &str) -> Vec<Value> {
    rig.get(&format!("/api/v1/conversations/{conversation}/messages")).await.json()["data"].as_array().unwrap().clone()
}

#[tokio::test]
async fn an_answer_is_rated_and_the_rating_taken_back() {
    let (rig, conversation, _) = Rig::with_played_run("hello").await;
    let said = messages(&rig, &conversation).await;
    assert!(said.iter().all(|message| message.get("feedback").is_none()));
    let path = |message: &Value| format!("/api/v1/conversations/{conversation}/messages/{}/feedback", text(&message["id"]));
    let rate = path(&said[1]);
    let key = [("idempotency-key", "once")];
    let down = json!({"rating": "down", "comment": "  no \u{0}\n"});
    let given = rig.send(Method::POST, &rate, &key, Some(down.clone())).await;
    assert_eq!(given.status, StatusCode::OK, "{}", given.body);
    let kept = given.json();
    assert_eq!((&kept["rating"], &kept["comment"]), (&json!("down"), &json!("no \u{fffd}")));
    let shown = messages(&rig, &conversation).await;
    assert_eq!((shown[1]["feedback"].clone(), shown[0].get("feedback")), (kept.clone(), None));
    let mut live = rig.stream(&format!("/api/v1/conversations/{conversation}/events"), &[]).await;
    let snapshot = live.until("stream.snapshot").await.last().unwrap().json();
    assert_eq!(snapshot["data"]["messages"][1]["feedback"], kept);

    assert_eq!(rig.post(&rate, json!({"rating": "up"})).await.json().get("comment"), None);
    let again = rig.send(Method::POST, &rate, &key, Some(down)).await;
    assert_eq!((again.header("idempotent-replayed"), again.json()), ("true", kept));
    assert_eq!(messages(&rig, &conversation).await[1]["feedback"]["rating"], "up", "a late repetition changes nothing");

    for (body, pointer) in [
        (json!({"rating": "up", "comment": "ä".repeat(4_001)}), "/comment"),
        (json!({"rating": "maybe"}), "/rating"),
        (json!({}), ""),
        (json!({"rating": "up", "tags": []}), "/tags"),
    ] {
        let refused = rig.post(&rate, body).await;
        assert_eq!((refused.code().as_str(), &refused.json()["errors"][0]["pointer"]), ("invalid_request", &json!(pointer)));
    }
    assert_eq!(rig.post(&rate, json!({"rating": "up", "comment": "ä".repeat(4_000)})).await.status, StatusCode::OK);
    assert_eq!(rig.post(&path(&said[0]), json!({"rating": "up"})).await.code(), "conflict", "a user's message");
    let missing = rate.replace(&text(&said[1]["id"]), &format!("msg_{}", "1".repeat(32)));
    assert_eq!(rig.post(&missing, json!({"rating": "up"})).await.code(), "not_found");

    assert_eq!(rig.send(Method::DELETE, &rate, &[], None).await.status, StatusCode::NO_CONTENT);
    assert_eq!(rig.send(Method::DELETE, &rate, &[], None).await.code(), "not_found");
    assert_eq!(messages(&rig, &conversation).await, said);
    assert_eq!(rig.get("/api/v1/feedback").await.json()["data"], json!([]));
}

#[tokio::test]
async fn administrators_page_through_what_users_think() {
    let rig = Rig::with_keys().await;
    let mut rated = Vec::new();
    for rating in ["up", "down", "down"] {
        let (conversation, run) = rig.start("hello").await;
        rig.play().await;
        let answer = text(&messages(&rig, &conversation).await[1]["id"]);
        let path = format!("/api/v1/conversations/{conversation}/messages/{answer}/feedback");
        assert_eq!(rig.post(&path, json!({"rating": rating, "comment": "why"})).await.status, StatusCode::OK);
        rated.push((answer, run, conversation));
    }
    let own = rig.get("/api/v1/feedback").await.json();
    assert_eq!(own["data"].as_array().unwrap().len(), 3);
    let admin = format!("Bearer {}", rig.user_as("root", UserRole::Admin).await);
    let bob = format!("Bearer {}", rig.user("bob").await);
    let ask = async |who: &str, query: &str| {
        rig.send(Method::GET, &format!("/api/v1/feedback{query}"), &[("authorization", who)], None).await
    };
    assert_eq!(
        ask(&admin, "").await.json()["data"],
        json!([]),
        "an administrator's list shows their own feedback unless it names other owners"
    );
    let first = ask(&admin, "?rating=down&owner=all&limit=1").await;
    let next = first.header("link").trim_start_matches('<').split('>').next().unwrap().to_owned();
    let second = rig.send(Method::GET, &next, &[("authorization", &admin)], None).await.json();
    assert_eq!(second["next_cursor"], Value::Null);
    let mut found = [first.json()["data"][0].clone(), second["data"][0].clone()];
    found.sort_by_key(|record| text(&record["message_id"]));
    let mut wanted: Vec<_> = rated[1..].to_vec();
    wanted.sort();
    for (record, (answer, run, conversation)) in found.iter().zip(&wanted) {
        let shown = [&record["message_id"], &record["run_id"], &record["conversation_id"], &record["rating"], &record["comment"]];
        assert_eq!(json!(shown), json!([answer, run, conversation, "down", "why"]));
        assert_eq!((&record["agent"], &record["agent_version"]), (&json!("default"), &json!(1)));
    }
    let owner = text(&found[0]["owner_id"]);
    assert_eq!(ask(&admin, &format!("?owner={owner}")).await.json()["data"], own["data"]);
    for query in ["?owner=all".to_owned(), format!("?owner={owner}")] {
        assert_eq!(ask(&bob, &query).await.code(), "forbidden");
    }
    assert_eq!(ask(&bob, "?rating=up").await.json()["data"], json!([]));
    // Feedback can be marked as reviewed, and the filter finds the rest.
    let path = format!("/api/v1/feedback/{}", rated[1].0);
    let mark = async |who: &str, body: Value| rig.send(Method::PATCH, &path, &[("authorization", who)], Some(body)).await;
    let marked = mark(&admin, json!({"reviewed": true})).await;
    assert_eq!(marked.status, StatusCode::OK, "{}", marked.body);
    assert!(marked.json()["review"]["by"].is_string() && marked.json()["review"]["at"].is_string(), "{}", marked.body);
    assert_eq!(ask(&admin, "?owner=all&reviewed=true").await.json()["data"], json!([marked.json()]));
    assert_eq!(ask(&admin, "?owner=all&reviewed=false").await.json()["data"].as_array().unwrap().len(), 2);
    let page = ask(&admin, "?owner=all&reviewed=false&limit=1").await;
    assert!(page.header("link").contains("&reviewed=false"), "{}", page.header("link"));
    assert_eq!(mark(&bob, json!({"reviewed": false})).await.code(), "forbidden");
    assert_eq!(mark(&admin, json!({"reviewed": 1})).await.code(), "invalid_request");
    assert_eq!(mark(&admin, json!({"reviewed": false})).await.json().get("review"), None);
    let missing = format!("/api/v1/feedback/msg_{}", "1".repeat(32));
    let refused = rig.send(Method::PATCH, &missing, &[("authorization", &admin)], Some(json!({"reviewed": true}))).await;
    assert_eq!(refused.code(), "not_found");
    for query in ["?owner=ann", "?rating=maybe", "?cursor=x", "?reviewed=maybe"] {
        assert_eq!(ask(&admin, query).await.status, StatusCode::BAD_REQUEST, "{query}");
    }
}

#[tokio::test]
async fn ratings_go_out_and_come_in_with_a_document() {
    let (rig, conversation, _) = Rig::with_played_run("hello").await;
    let path = format!("/api/v1/conversations/{conversation}");
    let answer = text(&messages(&rig, &conversation).await[1]["id"]);
    let kept = rig.post(&format!("{path}/messages/{answer}/feedback"), json!({"rating": "down", "comment": "why"})).await.json();
    let document = rig.get(&format!("{path}/export")).await.json();
    assert_eq!(document["messages"][1]["feedback"], kept);
    let import = "/api/v1/conversations/import";
    let made = rig.post(import, document.clone()).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    assert_eq!(messages(&rig, &text(&made.json()["id"])).await[1]["feedback"], kept);
    let forked = rig.post(&format!("{path}/fork"), json!({})).await.json();
    assert_eq!(messages(&rig, &text(&forked["id"])).await[1].get("feedback"), None, "it counts once");
    assert_eq!(rig.get("/api/v1/feedback").await.json()["data"].as_array().unwrap().len(), 2);

    for (place, feedback, pointer) in [
        (0, kept.clone(), "/messages/0/feedback"),
        (1, json!({"rating": "up", "at": "yesterday"}), "/messages/1/feedback/at"),
        (1, json!({"rating": "up", "at": kept["at"], "comment": "x".repeat(4_001)}), "/messages/1/feedback/comment"),
        (1, json!({"rating": "good", "at": kept["at"]}), "/messages/1/feedback/rating"),
    ] {
        let mut wrong = document.clone();
        wrong["messages"][place]["feedback"] = feedback;
        let refused = rig.post(import, wrong).await;
        assert_eq!(refused.json()["errors"][0]["pointer"], pointer, "{}", refused.body);
    }
}
