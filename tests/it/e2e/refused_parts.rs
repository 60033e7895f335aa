//! Parts that a provider refuses, and answers that no retry can fix, seen through the API.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rstest::rstest;
use serde_json::{Value, json};

use support::audit;
use support::database::Kind;
use support::dialects::{Dialect, Says};
use support::documents::PNG;
use support::server::{Server, Site};
use support::wire::{Answer, Step, Wire};

async fn site(kind: Kind, dialect: Dialect, wire: &Wire) -> Site {
    let mut site = Site::new(kind).await.env("CAPSTAN_AGENT__LLM_RETRY__DELAYS_MS", "[50, 50]");
    for (name, value) in dialect.environment(&wire.base_url) {
        site = site.env(name, &value);
    }
    site.env("CAPSTAN_MODEL", dialect.model())
}

fn answer(dialect: Dialect) -> Answer {
    dialect.answer(Says { text: "Done.", ..Says::default() })
}

fn refusal(status: u16, words: &str) -> Answer {
    Answer::json(status, &json!({"error": {"message": words, "type": "invalid_request_error"}}).to_string())
}

async fn turn(server: &Server, conversation: &Value, input: Value) -> Value {
    let run = server.start_run(&json!({"input": input, "conversation_id": conversation})).await;
    server.finished(run["id"].as_str().unwrap()).await
}

async fn events(server: &Server, run: &Value, kind: &str) -> Vec<Value> {
    let all = server.run_events_json(run["id"].as_str().unwrap()).await;
    all.into_iter().filter(|event| event["type"] == kind).map(|event| event["data"].clone()).collect()
}

// The text message after a refused image works, before and after a restart, and the stored image stays.
#[rstest]
#[case(Dialect::Openai, 400, "messages[1]: unknown variant `image_url`, expected `text`", "images_left_out")]
#[case(Dialect::Anthropic, 400, "messages.0.content.3: Could not process image", "parts_left_out")]
#[tokio::test(flavor = "multi_thread")]
async fn refused_image_leaves_the_conversation_usable(
    #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind,
    #[case] dialect: Dialect,
    #[case] status: u16,
    #[case] words: &str,
    #[case] change: &str,
) {
    let answers = vec![answer(dialect), refusal(status, words), answer(dialect)];
    let wire = Wire::play(answers).await;
    let site = site(kind, dialect, &wire).await;
    let mut server = site.start().await;
    let first = turn(&server, &Value::Null, json!("Hello.")).await;
    let conversation = first["conversation_id"].clone();
    let data = STANDARD.encode(PNG);
    let url = format!("data:image/png;base64,{data}");
    let picture = json!({"type": "image", "media_type": "image/png", "url": url, "name": "screenshot.png"});
    let second = turn(&server, &conversation, json!([{"type": "text", "text": "What is this?"}, picture])).await;
    assert_eq!(second["status"], "completed", "{second}");
    let adapted = events(&server, &second, "model.adapted").await;
    assert_eq!(adapted.len(), 1, "{adapted:?}");
    assert_eq!((&adapted[0]["model"], &adapted[0]["change"]), (&json!(dialect.model()), &json!(change)));
    assert!(events(&server, &second, "run.retrying").await.is_empty(), "no retry is counted");
    let third = turn(&server, &conversation, json!("And now?")).await;
    assert_eq!(third["status"], "completed", "{third}");
    server.kill9().await;
    // A new process knows what the model does not take.
    let server = site.start().await;
    let fourth = turn(&server, &conversation, json!("And after a restart?")).await;
    assert_eq!(fourth["status"], "completed", "{fourth}");
    let asked: Vec<bool> = wire.asked().iter().map(|asked| String::from_utf8_lossy(&asked.body).contains(&data)).collect();
    assert_eq!(asked, [false, true, false, false, false]);
    let stored = server.messages(conversation.as_str().unwrap()).await;
    assert!(stored.iter().any(|message| message["parts"][1]["file_id"].is_string()), "the image stays in the history: {stored:?}");
    audit::assert_sound(&site.database).await;
}

/// Returns an answer that spent 50 tokens on reasoning, or on nothing visible.
fn used_up(dialect: Dialect, thought: &str) -> Answer {
    let frames = match dialect {
        Dialect::Openai | Dialect::Openrouter => vec![
            json!({"choices": [{"index": 0, "delta": {"reasoning_content": thought}, "finish_reason": null}]}),
            json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}),
            json!({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 50}}),
        ],
        Dialect::Responses => vec![
            json!({"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}}),
            json!({"type": "response.reasoning_summary_text.delta", "output_index": 0, "item_id": "rs", "delta": thought}),
            json!({"type": "response.incomplete", "response": {"id": "r", "status": "incomplete", "output": [],
                "incomplete_details": {"reason": "max_output_tokens"}, "usage": {"input_tokens": 5, "output_tokens": 50}}}),
        ],
        Dialect::Anthropic => vec![
            json!({"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "content": [], "usage": {"input_tokens": 5}}}),
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}}),
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": thought}}),
            json!({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 50}}),
            json!({"type": "message_stop"}),
        ],
        Dialect::Gemini => {
            vec![json!({"candidates": [{"content": {"role": "model", "parts": [{"text": thought, "thought": true}]},
            "finishReason": "MAX_TOKENS"}], "usageMetadata": {"promptTokenCount": 5, "thoughtsTokenCount": 50}})]
        }
        Dialect::Ollama => vec![
            json!({"message": {"role": "assistant", "content": "", "thinking": thought}, "done": false}),
            json!({"message": {"role": "assistant", "content": ""}, "done": true, "done_reason": "length", "prompt_eval_count": 5, "eval_count": 50}),
        ],
    };
    let (kind, before, after) =
        if dialect == Dialect::Ollama { ("application/x-ndjson", "", "\n") } else { ("text/event-stream", "data: ", "\n\n") };
    let body: String = frames.iter().map(|frame| format!("{before}{frame}{after}")).collect();
    Answer::new(200, &[("content-type", kind)], vec![Step::Send(body.into_bytes())])
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn output_limit_without_an_answer_fails_at_once(
    #[values(Dialect::Openai, Dialect::Responses, Dialect::Anthropic, Dialect::Gemini, Dialect::Ollama)] dialect: Dialect,
    #[values("hmm", "")] thought: &str,
) {
    let wire = Wire::play(vec![used_up(dialect, thought)]).await;
    let site = site(Kind::Sqlite, dialect, &wire).await;
    let server = site.start().await;
    let body = json!({"input": "Think.", "options": {"max_output_tokens": 50}});
    let run = server.start_run(&body).await;
    let ended = server.finished(run["id"].as_str().unwrap()).await;
    let error = &ended["error"];
    assert_eq!(
        (&ended["status"], &error["code"], &error["retryable"]),
        (&json!("failed"), &json!("provider_empty_response"), &json!(false))
    );
    let detail = error["detail"].as_str().unwrap();
    assert!(detail.contains("50 tokens") && detail.contains("options.max_output_tokens"), "{detail}");
    // Gemini counts the tokens of reasoning that it does not show.
    let reasoned = !thought.is_empty() || dialect == Dialect::Gemini;
    assert_eq!(detail.contains("reasoning"), reasoned, "{detail}");
    assert_eq!(wire.asked().len(), 1, "the same request is not sent again");
}

// An operator's total timeout ends the answer. It is not retried, and the partial text is kept.
#[tokio::test(flavor = "multi_thread")]
async fn answer_over_the_total_limit_is_kept_and_not_repeated() {
    let token = json!({"choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": null}]});
    let token = format!("data: {token}\n\n");
    let steps = (0..200).flat_map(|_| [Step::Send(token.clone().into_bytes()), Step::Pause(Duration::from_millis(50))]);
    let wire = Wire::play(vec![Answer::events(steps.collect()), answer(Dialect::Openai)]).await;
    let site = site(Kind::Sqlite, Dialect::Openai, &wire).await.env("CAPSTAN_PROVIDERS__OPENAI__TOTAL_MS", "2000");
    let server = site.start().await;
    let ended = turn(&server, &Value::Null, json!("Go on.")).await;
    let error = &ended["error"];
    assert_eq!(
        (&ended["status"], &error["code"], &error["retryable"]),
        (&json!("failed"), &json!("provider_timeout"), &json!(false))
    );
    assert!(error["detail"].as_str().unwrap().contains("total_ms"), "{error}");
    assert_eq!(wire.asked().len(), 1);
    let messages = server.messages(ended["conversation_id"].as_str().unwrap()).await;
    let last = messages.last().unwrap();
    assert_eq!((&last["role"], &last["status"]), (&json!("assistant"), &json!("partial")));
    assert!(last["parts"][0]["text"].as_str().unwrap().starts_with("word word "), "{last}");
    let next = turn(&server, &ended["conversation_id"], json!("And?")).await;
    assert_eq!(next["status"], "completed", "{next}");
    audit::assert_sound(&site.database).await;
}

// The same for the wall time of a run.
#[tokio::test(flavor = "multi_thread")]
async fn answer_cut_by_the_time_of_its_run_is_kept() {
    let token = json!({"choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": null}]});
    let token = format!("data: {token}\n\n");
    let steps = (0..200).flat_map(|_| [Step::Send(token.clone().into_bytes()), Step::Pause(Duration::from_millis(50))]);
    let wire = Wire::play(vec![Answer::events(steps.collect())]).await;
    let site = site(Kind::Sqlite, Dialect::Openai, &wire).await.env("CAPSTAN_AGENT__MAX_RUN_MS", "2500");
    let server = site.start().await;
    let ended = turn(&server, &Value::Null, json!("Go on.")).await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!("run_timeout")));
    let messages = server.messages(ended["conversation_id"].as_str().unwrap()).await;
    let last = messages.last().unwrap();
    assert_eq!((&last["role"], &last["status"]), (&json!("assistant"), &json!("partial")), "{messages:?}");
    audit::assert_sound(&site.database).await;
}
