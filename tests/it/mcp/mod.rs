//! The tools behind the door: servers from their packages, and a scripted server with every bad habit.

mod containers;
mod cycles;
mod faults;
mod floods;
mod kept;
mod owners;
pub mod packages;
mod processes;
mod scripted;
mod sessions;
pub mod setup;
mod sse;
mod tasks;
mod versions;
