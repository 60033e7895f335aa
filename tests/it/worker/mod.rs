//! The worker in this process, with a real store, a scripted model and scripted tools.

mod accepting;
mod asking;
mod clock;
mod drain;
mod drive;
mod faults;
mod faulty;
mod harness;
// Compiled here, because only the crate of a type may implement the traits of the server for it.
#[path = "../support/intercept.rs"]
mod intercept;
mod lease;
mod log;
mod passes;
mod ranking;
mod titles;
