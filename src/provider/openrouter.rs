//! Exchanges the code of a login for an OpenRouter key: <https://openrouter.ai/docs/use-cases/oauth-pkce>.

use std::time::Duration;

use reqwest::Url;
use reqwest::header::HeaderMap;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::json;

use crate::domain::model::{ModelError, ModelErrorKind};
use crate::provider::errors::secrets::Secrets;
use crate::provider::http::connection::http_client;
use crate::provider::http::timeouts::StreamLimits;
use crate::provider::http::transport::fetch;
use crate::provider::model_client::SetupError;
use crate::support::clock::UnixMillis;
use crate::support::net::egress::EgressScope;

const MAX_BYTES: usize = 64 * 1024;

#[derive(Deserialize)]
struct KeyResponse {
    key: SecretString,
}

/// Returns the URL of the page on which the owner of an account allows a key.
pub fn login_url(site: &str, callback: &str, challenge: &str) -> Result<String, SetupError> {
    let refuse = |reason: String| SetupError::BaseUrl { url: crate::support::redact::error_text(site), reason };
    let mut url = Url::parse(&format!("{}/auth", site.trim_end_matches('/'))).map_err(|error| refuse(error.to_string()))?;
    url.query_pairs_mut()
        .append_pair("callback_url", callback)
        .append_pair("code_challenge", challenge)
        .append_pair("code_challenge_method", "S256");
    Ok(url.into())
}

/// Returns the base URL of the API that accepts the keys.
pub fn api_url(site: &str) -> String {
    format!("{}/api/v1", site.trim_end_matches('/'))
}

pub async fn exchange(
    site: &str,
    code: &str,
    verifier: &SecretString,
    time_limit: Duration,
    now: UnixMillis,
) -> Result<SecretString, ModelError> {
    let secrets = Secrets::new(vec![code.to_owned(), verifier.expose_secret().to_owned()]);
    let unusable = |error: SetupError| ModelError::new(ModelErrorKind::InvalidRequest, &error.to_string());
    let url = format!("{}/auth/keys", api_url(site));
    let http = http_client(&url, HeaderMap::new(), &StreamLimits::default(), EgressScope::Anywhere).map_err(unusable)?;
    let body = json!({"code": code, "code_verifier": verifier.expose_secret(), "code_challenge_method": "S256"});
    let bad = |why| ModelError::new(ModelErrorKind::BadStream, why);
    let answer = fetch(http.post(url).json(&body), MAX_BYTES, "no key arrived", time_limit, now).await;
    let answer = answer.map_err(|error| secrets.redact(error))?.ok_or_else(|| bad("the answer is too large"))?;
    // The parser's error would quote the answer, which may contain a key.
    let exchanged = serde_json::from_slice::<KeyResponse>(&answer).map_err(|_| bad("the answer contains no key"))?;
    Ok(exchanged.key)
}
