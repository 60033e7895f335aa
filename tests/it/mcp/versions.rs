//! Servers that speak older and newer revisions of the protocol.

use rstest::rstest;
use serde_json::json;

use super::setup::{Scripted, Tools, text};

/// M-17.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn every_revision_with_a_handshake_is_spoken(
    #[values("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")] version: &str,
) {
    let server = Scripted::new();
    let tools = Tools::new(&json!({"s": server.entry(&[&format!("version={version}")])})).await;
    assert_eq!(text(&tools.call("s__echo", json!({"text": version})).await), version);
    assert_eq!(server.log("ready").len(), 1);
    tools.shutdown().await;
}

/// M-17.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_handshake_is_found_out_once() {
    let server = Scripted::new();
    let tools = Tools::new(&json!({"s": server.entry(&["stateless"])})).await;
    assert_eq!(text(&tools.call("s__echo", json!({"text": "one"})).await), "one");
    assert_eq!((server.log("pid").len(), server.log("discovered").len()), (2, 1), "it was greeted twice, with a process each");
    tools.call("s__die", json!({})).await;
    assert_eq!(text(&tools.call("s__echo", json!({"text": "two"})).await), "two");
    assert_eq!((server.log("pid").len(), server.log("discovered").len()), (3, 2), "and once from then on");
    tools.shutdown().await;
    server.gone().await;
}

/// M-17.
#[tokio::test(flavor = "multi_thread")]
async fn a_revision_that_nobody_knows_is_named() {
    let server = Scripted::new();
    let tools = Tools::new(&json!({"s": server.entry(&["version=1999-01-01"])})).await;
    let error = tools.status("s").await.error.unwrap();
    assert!(error.contains("speaks version \"1999-01-01\"") && error.contains("2024-11-05, "), "{error}");
    tools.shutdown().await;
    server.gone().await;
}
