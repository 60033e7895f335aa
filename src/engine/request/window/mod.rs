//! The context window of a request: its cost, and which content is cut. A request is a view: it must not change stored
//! messages.

pub mod estimate;
pub mod fit;
pub mod remaining;
