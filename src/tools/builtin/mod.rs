//! The built-in tools. All of them only read, so a call that was interrupted is repeated. Must not know runs or MCP.

mod calculate;
mod catalogue;
mod fetch;
mod files;
mod page_text;

pub use catalogue::{BuiltIns, OPTIONAL};
