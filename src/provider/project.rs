//! What every dialect needs to write messages on its wire.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::domain::ids::CallId;
use crate::domain::message::FilePart;

/// The ids of calls within one request. A provider gets its own id back where it has one that no other call of the request
/// has; else it gets ours.
#[derive(Default)]
pub(super) struct CallIds<'a> {
    used: HashSet<&'a str>,
    sent: HashMap<&'a CallId, &'a str>,
}

impl<'a> CallIds<'a> {
    pub(super) fn mint(&mut self, call: &'a CallId, providers: Option<&'a str>) -> Cow<'a, str> {
        let id = match providers {
            Some(id) if !id.is_empty() && self.used.insert(id) => id,
            Some(_) | None => call.as_str(),
        };
        self.sent.insert(call, id);
        Cow::Borrowed(id)
    }

    pub(super) fn of(&self, call: &'a CallId) -> Cow<'a, str> {
        Cow::Borrowed(self.sent.get(call).copied().unwrap_or(call.as_str()))
    }
}

/// What the model reads in place of something that its wire cannot carry.
pub(super) fn not_sent(what: &str, file: &FilePart) -> String {
    if let Some(text) = &file.text {
        return text.clone();
    }
    let name = file.name.as_deref().unwrap_or("without a name");
    format!("[{what} {name}, {}: not sent to the model]", file.media_type)
}

/// Where the bytes of a file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source<'a> {
    /// Here, in base64.
    Inline {
        /// Their media type.
        media_type: &'a str,
        /// The base64 text.
        data: &'a str,
    },
    /// Behind this URL of HTTP.
    Remote(&'a str),
    /// Nowhere that a provider could reach.
    Nowhere,
}

impl<'a> Source<'a> {
    pub(super) fn of(file: &'a FilePart) -> Self {
        let Some(url) = file.url.as_deref() else { return Self::Nowhere };
        if let Some(rest) = url.strip_prefix("data:") {
            return match rest.split_once(";base64,") {
                // A media type may have parameters, which providers do not know.
                Some((kind, data)) => {
                    let kind = kind.split(';').next().unwrap_or_default();
                    Self::Inline { media_type: if kind.is_empty() { &file.media_type } else { kind }, data }
                }
                None => Self::Nowhere,
            };
        }
        if url.starts_with("https://") || url.starts_with("http://") { Self::Remote(url) } else { Self::Nowhere }
    }

    /// The bytes as text, if they are here and are text.
    pub(super) fn text(&self) -> Option<String> {
        match self {
            Self::Inline { data, .. } => String::from_utf8(STANDARD.decode(data).ok()?).ok(),
            Self::Remote(_) | Self::Nowhere => None,
        }
    }
}
