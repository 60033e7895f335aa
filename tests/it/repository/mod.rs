//! Promises of the repository about itself: layers, sizes, and documents that match the code.

mod circles;
mod dependencies;
mod documents;
mod faults;
mod language;
mod layering;
mod mcp_examples;
mod names;
mod scripts;
mod shared;
mod test_names;
mod tests_of;

use support::repository::{files, read, root};
