//! Conversations, pages and entity tags.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use super::rig::{Rig, new_conversation_id, text};

#[tokio::test]
async fn a_conversation_is_made_read_renamed_and_deleted() {
    let rig = Rig::new().await;
    let id = new_conversation_id();
    let made = rig.post("/api/v1/conversations", json!({"id": id, "title": " Tea "})).await;
    assert_eq!((made.status, made.json()["title"].as_str()), (StatusCode::CREATED, Some("Tea")));
    let path = format!("/api/v1/conversations/{id}");
    assert_eq!(made.header("location"), path);
    assert_eq!(rig.post("/api/v1/conversations", json!({"id": id})).await.code(), "conflict");
    let empty = rig.send(Method::POST, "/api/v1/conversations", &[], None).await;
    assert_eq!((empty.status, empty.json()["title"].as_str()), (StatusCode::CREATED, Some("")));
    let renamed = rig.send(Method::PATCH, &path, &[], Some(json!({"title": "\tCoffee\nand\u{0}tea "}))).await;
    assert_eq!((renamed.status, renamed.json()["title"].as_str()), (StatusCode::OK, Some("Coffee and tea")), "a title is one line");
    let log = rig.get(&format!("{path}/events")).await.json();
    assert_eq!(log["data"].as_array().unwrap().last().unwrap()["type"], "conversation.updated");
    assert_eq!(rig.send(Method::DELETE, &path, &[], None).await.status, StatusCode::NO_CONTENT);
    assert_eq!(rig.send(Method::DELETE, &path, &[], None).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn unchanged_resource_is_not_sent_again() {
    let rig = Rig::new().await;
    let (conversation, run) = rig.start("hello").await;
    for path in [format!("/api/v1/conversations/{conversation}"), format!("/api/v1/runs/{run}")] {
        let tag = rig.get(&path).await.header("etag").to_owned();
        let again = |tag: String| {
            let (rig, path) = (&rig, &path);
            async move { rig.send(Method::GET, path, &[("if-none-match", &tag)], None).await }
        };
        let same = again(format!("\"other\", W/{tag}")).await;
        assert_eq!((same.status, same.body.as_str()), (StatusCode::NOT_MODIFIED, ""));
        assert_eq!(again("\"other\"".to_owned()).await.status, StatusCode::OK);
    }
    let path = format!("/api/v1/runs/{run}");
    let tag = rig.get(&path).await.header("etag").to_owned();
    rig.play().await;
    assert_eq!(rig.send(Method::GET, &path, &[("if-none-match", &tag)], None).await.status, StatusCode::OK);
}

#[tokio::test]
async fn pages_cover_a_list_once() {
    let rig = Rig::new().await;
    let mut made = Vec::new();
    for number in 0..7 {
        let title = format!("Tea & {number}");
        made.push(text(&rig.post("/api/v1/conversations", json!({"title": title})).await.json()["id"]));
    }
    rig.post("/api/v1/conversations", json!({"title": "Coffee"})).await;
    made.reverse();
    assert_eq!(listed(&rig, "/api/v1/conversations?limit=3&q=tea%20%26").await, (made.clone(), 3));
    rig.send(Method::PATCH, &format!("/api/v1/conversations/{}", made[5]), &[], Some(json!({"pinned": true}))).await;
    made[..=5].rotate_right(1);
    assert_eq!(listed(&rig, "/api/v1/conversations?limit=3&q=tea%20%26&sort=updated").await, (made, 3));
}

/// Reads a list to its end. Returns the ids of its rows, and the number of its pages.
async fn listed(rig: &Rig, path: &str) -> (Vec<String>, usize) {
    let (mut seen, mut path) = (Vec::new(), path.to_owned());
    let mut pages = 0;
    loop {
        let page = rig.get(&path).await;
        assert_eq!(page.status, StatusCode::OK, "{}", page.body);
        seen.extend(page.json()["data"].as_array().unwrap().iter().map(|row| text(&row["id"])));
        pages += 1;
        if page.json()["next_cursor"] == Value::Null {
            assert_eq!(page.header("link"), "");
            break;
        }
        let link = page.header("link");
        path = link.strip_prefix('<').and_then(|link| link.strip_suffix(">; rel=\"next\"")).expect("a link").to_owned();
        assert!(path.contains(page.json()["next_cursor"].as_str().unwrap()));
    }
    (seen, pages)
}

#[tokio::test]
async fn messages_are_listed_oldest_first() {
    let (rig, conversation, _) = Rig::with_played_run("one").await;
    let path = format!("/api/v1/conversations/{conversation}/messages");
    rig.post(&path, json!({"content": "two"})).await;
    let first = rig.get(&format!("{path}?limit=2")).await.json();
    let roles: Vec<_> = first["data"].as_array().unwrap().iter().map(|message| text(&message["role"])).collect();
    assert_eq!(roles, ["user", "assistant"]);
    let rest = rig.get(&format!("{path}?limit=2&cursor={}", text(&first["next_cursor"]))).await.json();
    assert_eq!(rest["data"][0]["parts"][0]["text"], "two");
    assert_eq!(rest["next_cursor"], Value::Null);
}

#[tokio::test]
async fn bad_limits_and_cursors_are_refused() {
    let rig = Rig::new().await;
    for query in ["limit=0", "limit=101", "limit=-1", "limit=x"] {
        assert_eq!(rig.get(&format!("/api/v1/conversations?{query}")).await.code(), "invalid_request", "{query}");
    }
    for cursor in ["!", "%00", "____", "AA"] {
        let reply = rig.get(&format!("/api/v1/conversations?cursor={cursor}")).await;
        assert!(["invalid_cursor"].contains(&reply.code().as_str()), "{cursor}");
    }
}

#[tokio::test]
async fn a_cursor_that_no_page_ends_with_is_refused() {
    use base64::Engine as _;
    let (rig, conversation, _) = Rig::with_played_run("hello").await;
    let lists = ["/api/v1/conversations".to_owned(), format!("/api/v1/conversations/{conversation}/messages")];
    for list in &lists {
        for text in ["", "abc", "zzz", "-5", "0", "1:2", "5:conv_1", "\0", "9223372036854775808"] {
            let cursor = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
            let reply = rig.get(&format!("{list}?cursor={cursor}")).await;
            assert_eq!((reply.status, reply.code().as_str()), (StatusCode::BAD_REQUEST, "invalid_cursor"), "{list} {text:?}");
        }
        assert_eq!(rig.get(&format!("{list}?cursor=***")).await.code(), "invalid_cursor");
        // A cursor is valid for its own list only.
        let next = text(&rig.get(&format!("{}?limit=1", lists[1])).await.json()["next_cursor"]);
        let reply = rig.get(&format!("{list}?cursor={next}")).await;
        assert_eq!(reply.status == StatusCode::OK, *list == lists[1], "{}", reply.body);
    }
}
