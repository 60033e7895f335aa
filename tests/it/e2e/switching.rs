//! Changes of the provider: because the user names one, because one is down, or without a tool that one refuses.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use support::audit;
use support::database::Kind;
use support::dialects::{Dialect, Says};
use support::server::{Server, Site};
use support::wait;
use support::wire::{Answer, Step, Wire};

/// Returns a site whose first model is that of the first provider.
async fn site(kind: Kind, providers: &[(Dialect, &Wire)]) -> Site {
    let mut site = Site::new(kind).await.env("CAPSTAN_AGENT__LLM_RETRY__DELAYS_MS", "[50, 50]");
    for (dialect, wire) in providers {
        for (name, value) in dialect.environment(&wire.base_url) {
            site = site.env(name, &value);
        }
    }
    let ledger = site.ledger.mcp_config();
    site.env("CAPSTAN_MODEL", providers[0].0.model()).mcp(ledger)
}

fn down() -> Answer {
    Answer::json(503, r#"{"error":{"message":"no capacity","type":"overloaded_error"}}"#)
}

fn text(text: &str) -> Says<'_> {
    Says { text, ..Says::default() }
}

/// Returns the data of the events of one kind.
async fn events(server: &Server, run: &Value, kind: &str) -> Vec<Value> {
    let all = server.run_events_json(run["id"].as_str().unwrap()).await;
    all.into_iter().filter(|event| event["type"] == kind).map(|event| event["data"].clone()).collect()
}

/// Returns text and model of the last message of a conversation.
async fn answer_and_model(server: &Server, run: &Value) -> (String, Value) {
    let messages = server.messages(run["conversation_id"].as_str().unwrap()).await;
    let last = messages.last().unwrap();
    let parts = last["parts"].as_array().unwrap();
    (parts.iter().filter_map(|part| part["text"].as_str()).collect(), last["model"].clone())
}

// L-34, L-46
#[tokio::test(flavor = "multi_thread")]
async fn each_turn_on_another_provider() {
    let order = [Dialect::Anthropic, Dialect::Gemini, Dialect::Responses, Dialect::Openrouter, Dialect::Ollama, Dialect::Openai];
    let mark = |dialect: Dialect| format!("{dialect:?}").to_lowercase();
    let mut wires = Vec::new();
    for dialect in order {
        let (id, signature) = (format!("id_{}", mark(dialect)), format!("sig+{}/==", mark(dialect)));
        let arguments = json!({ "text": mark(dialect) });
        let call = Some((id.as_str(), "ledger__append_keyed", &arguments));
        let answers = [Says { signature: &signature, text: "One moment.", call }, text("Done."), text("Again.")];
        wires.push(Wire::play(answers.iter().map(|says| dialect.answer(*says)).collect()).await);
    }
    // Two dialects share their variables, so the Responses API is a user provider.
    let mut providers: Vec<(Dialect, &Wire)> = order.into_iter().zip(&wires).collect();
    let responses = providers.remove(2);
    let site = site(Kind::Sqlite, &providers).await;
    let config = site.folder.path().join("capstan.toml");
    let place = format!(
        "[providers.other]\nkind = 'openai-responses'\nbase_url = '{}'\nkey_env = 'OPENAI_API_KEY'\n",
        responses.1.base_url
    );
    std::fs::write(&config, place).unwrap();
    let site = site.env("CAPSTAN_CONFIG", &config.display().to_string());
    let server = site.start().await;

    let mut conversation = Value::Null;
    let mut said: Vec<String> = Vec::new();
    for (dialect, wire) in order.into_iter().zip(&wires) {
        let model = if dialect == Dialect::Responses { "other/gpt-5-mini" } else { dialect.model() };
        let run = server.start_run(&json!({"input": "Go on.", "model": model, "conversation_id": conversation})).await;
        let ended = server.finished(run["id"].as_str().unwrap()).await;
        assert_eq!(ended["status"], "completed", "{ended}");
        assert_eq!(answer_and_model(&server, &ended).await, ("Done.".to_owned(), json!(model)));
        conversation = ended["conversation_id"].clone();

        let asked = wire.asked();
        assert_eq!(dialect.history(&asked[0]), said, "the history in the form of {dialect:?}");
        let history = dialect.history(&asked[1]);
        assert_eq!(history[said.len()], format!("call ledger__append_keyed {}", json!({ "text": mark(dialect) })));
        assert_eq!((&history[..said.len()], history.len()), (&said[..], said.len() + 2));
        said = history;
        for other in order {
            for one in &asked {
                let body = String::from_utf8_lossy(&one.body);
                let foreign = [format!("id_{}", mark(other)), format!("sig+{}/", mark(other))];
                let found = foreign.iter().find(|mark| body.contains(*mark));
                assert!(other == dialect || found.is_none(), "{found:?} was sent to {dialect:?}: {body}");
            }
        }
        let second = String::from_utf8_lossy(&asked[1].body).into_owned();
        assert_eq!(second.contains(&format!("sig+{}/==", mark(dialect))), dialect.signs(), "{dialect:?}: {second}");
    }
    // A dialect that is used again gets its own signed parts, and none of the others.
    let run =
        server.start_run(&json!({"input": "And?", "model": Dialect::Anthropic.model(), "conversation_id": conversation})).await;
    assert_eq!(server.finished(run["id"].as_str().unwrap()).await["status"], "completed");
    let back = &wires[0].asked()[2];
    assert_eq!(Dialect::Anthropic.history(back), said);
    let body = String::from_utf8_lossy(&back.body);
    assert!(body.contains("sig+anthropic/==") && body.contains("id_anthropic"), "{body}");
    assert!(!body.contains("sig+gemini") && !body.contains("id_gemini"), "{body}");
    audit::assert_sound(&site.database).await;
}

// L-46: within a run, after the call of the first answer has its result.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_next_model_takes_over_when_retries_are_over(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let arguments = json!({"text": "before"});
    let call = Some(("toolu_1", "ledger__append_keyed", &arguments));
    let first = Dialect::Anthropic.answer(Says { signature: "sig+anthropic/==", text: "One moment.", call });
    let anthropic = Wire::play(vec![first, down(), down(), down()]).await;
    let gemini = Wire::play(vec![Dialect::Gemini.answer(text("I am another."))]).await;
    let site = site(kind, &[(Dialect::Anthropic, &anthropic), (Dialect::Gemini, &gemini)]).await;
    let other = Dialect::Gemini.model();
    let site = site.env("CAPSTAN_AGENT__FALLBACKS", &json!([other]).to_string());
    let server = site.start().await;
    let run = server.start_run(&json!({"input": "Do it."})).await;
    let ended = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    assert_eq!((anthropic.asked().len(), gemini.asked().len()), (4, 1));

    let retries = events(&server, &ended, "run.retrying").await;
    let seen: Vec<_> = retries.iter().map(|retry| (&retry["after_ms"], &retry["model"], &retry["error"]["code"])).collect();
    let (code, none) = (json!("provider_overloaded"), Value::Null);
    assert_eq!(seen, [(&json!(50), &none, &code), (&json!(50), &none, &code), (&json!(0), &json!(other), &code)]);
    assert_eq!(answer_and_model(&server, &ended).await, ("I am another.".to_owned(), json!(other)));
    let asked = &gemini.asked()[0];
    assert_eq!(Dialect::Gemini.history(asked)[0], format!("call ledger__append_keyed {arguments}"));
    let body = String::from_utf8_lossy(&asked.body).into_owned();
    assert!(!body.contains("sig+anthropic") && !body.contains("toolu_1"), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_keeps_failing_is_left_alone_for_a_while() {
    let mut answers: Vec<Answer> = (0..6).map(|_| down()).collect();
    answers.push(Dialect::Anthropic.answer(text("Well again.")));
    let wire = Wire::play(answers).await;
    let site = site(Kind::Sqlite, &[(Dialect::Anthropic, &wire)]).await.env("CAPSTAN_AGENT__LLM_RETRY__DELAYS_MS", "[]");
    let site = site.env("CAPSTAN_BREAKER__OPEN_MS", "5000");
    let server = site.start().await;
    let ask = async || {
        let run = server.start_run(&json!({"input": "Are you there?"})).await;
        server.finished(run["id"].as_str().unwrap()).await
    };
    for _ in 0..5 {
        assert_eq!(ask().await["error"]["code"], "provider_overloaded");
    }
    let alone = ask().await;
    assert_eq!(alone["error"]["code"], "provider_unavailable", "{alone}");
    assert!(alone["error"]["detail"].as_str().unwrap().contains("anthropic failed 5 times in a row"), "{alone}");
    assert_eq!(wire.asked().len(), 5, "the provider was not asked");

    // One run finds that the provider is still down, and a later one that it has recovered.
    let limit = Duration::from_secs(30);
    let still = wait::until("one that finds out", limit, || async { Some(ask().await).filter(|_| wire.asked().len() == 6) }).await;
    assert_eq!(still["error"]["code"], "provider_overloaded", "{still}");
    assert_eq!(ask().await["error"]["code"], "provider_unavailable");
    wait::until("an answer", limit, || async { (ask().await["status"] == "completed").then_some(()) }).await;
    assert_eq!(wire.asked().len(), 7);
    assert_eq!(ask().await["status"], "completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn named_model_is_used_without_fallback() {
    let (first, second) = (Wire::play(vec![down()]).await, Wire::play(vec![Dialect::Gemini.answer(text("Here."))]).await);
    let (own, other) = (Dialect::Anthropic.model(), Dialect::Gemini.model());
    let site = site(Kind::Sqlite, &[(Dialect::Anthropic, &first), (Dialect::Gemini, &second)]).await;
    let site = site.env("CAPSTAN_AGENT__LLM_RETRY__DELAYS_MS", "[]").env("CAPSTAN_BREAKER__FAILURES", "0");
    let site = site.env("CAPSTAN_AGENT__FALLBACKS", &json!([own, other, other]).to_string());
    let mut server = site.start().await;
    let ended = async |server: &Server, body: Value| {
        let run = server.start_run(&body).await;
        server.finished(run["id"].as_str().unwrap()).await
    };
    let named = ended(&server, json!({"input": "Hello?", "model": own})).await;
    assert_eq!((&named["status"], &named["error"]["code"]), (&json!("failed"), &json!("provider_overloaded")), "{named}");
    assert_eq!((first.asked().len(), second.asked().len()), (1, 0), "the other provider was not asked, and this one once");
    assert_eq!(ended(&server, json!({"input": "Hello?"})).await["status"], "completed");
    assert_eq!((first.asked().len(), second.asked().len()), (2, 1));
    server.kill9().await;

    let server = site.start_with(&[("CAPSTAN_AGENT__FALLBACKS_FOR", "all")]).await;
    assert_eq!(ended(&server, json!({"input": "Hello?", "model": own})).await["status"], "completed");
    assert_eq!((first.asked().len(), second.asked().len()), (3, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn unserved_fallback_model_is_refused_at_start() {
    let site = Site::new(Kind::Sqlite).await;
    let server = site.start().await;
    let record = json!({"name": "kept", "kind": "openai", "base_url": "http://127.0.0.1:1/v1", "scope": "global"});
    assert_eq!(server.post_json("/providers", &record).await.0, 201);
    drop(server);
    let wrong = r#"["kept/m", "opnai/gpt-5"]"#;
    let mut refused = site.spawn(&[("CAPSTAN_AGENT__FALLBACKS", wrong)]);
    assert!(!refused.ended(Duration::from_secs(60)).await.success());
    let log = refused.log_text();
    assert!(log.contains("agent.fallbacks") && log.contains("opnai/gpt-5"), "{log}");
    let site = site.env("CAPSTAN_AGENT__FALLBACKS", wrong);
    let (ok, report) = site.command(&["doctor"]).await;
    assert!(!ok && report.contains("FAIL  fallbacks"), "{report}");
    let site = site.env("CAPSTAN_AGENT__FALLBACKS", r#"["kept/m", "lmstudio/any"]"#);
    let (ok, report) = site.command(&["doctor"]).await;
    assert!(ok && report.contains("ok    fallbacks"), "{report}");
    // A user provider that is deleted later is skipped.
    let server = site.start().await;
    let id = server.get_json("/providers").await["data"][0]["id"].as_str().unwrap().to_owned();
    let gone = server.request(reqwest::Method::DELETE, &format!("/providers/{id}")).send().await.unwrap();
    assert_eq!(gone.status(), 204);
    let run = server.start_run(&json!({"input": "Hello?"})).await;
    assert_eq!(server.finished(run["id"].as_str().unwrap()).await["status"], "completed");
    assert!(server.log_text().contains("a fallback is ignored"));
}

#[tokio::test(flavor = "multi_thread")]
async fn unserved_title_model_is_refused_at_start() {
    let site = Site::new(Kind::Sqlite).await.env("CAPSTAN_AGENT__TITLE", "model").env("CAPSTAN_AGENT__TITLE_MODEL", "opnai/small");
    let (ok, report) = site.command(&["doctor"]).await;
    assert!(!ok && report.contains("FAIL  title model"), "{report}");
    let mut refused = site.spawn(&[]);
    assert!(!refused.ended(Duration::from_secs(60)).await.success());
    let log = refused.log_text();
    assert!(log.contains("agent.title_model") && log.contains("opnai/small"), "{log}");
    let site = site.env("CAPSTAN_AGENT__TITLE_MODEL", "demo/demo");
    let (ok, report) = site.command(&["doctor"]).await;
    assert!(ok && report.contains("ok    title model"), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_words_are_the_operators() {
    let wire = Wire::play(vec![down()]).await;
    let site = site(Kind::Sqlite, &[(Dialect::Gemini, &wire)]).await;
    let site = site.env("CAPSTAN_AGENT__FINAL_TEXT", "We are closed. Call us.");
    let server = site.start().await;
    let run = server.start_run(&json!({"input": "Hello?"})).await;
    let ended = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("completed"), &json!("provider_overloaded")), "{ended}");
    assert_eq!(wire.asked().len(), 3);
    assert_eq!(answer_and_model(&server, &ended).await.0, "We are closed. Call us.");
    let completed = events(&server, &ended, "run.completed").await;
    assert_eq!(completed[0]["error"]["code"], "provider_overloaded", "the stream reports it, too: {completed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn recovered_provider_causes_no_more_waits() {
    let slow = Dialect::Anthropic.body(text("I take my time."));
    let slow = slow.as_bytes()[..slow.find("event: content_block_stop").unwrap()].to_vec();
    let mut answers: Vec<Answer> = (0..5).map(|_| down()).collect();
    answers.extend([Answer::events(vec![Step::Send(slow), Step::Hang]), Dialect::Anthropic.answer(text("Well again."))]);
    let wire = Wire::play(answers).await;
    let site = site(Kind::Sqlite, &[(Dialect::Anthropic, &wire)]).await.env("CAPSTAN_BREAKER__OPEN_MS", "1000");
    let server = site.start().await;
    let ask = async || server.start_run(&json!({"input": "Are you there?"})).await["id"].as_str().unwrap().to_owned();
    assert_eq!(server.finished(&ask().await).await["status"], "failed");
    // The last attempt of this run is the fifth failure and opens the circuit breaker. Its retry waits for the half-open state.
    let patient = ask().await;
    let begun = || async {
        let said = server.run_events_json(&patient).await;
        said.iter().any(|event| event["type"] == "part.delta").then_some(said)
    };
    let said = wait::until("the answer that finds out", Duration::from_secs(30), begun).await;
    let retries = said.iter().filter(|event| event["type"] == "run.retrying").count();
    assert!(retries >= 3 && wire.asked().len() == 6, "{retries} retries, {} requests", wire.asked().len());
    // That answer is still incomplete, and other runs are served.
    let ended = server.finished(&ask().await).await;
    assert_eq!((&ended["status"], wire.asked().len()), (&json!("completed"), 7), "{ended}");
    let (status, _) = server.post_json(&format!("/runs/{patient}/cancel"), &json!({})).await;
    assert!(status.is_success());
    assert_eq!(server.finished(&patient).await["status"], "cancelled");
}

// L-34: another key or server has the same name and rejects the signatures of the previous one.
#[rstest]
#[case::anthropic(Dialect::Anthropic, r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.1.content.0: Invalid `signature` in `thinking` block"}}"#)]
#[case::responses(Dialect::Responses, r#"{"error":{"message":"The encrypted content could not be verified. Reason: Encrypted content organization_id did not match the target organization.","type":"invalid_request_error","param":null,"code":"invalid_encrypted_content"}}"#)]
#[case::gemini(Dialect::Gemini, r#"[{"error":{"code":400,"message":"Corrupted thought signature.","status":"INVALID_ARGUMENT"}}]"#)]
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_outlives_who_has_signed_it(#[case] dialect: Dialect, #[case] refusal: &str) {
    let arguments = json!({"text": "before"});
    let call = Some(("id_first", "ledger__append_keyed", &arguments));
    let first = dialect.answer(Says { signature: "sig+first/==", text: "One moment.", call });
    let done = dialect.answer(text("Done."));
    let wire = Wire::play(vec![first, done.clone(), Answer::json(400, refusal), done]).await;
    let site = site(Kind::Sqlite, &[(dialect, &wire)]).await;
    let server = site.start().await;
    let mut conversation = Value::Null;
    let mut ended = Value::Null;
    for input in ["Do it.", "And now?"] {
        let run = server.start_run(&json!({"input": input, "conversation_id": conversation})).await;
        ended = server.finished(run["id"].as_str().unwrap()).await;
        assert_eq!(ended["status"], "completed", "{ended}");
        conversation = ended["conversation_id"].clone();
    }
    let sent = wire.asked();
    let signed: Vec<bool> = sent.iter().map(|one| String::from_utf8_lossy(&one.body).contains("sig+first/==")).collect();
    assert_eq!(signed, [false, true, true, false]);
    assert_eq!(dialect.history(&sent[3]), dialect.history(&sent[2]), "all other parts are sent");
    assert_eq!(events(&server, &ended, "run.retrying").await[0]["after_ms"], 0);
}

// L-43: the whole request is refused because of tool number two, in the words of each provider.
#[rstest]
#[case::openai(Dialect::Openai, 400, r#"{"error":{"message":"Invalid schema for function 'x': In context=(), object schema missing properties.","type":"invalid_request_error","param":"tools[2].function.parameters","code":"invalid_function_parameters"}}"#)]
#[case::responses(Dialect::Responses, 400, r#"{"error":{"message":"Invalid schema for function 'x'","type":"invalid_request_error","param":"tools[2].parameters","code":"invalid_function_parameters"}}"#)]
#[case::openrouter(Dialect::Openrouter, 400, r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"error\":{\"message\":\"tools.2.custom.input_schema: JSON schema is invalid\"}}"}}}"#)]
#[case::anthropic(Dialect::Anthropic, 400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"tools.2.custom.input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12."}}"#)]
#[case::gemini(Dialect::Gemini, 400, r#"[{"error":{"code":400,"message":"* GenerateContentRequest.tools[0].function_declarations[2].parameters.properties: should be non-empty for OBJECT type\n","status":"INVALID_ARGUMENT"}}]"#)]
#[case::ollama(
    Dialect::Ollama,
    422,
    r#"{"detail":[{"type":"missing","loc":["body","tools",2,"function","name"],"msg":"Field required"}]}"#
)]
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_tool_is_left_out(#[case] dialect: Dialect, #[case] status: u16, #[case] body: &str) {
    let arguments = json!({"text": "after"});
    let call = Some(("call_1", "ledger__append_keyed", &arguments));
    let answers = [Says { call, ..text("I can.") }, text("Done.")].map(|says| dialect.answer(says));
    let refusal = || Answer::json(status, body);
    let wire = Wire::play([vec![refusal(), refusal()], answers.to_vec()].concat()).await;
    let site = site(Kind::Sqlite, &[(dialect, &wire)]).await;
    let server = site.start().await;
    let run = server.start_run(&json!({"input": "Use what you have."})).await;
    let ended = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!(ended["status"], "completed", "{ended}");

    let offered: Vec<Vec<String>> = wire.asked().iter().map(|asked| dialect.offered(&asked.json())).collect();
    let refused = offered[0][2].clone();
    assert_ne!(refused, "ledger__append_keyed", "another tool must be the refused one");
    let rest: Vec<String> = offered[0].iter().filter(|name| **name != refused).cloned().collect();
    assert_eq!(offered[1], offered[0], "the tool gets a simpler schema first");
    assert_eq!(offered[2..], [rest.clone(), rest], "all other tools are offered");
    let adapted = events(&server, &ended, "model.adapted").await;
    let changes: Vec<_> = adapted.iter().map(|event| event["change"].as_str().unwrap().to_owned()).collect();
    assert_eq!(changes, [format!("tool_schema_simplified:{refused}"), format!("tool_left_out:{refused}")]);
    assert!(events(&server, &ended, "run.retrying").await.is_empty(), "no retry was made");
    assert_eq!(site.ledger.count("append_keyed", "after"), 1);
}

// A refusal that names no tool is not retried.
#[tokio::test(flavor = "multi_thread")]
async fn other_refusals_fail_at_once() {
    let body = r#"{"error":{"message":"max_tokens is too large","type":"invalid_request_error","param":"max_tokens"}}"#;
    let wire = Wire::play(vec![Answer::json(400, body)]).await;
    let site = site(Kind::Sqlite, &[(Dialect::Openai, &wire)]).await;
    let server = site.start().await;
    let run = server.start_run(&json!({"input": "Use what you have."})).await;
    let ended = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!("provider_invalid_request")), "{ended}");
    assert_eq!(wire.asked().len(), 1);
}
