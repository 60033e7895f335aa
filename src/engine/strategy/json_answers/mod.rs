//! Tools for models that cannot call any: one JSON object per answer, which is the final answer or one call.
//!
//! Owns both directions of that form: `project` tells a model about it and shows it its history in it, `Reader` turns what
//! the model writes back into what other models say. Everything between and behind them, and every client, sees words and
//! calls as of any model. Must not know why an answer that is none is asked for again: the loop counts those.

pub mod offer;
mod project;
pub mod read;

pub use project::project;
