//! URLs of operations below the configured base URLs.

use reqwest::Url;

use crate::domain::model::{ModelError, ModelErrorKind};
use crate::provider::model_client::SetupError;
use crate::support::redact::error_text;

/// Returns the URL of an operation below a base URL. A base without a path is the host of an API whose paths begin with `/v1`.
pub(in crate::provider) fn endpoint_url(base: &str, operation: &str) -> Result<Url, SetupError> {
    let (url, path) = base_url(base)?;
    Ok(with_operation(url, if path.is_empty() { "/v1" } else { &path }, operation))
}

/// Returns the URL of an operation of an API whose paths begin with a version, below a base URL that may end in one.
pub(in crate::provider) fn versioned_url(base: &str, version: &str, operation: &str) -> Result<Url, SetupError> {
    let (url, path) = base_url(base)?;
    let whole = !operation.is_empty() && path.ends_with(operation);
    let mut segments = path.rsplit('/');
    // Vertex has project and publisher after the version.
    let has_version = segments.next().is_some_and(is_version) || segments.next() == Some("publishers");
    let path = if whole || has_version { path } else { format!("{path}/{version}") };
    Ok(with_operation(url, &path, operation))
}

/// Returns whether a segment is a version such as `v1` or `v1beta`.
fn is_version(segment: &str) -> bool {
    let rest = segment.strip_prefix('v').unwrap_or_default();
    rest.starts_with(|first: char| first.is_ascii_digit()) && rest.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Parses a base URL. Also returns its path without a trailing slash.
fn base_url(base: &str) -> Result<(Url, String), SetupError> {
    let refuse = |reason: &str| SetupError::BaseUrl { url: error_text(base), reason: reason.to_owned() };
    let url = Url::parse(base.trim()).map_err(|error| refuse(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(refuse("the scheme is neither http nor https"));
    }
    let path = url.path().trim_end_matches('/').to_owned();
    Ok((url, path))
}

pub(in crate::provider) fn host(base: &str) -> Option<String> {
    Some(Url::parse(base.trim()).ok()?.host_str()?.to_owned())
}

fn with_operation(mut url: Url, path: &str, operation: &str) -> Url {
    url.set_path(&format!("{}{operation}", path.strip_suffix(operation).unwrap_or(path)));
    url
}

pub(in crate::provider) fn ollama_url(base: &str, operation: &str) -> Result<Url, SetupError> {
    // OLLAMA_HOST may be a host and a port.
    let base = base.trim();
    let mut url = if base.contains("://") { endpoint_url(base, "")? } else { endpoint_url(&format!("http://{base}"), "")? };
    let whole = format!("/api/{operation}");
    let root = url.path().trim_end_matches('/').to_owned();
    let root = [whole.as_str(), "/api", "/v1"].iter().find_map(|end| root.strip_suffix(end)).unwrap_or(&root).to_owned();
    url.set_path(&format!("{root}{whole}"));
    Ok(url)
}

/// Removes the path of chat completions from the end of a base URL, to make room for another operation.
pub(in crate::provider) fn without_operation(base: &str) -> String {
    let Ok(mut url) = Url::parse(base.trim()) else { return base.to_owned() };
    if let Some(path) = url.path().trim_end_matches('/').strip_suffix("/chat/completions").map(str::to_owned) {
        url.set_path(&path);
    }
    url.into()
}

/// Returns the parts of a base URL's path before and after the first segment of a template's path, such as `/openai`; `None`
/// without it.
fn cut_at(base: &str, template: &str) -> Option<(String, String)> {
    let first = template.split('/').nth(1).filter(|first| !first.is_empty() && !first.contains('{'))?;
    let mut segments = base.split('/').skip(1);
    let before: Vec<&str> = segments.by_ref().take_while(|segment| *segment != first).collect();
    let after: Vec<&str> = segments.collect();
    let is_there = base.split('/').skip(1).any(|segment| segment == first);
    let before: String = before.iter().map(|segment| format!("/{segment}")).collect();
    is_there.then(|| (before, after.join("/")))
}

#[derive(Debug)]
pub(in crate::provider) struct Endpoint {
    root: Url,
    /// The path below the root; may contain `{model}`.
    path: String,
    query: Option<String>,
}

impl Endpoint {
    pub(in crate::provider) fn new(base: &str, template: &str) -> Result<Self, SetupError> {
        let (below, is_versioned) = match (template.strip_prefix("{base}"), template.strip_prefix("{host}")) {
            (Some(below), _) => (below, true),
            (None, Some(below)) => (below, false),
            (None, None) => {
                let reason = "the URL of an accent must begin with {base} or {host}".to_owned();
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
        // The base URL may already end with the complete path.
        if let Some(bare) = root.path().strip_suffix(path).map(str::to_owned) {
            root.set_path(&bare);
        }
        if !is_versioned && let Some((before, after)) = cut_at(root.path(), path) {
            if is_version(&after) {
                // The base leads to the API of another version, whose operations stand below it.
                let operation = if path.contains("/responses") { "/responses" } else { "/chat/completions" };
                return Ok(Self { root, path: operation.to_owned(), query: None });
            }
            root.set_path(&before);
        }
        Ok(Self { root, path: path.to_owned(), query })
    }

    /// Returns the URL of a request to a model, or `InvalidRequest` if the model's name cannot be part of the URL.
    pub(in crate::provider) fn of(&self, model: &str) -> Result<Url, ModelError> {
        let mut url = self.root.clone();
        let root = url.path().trim_end_matches('/').to_owned();
        if self.path.contains("{model}") {
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '@');
            if model.chars().all(|c| c == '.') || !model.chars().all(fits) {
                let message = format!(
                    "the model {model:?} cannot be part of a URL: its name may only contain the characters a-z, 0-9 and -_.:@"
                );
                return Err(ModelError::new(ModelErrorKind::InvalidRequest, &message));
            }
        }
        url.set_path(&format!("{root}{}", self.path.replace("{model}", model)));
        if let Some(query) = &self.query {
            let query = match url.query() {
                // The configured query takes precedence.
                Some(own_url) if !own_url.is_empty() => own_url.to_owned(),
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
    fn url_templates_fill_in_base_and_model() {
        const AZURE: &str = "{host}/openai/deployments/{model}/chat/completions?api-version=2024-10-21";
        for (base, template, url) in [
            ("https://host", "{base}/chat/completions", "https://host/v1/chat/completions"),
            ("https://host/v1/chat/completions", "{base}/chat/completions", "https://host/v1/chat/completions"),
            ("https://host/x/?a=1", "{base}/chat/completions", "https://host/x/chat/completions?a=1"),
            ("https://host/", AZURE, "https://host/openai/deployments/gpt-4.1/chat/completions?api-version=2024-10-21"),
            ("https://host?api-version=1", AZURE, "https://host/openai/deployments/gpt-4.1/chat/completions?api-version=1"),
            ("https://gate/azure", AZURE, "https://gate/azure/openai/deployments/gpt-4.1/chat/completions?api-version=2024-10-21"),
            ("https://host/openai/v1", AZURE, "https://host/openai/v1/chat/completions"),
            ("https://host/openai/v1/", AZURE, "https://host/openai/v1/chat/completions"),
            ("https://host/openai", AZURE, "https://host/openai/deployments/gpt-4.1/chat/completions?api-version=2024-10-21"),
            (
                "https://host/openai/deployments/gpt-4o/chat/completions?api-version=2",
                AZURE,
                "https://host/openai/deployments/gpt-4.1/chat/completions?api-version=2",
            ),
            ("https://host/openai/v1", "{host}/openai/v1/responses", "https://host/openai/v1/responses"),
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

    #[test]
    fn endpoints_of_all_sorts_of_base_urls() {
        for (base, url) in [
            ("https://api.openai.com", "https://api.openai.com/v1/chat/completions"),
            ("https://api.openai.com/", "https://api.openai.com/v1/chat/completions"),
            ("https://api.openai.com/v1/", "https://api.openai.com/v1/chat/completions"),
            ("http://localhost:11434/v1", "http://localhost:11434/v1/chat/completions"),
            ("https://host/v1beta/openai", "https://host/v1beta/openai/chat/completions"),
            ("https://host/d/gpt?api-version=1", "https://host/d/gpt/chat/completions?api-version=1"),
            ("https://host/v1/chat/completions", "https://host/v1/chat/completions"),
        ] {
            assert_eq!(endpoint_url(base, "/chat/completions").unwrap().as_str(), url, "{base}");
        }
        for base in ["localhost:8000", "ftp://host/v1", "", "/v1"] {
            assert!(endpoint_url(base, "/chat/completions").is_err(), "{base}");
        }
    }

    #[test]
    fn a_version_is_added_once() {
        for (base, url) in [
            ("https://api.anthropic.com", "https://api.anthropic.com/v1/messages"),
            ("https://api.anthropic.com/v1/", "https://api.anthropic.com/v1/messages"),
            ("https://host/anthropic", "https://host/anthropic/v1/messages"),
            ("https://host/v1/account/gateway/anthropic", "https://host/v1/account/gateway/anthropic/v1/messages"),
            ("https://host/v2beta", "https://host/v2beta/messages"),
            ("https://host/vertex?x=1", "https://host/vertex/v1/messages?x=1"),
            ("https://host/a/v1/messages", "https://host/a/v1/messages"),
        ] {
            assert_eq!(versioned_url(base, "v1", "/messages").unwrap().as_str(), url, "{base}");
        }
        assert!(versioned_url("host", "v1", "/messages").is_err());
    }

    #[test]
    fn ollama_base_urls_end_in_any_path() {
        for (base, url) in [
            ("http://127.0.0.1:11434", "http://127.0.0.1:11434/api/chat"),
            ("http://127.0.0.1:11434/", "http://127.0.0.1:11434/api/chat"),
            ("http://127.0.0.1:11434/api", "http://127.0.0.1:11434/api/chat"),
            ("http://127.0.0.1:11434/v1/", "http://127.0.0.1:11434/api/chat"),
            ("http://127.0.0.1:11434/api/chat", "http://127.0.0.1:11434/api/chat"),
            ("https://gate/ollama", "https://gate/ollama/api/chat"),
            ("https://gate/ollama/v1", "https://gate/ollama/api/chat"),
            ("localhost:11434", "http://localhost:11434/api/chat"),
        ] {
            assert_eq!(ollama_url(base, "chat").unwrap().as_str(), url, "{base}");
        }
        for base in ["", "ftp://host"] {
            assert!(ollama_url(base, "chat").is_err(), "{base}");
        }
    }
}
