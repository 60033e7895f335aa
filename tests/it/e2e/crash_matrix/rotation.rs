//! The command that encrypts every secret with another master key is disturbed while a server uses the secrets.
//!
//! The case has no run and no lease: a stopped command resumes after another one has done its work.

use std::time::Duration;

use serde_json::json;
use tokio::process::Child;

use super::case::{Case, Way, cut};
use support::asker::Asker;
use support::database::Kind;
use support::link::Link;
use support::server::{Server, Site};
use support::{audit, wait};

/// The providers, each with one secret.
const NAMES: [&str; 2] = ["one", "two"];

const ROTATE: [&str; 2] = ["secrets", "rotate"];

/// Plays a case and panics if a check fails. Returns whether the point was reached.
pub async fn play(case: Case) -> bool {
    let (model, site, server) = Site::start_scripted(case.kind).await;
    let new_key = [ROTATE[0], ROTATE[1], "--new-key"];
    assert!(site.command(&new_key).await.0);
    for name in NAMES {
        let body = json!({
            "name": name, "kind": "openai", "base_url": model.base_url, "key": "sk-test-0123456789", "models": [{"name": "mock"}],
        });
        let (status, made) = server.post_json("/providers", &body).await;
        assert_eq!(status, 201, "{made}");
    }

    let mut asker = Asker::start(case.point.failpoint).await;
    let (name, value) = asker.setting(case.at);
    let mut extra = vec![(name, value)];
    let mut link = None;
    if (case.way, case.kind) == (Way::Cut, Kind::Postgres) {
        let through = Link::to(site.database.server()).await;
        extra.push(("DATABASE_URL", site.database.url_through(through.address)));
        link = Some(through);
    }
    let extra: Vec<(&str, &str)> = extra.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut command = site.spawn_command(&new_key, &extra);
    let question = wait::within("the command to reach the point", Duration::from_secs(60), asker.next()).await;
    assert_eq!(encrypted_with(&site).await, if case.at == 1 { 1 } else { 2 }, "secrets are encrypted again one by one");
    // On SQLite the stopped command holds no lock either: it is between two writes.
    all_open(&server).await;
    match case.way {
        Way::Kill => {
            question.answer("kill").await;
            assert_eq!(ended(&mut command).await.code(), None, "the command must die by a signal");
        }
        Way::Panic => {
            question.answer("panic").await;
            assert!(!ended(&mut command).await.success());
        }
        // The command may fail or recover. The next command encrypts the remaining secrets.
        Way::Cut => {
            cut(link.as_ref(), &site, case.outage, question).await;
            ended(&mut command).await;
        }
        Way::Stop => {
            question.answer("stop").await;
            let (ok, said) = site.command(&ROTATE).await;
            assert!(ok && said.contains(&format!("encrypted again: {}", 3 - case.at)), "{said}");
            wake(&command).await;
            // Another command has encrypted the value that this one read, so the stale write is refused.
            let output = wait::within("the sleeper's end", Duration::from_secs(60), command.wait_with_output()).await.unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(!output.status.success() && said.contains("changed by another process meanwhile"), "{said}");
        }
    }
    all_open(&server).await;
    let (ok, said) = site.command(&ROTATE).await;
    assert!(ok, "{said}");
    assert_eq!(encrypted_with(&site).await, 1, "the next command finishes the rest");
    all_open(&server).await;
    audit::assert_sound(&site.database).await;
    true
}

/// Returns the number of master keys in use.
async fn encrypted_with(site: &Site) -> i64 {
    site.database.count("SELECT CAST(count(DISTINCT key_id) AS text) FROM providers").await
}

/// Asserts that every secret can be decrypted, with either key.
async fn all_open(server: &Server) {
    for name in NAMES {
        let run = server.start_run(&json!({"input": "hi", "model": format!("{name}/mock")})).await;
        let ended = server.finished(run["id"].as_str().unwrap()).await;
        assert_eq!(ended["status"], "completed", "{ended}");
    }
}

async fn ended(command: &mut Child) -> std::process::ExitStatus {
    wait::within("the command to end", Duration::from_secs(60), command.wait()).await.unwrap()
}

async fn wake(command: &Child) {
    let pid = command.id().unwrap().to_string();
    let status = tokio::process::Command::new("kill").args(["-CONT", &pid]).status().await.unwrap();
    assert!(status.success());
}
