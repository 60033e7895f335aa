//! Small helpers that every other module may use.
//!
//! Owns no state. Must not know anything about conversations, runs or databases.

pub mod breaker;
pub mod clock;
pub mod duplicates;
pub mod expand;
pub mod failpoint;
pub mod files;
pub mod ids;
pub mod json;
pub mod locks;
pub mod nearest;
pub mod net;
pub mod number;
pub mod random;
pub mod redact;
pub mod seal;
pub mod text;
pub mod tokens;
pub mod words;
