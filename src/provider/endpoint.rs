//! Where the requests of chat completions and of Responses go.

use reqwest::Url;

use super::SetupError;
use super::transport::endpoint_url;
use crate::domain::model::{ModelError, ModelErrorKind};

/// A base URL that may name chat completions already, without them, so that another operation can stand there.
pub(super) fn without_operation(base: &str) -> String {
    let Ok(mut url) = Url::parse(base.trim()) else { return base.to_owned() };
    if let Some(path) = url.path().trim_end_matches('/').strip_suffix("/chat/completions").map(str::to_owned) {
        url.set_path(&path);
    }
    url.into()
}

/// The URL of an accent at a base URL.
#[derive(Debug)]
pub(super) struct Endpoint {
    root: Url,
    /// Below the root; may hold `{model}`.
    path: String,
    query: Option<String>,
}

impl Endpoint {
    /// Reads the template of an accent.
    ///
    /// # Errors
    /// If the base is no URL of HTTP, or the template stands below no base.
    pub(super) fn new(base: &str, template: &str) -> Result<Self, SetupError> {
        let (below, is_versioned) = match (template.strip_prefix("{base}"), template.strip_prefix("{host}")) {
            (Some(below), _) => (below, true),
            (None, Some(below)) => (below, false),
            (None, None) => {
                let reason = "the URL of an accent begins with {base} or {host}".to_owned();
                return Err(SetupError::BaseUrl { url: template.to_owned(), reason });
            }
        };
        let (path, query) = match below.split_once('?') {
            Some((path, query)) => (path, Some(query.to_owned())),
            None => (below, None),
        };
        let mut root = endpoint_url(base, "")?;
        let has_no_path = Url::parse(base.trim()).is_ok_and(|base| base.path().trim_end_matches('/').is_empty());
        if has_no_path && !is_versioned {
            root.set_path("");
        }
        // A base may have the whole path already.
        if let Some(bare) = root.path().strip_suffix(path).map(str::to_owned) {
            root.set_path(&bare);
        }
        Ok(Self { root, path: path.to_owned(), query })
    }

    /// Where a request for a model goes.
    ///
    /// # Errors
    /// `InvalidRequest` if the model's name would have to be part of the URL, and cannot be.
    pub(super) fn of(&self, model: &str) -> Result<Url, ModelError> {
        let mut url = self.root.clone();
        let root = url.path().trim_end_matches('/').to_owned();
        if self.path.contains("{model}") {
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '@');
            if model.chars().all(|c| c == '.') || !model.chars().all(fits) {
                let message =
                    format!("the model {model:?} cannot be part of a URL: its name has other characters than a-z, 0-9, -_.:@");
                return Err(ModelError::new(ModelErrorKind::InvalidRequest, &message));
            }
        }
        url.set_path(&format!("{root}{}", self.path.replace("{model}", model)));
        if let Some(query) = &self.query {
            let query = match url.query() {
                // What the operator has put into the base URL is meant.
                Some(given) if !given.is_empty() => given.to_owned(),
                Some(_) | None => query.clone(),
            };
            url.set_query(Some(&query));
        }
        Ok(url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_of_accents() {
        const AZURE: &str = "{host}/openai/deployments/{model}/chat/completions?api-version=2024-10-21";
        for (base, template, url) in [
            ("https://host", "{base}/chat/completions", "https://host/v1/chat/completions"),
            ("https://host/v1/chat/completions", "{base}/chat/completions", "https://host/v1/chat/completions"),
            ("https://host/x/?a=1", "{base}/chat/completions", "https://host/x/chat/completions?a=1"),
            ("https://host/", AZURE, "https://host/openai/deployments/gpt-4.1/chat/completions?api-version=2024-10-21"),
            ("https://host?api-version=1", AZURE, "https://host/openai/deployments/gpt-4.1/chat/completions?api-version=1"),
            ("https://gate/azure", AZURE, "https://gate/azure/openai/deployments/gpt-4.1/chat/completions?api-version=2024-10-21"),
            ("https://host", "{host}/paas/v4/chat", "https://host/paas/v4/chat"),
            ("https://host/v1", "{host}/chat", "https://host/v1/chat"),
        ] {
            assert_eq!(Endpoint::new(base, template).unwrap().of("gpt-4.1").unwrap().as_str(), url, "{base} {template}");
        }
        let azure = Endpoint::new("https://host", AZURE).unwrap();
        for model in ["a/b", "..", "", "a?b", "a%2fb"] {
            assert_eq!(azure.of(model).unwrap_err().kind, ModelErrorKind::InvalidRequest, "{model}");
        }
        assert!(Endpoint::new("https://host", "/chat").is_err() && Endpoint::new("host", "{base}/chat").is_err());
    }
}
