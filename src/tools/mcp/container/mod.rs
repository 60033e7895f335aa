//! Servers that run in containers, behind the command line of Docker or podman.
//!
//! Owns what a container may be given: an entry asks, the operator's settings allow. Whatever an entry says, it has no capability
//! of its host, no way to gain one, a file system that it cannot write but for `/tmp`, and bounds on memory, processors and
//! processes. Must not know the protocol that is spoken through it.

mod engine;
mod handed;
mod launch;
mod spec;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

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
    /// Folders that may be mounted to be written, too.
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
}

impl Containers {
    /// Looks for no engine yet.
    pub fn new(options: ContainerOptions, handed: Option<PathBuf>, environment: Environment) -> Self {
        Self { engine: Engine::new(&options.engine, environment), options, handed }
    }

    /// Where the files lie that they are handed.
    pub fn handed(&self) -> Option<&Path> {
        self.handed.as_deref()
    }

    /// The program that runs them and what it sees of our environment, if there is one.
    pub async fn engine(&self) -> Option<(PathBuf, BTreeMap<String, SecretString>)> {
        Some((self.engine.find().await.ok()?, self.engine.variables()))
    }
}
