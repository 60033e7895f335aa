//! An MCP server that wants a login, and the authorization server that it goes by: strict, and with every bad habit on demand.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};
use axum::{Form, Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// The requests that the two servers received, and their settings.
#[derive(Default)]
pub struct Book {
    /// Put over the metadata of the server, and of the authorization server.
    pub resource: Value,
    pub metadata: Value,
    /// The issuer in the redirect to the callback. Absent for none.
    pub issuer: Option<String>,
    /// How long tokens live.
    pub expires_in: Option<i64>,
    /// Given instead of a token of its own.
    pub token: Option<String>,
    /// Answered by the token endpoint instead of anything else.
    pub broken: Option<u16>,
    /// Given no refresh tokens.
    pub rotates_nothing: bool,
    /// How many requests with a good token are answered with 401 all the same.
    pub mistakes: usize,
    /// The token endpoint does not answer before it is told to.
    pub held: Option<Arc<Notify>>,
    /// A client that was registered beforehand, and its secret.
    pub client: Option<(String, String)>,
    /// Tokens that count.
    valid: BTreeSet<String>,
    refresh: Option<String>,
    codes: HashMap<String, HashMap<String, String>>,
    clients: BTreeSet<String>,
    /// All that is secret.
    pub secrets: Vec<String>,
    /// Refreshes that were asked for, and those that came with a token that was used before.
    pub refreshes: usize,
    pub reused: usize,
    /// Requests without a token that counts, tool calls, and clients that registered themselves.
    pub refused: usize,
    pub calls: usize,
    pub registered: usize,
    /// The `User-Agent` of each request for tokens.
    pub agents: Vec<String>,
}

impl Book {
    fn secret(&mut self, what: &str) -> String {
        let secret = format!("{what}-canary-{}-{}", self.secrets.len(), fastrand::u64(..));
        self.secrets.push(secret.clone());
        secret
    }

    /// The tokens that are out count no more.
    pub fn expire(&mut self) {
        self.valid.clear();
    }

    /// Nor can they be refreshed.
    pub fn revoke(&mut self) {
        self.expire();
        self.refresh = None;
    }

    fn tokens(&mut self) -> Value {
        let access = self.token.clone().unwrap_or_else(|| self.secret("access"));
        let refresh = self.secret("refresh");
        self.valid = BTreeSet::from([access.clone()]);
        self.refresh = Some(refresh.clone());
        let refresh = (!self.rotates_nothing).then_some(refresh);
        json!({"access_token": access, "refresh_token": refresh, "token_type": "Bearer", "expires_in": self.expires_in})
    }
}

/// Both, on one address of this machine. They stop when dropped.
pub struct Guarded {
    /// The MCP server.
    pub url: String,
    book: Arc<Mutex<Book>>,
    _serving: JoinSet<()>,
}

#[derive(Clone)]
struct Site {
    base: String,
    book: Arc<Mutex<Book>>,
}

impl Guarded {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let book = Arc::new(Mutex::new(Book { issuer: Some(format!("{base}/as")), expires_in: Some(3_600), ..Book::default() }));
        let app = Router::new()
            .route("/mcp", post(mcp))
            .route("/.well-known/oauth-protected-resource/mcp", get(resource))
            .route("/.well-known/oauth-authorization-server/as", get(metadata))
            .route("/as/register", post(register))
            .route("/as/authorize", get(authorize))
            .route("/as/token", post(token))
            .with_state(Site { base: base.clone(), book: Arc::clone(&book) });
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url: format!("{base}/mcp"), book, _serving: serving }
    }

    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap()
    }

    /// How many refreshes were asked for, of them with a token that was used before, and requests without a token that counts.
    pub fn counts(&self) -> (usize, usize, usize) {
        let book = self.book();
        (book.refreshes, book.reused, book.refused)
    }

    /// As a browser whose owner agrees: where it is sent back to.
    pub async fn agree(&self, url: &str) -> String {
        let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build().unwrap();
        let answer = client.get(url).send().await.unwrap();
        assert!(answer.status().is_redirection(), "{}", answer.status());
        answer.headers()["location"].to_str().unwrap().to_owned()
    }
}

async fn mcp(State(site): State<Site>, headers: HeaderMap, Json(request): Json<Value>) -> Response {
    let mut book = site.book.lock().unwrap();
    let shown = headers.get(header::AUTHORIZATION).and_then(|header| header.to_str().ok()?.strip_prefix("Bearer "));
    let is_mistaken = book.mistakes > 0;
    book.mistakes -= usize::from(is_mistaken);
    if is_mistaken || !shown.is_some_and(|token| book.valid.contains(token)) {
        book.refused += 1;
        let challenge =
            format!("Bearer error=\"invalid_token\", resource_metadata=\"{}/.well-known/oauth-protected-resource/mcp\"", site.base);
        // It says what it was shown, as careless servers do.
        return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)], format!("bad token {shown:?}")).into_response();
    }
    let result = match request["method"].as_str().unwrap_or_default() {
        "initialize" => json!({
            "protocolVersion": request["params"]["protocolVersion"], "capabilities": {"tools": {}},
            "serverInfo": {"name": "guarded", "version": "1"},
        }),
        "tools/list" => json!({"tools": [
            {"name": "pay", "description": "pays", "inputSchema": {"type": "object"}},
            {"name": "fail", "description": "fails", "inputSchema": {"type": "object"}},
        ]}),
        "tools/call" if request["params"]["name"] == "fail" => {
            let error = json!({"code": -32000, "message": format!("no money for {}", shown.unwrap())});
            return Json(json!({"jsonrpc": "2.0", "id": request["id"], "error": error})).into_response();
        }
        "tools/call" => {
            book.calls += 1;
            json!({"content": [{"type": "text", "text": "paid"}]})
        }
        _ => return StatusCode::ACCEPTED.into_response(),
    };
    Json(json!({"jsonrpc": "2.0", "id": request["id"], "result": result})).into_response()
}

fn over(mut document: Value, patch: &Value) -> Json<Value> {
    for (name, value) in patch.as_object().into_iter().flatten() {
        document[name] = value.clone();
    }
    Json(document)
}

async fn resource(State(site): State<Site>) -> Json<Value> {
    let base = &site.base;
    let document =
        json!({"resource": format!("{base}/mcp"), "authorization_servers": [format!("{base}/as")], "scopes_supported": ["pay"]});
    over(document, &site.book.lock().unwrap().resource)
}

async fn metadata(State(site): State<Site>) -> Json<Value> {
    let base = format!("{}/as", site.base);
    let document = json!({
        "issuer": base, "authorization_endpoint": format!("{base}/authorize"), "token_endpoint": format!("{base}/token"),
        "registration_endpoint": format!("{base}/register"), "response_types_supported": ["code"],
        "code_challenge_methods_supported": ["S256"], "scopes_supported": ["pay", "offline_access"],
        "authorization_response_iss_parameter_supported": true,
    });
    over(document, &site.book.lock().unwrap().metadata)
}

async fn register(State(site): State<Site>, Json(request): Json<Value>) -> Response {
    let mut book = site.book.lock().unwrap();
    book.registered += 1;
    let client = format!("client-{}", book.registered);
    book.clients.insert(client.clone());
    let answer = json!({"client_id": client, "redirect_uris": request["redirect_uris"], "token_endpoint_auth_method": "none"});
    (StatusCode::CREATED, Json(answer)).into_response()
}

async fn authorize(State(site): State<Site>, Query(asked): Query<HashMap<String, String>>) -> Response {
    let mut book = site.book.lock().unwrap();
    let client = &asked["client_id"];
    assert!(book.clients.contains(client) || book.client.as_ref().is_some_and(|(id, _)| id == client), "{asked:?}");
    assert_eq!((asked["response_type"].as_str(), asked["code_challenge_method"].as_str()), ("code", "S256"));
    assert_eq!(asked["resource"], format!("{}/mcp", site.base));
    let code = book.secret("code");
    let mut back = reqwest::Url::parse(&asked["redirect_uri"]).unwrap();
    back.query_pairs_mut().append_pair("code", &code).append_pair("state", &asked["state"]);
    if let Some(issuer) = &book.issuer {
        back.query_pairs_mut().append_pair("iss", issuer);
    }
    book.codes.insert(code, asked);
    Redirect::to(back.as_str()).into_response()
}

async fn token(state: State<Site>, headers: HeaderMap, form: Form<BTreeMap<String, String>>) -> Response {
    let held = state.book.lock().unwrap().held.clone();
    let answer = given(state, &headers, form);
    if let Some(held) = held {
        held.notified().await;
    }
    answer
}

fn given(State(site): State<Site>, headers: &HeaderMap, Form(asked): Form<BTreeMap<String, String>>) -> Response {
    let mut book = site.book.lock().unwrap();
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
    book.agents.push(agent.to_owned());
    let refuse = |word: &str| {
        let said = json!({"error": word, "error_description": format!("you sent {asked:?}")});
        (StatusCode::BAD_REQUEST, Json(said)).into_response()
    };
    if let Some(status) = book.broken {
        return StatusCode::from_u16(status).unwrap().into_response();
    }
    let basic = book.client.as_ref().map(|(id, secret)| format!("Basic {}", STANDARD.encode(format!("{id}:{secret}"))));
    if basic.is_some() && basic.as_deref() != headers.get(header::AUTHORIZATION).and_then(|header| header.to_str().ok()) {
        return refuse("invalid_client");
    }
    assert_eq!(asked["resource"], format!("{}/mcp", site.base));
    match asked["grant_type"].as_str() {
        "authorization_code" => {
            let Some(begun) = book.codes.remove(&asked["code"]) else { return refuse("invalid_grant") };
            let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&asked["code_verifier"]));
            if challenge != begun["code_challenge"] || asked["redirect_uri"] != begun["redirect_uri"] {
                return refuse("invalid_grant");
            }
        }
        "refresh_token" => {
            book.refreshes += 1;
            if book.refresh.as_ref() != Some(&asked["refresh_token"]) {
                // An old refresh token was stolen, or its successor was lost: all tokens are revoked.
                book.reused += 1;
                book.revoke();
                return refuse("invalid_grant");
            }
        }
        _ => return refuse("unsupported_grant_type"),
    }
    Json(book.tokens()).into_response()
}
