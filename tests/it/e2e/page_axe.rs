//! The page has no violation of WCAG 2.2 AA that axe finds, light and dark.

use reqwest::Method;
use serde_json::json;

use support::browser::{Browser, ENTER, ESCAPE};
use support::database::Kind;
use support::model::ModelMock;
use support::server::{Server, Site};

use super::approvals;
use super::page::{import, looking_at, pick_in_menu};

/// Returns the violations of WCAG 2.2 AA that axe finds in what is shown.
pub(super) async fn axe_violations(browser: &Browser) -> Vec<String> {
    axe_violations_in(browser, "html").await
}

/// Returns the violations inside one element.
async fn axe_violations_in(browser: &Browser, css: &str) -> Vec<String> {
    if browser.run("return window.axe === undefined", &[]).await == true {
        let axe = concat!(env!("CARGO_MANIFEST_DIR"), "/../../web/node_modules/axe-core/axe.min.js");
        browser.run(&std::fs::read_to_string(axe).unwrap(), &[]).await;
    }
    let check = "const tags = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'];
        return axe.run(arguments[0], { runOnly: tags, resultTypes: ['violations'] }).then(({ violations }) =>
            violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 160)).join(' | ')}`))";
    let found = browser.run(check, &[css]).await;
    found.as_array().unwrap().iter().map(|violation| violation.as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn page_has_no_axe_violation() {
    let (_model, _site, server) = Site::serve(async |model| approvals::site(Kind::Sqlite, model).await).await;
    let browser = looking_at(&server).await;
    browser.write("#message", &format!("{}{ENTER}", approvals::INPUT)).await;
    browser.shows(".ask:not([data-fresh])", "Allow once").await;
    let chat = browser.run("return location.hash", &[]).await;
    let mut found = Vec::new();
    for (scheme, width) in [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)] {
        browser.look(scheme, width).await;
        for (place, shown) in [
            (chat.as_str().unwrap(), "#transcript .ask .arguments"),
            ("#/", ".preset"),
            ("#/inbox", ".inbox .ask .arguments"),
            ("#/usage", ".chart"),
            ("#/setup", "[data-provider=openai]"),
            ("#/setup/tools", "[data-server=ledger]"),
            ("#/setup/agents", "[data-agent]"),
            ("#/setup/permissions", "[id$=-permissions] .setup-section"),
            ("#/setup/audit", "[id$=-audit] .setup-section"),
            ("#/setup/keys", "[id$=-keys] .setup-section"),
            ("#/setup/users", "[data-user]"),
            ("#/setup/settings", ".settings tbody tr"),
            ("#/setup/account", ".account"),
        ] {
            browser.show(place).await;
            browser.until(place, &format!("return document.querySelector('main {shown}') !== null")).await;
            let violations = axe_violations(&browser).await;
            found.extend(violations.iter().map(|violation| format!("{scheme} {width} {place} {violation}")));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

// Cards, lists, menus and forms that a click opens have no violation of WCAG 2.2 AA that axe finds.
#[tokio::test(flavor = "multi_thread")]
async fn opened_parts_have_no_axe_violation() {
    let (_model, _site, server) = Site::serve(async |model| approvals::site(Kind::Sqlite, model).await).await;
    let (run, _) = approvals::waiting(&server, approvals::INPUT).await;
    let (_, made) = server.post_json("/agents", &json!({"name": "poet", "profile": {"system_prompt": "Rhyme."}})).await;
    let change = server.request(Method::PATCH, &format!("/agents/{}", made["id"].as_str().unwrap()));
    let changed = change.json(&json!({"profile": {"system_prompt": "Rhyme always."}})).send().await.unwrap();
    assert_eq!(changed.status(), 200);
    let browser = looking_at(&server).await;
    let inspector = format!("#/run/{run}");
    let mut found = Vec::new();
    for scheme in ["light", "dark"] {
        browser.look(scheme, 1280).await;
        for (place, button, opened) in [
            ("#/setup/tools", "[data-server=ledger] summary", ".tool-list li"),
            ("#/setup/models", "[data-provider=openai] summary", "details[open] :is(.model-list, .trouble)"),
            ("#/setup/agents", "[data-agent=poet] summary", ".versions .diff mark"),
            ("#/setup/agents", ".setup-head .primary", ".setup-form [name=rest]"),
            ("#/setup/tools", ".setup-head .primary", ".setup-form [name=pairs]"),
            (inspector.as_str(), ".step-tree .call summary", ".step-tree .body pre"),
            (inspector.as_str(), ".step-tree .sent > summary", ".sent-body"),
            ("#/", "#servers", ".server-list [data-server=ledger]"),
            ("#/", "#shares", "dialog.share h2"),
            ("#/", "#go-to", ".palette .option"),
            ("#/", "#model", ".picker .option"),
            ("#/", ".conversation .row-menu", ".menu-item"),
        ] {
            browser.show(place).await;
            browser.click(button).await;
            browser.until(opened, &format!("return document.querySelector('{opened}') !== null")).await;
            let violations = axe_violations(&browser).await;
            found.extend(violations.iter().map(|violation| format!("{scheme} {place} {button} {violation}")));
            browser.press(ESCAPE).await;
            let is_closed = "return document.querySelector('dialog[open], .popover') === null";
            browser.until("the end of the overlay", is_closed).await;
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Code, a formula, tasks and a table.
const RICH: &str = concat!(
    "# Title\n\n```rust\n// a comment\nfn main() { println!(\"{}\", 1); }\n```\n\nSo $x^2$ and \\[ \\frac{1}{2} \\] with `code` and ",
    "[a link](https://example.com/)\n\n- [x] done\n- [ ] open\n\n> quoted\n\n| A | B |\n|---|--:|\n| 1 | 2 |\n\nthe end"
);

/// Collects the violations of several parts.
struct Checks<'a> {
    browser: &'a Browser,
    found: Vec<String>,
}

impl Checks<'_> {
    /// Checks one element at one width, dark and light.
    async fn check(&mut self, label: &str, css: &str, width: u32) {
        self.browser.until(label, &format!("return document.querySelector(`{css}`)?.checkVisibility() === true")).await;
        for scheme in ["dark", "light"] {
            self.browser.look(scheme, width).await;
            let is_still =
                "return document.getAnimations().every((one) => !(one instanceof CSSTransition) || one.playState !== 'running')";
            self.browser.until("the end of transitions", is_still).await;
            let violations = axe_violations_in(self.browser, css).await;
            self.found.extend(violations.iter().map(|violation| format!("{label} {scheme} {violation}")));
        }
    }
}

/// Imports a conversation with a rich answer, and adds a failed run. Returns its id.
async fn conversation_with_failed_run(server: &Server) -> String {
    let conversation = import(server, &["hello".to_owned(), RICH.to_owned()]).await;
    let say = async |input: String| {
        let body = json!({"input": input, "conversation_id": conversation, "model": "openai/mock"});
        server.start_run(&body).await["id"].as_str().unwrap().to_owned()
    };
    let failed = say("[[id:bad]][[flaky:1,400]]".to_owned()).await;
    assert_eq!(server.finished(&failed).await["status"], "failed");
    conversation
}

#[tokio::test(flavor = "multi_thread")]
async fn seldom_seen_parts_have_no_axe_violation() {
    let model = ModelMock::start().await;
    let tools = r#"["ask_user"]"#;
    let site = Site::scripted(Kind::Sqlite, &model).await.env("CAPSTAN_MODEL", "demo/demo").env("CAPSTAN_TOOLS__ENABLE", tools);
    let key = site.key_of("ann").await;
    let mut server = site.start().await;
    server.set_key(&key);
    let browser = looking_at(&server).await;
    let mut checks = Checks { browser: &browser, found: Vec::new() };
    browser.write("#key-dialog[open] #key", &format!("cap_wrong{ENTER}")).await;
    browser.shows("#key-trouble:not([hidden])", "does not let you in").await;
    checks.check("key dialog", "#key-dialog", 1280).await;
    browser.write("#key-dialog[open] #key", &format!("{key}{ENTER}")).await;
    browser.click(".first-run [data-kind=ollama]").await;
    browser.until("the form", "return document.querySelector('.first-run form') !== null").await;
    checks.check("first run", "main", 1280).await;
    browser.show("#/setup/tools").await;
    browser.click(".setup-head button:not(.primary)").await;
    checks.check("import of servers", ".setup-form:has([name=file])", 1280).await;

    // A rich answer, followed by a failed run.
    let conversation = conversation_with_failed_run(&server).await;
    browser.show(&format!("#/{conversation}")).await;
    browser.until("the colours", "return document.querySelector('.code .hljs-keyword') !== null").await;
    browser.until("the formula", "return document.querySelector('.text math') !== null").await;
    browser.shows(".end .error", "provider_invalid_request").await;
    let attach = "const files = new DataTransfer();
        files.items.add(new File(['x'], 'note.txt', { type: 'text/plain' }));
        const input = document.querySelector('#file');
        input.files = files.files;
        input.dispatchEvent(new Event('change', { bubbles: true }));";
    browser.run(attach, &[]).await;
    browser.until("the file", "return document.querySelector('#files .i-file') !== null").await;
    browser.click(".run.newest [aria-label='Edit and send again']").await;
    browser.until("the editor", "return document.querySelector('.editing textarea') === document.activeElement").await;
    checks.check("rich answer, error, editor and attachment", "main", 1280).await;

    // The edited message has two versions, and the answer asks with a form.
    let form = json!({"type": "object", "required": ["day"], "properties": {
        "day": {"type": "string", "title": "Day", "description": "Any day of the week"},
        "days": {"type": "array", "items": {"type": "string", "enum": ["Mon", "Tue"]}},
        "seats": {"type": "integer", "enum": [1, 2, 3]},
        "quiet": {"type": "boolean", "title": "Quiet"},
    }});
    let record = server.request(Method::PATCH, &format!("/conversations/{conversation}"));
    assert_eq!(record.json(&json!({"model": "openai/mock"})).send().await.unwrap().status(), 200);
    let question = json!({"question": "When?", "form": form});
    browser.write(".editing textarea", &format!("[[id:form]][[call:ask_user {question}]][[next]][[say:bye]]")).await;
    browser.click(".editing .primary").await;
    browser.shows(".ask:not([data-fresh])", "When?").await;
    browser.shows(".message-versions", "2/2").await;
    checks.check("form and versions", "main", 1280).await;

    browser.look("light", 390).await;
    browser.click("#menu").await;
    browser.shows(".page.menu .conversation .words", "Imported").await;
    checks.check("side bar of a phone", "#sidebar", 390).await;

    browser.press(ESCAPE).await;
    browser.look("light", 1280).await;
    pick_in_menu(&browser, "Archive").await;
    checks.check("toast", ".toasts", 1280).await;
    assert!(checks.found.is_empty(), "{}", checks.found.join("\n"));
}
