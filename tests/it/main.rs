//! The only integration test binary: each test that needs a database, a process or a network, by topic.

#[cfg(test)]
mod commands;
#[cfg(test)]
mod documents;
#[cfg(test)]
mod e2e;
#[cfg(test)]
mod http;
#[cfg(test)]
mod mcp;
#[cfg(test)]
mod provider;
#[cfg(test)]
mod repository;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod store;
#[cfg(test)]
mod support;
#[cfg(test)]
mod worker;
