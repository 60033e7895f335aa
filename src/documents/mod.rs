//! Detects the type of an uploaded file and extracts its text.
//!
//! Pure functions of bytes. The libraries for PDFs and packed documents are not hardened against hostile input, so
//! `app::wiring::file_reader` runs them in a separate process with limits on memory and time. This module must not know where files come from or go to.

mod content;
mod office;
mod page;
mod pdf;
mod reader;

pub use content::{FileKind, read};
pub use page::{DOCX, PDF, RefusedFile, XLSX};
pub use reader::{FileDeps, FileReader, ReadFileError};
