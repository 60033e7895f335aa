//! Three nodes, a model of the store, users, readers and disasters, in virtual time and from one seed.
//!
//! CONTRIBUTING.md tells how it works. A failing seed prints how to play it again, with exactly the same events.

mod bugs;
mod checks;
mod cluster;
mod dice;
mod followers;
mod gate;
mod hands;
mod line;
mod mind;
pub mod model;
mod people;
mod tests;
mod witness;
mod world;
