//! Reads the text of PDF documents.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pdf_extract::{ConvertToFmt, Document, OutputDev, PlainTextOutput, output_doc};

use super::page::{Page, RefusedFile, refused};
use crate::domain::conversation::FileText;

/// Ends the reading with an error when the page is full.
struct PageLimitReached<'a>(&'a mut Page);

impl Write for PageLimitReached<'_> {
    fn write_str(&mut self, words: &str) -> std::fmt::Result {
        if self.0.add(words) { Ok(()) } else { Err(std::fmt::Error) }
    }
}

impl<'a> ConvertToFmt for PageLimitReached<'a> {
    type Writer = PageLimitReached<'a>;

    fn convert(self) -> Self::Writer {
        self
    }
}

/// Opens a document. Providers may read its pages even if its text cannot be extracted here.
pub(super) fn open(bytes: &[u8]) -> Result<Document, RefusedFile> {
    let encrypted = "the PDF is encrypted and needs a password; upload it without one";
    let document = match Document::load_mem(bytes) {
        Ok(document) => document,
        Err(error) if error.to_string().to_ascii_lowercase().contains("crypt") => return refused(encrypted),
        Err(_) => return refused("the PDF is damaged: it cannot be read"),
    };
    // The library opens a document without a user password. An owner password only forbids printing and the like.
    if document.is_encrypted() {
        return refused(encrypted);
    }
    if document.get_pages().is_empty() {
        return refused("the PDF is damaged: it has no pages");
    }
    Ok(document)
}

/// Returns the text up to the first unreadable position, which may be the beginning.
pub(super) fn text(document: &Document, most_chars: usize) -> FileText {
    let mut page = Page::new(most_chars);
    let reading = AssertUnwindSafe(|| {
        let mut output = PlainTextOutput::new(PageLimitReached(&mut page));
        let output: &mut dyn OutputDev = &mut output;
        // The library fails or panics on unknown features, such as the code pages of some fonts.
        let _ = output_doc(document, output);
    });
    let _ = catch_unwind(reading);
    page.finish()
}
