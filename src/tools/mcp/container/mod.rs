//! Servers that run in containers, behind the command line of Docker or podman.
//!
//! Owns what a container may be given: an entry asks, the operator's settings allow. Whatever an entry says, it has no capability
//! of its host, no way to gain one, a file system that it cannot write but for `/tmp` (and `/dev`, which is memory of its own as
//! well, where the engine lets it), and bounds on memory, processors and processes. Whatever its image declares, it gets no volumes
//! that it can write. Must not know the protocol that is spoken through it.

mod engine;
mod handed;
mod launch;
mod spec;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use secrecy::SecretString;
use serde::{Deserialize, Serialize};

pub use engine::plain;
pub use handed::sweep;
pub use launch::{Launch, Removal, remove_all};
pub use spec::{Container, Mount};

use engine::Engine;

use crate::tools::Environment;

/// What containers may have, by the operator's word: `[mcp.containers]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContainerOptions {
    /// `auto`, `docker`, `podman`, `none`, or the path of a program that takes the same arguments.
    pub engine: String,
    /// Whether they may have a network.
    pub network: bool,
    /// Folders of this machine that may be mounted, they and what is in them, to be read.
    pub mounts: Vec<PathBuf>,
    /// Folders that may be mounted to be written, too, each as a whole: what lies in one is mounted by nobody.
    pub writable_mounts: Vec<PathBuf>,
    /// The most memory of one, in MiB, and what it gets unless its entry asks for less.
    pub memory_mib: u32,
    /// The most processors of one, and what it gets.
    pub cpus: f64,
    /// The most processes of one, and what it gets.
    pub processes: u32,
    /// The image in which `npx` runs where it is asked to run in a container.
    pub npx_image: String,
    /// The image in which `uvx` does.
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

/// Where containers are run, and what they may have.
pub struct Containers {
    engine: Engine,
    options: ContainerOptions,
    /// Where the files lie that they are handed; among temporary files if absent.
    handed: Option<PathBuf>,
    /// How the names of those of this process begin.
    word: String,
    /// Open as long as there is this process, once it has had one.
    noted: Mutex<Option<File>>,
}

impl Containers {
    /// Looks for no engine yet. The names of all containers will begin with `word`, which no other process has.
    pub fn new(options: ContainerOptions, handed: Option<PathBuf>, word: String, environment: Environment) -> Self {
        Self { engine: Engine::new(&options.engine, environment), options, handed, word, noted: Mutex::default() }
    }

    /// Where the files lie that they are handed.
    pub fn handed(&self) -> Option<&Path> {
        self.handed.as_deref()
    }

    /// The program that runs them and what it sees of our environment, if there is one.
    pub async fn engine(&self) -> Option<(PathBuf, BTreeMap<String, SecretString>)> {
        Some((self.engine.find().await.ok()?, self.engine.variables()))
    }

    /// Finds the engine before anybody needs it, and says so if there is none. It is looked for again then: it may be started meanwhile.
    pub async fn look_for_engine(&self) {
        if let Err(reason) = self.engine.find().await {
            tracing::warn!(reason, "MCP servers that run in containers cannot be started");
        }
    }

    /// Notes that this process has containers, before the first one: should it be killed together with its guard, whoever starts next
    /// knows by which names they are found.
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

    /// Removes the containers of processes that have noted that they have any, and are gone. Looks for no engine if there are none.
    pub async fn remove_left(&self) {
        let Some(folder) = &self.handed else { return };
        let left = match handed::left(folder) {
            Ok(left) => left,
            Err(error) => return tracing::warn!(%error, "whether earlier processes have left containers cannot be read"),
        };
        if left.is_empty() {
            return;
        }
        // Without an answer the notes stay, for whoever starts next.
        let Some((engine, variables)) = self.engine().await else { return };
        let words: Vec<&str> = left.iter().map(|note| note.word.as_str()).collect();
        let Some(removed) = remove_all(&engine, Some(&variables), &words).await else { return };
        if removed > 0 {
            tracing::warn!(removed, "removed containers that an earlier process had when it was killed together with its guard");
        }
        left.into_iter().for_each(handed::Left::settle);
    }
}
