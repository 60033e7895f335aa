//! Undoing tool calls: by the tool that the entry names, once, through the tool executor like any call.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use super::mcp_servers::installed;
use support::database::Kind;
use support::model::ModelMock;
use support::server::{Server, Site};
use support::wait;

fn id(run: &Value) -> &str {
    run["id"].as_str().unwrap()
}

async fn ended(server: &Server, body: &Value) -> Value {
    let run = server.start_run(body).await;
    server.finished(id(&run)).await
}

/// Returns the result of the run's call, which the tool itself made.
async fn result(server: &Server, run: &Value) -> Value {
    let messages = server.messages(run["conversation_id"].as_str().unwrap()).await;
    let of_run = messages.iter().rfind(|message| message["run_id"] == run["id"] && message["role"] == "tool");
    of_run.unwrap()["parts"].as_array().unwrap().last().unwrap().clone()
}

async fn undo_path(server: &Server, run: &Value) -> String {
    format!("/runs/{}/tool-calls/{}/undo", id(run), result(server, run).await["call_id"].as_str().unwrap())
}

fn refused(answer: &(reqwest::StatusCode, Value), words: &str) {
    assert_eq!(answer.0, 409, "{}", answer.1);
    assert!(answer.1["detail"].as_str().unwrap().contains(words), "{}", answer.1);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn tool_effect_is_undone(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let packages = installed().await.join("node_modules/@modelcontextprotocol");
    let model = ModelMock::start().await;
    let site = Site::new(kind).await.with_model(&model);
    let files = site.folder.path().join("shared");
    std::fs::create_dir(&files).unwrap();
    let files = files.canonicalize().unwrap();
    let (old, new) = (files.join("IMG_1.txt"), files.join("invoice.txt"));
    std::fs::write(&old, "total 42").unwrap();
    let back = json!({"tool": "move_file", "arguments": {"source": "$arguments.destination", "destination": "$arguments.source"}});
    let site = site.mcp(json!({"mcpServers": {"files": {
        "command": "node", "args": [packages.join("server-filesystem/dist/index.js"), files],
        "capstan": {"trusted": true, "undo": {"move_file": back}, "approval": {"move_file": "auto"}},
    }}}));
    let (ann, bob) = (site.key_of("ann").await, site.key_of("bob").await);
    let mut server = site.start().await;
    server.set_key(&ann);
    let arguments = json!({"source": old, "destination": new});
    let first =
        ended(&server, &json!({"input": format!("[[id:moved]][[call:files__move_file {arguments}]][[next]][[say:renamed]]")}))
            .await;
    assert_eq!((old.exists(), new.exists()), (false, true));
    let events = server.run_events_json(id(&first)).await;
    let completed = events.iter().find(|event| event["type"] == "tool.completed").unwrap();
    assert_eq!((&completed["data"]["undoable"], &result(&server, &first).await["undoable"]), (&json!(true), &json!(true)));

    let path = undo_path(&server, &first).await;
    server.set_key(&bob);
    assert_eq!(server.post_json(&path, &json!({})).await.0, 404, "another user");
    server.set_key(&ann);
    let asked = model.exchanges("moved").len();
    // Two clicks: one of them wins.
    let empty = json!({});
    let (one, other) = tokio::join!(server.post_json(&path, &empty), server.post_json(&path, &empty));
    let (won, lost) = if one.0 == 202 { (one, other) } else { (other, one) };
    assert_eq!(won.0, 202, "{} {}", won.1, lost.1);
    refused(&lost, "");
    let second = server.finished(id(&won.1)).await;
    assert_eq!(second["status"], "completed", "{second}");
    assert_eq!((std::fs::read_to_string(&old).unwrap().as_str(), new.exists()), ("total 42", false));
    refused(&server.post_json(&path, &empty).await, "undone already");
    let events = server.run_events_json(id(&second)).await;
    let started = events.iter().find(|event| event["type"] == "tool.started").unwrap();
    assert_eq!(started["data"]["undoes"], completed["data"]["call_id"]);
    assert!(events.iter().all(|event| event["type"] != "part.delta"), "no model call: {events:#?}");

    // The undo is undone in turn. By then the model has read both results.
    let answer = server.post(&undo_path(&server, &second).await, &empty).header("prefer", "wait=30").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!((old.exists(), new.exists()), (false, true));
    assert_eq!(model.exchanges("moved").len(), asked, "no model is asked");
    let conversation = first["conversation_id"].clone();
    ended(&server, &json!({"input": "[[id:after]][[say:I see]]", "conversation_id": conversation})).await;
    let sent = model.exchanges("after")[0].request["messages"].to_string();
    assert_eq!(sent.matches("The user wants to undo a call of").count(), 2, "{sent}");
    site.assert_sound(&model).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn taking_back_survives_a_crash_and_asks_like_any_call(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::scripted(kind, &model).await.short_leases();
    let mut entry = site.ledger.mcp_server();
    let text = json!({"text": "$arguments.text"});
    entry["capstan"]["undo"] = json!({
        "append": {"tool": "append_keyed", "arguments": text}, "pay": {"tool": "destroy", "arguments": text},
        "fail": {"tool": "append_keyed", "arguments": {"text": "$result.id"}}, "slow_append": {"tool": "gone", "arguments": text},
    });
    entry["capstan"]["approval"] = json!({"destroy": "ask"});
    let site = site.mcp(json!({"mcpServers": {"ledger": entry}}));
    let mut server = site.start().await;
    let empty = json!({});
    let script = |id: &str, call: &str| json!({"input": format!("[[id:{id}]][[call:ledger__{call}]][[next]][[say:bye]]")});

    let first = ended(&server, &script("kept", r#"append {"text":"rent"}"#)).await;
    let path = undo_path(&server, &first).await;
    server.kill9().await;
    let mut dying = site.start_with(&[("CAPSTAN_FAILPOINTS", "C13=kill")]).await;
    let second = dying.post_json(&path, &empty).await.1;
    dying.ended(Duration::from_secs(30)).await;
    let server = site.start().await;
    assert_eq!(server.finished(id(&second)).await["status"], "completed");
    let keys: Vec<Value> =
        site.ledger.entries().into_iter().filter(|it| it.tool == "append_keyed").map(|it| it.arguments["key"].clone()).collect();
    assert!(!keys.is_empty() && keys.iter().all(|key| *key == keys[0]), "under one key: {keys:?}");
    // After the undo, the run can still be retried. The undo is removed with it.
    let (status, again) = server.post_json(&format!("/runs/{}/retry", id(&first)), &empty).await;
    assert_eq!(status, 202, "{again}");
    server.finished(id(&again)).await;
    let messages = server.messages(first["conversation_id"].as_str().unwrap()).await;
    assert!(messages.iter().all(|message| message["run_id"] != second["id"]), "{messages:#?}");

    // An undo tool that needs an approval asks here, too, and a denied undo can be requested again.
    let paid = ended(&server, &script("paid", r#"pay {"text":"fine"}"#)).await;
    let path = undo_path(&server, &paid).await;
    for (decision, status, done) in [("deny", "failed", 0), ("allow", "completed", 1)] {
        let (accepted, run) = server.post_json(&path, &empty).await;
        assert_eq!(accepted, 202, "{run}");
        let open = wait::until("an approval", Duration::from_secs(30), || async {
            server.get_json("/approvals?status=pending").await["data"].as_array().unwrap().first().cloned()
        })
        .await;
        assert_eq!((&open["arguments"]["text"], &open["undoable"]), (&json!("fine"), &json!(false)));
        refused(&server.post_json(&path, &empty).await, "is active (wait for its end)");
        let approval = format!("/approvals/{}", open["id"].as_str().unwrap());
        let otherwise = json!({"decision": "allow", "arguments": {"text": "something else"}});
        let (edited, why) = server.post_json(&approval, &otherwise).await;
        assert!(edited == 400 && why.to_string().contains("cannot be edited"), "{why}");
        server.post_json(&approval, &json!({"decision": decision})).await;
        assert_eq!(server.finished(id(&run)).await["status"], status);
        assert_eq!(site.ledger.count("destroy", "fine"), done);
        for again in ["retry".to_owned(), format!("tool-calls/{}/retry", result(&server, &run).await["call_id"].as_str().unwrap())]
        {
            refused(&server.post_json(&format!("/runs/{}/{again}", id(&run)), &empty).await, "");
        }
    }

    // A call that cannot be undone says why.
    for (name, call, body, words) in [
        ("plain", r#"lookup {"text":"x"}"#, json!({}), "capstan.undo"),
        ("failed", r#"fail {"text":"x"}"#, json!({}), "confirm"),
        ("empty", r#"fail {"text":"x"}"#, json!({"confirm": true}), "nothing at $result.id"),
        ("twice", r#"append {"text":"x"}]][[next]][[call:ledger__append {"text":"x"}"#, json!({}), "never executed"),
        ("gone", r#"slow_append {"text":"x","ms":1}"#, json!({}), "the undo tool gone is not one"),
    ] {
        let run = ended(&server, &script(name, call)).await;
        refused(&server.post_json(&undo_path(&server, &run).await, &body).await, words);
    }
    site.assert_sound(&model).await;
}
