//! Detects the type of a file by its bytes, and extracts its text.

use super::page::{ACCEPTED, PDF, RefusedFile, refused};
use super::{office, pdf};
use crate::domain::conversation::file::may_be_other_text;
use crate::domain::conversation::file::may_be_pdf;
use crate::domain::conversation::file::picture_fault;
use crate::domain::conversation::file::picture_type;
use crate::domain::conversation::file::utf8_text;
use crate::domain::conversation::file::utf16_text;
use crate::domain::conversation::{FileFacts, FileText};
use crate::support::text;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A picture of this media type.
    Picture(&'static str),
    Pdf,
    /// A ZIP archive, perhaps an office document.
    Zip,
    /// Text, or an unknown type.
    Other,
}

impl FileKind {
    /// Detects the kind by the first bytes: neither the name nor the claimed type counts.
    pub fn of(bytes: &[u8]) -> Self {
        if let Some(media_type) = picture_type(bytes) {
            return Self::Picture(media_type);
        }
        match bytes {
            [b'P', b'K', 3, 4, ..] => Self::Zip,
            _ if may_be_pdf(bytes) => Self::Pdf,
            _ => Self::Other,
        }
    }

    /// Returns whether hostile bytes of this kind may crash their reader.
    pub fn needs_reader(self) -> bool {
        matches!(self, Self::Pdf | Self::Zip)
    }
}

/// Detects the type of a file and reads at most `most_chars` of its text.
///
/// `on_facts` gets the facts that hold even if the file then crashes the process that reads its text.
pub fn read(bytes: &[u8], name: &str, most_chars: usize, on_facts: impl FnOnce(&FileFacts)) -> Result<FileFacts, RefusedFile> {
    if bytes.is_empty() {
        return refused("the file is empty");
    }
    let (media_type, text) = match FileKind::of(bytes) {
        FileKind::Picture(media_type) => {
            if let Some(fault) = picture_fault(bytes) {
                return refused(fault);
            }
            (media_type, None)
        }
        FileKind::Pdf => match pdf::open(bytes) {
            Ok(document) => {
                on_facts(&FileFacts { media_type: PDF.to_owned(), text: None });
                (PDF, Some(pdf::text(&document, most_chars)))
            }
            Err(refused) if bytes.starts_with(b"%PDF-") => return Err(refused),
            // Text may mention `%PDF`: a file that is no valid PDF is read as text.
            Err(refused) => (text_type(name), Some(plain(bytes, most_chars).map_err(|_| refused)?)),
        },
        FileKind::Zip => {
            let (media_type, text) = office::read(bytes, most_chars)?;
            (media_type, Some(text))
        }
        FileKind::Other => (text_type(name), Some(plain(bytes, most_chars)?)),
    };
    Ok(FileFacts { media_type: media_type.to_owned(), text: text.filter(|text| !text.words.trim().is_empty()) })
}

/// Returns the media type of a text file by its name. No other fact comes from the name.
fn text_type(name: &str) -> &'static str {
    let end = name.rsplit_once('.').map(|(_, end)| end.to_ascii_lowercase());
    match end.as_deref() {
        Some("md" | "markdown") => "text/markdown",
        Some("csv") => "text/csv",
        Some("json") => "application/json",
        Some(_) | None => "text/plain",
    }
}

fn plain(bytes: &[u8], most_chars: usize) -> Result<FileText, RefusedFile> {
    let utf16 = utf16_text(bytes);
    match utf16.as_deref().or_else(|| utf8_text(bytes)) {
        Some(words) => Ok(cut(words, most_chars)),
        None if may_be_other_text(bytes) => {
            refused("the file looks like text that is not UTF-8: save it as UTF-8 and upload it again")
        }
        None => refused(format!("the type of the file is not accepted; accepted are {ACCEPTED}")),
    }
}

fn cut(words: &str, most_chars: usize) -> FileText {
    let shown = text::prefix_chars(words, most_chars);
    FileText { words: shown.to_owned(), is_cut: shown.len() < words.len() }
}
