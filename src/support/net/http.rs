//! HTTP clients, size-limited bodies, and texts of errors.

use std::error::Error;
use std::net::IpAddr;

use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Response, Url};

/// The `User-Agent` of every request. Some firewalls refuse requests without this header, because they take them for bots.
pub const USER_AGENT: &str = concat!("capstan/", env!("CARGO_PKG_VERSION"));

const MAX_REDIRECTS: usize = 5;

/// Parts of a path from this length on may be secrets, as in `https://host/s/TOKEN/mcp`.
const SECRET_LENGTH: usize = 8;

/// Returns the builder of a client for the server at `url`. A loopback address bypasses the environment's proxy, because the proxy
/// may run on another machine.
pub fn client_for(url: &str) -> ClientBuilder {
    let builder = Client::builder().user_agent(USER_AGENT);
    if is_loopback(url) { builder.no_proxy() } else { builder }
}

/// Returns the policy for redirects. Follows only redirects that keep the method (307, 308) and the origin. Any other redirect is
/// an error that names the destination, because it could send credentials to another server.
pub fn redirects_within_origin() -> Policy {
    Policy::custom(|attempt| {
        let from = attempt.previous().last();
        let is_within = from.is_some_and(|from| from.origin() == attempt.url().origin());
        if is_within && matches!(attempt.status().as_u16(), 307 | 308) && attempt.previous().len() <= MAX_REDIRECTS {
            return attempt.follow();
        }
        let target = from.map_or_else(String::new, |from| shown_redirect(from, attempt.url()));
        let status = attempt.status().as_u16();
        attempt.error(format!("HTTP {status} redirects to {target}, which is not followed: configure the URL of the server itself"))
    })
}

/// Returns the destination of a redirect without its query, and without long parts of the path that the first URL has, too.
fn shown_redirect(from: &Url, to: &Url) -> String {
    let is_repeated = |part: &str| part.len() >= SECRET_LENGTH && from.path().split('/').any(|known| known == part);
    let parts: Vec<&str> = to.path().split('/').map(|part| if is_repeated(part) { "..." } else { part }).collect();
    to.origin().ascii_serialization() + &parts.join("/")
}

/// Returns whether the host of a URL is a loopback name or address.
pub fn is_loopback(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    let host = url.host_str().unwrap_or_default();
    let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    address.map_or(host == "localhost" || host.ends_with(".localhost"), |address| address.is_loopback())
}

/// Reads a body; `None` if it is larger than `limit` bytes.
pub async fn body_within(mut response: Response, limit: usize) -> Result<Option<Vec<u8>>, reqwest::Error> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > limit {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body))
}

/// Returns an error with its causes, without a cause that the text already ends with.
pub fn error_chain(error: &dyn Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !words.ends_with(&text) {
            words.push_str(": ");
            words.push_str(&text);
        }
        cause = error.source();
    }
    words
}

/// Returns an error with its causes, but without the URL, which may contain a key.
pub fn chain_without_url(error: reqwest::Error) -> String {
    error_chain(&error.without_url())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_redirect_repeats_no_secret_of_the_first_url() {
        let url = |text| Url::parse(text).unwrap();
        let from = url("http://h/s/TOKEN-OF-MANY/mcp?key=x");
        assert_eq!(shown_redirect(&from, &url("https://h/s/TOKEN-OF-MANY/mcp/?key=x")), "https://h/s/.../mcp/");
        assert_eq!(shown_redirect(&from, &url("https://sso.example/login?state=x")), "https://sso.example/login");
    }

    #[test]
    fn this_machine_has_many_names() {
        for url in [
            "http://127.0.0.1:11434/v1",
            "http://127.9.9.9",
            "HTTP://LocalHost:1",
            "http://me:pw@[::1]:8080/x",
            "http://a.localhost/",
        ] {
            assert!(is_loopback(url), "{url}");
        }
        for url in ["http://localhost.example.org", "http://127.0.0.1.example.org", "https://10.0.0.1", "localhost:80", ""] {
            assert!(!is_loopback(url), "{url}");
        }
    }
}
