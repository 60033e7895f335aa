//! Three nodes, a model of the store, users, readers and disasters, in virtual time and from one seed.
//!
//! CONTRIBUTING.md tells how it works. A failing seed prints how to play it again, with exactly the same events.

// The futures of nodes contain those of the whole server.
#![recursion_limit = "256"]

mod checks;
mod cluster;
mod dice;
mod followers;
mod gate;
mod hands;
// Compiled here, because only the crate of a type may implement the traits of the server for it.
#[path = "../support/intercept.rs"]
mod intercept;
mod line;
mod mind;
mod people;
mod tests;
mod witness;
mod world;
