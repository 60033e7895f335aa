//! The text of PDF documents.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pdf_extract::{ConvertToFmt, Document, OutputDev, PlainTextOutput, output_doc};

use super::page::{Page, Refused, refused};
use crate::domain::conversation::file::FileText;

/// Turns a full page into the error that ends the reading.
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

/// Opens a document. Models may see its pages even if its text cannot be read here.
pub(super) fn open(bytes: &[u8]) -> Result<Document, Refused> {
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
    Ok(document)
}

/// Returns the text up to the first place that cannot be read, which may be all of it.
pub(super) fn text(document: &Document, most_chars: usize) -> FileText {
    let mut page = Page::new(most_chars);
    let reading = AssertUnwindSafe(|| {
        let mut output = PlainTextOutput::new(Full(&mut page));
        let output: &mut dyn OutputDev = &mut output;
        // The library fails or panics on unknown features, such as the code pages of some fonts.
        let _ = output_doc(document, output);
    });
    let _ = catch_unwind(reading);
    page.finish()
}
