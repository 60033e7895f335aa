//! Detects the type of an uploaded file and extracts its text.
//!
//! Pure functions from bytes. The libraries for PDFs and packed documents expect well-meant files, so they run in a process of its own
//! with limits on memory and time (`app::reading`). Must not know where files come from or go to.

mod content;
mod office;
mod page;
mod pdf;
mod reader;

pub use content::{Kind, read};
pub use page::{DOCX, PDF, Refused, XLSX};
pub use reader::{FileDeps, FileReader, Unreadable};
