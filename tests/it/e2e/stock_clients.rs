//! Clients from common packages, at their default limits, can read each frame that the server sends.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use reqwest::StatusCode;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

use super::mcp_servers::installed;
use support::database::Kind;
use support::model::ModelMock;
use support::repository::root;
use support::server::{Server, Site};
use support::wait;

/// The largest frame.
const MAX_FRAME: u64 = 512 * 1024;

const CLIENTS: [Client; 3] = [Client::PythonWebsockets, Client::NodeWs, Client::PythonSse];

#[derive(Debug, Clone, Copy)]
enum Client {
    /// The package `websockets`, which accepts messages of at most 1 MiB.
    PythonWebsockets,
    /// The package `ws`.
    NodeWs,
    /// A reader of `text/event-stream`.
    PythonSse,
}

impl Client {
    fn command(self, packages: &Path) -> Command {
        let script = |name: &str| root().join("tests/it/e2e/clients").join(name);
        let python = |wire: &str| {
            let mut command = Command::new(packages.join("venv/bin/python"));
            command.arg(script("follow.py")).arg(wire);
            command
        };
        match self {
            Self::PythonWebsockets => python("ws"),
            Self::PythonSse => python("sse"),
            Self::NodeWs => {
                let mut command = Command::new("node");
                command.arg(script("follow.mjs")).arg(packages.join("node_modules"));
                command
            }
        }
    }

    /// Returns the client's findings. Fails if the connection is closed.
    async fn follows(self, packages: &Path, server: &Server, task: &str, subject: &str) -> Value {
        let mut command = self.command(packages);
        command.args([server.url.as_str(), task, subject]).kill_on_drop(true);
        let output = wait::within("the client", Duration::from_secs(120), command.output()).await.unwrap();
        assert!(output.status.success(), "{self:?}: {}", String::from_utf8_lossy(&output.stderr));
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(found["largest"].as_u64().unwrap() <= MAX_FRAME, "{self:?}: {} bytes", found["largest"]);
        found
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stock_clients_follow_a_run_with_a_large_screenshot() {
    let packages = installed().await;
    let model = ModelMock::start().await;
    let screen = root().join("tests/it/e2e/clients/screenshot.py");
    let servers = json!({"mcpServers": {"screen": {"command": "python3", "args": [screen]}}});
    let site = Site::new(Kind::Sqlite).await.with_model(&model).mcp(servers);
    let server = site.start().await;
    for client in CLIENTS {
        let input = "[[id:shot]][[call:screen__shoot {}]][[next]][[say:seen]]";
        let found = client.follows(&packages, &server, "run", input).await;
        let kinds = found["kinds"].as_array().unwrap();
        assert_eq!(kinds[kinds.len() - 2..], [json!("run.completed"), json!("stream.end")], "{client:?}: {kinds:?}");
        let image = &found["images"][0];
        assert_eq!((&image["type"], &image["media_type"]), (&json!("image"), &json!("image/png")), "{client:?}");
        assert!(image["size"].as_u64().unwrap() > 3_000_000, "{client:?}: {}", image["size"]);
        assert!(image.get("data").is_none(), "{client:?}");
        let url = image["url"].as_str().unwrap();
        assert_eq!(server.get(&format!("/{url}")).send().await.unwrap().status(), StatusCode::OK, "{url}");
    }
}

/// Returns message number `at` of a document, with this many characters.
fn message(at: usize, chars: usize) -> Value {
    let role = if at.is_multiple_of(2) { "user" } else { "assistant" };
    let text = format!("{at} ") + &"é".repeat(chars);
    json!({
        "id": format!("msg_{at:032x}"), "conversation_id": format!("conv_{:032x}", 1), "run_id": format!("run_{:032x}", at / 2),
        "role": role, "status": "complete", "created_at": "2026-01-01T00:00:00.000Z",
        "parts": [{"type": "text", "id": format!("part_{at:032x}"), "text": text}],
    })
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn stock_clients_read_a_long_conversation(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let packages = installed().await;
    let site = Site::new(kind).await;
    let server = site.start().await;
    let is_long = |at: &usize| [3, 251, 497].contains(at);
    let messages: Vec<Value> = (0..500).map(|at| message(at, if is_long(&at) { 350_000 } else { 4_000 })).collect();
    let document = json!({"format": "capstan.conversation", "version": 1, "conversation": {"title": "Long"}, "messages": messages});
    let (status, made) = server.post_json("/conversations/import", &document).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let conversation = made["id"].as_str().unwrap();
    let chars: Vec<usize> = messages.iter().map(|message| message["parts"][0]["text"].as_str().unwrap().chars().count()).collect();
    for client in CLIENTS {
        let found = client.follows(&packages, &server, "conversation", conversation).await;
        let paged = found["paged"].as_array().unwrap();
        assert_eq!(
            paged.iter().map(|said| said[1].clone()).collect::<Vec<_>>(),
            json!(chars).as_array().unwrap()[..],
            "{client:?}"
        );
        assert_eq!(paged.iter().map(|said| said[0].to_string()).collect::<HashSet<_>>().len(), 500, "{client:?}");
        assert_eq!(found["logged"], found["paged"], "{client:?}");
        assert_eq!((&found["shown"], &found["shortened"]), (&json!(2), &json!(3)), "{client:?}");
    }
}
