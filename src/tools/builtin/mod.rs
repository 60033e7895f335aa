//! The tools that come with the server. All of them only read, so a call that was cut short simply runs again.

mod calculate;
mod catalogue;
mod fetch;
mod files;
mod page_text;
mod time;
mod weather;

pub use catalogue::{BuiltIns, OPTIONAL};
