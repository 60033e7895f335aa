//! The connection to one provider: its HTTP client, the headers of every request, and the secrets in them.

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, redirect};
use secrecy::{ExposeSecret as _, SecretString};

use crate::provider::errors::secrets::Secrets;
use crate::provider::http::endpoint::endpoint_url;
use crate::provider::http::timeouts::StreamLimits;
use crate::provider::model_client::SetupError;
use crate::support::net::egress::{self, EgressScope};
use crate::support::net::http::client_for;

pub(in crate::provider) struct Connection {
    /// Sends the headers with every request.
    pub(in crate::provider) http: Client,
    /// The headers of every request, all marked as secret.
    pub(in crate::provider) headers: HeaderMap,
    pub(in crate::provider) secrets: Secrets,
}

/// Builds an HTTP client for one provider. It follows no redirect: the next host would receive the key and the conversation.
pub(in crate::provider) fn http_client(
    url: &str,
    headers: HeaderMap,
    limits: &StreamLimits,
    egress: EgressScope,
) -> Result<Client, SetupError> {
    egress::check(&endpoint_url(url, "")?, egress)?;
    egress::with_egress_check(client_for(url), egress)
        .default_headers(headers)
        .connect_timeout(limits.connect)
        .redirect(redirect::Policy::none())
        .build()
        .map_err(|error| SetupError::Client(error.without_url()))
}

/// Returns the value of a header. The error names only the header, because its value may be secret.
pub(in crate::provider) fn header(name: &str, value: &str) -> Result<HeaderValue, SetupError> {
    HeaderValue::try_from(value).map_err(|_| SetupError::Header { name: name.to_owned() })
}

pub(in crate::provider) fn header_name(name: &str) -> Result<HeaderName, SetupError> {
    HeaderName::try_from(name).map_err(|_| SetupError::Header { name: name.to_owned() })
}

/// Returns the header with the key: `authorization` as a bearer token, any other header with the plain key. A blank key counts as no key.
pub(in crate::provider) fn key_header(name: &str, key: Option<&SecretString>) -> Result<HeaderMap, SetupError> {
    let mut headers = HeaderMap::new();
    if let Some(key) = key.map(|key| key.expose_secret().trim()).filter(|key| !key.is_empty()) {
        let is_bearer = name.eq_ignore_ascii_case("authorization");
        let value = if is_bearer { header(name, &format!("Bearer {key}"))? } else { header(name, key)? };
        headers.insert(header_name(name)?, value);
    }
    Ok(headers)
}
