//! Small helpers that every other module may use.
//!
//! Must not know anything about conversations, runs or databases.

pub mod circuit_breaker;
pub mod clock;
pub mod encryption;
pub mod failpoint;
pub mod files;
pub mod ids;
pub mod json;
pub mod locks;
pub mod net;
pub mod number;
pub mod random;
pub mod redact;
pub mod search_words;
pub mod suggestion;
pub mod text;
pub mod tokens;
pub mod trace;
pub mod variable_expansion;
