//! The context window of a request: what the request costs, and what is cut where it would cost too much.
//!
//! A request is a view. What is stored stays whole. Must not know how a window becomes known.

pub mod estimate;
pub mod fit;
pub mod room;
