//! The context window of a request: its cost, and what is cut. A request is a view; stored messages stay whole.

pub mod estimate;
pub mod fit;
pub mod room;
