//! Getting a key of OpenRouter for the code of a login: <https://openrouter.ai/docs/use-cases/oauth-pkce>.

use std::time::Duration;

use reqwest::Url;
use reqwest::header::HeaderMap;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::connection::http_client;
use super::failure::RequestNames;
use super::limits::{self, StreamLimits};
use super::model_client::SetupError;
use super::secrets::Secrets;
use super::transport::{network_error, refusal};
use crate::domain::model::{ModelError, ModelErrorKind};
use crate::support::clock::UnixMillis;
use crate::support::http::body_within;
use crate::support::outbound::Reach;

/// The most bytes of an answer.
const MAX_BYTES: usize = 64 * 1024;

#[derive(Deserialize)]
struct Exchanged {
    key: SecretString,
}

/// Where the owner of an account agrees.
///
/// # Errors
/// If `site` is no URL.
pub fn login_url(site: &str, callback: &str, challenge: &str) -> Result<String, SetupError> {
    let refuse = |reason: String| SetupError::BaseUrl { url: crate::support::redact::error_text(site), reason };
    let mut url = Url::parse(&format!("{}/auth", site.trim_end_matches('/'))).map_err(|error| refuse(error.to_string()))?;
    url.query_pairs_mut()
        .append_pair("callback_url", callback)
        .append_pair("code_challenge", challenge)
        .append_pair("code_challenge_method", "S256");
    Ok(url.into())
}

/// The API that the keys are for.
#[must_use]
pub fn api_url(site: &str) -> String {
    format!("{}/api/v1", site.trim_end_matches('/'))
}

/// The key for a code.
///
/// # Errors
/// A typed failure, like that of a model call.
pub async fn exchange(
    site: &str,
    code: &str,
    verifier: &SecretString,
    patience: Duration,
    now: UnixMillis,
) -> Result<SecretString, ModelError> {
    let secrets = Secrets::new(vec![code.to_owned(), verifier.expose_secret().to_owned()]);
    ask(site, code, verifier, patience, now).await.map_err(|error| secrets.hide(error))
}

async fn ask(
    site: &str,
    code: &str,
    verifier: &SecretString,
    patience: Duration,
    now: UnixMillis,
) -> Result<SecretString, ModelError> {
    let unusable = |error: SetupError| ModelError::new(ModelErrorKind::InvalidRequest, &error.to_string());
    let url = format!("{}/auth/keys", api_url(site));
    let http = http_client(&url, HeaderMap::new(), &StreamLimits::default(), Reach::Anywhere).map_err(unusable)?;
    let body = json!({"code": code, "code_verifier": verifier.expose_secret(), "code_challenge_method": "S256"});
    let asked = timeout(patience, async {
        let response = http.post(url).json(&body).send().await.map_err(network_error)?;
        if !response.status().is_success() {
            return Err(refusal(response, Instant::now() + patience, now, RequestNames::default()).await);
        }
        let body = body_within(response, MAX_BYTES).await.map_err(network_error)?;
        body.ok_or_else(|| ModelError::new(ModelErrorKind::BadStream, "the answer is too long"))
    });
    let body = asked.await.map_err(|_| limits::timeout("no key came", patience))??;
    // The error would quote the answer, in which a key may be.
    let exchanged = serde_json::from_slice::<Exchanged>(&body);
    let exchanged = exchanged.map_err(|_| ModelError::new(ModelErrorKind::BadStream, "the answer holds no key"))?;
    Ok(exchanged.key)
}
