//! OAuth logins at MCP servers, from the 401 to the tool call, and logins that must fail.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Method, Url};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::Notify;

use support::audit;
use support::database::Kind;
use support::model::ModelMock;
use support::oauth::Guarded;
use support::server::{Server, Site};
use support::wait;

const MASTER: &str = "a master key of some length";

async fn site(kind: Kind, model: &ModelMock) -> Site {
    let site = Site::new(kind).await.with_model(model).env("CAPSTAN_SECRET_KEY", MASTER);
    site.env("CAPSTAN_OUTBOUND__ALLOW_PRIVATE", "true")
}

/// Starts a server with ann's key and returns the key.
async fn start(site: &Site) -> (String, Server) {
    let ann = site.key_of("ann").await;
    let mut server = site.start().await;
    server.set_key(&ann);
    (ann, server)
}

/// Creates a user server and waits until it reports that it needs a login.
async fn keep(server: &Server, url: &str) -> String {
    let entry = json!({"url": url, "capstan": {"concurrency": 20, "replay": {"pay": "read"}}});
    let (status, made) = server.post_json("/mcp-servers", &json!({"name": "bank", "entry": entry})).await;
    assert_eq!(status, 201, "{made}");
    assert_eq!((&made["status"]["state"], &made["status"]["auth"]), (&json!("error"), &json!("needed")), "{made}");
    let id = made["id"].as_str().unwrap().to_owned();
    assert!(made["status"]["error"].as_str().unwrap().contains(&format!("POST /api/v1/mcp-servers/{id}/login")), "{made}");
    id
}

/// Begins a login. Returns the URL of the authorization page and the browser's cookie.
async fn begin(server: &Server, id: &str) -> (String, String) {
    let answer = server.post(&format!("/mcp-servers/{id}/login"), &json!({})).send().await.unwrap();
    assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
    let cookie = answer.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax"), "{cookie}");
    let url = answer.json::<Value>().await.unwrap()["url"].as_str().unwrap().to_owned();
    (url, cookie.split(';').next().unwrap().to_owned())
}

/// Follows the redirect as a browser does. Returns status and body.
async fn come_back(server: &Server, back: &str, cookie: &str) -> (u16, Value) {
    let answer = server.client.get(back).header("cookie", cookie).send().await.unwrap();
    let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

async fn log_in(server: &Server, bank: &Guarded, id: &str) -> Value {
    let (url, cookie) = begin(server, id).await;
    let (status, shown) = come_back(server, &bank.agree(&url).await, &cookie).await;
    assert_eq!(status, 200, "{shown}");
    assert_eq!((&shown["status"]["state"], &shown["status"]["auth"]), (&json!("ok"), &json!("ok")), "{shown}");
    shown
}

/// Starts a run that makes `times` calls at once. Returns whether each call was paid for.
async fn pay(server: &Server, times: usize) -> Vec<bool> {
    let calls: String = (0..times).map(|n| format!(r#"[[call:bank__pay {{"n":{n}}}]]"#)).collect();
    let run = server.start_run(&json!({"input": format!("[[id:pay]]{calls}[[next]][[text:1,0]]")})).await;
    let id = run["id"].as_str().unwrap();
    assert_eq!(server.finished(id).await["status"], "completed");
    let events = server.run_events_json(id).await;
    let done = events.iter().filter(|event| event["type"] == "tool.completed");
    done.map(|event| event["data"]["content"].to_string().contains("paid")).collect()
}

fn parameters(url: &str) -> HashMap<String, String> {
    Url::parse(url).unwrap().query_pairs().into_owned().collect()
}

/// M-24.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn last_until_they_are_revoked(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, bank) = (ModelMock::start().await, Guarded::start().await);
    let site = site(kind, &model).await;
    let (ann, bob) = (site.key_of("ann").await, site.key_of("bob").await);
    let mut server = site.start().await;
    server.set_key(&bob);
    let bobs = keep(&server, &bank.url).await;
    server.set_key(&ann);
    let id = keep(&server, &bank.url).await;

    // Another user's server looks missing.
    for method in [Method::POST, Method::DELETE] {
        let asked = server.request(method, &format!("/mcp-servers/{bobs}/login")).json(&json!({})).send().await.unwrap();
        assert_eq!(asked.status(), 404);
    }
    let (url, cookie) = begin(&server, &id).await;
    let asked = parameters(&url);
    assert_eq!((asked["scope"].as_str(), asked["resource"].as_str()), ("pay offline_access", bank.url.as_str()));
    assert_eq!(asked["redirect_uri"], format!("{}/api/v1/mcp-servers/callback", server.url));
    let back = bank.agree(&url).await;
    let (status, shown) = come_back(&server, &back, &cookie).await;
    assert_eq!((status, &shown["status"]["auth"]), (200, &json!("ok")), "{shown}");
    assert_eq!(come_back(&server, &back, &cookie).await.0, 400, "a callback works once");
    assert_eq!(pay(&server, 1).await, [true]);

    // The server rejects the token: of ten calls at once, one refreshes it.
    bank.book().expire();
    assert_eq!(pay(&server, 10).await, [true; 10]);
    let (refreshes, reused, _) = bank.counts();
    assert_eq!((refreshes, reused), (1, 0));

    // The login survives a restart. The token is refreshed when it is due, before the server rejects it.
    server.kill9().await;
    site.database.rows("UPDATE mcp_tokens SET fresh_until = 0 RETURNING server_id").await;
    let mut server = site.start().await;
    server.set_key(&ann);
    let (_, _, refused) = bank.counts();
    assert_eq!(pay(&server, 1).await, [true]);
    assert_eq!(bank.counts(), (2, 0, refused));
    assert_eq!(pay(&server, 1).await, [true]);
    assert_eq!(bank.book().refreshes, 2, "the token is fresh");

    // An authorization server that is down ends no login.
    bank.book().expire();
    bank.book().broken = Some(503);
    assert_eq!(pay(&server, 1).await, [false]);
    bank.book().broken = None;
    let mended = wait::until("the server to be back", Duration::from_secs(30), || async {
        let (_, started) = server.post_json(&format!("/mcp-servers/{id}/start"), &json!({})).await;
        (started["status"]["state"] == "ok").then_some(started)
    });
    assert_eq!(mended.await["status"]["auth"], "ok");
    assert_eq!(pay(&server, 1).await, [true]);

    // A token in a server's error text is redacted.
    let run = server.start_run(&json!({"input": "[[id:f]][[call:bank__fail {}]][[next]][[text:1,0]]"})).await;
    server.finished(run["id"].as_str().unwrap()).await;
    let told = json!(server.run_events_json(run["id"].as_str().unwrap()).await).to_string();
    assert!(told.contains("no money for [redacted]"), "{told}");

    bank.book().revoke();
    assert_eq!(pay(&server, 2).await, [false, false]);
    let shown = server.get_json(&format!("/mcp-servers/{id}")).await;
    assert_eq!((&shown["status"]["state"], &shown["status"]["auth"]), (&json!("error"), &json!("needed")), "{shown}");
    assert_eq!(site.database.rows("SELECT server_id FROM mcp_tokens").await.len(), 0);

    log_in(&server, &bank, &id).await;
    assert_eq!(pay(&server, 1).await, [true]);
    let stored = format!("{:?}", site.database.rows("SELECT server_id, key_data FROM mcp_tokens").await);
    assert!(stored.contains(&id) && !stored.contains("canary"), "{stored}");
    // Tokens for other servers do not count as a login here.
    assert_eq!(server.get_json("/mcp-servers").await["data"].as_array().unwrap().len(), 1);
    let forgotten = server.request(Method::DELETE, &format!("/mcp-servers/{id}/login")).send().await.unwrap();
    assert_eq!(forgotten.status(), 204);
    assert_eq!(site.database.rows("SELECT server_id FROM mcp_tokens").await.len(), 0);
    assert_eq!(pay(&server, 1).await, [false], "its tools are not offered");

    // A changed entry ends the login, too, if its URL differs.
    log_in(&server, &bank, &id).await;
    for (url, logins) in [(bank.url.clone(), 1), (format!("{}?other=1", bank.url), 0)] {
        let document = json!({"mcpServers": {"bank": {"url": url}}, "replace": true});
        let (status, report) = server.post_json("/mcp-servers/import", &document).await;
        assert_eq!((status.as_u16(), &report["data"][0]["outcome"]), (200, &json!("replaced")), "{report}");
        assert_eq!(site.database.rows("SELECT server_id FROM mcp_tokens").await.len(), logins, "{url}");
    }

    let said = server.log_text() + &shown.to_string() + &server.get_json("/mcp-servers").await.to_string();
    let leaked: Vec<_> = bank.book().secrets.iter().filter(|secret| said.contains(secret.as_str())).cloned().collect();
    assert_eq!(leaked, Vec::<String>::new());
    audit::assert_sound(&site.database).await;
}

/// M-24. The code is used up when the browser disconnects: the tokens that it returned are not lost.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn end_though_the_browser_goes_away(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, bank) = (ModelMock::start().await, Guarded::start().await);
    let site = site(kind, &model).await;
    let (_, server) = start(&site).await;
    let id = keep(&server, &bank.url).await;
    let (url, cookie) = begin(&server, &id).await;
    let back = bank.agree(&url).await;
    let held = Arc::new(Notify::new());
    bank.book().held = Some(Arc::clone(&held));
    let secrets = bank.book().secrets.len();
    let came_back = server.client.get(&back).header("cookie", &cookie).send();
    tokio::select! {
        answer = came_back => panic!("the token endpoint has not answered: {answer:?}"),
        () = wait::until("the exchange", Duration::from_secs(20), || async {
            (bank.book().secrets.len() > secrets).then_some(())
        }) => {}
    }
    // The server reads the end of the browser's connection before it reads these requests.
    for _ in 0..5 {
        server.get_json("/mcp-servers").await;
    }
    bank.book().held = None;
    held.notify_one();
    wait::until("the login", Duration::from_secs(20), || async {
        (site.database.rows("SELECT server_id FROM mcp_tokens").await.len() == 1).then_some(())
    })
    .await;
    let reached = wait::until("the server to be reached", Duration::from_secs(30), || async {
        let (_, started) = server.post_json(&format!("/mcp-servers/{id}/start"), &json!({})).await;
        (started["status"]["state"] == "ok").then_some(started)
    });
    assert_eq!(reached.await["status"]["auth"], "ok");
    assert_eq!(pay(&server, 1).await, [true]);
    audit::assert_sound(&site.database).await;
}

/// M-24.
#[tokio::test(flavor = "multi_thread")]
async fn are_not_begun_at_servers_that_lie() {
    let (model, bank) = (ModelMock::start().await, Guarded::start().await);
    let site = site(Kind::Sqlite, &model).await;
    let (_, server) = start(&site).await;
    let id = keep(&server, &bank.url).await;
    let issuer = bank.book().issuer.clone().unwrap();
    let cases = [
        (json!({}), json!({"issuer": "http://127.0.0.1:9/as"}), "another name"),
        (json!({}), json!({"issuer": null}), "another name"),
        (json!({}), json!({"authorization_endpoint": "javascript:alert(1)"}), "authorization_endpoint"),
        (json!({}), json!({"authorization_endpoint": "http://auth.example/authorize"}), "authorization_endpoint"),
        (json!({}), json!({"token_endpoint": "http://auth.example/token"}), "token_endpoint"),
        (json!({}), json!({"registration_endpoint": "file:///etc/passwd"}), "registration_endpoint"),
        (json!({}), json!({"registration_endpoint": null}), "capstan.oauth.client_id"),
        (json!({}), json!({"code_challenge_methods_supported": ["plain"]}), "PKCE"),
        (json!({}), json!({"code_challenge_methods_supported": null}), "PKCE"),
        (json!({}), json!({"response_types_supported": ["token"]}), "does not support the response type"),
        (json!({"resource": "https://other.example/mcp"}), json!({}), "another resource"),
        (json!({"resource": null}), json!({}), "no resource"),
        (json!({"authorization_servers": ["http://169.254.169.254/"]}), json!({}), "authorization server"),
        (json!({"authorization_servers": [format!("{issuer}-not")]}), json!({}), "has no metadata"),
        (json!({"authorization_servers": []}), json!({}), "no authorization server"),
    ];
    for (resource, metadata, words) in cases {
        bank.book().resource = resource.clone();
        bank.book().metadata = metadata.clone();
        let (status, refused) = server.post_json(&format!("/mcp-servers/{id}/login"), &json!({})).await;
        assert!(status == 409 && refused["detail"].as_str().unwrap().contains(words), "{resource} {metadata}: {refused}");
    }
    assert_eq!(bank.book().registered, 0);
    assert_eq!(site.database.rows("SELECT state_hash FROM mcp_logins").await.len(), 0);
}

/// M-24.
#[tokio::test(flavor = "multi_thread")]
async fn login_ends_only_for_the_user_who_began_it() {
    let (model, bank) = (ModelMock::start().await, Guarded::start().await);
    let site = site(Kind::Sqlite, &model).await;
    let (ann, bob) = (site.key_of("ann").await, site.key_of("bob").await);
    let mut server = site.start().await;
    server.set_key(&ann);
    let id = keep(&server, &bank.url).await;
    let issuer = bank.book().issuer.clone();

    // The issuer in the redirect: another authorization server, or none.
    for named in [Some("https://evil.example".to_owned()), None] {
        bank.book().issuer = named;
        let (url, cookie) = begin(&server, &id).await;
        let (status, refused) = come_back(&server, &bank.agree(&url).await, &cookie).await;
        assert!(status == 400 && refused["detail"].as_str().unwrap().contains("authorization server"), "{refused}");
    }
    bank.book().issuer = issuer;

    // The client that follows the redirect.
    let (url, cookie) = begin(&server, &id).await;
    let back = bank.agree(&url).await;
    assert_eq!(server.client.get(&back).send().await.unwrap().status(), 401, "no credentials");
    assert_eq!(server.client.get(&back).bearer_auth(&bob).send().await.unwrap().status(), 400, "another user");
    assert_eq!(
        come_back(&server, &back, &format!("{}=browser_other", cookie.split('=').next().unwrap())).await.0,
        400,
        "another browser"
    );
    assert_eq!(come_back(&server, &back.replace("state=login_", "state=login_x"), &cookie).await.0, 401, "another state");
    assert_eq!(come_back(&server, &back, &cookie).await.0, 200);
    // With a key instead of the browser's cookie.
    let (url, _) = begin(&server, &id).await;
    let back = bank.agree(&url).await;
    assert_eq!(server.client.get(&back).bearer_auth(&ann).send().await.unwrap().status(), 200);
    // Only the newest login is valid, and only for a limited time.
    let (old, old_cookie) = begin(&server, &id).await;
    let (new, new_cookie) = begin(&server, &id).await;
    assert_eq!(come_back(&server, &bank.agree(&old).await, &old_cookie).await.0, 400);
    site.database.rows("UPDATE mcp_logins SET expires_at = 0 RETURNING state_hash").await;
    assert_eq!(come_back(&server, &bank.agree(&new).await, &new_cookie).await.0, 400);
    // The owner denies the login.
    let (url, cookie) = begin(&server, &id).await;
    let mut back = Url::parse(&parameters(&url)["redirect_uri"]).unwrap();
    let issuer = bank.url.replace("/mcp", "/as");
    let denied = [("error", "access_denied"), ("state", &parameters(&url)["state"]), ("iss", &issuer)];
    back.query_pairs_mut().extend_pairs(denied);
    let (status, refused) = come_back(&server, back.as_str(), &cookie).await;
    assert!(status == 400 && refused["detail"].as_str().unwrap().contains("access_denied"), "{refused}");

    // A token for another audience.
    bank.book().token = Some("e30.eyJhdWQiOiJodHRwczovL290aGVyLmV4YW1wbGUifQ.c2ln".to_owned());
    let (url, cookie) = begin(&server, &id).await;
    let (status, refused) = come_back(&server, &bank.agree(&url).await, &cookie).await;
    assert!(status == 409 && refused["detail"].as_str().unwrap().contains("another resource"), "{refused}");
    bank.book().token = None;

    // The entry's URL changed during the login. A later change of the URL ends the login as well.
    log_in(&server, &bank, &id).await;
    let (url, cookie) = begin(&server, &id).await;
    let back = bank.agree(&url).await;
    let elsewhere = json!({"entry": {"url": format!("{}?tenant=2", bank.url)}});
    let changed = server.request(Method::PATCH, &format!("/mcp-servers/{id}")).json(&elsewhere).send().await.unwrap();
    let changed = changed.json::<Value>().await.unwrap();
    assert_eq!(changed["status"]["auth"], "needed", "{changed}");
    assert_eq!(site.database.rows("SELECT server_id FROM mcp_tokens").await.len(), 0);
    assert_eq!(come_back(&server, &back, &cookie).await.0, 400, "the login was deleted with its tokens");
    let gone = server.request(Method::DELETE, &format!("/mcp-servers/{id}")).send().await.unwrap();
    assert_eq!(gone.status(), 204);

    let said = server.log_text();
    let leaked: Vec<_> = bank.book().secrets.iter().filter(|secret| said.contains(secret.as_str())).cloned().collect();
    assert_eq!(leaked, Vec::<String>::new());
}

/// M-24.
#[tokio::test(flavor = "multi_thread")]
async fn global_server_login_uses_a_client_per_user() {
    let (model, bank) = (ModelMock::start().await, Guarded::start().await);
    let site = site(Kind::Sqlite, &model).await;
    let (ok, admin) = site.command(&["keys", "create", "--user", "root", "--role", "admin"]).await;
    assert!(ok);
    let (admin, ann) = (admin.lines().last().unwrap().trim().to_owned(), site.key_of("ann").await);
    bank.book().client = Some(("our-client".to_owned(), "client-secret-canary".to_owned()));
    let mut server = site.start().await;
    server.set_key(&admin);
    let oauth = json!({"client_id": "our-client", "client_secret": "client-secret-canary", "scopes": ["pay", "more"]});
    let body = json!({"name": "bank", "entry": {"url": bank.url, "capstan": {"oauth": oauth}}, "scope": "global"});
    let (status, made) = server.post_json("/mcp-servers", &body).await;
    assert_eq!((status.as_u16(), &made["status"]["auth"]), (201, &json!("needed")), "{made}");
    assert_eq!(made["entry"]["capstan"]["oauth"]["client_secret"], "${CLIENT_SECRET}");
    let id = made["id"].as_str().unwrap();

    server.set_key(&ann);
    let (status, _) = server.post_json(&format!("/mcp-servers/{id}/login"), &json!({})).await;
    assert_eq!(status, 403);
    server.set_key(&admin);
    let (url, cookie) = begin(&server, id).await;
    let asked = parameters(&url);
    assert_eq!((asked["client_id"].as_str(), asked["scope"].as_str()), ("our-client", "pay more"));
    assert_eq!(come_back(&server, &bank.agree(&url).await, &cookie).await.0, 200);
    assert_eq!(bank.book().registered, 0);
    server.set_key(&ann);
    assert_eq!(pay(&server, 1).await, [true]);
    bank.book().expire();
    assert_eq!(pay(&server, 3).await, [true; 3]);
    assert_eq!(bank.book().refreshes, 1);
    assert!(!server.log_text().contains("canary"));
}

/// M-24. The only token, and it cannot be replaced.
#[tokio::test(flavor = "multi_thread")]
async fn are_not_ended_by_one_mistake_of_their_server() {
    let (model, bank) = (ModelMock::start().await, Guarded::start().await);
    bank.book().rotates_nothing = true;
    let site = site(Kind::Sqlite, &model).await;
    let (_, server) = start(&site).await;
    let id = keep(&server, &bank.url).await;
    log_in(&server, &bank, &id).await;
    assert_eq!(pay(&server, 1).await, [true]);
    bank.book().mistakes = 1;
    assert_eq!(pay(&server, 1).await, [true], "the token is sent again");
    assert_eq!(bank.book().mistakes, 0);
    assert_eq!(site.database.rows("SELECT server_id FROM mcp_tokens").await.len(), 1);

    // An expired token is not sent again.
    site.database.rows("UPDATE mcp_tokens SET fresh_until = 0 RETURNING server_id").await;
    bank.book().expire();
    let gone = wait::until("the login to be over", Duration::from_secs(30), || async {
        pay(&server, 1).await;
        site.database.rows("SELECT server_id FROM mcp_tokens").await.is_empty().then_some(())
    });
    gone.await;
}

/// M-24. A token from one authorization server is not sent once the entry names another one.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn are_of_the_authorization_server_that_the_entry_names(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, bank) = (ModelMock::start().await, Guarded::start().await);
    let site = site(kind, &model).await;
    let (_, server) = start(&site).await;
    let id = keep(&server, &bank.url).await;
    log_in(&server, &bank, &id).await;
    let (begun, cookie) = begin(&server, &id).await;
    let names = async |issuer: &str| {
        let capstan = json!({"concurrency": 20, "replay": {"pay": "read"}, "oauth": {"issuer": issuer}});
        let entry = json!({"entry": {"url": bank.url, "capstan": capstan}});
        let changed = server.request(Method::PATCH, &format!("/mcp-servers/{id}")).json(&entry).send().await.unwrap();
        assert_eq!(changed.status(), 200);
        changed.json::<Value>().await.unwrap()["status"].clone()
    };
    let status = names("https://elsewhere.example").await;
    assert_eq!((&status["state"], &status["auth"]), (&json!("error"), &json!("needed")), "{status}");
    assert_eq!(pay(&server, 1).await, [false], "its tools are not offered");
    // The token is not refreshed there either, and a login that was begun there does not end there.
    site.database.rows("UPDATE mcp_tokens SET fresh_until = 0 RETURNING server_id").await;
    assert_eq!(pay(&server, 1).await, [false]);
    assert_eq!(bank.book().refreshes, 0);
    let (status, refused) = come_back(&server, &bank.agree(&begun).await, &cookie).await;
    assert_eq!(status, 409, "{refused}");

    // The same authorization server, with or without a trailing slash, keeps the login.
    let status = names(&bank.url.replace("/mcp", "/as/")).await;
    assert_eq!((&status["state"], &status["auth"]), (&json!("ok"), &json!("ok")), "{status}");
    assert_eq!(pay(&server, 1).await, [true]);
}

/// M-24.
#[tokio::test(flavor = "multi_thread")]
async fn at_two_servers_may_be_under_way_in_one_browser() {
    let (model, bank, shop) = (ModelMock::start().await, Guarded::start().await, Guarded::start().await);
    let site = site(Kind::Sqlite, &model).await;
    let (_, server) = start(&site).await;
    let one = keep(&server, &bank.url).await;
    let entry = json!({"url": shop.url, "capstan": {"oauth": {"issuer": "https://elsewhere.example"}}});
    let (_, made) = server.post_json("/mcp-servers", &json!({"name": "shop", "entry": entry})).await;
    let other = made["id"].as_str().unwrap();

    // A client belongs to the authorization server at which it is registered.
    let (status, refused) = server.post_json(&format!("/mcp-servers/{other}/login"), &json!({})).await;
    assert_eq!(status, 409);
    let why = refused["detail"].as_str().unwrap();
    assert!(why.contains("capstan.oauth.issuer of its entry is https://elsewhere.example") && why.contains("/as"), "{why}");
    assert_eq!(shop.book().registered, 0, "and it is not registered at another one");
    let issuer = shop.url.replace("/mcp", "/as/");
    let entry = json!({"entry": {"url": shop.url, "capstan": {"oauth": {"issuer": issuer}}}});
    let changed = server.request(Method::PATCH, &format!("/mcp-servers/{other}")).json(&entry).send().await.unwrap();
    assert_eq!(changed.status(), 200);

    let (first, first_cookie) = begin(&server, &one).await;
    let (second, second_cookie) = begin(&server, other).await;
    let name = |cookie: &str| cookie.split('=').next().unwrap().to_owned();
    assert_ne!(name(&first_cookie), name(&second_cookie));
    let both = format!("{first_cookie}; {second_cookie}");
    assert_eq!(come_back(&server, &bank.agree(&first).await, &both).await.0, 200);
    assert_eq!(come_back(&server, &shop.agree(&second).await, &both).await.0, 200);
}

/// M-24. Each login makes this server send requests to others, so their number is limited.
#[tokio::test(flavor = "multi_thread")]
async fn are_begun_so_often_by_one_user() {
    let (model, bank) = (ModelMock::start().await, Guarded::start().await);
    let site = site(Kind::Sqlite, &model).await.env("CAPSTAN_LIMITS__MAX_MCP_LOGINS_PER_OWNER", "2");
    let (ann, bob) = (site.key_of("ann").await, site.key_of("bob").await);
    let mut server = site.start().await;
    server.set_key(&ann);
    let id = keep(&server, &bank.url).await;
    begin(&server, &id).await;
    let (url, cookie) = begin(&server, &id).await;
    let registered = bank.book().registered;
    let answer = server.post(&format!("/mcp-servers/{id}/login"), &json!({})).send().await.unwrap();
    assert_eq!(answer.status(), 429);
    assert!(answer.headers().contains_key("retry-after"));
    let refused = answer.json::<Value>().await.unwrap();
    assert_eq!(refused["code"], "too_many_requests");
    assert!(refused["detail"].as_str().unwrap().contains("limits.max_mcp_logins_per_owner"), "{refused}");
    assert_eq!(bank.book().registered, registered, "no request was sent");
    assert_eq!(come_back(&server, &bank.agree(&url).await, &cookie).await.0, 200, "a login that was begun can be finished");
    server.set_key(&bob);
    let id = keep(&server, &bank.url).await;
    begin(&server, &id).await;
}

/// M-24. A refresh token is valid once: its new tokens must be stored, even if the server stops meanwhile.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn outlive_a_server_that_ends_while_it_refreshes_them(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, bank) = (ModelMock::start().await, Guarded::start().await);
    let site = site(kind, &model).await;
    let (ann, mut server) = start(&site).await;
    let id = keep(&server, &bank.url).await;
    log_in(&server, &bank, &id).await;
    bank.book().expire();
    let held = Arc::new(Notify::new());
    bank.book().held = Some(Arc::clone(&held));
    server.start_run(&json!({"input": "[[id:pay]][[call:bank__pay {}]][[next]][[text:1,0]]"})).await;
    wait::until("the refresh", Duration::from_secs(30), || async { (bank.counts().0 == 1).then_some(()) }).await;
    server.signal("TERM").await;
    wait::until("the server to end", Duration::from_secs(30), || async {
        let answer = server.client.get(format!("{}/readyz", server.url)).send().await;
        (!answer.is_ok_and(|answer| answer.status() == 200)).then_some(())
    })
    .await;
    bank.book().held = None;
    held.notify_one();
    assert!(server.ended(Duration::from_secs(30)).await.success());
    let mut server = site.start().await;
    server.set_key(&ann);
    assert_eq!(pay(&server, 1).await, [true]);
    assert_eq!((bank.counts().0, bank.counts().1), (1, 0), "no token was sent twice");
    audit::assert_sound(&site.database).await;
}

/// M-24.
#[tokio::test(flavor = "multi_thread")]
async fn at_servers_of_the_configuration() {
    let (model, bank) = (ModelMock::start().await, Guarded::start().await);
    let site = Site::new(Kind::Sqlite).await.with_model(&model);
    let site = site.mcp(json!({"mcpServers": {"bank": {"url": bank.url}}}));
    let mut server = site.start().await;
    assert_eq!(pay(&server, 1).await, [false], "its tools are not known");
    let listed = server.get_json("/mcp-servers").await;
    assert_eq!(listed["data"][0]["status"]["auth"], "needed", "{listed}");
    let id = listed["data"][0]["id"].as_str().unwrap().to_owned();
    log_in(&server, &bank, &id).await;
    assert_eq!(pay(&server, 1).await, [true]);
    server.kill9().await;
    let server = site.start().await;
    assert_eq!(pay(&server, 1).await, [true]);
    let agents = bank.book().agents.clone();
    assert!(!agents.is_empty() && agents.iter().all(|agent| agent.starts_with("capstan/")), "{agents:?}");
}

/// M-24.
#[tokio::test(flavor = "multi_thread")]
async fn are_refreshed_by_one_of_many_processes_postgres() {
    let (model, bank) = (ModelMock::start().await, Guarded::start().await);
    let site = site(Kind::Postgres, &model).await;
    let ann = site.key_of("ann").await;
    let mut servers = [site.start().await, site.start().await];
    servers.iter_mut().for_each(|server| server.set_key(&ann));
    let id = keep(&servers[0], &bank.url).await;
    log_in(&servers[0], &bank, &id).await;
    for server in &servers {
        assert_eq!(pay(server, 1).await, [true]);
    }
    for round in 1..=3 {
        bank.book().expire();
        let (both, book) = (futures_util::future::join_all(servers.iter().map(|server| pay(server, 4))).await, bank.book());
        assert_eq!(both.concat(), [true; 8]);
        assert_eq!((book.refreshes, book.reused), (round, 0));
    }
}
