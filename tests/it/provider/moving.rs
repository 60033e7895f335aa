//! Requests that a provider refuses over chat completions and accepts over the Responses API.

use std::sync::Arc;

use capstan::domain::model::{ModelErrorKind, ModelRequest, ReasoningEffort};
use capstan::provider::{ClientOptions, ModelClient, Quirks, openai};
use rstest::rstest;
use serde_json::json;

use super::drive::{ask_through, options, question};
use support::wire::{Answer, Wire};

/// OpenAI's error text.
const TOOLS: &str = r#"{"error":{"message":"Function tools with reasoning_effort are not supported for gpt-6-sol in /v1/chat/completions. To use function tools, use /v1/responses or set reasoning_effort to 'none'.","type":"invalid_request_error","param":"reasoning_effort","code":null}}"#;
const MODEL: &str = r#"{"error":{"message":"This model is only supported in v1/responses and not in v1/chat/completions.","type":"invalid_request_error","param":"model","code":null}}"#;

fn refusal(status: u16, words: &str) -> Answer {
    Answer::json(status, words)
}

fn over_responses() -> Answer {
    let events = [
        json!({"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": []}}),
        json!({"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "item_id": "m", "delta": "over there"}),
        json!({"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "output": [
            {"id": "m", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "over there"}]}]}}),
    ];
    Answer::stream(events.map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap())).concat())
}

fn over_chat() -> Answer {
    let chunk = json!({"choices": [{"index": 0, "delta": {"content": "here"}, "finish_reason": "stop"}]});
    Answer::stream(format!("data: {chunk}\n\ndata: [DONE]\n\n"))
}

fn client(options: ClientOptions) -> Arc<dyn ModelClient> {
    openai::client(options, Quirks::default()).unwrap()
}

fn sol() -> ModelRequest {
    ModelRequest { model: "gpt-6-sol".to_owned(), ..question() }
}

fn lines(wire: &Wire) -> Vec<String> {
    wire.asked().iter().map(|asked| asked.head.lines().next().unwrap_or_default().to_owned()).collect()
}

const CHAT: &str = "POST /v1/chat/completions HTTP/1.1";
const RESPONSES: &str = "POST /v1/responses HTTP/1.1";

#[rstest]
#[case(400, TOOLS)]
#[case(404, MODEL)]
#[tokio::test]
async fn responses_only_model_is_called_over_responses(#[case] status: u16, #[case] words: &str) {
    let answers = vec![refusal(status, words), over_responses(), over_responses(), over_chat()];
    let wire = Wire::play(answers).await;
    let client = client(options(&wire));
    let mut request = sol();
    // Over chat completions, this option would be left out, because such models refuse it.
    request.options.stop = vec!["END".to_owned()];
    let outcome = ask_through(client.as_ref(), request).await;
    assert_eq!((outcome.text().as_str(), outcome.end.is_ok()), ("over there", true));
    // The next request uses the Responses API at once.
    assert_eq!(ask_through(client.as_ref(), sol()).await.text(), "over there");
    // A request without tools has not been refused yet.
    let plain = ModelRequest { tools: Vec::new(), ..sol() };
    assert_eq!(ask_through(client.as_ref(), plain).await.text(), "here");
    assert_eq!(lines(&wire), [CHAT, RESPONSES, RESPONSES, CHAT]);
    let there = wire.asked().swap_remove(1);
    assert!(there.head.contains("authorization: Bearer sk-canary-0123456789\r\n"), "{}", there.head);
    let body = there.json();
    assert_eq!((body["tools"][0]["name"].as_str(), body.get("stop")), (Some("get_weather"), None));
}

#[tokio::test]
async fn a_place_without_responses_has_refused() {
    let gone = refusal(404, r#"{"error":{"message":"no such path"}}"#);
    let wire = Wire::play(vec![refusal(400, TOOLS), gone, over_chat()]).await;
    let client = client(options(&wire));
    let error = ask_through(client.as_ref(), sol()).await.end.unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::InvalidRequest);
    assert!(error.message.contains("Function tools"), "{error}");
    assert_eq!(ask_through(client.as_ref(), sol()).await.text(), "here", "the client stays with chat completions");
    assert_eq!(lines(&wire), [CHAT, RESPONSES, CHAT]);
}

/// A gateway that serves only some paths, and a request that the Responses API cannot express. The original refusal is
/// reported, and the client stays.
#[rstest]
#[case::closed(Some(403), None)]
#[case::unauthorised(Some(401), None)]
#[case::unsayable(None, Some("END"))]
#[tokio::test]
async fn unsupported_request_stays_on_chat_completions(#[case] status: Option<u16>, #[case] stop: Option<&str>) {
    let mut answers = vec![refusal(400, TOOLS)];
    answers.extend(status.map(|status| refusal(status, "{}")));
    answers.push(over_chat());
    let wire = Wire::play(answers).await;
    let client = client(options(&wire));
    let mut request = ModelRequest { model: "alias".to_owned(), ..question() };
    request.options.stop = stop.map(str::to_owned).into_iter().collect();
    let error = ask_through(client.as_ref(), request.clone()).await.end.unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::InvalidRequest);
    assert!(error.message.contains("Function tools"), "{error}");
    assert_eq!(ask_through(client.as_ref(), request).await.text(), "here", "the client stays with chat completions");
}

/// An outage of the Responses API is reported as an outage and does not move the client. A moved client returns if the path
/// disappears.
#[tokio::test]
async fn only_what_has_answered_there_has_moved() {
    let gone = || refusal(404, r#"{"error":{"message":"no such path"}}"#);
    let answers = vec![refusal(400, TOOLS), refusal(503, "{}"), refusal(400, TOOLS), over_responses(), gone(), over_chat()];
    let wire = Wire::play(answers).await;
    let client = client(options(&wire));
    let error = ask_through(client.as_ref(), sol()).await.end.unwrap_err();
    assert_ne!(error.kind, ModelErrorKind::InvalidRequest, "{error}");
    assert_eq!(ask_through(client.as_ref(), sol()).await.text(), "over there");
    assert_eq!(ask_through(client.as_ref(), sol()).await.text(), "here");
    assert_eq!(lines(&wire), [CHAT, RESPONSES, CHAT, RESPONSES, RESPONSES, CHAT]);
}

#[rstest]
#[case(400, r#"{"error":{"message":"Unsupported value: 'temperature'"}}"#)]
#[case(500, TOOLS)]
#[tokio::test]
async fn other_refusals_stay(#[case] status: u16, #[case] words: &str) {
    let wire = Wire::play(vec![refusal(status, words)]).await;
    assert!(ask_through(client(options(&wire)).as_ref(), sol()).await.end.is_err());
    assert_eq!(lines(&wire), [CHAT]);
}

#[rstest]
#[case::azure(
    r"url = '{host}/openai/deployments/{model}/chat/completions?api-version=2024-10-21'
    responses_url = '{host}/openai/v1/responses'
    key_header = 'api-key'",
    "",
    "/openai/v1/responses"
)]
#[case::whole_path("", "/v1/chat/completions", "/v1/responses")]
#[case::below_a_path("", "/gate/v1", "/gate/v1/responses")]
#[tokio::test]
async fn where_it_is_asked(#[case] accent: &str, #[case] base: &str, #[case] path: &str) {
    let wire = Wire::play(vec![refusal(400, TOOLS), over_responses()]).await;
    let accent: Quirks = toml::from_str(accent).unwrap();
    let key = if accent.key_header == "api-key" { "api-key: sk-canary" } else { "authorization: Bearer sk-canary" };
    let given = ClientOptions { base_url: wire.base_url.replace("/v1", base), ..options(&wire) };
    assert_eq!(ask_through(openai::client(given, accent).unwrap().as_ref(), sol()).await.text(), "over there");
    let there = wire.asked().remove(1);
    assert!(there.head.starts_with(&format!("POST {path} ")) && there.head.contains(key), "{}", there.head);
}

#[tokio::test]
async fn provider_without_responses_is_not_probed() {
    let wire = Wire::play(vec![refusal(400, TOOLS)]).await;
    let accent = Quirks { responses_url: String::new(), ..Quirks::default() };
    assert!(ask_through(openai::client(options(&wire), accent).unwrap().as_ref(), sol()).await.end.is_err());
    assert_eq!(lines(&wire), [CHAT]);
}

// The base URL may be the whole chat completions URL, with a query.
#[tokio::test]
async fn a_base_url_may_name_chat_completions_and_have_a_query() {
    for (base, chat, there) in [
        ("/chat/completions", CHAT, RESPONSES),
        ("/chat/completions?x=1", "POST /v1/chat/completions?x=1 HTTP/1.1", "POST /v1/responses?x=1 HTTP/1.1"),
        ("/?x=1", "POST /v1/chat/completions?x=1 HTTP/1.1", "POST /v1/responses?x=1 HTTP/1.1"),
    ] {
        let wire = Wire::play(vec![refusal(400, TOOLS), over_responses()]).await;
        let base_url = format!("{}{base}", wire.base_url);
        let client = client(ClientOptions { base_url, ..options(&wire) });
        assert_eq!(ask_through(client.as_ref(), sol()).await.text(), "over there", "{base}");
        assert_eq!(lines(&wire), [chat, there], "{base}");
    }
}

// The operator's quirks apply to the Responses API as well.
#[tokio::test]
async fn the_accent_holds_over_responses() {
    let accent: Quirks = toml::from_str(
        r#"
        efforts_of = { "gpt-6" = { low = "lowest", max = "utmost" } }
        extra = { service_tier = "flex" }
        omit = ["include"]
        rename = { max_output_tokens = "limit" }
        schemas = { drop = ["minLength"] }
        "#,
    )
    .unwrap();
    for (effort, word) in [(ReasoningEffort::Low, "lowest"), (ReasoningEffort::Max, "utmost")] {
        let wire = Wire::play(vec![refusal(400, TOOLS), over_responses()]).await;
        let mut request = sol();
        request.options.reasoning_effort = Some(effort);
        request.options.max_output_tokens = Some(7);
        let parameters = json!({"type": "object", "properties": {"x": {"type": "string", "minLength": 1}}});
        Arc::make_mut(&mut request.tools[0]).parameters = parameters.into();
        let client = openai::client(options(&wire), accent.clone()).unwrap();
        assert_eq!(ask_through(client.as_ref(), request).await.text(), "over there");
        let there = wire.asked().remove(1).json();
        assert_eq!(
            (&there["reasoning"]["effort"], &there["service_tier"], &there["limit"]),
            (&word.into(), &"flex".into(), &7.into())
        );
        assert!(there.get("include").is_none() && there.get("max_output_tokens").is_none(), "{there}");
        assert_eq!(there["tools"][0]["parameters"], json!({"type": "object", "properties": {"x": {"type": "string"}}}));
    }
    // OpenAI's own effort levels are those of the Responses API.
    let wire = Wire::play(vec![refusal(400, TOOLS), over_responses()]).await;
    let mut request = sol();
    request.options.reasoning_effort = Some(ReasoningEffort::Max);
    assert!(ask_through(client(options(&wire)).as_ref(), request).await.end.is_ok());
    assert_eq!(wire.asked()[1].json()["reasoning"]["effort"], "max");
}
