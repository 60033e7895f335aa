//! Three nodes, a model of the store, users, readers and disasters, in virtual time and all from one seed.
//!
//! CONTRIBUTING.md tells how it works. A seed that fails says how it is played again; it then happens exactly as before.

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
