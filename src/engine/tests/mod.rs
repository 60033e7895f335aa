//! The loop's rules, one by one and under random inputs.

mod asking;
mod assembly;
mod guards;
mod properties;
mod recovery;
mod requests;
mod table;
mod turns;
mod world;
