//! Servers in containers, run by the command line of Docker or podman.
//!
//! Owns the rights of a container: an entry requests them, and the operator's settings allow them. Every container is without
//! capabilities, writes only to `/tmp` (and `/dev`, if the engine allows it), gets no writable volumes of its image, and has limits on
//! memory, processors and processes. Must not know the protocol that is spoken through it.

mod engine;
mod handed;
mod launch;
mod spec;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use secrecy::SecretString;
use serde::{Deserialize, Serialize};

pub use engine::plain;
pub use handed::sweep;
pub use launch::{Launch, Removal, remove_all};
pub use spec::{Container, Mount};

use engine::Engine;

use crate::tools::Environment;

/// The operator's settings for containers: `[mcp.containers]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContainerOptions {
    /// `auto`, `docker`, `podman`, `none`, or the path of a program that takes the same arguments.
    pub engine: String,
    pub network: bool,
    /// Folders of this machine that may be mounted read-only, with everything below them.
    pub mounts: Vec<PathBuf>,
    /// Folders that may be mounted writable, each as a whole: nothing below them may be mounted alone.
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
    /// The folder of the files with variables; among temporary files if absent.
    pub handed: Option<PathBuf>,
    /// The beginning of the names of all containers of this process, which no other process has.
    word: String,
    /// The note of this process, open and locked from its first container on.
    noted: Mutex<Option<File>>,
}

impl Containers {
    pub fn new(options: ContainerOptions, handed: Option<PathBuf>, word: String, environment: Environment) -> Self {
        Self { engine: Engine::new(&options.engine, environment), options, handed, word, noted: Mutex::default() }
    }

    pub async fn engine(&self) -> Option<(PathBuf, BTreeMap<String, SecretString>)> {
        Some((self.engine.find().await.ok()?, self.engine.variables()))
    }

    /// Finds the engine early, and logs if there is none. The first container searches again, because it may be started meanwhile.
    pub async fn look_for_engine(&self) {
        if let Err(reason) = self.engine.find().await {
            tracing::warn!(reason, "MCP servers that run in containers cannot be started");
        }
    }

    /// Notes the names of this process's containers before the first one. If it is killed together with its guard, the next process
    /// finds the containers by this note.
    pub fn note(&self) {
        let Some(folder) = &self.handed else { return };
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.is_some() {
            return;
        }
        match handed::note(folder, &self.word) {
            Ok(note) => *noted = Some(note),
            Err(error) => {
                tracing::warn!(%error, "containers cannot be noted: they may stay if this program and its guard are killed together");
            }
        }
    }

    /// Removes the containers of processes that have left a note. Without notes it does not search for an engine.
    pub async fn remove_left(&self) {
        let Some(folder) = &self.handed else { return };
        let left = match handed::orphaned_notes(folder) {
            Ok(left) => left,
            Err(error) => return tracing::warn!(%error, "whether earlier processes have left containers cannot be read"),
        };
        if left.is_empty() {
            return;
        }
        // Without an answer of the engine the notes stay for the next process.
        let Some((engine, variables)) = self.engine().await else { return };
        let words: Vec<&str> = left.iter().map(|note| note.word.as_str()).collect();
        let Some(removed) = remove_all(&engine, Some(&variables), &words).await else { return };
        if removed > 0 {
            tracing::warn!(removed, "removed containers that an earlier process had when it was killed together with its guard");
        }
        left.into_iter().for_each(handed::OrphanedNote::remove);
    }
}
