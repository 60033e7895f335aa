//! The properties of a server that its connection needs, and the errors of opening one.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rmcp::service::ClientInitializeError;
use tokio_util::task::TaskTracker;

use crate::tools::mcp::ServerConfig;
use crate::tools::mcp::config::redaction::SecretRedactor;
use crate::tools::mcp::errors::error_chain_without_urls;
use crate::tools::mcp::oauth::Login;
use crate::tools::mcp::process::ExitReport;
use crate::tools::mcp::server::context::ServerContext;

/// Why a server cannot be used.
#[derive(Debug, Clone)]
pub struct ServerError {
    pub reason: String,
    /// The last output of its process, for operators only.
    pub stderr: Option<String>,
}

impl From<String> for ServerError {
    fn from(reason: String) -> Self {
        Self { reason, stderr: None }
    }
}

impl ServerError {
    /// Adds the last output of the server's process to a reason.
    pub fn after(reason: String, exit_report: ExitReport) -> Self {
        Self { reason: reason + &exit_report.exit, stderr: exit_report.stderr }
    }
}

#[derive(Clone, Copy)]
pub struct Endpoint<'a> {
    pub name: &'a str,
    pub config: &'a ServerConfig,
    pub common: &'a ServerContext,
    /// Whether the last successful handshake was that of the stateless revision.
    pub stateless: &'a AtomicBool,
    /// Whether the last HTTP transport was SSE.
    pub uses_sse: &'a AtomicBool,
    /// The working directory of a program whose entry has none.
    pub home: Option<&'a Path>,
    pub login: Option<&'a Arc<Login>>,
    /// Holds a token for each process until the process and its descendants have ended.
    pub open_resources: &'a TaskTracker,
}

pub enum OpenError {
    /// The server answered the handshake with an error.
    NotUnderstood(ServerError),
    Other(ServerError),
}

impl From<String> for OpenError {
    fn from(reason: String) -> Self {
        Self::Other(reason.into())
    }
}

impl OpenError {
    pub fn new(error: ClientInitializeError, redactor: &SecretRedactor, exit_report: ExitReport) -> Self {
        match error {
            ClientInitializeError::JsonRpcError(error) => {
                let reason = format!("the server refused the handshake: {}", redactor.error_text(&error.message));
                Self::NotUnderstood(ServerError::after(reason, exit_report))
            }
            ClientInitializeError::TransportError { error, .. } => {
                Self::Other(ServerError::after(redactor.error_text(&error_chain_without_urls(error.error.as_ref())), exit_report))
            }
            error => Self::Other(ServerError::after(redactor.error_text(&error_chain_without_urls(&error)), exit_report)),
        }
    }
}
