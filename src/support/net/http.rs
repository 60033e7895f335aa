//! HTTP clients, bodies within limits, and texts of errors.

use std::error::Error;
use std::net::IpAddr;

use reqwest::{Client, ClientBuilder, Response, Url};

/// Returns the builder of a client for the server at `url`. A loopback address never goes through a proxy of the environment: the
/// proxy's loopback is another one.
pub fn client_for(url: &str) -> ClientBuilder {
    let builder = Client::builder();
    if is_loopback(url) { builder.no_proxy() } else { builder }
}

/// Returns whether the host of a URL is a loopback name or address.
pub fn is_loopback(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    let host = url.host_str().unwrap_or_default();
    let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    address.map_or(host == "localhost" || host.ends_with(".localhost"), |address| address.is_loopback())
}

/// Reads a body; `None` if it has more than `limit` bytes.
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

/// Returns an error with its causes. A cause that already ends the text is not repeated.
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
