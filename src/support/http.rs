//! Clients of HTTP, bodies within limits, and errors in words.

use std::error::Error;
use std::net::IpAddr;

use reqwest::{Client, ClientBuilder, Response, Url};

/// The beginning of a client for the server at `url`. Proxies of the environment do not hold for this machine: `HTTP_PROXY` is
/// set for the world outside, and the proxy's own loopback is another one.
pub fn client_for(url: &str) -> ClientBuilder {
    let builder = Client::builder();
    if is_loopback(url) { builder.no_proxy() } else { builder }
}

/// Whether a URL leads to this machine, by its name or address.
#[must_use]
pub fn is_loopback(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    let host = url.host_str().unwrap_or_default();
    let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    address.map_or(host == "localhost" || host.ends_with(".localhost"), |address| address.is_loopback())
}

/// Reads a body; `None` if it has more than `limit` bytes.
///
/// # Errors
/// If the connection breaks off.
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

/// Returns an error with its causes. A cause whose words end those before it is not repeated.
#[must_use]
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

/// Returns an error with its causes, without the URL, which may hold a key.
#[must_use]
pub fn chain_without_url(error: reqwest::Error) -> String {
    error_chain(&error.without_url())
}

#[cfg(test)]
mod tests {
    use super::*;

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
