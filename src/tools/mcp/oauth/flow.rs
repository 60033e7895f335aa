//! The steps of a login: the authorization URL, the exchange of the code, and the refresh of tokens.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::{StatusCode, Url};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::OAuthEntry;
use super::discovery::{self, ServerMetadata, text};
use super::requests::{Wire, is_token};
use crate::support::net::http;

const MAX_TOKEN: usize = 16 * 1024;
/// Tokens are refreshed this long before they expire, or after three quarters of a short lifetime.
const AHEAD_SECONDS: i64 = 60;
/// The longest lifetime of a token: a hundred years.
const MAX_SECONDS: i64 = 3_155_760_000;

/// The registration of this program at an authorization server.
#[derive(Clone, Serialize, Deserialize)]
struct Client {
    id: String,
    secret: Option<String>,
    proof: ClientAuthMethod,
}

/// The method of client authentication.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ClientAuthMethod {
    None,
    Post,
    Basic,
}

impl ClientAuthMethod {
    fn method_name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Post => "client_secret_post",
            Self::Basic => "client_secret_basic",
        }
    }
}

/// The server, issuer and client that tokens are bound to.
#[derive(Clone, Serialize, Deserialize)]
struct TokenBinding {
    url: String,
    issuer: String,
    resource: String,
    token_endpoint: String,
    client: Client,
}

impl TokenBinding {
    fn is_for(&self, url: &Url, issuer: Option<&str>) -> bool {
        self.url == url.as_str() && issuer.is_none_or(|issuer| is_same_issuer(issuer, &self.issuer))
    }
}

/// A login that has begun. It is secret, and must be encrypted until the callback.
#[derive(Serialize, Deserialize)]
pub struct Pending {
    bond: TokenBinding,
    verifier: String,
    callback: String,
    names_itself: bool,
}

/// The tokens of a login. They are secret, and must be encrypted.
#[derive(Clone, Serialize, Deserialize)]
pub struct TokenSet {
    bond: TokenBinding,
    access: String,
    refresh: Option<String>,
}

impl TokenSet {
    /// Returns the access token, if it is bound to the server at `url`, and to `issuer` if the entry has one.
    pub fn access_for(&self, url: &str, issuer: Option<&str>) -> Option<SecretString> {
        // Compared as URLs, because an entry may write the URL differently: `https://Host` equals `https://host/`.
        let is_ours = Url::parse(url).is_ok_and(|url| self.bond.is_for(&url, issuer));
        is_ours.then(|| SecretString::from(self.access.as_str()))
    }

    pub fn refresh(&self) -> Option<SecretString> {
        self.refresh.as_deref().map(SecretString::from)
    }
}

/// Why there are no tokens.
#[derive(Debug)]
pub enum Refusal {
    /// The authorization server rejects the credentials for good, so a new login is needed.
    Final(String),
    /// A temporary error.
    Failed(String),
}

impl Refusal {
    pub fn reason(self) -> String {
        match self {
            Self::Final(reason) | Self::Failed(reason) => reason,
        }
    }
}

/// Begins a login, and returns the authorization URL. The authorization server sends `state` and the code to `callback`.
pub async fn begin(
    wire: &Wire,
    entry: &OAuthEntry,
    callback: &str,
    state: &str,
    verifier: &SecretString,
) -> Result<(String, Pending), String> {
    let facts = discovery::discover(wire).await?;
    if let Some(expected) = entry.issuer.as_ref().filter(|expected| !is_same_issuer(expected, &facts.issuer)) {
        let named = &facts.issuer;
        return Err(format!("issuer mismatch: the server names {named}, capstan.oauth.issuer of its entry is {expected}"));
    }
    let scope = scope(&facts, entry);
    let client = match &entry.client_id {
        Some(id) => registered(id, entry.client_secret.as_ref(), facts.client_proofs.as_deref()),
        None => register(wire, &facts, callback, scope.as_deref()).await?,
    };
    let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.expose_secret()));
    let mut url = facts.authorize.clone();
    url.query_pairs_mut()
        .append_pair("response_type", "code")
        .append_pair("client_id", &client.id)
        .append_pair("redirect_uri", callback)
        .append_pair("state", state)
        .append_pair("code_challenge", &challenge)
        .append_pair("code_challenge_method", "S256")
        .append_pair("resource", &facts.resource)
        .extend_pairs(scope.as_ref().map(|scope| ("scope", scope)));
    let ServerMetadata { resource, issuer, token, names_itself, .. } = facts;
    let bond = TokenBinding { url: wire.server.as_str().to_owned(), issuer, resource, token_endpoint: token.into(), client };
    let verifier = verifier.expose_secret().to_owned();
    Ok((url.into(), Pending { bond, verifier, callback: callback.to_owned(), names_itself }))
}

/// Compares issuers without a trailing slash, which an entry may omit.
fn is_same_issuer(one: &str, other: &str) -> bool {
    one.trim_end_matches('/') == other.trim_end_matches('/')
}

/// Returns the scopes of the entry, or else those of the server, with `offline_access` if it is supported.
fn scope(facts: &ServerMetadata, entry: &OAuthEntry) -> Option<String> {
    let mut scopes = match &entry.scopes {
        Some(scopes) => return Some(scopes.join(" ")).filter(|scope| !scope.is_empty()),
        None => facts.scopes.clone(),
    };
    if facts.knows_offline_access && !scopes.iter().any(|scope| scope == "offline_access") {
        scopes.push("offline_access".to_owned());
    }
    Some(scopes.join(" ")).filter(|scope| !scope.is_empty())
}

fn registered(id: &str, secret: Option<&SecretString>, proofs: Option<&[String]>) -> Client {
    let takes = |proof: ClientAuthMethod| proofs.is_some_and(|proofs| proofs.iter().any(|word| word == proof.method_name()));
    let proof = match secret {
        None => ClientAuthMethod::None,
        Some(_) if takes(ClientAuthMethod::Post) && !takes(ClientAuthMethod::Basic) => ClientAuthMethod::Post,
        Some(_) => ClientAuthMethod::Basic,
    };
    Client { id: id.to_owned(), secret: secret.map(|secret| secret.expose_secret().to_owned()), proof }
}

/// Registers this program as a client (RFC 7591).
async fn register(wire: &Wire, facts: &ServerMetadata, callback: &str, scope: Option<&str>) -> Result<Client, String> {
    let Some(endpoint) = &facts.registration else {
        return Err("the authorization server takes no clients that register themselves: register one there, with the callback \
             .../api/v1/mcp-servers/callback of this server, and give its id as capstan.oauth.client_id"
            .to_owned());
    };
    let takes = |proof: ClientAuthMethod| {
        facts.client_proofs.as_ref().is_none_or(|proofs| proofs.iter().any(|word| word == proof.method_name()))
    };
    let auth_method = [ClientAuthMethod::None, ClientAuthMethod::Basic, ClientAuthMethod::Post]
        .into_iter()
        .find(|proof| takes(*proof))
        .unwrap_or(ClientAuthMethod::None);
    let kind = if http::is_loopback(callback) { "native" } else { "web" };
    let mut request = json!({
        "client_name": "Capstan", "redirect_uris": [callback], "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"], "token_endpoint_auth_method": auth_method.method_name(), "application_type": kind,
    });
    if let Some(scope) = scope {
        request["scope"] = json!(scope);
    }
    let (status, answer) = wire.post(endpoint, &request).await?;
    let answer = answer.filter(|_| status.is_success()).ok_or_else(|| {
        format!("the authorization server answered {status} to the dynamic client registration; set capstan.oauth.client_id to a registered client")
    })?;
    let id = text(&answer, "client_id").ok_or("the authorization server registered this client without a client_id")?;
    let secret = text(&answer, "client_secret");
    let proof = match (text(&answer, "token_endpoint_auth_method").as_deref(), &secret) {
        (_, None) => ClientAuthMethod::None,
        (Some("client_secret_post"), Some(_)) => ClientAuthMethod::Post,
        (Some("none"), Some(_)) => ClientAuthMethod::None,
        (_, Some(_)) if auth_method == ClientAuthMethod::Post => ClientAuthMethod::Post,
        (_, Some(_)) => ClientAuthMethod::Basic,
    };
    Ok(Client { id, secret, proof })
}

impl Pending {
    /// Checks the issuer of the callback (RFC 9207), so that another authorization server cannot answer.
    pub fn check_issuer(&self, named: Option<&str>) -> Result<(), String> {
        match named {
            Some(named) if !is_same_issuer(named, &self.bond.issuer) => {
                Err("issuer mismatch: the callback is from another authorization server than the one of this login".to_owned())
            }
            None if self.names_itself => {
                Err("the callback has no issuer, although the authorization server declares that it sends one".to_owned())
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Returns whether the login is for the server at `url`, and at `issuer` if the entry has one.
    pub fn is_for(&self, url: &Url, issuer: Option<&str>) -> bool {
        self.bond.is_for(url, issuer)
    }
}

/// Exchanges a code for tokens. Also returns how many milliseconds they can be used before a refresh, if known.
pub async fn exchange(wire: &Wire, pending: Pending, code: &str) -> Result<(TokenSet, Option<i64>), Refusal> {
    let Pending { bond, verifier, callback, names_itself: _ } = pending;
    let fields = [("grant_type", "authorization_code"), ("code", code), ("redirect_uri", &callback), ("code_verifier", &verifier)];
    ask(wire, bond, &fields, None).await
}

/// Refreshes tokens. Also returns how many milliseconds they can be used before the next refresh, if known.
pub async fn refresh(wire: &Wire, tokens: TokenSet) -> Result<(TokenSet, Option<i64>), Refusal> {
    let TokenSet { bond, access: _, refresh } = tokens;
    let Some(refresh) = refresh else { return Err(Refusal::Final("the login has no refresh token".to_owned())) };
    ask(wire, bond, &[("grant_type", "refresh_token"), ("refresh_token", &refresh)], Some(&refresh)).await
}

async fn ask(
    wire: &Wire,
    bond: TokenBinding,
    fields: &[(&str, &str)],
    known: Option<&str>,
) -> Result<(TokenSet, Option<i64>), Refusal> {
    let endpoint = wire.check_url(&bond.token_endpoint, "token_endpoint of the authorization server").map_err(Refusal::Failed)?;
    let client = &bond.client;
    let mut all = fields.to_vec();
    all.push(("resource", &bond.resource));
    let basic = match (client.proof, client.secret.as_deref()) {
        (ClientAuthMethod::Basic, Some(secret)) => Some((client.id.as_str(), secret)),
        (proof, secret) => {
            all.push(("client_id", &client.id));
            if let Some(secret) = secret.filter(|_| proof == ClientAuthMethod::Post) {
                all.push(("client_secret", secret));
            }
            None
        }
    };
    let (status, answer) = wire.submit(&endpoint, &all, basic).await.map_err(Refusal::Failed)?;
    let answer = answer.unwrap_or_default();
    // GitHub refuses with the status 200.
    if !status.is_success() || answer.get("error").is_some_and(|error| !error.is_null()) {
        return Err(refused(status, &answer));
    }
    let (access, refresh, fresh_for_ms) = read(&answer, &bond.resource).map_err(Refusal::Failed)?;
    // Without rotation, the old refresh token stays valid.
    let refresh = refresh.or_else(|| known.map(str::to_owned));
    Ok((TokenSet { bond, access, refresh }, fresh_for_ms))
}

fn refused(status: StatusCode, answer: &Map<String, Value>) -> Refusal {
    // Only the error code, because the description may quote the request.
    let word = text(answer, "error").filter(|word| word.len() <= 64 && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
    let reason = match &word {
        Some(word) => format!("the authorization server refused: {word}"),
        None => format!("the authorization server answered {status}"),
    };
    match word.as_deref() {
        Some("invalid_grant" | "invalid_client" | "unauthorized_client" | "bad_refresh_token") if !status.is_server_error() => {
            Refusal::Final(reason)
        }
        _ => Refusal::Failed(reason),
    }
}

/// Reads access token, refresh token and lifetime.
fn read(answer: &Map<String, Value>, resource: &str) -> Result<(String, Option<String>, Option<i64>), String> {
    let token = |name: &str| match answer.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(token)) if token.is_empty() => Ok(None),
        Some(Value::String(token)) if token.len() <= MAX_TOKEN && is_token(token) => Ok(Some(token.clone())),
        Some(_) => Err(format!("the authorization server sent an invalid {name}")),
    };
    let access = token("access_token")?.ok_or("the authorization server sent no access_token")?;
    if !text(answer, "token_type").is_some_and(|kind| kind.eq_ignore_ascii_case("bearer")) {
        return Err("the authorization server sent a token whose type is not Bearer".to_owned());
    }
    if is_for_another(&access, resource) {
        return Err("the authorization server sent a token for another resource".to_owned());
    }
    let seconds = answer.get("expires_in").and_then(|value| value.as_i64().or_else(|| value.as_str()?.parse().ok()));
    // Without a positive lifetime, the token would be refreshed before every request.
    let fresh_for_ms = seconds.filter(|seconds| *seconds > 0).map(|seconds| {
        let seconds = seconds.min(MAX_SECONDS);
        seconds * 1_000 - (AHEAD_SECONDS * 1_000).min(seconds * 250)
    });
    Ok((access, token("refresh_token")?, fresh_for_ms))
}

/// Returns whether a token is a JWT whose audiences are all URLs of other origins than `resource`. The server judges other tokens and
/// audiences.
fn is_for_another(token: &str, resource: &str) -> bool {
    let mut parts = token.split('.');
    let (Some(_), Some(claims), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else { return false };
    let claims: Option<Value> = URL_SAFE_NO_PAD.decode(claims).ok().and_then(|claims| serde_json::from_slice(&claims).ok());
    let audiences: Vec<&str> = match claims.as_ref().and_then(|claims| claims.get("aud")) {
        Some(Value::String(audience)) => vec![audience],
        Some(Value::Array(audiences)) => audiences.iter().filter_map(Value::as_str).collect(),
        _ => return false,
    };
    let origin = |url: &str| Url::parse(url).ok().filter(|url| url.has_host()).map(|url| url.origin());
    let ours = origin(resource);
    !audiences.is_empty() && audiences.iter().all(|audience| origin(audience).is_some_and(|theirs| Some(theirs) != ours))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const RESOURCE: &str = "https://mcp.example/mcp";

    fn jwt(claims: &Value) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims.to_string()))
    }

    #[rstest]
    #[case(json!({"aud": "https://mcp.example/mcp"}), false)]
    #[case(json!({"aud": ["https://other.example", "https://mcp.example"]}), false)]
    #[case(json!({"aud": "https://other.example/mcp"}), true)]
    #[case(json!({"aud": ["https://other.example"]}), true)]
    #[case(json!({"aud": "some-client"}), false)]
    #[case(json!({"aud": ["some-client", "https://other.example"]}), false)]
    #[case(json!({}), false)]
    fn a_token_for_another_server_is_not_taken(#[case] claims: Value, #[case] is_for_another: bool) {
        let answer = json!({"access_token": jwt(&claims), "token_type": "Bearer"});
        assert_eq!(read(answer.as_object().unwrap(), RESOURCE).is_err(), is_for_another);
    }

    #[rstest]
    #[case(json!({"access_token": "a", "token_type": "bearer"}), Some(None))]
    #[case(json!({"access_token": "a", "token_type": "Bearer", "expires_in": 3600}), Some(Some(3_540_000)))]
    #[case(json!({"access_token": "a", "token_type": "Bearer", "expires_in": "8"}), Some(Some(6_000)))]
    #[case(json!({"access_token": "a", "token_type": "Bearer", "expires_in": -5}), Some(None))]
    #[case(json!({"access_token": "a", "token_type": "Bearer", "expires_in": 0}), Some(None))]
    #[case(json!({"access_token": "a", "token_type": "mac"}), None)]
    #[case(json!({"access_token": "a"}), None)]
    #[case(json!({"access_token": "a\r\nx: y", "token_type": "Bearer"}), None)]
    #[case(json!({"access_token": 5, "token_type": "Bearer"}), None)]
    #[case(json!({"token_type": "Bearer"}), None)]
    fn answers_are_read(#[case] answer: Value, #[case] fresh: Option<Option<i64>>) {
        let read = read(answer.as_object().unwrap(), RESOURCE);
        assert_eq!(read.ok().map(|(_, _, fresh)| fresh), fresh);
    }

    #[test]
    fn only_what_stays_refused_is_final() {
        let judge = |status: u16, answer: Value| refused(StatusCode::from_u16(status).unwrap(), answer.as_object().unwrap());
        assert!(matches!(judge(400, json!({"error": "invalid_grant"})), Refusal::Final(_)));
        assert!(matches!(judge(401, json!({"error": "invalid_client"})), Refusal::Final(_)));
        assert!(matches!(judge(200, json!({"error": "bad_refresh_token"})), Refusal::Final(_)));
        assert!(matches!(judge(400, json!({"error": "temporarily_unavailable"})), Refusal::Failed(_)));
        assert!(matches!(judge(503, json!({"error": "invalid_grant"})), Refusal::Failed(_)));
        let leaky = judge(400, json!({"error": "no such token SECRET", "error_description": "SECRET"})).reason();
        assert!(!leaky.contains("SECRET"), "{leaky}");
    }
}
