//! The HTTP layer over a real store without workers: the tests write the events of runs themselves.

mod ag_ui;
mod ai_sdk;
mod auth;
mod choices;
mod conversations;
mod copies;
mod errors;
mod feedback;
mod frames;
mod history;
mod idempotency;
mod interrupted;
mod openai;
mod openapi;
mod providers;
mod retention;
mod revocation;
mod rig;
mod runs;
mod sessions;
mod sockets;
mod streams;
mod sub_path;
mod tickets;
mod ui;
