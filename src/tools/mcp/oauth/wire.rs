//! Requests of a login, and where they may lead.
//!
//! What a server says of other servers is a way to send this program anywhere. It goes by https only, or on this machine if the
//! server itself is there; to the public internet only, unless the server itself is somewhere else; and never further than the
//! entry of the server may lead.

use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use serde_json::{Map, Value, json};

use super::challenge::Challenge;
use crate::support::outbound::{self, Forbidden, Reach};
use crate::support::{http, redact};

/// How long one request may take, and how long setting up its connection.
const REQUEST_LIMIT: Duration = Duration::from_secs(15);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The most bytes of an answer: the metadata of large authorization servers have a few thousand.
const MAX_BYTES: usize = 256 * 1024;

/// Asks on behalf of a login at one server.
pub struct Wire {
    server: Url,
    reach: Reach,
    is_inside: bool,
}

impl Wire {
    /// For a login at the server at `url`, which may lead as far as `reach`.
    ///
    /// # Errors
    /// In words: why not there.
    pub fn new(url: &str, reach: Reach) -> Result<Self, String> {
        let server = Url::parse(url).map_err(|error| format!("url: {error}"))?;
        outbound::check(&server, reach).map_err(|error| format!("url: {error}"))?;
        if server.scheme() != "https" && !http::is_loopback(server.as_str()) {
            return Err("url: a login is made over https:// only, because its token goes with every request".to_owned());
        }
        let mut secure = server.clone();
        let _ = secure.set_scheme("https");
        let is_inside = matches!(outbound::check(&secure, Reach::Public), Err(Forbidden::Address));
        Ok(Self { server, reach, is_inside })
    }

    /// The server.
    pub fn server(&self) -> &Url {
        &self.server
    }

    /// A place that a server has named as `what`, if it may be one.
    ///
    /// # Errors
    /// In words: why not.
    pub fn place(&self, text: &str, what: &str) -> Result<Url, String> {
        let url = Url::parse(text).map_err(|_| format!("{what} is no URL"))?;
        let is_secure = match url.scheme() {
            "https" => true,
            "http" => http::is_loopback(url.as_str()) && http::is_loopback(self.server.as_str()),
            _ => false,
        };
        if !is_secure || url.host_str().is_none_or(str::is_empty) {
            return Err(format!("{what} must begin with https:// (http:// only on this machine, for a server that is there, too)"));
        }
        if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
            return Err(format!("{what} must not have a user, a password or a fragment"));
        }
        if !self.is_inside && url.origin() != self.server.origin() {
            outbound::check(&url, Reach::Public)
                .map_err(|_| format!("{what} is an address that is not public, named by a server that is"))?;
        }
        outbound::check(&url, self.reach).map_err(|error| format!("{what}: {error}"))?;
        Ok(url)
    }

    fn client(&self, url: &Url) -> Result<Client, String> {
        // Whoever is asked is the one that was named.
        outbound::guarded(http::client_for(url.as_str()), self.reach)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_LIMIT)
            .timeout(REQUEST_LIMIT)
            .build()
            .map_err(|error| redact::error_text(&error.to_string()))
    }

    /// What the server says to somebody who has no token.
    ///
    /// # Errors
    /// In words: why it cannot be asked.
    pub async fn challenge(&self) -> Result<Challenge, String> {
        let ask = json!({"jsonrpc": "2.0", "id": 0, "method": "ping"});
        let asked = self.client(&self.server)?.post(self.server.clone()).header(ACCEPT, "application/json, text/event-stream");
        let answer = sent(asked.json(&ask), &self.server).await?;
        let answer = match answer.status() {
            // One that streams from the beginning takes no messages here.
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
                let asked = self.client(&self.server)?.get(self.server.clone()).header(ACCEPT, "text/event-stream");
                sent(asked, &self.server).await?
            }
            _ => answer,
        };
        let header = answer.headers().get(WWW_AUTHENTICATE).filter(|_| answer.status() == StatusCode::UNAUTHORIZED);
        Ok(header.and_then(|header| header.to_str().ok()).map(Challenge::read).unwrap_or_default())
    }

    /// A document, or nothing if there is none.
    ///
    /// # Errors
    /// In words: why it cannot be asked for.
    pub async fn document(&self, url: &Url) -> Result<Option<Map<String, Value>>, String> {
        let asked =
            self.client(url)?.get(url.clone()).header(ACCEPT, "application/json").header("mcp-protocol-version", "2025-11-25");
        let answer = sent(asked, url).await?;
        let status = answer.status();
        if status.is_server_error() {
            return Err(format!("{} answers {status}", shown(url)));
        }
        if !status.is_success() {
            return Ok(None);
        }
        // Some answer any path with a page.
        Ok(serde_json::from_slice(&body(answer, url).await?).ok())
    }

    /// Posts JSON.
    ///
    /// # Errors
    /// In words: why it cannot be asked.
    pub async fn post(&self, url: &Url, json: &Value) -> Result<(StatusCode, Option<Map<String, Value>>), String> {
        read(self.client(url)?.post(url.clone()).json(json), url).await
    }

    /// Posts a form, with credentials if there are any.
    ///
    /// # Errors
    /// In words: why it cannot be asked.
    pub async fn submit(
        &self,
        url: &Url,
        fields: &[(&str, &str)],
        basic: Option<(&str, &str)>,
    ) -> Result<(StatusCode, Option<Map<String, Value>>), String> {
        let mut asked = self.client(url)?.post(url.clone()).header(ACCEPT, "application/json");
        asked = asked.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(encoded(fields));
        if let Some((user, password)) = basic {
            // RFC 6749, 2.3.1: each part is encoded by itself.
            asked = asked.basic_auth(part(user), Some(part(password)));
        }
        read(asked, url).await
    }
}

/// A URL as it may be shown: its query may hold anything.
fn shown(url: &Url) -> String {
    format!("{}{}", url.origin().ascii_serialization(), url.path())
}

async fn sent(request: RequestBuilder, url: &Url) -> Result<Response, String> {
    request.send().await.map_err(|error| {
        let why = if error.is_timeout() { "does not answer in time" } else { "cannot be reached" };
        format!("{} {why}", shown(url))
    })
}

async fn read(request: RequestBuilder, url: &Url) -> Result<(StatusCode, Option<Map<String, Value>>), String> {
    let answer = sent(request, url).await?;
    let status = answer.status();
    Ok((status, serde_json::from_slice(&body(answer, url).await?).ok()))
}

async fn body(answer: Response, url: &Url) -> Result<Vec<u8>, String> {
    let body = http::body_within(answer, MAX_BYTES).await.map_err(|_| format!("the answer of {} breaks off", shown(url)))?;
    body.ok_or_else(|| format!("the answer of {} has more than {MAX_BYTES} bytes", shown(url)))
}

/// A form as it is sent.
fn encoded(fields: &[(&str, &str)]) -> String {
    fields.iter().map(|(name, value)| format!("{name}={}", part(value))).collect::<Vec<_>>().join("&")
}

/// What stays as it is: some servers do not decode what nobody had to encode.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

fn part(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// Whether a text can stand in a header as a token.
pub fn is_token(text: &str) -> bool {
    !text.is_empty() && HeaderValue::from_str(text).is_ok_and(|value| value.to_str().is_ok()) && !text.contains([' ', '\t'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("https://mcp.example/a", "https://auth.example/authorize?x=y", true)]
    #[case("https://mcp.example/a", "http://auth.example/authorize", false)]
    #[case("https://mcp.example/a", "http://127.0.0.1:8080/authorize", false)]
    #[case("https://mcp.example/a", "https://127.0.0.1/authorize", false)]
    #[case("https://mcp.example/a", "https://169.254.169.254/latest", false)]
    #[case("https://mcp.example/a", "https://vault.internal/x", false)]
    #[case("https://mcp.example/a", "javascript:alert(1)//https://a", false)]
    #[case("https://mcp.example/a", "data:text/html,x", false)]
    #[case("https://mcp.example/a", "file:///etc/passwd", false)]
    #[case("https://mcp.example/a", "https://user@auth.example/", false)]
    #[case("https://mcp.example/a", "https://auth.example/#x", false)]
    #[case("https://10.0.0.5/mcp", "https://10.0.0.6/authorize", true)]
    #[case("http://10.0.0.5/mcp", "http://10.0.0.5/authorize", false)]
    #[case("http://127.0.0.1:1/mcp", "http://localhost:2/authorize", true)]
    #[case("http://127.0.0.1:1/mcp", "http://auth.example/authorize", false)]
    fn places_are_judged(#[case] server: &str, #[case] place: &str, #[case] may_be: bool) {
        let judged = Wire::new(server, Reach::Anywhere).and_then(|wire| wire.place(place, "it"));
        assert_eq!(judged.is_ok(), may_be, "{judged:?}");
        if may_be && server.starts_with("https://mcp") {
            assert!(Wire::new(server, Reach::Public).unwrap().place(place, "it").is_ok());
        }
    }

    #[test]
    fn forms_and_tokens_are_plain() {
        assert_eq!(encoded(&[("a", "x y&z"), ("b", "ü"), ("c", "a-b._~+")]), "a=x%20y%26z&b=%C3%BC&c=a-b._~%2B");
        assert!(is_token("abc.def-_~+/=") && !is_token("a\r\nb") && !is_token("") && !is_token("a b") && !is_token("ü"));
    }
}
