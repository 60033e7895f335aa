//! Servers in containers, run by the command line of Docker or podman.
//!
//! Owns the rights of a container: an entry requests them, and the operator's settings allow them. A container has no capabilities, and
//! limits on memory, processors and processes. It writes only to `/tmp` (and `/dev`, if the engine allows it), and gets no writable volumes
//! of its image. Must not know the protocol of the server in it.

mod engine;
mod launch;
mod spec;
mod variable_files;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Mutex;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};

pub use engine::plain;
pub use launch::{ContainerCleanup, Launch, remove_all};
pub use spec::{Container, Mount};
pub use variable_files::remove_stale_files;

use engine::Engine;

use crate::support::locks::lock;
use crate::tools::Environment;

/// The operator's settings for containers: `[mcp.containers]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContainerOptions {
    /// `auto`, `docker`, `podman`, `none`, or the path of a program that accepts the same arguments.
    pub engine: String,
    pub network: bool,
    /// Folders of this machine that may be mounted read-only, with all their content.
    pub mounts: Vec<PathBuf>,
    /// Folders that may be mounted writable, only as a whole: no folder inside them may be mounted alone.
    pub writable_mounts: Vec<PathBuf>,
    /// The limit and default of memory, in MiB.
    pub memory_mib: u32,
    /// The limit and default of processors.
    pub cpus: f64,
    /// The limit and default of processes.
    pub processes: u32,
    /// The image for `npx` in a container.
    pub npx_image: String,
    /// The image for `uvx` in a container.
    pub uvx_image: String,
}

impl Default for ContainerOptions {
    fn default() -> Self {
        Self {
            engine: "auto".to_owned(),
            network: false,
            mounts: Vec::new(),
            writable_mounts: Vec::new(),
            memory_mib: 512,
            cpus: 1.0,
            processes: 128,
            npx_image: "docker.io/library/node:22-slim".to_owned(),
            uvx_image: "ghcr.io/astral-sh/uv:python3.13-bookworm-slim".to_owned(),
        }
    }
}

pub struct Containers {
    engine: Engine,
    options: ContainerOptions,
    /// The folder of the files with variables of containers; `None` for the temporary folder.
    pub input_files_dir: Option<PathBuf>,
    /// The name prefix of all containers of this process, which no other process has.
    marker: String,
    /// The record of this process, open and locked from its first container on.
    record: Mutex<Option<File>>,
}

impl Containers {
    pub fn new(options: ContainerOptions, input_files_dir: Option<PathBuf>, marker: String, environment: Environment) -> Self {
        Self { engine: Engine::new(&options.engine, environment), options, input_files_dir, marker, record: Mutex::default() }
    }

    pub async fn engine(&self) -> Option<(PathBuf, BTreeMap<String, SecretString>)> {
        Some((self.engine.find().await.ok()?, self.engine.variables()))
    }

    /// Finds the engine early, and logs if there is none. The first container searches again, because the engine may be started meanwhile.
    pub async fn look_for_engine(&self) {
        if let Err(reason) = self.engine.find().await {
            tracing::warn!(reason, "MCP servers in containers cannot be started");
        }
    }

    /// Records the name prefix of this process's containers before the first one. If this process is killed together with its guard, the
    /// next process finds the containers by this record.
    pub fn record_containers(&self) {
        let Some(folder) = &self.input_files_dir else { return };
        let mut record = lock(&self.record);
        if record.is_some() {
            return;
        }
        match variable_files::write_record(folder, &self.marker) {
            Ok(file) => *record = Some(file),
            Err(error) => {
                tracing::warn!(%error, "containers cannot be recorded: they may remain if this program and its guard are killed together");
            }
        }
    }

    /// Removes the containers of exited processes that have left a record. Without records it does not search for an engine.
    pub async fn remove_orphaned(&self) {
        let Some(folder) = &self.input_files_dir else { return };
        let left = match variable_files::orphaned_records(folder) {
            Ok(left) => left,
            Err(error) => return tracing::warn!(%error, "the records of earlier processes' containers cannot be read"),
        };
        if left.is_empty() {
            return;
        }
        // Without an answer of the engine the records stay for the next process.
        let Some((engine, variables)) = self.engine().await else { return };
        let words: Vec<&str> = left.iter().map(|record| record.marker.as_str()).collect();
        let Some(removed) = remove_all(&engine, Some(&variables), &words).await else { return };
        if removed > 0 {
            tracing::warn!(removed, "removed orphaned containers of an earlier process that was killed together with its guard");
        }
        left.into_iter().for_each(variable_files::OrphanedRecord::remove);
    }
}
