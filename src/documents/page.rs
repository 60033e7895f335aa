//! What the readers of documents share: accepted types, bounds, refusals, and the text that they fill.

use crate::domain::file::FileText;

/// What is accepted, in words for whoever sends something else.
pub const ACCEPTED: &str = "PNG, JPEG, GIF and WebP pictures, PDF, docx, xlsx, and text in UTF-8 (plain, Markdown, CSV, JSON)";

/// PDF documents.
pub const PDF: &str = "application/pdf";
/// Word documents.
pub const DOCX: &str = "application/vnd.openxmlformats-officedocument.wordprocessingml.document";
/// Excel workbooks.
pub const XLSX: &str = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet";

/// The most that a packed document may unpack to, in bytes.
pub(super) const MAX_UNPACKED: u64 = 256 * 1024 * 1024;

/// The most files in a packed document.
pub(super) const MAX_ENTRIES: usize = 10_000;

/// Why a file is not accepted, in words for whoever has sent it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

pub(super) fn refused<T>(why: impl Into<String>) -> Result<T, Refused> {
    Err(Refused(why.into()))
}

/// Takes words until there is no more room.
pub(super) struct Page {
    words: String,
    left: usize,
    is_cut: bool,
}

impl Page {
    pub(super) fn new(most_chars: usize) -> Self {
        Self { words: String::new(), left: most_chars, is_cut: false }
    }

    /// Adds words. False if there is no room for more.
    pub(super) fn add(&mut self, words: &str) -> bool {
        for c in words.chars() {
            if self.left == 0 {
                self.is_cut = true;
                return false;
            }
            self.left -= 1;
            self.words.push(c);
        }
        true
    }

    pub(super) fn finish(self) -> FileText {
        FileText { words: self.words.trim_end().to_owned(), is_cut: self.is_cut }
    }
}
