//! User providers, from the API request to the provider's wire. Their keys appear nowhere else.

use std::time::Duration;

use serde_json::{Value, json};

use support::database::Kind;
use support::server::{Server, Site};
use support::wait;
use support::wire::{Answer, Step, Wire};

const KEY: &str = "sk-canary-0123456789-wxyz";

const ANSWER: &str = concat!(
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hello\"},\"finish_reason\":null}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1000,\"completion_tokens\":10,\"prompt_tokens_details\":{\"cached_tokens\":600}}}\n\n",
    "data: [DONE]\n\n"
);

async fn make(server: &Server, wire: &Wire, name: &str) -> Value {
    let prices = json!({"input": 1.25, "cached_input": 0.125, "output": 10});
    let body = json!({
        "name": name, "kind": "openai", "base_url": wire.base_url, "key": KEY, "models": [{"name": "priced", "prices": prices}],
    });
    let (status, made) = server.post_json("/providers", &body).await;
    assert_eq!(status, 201, "{made}");
    made
}

async fn run(server: &Server, model: &str) -> Value {
    let run = server.start_run(&json!({"input": "hi", "model": model})).await;
    server.finished(run["id"].as_str().unwrap()).await
}

async fn a_kept_provider_answers(kind: Kind) {
    let wire = Wire::play(vec![Answer::stream(ANSWER)]).await;
    let site = Site::new(kind).await.env("CAPSTAN_SECRET_KEY", "a master key of some length");
    let server = site.start().await;
    // The cached miss ends as soon as the provider exists.
    let (status, _) = server.post_json("/runs", &json!({"input": "hi", "model": "mine/priced"})).await;
    assert_eq!(status, 400);
    let made = make(&server, &wire, "mine").await;
    let done = run(&server, "mine/priced").await;
    assert_eq!(done["status"], "completed", "{done}");
    // 400 * 1.25 + 600 * 0.125 + 10 * 10 = 675 millionths of a dollar.
    assert_eq!(done["usage"]["cost"], json!({"amount": "0.000675", "currency": "USD"}), "{done}");
    let unpriced = run(&server, "mine/other").await;
    assert_eq!((&unpriced["status"], &unpriced["usage"]["cost"]), (&json!("completed"), &Value::Null));
    let asked = wire.asked();
    assert!(asked.iter().all(|asked| asked.head.to_lowercase().contains(&format!("authorization: bearer {KEY}"))));
    let models: Vec<_> = asked.iter().map(|asked| asked.json()["model"].clone()).collect();
    assert_eq!(models, ["priced", "other"]);

    // A change applies from the next call on.
    let moved = Wire::play(vec![Answer::stream(ANSWER)]).await;
    let path = format!("/providers/{}", made["id"].as_str().unwrap());
    let change = json!({"base_url": moved.base_url, "key": "sk-another-0123456789abcd"});
    let changed = server.request(reqwest::Method::PATCH, &path).json(&change).send().await.unwrap();
    assert_eq!(changed.status(), 200);
    assert_eq!(run(&server, "mine/priced").await["status"], "completed");
    assert!(moved.asked()[0].head.contains("sk-another-0123456789abcd"));
    assert_eq!(wire.asked().len(), 2);

    // A provider can be tested: the mock answers each request, but it has no model list.
    let (status, tested) = server.post_json(&format!("{path}/test"), &json!({"model": "priced"})).await;
    assert_eq!((status.as_u16(), &tested["ok"]), (200, &json!(true)), "{tested}");

    // A user provider takes precedence over a configured provider of the same name.
    make(&server, &wire, "demo").await;
    assert_eq!(run(&server, "demo/demo").await["status"], "completed");
    assert_eq!(wire.asked().last().unwrap().json()["model"], "demo");

    // A deleted provider looks missing.
    let gone = server.request(reqwest::Method::DELETE, &path).send().await.unwrap();
    assert_eq!(gone.status(), 204);
    let (status, _) = server.post_json("/runs", &json!({"input": "hi", "model": "mine/priced"})).await;
    assert_eq!(status, 400);
    assert!(!server.log_text().contains("canary"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_provider_answers_on_sqlite() {
    a_kept_provider_answers(Kind::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_provider_answers_on_postgres() {
    a_kept_provider_answers(Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_worth_nothing_without_the_master_key() {
    let wire = Wire::play(vec![Answer::stream(ANSWER)]).await;
    let site = Site::new(Kind::Sqlite).await;
    let mut server = site.start().await;
    let data = site.folder.path().join("data");
    let file = data.join("secret.key");
    assert!(!file.exists(), "the file is created on first use");
    let made = make(&server, &wire, "mine").await;
    assert!(file.exists());
    let first = std::fs::read_to_string(&file).unwrap();
    let rows = site.database.rows("SELECT key_id, key_data, key_hint FROM providers").await;
    let (key_id, encrypted) = (rows[0][0].clone().unwrap(), rows[0][1].clone().unwrap());
    assert!(!encrypted.contains("canary"));
    for entry in std::fs::read_dir(site.folder.path()).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file()) {
        let bytes = std::fs::read(&entry).unwrap();
        assert!(!bytes.windows(KEY.len()).any(|window| window == KEY.as_bytes()), "{}", entry.display());
    }

    // Another master key, beside the running server.
    let (ok, said) = site.command(&["secrets", "rotate", "--dry-run"]).await;
    assert!(ok && said.contains("to encrypt again: 0") && said.contains("newest master key: 1"), "{said}");
    let (ok, said) = site.command(&["secrets", "rotate", "--new-key"]).await;
    assert!(ok && said.contains("encrypted again: 1"), "{said}");
    let rows = site.database.rows("SELECT key_id, key_data FROM providers").await;
    assert_ne!(rows[0][0].as_deref(), Some(key_id.as_str()));
    assert_eq!(run(&server, "mine/priced").await["status"], "completed");
    let (ok, report) = site.command(&["doctor"]).await;
    assert!(ok && report.contains("ok    secrets") && report.contains("all 1"), "{report}");

    // With the first key alone, no secret can be decrypted and no server starts.
    server.kill9().await;
    std::fs::write(&file, first).unwrap();
    let mut refused = site.spawn(&[]);
    assert!(!refused.ended(std::time::Duration::from_secs(60)).await.success());
    let log = refused.log_text();
    assert!(log.contains(rows[0][0].as_deref().unwrap()) && log.contains("CAPSTAN_SECRET_KEY"), "{log}");
    let (ok, report) = site.command(&["doctor"]).await;
    assert!(!ok && report.contains("FAIL  secrets"), "{report}");
    let (ok, said) = site.command(&["secrets", "rotate"]).await;
    assert!(!ok && said.contains(made["id"].as_str().unwrap()), "{said}");

    // The way out: forget the lost secrets.
    let (ok, said) = site.command(&["secrets", "rotate", "--forget-lost"]).await;
    assert!(ok && said.contains("removed"), "{said}");
    let server = site.start().await;
    let provider = server.get_json(&format!("/providers/{}", made["id"].as_str().unwrap())).await;
    assert_eq!((&provider["key"], &provider["version"]), (&json!({"set": false}), &json!(3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_master_key_of_the_environment_can_be_changed() {
    let wire = Wire::play(vec![Answer::stream(ANSWER)]).await;
    let site = Site::new(Kind::Sqlite).await;
    let (old, new) = ("CAPSTAN_SECRET_KEY", "CAPSTAN_SECRET_KEY_PREVIOUS");
    let mut server = site.start_with(&[(old, "an old master key of some length")]).await;
    make(&server, &wire, "mine").await;
    assert!(!site.folder.path().join("data/secret.key").exists());
    server.kill9().await;
    let both = [(old, "a new master key of some length"), (new, "an old master key of some length")];
    let mut server = site.start_with(&both).await;
    assert_eq!(run(&server, "mine/priced").await["status"], "completed");
    server.kill9().await;
    let site = site.env(old, both[0].1).env(new, both[1].1);
    let (ok, said) = site.command(&["secrets", "rotate"]).await;
    assert!(ok && said.contains("encrypted again: 1"), "{said}");
    let site = site.env(new, "");
    let server = site.start().await;
    assert_eq!(run(&server, "mine/priced").await["status"], "completed");
}

async fn make_of(server: &Server, body: &Value) -> Value {
    let (status, made) = server.post_json("/providers", body).await;
    assert_eq!(status, 201, "{made}");
    made
}

async fn change(server: &Server, provider: &Value, change: &Value) {
    let path = format!("/providers/{}", provider["id"].as_str().unwrap());
    let changed = server.request(reqwest::Method::PATCH, &path).json(change).send().await.unwrap();
    assert_eq!(changed.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_provider_that_keeps_failing_is_left_alone() {
    let down = Answer::json(503, r#"{"error":{"message":"no capacity"}}"#);
    let wire = Wire::play(vec![down]).await;
    let site = Site::new(Kind::Sqlite).await.env("CAPSTAN_AGENT__LLM_RETRY__DELAYS_MS", "[]");
    let site = site.env("CAPSTAN_BREAKER__FAILURES", "2");
    let server = site.start().await;
    let made = make(&server, &wire, "mine").await;
    let words = async |model: &str| run(&server, model).await["error"]["detail"].as_str().unwrap().to_owned();
    for _ in 0..2 {
        assert!(words("mine/m").await.contains("no capacity"));
    }
    let left_alone = words("mine/m").await;
    assert!(left_alone.contains("mine") && left_alone.contains("2 times in a row"), "{left_alone}");
    assert_eq!(wire.asked().len(), 2);
    // A change of neither URL nor key leaves the circuit breaker open.
    change(&server, &made, &json!({"models": [], "limits": {"idle_ms": 1000}})).await;
    assert!(words("mine/m").await.contains("2 times in a row"));
    let metrics = server.client.get(format!("{}/metrics", server.url)).send().await.unwrap().text().await.unwrap();
    let open: Vec<_> = metrics.lines().filter(|line| line.starts_with("capstan_provider_open{")).collect();
    assert!(open.len() == 1 && open[0].contains(made["id"].as_str().unwrap()) && open[0].ends_with(" 1"), "{open:?}");
    // Another key may work, and so may another provider of the same URL.
    change(&server, &made, &json!({"key": "sk-another-0123456789abcd"})).await;
    make(&server, &wire, "other").await;
    for model in ["mine/m", "other/m"] {
        assert!(words(model).await.contains("no capacity"), "{model}");
    }
    assert_eq!(wire.asked().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_provider_has_limits_and_an_accent_of_its_own() {
    let (silent, azure) =
        (Wire::play(vec![Answer::events(vec![Step::Hang])]).await, Wire::play(vec![Answer::stream(ANSWER)]).await);
    let site = Site::new(Kind::Sqlite).await.env("CAPSTAN_AGENT__LLM_RETRY__DELAYS_MS", "[]");
    let server = site.start().await;
    let models = json!([{"name": "other", "limits": {"first_byte_ms": 400}}]);
    let limits = json!({"first_byte_ms": 300});
    make_of(&server, &json!({"name": "mine", "kind": "openai", "base_url": silent.base_url, "limits": limits, "models": models}))
        .await;
    for (model, words) in [("mine/m", "300 ms"), ("mine/other", "400 ms")] {
        let ended = run(&server, model).await;
        assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!("provider_timeout")), "{ended}");
        assert!(ended["error"]["detail"].as_str().unwrap().contains(words), "{ended}");
    }
    let accent = json!({"url": "{host}/openai/deployments/{model}/chat?api-version=2024-10-21", "key_header": "api-key"});
    let place = azure.base_url.trim_end_matches("/v1");
    let body = json!({"name": "azure", "kind": "openai", "base_url": place, "key": KEY, "accent": accent});
    let made = make_of(&server, &body).await;
    assert_eq!(made["accent"], accent);
    assert_eq!(run(&server, "azure/gpt").await["status"], "completed");
    let head = azure.asked()[0].head.to_lowercase();
    assert!(head.starts_with("post /openai/deployments/gpt/chat?api-version=2024-10-21 "), "{head}");
    assert!(head.contains(&format!("api-key: {KEY}")) && !head.contains("bearer"), "{head}");
    let mut wrong = body;
    wrong["accent"] = json!({"key_haeder": "x"});
    let (status, refused) = server.post_json("/providers", &wrong).await;
    assert_eq!((status.as_u16(), &refused["errors"][0]["pointer"]), (400, &json!("/accent")), "{refused}");
    assert!(refused["detail"].as_str().unwrap().contains("key_haeder"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn member_egress_follows_the_current_settings() {
    let wire = Wire::play(vec![Answer::stream(ANSWER)]).await;
    let site = Site::new(Kind::Sqlite).await.env("CAPSTAN_AGENT__LLM_RETRY__DELAYS_MS", "[]");
    let ann = site.key_of("ann").await;
    let mut server = site.start_with(&[("CAPSTAN_OUTBOUND__ALLOW_PRIVATE", "true")]).await;
    server.set_key(&ann);
    let made = make(&server, &wire, "mine").await;
    assert_eq!(run(&server, "mine/m").await["status"], "completed");
    server.kill9().await;
    let mut server = site.start().await;
    server.set_key(&ann);
    let ended = run(&server, "mine/m").await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!("provider_invalid_request")), "{ended}");
    let path = format!("/providers/{}", made["id"].as_str().unwrap());
    let (_, tested) = server.post_json(&format!("{path}/test"), &json!({"model": "m"})).await;
    assert_eq!(tested["ok"], false, "{tested}");
    assert!(!server.get(&format!("{path}/models")).send().await.unwrap().status().is_success());
    assert_eq!(wire.asked().len(), 1, "no request goes to an internal address any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_on_postgres_share_a_master_key_or_have_none() {
    let wire = Wire::play(vec![Answer::stream(ANSWER)]).await;
    let site = Site::new(Kind::Postgres).await.env("CAPSTAN_AGENT__LLM_RETRY__DELAYS_MS", "[50]");
    let other_data = site.folder.path().join("other-data").display().to_string();
    let api = site.start_with(&[("CAPSTAN_SERVER__ROLE", "api")]).await;
    let body = json!({"name": "mine", "kind": "openai", "base_url": wire.base_url, "key": KEY});
    let (status, refused) = api.post_json("/providers", &body).await;
    assert_eq!((status.as_u16(), &refused["code"]), (409, &json!("conflict")), "{refused}");
    assert!(refused["detail"].as_str().unwrap().contains("CAPSTAN_SECRET_KEY"), "{refused}");
    let login = api.post("/providers/openrouter/login", &json!({})).send().await.unwrap();
    assert_eq!(login.status(), 409);
    assert!(!site.folder.path().join("data/secret.key").exists());

    // Two processes with different keys: the first one that encrypts a secret sets the key.
    let other = site.start_with(&[("CAPSTAN_DATA_DIR", &other_data), ("CAPSTAN_SECRET_KEY", "another key of some length")]).await;
    let (ok, said) = site.command(&["secrets", "rotate", "--new-key"]).await;
    assert!(ok, "{said}");
    make_of(&api, &body).await;
    let second = json!({"name": "second", "kind": "openai", "base_url": wire.base_url, "key": KEY});
    let (status, refused) = other.post_json("/providers", &second).await;
    assert_eq!((status.as_u16(), &refused["code"]), (409, &json!("conflict")), "{refused}");
    // Another process may decrypt the secret, or this one later, so the error does not blame the key.
    let ended = run(&api, "mine/m").await;
    assert_eq!(ended["error"]["code"], "provider_unavailable", "{ended}");
    let events = api.run_events_json(ended["id"].as_str().unwrap()).await;
    assert!(events.iter().any(|event| event["type"] == "run.retrying"), "{events:?}");
    assert!(ended["error"]["detail"].as_str().unwrap().contains("master key"), "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_secrets_may_come_together() {
    let wire = Wire::play(vec![Answer::stream(ANSWER)]).await;
    let site = Site::new(Kind::Sqlite).await;
    let server = site.start().await;
    let body = |n: u32| json!({"name": format!("p{n}"), "kind": "openai", "base_url": wire.base_url, "key": KEY});
    let bodies: Vec<_> = (0..8).map(body).collect();
    let made = futures_util::future::join_all(bodies.iter().map(|body| server.post_json("/providers", body))).await;
    assert!(made.iter().all(|(status, _)| *status == 201), "{made:?}");
    assert_eq!(run(&server, "p7/m").await["status"], "completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn providers_of_the_configuration_are_listed_and_asked_too() {
    let list = Answer::json(200, r#"{"object":"list","data":[{"id":"gpt-5-mini"},{"id":"other"}]}"#);
    let refused = Answer::json(401, r#"{"error":{"message":"wrong key","type":"invalid_request_error"}}"#);
    let wire = Wire::play(vec![list, Answer::stream(ANSWER), refused]).await;
    let site = Site::new(Kind::Sqlite).await.env("CAPSTAN_MODEL", "openai/gpt-5-mini").env("OPENAI_API_KEY", KEY);
    let site = site.env("OPENAI_BASE_URL", &format!("{}?token=canary", wire.base_url));
    let mut server = site.start().await;
    let listed = server.get_json("/providers").await;
    let names: Vec<_> = listed["data"].as_array().unwrap().iter().map(|one| (&one["name"], &one["scope"])).collect();
    let config = json!("config");
    assert_eq!(names, [(&json!("openai"), &config), (&json!("openai-responses"), &config)]);
    let openai = listed["data"][0].clone();
    assert_eq!((&openai["base_url"], &openai["key"]), (&json!(wire.base_url), &json!({"set": true})), "{openai}");
    let path = format!("/providers/{}", openai["id"].as_str().unwrap());
    assert_eq!(server.get_json(&path).await, openai);
    let models = server.get_json(&format!("{path}/models")).await;
    let models: Vec<_> = models["data"].as_array().unwrap().iter().map(|model| model["model"].clone()).collect();
    assert_eq!(models, ["openai/gpt-5-mini", "openai/other"]);
    for ok in [true, false] {
        let (status, tested) = server.post_json(&format!("{path}/test"), &json!({"model": "gpt-5-mini"})).await;
        assert_eq!((status.as_u16(), &tested["ok"]), (200, &json!(ok)), "{tested}");
    }
    for method in [reqwest::Method::PATCH, reqwest::Method::DELETE] {
        let refused = server.request(method, &path).json(&json!({"enabled": false})).send().await.unwrap();
        assert_eq!(refused.status(), 403);
    }
    // The URL is shown to the operator only. The id is the same after a restart.
    server.kill9().await;
    let member = site.key_of("bob").await;
    let mut server = site.start().await;
    server.set_key(&member);
    let mut seen = openai;
    seen.as_object_mut().unwrap().remove("base_url");
    assert_eq!(server.get_json(&path).await, seen);
    assert!(!server.log_text().contains("canary"));
}

/// Returns a site with an OpenRouter login whose code exchange gets this answer.
async fn with_open_router(answer: Answer) -> (Wire, Site) {
    let wire = Wire::play(vec![answer]).await;
    let site = Site::new(Kind::Sqlite).await.env("CAPSTAN_OUTBOUND__OPENROUTER_URL", wire.base_url.trim_end_matches("/v1"));
    (wire, site)
}

fn parameters(url: &str) -> std::collections::HashMap<String, String> {
    reqwest::Url::parse(url).unwrap().query_pairs().into_owned().collect()
}

/// Begins a login. Returns the authorization URL, the callback URL and the cookie.
async fn begin(server: &Server) -> (String, String, String) {
    let answer = server.post("/providers/openrouter/login", &json!({})).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let cookie = answer.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax") && !cookie.contains("Secure"), "{cookie}");
    let url = answer.json::<Value>().await.unwrap()["url"].as_str().unwrap().to_owned();
    let callback = parameters(&url)["callback_url"].replace("http://localhost:", "http://127.0.0.1:");
    (url, callback, cookie.split(';').next().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn login_creates_a_provider_with_its_key() {
    use base64::Engine as _;
    use sha2::Digest as _;
    let (wire, site) = with_open_router(Answer::json(200, &json!({"key": KEY, "user_id": "u"}).to_string())).await;
    let server = site.start().await;
    let (url, callback, _) = begin(&server).await;
    let asked = parameters(&url);
    assert!(url.starts_with(&format!("{}/auth?", wire.base_url.trim_end_matches("/v1"))), "{url}");
    assert_eq!(asked["code_challenge_method"], "S256");
    assert!(callback.starts_with(&format!("{}/api/v1/providers/openrouter/callback?state=", server.url)), "{callback}");
    let verifier = site.database.rows("SELECT key_data, state_hash FROM provider_logins").await;
    assert!(!verifier[0][1].as_deref().unwrap().contains(&parameters(&callback)["state"]));

    let done = server.client.get(format!("{callback}&code=the-code")).send().await.unwrap();
    assert_eq!((done.status().as_u16(), done.headers()["cache-control"].to_str().unwrap()), (200, "no-store"));
    let provider: Value = done.json().await.unwrap();
    let api = format!("{}/api/v1", wire.base_url.trim_end_matches("/v1"));
    assert_eq!((&provider["name"], &provider["base_url"]), (&json!("openrouter"), &json!(api)));
    assert_eq!(provider["key"], json!({"set": true, "hint": "…wxyz"}));
    let exchange = wire.asked().remove(0);
    assert!(exchange.head.starts_with("POST /api/v1/auth/keys "), "{}", exchange.head);
    let sent = exchange.json();
    assert_eq!((&sent["code"], &sent["code_challenge_method"]), (&json!("the-code"), &json!("S256")));
    let hash = sha2::Sha256::digest(sent["code_verifier"].as_str().unwrap());
    assert_eq!(base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(hash), asked["code_challenge"]);

    // The callback works once.
    let again = server.client.get(format!("{callback}&code=the-code")).send().await.unwrap();
    assert_eq!(again.status(), 400);
    assert_eq!(wire.asked().len(), 1);
    // A second login replaces the key of the existing provider.
    let (_, callback, _) = begin(&server).await;
    let page = server.client.get(format!("{callback}&code=c")).header("accept", "text/html").send().await.unwrap();
    assert!(page.text().await.unwrap().contains("connected"));
    let listed = server.get_json("/providers").await;
    assert_eq!((listed["data"].as_array().unwrap().len(), &listed["data"][0]["version"]), (1, &json!(2)), "{listed}");
    assert!(!server.log_text().contains("the-code") && !server.log_text().contains("canary"));
}

#[tokio::test(flavor = "multi_thread")]
async fn provider_login_ends_for_the_user_who_began_it() {
    let (wire, site) = with_open_router(Answer::json(200, &json!({"key": KEY}).to_string())).await;
    let (ann, bob) = (site.key_of("ann").await, site.key_of("bob").await);
    let mut server = site.start().await;
    server.set_key(&ann);
    let client = server.client.clone();
    let come_back = async |callback: &str, headers: &[(&str, &str)]| {
        let request = client.get(format!("{callback}&code=c"));
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.send().await.unwrap().status().as_u16()
    };
    let (_, callback, cookie) = begin(&server).await;
    assert_eq!(come_back(&callback, &[]).await, 401, "a callback without a login does not use it up");
    assert_eq!(come_back(&callback, &[("cookie", &format!("x=y; {cookie}"))]).await, 200);

    let (_, callback, _) = begin(&server).await;
    assert_eq!(come_back(&callback, &[("authorization", &format!("Bearer {ann}"))]).await, 200);
    // A user who was sent through another user's login.
    for stranger in [("authorization", format!("Bearer {bob}")), ("cookie", "capstan_login=browser_other".to_owned())] {
        let (_, callback, cookie) = begin(&server).await;
        assert_eq!(come_back(&callback, &[(stranger.0, &stranger.1)]).await, 400, "{stranger:?}");
        assert_eq!(come_back(&callback, &[("cookie", &cookie)]).await, 200, "another user does not use it up");
        assert_eq!(come_back(&callback, &[("cookie", &cookie)]).await, 400, "the login is used up");
    }
    // Only the newest login is valid.
    let (_, old, old_cookie) = begin(&server).await;
    let (_, new, new_cookie) = begin(&server).await;
    assert_eq!(come_back(&old, &[("cookie", &old_cookie)]).await, 400);
    assert_eq!(come_back(&new, &[("cookie", &new_cookie)]).await, 200);
    assert_eq!(wire.asked().len(), 5);
    server.set_key(&bob);
    assert_eq!(server.get_json("/providers").await["data"], json!([]));
    // A login that was begun with a key that is revoked by now has no owner.
    server.set_key(&ann);
    let (_, callback, cookie) = begin(&server).await;
    site.database.rows("UPDATE api_keys SET revoked_at = 1 RETURNING id").await;
    let dead = wait::until("the key to be dead", Duration::from_secs(20), || async {
        (server.get("/providers").send().await.unwrap().status() == 401).then_some(())
    });
    dead.await;
    assert_eq!(come_back(&callback, &[("cookie", &cookie)]).await, 400);
    assert_eq!(wire.asked().len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_fails_makes_nothing() {
    let refused = Answer::json(403, &json!({"error": {"message": "Invalid code or code_verifier", "code": 403}}).to_string());
    let (_wire, site) = with_open_router(refused).await;
    let server = site.start().await;
    let (_, callback, _) = begin(&server).await;
    let failed = server.client.get(format!("{callback}&code=c")).send().await.unwrap();
    assert_eq!(failed.status(), 502);
    assert!(failed.text().await.unwrap().contains("Invalid code"));
    for query in ["", "?state=x", "?code=c&state=unknown", "?code=&state=unknown"] {
        let path = format!("/providers/openrouter/callback{query}");
        assert_eq!(server.get(&path).send().await.unwrap().status(), 400, "{query}");
    }
    assert_eq!(server.get_json("/providers").await["data"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn default_model_may_be_of_a_provider_record() {
    let wire = Wire::play(vec![Answer::stream(ANSWER)]).await;
    let site = Site::new(Kind::Sqlite).await.env("CAPSTAN_SECRET_KEY", "a master key of some length");
    let mut server = site.start().await;
    let record = json!({"name": "acme", "kind": "openai", "base_url": wire.base_url, "key": KEY, "scope": "global"});
    let (status, made) = server.post_json("/providers", &record).await;
    assert_eq!(status, 201, "{made}");
    server.kill9().await;
    let site = site.env("CAPSTAN_MODEL", "acme/large");
    let server = site.start().await;
    let run = server.start_run(&json!({"input": "hi"})).await;
    let run = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!((&run["status"], &run["model"]), (&json!("completed"), &json!("acme/large")), "{run}");
    let (good, report) = site.command(&["doctor"]).await;
    assert!(good && report.contains("acme/large is the default model"), "{report}");
    let site = site.env("CAPSTAN_MODEL", "missing/large");
    let (good, report) = site.command(&["doctor"]).await;
    assert!(!good && report.contains("missing/large") && report.contains("provider record"), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn default_model_may_get_its_record_after_the_start() {
    let wire = Wire::play(vec![Answer::stream(ANSWER)]).await;
    let site = Site::new(Kind::Sqlite).await.env("CAPSTAN_SECRET_KEY", "a master key of some length");
    let site = site.env("CAPSTAN_MODEL", "acme/large");
    let server = site.start().await;
    wait::until("the warning", Duration::from_secs(30), || async {
        server.log_text().contains("serves the model \"acme/large\"").then_some(())
    })
    .await;
    let (status, problem) = server.post_json("/runs", &json!({"input": "hi"})).await;
    assert_eq!((status.as_u16(), &problem["code"]), (400, &json!("unknown_model")), "{problem}");
    let record = json!({"name": "acme", "kind": "openai", "base_url": wire.base_url, "key": KEY, "scope": "global"});
    assert_eq!(server.post_json("/providers", &record).await.0, 201);
    let run = server.start_run(&json!({"input": "hi"})).await;
    let run = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!((&run["status"], &run["model"]), (&json!("completed"), &json!("acme/large")), "{run}");
}

#[tokio::test(flavor = "multi_thread")]
async fn default_model_of_a_known_provider_may_get_its_key_later() {
    let wire = Wire::play(vec![Answer::stream(ANSWER)]).await;
    let site = Site::new(Kind::Sqlite).await.env("CAPSTAN_SECRET_KEY", "a master key of some length");
    let site = site.env("CAPSTAN_MODEL", "groq/llama-3.3");
    let server = site.start().await;
    let warned = wait::until("the warning", Duration::from_secs(30), || async {
        server.log_text().lines().find(|line| line.contains("serves the model \"groq/llama-3.3\"")).map(str::to_owned)
    });
    let warned = warned.await;
    assert!(warned.contains("WARN") && warned.contains("set GROQ_API_KEY") && warned.contains("on the chat page"), "{warned}");

    let run = server.start_run(&json!({"input": "hi"})).await;
    let run = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!("provider_auth")), "{run}");
    let detail = run["error"]["detail"].as_str().unwrap();
    assert!(detail.contains("groq has no key") && detail.contains("GROQ_API_KEY") && detail.contains("chat page"), "{detail}");
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    assert!(events.iter().all(|event| event["type"] != "run.retrying"), "{events:?}");

    let record = json!({"name": "groq", "kind": "openai", "base_url": wire.base_url, "key": KEY, "scope": "global"});
    make_of(&server, &record).await;
    let (_, resumed) = server.post_json(&format!("/runs/{}/resume", run["id"].as_str().unwrap()), &json!({})).await;
    let run = server.finished(resumed["id"].as_str().unwrap()).await;
    assert_eq!((&run["status"], &run["model"]), (&json!("completed"), &json!("groq/llama-3.3")), "{run}");
    assert_eq!(wire.asked()[0].json()["model"], "llama-3.3");
}
