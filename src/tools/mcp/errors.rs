//! Converts errors of the MCP library to texts, with their causes but without the URL of a server.
//!
//! The URL may be a secret by itself, as in `https://host/s/TOKEN/mcp`, and these texts reach models and conversations.

use std::error::Error;

use rmcp::transport::streamable_http_client::StreamableHttpError;

/// The text before a URL in an error of the HTTP client. A closing bracket follows the URL.
const BEFORE_URL: &str = " for url (";

/// Returns an error with its causes, without URLs. The library repeats causes in its texts; those are not added again.
pub fn error_chain_without_urls(error: &(dyn Error + 'static)) -> String {
    let mut text = without_url(&error.to_string());
    let mut cause = cause_of(error);
    while let Some(error) = cause {
        let part = without_url(&error.to_string());
        if !text.contains(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        cause = cause_of(error);
    }
    text
}

/// Returns the cause of an error. The library does not name an error of the HTTP client as the cause of its own error.
fn cause_of<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e (dyn Error + 'static)> {
    // An I/O error has the text of the error inside it, and names the cause of that one.
    if let Some(inner) = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
        return cause_of(inner);
    }
    match error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
        Some(StreamableHttpError::Client(error)) => error.source(),
        _ => error.source(),
    }
}

/// Removes URLs from the text of an error. The library often copies errors of the HTTP client as text, not as causes.
pub fn without_url(words: &str) -> String {
    let mut redacted = String::with_capacity(words.len());
    let mut rest = words;
    while let Some((before, from_url)) = rest.split_once(BEFORE_URL) {
        redacted.push_str(before);
        // A URL has no white space, but may contain brackets.
        let (url, after) = from_url.split_at(from_url.find(char::is_whitespace).unwrap_or(from_url.len()));
        redacted.push_str(url.rsplit_once(')').map_or("", |(_, behind)| behind));
        rest = after;
    }
    redacted.push_str(rest);
    redacted
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("error sending request for url (https://h/s/TOKEN/mcp)", "error sending request")]
    #[case("Client error: error for url (https://h/s/(TOKEN)/m), when sending: it", "Client error: error, when sending: it")]
    #[case("a for url (https://h/TOKEN): b for url (https://h/TOKEN)", "a: b")]
    #[case("cut off for url (https://h/TOKEN", "cut off")]
    #[case("no answer for url", "no answer for url")]
    #[case("", "")]
    fn no_url_stays_in_the_words_of_an_error(#[case] words: &str, #[case] redacted: &str) {
        assert_eq!(without_url(words), redacted);
    }

    /// Checks each way in which the library wraps an error of the HTTP client.
    #[tokio::test]
    async fn no_url_of_a_server_is_in_what_is_said_of_it() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/s/TOKEN/mcp", listener.local_addr().unwrap());
        // The port no longer has a listener.
        drop(listener);
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let refused = async || client.get(&url).send().await.unwrap_err();
        let bare = refused().await;
        assert!(bare.to_string().contains("TOKEN"), "the client says it: {bare}");
        let wrapped = StreamableHttpError::Client(refused().await);
        let caused = std::io::Error::other(StreamableHttpError::Client(refused().await));
        for said in [error_chain_without_urls(&bare), error_chain_without_urls(&wrapped), error_chain_without_urls(&caused)] {
            assert!(said.contains("error sending request") && !said.contains("TOKEN"), "{said}");
            assert!(said.contains("refused"), "the cause is missing: {said}");
        }
    }
}
