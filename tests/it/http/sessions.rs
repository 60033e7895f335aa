//! The caller's account, and browsers that sign in with a key.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use capstan::http::HttpLimits;
use capstan::service::hash_key;
use serde_json::{Value, json};

use super::rig::{Keys, Reply, Rig};
use super::sockets::{connect, connect_with};
use support::wait::until;

/// Sends a request as a browser: without a key, but with this cookie and origin.
async fn browse(rig: &Rig, method: Method, path: &str, cookie: &str, origin: &str, body: Option<Value>) -> Reply {
    rig.send(method, path, &[("authorization", ""), ("cookie", cookie), ("origin", origin)], body).await
}

/// Signs in and returns the cookie with its attributes.
pub async fn sign_in(rig: &Rig, key: &str) -> String {
    let reply = browse(rig, Method::POST, "/api/v1/session", "", "http://localhost", Some(json!({"key": key}))).await;
    assert_eq!((reply.status, reply.body.as_str()), (StatusCode::NO_CONTENT, ""));
    reply.header("set-cookie").to_owned()
}

pub fn pair(cookie: &str) -> &str {
    cookie.split(';').next().unwrap()
}

#[tokio::test]
async fn signed_in_browser_needs_no_key() {
    let rig = Rig::with_keys().await;
    let key = rig.key.clone().unwrap();
    let cookie = sign_in(&rig, &key).await;
    assert!(
        cookie.starts_with("capstan_session=session_")
            && !cookie.contains(&key)
            && cookie.ends_with("; Path=/; Max-Age=2592000; HttpOnly; SameSite=Strict"),
        "{cookie}"
    );
    let cookie = pair(&cookie);
    let me = browse(&rig, Method::GET, "/api/v1/me", cookie, "", None).await.json();
    assert_eq!((&me["name"], &me["role"], &me["keys"], &me["groups"]), (&json!("ann"), &json!("member"), &json!(true), &json!([])));
    for (origin, status) in
        [("http://localhost", 202), ("", 202), ("http://localhost:1", 403), ("http://evil.example", 403), ("null", 403)]
    {
        let reply = browse(&rig, Method::POST, "/api/v1/runs", cookie, origin, Some(json!({"input": "hello"}))).await;
        assert_eq!(reply.status.as_u16(), status, "{origin}");
    }
    // A page of another port of this host.
    let headers = [("authorization", ""), ("cookie", cookie), ("sec-fetch-site", "same-site")];
    let reply = rig.send(Method::POST, "/api/v1/runs", &headers, Some(json!({"input": "hello"}))).await;
    assert_eq!((reply.status, reply.code().as_str()), (StatusCode::FORBIDDEN, "forbidden"));

    // A key in the header counts first.
    let headers = [("authorization", "Bearer cap_wrong"), ("cookie", cookie)];
    assert_eq!(rig.send(Method::GET, "/api/v1/me", &headers, None).await.status, StatusCode::UNAUTHORIZED);

    let out = browse(&rig, Method::DELETE, "/api/v1/session", cookie, "http://localhost", None).await;
    assert_eq!(out.status, StatusCode::NO_CONTENT);
    assert!(out.header("set-cookie").starts_with("capstan_session=; Path=/; Max-Age=0;"), "{}", out.header("set-cookie"));
    // A copy of the cookie is worth nothing any more, and neither is one of another server.
    assert_eq!(browse(&rig, Method::GET, "/api/v1/me", cookie, "", None).await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(rig.get("/api/v1/me").await.status, StatusCode::OK, "the key is still valid");
    assert_eq!(browse(&rig, Method::GET, "/api/v1/me", "", "", None).await.status, StatusCode::UNAUTHORIZED);
    let other = Rig::with_keys().await;
    assert_eq!(browse(&other, Method::GET, "/api/v1/me", cookie, "", None).await.status, StatusCode::UNAUTHORIZED);
}

/// The page of the server needs nothing but its cookie. Pages of other origins, whose requests have the same cookie in browsers that
/// do not know `SameSite`, open a socket without a user, and cannot read a response.
#[tokio::test]
async fn session_opens_sockets_and_answers_for_its_own_pages_only() {
    let options = |options: &mut capstan::http::HttpOptions| options.cors_origins = vec!["https://app.example".to_owned()];
    let mut rig = Rig::with(HttpLimits::default(), options, Keys::One).await;
    let address = rig.listen().await;
    let key = rig.key.clone().unwrap();
    let cookie = sign_in(&rig, &key).await;
    let cookie = pair(&cookie);
    let own = format!("http://{address}");
    for headers in [&[("origin", own.as_str())][..], &[], &[("origin", own.as_str()), ("sec-fetch-site", "same-origin")]] {
        let headers: Vec<_> = headers.iter().copied().chain([("cookie", cookie)]).collect();
        let mut page = connect(&address, &headers).await.unwrap();
        let followed = page.call("subscribe", json!({"scope": "owner"})).await;
        assert!(followed["result"].is_object(), "{headers:?} {followed}");
    }
    let port = format!("http://{}:1", address.split(':').next().unwrap());
    let foreign = ["http://evil.example", "https://app.example", "null", "http://localhost", port.as_str()];
    for headers in foreign
        .map(|origin| vec![("origin", origin)])
        .into_iter()
        .chain([vec![("origin", own.as_str()), ("sec-fetch-site", "same-site")]])
    {
        let headers: Vec<_> = headers.into_iter().chain([("cookie", cookie)]).collect();
        let mut page = connect(&address, &headers).await.unwrap();
        page.send(r#"{"id":1,"method":"subscribe","params":{"scope":"owner"}}"#).await;
        assert_eq!(page.next().await, Err(4401), "{headers:?}");
    }

    // A cookie is no permission to read for the pages that may use keys.
    for path in ["/api/v1/me", "/api/v1/conversations", "/api/v1/keys"] {
        for origin in foreign {
            let reply = browse(&rig, Method::GET, path, cookie, origin, None).await;
            let is_readable = origin == "https://app.example";
            assert_eq!(reply.header("access-control-allow-origin"), if is_readable { origin } else { "" }, "{path}");
            assert_eq!(reply.header("access-control-allow-credentials"), "", "{path} {origin}");
        }
    }
}

#[tokio::test]
async fn wrong_keys_and_foreign_pages_are_not_signed_in() {
    let rig = Rig::with_keys().await;
    let key = rig.key.clone().unwrap();
    for (wanted, origin, status) in [
        ("cap_wrong", "http://localhost", 401),
        ("", "http://localhost", 401),
        ("a;b", "http://localhost", 401),
        (key.as_str(), "http://evil.example", 403),
        (key.as_str(), "http://localhost:1", 403),
    ] {
        let reply = browse(&rig, Method::POST, "/api/v1/session", "", origin, Some(json!({"key": wanted}))).await;
        assert_eq!(reply.status.as_u16(), status, "{wanted} {origin}");
        assert!(!reply.headers.contains_key("set-cookie"));
    }
    // The key itself is no session.
    for cookie in ["capstan_session=", "capstan_session=cap_wrong", &format!("capstan_session={key}"), "other=1"] {
        assert_eq!(browse(&rig, Method::GET, "/api/v1/me", cookie, "", None).await.status, StatusCode::UNAUTHORIZED, "{cookie}");
    }
}

#[tokio::test]
async fn revoked_key_ends_its_sessions_and_no_others() {
    let rig = Rig::with_keys().await;
    let (ann, bob) = (rig.key.clone().unwrap(), rig.user("bob").await);
    let cookies = [sign_in(&rig, &ann).await, sign_in(&rig, &ann).await, sign_in(&rig, &bob).await];
    assert_ne!(pair(&cookies[0]), pair(&cookies[1]));
    let status = async |cookie: &String| browse(&rig, Method::GET, "/api/v1/me", pair(cookie), "", None).await.status;
    browse(&rig, Method::DELETE, "/api/v1/session", pair(&cookies[0]), "http://localhost", None).await;
    assert_eq!((status(&cookies[0]).await, status(&cookies[1]).await), (StatusCode::UNAUTHORIZED, StatusCode::OK));
    let keys = rig.store.keys().await.unwrap();
    let of_ann = keys.iter().find(|key| key.user.name == "ann").unwrap();
    assert!(rig.store.revoke_key(&of_ann.id, capstan::support::clock::UnixMillis(1)).await.unwrap());
    until("the session to end", Duration::from_secs(15), || async {
        (status(&cookies[1]).await == StatusCode::UNAUTHORIZED).then_some(())
    })
    .await;
    assert_eq!(status(&cookies[2]).await, StatusCode::OK);
}

#[tokio::test]
async fn end_of_a_session_closes_what_it_opened() {
    let mut rig = Rig::with_keys().await;
    let address = rig.listen().await;
    let key = rig.key.clone().unwrap();
    let cookies = [sign_in(&rig, &key).await, sign_in(&rig, &key).await, sign_in(&rig, &key).await];
    let origin = "http://localhost";
    let ticket = async || {
        let body = Some(json!({"socket": true}));
        let reply = browse(&rig, Method::POST, "/api/v1/stream-tickets", pair(&cookies[0]), origin, body).await;
        reply.json()["ticket"].as_str().unwrap().to_owned()
    };
    let (used, unused) = (ticket().await, ticket().await);
    let by_ticket = async |ticket: &str| connect_with(&address, &format!("?ticket={ticket}"), &[("origin", origin)]).await.unwrap();
    let mut sockets = Vec::new();
    for cookie in &cookies {
        sockets.push(connect(&address, &[("cookie", pair(cookie))]).await.unwrap());
    }
    sockets.push(by_ticket(&used).await);
    for socket in &mut sockets {
        let followed = socket.call("subscribe", json!({"scope": "owner"})).await;
        assert!(followed["result"].is_object(), "{followed}");
    }

    // By a sign-out of this process.
    browse(&rig, Method::DELETE, "/api/v1/session", pair(&cookies[0]), origin, None).await;
    assert_eq!((sockets[0].next().await, sockets[3].next().await), (Err(4401), Err(4401)));
    assert_eq!(by_ticket(&unused).await.next().await, Err(4401), "a ticket is valid no longer than its session");

    // By one of another process.
    let token = pair(&cookies[1]).split_once('=').unwrap().1;
    rig.store.delete_session(&hash_key(token)).await.unwrap();
    assert_eq!(sockets[1].next().await, Err(4401));
    // Other sessions of the key stay open.
    assert!(sockets[2].call("ping", json!({})).await["result"].is_object());
}

#[tokio::test]
async fn session_of_server_with_tls_is_bound_to_its_host() {
    let options = |options: &mut capstan::http::HttpOptions| options.public_url = Some("https://localhost".to_owned());
    let rig = Rig::with(HttpLimits::default(), options, Keys::One).await;
    let key = rig.key.clone().unwrap();
    let cookie = sign_in(&rig, &key).await;
    assert!(cookie.starts_with("__Host-capstan_session=") && cookie.ends_with("; Secure"), "{cookie}");
    assert_eq!(browse(&rig, Method::GET, "/api/v1/me", pair(&cookie), "", None).await.status, StatusCode::OK);
    // Another application of the host, under another path, does not receive the cookie.
    let options = |options: &mut capstan::http::HttpOptions| options.public_url = Some("https://localhost/capstan/".to_owned());
    let under_path = Rig::with(HttpLimits::default(), options, Keys::One).await;
    let below = sign_in(&under_path, &under_path.key.clone().unwrap()).await;
    assert!(
        below.starts_with("__Secure-capstan_session=") && below.contains("; Path=/capstan; ") && below.ends_with("; Secure"),
        "{below}"
    );
    assert_eq!(browse(&under_path, Method::GET, "/api/v1/me", pair(&below), "", None).await.status, StatusCode::OK);
    let plain = pair(&cookie).replace("__Host-", "");
    assert_eq!(browse(&rig, Method::GET, "/api/v1/me", &plain, "", None).await.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn server_without_keys_needs_no_session() {
    let rig = Rig::new().await;
    let me = rig.get("/api/v1/me").await.json();
    assert_eq!((&me["name"], &me["role"], &me["keys"]), (&json!("local"), &json!("admin"), &json!(false)));
    let reply = browse(&rig, Method::POST, "/api/v1/session", "", "http://localhost", Some(json!({"key": "any"}))).await;
    assert_eq!((reply.status, reply.headers.contains_key("set-cookie")), (StatusCode::NO_CONTENT, false));
}

#[tokio::test]
async fn default_model_is_used_until_its_provider_is_gone() {
    let rig = Rig::with_keys().await;
    let model_of = async |headers: &[(&str, &str)]| {
        let reply = rig.send(Method::POST, "/api/v1/runs", headers, Some(json!({"input": "hello"}))).await;
        assert_eq!(reply.status, StatusCode::ACCEPTED, "{}", reply.body);
        reply.json()["run"]["model"].clone()
    };
    let choose = async |model: Value| rig.send(Method::PATCH, "/api/v1/me", &[], Some(json!({"default_model": model}))).await;
    assert_eq!(model_of(&[]).await, "demo/demo");
    let refused = choose(json!("acme/one")).await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (400, "unknown_model"));
    assert_eq!(choose(json!("a".repeat(201))).await.json()["errors"][0]["pointer"], "/default_model");

    let provider = rig
        .post(
            "/api/v1/providers",
            json!({"name": "acme", "kind": "openai", "base_url": "https://api.example/v1", "key": "sk-canary-0123456789-wxyz"}),
        )
        .await
        .json();
    let me = choose(json!("acme/one")).await.json();
    assert_eq!((&me["default_model"], &me["model"]), (&json!("acme/one"), &json!("acme/one")));
    assert_eq!(rig.get("/api/v1/me").await.json(), me);
    assert_eq!(model_of(&[]).await, "acme/one");
    let other = format!("Bearer {}", rig.user("bob").await);
    assert_eq!(model_of(&[("authorization", &other)]).await, "demo/demo", "the choice of another user");
    let named = rig.post("/api/v1/runs", json!({"input": "hello", "model": "demo/demo"})).await.json();
    assert_eq!(named["run"]["model"], "demo/demo");

    let path = format!("/api/v1/providers/{}", provider["id"].as_str().unwrap());
    assert_eq!(rig.send(Method::DELETE, &path, &[], None).await.status, StatusCode::NO_CONTENT);
    assert_eq!(model_of(&[]).await, "demo/demo");
    let me = rig.get("/api/v1/me").await.json();
    assert_eq!((&me["default_model"], &me["model"]), (&json!("acme/one"), &json!("demo/demo")));
    assert_eq!(choose(Value::Null).await.json().get("default_model"), None);
}
