//! The worker in this process, with a real store, a scripted model and scripted tools.

mod accepting;
mod asking;
mod clock;
mod drain;
mod drive;
mod faults;
mod faulty;
mod harness;
mod lease;
mod log;
mod passes;
mod ranking;
mod titles;
