//! Requests of a login, and their egress policy.
//!
//! A malicious server could use its metadata to send this program to any URL. So a URL must be https, unless it and the server are on this
//! machine. It must be public, unless the server is not. And the egress policy of the server's entry must allow it.

use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use serde_json::{Map, Value, json};

use crate::support::net::egress::{EgressDenied, EgressScope};
use crate::support::net::{egress, http};
use crate::support::redact;

const REQUEST_LIMIT: Duration = Duration::from_secs(15);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The largest answer, in bytes: metadata of large authorization servers have a few thousand.
const MAX_BYTES: usize = 256 * 1024;

/// Sends the requests of a login at one server.
pub struct Wire {
    pub server: Url,
    egress: EgressScope,
    /// Whether the server is not public.
    is_inside: bool,
}

impl Wire {
    pub fn new(url: &str, egress: EgressScope) -> Result<Self, String> {
        let server = Url::parse(url).map_err(|error| format!("url: {error}"))?;
        egress::check(&server, egress).map_err(|error| format!("url: {error}"))?;
        if server.scheme() != "https" && !http::is_loopback(server.as_str()) {
            return Err("url: a login requires https://, because its token is sent with every request".to_owned());
        }
        let mut secure = server.clone();
        let _ = secure.set_scheme("https");
        let is_inside = matches!(egress::check(&secure, EgressScope::Public), Err(EgressDenied::Address));
        Ok(Self { server, egress, is_inside })
    }

    /// Checks a URL that a server has sent. Errors call it `subject`.
    pub fn check_url(&self, text: &str, subject: &str) -> Result<Url, String> {
        let url = Url::parse(text).map_err(|_| format!("{subject} is not a URL"))?;
        let is_secure = match url.scheme() {
            "https" => true,
            "http" => http::is_loopback(url.as_str()) && http::is_loopback(self.server.as_str()),
            _ => false,
        };
        if !is_secure || url.host_str().is_none_or(str::is_empty) {
            return Err(format!(
                "{subject} must begin with https:// (http:// is allowed only if it and the server are on this machine)"
            ));
        }
        if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
            return Err(format!("{subject} must not have a user, a password or a fragment"));
        }
        if !self.is_inside && url.origin() != self.server.origin() {
            egress::check(&url, EgressScope::Public)
                .map_err(|_| format!("{subject} is not a public address, although the server is public"))?;
        }
        egress::check(&url, self.egress).map_err(|error| format!("{subject}: {error}"))?;
        Ok(url)
    }

    fn client(&self, url: &Url) -> Result<Client, String> {
        // No redirects, because only this URL was checked.
        egress::with_egress_check(http::client_for(url.as_str()), self.egress)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_LIMIT)
            .timeout(REQUEST_LIMIT)
            .build()
            .map_err(|error| redact::error_text(&error.to_string()))
    }

    /// Returns the challenge of the server for a request without a token.
    pub async fn challenge(&self) -> Result<Challenge, String> {
        let ask = json!({"jsonrpc": "2.0", "id": 0, "method": "ping"});
        let builder = self.client(&self.server)?.post(self.server.clone()).header(ACCEPT, "application/json, text/event-stream");
        let answer = sent(builder.json(&ask), &self.server).await?;
        let answer = match answer.status() {
            // A server with the SSE transport accepts no messages at this URL.
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
                let builder = self.client(&self.server)?.get(self.server.clone()).header(ACCEPT, "text/event-stream");
                sent(builder, &self.server).await?
            }
            _ => answer,
        };
        let header = answer.headers().get(WWW_AUTHENTICATE).filter(|_| answer.status() == StatusCode::UNAUTHORIZED);
        Ok(header.and_then(|header| header.to_str().ok()).map(Challenge::read).unwrap_or_default())
    }

    /// Reads a JSON object; `None` if there is none.
    pub async fn document(&self, url: &Url) -> Result<Option<Map<String, Value>>, String> {
        let builder =
            self.client(url)?.get(url.clone()).header(ACCEPT, "application/json").header("mcp-protocol-version", "2025-11-25");
        let answer = sent(builder, url).await?;
        let status = answer.status();
        if status.is_server_error() {
            return Err(format!("{} answers {status}", without_query(url)));
        }
        if !status.is_success() {
            return Ok(None);
        }
        // Some servers answer every path with an HTML page.
        Ok(serde_json::from_slice(&body(answer, url).await?).ok())
    }

    pub async fn post(&self, url: &Url, json: &Value) -> Result<(StatusCode, Option<Map<String, Value>>), String> {
        read(self.client(url)?.post(url.clone()).json(json), url).await
    }

    pub async fn submit(
        &self,
        url: &Url,
        fields: &[(&str, &str)],
        basic: Option<(&str, &str)>,
    ) -> Result<(StatusCode, Option<Map<String, Value>>), String> {
        let mut builder = self.client(url)?.post(url.clone()).header(ACCEPT, "application/json");
        builder = builder.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(encoded(fields));
        if let Some((user, password)) = basic {
            // RFC 6749, 2.3.1: user and password are encoded separately.
            builder = builder.basic_auth(part(user), Some(part(password)));
        }
        read(builder, url).await
    }
}

/// Returns a URL without its query, which may contain secrets.
fn without_query(url: &Url) -> String {
    format!("{}{}", url.origin().ascii_serialization(), url.path())
}

async fn sent(request: RequestBuilder, url: &Url) -> Result<Response, String> {
    request.send().await.map_err(|error| match error.is_timeout() {
        true => format!("{} did not answer in time", without_query(url)),
        false => format!("{} cannot be reached: {}", without_query(url), http::chain_without_url(error)),
    })
}

async fn read(request: RequestBuilder, url: &Url) -> Result<(StatusCode, Option<Map<String, Value>>), String> {
    let answer = sent(request, url).await?;
    let status = answer.status();
    Ok((status, serde_json::from_slice(&body(answer, url).await?).ok()))
}

async fn body(answer: Response, url: &Url) -> Result<Vec<u8>, String> {
    let body =
        http::body_within(answer, MAX_BYTES).await.map_err(|_| format!("the answer of {} was cut off", without_query(url)))?;
    body.ok_or_else(|| format!("the answer of {} has more than {MAX_BYTES} bytes", without_query(url)))
}

fn encoded(fields: &[(&str, &str)]) -> String {
    fields.iter().map(|(name, value)| format!("{name}={}", part(value))).collect::<Vec<_>>().join("&")
}

/// Unreserved characters stay unencoded, because some servers do not decode them.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

fn part(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// Returns whether a text is valid as a token in a header.
pub fn is_token(text: &str) -> bool {
    !text.is_empty() && HeaderValue::from_str(text).is_ok_and(|value| value.to_str().is_ok()) && !text.contains([' ', '\t'])
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Challenge {
    /// The URL of the resource metadata.
    pub metadata: Option<String>,
    pub scope: Option<String>,
}

impl Challenge {
    /// Parses a header. Schemes other than `Bearer` are ignored.
    pub fn read(header: &str) -> Self {
        let mut challenge = Self::default();
        let Some(at) = header.to_ascii_lowercase().find("bearer") else { return challenge };
        let mut rest = header.get(at + "bearer".len()..).unwrap_or_default();
        while let Some((name, after)) = rest.split_once('=') {
            let name = name.trim_matches([' ', ',', '\t']);
            let (value, after) = value(after);
            match name.to_ascii_lowercase().as_str() {
                "resource_metadata" => challenge.metadata = challenge.metadata.or(Some(value)),
                "scope" => challenge.scope = challenge.scope.or(Some(value)).filter(|scope| !scope.is_empty()),
                _ => {}
            }
            rest = after;
        }
        challenge
    }
}

/// Parses a value, quoted or not, and returns it with the rest.
fn value(text: &str) -> (String, &str) {
    let text = text.trim_start();
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let (mut value, mut escaped) = (String::new(), false);
    for (at, c) in quoted.char_indices() {
        match c {
            _ if escaped => {
                value.push(c);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => return (value, &quoted[at + 1..]),
            c => value.push(c),
        }
    }
    (value, "")
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
        let judged = Wire::new(server, EgressScope::Anywhere).and_then(|wire| wire.check_url(place, "it"));
        assert_eq!(judged.is_ok(), may_be, "{judged:?}");
        if may_be && server.starts_with("https://mcp") {
            assert!(Wire::new(server, EgressScope::Public).unwrap().check_url(place, "it").is_ok());
        }
    }

    #[test]
    fn forms_and_tokens_are_plain() {
        assert_eq!(encoded(&[("a", "x y&z"), ("b", "ü"), ("c", "a-b._~+")]), "a=x%20y%26z&b=%C3%BC&c=a-b._~%2B");
        assert!(is_token("abc.def-_~+/=") && !is_token("a\r\nb") && !is_token("") && !is_token("a b") && !is_token("ü"));
    }
}

#[cfg(test)]
mod www_authenticate_tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("Bearer", None, None)]
    #[case("Basic realm=\"a\"", None, None)]
    #[case("Bearer resource_metadata=\"https://a/b?c=d\", scope=\"x y\"", Some("https://a/b?c=d"), Some("x y"))]
    #[case(
        "Basic realm=\"a\", bearer error=\"invalid_token\",Resource_Metadata=https://a/b , scope=x",
        Some("https://a/b"),
        Some("x")
    )]
    #[case("Bearer error_description=\"say \\\"scope=evil\\\"\", scope=\"\"", None, None)]
    #[case("Bearer resource_metadata=\"https://a", Some("https://a"), None)]
    #[case("Bearer ===,,\"", None, None)]
    fn challenges_are_read(#[case] header: &str, #[case] metadata: Option<&str>, #[case] scope: Option<&str>) {
        let expected = Challenge { metadata: metadata.map(str::to_owned), scope: scope.map(str::to_owned) };
        assert_eq!(Challenge::read(header), expected);
    }
}
