//! What an uploaded file is, and the text in it.
//!
//! Pure functions from bytes. What reads PDFs and packed documents is written by others, for well-meant files: whoever calls it does so
//! in a process of its own, with a limit on memory and time (`app::reading`). Must not know where files come from or go to.

mod content;
mod office;
mod page;
mod pdf;
mod reader;

pub use content::{Kind, read};
pub use page::{DOCX, PDF, Refused, XLSX};
pub use reader::{FileDeps, FileReader, Unreadable};
