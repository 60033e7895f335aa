//! Clients that are generated from the OpenAPI document compile, and start, follow and cancel a run with typed events.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;

use super::mcp_servers::installed;
use support::database::Kind;
use support::repository::root;
use support::server::Site;
use support::wait;

const DOCUMENT: &str = "openapi/capstan.json";

/// A model that speaks, and then holds the connection until the run is cancelled.
const SCRIPT: &str = "[[id:generated]][[text:3,0]][[hold]]";

/// Runs a program to its end, and returns its standard output.
async fn output(what: &str, command: &mut Command) -> String {
    let output = wait::within(what, Duration::from_secs(60), command.kill_on_drop(true).output()).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{what}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Plays a client against a server, and checks its findings.
async fn plays(client: impl AsyncFnOnce(&Path, &str) -> String) {
    let (_model, site, server) = Site::serve(async |model| Site::new(Kind::Sqlite).await.with_model(model)).await;
    let found: Value = serde_json::from_str(&client(site.folder.path(), &server.url).await).unwrap();
    let types = found["types"].as_array().unwrap();
    for kind in ["run.queued", "run.started", "run.cancelled"] {
        assert!(types.contains(&json!(kind)), "{kind}: {found}");
    }
    assert!(found["text"].as_str().unwrap().starts_with("r1t0 "), "{found}");
    assert!(found["cancelled"].is_string(), "{found}");
    let facts = ["position", "by", "code", "dated"].map(|name| found[name].clone());
    assert_eq!(facts, [json!(0), json!("user"), json!("not_found"), json!(true)], "{found}");
}

/// The types are those of `openapi-typescript`, in a client of `openapi-fetch`.
#[tokio::test(flavor = "multi_thread")]
async fn typescript_client_starts_follows_and_cancels_a_run() {
    let packages = installed().await.join("node_modules");
    plays(async |folder, url| {
        let program = folder.join("client.ts");
        std::fs::copy(root().join("tests/it/e2e/clients/generated.ts"), &program).unwrap();
        std::fs::write(folder.join("package.json"), r#"{"type": "module"}"#).unwrap();
        std::os::unix::fs::symlink(&packages, folder.join("node_modules")).unwrap();
        let mut generate = Command::new("node");
        generate.arg(packages.join("openapi-typescript/bin/cli.js")).arg(root().join(DOCUMENT));
        output("openapi-typescript", generate.arg("--output").arg(folder.join("api.ts"))).await;
        let mut compile = Command::new("node");
        compile.arg(packages.join("typescript/bin/tsc")).arg(&program);
        compile.args(["--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom,dom.asynciterable"]);
        output("tsc", &mut compile).await;
        output("the client", Command::new("node").arg(folder.join("client.js")).args([url, SCRIPT])).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_client_starts_follows_and_cancels_a_run() {
    let programs = installed().await.join("venv-openapi/bin");
    plays(async |folder, url| {
        let settings = folder.join("generator.yaml");
        // The formatter that the generator would call is not needed.
        std::fs::write(&settings, "post_hooks: []\n").unwrap();
        let mut generate = Command::new(programs.join("openapi-python-client"));
        generate.args(["generate", "--meta", "none", "--path"]).arg(root().join(DOCUMENT));
        let warnings = output("openapi-python-client", generate.arg("--config").arg(settings).arg("--output-path").arg(folder.join("api"))).await;
        // The bytes of a file have any media type, which this generator does not know.
        let known = "parsing GET /api/v1/files/{id}/content";
        let unknown: Vec<&str> = warnings.lines().filter(|line| line.starts_with("WARNING") && !line.contains(known)).collect();
        assert!(unknown.is_empty() && !warnings.contains("Unable to"), "{warnings}");
        let python = programs.join("python");
        output("compileall", Command::new(&python).args(["-m", "compileall", "-q"]).arg(folder.join("api"))).await;
        let imports = "import importlib, pkgutil, api; [importlib.import_module(m.name) for m in pkgutil.walk_packages(api.__path__, 'api.')]";
        output("the imports", Command::new(&python).args(["-c", imports]).current_dir(folder)).await;
        let program = root().join("tests/it/e2e/clients/generated.py");
        output("the client", Command::new(&python).arg(program).args([url, SCRIPT]).env("PYTHONPATH", folder)).await
    })
    .await;
}
