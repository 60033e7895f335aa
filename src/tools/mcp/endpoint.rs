//! A server as a connection to it needs it, and why a connection could not be opened.
//!
//! Owns plain values only. Must not know how a connection is made.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rmcp::service::ClientInitializeError;
use tokio_util::task::TaskTracker;

use super::ServerTransport;
use super::container::Containers;
use super::errors::chain;
use super::handler::Allowed;
use super::masks::Masks;
use super::oauth::Login;
use super::orphans::Words;
use super::process::LastWords;

/// Why a server cannot be used.
#[derive(Debug, Clone)]
pub struct Fault {
    /// For everybody.
    pub reason: String,
    /// What its process said last, for operators only.
    pub stderr: Option<String>,
}

impl From<String> for Fault {
    fn from(reason: String) -> Self {
        Self { reason, stderr: None }
    }
}

impl Fault {
    /// Adds the last output of the server's process to a reason.
    pub fn after(reason: String, words: LastWords) -> Self {
        Self { reason: reason + &words.exit, stderr: words.stderr }
    }
}

/// A server as a connection sees it.
#[derive(Clone, Copy)]
pub struct Endpoint<'a> {
    /// Its name in the configuration.
    pub name: &'a str,
    /// How it is reached.
    pub transport: &'a ServerTransport,
    /// What must not be shown.
    pub masks: &'a Masks,
    /// What it may ask for.
    pub allowed: &'a Allowed,
    /// Whether it was greeted in the new way the last time.
    pub stateless: &'a AtomicBool,
    /// Whether the first transport over HTTP was the one that it knew the last time.
    pub is_old: &'a AtomicBool,
    /// Gives each process the word by which what it starts is found.
    pub words: &'a Words,
    /// Where it runs if it is a container.
    pub containers: &'a Containers,
    /// Its working directory if it is a program and its entry names none.
    pub home: Option<&'a Path>,
    /// The login at it, if it may have one.
    pub login: Option<&'a Arc<Login>>,
    /// Holds a token for each of its processes until nothing of it is left.
    pub remains: &'a TaskTracker,
}

/// Why a connection could not be opened.
pub enum OpenError {
    /// The server answered the greeting with an error.
    NotUnderstood(Fault),
    /// Anything else.
    Other(Fault),
}

impl OpenError {
    /// What a greeting that came to nothing means.
    pub fn new(error: ClientInitializeError, masks: &Masks, words: LastWords) -> Self {
        match error {
            ClientInitializeError::JsonRpcError(error) => {
                let reason = format!("the server refused the greeting: {}", masks.error_text(&error.message));
                Self::NotUnderstood(Fault::after(reason, words))
            }
            ClientInitializeError::TransportError { error, .. } => {
                Self::Other(Fault::after(masks.error_text(&chain(error.error.as_ref())), words))
            }
            error => Self::Other(Fault::after(masks.error_text(&chain(&error)), words)),
        }
    }
}
