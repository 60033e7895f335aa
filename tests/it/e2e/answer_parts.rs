//! Answers that hold more than words: pictures of models, and the sources of search models.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::StatusCode;
use rstest::rstest;
use serde_json::{Value, json};

use support::audit;
use support::database::Kind;
use support::dialects::{Dialect, Says};
use support::documents::PNG;
use support::server::{Server, Site};
use support::wire::{Answer, Wire};

async fn site(kind: Kind, dialect: Dialect, wire: &Wire) -> Site {
    let mut site = Site::new(kind).await.env("CAPSTAN_MODEL", dialect.model());
    for (name, value) in dialect.environment(&wire.base_url) {
        site = site.env(name, &value);
    }
    site
}

async fn turn(server: &Server, conversation: &Value, input: &str) -> Value {
    let run = server.start_run(&json!({"input": input, "conversation_id": conversation})).await;
    server.finished(run["id"].as_str().unwrap()).await
}

/// Returns the parts of the newest answer, and checks that the log holds the same.
async fn answer_parts(server: &Server, run: &Value) -> Vec<Value> {
    let messages = server.messages(run["conversation_id"].as_str().unwrap()).await;
    let answer = messages.iter().rfind(|message| message["role"] == "assistant").unwrap();
    let parts = answer["parts"].as_array().unwrap().clone();
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    let told: Vec<Value> = events
        .iter()
        .filter(|event| event["type"] == "part.completed" && event["data"]["message_id"] == answer["id"])
        .map(|event| event["data"]["part"].clone())
        .collect();
    assert_eq!(told, parts, "{events:?}");
    parts
}

fn chunk(choice: Value) -> String {
    format!("data: {}\n\n", json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]}))
}

fn delta(delta: Value) -> String {
    chunk(json!({"index": 0, "delta": delta, "finish_reason": null}))
}

fn stop() -> String {
    chunk(json!({"index": 0, "delta": {}, "finish_reason": "stop"})) + "data: [DONE]\n\n"
}

/// Returns an answer of these words and a picture.
fn painted(dialect: Dialect, words: &str) -> Answer {
    let data = STANDARD.encode(PNG);
    let body = match dialect {
        Dialect::Gemini => {
            let mut parts = vec![json!({"inlineData": {"mimeType": "image/png", "data": data}})];
            if !words.is_empty() {
                parts.insert(0, json!({ "text": words }));
            }
            let candidate = json!({"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0});
            format!("data: {}\n\n", json!({"candidates": [candidate]}))
        }
        _ => {
            let image = json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{data}")}});
            let images = delta(json!({"content": "", "images": [image]}));
            // Some gateways repeat it.
            delta(json!({"role": "assistant", "content": words})) + &images + &images + &stop()
        }
    };
    Answer::stream(body)
}

#[rstest]
#[case(Dialect::Openrouter)]
#[case(Dialect::Gemini)]
#[tokio::test(flavor = "multi_thread")]
async fn picture_of_a_model_is_a_part_of_its_answer(
    #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind,
    #[case] dialect: Dialect,
    #[values("", "Here it is.")] words: &str,
) {
    let said = dialect.answer(Says { text: "A pixel.", ..Says::default() });
    let wire = Wire::play(vec![painted(dialect, words), said]).await;
    let site = site(kind, dialect, &wire).await;
    let server = site.start().await;
    let run = turn(&server, &Value::Null, "Paint a pixel.").await;
    assert_eq!((&run["status"], wire.asked().len()), (&json!("completed"), 1), "{run}");
    let mut parts = answer_parts(&server, &run).await;
    let picture = parts.pop().unwrap();
    assert_eq!((&picture["type"], &picture["media_type"]), (&json!("image"), &json!("image/png")), "{picture}");
    assert_eq!(parts.iter().map(|part| part["text"].as_str().unwrap()).collect::<String>(), words);
    let path = picture["url"].as_str().unwrap().strip_prefix("/api/v1").unwrap();
    let download = server.get(path).send().await.unwrap();
    assert_eq!(download.status(), StatusCode::OK);
    assert_eq!(download.bytes().await.unwrap().as_ref(), PNG);

    // The model is shown its picture again with the next message.
    let next = turn(&server, &run["conversation_id"], "What did you paint?").await;
    assert_eq!(next["status"], "completed", "{next}");
    let asked = String::from_utf8(wire.asked()[1].body.clone()).unwrap();
    assert!(asked.contains("which the user was shown]"), "{asked}");
    assert_eq!(asked.contains(&STANDARD.encode(PNG)), dialect == Dialect::Gemini || asked.contains("image_url"), "{asked}");
    // The file is held by its message.
    let uses = site.database.rows("SELECT conversation_id FROM file_uses").await;
    assert_eq!(uses, [[run["conversation_id"].as_str().map(str::to_owned)]]);
    audit::assert_sound(&site.database).await;
}

/// Returns an answer with sources in each form that the dialect has.
fn cited(dialect: Dialect) -> String {
    let page = json!({"url": "https://example.com/a", "title": "A"});
    match dialect {
        Dialect::Openai => {
            let searched = json!({"id": "1", "object": "chat.completion.chunk", "citations": ["https://example.com/a", "https://example.com/b"],
                "search_results": [{"url": "https://example.com/a", "title": "A", "date": null}],
                "choices": [{"index": 0, "delta": {"content": "It is so [1]."}, "finish_reason": null}]});
            let annotation =
                json!({"type": "url_citation", "url_citation": {"url": "https://example.com/c", "title": "C", "start_index": 0}});
            format!("data: {searched}\n\ndata: {searched}\n\n") + &delta(json!({ "annotations": [annotation] })) + &stop()
        }
        Dialect::Anthropic => {
            let citation = json!({"type": "web_search_result_location", "url": "https://example.com/a", "title": "A",
                "cited_text": "It is.", "encrypted_index": "x"});
            dialect.body(Says { text: "It is so.", ..Says::default() }).replacen(
                "event: content_block_stop",
                &format!(
                    "event: content_block_delta\ndata: {}\n\nevent: content_block_stop",
                    json!({"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": citation}})
                ),
                1,
            )
        }
        Dialect::Responses => {
            let body = dialect.body(Says { text: "It is so.", ..Says::default() });
            let mut annotation = page;
            annotation["type"] = json!("url_citation");
            body.replace(r#""annotations":[]"#, &format!(r#""annotations":[{annotation}]"#))
        }
        Dialect::Gemini => {
            let metadata = json!({"groundingChunks": [{"web": {"uri": "https://example.com/a", "title": "A"}}]});
            dialect
                .body(Says { text: "It is so.", ..Says::default() })
                .replace(r#""finishReason":"STOP""#, &format!(r#""finishReason":"STOP","groundingMetadata":{metadata}"#))
        }
        Dialect::Openrouter | Dialect::Ollama => panic!("no form of its own"),
    }
}

#[rstest]
#[case(Dialect::Openai, &["https://example.com/a A", "https://example.com/b ", "https://example.com/c C"])]
#[case(Dialect::Anthropic, &["https://example.com/a A It is."])]
#[case(Dialect::Responses, &["https://example.com/a A"])]
#[case(Dialect::Gemini, &["https://example.com/a A"])]
#[tokio::test(flavor = "multi_thread")]
async fn sources_of_an_answer_are_parts_of_its_message(#[case] dialect: Dialect, #[case] expected: &[&str]) {
    let said = dialect.answer(Says { text: "Gladly.", ..Says::default() });
    let wire = Wire::play(vec![Answer::stream(cited(dialect)), said]).await;
    let site = site(Kind::Sqlite, dialect, &wire).await;
    let server = site.start().await;
    let run = turn(&server, &Value::Null, "Is it so?").await;
    assert_eq!(run["status"], "completed", "{run}");
    let parts = answer_parts(&server, &run).await;
    let word = |part: &Value, name: &str| part[name].as_str().unwrap_or_default().to_owned();
    let sources: Vec<String> = parts
        .iter()
        .filter(|part| part["type"] == "source")
        .map(|part| {
            let text = word(part, "text");
            let text = if text.is_empty() { text } else { format!(" {text}") };
            format!("{} {}{text}", word(part, "url"), word(part, "title"))
        })
        .collect();
    assert_eq!(sources, expected);
    assert!(parts[0]["text"].as_str().unwrap().starts_with("It is so"), "{parts:?}");
    // No request carries them.
    let next = turn(&server, &run["conversation_id"], "Thanks.").await;
    assert_eq!(next["status"], "completed", "{next}");
    assert!(!String::from_utf8_lossy(&wire.asked()[1].body).contains("example.com"));
    // An exported conversation can be imported.
    let conversation = run["conversation_id"].as_str().unwrap();
    let export = server.get_json(&format!("/conversations/{conversation}/export?format=json")).await;
    let (status, import) = server.post_json("/conversations/import", &export).await;
    assert_eq!(status, StatusCode::CREATED, "{import}");
    audit::assert_sound(&site.database).await;
}
