//! Errors of the library in words: with their causes, and without where a server is.
//!
//! The URL of a server may be a secret by itself, as in `https://host/s/TOKEN/mcp`; what is said here goes to models and into
//! conversations. Who may know the URL reads it in the entry.

use std::error::Error;

/// What stands before a URL in an error of the HTTP client, and before the closing bracket behind it.
const BEFORE_URL: &str = " for url (";

/// An error with its causes, without URLs that were asked.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = without_url(&error.to_string());
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = without_url(&error.to_string());
        if !text.contains(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        cause = error.source();
    }
    text
}

/// The words of an error without URLs that were asked. The library has the errors of the HTTP client in its own words and not always as
/// their causes, so that only the words can be looked at.
pub fn without_url(words: &str) -> String {
    let mut shown = String::with_capacity(words.len());
    let mut rest = words;
    while let Some((before, from_url)) = rest.split_once(BEFORE_URL) {
        shown.push_str(before);
        // No URL has white space in it, but one may have brackets.
        let (url, after) = from_url.split_at(from_url.find(char::is_whitespace).unwrap_or(from_url.len()));
        shown.push_str(url.rsplit_once(')').map_or("", |(_, behind)| behind));
        rest = after;
    }
    shown.push_str(rest);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use rmcp::transport::streamable_http_client::StreamableHttpError;
    use rstest::rstest;

    #[rstest]
    #[case("error sending request for url (https://h/s/TOKEN/mcp)", "error sending request")]
    #[case("Client error: error for url (https://h/s/(TOKEN)/m), when sending: it", "Client error: error, when sending: it")]
    #[case("a for url (https://h/TOKEN): b for url (https://h/TOKEN)", "a: b")]
    #[case("cut off for url (https://h/TOKEN", "cut off")]
    #[case("no answer for url", "no answer for url")]
    #[case("", "")]
    fn no_url_stays_in_the_words_of_an_error(#[case] words: &str, #[case] shown: &str) {
        assert_eq!(without_url(words), shown);
    }

    /// However the library wraps what the HTTP client says.
    #[tokio::test]
    async fn no_url_of_a_server_is_in_what_is_said_of_it() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/s/TOKEN/mcp", listener.local_addr().unwrap());
        // Nobody listens there any more.
        drop(listener);
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let refused = async || client.get(&url).send().await.unwrap_err();
        let bare = refused().await;
        assert!(bare.to_string().contains("TOKEN"), "the client says it: {bare}");
        let wrapped = StreamableHttpError::Client(refused().await);
        let caused = std::io::Error::other(StreamableHttpError::Client(refused().await));
        for said in [chain(&bare), chain(&wrapped), chain(&caused)] {
            assert!(said.contains("error sending request") && !said.contains("TOKEN"), "{said}");
        }
    }
}
