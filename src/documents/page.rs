//! Shared by the readers: accepted types, limits, refusals, and the bounded text.

use crate::domain::conversation::FileText;
use crate::support::text::prefix_chars;

/// The accepted types, for error messages.
pub const ACCEPTED: &str =
    "PNG, JPEG, GIF and WebP pictures, PDF, docx, xlsx, and text in UTF-8 or UTF-16 (plain, Markdown, CSV, JSON)";

pub const PDF: &str = "application/pdf";
pub const DOCX: &str = "application/vnd.openxmlformats-officedocument.wordprocessingml.document";
pub const XLSX: &str = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet";

/// The limit of a packed document's unpacked size, in bytes.
pub(super) const MAX_UNPACKED: u64 = 256 * 1024 * 1024;

/// The limit of files in a packed document.
pub(super) const MAX_ENTRIES: usize = 10_000;

/// The reason why a file is refused, as shown to its sender.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RefusedFile(pub String);

pub(super) fn refused<T>(why: impl Into<String>) -> Result<T, RefusedFile> {
    Err(RefusedFile(why.into()))
}

/// A text buffer with a limit.
pub(super) struct Page {
    words: String,
    remaining_chars: usize,
    is_cut: bool,
}

impl Page {
    pub(super) fn new(most_chars: usize) -> Self {
        Self { words: String::new(), remaining_chars: most_chars, is_cut: false }
    }

    /// Appends a text. Returns false if it did not fit.
    pub(super) fn add(&mut self, words: &str) -> bool {
        let fitting = prefix_chars(words, self.remaining_chars);
        self.remaining_chars -= fitting.chars().count();
        self.words.push_str(fitting);
        self.is_cut |= fitting.len() < words.len();
        fitting.len() == words.len()
    }

    pub(super) fn finish(self) -> FileText {
        FileText { words: self.words.trim_end().to_owned(), is_cut: self.is_cut }
    }
}
