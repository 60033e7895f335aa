//! The tool executor with MCP servers: real packages, and a scripted server with each kind of fault.

mod containers;
mod cycles;
mod faults;
mod floods;
mod kept;
mod networks;
mod owners;
mod packages;
mod processes;
mod scripted;
mod sessions;
mod sse;
mod tasks;
mod versions;
