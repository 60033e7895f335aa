//! The ledger: an MCP server that writes each execution to a file outside the server under test, and the reader of that file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

/// A ledger file and the MCP configuration of the server that writes it.
pub struct Ledger {
    file: PathBuf,
}

impl Ledger {
    /// A new ledger inside `folder`.
    pub fn new(folder: &Path) -> Self {
        Self { file: folder.join("ledger.jsonl") }
    }

    /// Returns the server's entry for `mcpServers`.
    ///
    /// `append`, `slow_append` and `labour` are unsafe; `labour` continues as a task. `append_keyed` and `append_meta` are keyed.
    /// The process of `append_keyed` ends before it answers `lost`, if that is the first execution. `pay` can be asked about: it
    /// declines `declined` the first time, and answers `late` after the caller gave up. `lookup` only reads.
    pub fn mcp_server(&self) -> Value {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/support/ledger.py");
        json!({
            "command": "python3",
            // Without the packages of the machine, Python starts in half the time.
            "args": ["-S", script],
            "env": {"LEDGER_FILE": self.file.to_str().unwrap()},
            "capstan": {"trusted": true, "timeout": "20s", "replay": {
                "append_keyed": "keyed:key", "append_meta": "keyed:_meta.example.com/key", "pay": "reconcile:paid"
            }}
        })
    }

    /// A whole configuration with this server alone.
    pub fn mcp_config(&self) -> Value {
        json!({"mcpServers": {"ledger": self.mcp_server()}})
    }

    /// All executions so far, in order.
    pub fn entries(&self) -> Vec<Entry> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        text.lines()
            .map(|line| {
                let value: Value = serde_json::from_str(line).unwrap();
                let tool = value["tool"].as_str().unwrap().to_owned();
                Entry { tool, arguments: value["arguments"].clone(), meta: value["meta"].clone() }
            })
            .collect()
    }

    /// Waits until no process of this ledger is left. Looks only where processes can be seen by their environment.
    pub async fn no_server_left(&self) {
        let mark = format!("LEDGER_FILE={}\0", self.file.display());
        super::wait::until("the tool servers to be gone", Duration::from_secs(10), || async {
            let Ok(processes) = std::fs::read_dir("/proc") else { return Some(()) };
            let mut environments = processes.flatten().filter_map(|process| std::fs::read(process.path().join("environ")).ok());
            (!environments.any(|found| found.windows(mark.len()).any(|part| part == mark.as_bytes()))).then_some(())
        })
        .await;
    }

    /// How often `tool` was executed with this `text`.
    pub fn count(&self, tool: &str, text: &str) -> usize {
        self.entries().iter().filter(|entry| entry.tool == tool && entry.arguments["text"] == text).count()
    }
}

/// One execution.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The tool's name at the server.
    pub tool: String,
    /// Its arguments as they arrived.
    pub arguments: Value,
    /// The `_meta` of the call.
    pub meta: Value,
}
