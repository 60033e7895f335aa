//! Actions on the page that change something: of conversations, answers, files, permissions and agents.

use reqwest::Method;
use serde_json::{Value, json};

use support::browser::{Browser, ENTER, ESCAPE};
use support::database::Kind;
use support::server::{Server, Site};

use super::approvals;
use super::page::{edit_row, import, looking_at, pick_in_menu};

/// Returns the titles of the list with their groups, in the order of the page.
const LISTED: &str = "return [...document.querySelectorAll('#conversations section')].flatMap((group) =>
    [...group.querySelectorAll('.words')].map((title) => `${group.ariaLabel}: ${title.innerText}`))";

/// Catches the files that the page saves, instead of storing them.
const CATCH_SAVED: &str = "window.saved = [];
    URL.createObjectURL = (blob) => {
        saved.push({ blob });
        return '#';
    };
    HTMLAnchorElement.prototype.click = function () {
        saved.at(-1).name = this.download;
    };";

async fn make_conversation(server: &Server, title: &str) -> String {
    let (status, made) = server.post_json("/conversations", &json!({"title": title})).await;
    assert_eq!(status, 201, "{made}");
    made["id"].as_str().unwrap().to_owned()
}

async fn record(server: &Server, conversation: &str) -> Value {
    server.get_json(&format!("/conversations/{conversation}")).await
}

/// Waits until the list has these titles, each behind its group. The group of a day depends on the clock.
async fn listed(browser: &Browser, what: &str, condition: &str) {
    let script = format!("const listed = (() => {{ {LISTED} }})(); return {condition}");
    browser.until(what, &script).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conversation_pinned_on_the_page_stays_on_top() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let first = make_conversation(&server, "first").await;
    let browser = looking_at(&server).await;
    browser.shows(".conversation .words", "first").await;
    pick_in_menu(&browser, "Pin").await;
    listed(&browser, "the pinned one", "listed[0] === 'Pinned: first'").await;
    assert_eq!(record(&server, &first).await["pinned"], true);
    make_conversation(&server, "second").await;
    listed(&browser, "the newer one below", "listed[0] === 'Pinned: first' && listed[1]?.endsWith(': second')").await;
    pick_in_menu(&browser, "Unpin").await;
    listed(&browser, "no pinned one", "listed.length === 2 && listed.every((row) => !row.startsWith('Pinned'))").await;
    assert_ne!(record(&server, &first).await["pinned"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn conversation_archived_on_the_page_can_be_restored() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let conversation = make_conversation(&server, "old papers").await;
    let browser = looking_at(&server).await;
    browser.shows(".conversation .words", "old papers").await;
    pick_in_menu(&browser, "Archive").await;
    browser.shows("#conversations", "No conversations yet.").await;
    browser.shows(".toast", "Archived.").await;
    assert!(record(&server, &conversation).await["archived_at"].is_string());
    browser.click(".toast button").await;
    browser.shows(".conversation .words", "old papers").await;

    pick_in_menu(&browser, "Archive").await;
    browser.shows("#conversations", "No conversations yet.").await;
    browser.click(".foot-link[aria-pressed=false]").await;
    listed(&browser, "the archive", "listed.join() === 'Archived: old papers'").await;
    pick_in_menu(&browser, "Restore").await;
    browser.shows("#conversations", "Nothing is archived.").await;
    assert!(record(&server, &conversation).await.get("archived_at").is_none());
    browser.click(".foot-link[aria-pressed=true]").await;
    browser.shows(".conversation .words", "old papers").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conversation_renamed_on_the_page_keeps_its_title() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let conversation = make_conversation(&server, "before").await;
    let browser = looking_at(&server).await;
    browser.show(&format!("#/{conversation}")).await;
    browser.shows("#title", "before").await;
    edit_row(&browser, "Rename", "after").await;
    browser.shows(".conversation .words", "after").await;
    browser.shows("#title", "after").await;
    assert_eq!(record(&server, &conversation).await["title"], "after");

    // Escape keeps the title.
    pick_in_menu(&browser, "Rename").await;
    browser.until("the editor", "return document.activeElement?.matches('.conversation input')").await;
    browser.press(&format!("lost{ESCAPE}")).await;
    browser.shows(".conversation .words", "after").await;
    browser.reload().await;
    browser.shows("#title", "after").await;
    assert_eq!(record(&server, &conversation).await["title"], "after");
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_rated_on_the_page_stores_the_feedback() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let run = server.start_run(&json!({"input": "[[id:rate]][[say:an answer]]"})).await;
    server.finished(run["id"].as_str().unwrap()).await;
    let conversation = run["conversation_id"].as_str().unwrap();
    let browser = looking_at(&server).await;
    browser.show(&format!("#/{conversation}")).await;
    let rating = async || server.messages(conversation).await[1]["feedback"]["rating"].clone();
    let (good, bad) = ("[aria-label='Good answer']", "[aria-label='Bad answer']");
    let pressed = async |button: &str, is_pressed: bool| {
        let script = format!("return document.querySelector(\"{button}\")?.ariaPressed === '{is_pressed}'");
        browser.until(button, &script).await;
    };
    browser.click(good).await;
    pressed(good, true).await;
    assert_eq!(rating().await, "up");
    browser.reload().await;
    pressed(good, true).await;
    browser.click(bad).await;
    pressed(bad, true).await;
    pressed(good, false).await;
    assert_eq!(rating().await, "down");
    // The same button takes the rating back.
    browser.click(bad).await;
    pressed(bad, false).await;
    assert_eq!(rating().await, Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn conversation_saved_on_the_page_can_be_imported() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let conversation = import(&server, &["a question".to_owned(), "a kept answer".to_owned()]).await;
    let browser = looking_at(&server).await;
    browser.run(CATCH_SAVED, &[]).await;
    browser.shows(".conversation .words", "Imported").await;
    pick_in_menu(&browser, "Save as Markdown").await;
    browser.until("the text", "return saved[0]?.name === 'Imported.md'").await;
    let text = browser.run("return saved[0].blob.text()", &[]).await;
    assert!(["a question", "a kept answer"].iter().all(|words| text.as_str().unwrap().contains(words)), "{text}");

    pick_in_menu(&browser, "Save as JSON").await;
    browser.until("the document", "return saved[1]?.name === 'Imported.json'").await;
    let document = browser.run("return saved[1].blob.text()", &[]).await;
    let document: Value = serde_json::from_str(document.as_str().unwrap()).unwrap();
    assert_eq!((&document["format"], document["messages"].as_array().unwrap().len()), (&json!("capstan.conversation"), 2));

    // The saved file is a conversation again.
    let pick = "const data = new DataTransfer();
        data.items.add(new File([saved[1].blob], saved[1].name, { type: 'application/json' }));
        const field = document.querySelector('#import');
        field.files = data.files;
        field.dispatchEvent(new Event('change', { bubbles: true }))";
    browser.run(pick, &[]).await;
    browser.shows(".message.assistant .text", "a kept answer").await;
    let copy = browser.run("return location.hash.slice(2)", &[]).await;
    assert_ne!(copy, json!(conversation));
    let texts = |messages: Vec<Value>| messages.into_iter().map(|message| message["parts"][0]["text"].clone()).collect::<Vec<_>>();
    assert_eq!(texts(server.messages(copy.as_str().unwrap()).await), texts(server.messages(&conversation).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn file_pasted_into_the_composer_is_attached() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let browser = looking_at(&server).await;
    let paste = "const data = new DataTransfer();
        if (arguments[0] === 'file') data.items.add(new File(['a pasted note'], 'pasted.txt', { type: 'text/plain' }));
        else data.setData('text/plain', 'words');
        const event = new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true });
        return document.querySelector('#message').dispatchEvent(event)";
    browser.until("the composer", "return document.querySelector('#message') !== null").await;
    assert_eq!(browser.run(paste, &["text"]).await, true, "the browser pastes text by itself");
    assert_eq!(browser.run(paste, &["file"]).await, false, "the page takes the file");
    browser.shows("#files", "pasted.txt").await;
    browser.until("the stored file", "return document.querySelector('#files .spin') === null").await;
    browser.write("#message", &format!("[[id:paste]][[say:read]]{ENTER}")).await;
    browser.shows(".message.assistant .text", "read").await;
    browser.shows(".message.user .chip", "pasted.txt").await;
    assert_eq!(browser.count("#files").await, 0);
    let conversation = browser.run("return location.hash.slice(2)", &[]).await;
    let messages = server.messages(conversation.as_str().unwrap()).await;
    assert_eq!((&messages[0]["parts"][1]["type"], &messages[0]["parts"][1]["name"]), (&json!("file"), &json!("pasted.txt")));
}

#[tokio::test(flavor = "multi_thread")]
async fn permission_taken_back_makes_the_next_call_ask() {
    let (_model, site, server) = Site::serve(async |model| approvals::site(Kind::Sqlite, model).await).await;
    let browser = looking_at(&server).await;
    let append = async |id: &str| {
        let script = format!(r#"[[id:{id}]][[call:ledger__append {{"text":"{id}"}}]][[next]][[say:bye]]{ENTER}"#);
        browser.write("#message", &script).await;
    };
    let ended = async |runs: usize| {
        let script = format!("return document.querySelectorAll('.end .usage').length === {runs}");
        browser.until("the end of the run", &script).await;
    };
    append("one").await;
    browser.click(".ask:not([data-fresh]) .allow-always").await;
    browser.shows(".ask[data-status=allowed]", "Allowed always").await;
    ended(1).await;
    append("two").await;
    ended(2).await;
    assert_eq!((browser.count(".ask").await, site.ledger.count("append", "two")), (1, 1), "the second call does not ask");
    let chat = browser.run("return location.hash", &[]).await;

    browser.show("#/setup/permissions").await;
    let card = browser.shows("[data-grant=append]", "always").await;
    assert!(card.contains("of ledger"), "{card}");
    browser.click("[data-grant=append] button").await;
    browser.shows(".setup-section", "Every call that needs a permission asks you.").await;
    assert_eq!(server.get_json("/tool-grants").await["data"], json!([]));

    browser.show(chat.as_str().unwrap()).await;
    browser.until("the composer", "return document.querySelector('#message') !== null").await;
    append("three").await;
    browser.shows(".ask[data-status=pending]", "ledger__append").await;
    assert_eq!(site.ledger.count("append", "three"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_rolled_back_on_the_page_has_its_old_profile() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let (status, made) = server.post_json("/agents", &json!({"name": "poet", "profile": {"system_prompt": "Rhyme."}})).await;
    assert_eq!(status, 201, "{made}");
    let path = format!("/agents/{}", made["id"].as_str().unwrap());
    let change = server.request(Method::PATCH, &path).json(&json!({"profile": {"system_prompt": "Never rhyme."}}));
    assert_eq!(change.send().await.unwrap().status(), 200);
    let browser = looking_at(&server).await;
    browser.show("#/setup/agents").await;
    browser.shows("[data-agent=poet]", "version 2").await;
    browser.click("[data-agent=poet] summary").await;
    browser.until("the versions", "return document.querySelectorAll('[data-agent=poet] .versions > li').length === 2").await;
    assert_eq!(browser.count(".versions > li > button").await, 1, "only the earlier version can be rolled back to");
    browser.click(".versions > li:last-child > button").await;
    browser.shows("[data-agent=poet]", "version 3").await;
    browser.shows("[data-agent=poet] .output", "\"Rhyme.\"").await;
    assert_eq!(server.get_json(&path).await["profile"]["system_prompt"], "Rhyme.");
}
