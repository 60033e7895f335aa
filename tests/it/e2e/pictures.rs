//! The pictures of the documents, taken from the running program. `scripts/pictures.sh` writes them into `docs/`.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use support::browser::Browser;
use support::database::Kind;
use support::server::Server;
use support::server::Site;

use super::approvals::waits;
use super::page::looking_at;

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Goes to a place of the page, waits until it shows these words, and takes its picture.
async fn picture(browser: &Browser, (name, place): (&str, &str), (css, words): (&str, &str)) {
    browser.show(place).await;
    browser.shows(css, words).await;
    // Fonts and movements are over, so that each picture is the same.
    browser.until("the end of all movements", "return document.getAnimations().every((one) => one.playState !== 'running' || one.effect.getTiming().iterations === Infinity) && document.fonts.status === 'loaded'").await;
    let picture = STANDARD.decode(browser.picture().await).unwrap();
    assert!(picture.starts_with(PNG) && picture.len() > 10_000, "{name} has {} bytes", picture.len());
    if let Some(folder) = support::setting("CAPSTAN_PICTURES") {
        std::fs::write(PathBuf::from(folder).join(name), picture).unwrap();
    }
}

async fn answered(server: &Server, input: &str) -> Value {
    let run = server.start_run(&json!({ "input": input })).await;
    server.finished(run["id"].as_str().unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn pictures_of_the_documents_show_the_page() {
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("notes.txt"), "Buy rope. Oil the capstan.\n").unwrap();
    let site = Site::new(Kind::Sqlite).await;
    let site = site.env("CAPSTAN_AGENT__APPROVAL__TOOLS__READ_FILE", "ask");
    let site = site.env("CAPSTAN_TOOLS__FILES_ROOT", &files.path().display().to_string());
    let server = site.start().await;
    answered(&server, "Count to 20").await;
    answered(&server, "How much is 17*23?").await;
    let waiting = server.start_run(&json!({"input": "Read notes.txt, and what time is it in Europe/Berlin?"})).await;
    let (run, conversation) = (waiting["id"].as_str().unwrap(), waiting["conversation_id"].as_str().unwrap());
    waits(&server, run).await;
    let browser = looking_at(&server).await;
    picture(&browser, ("ui.png", &format!("#/{conversation}")), ("main", "Allow once")).await;
    picture(&browser, ("ui-run.png", &format!("#/run/{run}")), ("main", "read_file")).await;
    browser.look("dark", 390).await;
    picture(&browser, ("ui-phone.png", &format!("#/{conversation}")), ("main", "Allow once")).await;
}
