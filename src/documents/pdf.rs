//! The text of PDF documents.

use std::fmt::Write;

use pdf_extract::{ConvertToFmt, Document, OutputDev, PlainTextOutput, output_doc};

use super::{Page, Refused, refused};
use crate::domain::file::FileText;

/// What becomes of words that a page has no room for: the error that ends the reading.
struct Full<'a>(&'a mut Page);

impl Write for Full<'_> {
    fn write_str(&mut self, words: &str) -> std::fmt::Result {
        if self.0.add(words) { Ok(()) } else { Err(std::fmt::Error) }
    }
}

impl<'a> ConvertToFmt for Full<'a> {
    type Writer = Full<'a>;

    fn convert(self) -> Self::Writer {
        self
    }
}

/// The text. None for documents that hold none that can be read, such as scans: a model may see their pages all the same.
///
/// # Errors
/// If the document is encrypted, or damaged.
pub(super) fn text(bytes: &[u8], most_chars: usize) -> Result<Option<FileText>, Refused> {
    let encrypted = "the PDF is encrypted; upload it without its password";
    let document = match Document::load_mem(bytes) {
        Ok(document) => document,
        Err(error) if error.to_string().to_ascii_lowercase().contains("crypt") => return refused(encrypted),
        Err(_) => return refused("the PDF is damaged: it cannot be read"),
    };
    if document.is_encrypted() || document.was_encrypted() {
        return refused(encrypted);
    }
    if document.get_pages().is_empty() {
        return refused("the PDF is damaged: it has no pages");
    }
    let mut page = Page::new(most_chars);
    {
        let mut output = PlainTextOutput::new(Full(&mut page));
        // What was read until it failed is worth having; that may well be all of it.
        let output: &mut dyn OutputDev = &mut output;
        let _ = output_doc(&document, output);
    }
    Ok(Some(page.finish()))
}
