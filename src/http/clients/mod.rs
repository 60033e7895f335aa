//! The parts that several protocols share: ids from the names of clients, sections and plans of runs, and translated streams.
//!
//! Owns no protocol. Each protocol is a folder beside this one: a translator, which is a pure function from the events of a run to
//! the protocol's chunks, and thin routes. No protocol keeps a state of its own, so a replayed stream equals the live one.

pub(super) mod body;
pub(super) mod ids;
pub(super) mod pauses;
pub(super) mod plan;
pub(super) mod stream;
#[cfg(test)]
pub(super) mod tests;
pub(super) mod thread;
