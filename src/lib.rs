//! Capstan: a self-hosted agent server that loses nothing.
//!
//! `ARCHITECTURE.md` is the map. Modules are listed from the bottom up; each may use only those above it.

pub mod support;

pub mod domain;

pub mod documents;
pub mod engine;
pub mod live;
pub mod provider;
pub mod store;
pub mod tools;

pub mod service;
pub mod worker;

pub mod http;

pub mod app;
