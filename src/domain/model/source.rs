//! Sources that search models and their providers name for an answer.

use crate::support::text::{prefix_chars, storable};

/// The longest address, in bytes. A longer one could not be opened.
const MAX_URL: usize = 2_048;

/// The longest title and the longest passage, in characters.
const MAX_TITLE: usize = 300;
const MAX_TEXT: usize = 1_000;

/// A source of an answer. It has an address or a title.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    pub url: Option<String>,
    pub title: Option<String>,
    pub text: Option<String>,
}

impl Source {
    /// Returns a source with texts cut to their limits. Drops an address that is too long or no web page. `None` if neither address
    /// nor title is left.
    pub fn new(url: &str, title: &str, text: &str) -> Option<Self> {
        let is_page = url.starts_with("https://") || url.starts_with("http://");
        let url = Some(url).filter(|url| is_page && url.len() <= MAX_URL && !url.contains(char::is_whitespace));
        let shortened = |text: &str, most: usize| {
            let text = prefix_chars(text.trim(), most);
            (!text.is_empty()).then(|| storable(text).into_owned())
        };
        let title = shortened(title, MAX_TITLE);
        let url = url.map(|url| storable(url).into_owned());
        (url.is_some() || title.is_some()).then(|| Self { url, title, text: shortened(text, MAX_TEXT) })
    }

    /// Returns whether both name the same page, or without an address the same passage.
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.url, &other.url) {
            (Some(one), Some(other)) => one == other,
            (None, None) => self == other,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Source;

    #[test]
    fn source_without_page_and_title_is_none() {
        let source = |url: &str, title: &str| Source::new(url, title, "").map(|source| (source.url.is_some(), source.title));
        assert_eq!(source("https://example.com/a", ""), Some((true, None)));
        assert_eq!(source("javascript:alert(1)", "A title"), Some((false, Some("A title".to_owned()))));
        for url in ["", "javascript:alert(1)", "file:///etc/passwd", &format!("https://{}", "a".repeat(3_000)), "https://a b"] {
            assert_eq!(source(url, " "), None, "{url}");
        }
    }
}
