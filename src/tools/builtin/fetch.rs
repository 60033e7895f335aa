//! Fetches a page for the model.
//!
//! The URL may come from an untrusted page, so the egress policy checks it and each redirect.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;
use reqwest::header::CONTENT_TYPE;
use reqwest::redirect::Policy;
use reqwest::{Client, Response, Url};

use super::page_text;
use crate::domain::conversation::ToolContent;
use crate::domain::conversation::content::tool_binary;
use crate::domain::conversation::file::is_text_type;
use crate::support::net::egress::{self, EgressDenied, EgressScope};
use crate::support::net::http::{USER_AGENT, error_chain};
use crate::support::{redact, text};

/// The largest page, in bytes; only the beginning of a larger page is read.
const MAX_BODY: usize = 1024 * 1024;
/// The largest image, document or other file, in bytes.
const MAX_FILE: usize = 8 * 1024 * 1024;
const MAX_REDIRECTS: usize = 5;
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const TOTAL_LIMIT: Duration = Duration::from_secs(25);
/// The part of an error page that the model gets, in bytes.
const MAX_ERROR: usize = 500;

pub struct Fetcher {
    egress: EgressScope,
    client: Result<Client, String>,
}

impl Fetcher {
    pub fn new(egress: EgressScope) -> Self {
        let builder =
            Client::builder().user_agent(USER_AGENT).connect_timeout(CONNECT_LIMIT).timeout(TOTAL_LIMIT).referer(false).redirect(
                Policy::custom(move |attempt| match may_follow(attempt.url(), attempt.previous().len(), egress) {
                    Ok(true) => attempt.follow(),
                    Ok(false) => attempt.error(format!("more than {MAX_REDIRECTS} redirects")),
                    Err(forbidden) => attempt.error(forbidden),
                }),
            );
        let client = egress::with_egress_check(builder, egress).build().map_err(|error| error.to_string());
        Self { egress, client }
    }

    /// Returns the status, the type and the text of a page. A page that is not text is returned as a file.
    ///
    /// HTML becomes readable text, because a model pays for each tag that it reads. The error is a text for the model.
    pub async fn fetch(&self, url: &str) -> Result<Vec<ToolContent>, String> {
        let url = Url::parse(url.trim())
            .map_err(|error| format!("this is not a URL ({error}): send the complete URL, such as https://example.com/page"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("{}: URLs cannot be fetched, only https: ones", url.scheme()));
        }
        egress::check(&url, self.egress).map_err(|error| error.to_string())?;
        let client = self.client.as_ref().map_err(Clone::clone)?;
        let answer = client.get(url).send().await.map_err(|error| error_text(&error))?;
        let status = answer.status();
        let kind = answer.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("text/plain").to_owned();
        if !is_text_type(&kind) {
            if !status.is_success() {
                return Err(format!("the page answered {status} with {kind}, which is not text"));
            }
            return file(answer, &format!("{status}, {kind}"), &kind).await;
        }
        let is_html = page_text::is_html(&kind);
        // The text of an HTML error page often begins far behind its head.
        let limit = if status.is_success() || is_html { MAX_BODY } else { MAX_ERROR };
        let (whole, place) = (answer.content_length(), answer.url().clone());
        let (mut body, is_cut) = body(answer, limit).await?;
        if is_cut {
            body.truncate(without_partial_character(&body).len());
        }
        let read = body.len();
        let text = if is_html {
            let media_type = kind.clone();
            let reading = tokio::task::spawn_blocking(move || page_text::readable(&body, &media_type, &place, MAX_BODY));
            reading.await.map_err(|error| format!("the page cannot be read: {error}"))?
        } else {
            String::from_utf8_lossy(&body).into_owned()
        };
        if !status.is_success() {
            return Err(format!("the page answered {status}: {}", text::prefix(&text, MAX_ERROR)));
        }
        let of = whole.map(|whole| format!(" of {whole}")).unwrap_or_default();
        let note = if is_cut { format!("\n[cut: the first {read}{of} bytes are shown]") } else { String::new() };
        Ok(vec![ToolContent::text(format!("{status}, {kind}\n\n{text}{note}"))])
    }
}

/// Reads a body up to the limit, and returns whether it has more.
async fn body(mut answer: Response, limit: usize) -> Result<(Vec<u8>, bool), String> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|error| error_text(&error))? {
        let room = limit.saturating_sub(body.len());
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() > room {
            return Ok((body, true));
        }
    }
    Ok((body, false))
}

/// Reads an image, document or other file. A part of a file would be useless.
async fn file(answer: Response, head: &str, kind: &str) -> Result<Vec<ToolContent>, String> {
    let name = answer.url().path_segments().and_then(|mut path| path.next_back()).map(str::to_owned);
    let name = name.map(|name| percent_decode_str(&name).decode_utf8_lossy().into_owned()).filter(|name| !name.is_empty());
    let (body, is_cut) = body(answer, MAX_FILE).await?;
    if is_cut {
        return Err(format!("the page is {kind}, and larger than the limit of {MAX_FILE} bytes for a file"));
    }
    let file = tool_binary("file", kind, name.as_deref(), &STANDARD.encode(&body));
    Ok(vec![ToolContent::text(head), file])
}

/// Removes an incomplete UTF-8 character at the end. Reads only the last three bytes, because the text may have another encoding.
fn without_partial_character(cut: &[u8]) -> &[u8] {
    let is_begun =
        |tail: &&[u8]| std::str::from_utf8(tail).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none());
    let partial_char = (1..=3).filter_map(|length| cut.get(cut.len().checked_sub(length)?..)).find(is_begun);
    &cut[..cut.len() - partial_char.map_or(0, <[u8]>::len)]
}

/// Returns whether the `count`-th redirect may lead to `url`. An IP address is checked here, because no name is resolved for it.
fn may_follow(url: &Url, count: usize, egress: EgressScope) -> Result<bool, EgressDenied> {
    egress::check(url, egress)?;
    Ok(count <= MAX_REDIRECTS)
}

/// Returns an error with its causes. The URL in it is the model's own.
fn error_text(error: &reqwest::Error) -> String {
    redact::error_text(&error_chain(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::conversation::message::BinaryContent;
    use axum::Router;
    use axum::http::StatusCode;
    use axum::response::{Html, Redirect};
    use axum::routing::get;

    async fn pages() -> (String, tokio::task::JoinSet<()>) {
        let router = Router::new()
            .route("/page", get(async || "a page \u{1F600}"))
            .route("/article", get(async || Html("<title>News</title><script>x()</script><p>All <a href=moved>well</a>.")))
            .route("/gone", get(async || (StatusCode::GONE, Html("<style>p{}</style>".repeat(100) + "<p>No longer here."))))
            .route("/moved", get(async || Redirect::temporary("/page")))
            .route("/round", get(async || Redirect::temporary("/round")))
            .route("/large", get(async || "x".to_owned() + &"\u{e4}".repeat(MAX_BODY / 2)))
            .route("/a%20report.pdf", get(async || ([(CONTENT_TYPE, "application/pdf")], b"%PDF-\xff".to_vec())))
            .route("/huge", get(async || ([(CONTENT_TYPE, "image/png")], vec![1_u8; MAX_FILE + 1])));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let mut serving = tokio::task::JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.unwrap() });
        (base, serving)
    }

    #[tokio::test]
    async fn pages_are_read_to_a_limit() {
        let (base, _serving) = pages().await;
        let fetcher = Fetcher::new(EgressScope::Anywhere);
        let page = fetcher.fetch(&format!("{base}/moved")).await.unwrap();
        assert_eq!(page, [ToolContent::text("200 OK, text/plain; charset=utf-8\n\na page \u{1F600}")]);
        let large = fetcher.fetch(&format!("{base}/large")).await.unwrap();
        let large = large[0].as_text().unwrap();
        let note = format!("\u{e4}\n[cut: the first {} of {} bytes are shown]", MAX_BODY - 1, MAX_BODY + 1);
        assert!(large.ends_with(&note) && large.len() < MAX_BODY + 200, "no half of a character: {:?}", &large[MAX_BODY..]);
        for (path, reason) in [("round", "redirects"), ("huge", "larger than"), ("none", "404")] {
            let error = fetcher.fetch(&format!("{base}/{path}")).await.unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[tokio::test]
    async fn html_page_is_fetched_as_readable_text() {
        let (base, _serving) = pages().await;
        let fetcher = Fetcher::new(EgressScope::Anywhere);
        let page = fetcher.fetch(&format!("{base}/article")).await.unwrap();
        let expected = format!("200 OK, text/html; charset=utf-8\n\nNews\n\nAll [well]({base}/moved).");
        assert_eq!(page, [ToolContent::text(expected)]);
        let error = fetcher.fetch(&format!("{base}/gone")).await.unwrap_err();
        assert_eq!(error, "the page answered 410 Gone: No longer here.");
    }

    #[tokio::test]
    async fn fetched_file_carries_its_bytes_and_name() {
        let (base, _serving) = pages().await;
        let fetched = Fetcher::new(EgressScope::Anywhere).fetch(&format!("{base}/a%20report.pdf")).await.unwrap();
        let file = BinaryContent::inline("application/pdf", Some("a report.pdf".to_owned()), STANDARD.encode(b"%PDF-\xff"));
        assert_eq!(fetched, [ToolContent::text("200 OK, application/pdf"), ToolContent::File(file)]);
    }

    #[test]
    fn no_half_of_a_character_is_left() {
        let long = "\u{1F600}".as_bytes();
        for length in 0..4 {
            assert_eq!(without_partial_character(&[b"\xe9a", &long[..length]].concat()), b"\xe9a");
        }
        assert_eq!(without_partial_character(&[b"a", long].concat()), [b"a", long].concat());
        assert_eq!(without_partial_character(b"\xe9\xff"), b"\xe9\xff");
        assert_eq!(without_partial_character(b""), b"");
    }

    #[tokio::test]
    async fn nothing_inside_is_reached() {
        let (base, _serving) = pages().await;
        let fetcher = Fetcher::new(EgressScope::Public);
        for (url, reason) in [
            (format!("{base}/page"), "only https"),
            (base.replace("http:", "https:"), "not public"),
            ("https://localhost/".to_owned(), "not public"),
            ("file:///etc/passwd".to_owned(), "cannot be fetched"),
            ("example.com".to_owned(), "not a URL"),
        ] {
            let error = fetcher.fetch(&url).await.unwrap_err();
            assert!(error.contains(reason), "{url}: {error}");
        }
    }

    #[test]
    fn redirects_are_judged_like_the_first_address() {
        let url = |text: &str| Url::parse(text).unwrap();
        assert_eq!(may_follow(&url("https://example.com/"), 1, EgressScope::Public), Ok(true));
        assert_eq!(may_follow(&url("https://169.254.169.254/latest"), 1, EgressScope::Public), Err(EgressDenied::Address));
        assert_eq!(may_follow(&url("http://example.com/"), 1, EgressScope::Public), Err(EgressDenied::Scheme));
        assert_eq!(may_follow(&url("https://example.com/"), MAX_REDIRECTS + 1, EgressScope::Public), Ok(false));
    }
}
