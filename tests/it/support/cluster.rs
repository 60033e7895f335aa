//! A Postgres of a test's own, which it may stop.

use std::path::Path;
use std::process::Stdio;

use tempfile::TempDir;
use tokio::process::Command;

use crate::repository::root;

/// A throw-away server. Gone when dropped.
pub struct Cluster {
    folder: TempDir,
    /// Of a database whose user may create others.
    pub url: String,
}

impl Cluster {
    /// Makes and starts one, from the programs of the machine.
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let output = Command::from(script("own", folder.path())).stderr(Stdio::inherit()).output().await.unwrap();
        assert!(output.status.success(), "no Postgres could be started");
        let url = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        Self { folder, url }
    }

    /// Shuts it down, as a restart of the database does: its clients are told and cut off.
    pub async fn down(&self) {
        self.run("down").await;
    }

    /// Starts it again.
    pub async fn up(&self) {
        self.run("up").await;
    }

    /// Freezes the server: it accepts connections and never answers.
    pub async fn freeze(&self) {
        self.run("freeze").await;
    }

    /// Lets it go on.
    pub async fn thaw(&self) {
        self.run("thaw").await;
    }

    async fn run(&self, mode: &str) {
        let status = Command::from(script(mode, self.folder.path())).status().await.unwrap();
        assert!(status.success(), "{mode} failed");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = script("stop", self.folder.path()).status();
    }
}

fn script(mode: &str, folder: &Path) -> std::process::Command {
    let mut command = std::process::Command::new(root().join("scripts/test-postgres.sh"));
    command.arg(mode).arg(folder);
    command
}
