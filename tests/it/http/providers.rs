//! User providers.

use axum::http::{Method, StatusCode};
use capstan::domain::access::principal::UserRole;
use serde_json::{Value, json};

use super::rig::{Reply, Rig};

const KEY: &str = "sk-canary-0123456789-wxyz";

fn body(name: &str) -> Value {
    json!({"name": name, "kind": "openai", "base_url": "https://api.example/v1", "key": KEY})
}

async fn create(rig: &Rig, body: &Value) -> Value {
    let reply = rig.post("/api/v1/providers", body.clone()).await;
    assert_eq!(reply.status, StatusCode::CREATED, "{}", reply.body);
    assert_eq!(reply.headers["location"], format!("/api/v1/providers/{}", reply.json()["id"].as_str().unwrap()));
    reply.json()
}

fn path(provider: &Value) -> String {
    format!("/api/v1/providers/{}", provider["id"].as_str().unwrap())
}

async fn patch(rig: &Rig, provider: &Value, body: Value) -> Reply {
    rig.send(Method::PATCH, &path(provider), &[], Some(body)).await
}

fn code(reply: &Reply) -> (u16, String) {
    (reply.status.as_u16(), reply.json()["code"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_provider_is_made_shown_changed_and_deleted() {
    let rig = Rig::with_keys().await;
    let mut wanted = body("mine");
    wanted["models"] = json!([{"name": "m", "context": 9, "prices": {"input": 0.5, "output": 2}}]);
    let reply = rig.post("/api/v1/providers", wanted).await;
    assert_eq!((reply.status, &reply.headers["etag"]), (StatusCode::CREATED, &"\"1\"".parse().unwrap()));
    let made = reply.json();
    let expected = json!({
        "id": made["id"], "name": "mine", "kind": "openai", "base_url": "https://api.example/v1",
        "key": {"set": true, "hint": "…wxyz"}, "enabled": true, "scope": "own", "version": 1,
        "models": [{"name": "m", "context": 9, "prices": {"input": 0.5, "output": 2.0}}],
        "created_at": made["created_at"], "updated_at": made["created_at"],
    });
    assert_eq!(made, expected);
    let shown = rig.get(&path(&made)).await;
    assert_eq!((shown.json(), &shown.headers["etag"]), (expected, &"\"1\"".parse().unwrap()));

    let changed = patch(&rig, &made, json!({"enabled": false, "models": [], "key": null})).await;
    assert_eq!((changed.status, &changed.headers["etag"]), (StatusCode::OK, &"\"2\"".parse().unwrap()), "{}", changed.body);
    let changed = changed.json();
    assert_eq!((&changed["enabled"], &changed["models"], &changed["key"]), (&json!(false), &json!([]), &json!({"set": false})));
    assert_eq!((&changed["name"], &changed["version"]), (&json!("mine"), &json!(2)));
    assert_eq!(rig.get(&path(&made)).await.json(), changed);

    let said = json!({"limits": {"connect_ms": 1, "total_ms": 9}, "accent": {"key_header": "api-key"}});
    let changed = patch(&rig, &made, said.clone()).await.json();
    assert_eq!((&changed["limits"], &changed["accent"]), (&said["limits"], &said["accent"]));
    let changed = patch(&rig, &made, json!({"limits": {"total_ms": 8}})).await.json();
    assert_eq!((&changed["limits"], &changed["accent"]), (&json!({"total_ms": 8}), &said["accent"]));
    let changed = patch(&rig, &made, json!({"limits": {}, "accent": null})).await.json();
    assert_eq!((&changed["limits"], &changed["accent"]), (&Value::Null, &Value::Null));
    let gone = rig.send(Method::DELETE, &path(&made), &[], None).await;
    assert_eq!(gone.status, StatusCode::NO_CONTENT);
    assert_eq!(code(&rig.get(&path(&made)).await), (404, "not_found".to_owned()));
    assert_eq!(rig.send(Method::DELETE, &path(&made), &[], None).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn provider_key_is_never_returned() {
    let rig = Rig::with_keys().await;
    let made = create(&rig, &body("mine")).await;
    let listed = rig.get("/api/v1/providers").await;
    let shown =
        [made.to_string(), rig.get(&path(&made)).await.body, listed.body, patch(&rig, &made, json!({"name": "x"})).await.body];
    assert!(shown.iter().all(|shown| !shown.contains("canary") && shown.contains("…wxyz")), "{shown:?}");
    // Of a short key, not even the last characters are shown.
    let short = create(&rig, &json!({"name": "short", "kind": "openai", "key": "sk-123456"})).await;
    assert_eq!((&short["key"], &short["base_url"]), (&json!({"set": true}), &json!("https://usual.example/v1")));
    let bare = create(&rig, &json!({"name": "bare", "kind": "openai"})).await;
    assert_eq!(bare["key"], json!({"set": false}));

    // The key is sent only to the host that it was entered for.
    let elsewhere = patch(&rig, &made, json!({"base_url": "https://other.example/v1"})).await;
    assert_eq!((code(&elsewhere).0, elsewhere.json()["errors"][0]["pointer"].clone()), (400, json!("/base_url")));
    assert_eq!(patch(&rig, &made, json!({"base_url": "https://api.example/v2"})).await.status, StatusCode::OK);
    let again = json!({"base_url": "https://other.example/v1", "key": "sk-another-0123456789abcd"});
    assert_eq!(patch(&rig, &made, again).await.json()["key"]["hint"], "…abcd");
}

#[tokio::test]
async fn invalid_provider_field_is_named() {
    let rig = Rig::with_keys().await;
    let long = "x".repeat(17_000);
    let cases = [
        (json!({"name": "A"}), "/name"),
        (json!({"name": "a/b"}), "/name"),
        (json!({"name": "a".repeat(65)}), "/name"),
        (json!({"kind": "telepathy"}), "/kind"),
        (json!({"kind": "ollama", "base_url": null}), "/base_url"),
        (json!({"base_url": "not a url"}), "/base_url"),
        (json!({"base_url": "https:/api.example/v1"}), "/base_url"),
        (json!({"base_url": "https:///api.example/v1"}), "/base_url"),
        (json!({"base_url": "https://\n/api.example/v1"}), "/base_url"),
        (json!({"base_url": "http://api.example/v1"}), "/base_url"),
        (json!({"base_url": "https://127.0.0.1/v1"}), "/base_url"),
        (json!({"base_url": "https://169.254.169.254/"}), "/base_url"),
        (json!({"base_url": "https://me:pw@api.example/v1"}), "/base_url"),
        (json!({"base_url": "https://api.example/v1?key=abc"}), "/base_url"),
        (json!({"base_url": "https://api.example/v1?api-version=1&k=abc"}), "/base_url"),
        (json!({"base_url": "https://api.example/v1#abc"}), "/base_url"),
        (json!({"limits": {"idle_ms": 0}}), "/limits/idle_ms"),
        (json!({"limits": {"total_ms": 3_600_001}}), "/limits/total_ms"),
        (json!({"limits": {"patience": 1}}), "/limits/patience"),
        (json!({"accent": {"url": "{base}/chat?key=abc"}}), "/accent"),
        (json!({"accent": {"extra": {"api_key": "abc"}}}), "/accent"),
        (json!({"accent": {"rename": {"a": long}}}), "/accent"),
        (json!({"kind": "anthropic", "accent": {}}), "/accent"),
        (json!({"key": ""}), "/key"),
        (json!({"key": "line\nbreak"}), "/key"),
        (json!({"key": long}), "/key"),
        (json!({"models": [{"name": ""}]}), "/models/0/name"),
        (json!({"models": [{"name": "m"}, {"name": "m"}]}), "/models/1/name"),
        (json!({"models": [{"name": "m", "prices": {"input": -1, "output": 1}}]}), "/models/0/prices/input"),
        (json!({"models": [{"name": "m", "context": 0}]}), "/models/0/context"),
        (json!({"models": [{"name": "m", "max_output": 0}]}), "/models/0/max_output"),
        (json!({"models": [{"name": "m", "limits": {"total_ms": 0}}]}), "/models/0/limits/total_ms"),
        (json!({"models": [{"name": "m", "limits": {"connect_ms": 9}}]}), "/models/0/limits/connect_ms"),
        (json!({"colour": "red"}), "/colour"),
    ];
    for (change, pointer) in cases {
        let mut wanted = body("mine");
        for (key, value) in change.as_object().unwrap() {
            wanted[key] = value.clone();
        }
        let reply = rig.post("/api/v1/providers", wanted).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{change}: {}", reply.body);
        assert_eq!(reply.json()["errors"][0]["pointer"], pointer, "{change}: {}", reply.body);
        assert!(!reply.body.contains(&long) && !reply.body.contains("canary"), "{}", reply.body);
    }
    assert_eq!(rig.get("/api/v1/providers").await.json()["data"], json!([]));
}

#[tokio::test]
async fn names_and_numbers_are_limited() {
    let rig = Rig::with_keys().await;
    let first = create(&rig, &body("one")).await;
    assert_eq!(code(&rig.post("/api/v1/providers", body("one")).await), (409, "conflict".to_owned()));
    create(&rig, &body("two")).await;
    assert_eq!(code(&patch(&rig, &first, json!({"name": "two"})).await), (409, "conflict".to_owned()));
    create(&rig, &body("three")).await;
    let full = rig.post("/api/v1/providers", body("four")).await;
    assert!(full.status == StatusCode::CONFLICT && full.json()["detail"].as_str().unwrap().contains('3'), "{}", full.body);
    let names = |reply: &Reply| reply.json()["data"].as_array().unwrap().iter().map(|one| one["name"].clone()).collect::<Vec<_>>();
    let page = rig.get("/api/v1/providers?limit=2").await;
    assert_eq!(names(&page), ["one", "three"]);
    assert!(page.headers["link"].to_str().unwrap().contains("rel=\"next\""));
    let cursor = page.json()["next_cursor"].as_str().unwrap().to_owned();
    let rest = rig.get(&format!("/api/v1/providers?limit=2&cursor={cursor}")).await;
    assert_eq!((names(&rest), &rest.json()["next_cursor"]), (vec![json!("two")], &Value::Null));
    assert_eq!(code(&rig.get("/api/v1/providers?cursor=bm8").await), (400, "invalid_cursor".to_owned()));
}

#[tokio::test]
async fn a_change_may_be_bound_to_a_version() {
    let rig = Rig::with_keys().await;
    let made = create(&rig, &body("mine")).await;
    let send = |method: Method, tag: &'static str, body: Option<Value>| {
        let (rig, path) = (&rig, path(&made));
        async move { rig.send(method, &path, &[("if-match", tag)], body).await }
    };
    assert_eq!(send(Method::PATCH, "\"1\"", Some(json!({"enabled": false}))).await.status, StatusCode::OK);
    for tag in ["\"1\"", "\"3\"", "W/\"2\"", "2", "\"x\"", "\"1\", \"3\"", ",", "\"1, 2\""] {
        let stale = send(Method::PATCH, tag, Some(json!({"enabled": true}))).await;
        assert_eq!(code(&stale), (412, "precondition_failed".to_owned()), "{tag}");
        assert_eq!(send(Method::DELETE, tag, None).await.status, StatusCode::PRECONDITION_FAILED, "{tag}");
    }
    assert_eq!(send(Method::PATCH, "*", Some(json!({"enabled": true}))).await.status, StatusCode::OK);
    // One of several tags may match, in one header or in more.
    assert_eq!(send(Method::PATCH, "\"1\",W/\"2\" , \"3\"", Some(json!({"enabled": false}))).await.status, StatusCode::OK);
    let headers = [("if-match", "\"9\""), ("if-match", "\"4\"")];
    assert_eq!(rig.send(Method::PATCH, &path(&made), &headers, Some(json!({"enabled": true}))).await.status, StatusCode::OK);
    assert_eq!(send(Method::DELETE, "\"5\"", None).await.status, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_repeated_request_makes_one_provider() {
    let rig = Rig::with_keys().await;
    let headers = [("idempotency-key", "k")];
    let send = |body: Value| rig.send(Method::POST, "/api/v1/providers", &headers, Some(body));
    let (first, again) = (send(body("mine")).await, send(body("mine")).await);
    assert_eq!((first.status, again.status), (StatusCode::CREATED, StatusCode::CREATED), "{}", again.body);
    assert_eq!(first.json(), again.json());
    assert_eq!(again.headers["idempotent-replayed"], "true");
    assert_eq!(code(&send(body("other")).await), (422, "idempotency_mismatch".to_owned()));
}

#[tokio::test]
async fn users_see_own_and_administrators_global_providers() {
    let mut rig = Rig::with_keys().await;
    let own = create(&rig, &body("own")).await;
    let ann = rig.key.clone();
    let mut global = body("shared");
    global["scope"] = json!("global");
    assert_eq!(code(&rig.post("/api/v1/providers", global.clone()).await), (403, "forbidden".to_owned()));

    rig.key = Some(rig.user_as("root", UserRole::Admin).await);
    // An administrator may use a loopback address.
    global["base_url"] = json!("http://127.0.0.1:11434/v1");
    let shared = create(&rig, &global).await;
    assert_eq!((&shared["scope"], &shared["key"]["hint"]), (&json!("global"), &json!("…wxyz")));
    let missing = json!({"id": "prov_01980000000070008000000000000009"});
    for method in [Method::GET, Method::PATCH, Method::DELETE] {
        let ask = |provider: &Value| {
            let body = (method == Method::PATCH).then(|| json!({"enabled": false}));
            let (rig, path, method) = (&rig, path(provider), method.clone());
            async move { rig.send(method, &path, &[("x-request-id", "same")], body).await }
        };
        let (theirs, none) = (ask(&own).await, ask(&missing).await);
        assert_eq!((theirs.status, &theirs.body), (StatusCode::NOT_FOUND, &none.body), "{method}");
    }
    for below in ["/models", "/test"] {
        let method = if below == "/models" { Method::GET } else { Method::POST };
        let theirs = rig.send(method, &format!("{}{below}", path(&own)), &[], None).await;
        assert_eq!(theirs.status, StatusCode::NOT_FOUND, "{below}");
    }

    rig.key = ann;
    let listed = rig.get("/api/v1/providers").await.json();
    let seen: Vec<_> = listed["data"].as_array().unwrap().iter().map(|one| (&one["name"], &one["scope"])).collect();
    assert_eq!(seen, [(&json!("own"), &json!("own")), (&json!("shared"), &json!("global"))]);
    assert_eq!(rig.get(&path(&shared)).await.json()["key"], json!({"set": true}), "only an administrator sees the end of its key");
    assert_eq!(code(&patch(&rig, &shared, json!({"enabled": false})).await), (403, "forbidden".to_owned()));
    assert_eq!(rig.send(Method::DELETE, &path(&shared), &[], None).await.status, StatusCode::FORBIDDEN);
    assert_eq!(rig.get(&format!("{}/models", path(&shared))).await.status, StatusCode::OK);
}

#[tokio::test]
async fn models_are_listed_with_all_that_is_known_of_them() {
    let rig = Rig::with_keys().await;
    let mut wanted = body("mine");
    wanted["models"] = json!([{"name": "two", "vision": true}, {"name": "unlisted", "context": 5}]);
    let made = create(&rig, &wanted).await;
    let listed = rig.get(&format!("{}/models", path(&made))).await.json();
    let expected = json!([
        {"model": "mine/one", "name": "one", "context": 1, "tools": true},
        {"model": "mine/two", "name": "two", "context": 8, "vision": true},
        {"model": "mine/unlisted", "name": "unlisted", "context": 5},
    ]);
    assert_eq!(listed, json!({"data": expected, "next_cursor": null}));
    patch(&rig, &made, json!({"key": "sk-refused-0123456789"})).await;
    let refused = rig.get(&format!("{}/models", path(&made))).await;
    assert_eq!((code(&refused), refused.json()["detail"].clone()), ((502, "provider_auth".to_owned()), json!("wrong key")));
}

#[tokio::test]
async fn models_of_all_providers_belong_to_their_owner() {
    let mut rig = Rig::with_keys().await;
    let mut wanted = body("mine");
    let prices = json!({"input": 1.25, "cached_input": 0.125, "output": 10.0});
    wanted["models"] =
        json!([{"name": "two", "vision": true, "prices": prices}, {"name": "unlisted", "context": 5, "tools": false}]);
    let made = create(&rig, &wanted).await;
    let models = async |rig: &Rig| rig.get("/api/v1/models").await.json()["data"].clone();
    let of = |name: &str, provider: &str| format!("{provider}/{name}");
    let expected = json!([
        {"id": "mine/one", "provider": "mine", "abilities": {"tools": true}, "limits": {"context": 1}, "available": true},
        {"id": "mine/two", "provider": "mine", "abilities": {"images": true}, "limits": {"context": 8}, "price": prices, "available": true},
        {"id": "mine/unlisted", "provider": "mine", "abilities": {"tools": false}, "limits": {"context": 5}, "available": false},
    ]);
    assert_eq!(models(&rig).await, expected);
    // A provider that does not answer has the models of its record, and none of them is available.
    patch(&rig, &made, json!({"key": "sk-refused-0123456789"})).await;
    let known = models(&rig).await;
    let known: Vec<_> = known.as_array().unwrap().iter().map(|model| (&model["id"], &model["available"])).collect();
    assert_eq!(known, [(&json!("mine/two"), &json!(false)), (&json!("mine/unlisted"), &json!(false))]);
    patch(&rig, &made, json!({"key": KEY})).await;

    let ids = async |rig: &Rig| {
        let listed = models(rig).await;
        listed.as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let ann = rig.key.clone();
    rig.key = Some(rig.user("bob").await);
    assert_eq!(models(&rig).await, json!([]));
    rig.key = Some(rig.user_as("root", UserRole::Admin).await);
    for name in ["mine", "shared"] {
        create(&rig, &json!({"name": name, "kind": "openai", "scope": "global"})).await;
    }
    assert_eq!(ids(&rig).await, [of("one", "mine"), of("two", "mine"), of("one", "shared"), of("two", "shared")]);
    // The own provider hides the one of all users with its name, and a provider that is off has no models.
    rig.key = ann;
    let own = ["one", "two", "unlisted"].map(|name| of(name, "mine"));
    let shared = ["one", "two"].map(|name| of(name, "shared"));
    assert_eq!(ids(&rig).await, [own.as_slice(), shared.as_slice()].concat());
    patch(&rig, &made, json!({"enabled": false})).await;
    let of_all = ["one", "two"].map(|name| of(name, "mine"));
    assert_eq!(ids(&rig).await, [of_all.as_slice(), shared.as_slice()].concat());
}

#[tokio::test]
async fn a_test_says_how_it_went() {
    let rig = Rig::with_keys().await;
    let made = create(&rig, &body("mine")).await;
    let test = format!("{}/test", path(&made));
    let good = rig.send(Method::POST, &test, &[], None).await.json();
    assert_eq!((&good["ok"], &good["model"], good["error"].is_null()), (&json!(true), &json!("two"), true), "{good}");
    assert!(good["latency_ms"].is_u64());
    let bad = rig.post(&test, json!({"model": "bad"})).await.json();
    assert_eq!(
        (&bad["ok"], &bad["error"]["code"], &bad["error"]["detail"]),
        (&json!(false), &json!("provider_quota"), &json!("no money"))
    );
}

#[tokio::test]
async fn runs_may_name_the_models_of_providers_that_are_there() {
    let mut rig = Rig::with_keys().await;
    let made = create(&rig, &body("mine")).await;
    let run = |model: &str| {
        let (rig, body) = (&rig, json!({"input": "hi", "model": model}));
        async move { rig.post("/api/v1/runs", body).await.status.as_u16() }
    };
    for (model, status) in
        [("mine/anything", 202), ("mine/a/b", 202), ("mine/", 400), ("other/x", 400), ("mine", 400), ("M/x", 400)]
    {
        assert_eq!(run(model).await, status, "{model}");
    }
    patch(&rig, &made, json!({"enabled": false})).await;
    assert_eq!(run("mine/anything").await, 400);
    patch(&rig, &made, json!({"enabled": true})).await;
    rig.key = Some(rig.user("bob").await);
    let theirs = rig.post("/api/v1/runs", json!({"input": "hi", "model": "mine/anything"})).await;
    assert_eq!(code(&theirs), (400, "unknown_model".to_owned()));
}
