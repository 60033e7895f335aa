//! Refused requests, each with its documented problem.

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use bytes::Bytes;
use capstan::domain::problem::ProblemCode;
use capstan::http::HttpLimits;
use futures_util::stream;
use serde_json::json;
use tokio::io::AsyncReadExt as _;

use super::rig::{Keys, Rig, new_conversation_id};

async fn post(rig: &Rig, content_type: &str, body: impl Into<Body>) -> (StatusCode, serde_json::Value) {
    let request = Request::post("/api/v1/runs").header("content-type", content_type).body(body.into()).unwrap();
    let response = tokio::time::timeout(super::rig::SOON, rig.raw(request)).await.expect("it is answered");
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}

async fn post_encoded(rig: &Rig, encoding: &str, body: Vec<u8>) -> (StatusCode, serde_json::Value) {
    let request = Request::post("/api/v1/runs").header("content-type", "application/json").header("content-encoding", encoding);
    let response = rig.raw(request.body(body.into()).unwrap()).await;
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}

async fn gzip(text: &[u8]) -> Vec<u8> {
    let mut compressed = Vec::new();
    async_compression::tokio::bufread::GzipEncoder::new(text).read_to_end(&mut compressed).await.unwrap();
    compressed
}

#[tokio::test]
async fn gzip_request_body_is_decoded() {
    let rig = Rig::new().await;
    for encoding in ["gzip", "GZIP", "x-gzip"] {
        let (status, answer) = post_encoded(&rig, encoding, gzip(br#"{"input":"compressed"}"#).await).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{encoding}: {answer}");
        assert_eq!(answer["message"]["parts"][0]["text"], "compressed");
    }
    let (status, answer) = post_encoded(&rig, "identity", br#"{"input":"plain"}"#.to_vec()).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
}

#[tokio::test]
async fn unsupported_or_damaged_encoding_is_refused() {
    let rig = Rig::new().await;
    for encoding in ["deflate", "br", "zstd", "gzip, br", "GZ\u{fc}"] {
        let (status, answer) = post_encoded(&rig, encoding, br#"{"input":"a"}"#.to_vec()).await;
        assert_eq!((status, &answer["code"]), (StatusCode::UNSUPPORTED_MEDIA_TYPE, &json!("unsupported_media_type")), "{answer}");
        assert!(answer["detail"].as_str().unwrap().contains("content-encoding"), "{answer}");
    }
    let (status, answer) = post_encoded(&rig, "gzip", br#"{"input":"a"}"#.to_vec()).await;
    assert_eq!((status, &answer["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_request")), "{answer}");
}

#[tokio::test]
async fn limit_of_bodies_counts_decoded_bytes() {
    let rig = Rig::new().await;
    let text = format!(r#"{{"input":"{}"}}"#, "a".repeat(HttpLimits::default().max_body_bytes));
    let bomb = gzip(text.as_bytes()).await;
    assert!(bomb.len() < 100_000, "{}", bomb.len());
    let (status, answer) = post_encoded(&rig, "gzip", bomb).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{answer}");
}

#[tokio::test]
async fn request_body_with_lone_surrogate_or_bom_is_accepted() {
    let rig = Rig::new().await;
    for (body, text) in [
        (r#"{"input":"cut \ud83d"}"#, "cut \u{fffd}"),
        (r#"{"input":"\ude00 and \ud83d\ude00"}"#, "\u{fffd} and \u{1f600}"),
        ("\u{feff}{\"input\":\"marked\"}", "marked"),
    ] {
        let (status, answer) = post(&rig, "application/json", body).await;
        assert_eq!((status, &answer["message"]["parts"][0]["text"]), (StatusCode::ACCEPTED, &json!(text)), "{answer}");
    }
}

#[tokio::test]
async fn request_body_that_is_not_utf8_is_refused() {
    let rig = Rig::new().await;
    let (status, answer) = post(&rig, "application/json", b"{\"input\":\"gr\xfcn\"}".to_vec()).await;
    assert_eq!((status, &answer["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_request")), "{answer}");
    assert_eq!(answer["detail"], "the body is not UTF-8 from byte 12 on: encode the body as UTF-8");
}

#[tokio::test]
async fn body_error_names_its_place() {
    let rig = Rig::new().await;
    let nested = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let long_model = json!({ "input": "a", "model": format!("demo/{}", "é".repeat(196)) }).to_string();
    let cases = [
        ("{", "", "EOF"),
        ("", "", "EOF"),
        (r#"["a",null,null,null,null,null]"#, "", "object"),
        (r#"{"input":1}"#, "/input", "a string or a list of parts"),
        (r#"{"input":"a","more":1}"#, "/more", "unknown field"),
        (r#"{"input":"a","input":"b"}"#, "", "duplicate"),
        (r#"{"input":"a"} x"#, "", "not JSON"),
        (r#"{"input":""}"#, "/input", "empty"),
        (r#"{"input":" \n"}"#, "/input", "empty"),
        (r#"{"input":[]}"#, "/input", "empty"),
        (r#"{"input":[{"type":"text","text":"a"},{"type":"video"}]}"#, "/input/1/type", "unknown variant"),
        (r#"{"input":[{"type":"text","text":"a","x":1}]}"#, "/input/0", "unknown field"),
        (r#"{"input":[{"type":"image","media_type":"image/png","url":"file:///etc/passwd"}]}"#, "/input/0/url", "https:"),
        (r#"{"input":[{"type":"image","media_type":"text/html","url":"https://a/"}]}"#, "/input/0/media_type", "not a picture"),
        (
            r#"{"input":[{"type":"image","media_type":"image/png","url":"data:image/png;base64,AAAA"}]}"#,
            "/input/0/url",
            "in base64",
        ),
        (r#"{"input":[{"type":"image","media_type":"image/png","url":"data:image/png,x"}]}"#, "/input/0/url", "in base64"),
        (
            r#"{"input":[{"type":"image","media_type":"image/png","url":"data:image/png;base64,iVBORw0KGgo="}]}"#,
            "/input/0/url",
            "complete PNG",
        ),
        (r#"{"input":[{"type":"file","media_type":"png","url":"https://a/"}]}"#, "/input/0/media_type", "media type"),
        (r#"{"input":"a","conversation_id":"conv_1"}"#, "/conversation_id", "expected conv_"),
        (r#"{"input":"a","on_busy":"explode"}"#, "/on_busy", "unknown variant"),
        (r#"{"input":"a","agent":"nobody"}"#, "/agent", "no agent"),
        (r#"{"input":"a","model":"demo/\u0000"}"#, "/model", "control characters"),
        (r#"{"input":"a","model":""}"#, "/model", "1 to 200 characters"),
        (long_model.as_str(), "/model", "1 to 200 characters"),
        (r#"{"input":"a","options":{"temperature":3}}"#, "/options/temperature", "between 0 and 2"),
        (r#"{"input":"a","options":{"temperature":1e400}}"#, "/options/temperature", "number out of range"),
        (r#"{"input":"a","options":{"heat":3}}"#, "/options/heat", "unknown field"),
        (nested.as_str(), "", ""),
        ("{\"input\":\"\u{1}\"}", "/input", "control character"),
    ];
    for (body, pointer, detail) in cases {
        let (status, problem) = post(&rig, "application/json", body.to_owned()).await;
        let shown: String = body.chars().take(80).collect();
        assert_eq!((status, problem["code"].as_str()), (StatusCode::BAD_REQUEST, Some("invalid_request")), "{shown}");
        let error = &problem["errors"][0];
        assert_eq!(error["pointer"], pointer, "{shown}: {problem}");
        assert!(error["detail"].as_str().unwrap().contains(detail), "{shown}: {problem}");
    }
    let (_, problem) = post(&rig, "application/json", r#"{"input":"a","model":"openai/gpt"}"#).await;
    assert_eq!(problem["code"], "unknown_model");
    let long = json!({ "input": "é".repeat(100_001) }).to_string();
    let (_, problem) = post(&rig, "application/json", long).await;
    assert!(problem["detail"].as_str().unwrap().contains("100001 characters; at most 100000"), "{problem}");
    let fits = json!({ "input": "é".repeat(100_000) }).to_string();
    assert_eq!(post(&rig, "application/json; charset=utf-8", fits).await.0, StatusCode::ACCEPTED);
    // Invalid UTF-8.
    let (status, _) = post(&rig, "application/json", Bytes::from_static(b"{\"input\":\"\xff\"}")).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn error_outside_the_body_has_no_body_place() {
    let rig = Rig::new().await;
    let (conversation, run) = rig.start("hello").await;
    for path in [
        "/api/v1/conversations".to_owned(),
        format!("/api/v1/conversations/{conversation}/messages"),
        format!("/api/v1/runs/{run}/events"),
    ] {
        for query in ["limit=0", "limit=x"] {
            let problem = rig.get(&format!("{path}?{query}")).await.json();
            let detail = problem["detail"].as_str().unwrap();
            assert!(problem["code"] == "invalid_request" && detail.starts_with("the query"), "{path} {problem}");
            assert_eq!(problem.get("errors"), None, "{problem}");
        }
    }
    let key = "x".repeat(256);
    let reply = rig.send(Method::POST, "/api/v1/runs", &[("idempotency-key", &key)], Some(json!({"input": "a"}))).await;
    assert!(reply.json()["detail"].as_str().unwrap().starts_with("the Idempotency-Key header"), "{}", reply.body);
}

/// W-20.
#[tokio::test]
async fn bodies_are_bounded_in_kind_size_and_time() {
    let limits = HttpLimits { body_timeout: std::time::Duration::from_millis(50), ..HttpLimits::default() };
    let rig = Rig::with(limits, |_| {}, Keys::None).await;
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx"] {
        let (status, problem) = post(&rig, content_type, r#"{"input":"a"}"#).await;
        assert_eq!((status.as_u16(), problem["code"].as_str()), (415, Some("unsupported_media_type")));
    }
    let (status, problem) = post(&rig, "application/json", vec![b' '; 10 * 1024 * 1024]).await;
    assert_eq!((status.as_u16(), problem["code"].as_str()), (413, Some("payload_too_large")));
    // Without a content length, and without an end.
    let endless = stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[b' '; 4096])));
    assert_eq!(post(&rig, "application/json", Body::from_stream(endless)).await.0.as_u16(), 413);
    let (status, problem) =
        post(&rig, "application/json", Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>())).await;
    assert_eq!((status.as_u16(), problem["code"].as_str()), (408, Some("request_timeout")));
    let broken = stream::iter([Ok(Bytes::from_static(b"{")), Err(std::io::Error::other("gone"))]);
    assert_eq!(post(&rig, "application/json", Body::from_stream(broken)).await.0.as_u16(), 400);
}

#[tokio::test]
async fn paths_methods_and_media_types_that_do_not_exist() {
    let rig = Rig::new().await;
    for path in ["/nothing", "/api/v1/nothing", "/api/v1/runs/", "/api/v2/runs", "/api/v1/webhooks", "/docs/errors/nothing"] {
        assert_eq!(rig.get(path).await.code(), "not_found", "{path}");
    }
    let ids = ["run_1", "x", "%ff", "run_%00", "..%2f..%2fetc", "conv_01980000000070008000000000000001"];
    for id in ids {
        for path in [format!("/api/v1/runs/{id}"), format!("/api/v1/runs/{id}/events")] {
            assert_eq!(rig.get(&path).await.code(), "not_found", "{path}");
        }
    }
    let missing = new_conversation_id();
    for path in ["", "/messages", "/events", "/runs"] {
        assert_eq!(rig.get(&format!("/api/v1/conversations/{missing}{path}")).await.code(), "not_found");
    }
    let reply = rig.send(Method::DELETE, "/api/v1/runs", &[], None).await;
    assert_eq!((reply.code().as_str(), reply.header("allow")), ("method_not_allowed", "POST,GET,HEAD"));
    let reply = rig.send(Method::POST, "/api/v1/runs", &[("accept", "image/png")], Some(json!({"input": "a"}))).await;
    assert_eq!(reply.code(), "not_acceptable");
    let accept = [("accept", "text/html, application/json;q=0.5, text/event-stream;q=0.1")];
    assert_eq!(rig.send(Method::POST, "/api/v1/runs", &accept, Some(json!({"input": "a"}))).await.status, StatusCode::ACCEPTED);
}

#[tokio::test]
async fn request_ids_are_kept_if_they_are_harmless() {
    let rig = Rig::new().await;
    let sent = |id: &'static str| {
        let rig = &rig;
        async move { rig.send(Method::GET, "/healthz", &[("x-request-id", id)], None).await.header("x-request-id").to_owned() }
    };
    assert_eq!(sent("abc-1.2_3").await, "abc-1.2_3");
    assert!(sent("a b").await.starts_with("req_"));
    let long: &'static str = Box::leak("x".repeat(65).into_boxed_str());
    assert!(sent(long).await.starts_with("req_"));
}

#[tokio::test]
async fn a_loopback_server_answers_for_its_own_names_only() {
    let rig = Rig::with(
        HttpLimits::default(),
        |options| options.allowed_hosts = Some(capstan::http::HttpOptions::loopback_hosts()),
        Keys::None,
    )
    .await;
    for (host, status) in [
        ("localhost", 200),
        ("LOCALHOST:8080", 200),
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example:80", 421),
    ] {
        for path in ["/healthz", "/metrics", "/api/v1/tools", "/docs/"] {
            let request = Request::get(path).header("host", host).body(Body::empty()).unwrap();
            assert_eq!(rig.raw(request).await.status().as_u16(), status, "{host} {path}");
        }
    }
    // A request without a Host header.
    let request = Request::get("/healthz").body(Body::empty()).unwrap();
    assert_eq!(rig.raw(request).await.status().as_u16(), 421);
}

#[tokio::test]
async fn every_code_has_a_page() {
    let rig = Rig::new().await;
    for code in ProblemCode::ALL {
        let page = rig.get(&code.body("").type_uri).await;
        assert!(
            page.status.is_success() && page.body.starts_with(&format!("# {}", code.as_str())),
            "{}: {}",
            code.as_str(),
            page.body
        );
    }
    let docs = rig.get("/docs/").await;
    assert!(docs.status.is_success() && docs.body.contains("swagger"));
    assert!(rig.get("/docs/swagger-initializer.js").await.body.contains("/openapi.json"));
}
