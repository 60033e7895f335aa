//! Servers behind redirects, firewalls, proxies and certificates that this machine does not trust.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{any, post};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use support::mcp::{Scripted, Tools, text};
use support::wait;

fn answer(request: &Value) -> Response {
    let result = match request["method"].as_str().unwrap_or_default() {
        "initialize" => json!({
            "protocolVersion": request["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "plain", "version": "1"},
        }),
        "tools/list" => json!({"tools": [{"name": "pay", "inputSchema": {"type": "object"}}]}),
        "tools/call" => json!({"content": [{"type": "text", "text": "paid"}]}),
        _ => return StatusCode::ACCEPTED.into_response(),
    };
    Json(json!({"jsonrpc": "2.0", "id": request["id"], "result": result})).into_response()
}

/// Serves an application until the returned tasks are dropped. Returns also its origin.
async fn serve(app: axum::Router) -> (String, JoinSet<std::io::Result<()>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let mut serving = JoinSet::new();
    serving.spawn(async move { axum::serve(listener, app).await });
    (origin, serving)
}

async fn error_of(entry: Value) -> String {
    let tools = Tools::new(&json!({"s": entry})).await;
    let status = tools.status("s").await;
    tools.shutdown().await;
    status.error.clone().unwrap_or_else(|| panic!("{status:?}"))
}

/// As of a framework that adds the slash at the end of a path.
#[tokio::test(flavor = "multi_thread")]
async fn redirect_within_origin_is_followed_with_its_headers() {
    let agents = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&agents);
    let handler = move |headers: HeaderMap, Json(request): Json<Value>| async move {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        seen.lock().unwrap().push((text(header::AUTHORIZATION), text(header::USER_AGENT)));
        answer(&request)
    };
    let app = axum::Router::new().route("/mcp", any(|| async { Redirect::temporary("/mcp/") })).route("/mcp/", post(handler));
    let (origin, _serving) = serve(app).await;
    let entry = json!({"url": format!("{origin}/mcp"), "headers": {"Authorization": "Bearer hunter2hunter2"}});
    let tools = Tools::new(&json!({"bank": entry})).await;
    assert_eq!(text(&tools.call("bank__pay", json!({})).await), "paid");
    tools.shutdown().await;
    let expected = ("Bearer hunter2hunter2".to_owned(), concat!("capstan/", env!("CARGO_PKG_VERSION")).to_owned());
    let agents = agents.lock().unwrap();
    assert!(agents.len() >= 3 && agents.iter().all(|seen| *seen == expected), "{agents:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn redirect_to_another_origin_is_named_in_the_error() {
    let app = axum::Router::new().fallback(|| async { Redirect::permanent("https://login.example/sso?state=canary") });
    let (origin, _serving) = serve(app).await;
    let error = error_of(json!({"url": format!("{origin}/mcp")})).await;
    assert!(error.contains("308") && error.contains("https://login.example/sso") && !error.contains("canary"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_server_is_reported_with_its_cause() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = error_of(json!({"url": format!("http://{closed}/mcp")})).await;
    assert!(error.contains("Connection refused"), "{error}");
    let error = error_of(json!({"url": "http://no-such-host.invalid/mcp"})).await;
    assert!(error.contains("dns error") || error.contains("lookup"), "{error}");
    // A server without TLS where TLS is expected.
    let (origin, _serving) = serve(axum::Router::new()).await;
    let error = error_of(json!({"url": origin.replace("http:", "https:")})).await;
    assert!(error.to_lowercase().contains("tls") || error.contains("corrupt message"), "{error}");
}

/// Variables of a company's network reach the programs, and the login of its proxy does not.
#[tokio::test(flavor = "multi_thread")]
async fn child_gets_proxy_and_certificate_variables_without_login() {
    let server = Scripted::default();
    let tools = Tools::in_environment(&json!({"s": server.entry(&[])}), |name| match name {
        "HTTPS_PROXY" => Some("http://ann:canary@proxy.example:3128".to_owned()),
        "no_proxy" => Some("localhost,.example".to_owned()),
        "SSL_CERT_FILE" | "NODE_EXTRA_CA_CERTS" => Some("/etc/ca.pem".to_owned()),
        "PATH" => Some("/usr/local/bin:/usr/bin:/bin".to_owned()),
        _ => None,
    })
    .await;
    let seen = wait::within("the call", Duration::from_secs(30), tools.call("s__environment", json!({}))).await;
    let seen: Value = serde_json::from_str(&text(&seen)).unwrap();
    assert_eq!(seen["HTTPS_PROXY"], "http://proxy.example:3128");
    assert_eq!((&seen["no_proxy"], &seen["SSL_CERT_FILE"]), (&json!("localhost,.example"), &json!("/etc/ca.pem")));
    assert_eq!(seen["NODE_EXTRA_CA_CERTS"], "/etc/ca.pem");
    tools.shutdown().await;
}
