//! Errors before an answer and instead of one.

use std::time::Duration;

use capstan::domain::model::ModelErrorKind;
use capstan::provider::{ClientOptions, Quirks, openai};
use rstest::rstest;
use serde_json::json;
use tokio::net::TcpListener;

use super::drive::{ask, ask_through, delta, options, outcome, question};
use support::wire::{Answer, Step, Wire};

const CANARY: &str = "sk-canary-0123456789";

// L-15
#[tokio::test]
async fn connections_that_fail_are_network_failures_without_secrets() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = listener.local_addr().unwrap();
    drop(listener);
    let plain = Wire::play(vec![Answer::json(200, "{}")]).await;
    let tls_to_plain = plain.base_url.replace("http://", "https://");
    let bases = [format!("http://{nobody}/v1?key={CANARY}"), format!("http://user:{CANARY}@{nobody}/v1"), tls_to_plain];
    for base in bases.into_iter().chain(["http://no-such-host.invalid/v1".to_owned()]) {
        let options = ClientOptions { api_key: Some(CANARY.into()), ..ClientOptions::new(&base) };
        let error = ask(options, question()).await.end.unwrap_err();
        assert_eq!((error.kind, error.status), (ModelErrorKind::Network, None), "{base}: {error}");
        assert!(!error.message.contains("canary") && !error.message.contains("/v1"), "{error}");
    }
}

// L-15, L-38
#[rstest]
#[case::before_the_headers(vec![], ModelErrorKind::Network)]
#[case::after_the_headers(vec![Step::Cut], ModelErrorKind::Network)]
#[case::within(vec![Step::Send(delta(json!({"content": "Hel"})).into_bytes()), Step::Cut], ModelErrorKind::IncompleteStream)]
#[case::broken_chunk(vec![Step::Send(b"data: {\"cho".to_vec()), Step::Raw(b"zz\r\n".to_vec())], ModelErrorKind::IncompleteStream)]
#[tokio::test]
async fn a_connection_that_breaks(#[case] steps: Vec<Step>, #[case] kind: ModelErrorKind) {
    if steps.is_empty() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base_url = format!("http://{}/v1", listener.local_addr().unwrap());
        let mut server = tokio::task::JoinSet::new();
        server.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                drop(socket);
            }
        });
        assert_eq!(ask(ClientOptions::new(base_url), question()).await.error(), kind);
        return;
    }
    assert_eq!(outcome(Answer::events(steps)).await.error(), kind);
}

// L-38
#[tokio::test]
async fn a_cut_gzip_body_is_incomplete() {
    // Gzip of `data: {"choices":[{"delta":{"content":"Hel"}}]}` and a blank line, without the end of the gzip stream.
    let mut gzip = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    let text = delta(json!({"content": "Hel"}));
    let length = u16::try_from(text.len()).unwrap();
    gzip.push(0); // a stored block that is not the last one
    gzip.extend(length.to_le_bytes());
    gzip.extend((!length).to_le_bytes());
    gzip.extend(text.as_bytes());
    let headers = [("content-type", "text/event-stream"), ("content-encoding", "gzip")];
    for end in [None, Some(Step::Cut)] {
        let steps = [Some(Step::Send(gzip.clone())), end].into_iter().flatten().collect();
        let outcome = outcome(Answer::new(200, &headers, steps)).await;
        assert_eq!((outcome.text().as_str(), outcome.error()), ("Hel", ModelErrorKind::IncompleteStream));
    }
}

// L-16 to L-19: unit tests cover the classes. This test covers their way through HTTP.
#[tokio::test]
async fn a_refusal_keeps_status_words_and_wait() {
    let headers = [("content-type", "application/json"), ("retry-after", "2"), ("retry-after-ms", "1500")];
    let body = format!(r#"{{"error":{{"message":"slow down, {CANARY}","code":"rate_limit_exceeded"}}}}"#);
    let answer = Answer::new(429, &headers, vec![Step::Send(body.into_bytes())]);
    let error = outcome(answer).await.end.unwrap_err();
    assert_eq!((error.kind, error.status, error.retry_after_ms), (ModelErrorKind::RateLimit, Some(429), Some(1_500)));
    assert_eq!(error.message, "slow down, [redacted]");

    let page = "<html>".to_owned() + &"x".repeat(200_000);
    let error = outcome(Answer::new(502, &[("content-type", "text/html")], vec![Step::Send(page.into_bytes()), Step::Hang])).await;
    let error = error.end.unwrap_err();
    assert_eq!((error.kind, error.message.as_str()), (ModelErrorKind::Unavailable, "the provider answered with 502 Bad Gateway"));
}

#[tokio::test]
async fn a_refusal_without_the_end_of_its_body_is_still_that_refusal() {
    let refusal = || Answer::new(401, &[], vec![Step::Send(b"{\"error\":".to_vec()), Step::Hang]);
    let wire = Wire::play(vec![refusal()]).await;
    let mut with_limit = options(&wire);
    with_limit.limits.first_byte = Duration::from_millis(200);
    assert_eq!(ask(with_limit, question()).await.error(), ModelErrorKind::Auth);
    let wire = Wire::play(vec![refusal()]).await;
    let listed = openai::client(options(&wire), Quirks::default()).unwrap().list_models(Duration::from_millis(200)).await;
    assert_eq!(listed.unwrap_err().kind, ModelErrorKind::Auth);
}

// L-41
#[rstest]
#[case("http://169.254.169.254/latest")]
#[case("OTHER")]
#[case("/v1/elsewhere")]
#[tokio::test]
async fn redirects_are_refused_and_the_key_stays(#[case] location: &str) {
    let other = Wire::play(vec![Answer::json(200, "{}")]).await;
    let location = location.replace("OTHER", &other.base_url);
    for status in [301, 302, 307, 308] {
        let wire = Wire::play(vec![Answer::new(status, &[("location", &location)], vec![])]).await;
        let error = ask(options(&wire), question()).await.end.unwrap_err();
        assert_eq!((error.kind, error.status), (ModelErrorKind::InvalidRequest, Some(status)));
        assert!(error.message.contains("redirect"), "{error}");
        assert_eq!(wire.asked().len(), 1);
    }
    assert!(other.asked().is_empty());
}

#[test]
fn unusable_settings_are_named() {
    for (options, words) in [
        (ClientOptions::new("localhost:1234"), "base URL"),
        (ClientOptions { api_key: Some("a\nb".into()), ..ClientOptions::new("http://localhost/v1") }, "authorization"),
        (ClientOptions { headers: vec![("x y".to_owned(), "z".into())], ..ClientOptions::new("http://localhost/v1") }, "x y"),
    ] {
        let error = openai::client(options, Quirks::default()).err().unwrap().to_string();
        assert!(error.contains(words), "{error}");
    }
}

// A provider that echoes a secret: in headers, within an answer, or at the length at which texts are truncated.
#[tokio::test]
async fn sent_secret_is_not_quoted() {
    let quote = |words: &str| json!({"error": {"message": words, "code": 401}}).to_string();
    let said = "Received=token-abc123, expected acme-prod-secret";
    let long = format!("{}token-abc123", "x ".repeat(245));
    let answers = vec![
        Answer::json(401, &quote(said)),
        Answer::json(200, &quote(said)),
        Answer::stream(format!("data: {}\n\n", quote(said))),
        Answer::new(401, &[], vec![Step::Send(said.as_bytes().to_vec())]),
        Answer::json(401, &quote(&long)),
    ];
    let count = answers.len();
    let wire = Wire::play(answers).await;
    let secret = |wire: &Wire| ClientOptions {
        api_key: Some("token-abc123".into()),
        headers: vec![("x-team".to_owned(), "acme-prod-secret".into())],
        ..options(wire)
    };
    let client = openai::client(secret(&wire), Quirks::default()).unwrap();
    for _ in 0..count {
        let error = ask_through(client.as_ref(), question()).await.end.unwrap_err();
        let hidden = error.message == "Received=[redacted], expected [redacted]" || error.message.ends_with("x [redacted]");
        assert!(hidden && error.kind == ModelErrorKind::Auth, "{error}");
    }
    let wire = Wire::play(vec![Answer::json(401, &quote(said))]).await;
    let listed = openai::client(secret(&wire), Quirks::default()).unwrap().list_models(Duration::from_secs(10)).await;
    assert_eq!(listed.unwrap_err().message, "Received=[redacted], expected [redacted]");
}

#[tokio::test]
async fn error_shows_the_model_that_was_asked_for() {
    let model = "prod-9f86d081884c7d659a2feaa0c55ad015";
    let body = json!({"error": {"message": format!("The model `{model}` does not exist. Key: {CANARY}")}}).to_string();
    let wire = Wire::play(vec![Answer::json(404, &body)]).await;
    let error = ask(options(&wire), capstan::domain::model::ModelRequest { model: model.to_owned(), ..question() }).await;
    let message = error.end.unwrap_err().message;
    assert!(message.contains(model) && !message.contains("canary"), "{message}");
}
