//! Pinned, tagged and archived conversations, and the retention of idle ones.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use support::database::Kind;
use support::server::{Server, Site};

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

async fn change(server: &Server, id: &str, body: &Value) -> (u16, Value) {
    let answer = server.request(Method::PATCH, &format!("/conversations/{id}")).json(body).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

async fn titles(server: &Server, query: &str) -> Vec<String> {
    let list = server.get_json(&format!("/conversations{query}")).await;
    list["data"].as_array().unwrap().iter().map(|found| found["title"].as_str().unwrap().to_owned()).collect()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn conversations_are_pinned_archived_and_sorted(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let site = Site::new(kind).await;
    let server = site.start().await;
    let mut ids = Vec::new();
    for title in ["one", "two", "three"] {
        let (status, made) = server.post_json("/conversations", &json!({ "title": title })).await;
        assert_eq!(
            (status.as_u16(), &made["pinned"], &made["tags"], made.get("archived_at")),
            (201, &json!(false), &json!([]), None)
        );
        ids.push(made["id"].as_str().unwrap().to_owned());
    }
    let (status, changed) = change(&server, &ids[0], &json!({"pinned": true, "tags": [" work ", "a&b", "work"]})).await;
    assert_eq!((status, &changed["tags"], &changed["title"]), (200, &json!(["work", "a&b"]), &json!("one")));
    let (status, changed) = change(&server, &ids[1], &json!({"archived": true})).await;
    assert!(status == 200 && changed["archived_at"].is_string(), "{changed}");
    assert_eq!(titles(&server, "").await, ["three", "one"]);
    assert_eq!(titles(&server, "?archived=true").await, ["two"]);
    assert_eq!(titles(&server, "?archived=any").await, ["three", "two", "one"]);
    assert_eq!(titles(&server, "?pinned=true&tag=a%26b").await, ["one"]);
    // The link to the next page has the same filters as the request.
    let page = server.get("/conversations?archived=any&limit=1&q=t").send().await.unwrap();
    let link = page.headers()["link"].to_str().unwrap().to_owned();
    let next = link.trim_start_matches("</api/v1/conversations").split('>').next().unwrap();
    assert_eq!(titles(&server, next).await, ["two"]);
    for (body, pointer) in [
        (json!({"tags": [""]}), "/tags/0"),
        (json!({"tags": ["x".repeat(51)]}), "/tags/0"),
        (json!({"tags": (0..21).map(|n| n.to_string()).collect::<Vec<_>>()}), "/tags"),
        (json!({"title": "x".repeat(256)}), "/title"),
    ] {
        let (status, problem) = change(&server, &ids[0], &body).await;
        assert!(status == 400 && problem["errors"][0]["pointer"] == pointer, "{problem}");
    }
    let long = "é".repeat(255);
    let (status, changed) = change(&server, &ids[0], &json!({ "title": long })).await;
    assert_eq!((status, &changed["title"]), (200, &json!(long)));
    assert_eq!(change(&server, &ids[0], &json!({"title": "one"})).await.0, 200);
    assert_eq!(change(&server, &ids[0], &json!({"colour": "red"})).await.0, 400);
    assert_eq!(change(&server, &ids[0], &json!({})).await.0, 400);
    assert_eq!(server.get("/conversations?archived=maybe").send().await.unwrap().status(), 400);
    // A message moves it out of the archive.
    let sent = server.send(&ids[1], "hello", "queue").await;
    server.finished(sent["run"]["id"].as_str().unwrap()).await;
    assert_eq!(titles(&server, "").await, ["three", "two", "one"]);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn idle_conversation_is_archived_and_later_deleted(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let site = Site::new(kind).await;
    let server = site.start().await;
    let mut ids = Vec::new();
    for title in ["idle", "pinned", "new"] {
        let (_, made) = server.post_json("/conversations", &json!({ "title": title })).await;
        let id = made["id"].as_str().unwrap().to_owned();
        let sent = server.send(&id, "hello", "queue").await;
        server.finished(sent["run"]["id"].as_str().unwrap()).await;
        ids.push(id);
    }
    change(&server, &ids[1], &json!({"pinned": true})).await;
    let older = async |days: i64| {
        let by = days * DAY_MS;
        let old = format!("id IN ('{}', '{}')", ids[0], ids[1]);
        let update =
            format!("UPDATE conversations SET updated_at = updated_at - {by}, archived_at = archived_at - {by} WHERE {old}");
        site.database.rows(&format!("{update} RETURNING id")).await;
    };
    // Opened and left without a message.
    let (_, empty) = server.post_json("/conversations", &json!({})).await;
    let empty = empty["id"].as_str().unwrap();
    let week = 7 * DAY_MS;
    let older_by_a_week = format!("UPDATE conversations SET updated_at = updated_at - {week} WHERE id = '{empty}' RETURNING id");
    let (ok, said) = site.command(&["cleanup"]).await;
    assert!(ok && said.contains("conversations archived: 0; deleted: 0"), "{said}");
    site.database.rows(&older_by_a_week).await;
    let (ok, said) = site.command(&["cleanup"]).await;
    assert!(ok && said.contains("conversations archived: 0; deleted: 1"), "{said}");
    assert_eq!(server.get(&format!("/conversations/{empty}")).send().await.unwrap().status(), 404);
    older(31).await;
    let (ok, said) = site.command(&["cleanup", "--dry-run"]).await;
    assert!(ok && said.contains("conversations to archive: 1; to delete: 0"), "{said}");
    assert_eq!(titles(&server, "").await, ["new", "pinned", "idle"]);
    let (ok, said) = site.command(&["cleanup"]).await;
    assert!(ok && said.contains("conversations archived: 1; deleted: 0"), "{said}");
    assert_eq!(titles(&server, "").await, ["new", "pinned"]);
    assert_eq!(server.messages(&ids[0]).await.len(), 2, "no message is lost");
    older(91).await;
    let (ok, said) = site.command(&["cleanup"]).await;
    assert!(ok && said.contains("conversations archived: 0; deleted: 1"), "{said}");
    assert_eq!(titles(&server, "?archived=any").await, ["new", "pinned"]);
    assert_eq!(server.get(&format!("/conversations/{}", ids[0])).send().await.unwrap().status(), 404);
}

/// Empty conversations are deleted before others are archived, so they count as deleted only.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn empty_conversation_is_counted_once(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let site = Site::new(kind).await;
    let mut server = site.start().await;
    let mut ids = Vec::new();
    for body in [json!({}), json!({}), json!({"title": "named"})] {
        let (_, made) = server.post_json("/conversations", &body).await;
        ids.push(made["id"].as_str().unwrap().to_owned());
    }
    let (status, changed) = change(&server, &ids[1], &json!({"archived": true})).await;
    assert_eq!(status, 200, "{changed}");
    // Its own upkeep must not come first.
    server.kill9().await;
    let by = 91 * DAY_MS;
    let older = format!("UPDATE conversations SET updated_at = updated_at - {by}, archived_at = archived_at - {by} RETURNING id");
    assert_eq!(site.database.rows(&older).await.len(), 3);
    let (ok, said) = site.command(&["cleanup", "--dry-run"]).await;
    assert!(ok && said.contains("conversations to archive: 1; to delete: 2"), "{said}");
    let (ok, said) = site.command(&["cleanup"]).await;
    assert!(ok && said.contains("conversations archived: 1; deleted: 2"), "{said}");
    server = site.start().await;
    assert_eq!(titles(&server, "?archived=any").await, ["named"]);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn search_finds_messages(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (_model, _site, server) = Site::start_scripted(kind).await;
    let run = server
        .start_run(&json!({"input": "When is the rent due? [[say:The lighthouse keeper wants it on the <b>third</b>.]]"}))
        .await;
    let run = server.finished(run["id"].as_str().unwrap()).await;
    let (id, conversation) = (run["id"].as_str().unwrap(), run["conversation_id"].as_str().unwrap());
    let found = server.get_json("/search?q=lighthouse%20%22on%20the%22").await;
    // The question's script has the words of the answer, so both match.
    assert_eq!(found["data"].as_array().unwrap().len(), 2, "{found}");
    let hit = &found["data"][0];
    assert_eq!((&hit["role"], &hit["run_id"], &hit["conversation_id"]), (&json!("assistant"), &json!(id), &json!(conversation)));
    let snippet = json!([{"text": "The "}, {"text": "lighthouse", "hit": true}, {"text": " keeper wants it "},
        {"text": "on the", "hit": true}, {"text": " <b>third</b>."}]);
    assert_eq!(hit["snippet"], snippet, "text, not markup");
    let messages = server.messages(conversation).await;
    assert!(messages.iter().any(|message| message["id"] == hit["message_id"]), "{hit}");
    // The cursor leads to the next page.
    let first = server.get_json("/search?q=the&limit=1").await;
    let next = first["next_cursor"].as_str().unwrap();
    let second = server.get_json(&format!("/search?q=the&limit=1&cursor={next}")).await;
    assert_eq!((&second["data"][0]["role"], &second["next_cursor"]), (&json!("user"), &json!(null)), "{second}");
    for (query, why) in
        [("q=", "no word"), ("q=%22%22", "no word"), ("", "q"), ("q=x&archived=no", "archived"), ("q=x&cursor=zzz", "cursor")]
    {
        let answer = server.get(&format!("/search?{query}")).send().await.unwrap();
        assert_eq!(answer.status(), 400, "{query}");
        let problem = answer.text().await.unwrap();
        assert!(problem.contains(why), "{query}: {problem}");
    }
    let long = server.get(&format!("/search?q={}", "x".repeat(201))).send().await.unwrap();
    assert_eq!(long.status(), 400);
    // Deleted messages are not found.
    assert_eq!(server.request(Method::DELETE, &format!("/conversations/{conversation}")).send().await.unwrap().status(), 204);
    assert_eq!(server.get_json("/search?q=lighthouse").await["data"], json!([]));
}
