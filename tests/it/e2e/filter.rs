//! Tool selection: of sixty tools, the model is offered the few that match the user's message.

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::{Value, json};

use support::audit;
use support::database::Kind;
use support::model::{Exchange, ModelMock};
use support::server::{Server, Site};
use support::vectors::{Mood, VectorsMock};

/// Returns three servers of twenty tools each, five of them about one topic.
fn sixty(site: &Site) -> Value {
    let server = concat!(env!("CARGO_MANIFEST_DIR"), "/mcp/server.py");
    let topics = [("one", "Tells the forecast"), ("two", "Writes a letter"), ("three", "Prints a document")];
    let servers = topics.map(|(name, about)| {
        let folder = site.folder.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let about = |at: usize| if at < 5 { format!("{about}, kind {at}") } else { format!("Filler, kind {at}") };
        let tools: serde_json::Map<String, Value> = (0..20).map(|at| (format!("t{at:02}"), json!(about(at)))).collect();
        let catalogue = folder.join("catalogue.json");
        std::fs::write(&catalogue, Value::Object(tools).to_string()).unwrap();
        let catalogue = format!("catalogue={}", catalogue.display());
        (name.to_owned(), json!({"command": "python3", "args": [server, folder, catalogue], "capstan": {"trusted": true}}))
    });
    json!({"mcpServers": serde_json::Map::from_iter(servers)})
}

async fn site(kind: Kind, model: &ModelMock, mode: &str) -> Site {
    let site = Site::scripted(kind, model).await;
    let servers = sixty(&site);
    let site = site.mcp(servers).env("CAPSTAN_AGENT__TOOL_FILTER__MODE", mode);
    site.env("CAPSTAN_AGENT__TOOL_FILTER__K", "5")
}

fn with_vectors(site: Site, vectors: &VectorsMock) -> Site {
    site.env("CAPSTAN_PROVIDERS__VECTORS__KIND", "openai")
        .env("CAPSTAN_PROVIDERS__VECTORS__BASE_URL", &vectors.base_url)
        .env("CAPSTAN_EMBEDDINGS__MODEL", "vectors/small")
        .env("CAPSTAN_EMBEDDINGS__TIMEOUT_MS", "20000")
}

fn offered(exchange: &Exchange) -> Vec<String> {
    let tools = exchange.request["tools"].as_array().map_or(&[][..], Vec::as_slice);
    tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap().to_owned()).collect()
}

fn first_five(server: &str) -> Vec<String> {
    (0..5).map(|at| format!("{server}__t{at:02}")).collect()
}

async fn finished(server: &Server, input: &str) -> (Value, Vec<Value>) {
    let run = server.start_run(&json!({"input": input})).await;
    let id = run["id"].as_str().unwrap();
    let run = server.finished(id).await;
    assert_eq!(run["status"], "completed", "{run}");
    (run, server.run_events_json(id).await)
}

/// Returns the tool data of the model steps of a run.
fn announced(events: &[Value]) -> Vec<Value> {
    let steps = events.iter().filter(|event| event["type"] == "step.started" && event["data"]["kind"] == "model");
    steps.map(|event| event["data"]["tools"].clone()).collect()
}

async fn metric(server: &Server, name: &str) -> String {
    let all = server.get("//metrics").send().await.unwrap().text().await.unwrap();
    all.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {all}")).to_owned()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn model_gets_the_filtered_offer(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, vectors) = (ModelMock::start().await, VectorsMock::start().await);
    let site = with_vectors(site(kind, &model, "semantic").await, &vectors);
    let server = site.start().await;
    // No word of the message is in any tool's description.
    let (_, events) = finished(&server, "Shall I take my umbrella? [[id:a]][[say:yes]]").await;
    assert_eq!(offered(&model.exchanges("a")[0]), first_five("one"));
    assert_eq!(announced(&events), [json!({"offered": 5, "of": 64, "by": "semantic"})]);
    let asked = vectors.asked();
    let [asked] = asked.as_slice() else { panic!("one request has room for all: {asked:?}") };
    assert_eq!((asked.model.as_str(), asked.texts.len()), ("small", 65));
    assert!(asked.texts[0].contains("umbrella") && asked.texts.contains(&"one__t00: [one] Tells the forecast, kind 0".to_owned()));

    // A tool that was not offered can still be called. A called tool stays on offer for the rest of the conversation.
    let script = r#"My correspondence! [[id:b]][[call:current_time]][[next]][[say:bye]]"#;
    let (run, events) = finished(&server, script).await;
    let seen = model.exchanges("b");
    assert_eq!(offered(&seen[0]), first_five("two"));
    assert_eq!(offered(&seen[1]), [&["current_time".to_owned()][..], &first_five("two")].concat());
    assert!(events.iter().any(|event| event["type"] == "tool.completed" && event["data"]["state"] == "done"), "{events:#?}");
    let again =
        json!({"input": "And can I also have all of it on paper? [[id:c]][[say:yes]]", "conversation_id": run["conversation_id"]});
    let run = server.start_run(&again).await;
    server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!(offered(&model.exchanges("c")[0]), [&["current_time".to_owned()][..], &first_five("three")].concat());
    // After the index is built, only the user's messages are embedded.
    let counts: Vec<usize> = vectors.asked().iter().map(|asked| asked.texts.len()).collect();
    assert_eq!(counts, [65, 1, 1]);
    assert!(metric(&server, "capstan_tool_rankings_total{by=\"semantic\"}").await.ends_with(" 3"));
    site.assert_sound(&model).await;
}

#[rstest]
#[case::down(Mood::Ill)]
#[case::slow(Mood::Deaf)]
#[tokio::test(flavor = "multi_thread")]
async fn words_decide_where_there_are_no_vectors_in_time(#[case] mood: Mood) {
    let (model, vectors) = (ModelMock::start().await, VectorsMock::start().await);
    let site = with_vectors(site(Kind::Sqlite, &model, "semantic").await, &vectors);
    let site = site.env("CAPSTAN_EMBEDDINGS__TIMEOUT_MS", "500");
    vectors.feel(mood);
    let server = site.start().await;
    // The servers start with the first run.
    finished(&server, "[[id:x]][[say:x]]").await;
    vectors.feel(mood);
    let began = Instant::now();
    let (_, events) = finished(&server, "Write letters to everybody [[id:a]][[say:ok]]").await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(offered(&model.exchanges("a")[0]), first_five("two"));
    assert_eq!(announced(&events), [json!({"offered": 5, "of": 64, "by": "lexical"})]);
    // The circuit breaker is open: the second run sends no embedding request.
    assert_eq!(vectors.asked().len(), 1);
    assert!(metric(&server, "capstan_embedding_failures_total").await.ends_with(|c: char| c.is_ascii_digit()));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn takeover_offers_the_same_tools(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, vectors) = (ModelMock::start().await, VectorsMock::start().await);
    let site = with_vectors(site(kind, &model, "semantic").await, &vectors).short_leases();
    let mut server = site.start().await;
    let run = server.start_run(&json!({"input": "Shall I take my umbrella? [[id:a]][[text:1,0]][[hold]]"})).await;
    let id = run["id"].as_str().unwrap();
    let mut stream = server.run_events(id).await;
    stream.until_kind("part.delta").await;
    server.kill9().await;
    // A second search could not return the same tools.
    vectors.feel(Mood::Ill);
    model.release("a");
    let server = site.start().await;
    assert_eq!(server.finished(id).await["status"], "completed");
    let seen = model.exchanges("a");
    assert_eq!(seen.len(), 2);
    assert_eq!((offered(&seen[0]), offered(&seen[1])), (first_five("one"), first_five("one")));
    assert_eq!(vectors.asked().len(), 1);
    audit::assert_sound(&site.database).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_model_names_categories_first(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = site(kind, &model, "categories").await.env("CAPSTAN_AGENT__TOOL_FILTER__SERVERS__TWO__ABOUT", "Post and letters");
    let server = site.start().await;
    let script = r#"Write to Ann [[id:a]][[choose:two,general]][[call:two__t19 {"text":"sent"}]][[next]][[say:bye]]"#;
    let (run, events) = finished(&server, script).await;
    let seen = model.exchanges("a");
    assert_eq!(offered(&seen[0]), ["select_categories"]);
    let menu = seen[0].request["tools"][0]["function"]["description"].as_str().unwrap();
    for line in ["\n- two (20): Post and letters", "\n- one (20): t00, t01,", "\n- general (4): current_time, "] {
        assert!(menu.contains(line), "{menu}");
    }
    assert_eq!(offered(&seen[1]).len(), 24);
    assert_eq!(offered(&seen[1]), offered(&seen[2]));
    let by = |by: &str, offered: usize| json!({"offered": offered, "of": 64, "by": by});
    assert_eq!(announced(&events), [by("choosing", 0), by("categories", 24), by("categories", 24)]);
    // The category call shows in its step and its usage only.
    let names: Vec<&str> = events.iter().filter_map(|event| event["data"]["name"].as_str()).collect();
    assert!(names.iter().all(|name| *name == "two__t19"), "{names:?}");
    assert_eq!(run["usage"]["model_calls"], 3);
    let messages = server.messages(run["conversation_id"].as_str().unwrap()).await;
    assert_eq!(
        messages.iter().map(|message| message["role"].as_str().unwrap()).collect::<Vec<_>>(),
        ["user", "assistant", "tool", "assistant"]
    );

    // A model that names no category, or an unknown one, is offered the best matches.
    for (id, choice) in [("b", ""), ("c", "moon")] {
        let (_, events) = finished(&server, &format!("Write a letter to Ann [[id:{id}]][[choose:{choice}]][[say:ok]]")).await;
        assert_eq!(offered(&model.exchanges(id)[1]), first_five("two"), "{choice:?}");
        assert_eq!(announced(&events)[1]["by"], "lexical");
        assert!(!serde_json::to_string(&events).unwrap().contains("I have no tools"));
    }
    site.assert_sound(&model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_the_two_calls_keeps_the_choice() {
    let (model, site, mut server) = Site::serve(async |model| site(Kind::Sqlite, model, "categories").await.short_leases()).await;
    let script = "Print it [[id:a]][[choose:three]][[text:1,0]][[hold]]";
    let run = server.start_run(&json!({"input": script})).await;
    let id = run["id"].as_str().unwrap();
    let mut stream = server.run_events(id).await;
    stream.until_kind("part.delta").await;
    server.kill9().await;
    model.release("a");
    let server = site.start().await;
    assert_eq!(server.finished(id).await["status"], "completed");
    let seen = model.exchanges("a");
    let counts: Vec<usize> = seen.iter().map(|exchange| offered(exchange).len()).collect();
    assert_eq!(counts, [1, 20, 20]);
    audit::assert_sound(&site.database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_one_is_used_for_their_runs_alone() {
    let (model, vectors) = (ModelMock::start().await, VectorsMock::start().await);
    let site = site(Kind::Sqlite, &model, "semantic").await.env("CAPSTAN_SECRET_KEY", "a master key of some length");
    let site = site.env("CAPSTAN_EMBEDDINGS__MODEL", "mine/small").env("CAPSTAN_EMBEDDINGS__TIMEOUT_MS", "20000");
    let site = site.env("CAPSTAN_OUTBOUND__ALLOW_PRIVATE", "true");
    let (ann, bob) = (site.key_of("ann").await, site.key_of("bob").await);
    let mut server = site.start().await;
    server.set_key(&ann);
    let body = json!({"name": "mine", "kind": "openai", "base_url": vectors.base_url, "key": "sk-ann-0123456789"});
    let (status, made) = server.post_json("/providers", &body).await;
    assert_eq!(status, 201, "{made}");
    server.set_key(&bob);
    let (_, events) = finished(&server, "Write a letter [[id:b]][[say:ok]]").await;
    assert_eq!(announced(&events)[0]["by"], "lexical");
    assert!(vectors.asked().is_empty());
    server.set_key(&ann);
    let (_, events) = finished(&server, "My correspondence [[id:a]][[say:ok]]").await;
    assert_eq!((&announced(&events)[0]["by"], offered(&model.exchanges("a")[0])), (&json!("semantic"), first_five("two")));
    assert_eq!(vectors.asked()[0].key, "Bearer sk-ann-0123456789");
}
