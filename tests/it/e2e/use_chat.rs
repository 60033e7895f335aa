//! `useChat` of the AI SDK in a real browser, with unmodified packages.

use std::path::Path;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::task::JoinSet;

use super::approvals;
use super::mcp_servers::installed;
use support::browser::Browser;
use support::database::Kind;
use support::model::ModelMock;
use support::repository::root;
use support::server::{Server, Site};
use support::wait;

/// Pages that tests bundle, on an origin of their own. Gone when dropped.
pub(super) struct Pages {
    /// The origin.
    pub url: String,
    folder: TempDir,
    _tasks: JoinSet<()>,
}

impl Pages {
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let files = folder.path().to_owned();
        let serve = async move |uri: Uri| file(&files.join(uri.path().trim_start_matches('/')));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _ = axum::serve(listener, Router::new().fallback(serve)).await;
        });
        Self { url, folder, _tasks: tasks }
    }

    /// Bundles a module as a page, with this release of the AI SDK.
    pub async fn bundle(&self, name: &str, module: &Path, release: u32) {
        let modules = installed().await.join("node_modules").canonicalize().unwrap();
        let mut command = Command::new(modules.join(".bin/esbuild"));
        command.args(["--bundle", "--format=esm", "--jsx=automatic", "--log-level=error"]).arg(module);
        command.arg(r#"--define:process.env.NODE_ENV="production""#).env("NODE_PATH", &modules);
        command.arg(format!("--outfile={}", self.folder.path().join(name).with_extension("js").display()));
        if release < 7 {
            let hook = modules.join(format!("ai-react{release}"));
            command.arg(format!("--alias:@ai-sdk/react={}", hook.display()));
            command.arg(format!("--alias:ai={}", hook.join("node_modules/ai").display()));
        }
        let output = wait::within("the bundle", Duration::from_secs(60), command.output()).await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // Relative addresses of the page lead to the server in its query.
        let page = format!(
            r#"<!doctype html><meta charset="utf-8"><div id="page"></div><script>
            const base = document.createElement('base');
            base.href = new URLSearchParams(location.search).get('server');
            document.head.append(base);
            </script><script type="module" src="{}/{name}.js"></script>"#,
            self.url
        );
        std::fs::write(self.folder.path().join(name).with_extension("html"), page).unwrap();
    }

    /// Bundles the chat of the tests.
    pub async fn chat(&self, release: u32) {
        self.bundle(&format!("chat{release}"), &root().join("tests/it/e2e/clients/use_chat.jsx"), release).await;
    }

    /// Allows the pages on servers that are started from now on.
    pub fn allowed(&self, site: Site) -> Site {
        site.env("CAPSTAN_SERVER__ALLOWED_ORIGINS", &json!([self.url]).to_string())
    }

    /// Returns the address of a page that talks to this server.
    pub fn address(&self, name: &str, server: &Server, query: &str) -> String {
        format!("{}/{name}.html?server={}&{query}", self.url, server.url)
    }
}

fn file(path: &Path) -> Response {
    let kind = if path.extension().is_some_and(|extension| extension == "js") { "text/javascript" } else { "text/html" };
    std::fs::read(path)
        .map_or_else(|_| StatusCode::NOT_FOUND.into_response(), |bytes| ([("content-type", kind)], bytes).into_response())
}

/// The chat of the tests in a browser.
pub(super) struct ChatPage<'a> {
    pub browser: &'a Browser,
    /// The id of the chat, which is that of its element.
    pub id: &'a str,
}

impl ChatPage<'_> {
    pub async fn send(&self, text: &str) {
        self.browser.write("input", text).await;
        self.act("send").await;
    }

    /// Clicks a button.
    pub async fn act(&self, name: &str) {
        self.browser.click(&format!("#{} #{name}", self.id)).await;
    }

    /// Waits until the newest message shows these words in an element.
    pub async fn shows(&self, css: &str, words: &str) {
        self.browser.shows(&format!("#{} section:last-of-type {css}", self.id), words).await;
    }

    /// Waits until the chat has this status.
    pub async fn is(&self, status: &str) {
        let script = format!("return document.querySelector('#{}[data-status={status}]') !== null", self.id);
        self.browser.until(&format!("{} to be {status}", self.id), &script).await;
    }

    /// Waits until an answer is complete. Returns the messages.
    pub async fn answer(&self, words: &str) -> Vec<Value> {
        self.shows(".text:last-of-type", words).await;
        self.is("ready").await;
        self.messages().await
    }

    pub async fn messages(&self) -> Vec<Value> {
        let json = self.browser.run("return JSON.stringify(window.chat.messages)", &[]).await;
        serde_json::from_str(json.as_str().unwrap()).unwrap()
    }
}

/// Returns the text of a message.
pub(super) fn text(message: &Value) -> String {
    message["parts"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|part| part["type"] == "text")
        .filter_map(|part| part["text"].as_str())
        .collect()
}

fn tokens(answer: u32, count: usize) -> String {
    (0..count).map(|token| format!("r{answer}t{token} ")).collect()
}

const CHATS: [(u32, &str); 4] = [(5, ""), (6, ""), (7, ""), (7, "socket")];

#[tokio::test(flavor = "multi_thread")]
async fn use_chat_does_all_that_a_user_does() {
    let pages = Pages::start().await;
    let (model, site, server) = Site::serve(async |model| pages.allowed(approvals::site(Kind::Sqlite, model).await)).await;
    let browser = Browser::start().await;
    for (release, transport) in CHATS {
        pages.chat(release).await;
        let id = format!("chat{release}{transport}");
        let page = ChatPage { browser: &browser, id: &id };
        let open = async |more: &str| {
            let query = format!("id={id}&{transport}&{more}");
            browser.open(&pages.address(&format!("chat{release}"), &server, &query)).await;
        };
        open("").await;
        answers_reload_regenerate_and_edit(&page, &model).await;
        if release > 5 {
            approvals_are_decided(&page, &site).await;
        }
        stopped_stream_is_resumed_and_run_cancelled(&page, &model).await;

        open("look").await;
        page.send(r#"[[id:look]][[call:look {"at":"door"}]][[next]][[say:seen]]"#).await;
        page.answer("seen").await;
        page.shows(".tool[data-name=look][data-state=output-available]", "a door").await;
        assert_eq!(browser.run("return window.calls", &[]).await, json!(["look"]), "{id}");

        page.send("[[id:fails]][[status:401]]").await;
        browser.shows(&format!("#{id} [role=alert]"), "as scripted").await;
        page.is("error").await;

        open("agent=nobody").await;
        page.send("hello").await;
        browser.shows(&format!("#{id} [role=alert]"), "nobody").await;
    }
    site.assert_sound(&model).await;
}

async fn answers_reload_regenerate_and_edit(page: &ChatPage<'_>, model: &ModelMock) {
    let id = page.id;
    let first = model.total() as u32 + 1;
    let lookup = r#"[[reason:2,0]][[call:ledger__lookup {"text":"x"}]]"#;
    page.send(&format!("[[id:{id}]]{lookup}[[next]][[text:5,5]][[hold]][[text:5,0]]")).await;
    page.shows(".text", &format!("r{}t4", first + 1)).await;
    page.is("streaming").await;
    page.shows(".tool[data-name=ledger__lookup][data-state=output-available]", "").await;
    page.browser.reload().await;
    page.shows(".text", &format!("r{}t4", first + 1)).await;
    page.is("streaming").await;
    model.release(id);
    let messages = page.answer("t9").await;
    let answer = |messages: &[Value]| (messages.len(), messages.last().map(text).unwrap());
    assert_eq!(answer(&messages), (2, tokens(first + 1, 10)), "{id}: {messages:#?}");

    page.act("regenerate").await;
    page.shows(".text", &format!("r{}t9", first + 3)).await;
    page.is("ready").await;
    let again = page.messages().await;
    assert_eq!(answer(&again), (2, tokens(first + 3, 10)), "{id}: {again:#?}");
    assert_ne!(again[1]["id"], messages[1]["id"], "{id}");

    page.browser.write("input", "[[id:edited]][[say:edited]]").await;
    page.act("edit").await;
    let edited = page.answer("edited").await;
    assert_eq!((text(&edited[0]), answer(&edited)), ("[[id:edited]][[say:edited]]".to_owned(), (2, "edited".to_owned())), "{id}");
}

async fn approvals_are_decided(page: &ChatPage<'_>, site: &Site) {
    let asks = |text: &str| format!(r#"[[id:asks]][[call:ledger__append {{"text":"{text}"}}]][[next]][[say:bye]]"#);
    for (decision, state, count) in [("allow", "output-available", 1), ("deny", "output-denied", 0)] {
        let text = format!("{} {decision}", page.id);
        page.send(&asks(&text)).await;
        page.shows(".tool[data-state=approval-requested]", &text).await;
        page.browser.click(&format!("#{} section:last-of-type .{decision}", page.id)).await;
        page.answer("bye").await;
        page.shows(&format!(".tool[data-state={state}]"), "").await;
        assert_eq!(site.ledger.count("append", &text), count, "{text}");
    }
}

async fn stopped_stream_is_resumed_and_run_cancelled(page: &ChatPage<'_>, model: &ModelMock) {
    let name = format!("{}-stop", page.id);
    page.send(&format!("[[id:{name}]][[text:5,5]][[hold]][[say:rest]]")).await;
    page.shows(".text", "t4").await;
    page.act("stop").await;
    page.is("ready").await;
    page.shows(".text", "t4").await;
    assert!(model.exchanges(&name).iter().all(|one| one.hung_up.is_none()), "{name}: the run goes on");
    page.act("resume").await;
    page.is("streaming").await;
    page.shows(".text", "t4").await;
    let shown = page.messages().await;
    assert_eq!(text(shown.last().unwrap()).matches("t4").count(), 1, "{name}: {shown:#?}");
    page.act("cancel").await;
    page.is("ready").await;
    page.shows(".text", "t4").await;
    model.wait_for("the end of the model call", &name, |seen| seen.iter().all(|one| one.hung_up.is_some())).await;
}
