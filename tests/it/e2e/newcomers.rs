//! Tests the way from `make run` without a setting to the first answer of a real model, on the page alone.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use support::browser::{Browser, ENTER};
use support::database::Kind;
use support::dialects::Dialect;
use support::model::ModelMock;
use support::refusing::RefusingProvider;
use support::server::{Site, program};

/// The most time between opening the page and the first answer.
const MINUTE: Duration = Duration::from_secs(60);

/// Returns a site whose servers start by `make run`, with an address to listen on as the only setting. The program is built already,
/// so a script named `cargo` starts it, in the folder of the site.
async fn site_of_make_run() -> Site {
    let site = Site::new(Kind::Sqlite).await;
    let folder = site.folder.path();
    let tools = folder.join("tools");
    std::fs::create_dir(&tools).unwrap();
    let repository = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    // `-o page`: the program embeds the page already. The server is killed when make ends, even if the test panics.
    let make = format!(
        "#!/bin/sh\nlisten=$CAPSTAN_LISTEN\nunset DATABASE_URL $(env | sed -n 's/^\\(CAPSTAN_[A-Z_]*\\)=.*/\\1/p')\n\
         PATH={}:$PATH exec make -s -C {repository} -o page run ARGS=\"--listen $listen\"\n",
        tools.display()
    );
    let cargo = format!(
        "#!/bin/sh\n[ \"$1 $2 $3\" = 'run --locked --' ] || exit 64\nshift 3\ncd {}\n\
         exec setpriv --pdeathsig KILL {} \"$@\"\n",
        folder.display(),
        program().display()
    );
    let run = folder.join("make-run");
    write_script(&run, &make);
    write_script(&tools.join("cargo"), &cargo);
    site.program(&run)
}

fn write_script(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

// A machine with Ollama: its models are found, one becomes the default, and it answers.
#[tokio::test(flavor = "multi_thread")]
async fn newcomer_with_ollama_chooses_a_found_model() {
    let ollama =
        RefusingProvider::start_with(Dialect::Ollama, Arc::new(|_, _, _| None), &["nomic-embed-text", "acme-1", "acme-2"]).await;
    let site = site_of_make_run().await.env("OLLAMA_HOST", ollama.base_url.trim_end_matches("/v1"));
    let server = site.start().await;
    let browser = Browser::start().await;
    let opened = Instant::now();
    browser.open(&format!("{}/", server.url)).await;
    browser.shows(".first-run", "ollama is connected").await;
    browser.shows("#model", "acme-1").await;
    let listed = "return [...document.querySelectorAll('.model-list .words')].map((name) => name.innerText)";
    browser.until("the models", &format!("{listed}.length > 0")).await;
    let listed = browser.run(listed, &[]).await;
    assert!(["acme-1", "acme-2"].iter().all(|name| listed.as_array().unwrap().contains(&json!(name))), "{listed}");
    let choose = "[...document.querySelectorAll('.model-list li')].find((model) => model.innerText.includes('acme-2')).querySelector('button').click()";
    browser.run(choose, &[]).await;
    browser.shows(".toast", "New conversations use ollama/acme-2.").await;
    assert_eq!(browser.count(".first-run").await, 0);
    browser.write("#message", &format!("hello{ENTER}")).await;
    browser.shows(".message.assistant .text", "Hello.").await;
    assert!(opened.elapsed() < MINUTE, "the first answer comes after {:?}", opened.elapsed());
    browser.until("the end", "return document.querySelector('.end .usage')?.textContent.includes('ollama/acme-2')").await;
    assert_eq!(ollama.asked().last().unwrap().body["model"], "acme-2");
    // The choice is made once.
    browser.show("#/").await;
    browser.shows("#model", "acme-2").await;
    assert_eq!(browser.count(".first-run").await, 0);
}

// From the demonstration to the first answer of a real model, without a file, a variable or a restart.
#[tokio::test(flavor = "multi_thread")]
async fn newcomer_connects_a_model_on_the_page() {
    let model = ModelMock::start().await;
    let site = site_of_make_run().await;
    let server = site.start().await;
    let browser = Browser::start().await;
    let opened = Instant::now();
    browser.open(&format!("{}/", server.url)).await;
    browser.shows(".first-run", "Connect a model").await;
    browser.click("[data-kind=other]").await;
    browser.write("input[name=name]", "played").await;
    browser.write("input[name=url]", "http://127.0.0.1:9/v1").await;
    browser.write("input[name=key]", "sk-played").await;
    browser.click(".setup-form button[type=submit]").await;
    browser.until("the error", "return document.querySelector('.setup-form .trouble') !== null").await;
    browser.write("input[name=url]", &model.base_url).await;
    browser.click(".setup-form button[type=submit]").await;
    browser.click(".choose-model .choose").await;
    browser.shows(".toast", "New conversations use played/mock.").await;
    browser.shows("#model", "mock").await;
    browser.write("#message", &format!("[[id:first]][[say:a real answer]]{ENTER}")).await;
    browser.shows(".message.assistant .text", "a real answer").await;
    assert!(opened.elapsed() < MINUTE, "the first answer comes after {:?}", opened.elapsed());
    browser.until("the end", "return document.querySelector('.end .usage')?.textContent.includes('played/mock')").await;
    // It is the default of the user, not of this tab.
    let run = server.start_run(&json!({"input": "[[id:second]][[say:again]]"})).await;
    assert_eq!(run["model"], "played/mock");
    browser.show("#/setup").await;
    browser.shows("[data-provider=played]", "yours").await;
    let listed: Value = server.request(Method::GET, "/providers").send().await.unwrap().json().await.unwrap();
    let names: Vec<_> = listed["data"].as_array().unwrap().iter().map(|provider| provider["name"].clone()).collect();
    assert_eq!(names, ["played"], "the first attempt left nothing behind");
}
