//! A server as a connection to it needs it, and why a connection could not be opened.
//!
//! Owns plain values only. Must not know how a connection is made.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rmcp::service::ClientInitializeError;
use tokio_util::task::TaskTracker;

use crate::tools::mcp::ServerConfig;
use crate::tools::mcp::config::masks::Masks;
use crate::tools::mcp::errors::chain;
use crate::tools::mcp::oauth::Login;
use crate::tools::mcp::process::LastWords;
use crate::tools::mcp::servers::common::Common;

/// Why a server cannot be used.
#[derive(Debug, Clone)]
pub struct Fault {
    pub reason: String,
    /// The last output of its process, for operators only.
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

#[derive(Clone, Copy)]
pub struct Endpoint<'a> {
    pub name: &'a str,
    pub config: &'a ServerConfig,
    pub common: &'a Common,
    /// Whether the last greeting was the one of the stateless revision.
    pub stateless: &'a AtomicBool,
    /// Whether the last HTTP transport was SSE, the one of the first revision.
    pub is_old: &'a AtomicBool,
    /// The working directory of a program whose entry names none.
    pub home: Option<&'a Path>,
    pub login: Option<&'a Arc<Login>>,
    /// Holds a token for each process until the process and its descendants have ended.
    pub remains: &'a TaskTracker,
}

pub enum OpenError {
    /// The server answered the greeting with an error.
    NotUnderstood(Fault),
    Other(Fault),
}

impl From<String> for OpenError {
    fn from(reason: String) -> Self {
        Self::Other(reason.into())
    }
}

impl OpenError {
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
