//! The page by keyboard alone: no pointer, and no script that moves the focus.

use serde_json::json;

use support::browser::{Browser, CONTROL, DOWN, ENTER, ESCAPE, RIGHT, SHIFT, TAB};
use support::database::Kind;
use support::server::Site;

use super::approvals;
use super::page::looking_at;

/// So many elements, at most, are between two that a test goes to.
const MOST_STEPS: usize = 80;

async fn focused(browser: &Browser, css: &str) {
    browser.until(css, &format!("return document.activeElement?.matches(`{css}`)")).await;
}

/// Presses the keys that lead to the next element, or to the one before, until a fitting one has the focus.
async fn go_to(browser: &Browser, is_back: bool, css: &str) {
    for _ in 0..MOST_STEPS {
        if is_back {
            browser.chord(&[SHIFT], TAB).await;
        } else {
            browser.press(TAB).await;
        }
        if browser.run("return document.activeElement.matches(arguments[0])", &[css]).await == true {
            return;
        }
    }
    panic!("no key leads to {css}");
}

async fn forth_to(browser: &Browser, css: &str) {
    go_to(browser, false, css).await;
}

async fn back_to(browser: &Browser, css: &str) {
    go_to(browser, true, css).await;
}

/// Waits for the answer that ends the newest run.
async fn answered(browser: &Browser, words: &str) {
    browser.shows(".run.newest .message.assistant:last-of-type .text", words).await;
    browser.until("the end of the run", "return document.querySelector('.run.newest .end .usage') !== null").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conversation_is_led_by_keys_alone() {
    let (_model, site, server) = Site::serve(async |model| approvals::site(Kind::Sqlite, model).await).await;
    let browser = looking_at(&server).await;

    // Shift and Enter begin a line, Enter sends, and Escape stops the answer.
    focused(&browser, "#message").await;
    browser.press("a line").await;
    browser.chord(&[SHIFT], ENTER).await;
    browser.press("[[id:keys]][[text:5,10]][[hold]][[say:never]]").await;
    assert_eq!(browser.count(".message").await, 0);
    browser.press(ENTER).await;
    browser.shows(".message.user .said", "a line\n[[id:keys]]").await;
    browser.shows(".streaming .text", "t4").await;
    focused(&browser, "#message").await;
    browser.press(ESCAPE).await;
    browser.shows(".end", "Stopped.").await;

    // A call is approved, and another one is declined with a reason.
    let mut script = r#"[[id:yes]][[call:ledger__append {"text":"one"}]][[next]][[say:bye]]"#;
    browser.press(&format!("{script}{ENTER}")).await;
    browser.shows(".ask:not([data-fresh])", "Allow once").await;
    back_to(&browser, ".ask .allow").await;
    browser.press(ENTER).await;
    browser.shows(".ask[data-status=allowed]", "Allowed once").await;
    answered(&browser, "bye").await;
    assert_eq!(site.ledger.count("append", "one"), 1);
    // The way goes on from the place of the card.
    forth_to(&browser, "#message").await;
    script = r#"[[id:no]][[call:ledger__append {"text":"two"}]][[next]][[say:no]]"#;
    browser.press(&format!("{script}{ENTER}")).await;
    browser.shows(".ask[data-status=pending]:not([data-fresh])", "Allow once").await;
    back_to(&browser, ".ask .deny input").await;
    browser.press(&format!("not today{TAB}{ENTER}")).await;
    browser.shows(".ask[data-status=denied]", "not today").await;
    answered(&browser, "no").await;
    assert_eq!(site.ledger.count("append", "two"), 0);

    // Another model.
    forth_to(&browser, "#message").await;
    forth_to(&browser, "#model").await;
    browser.press(ENTER).await;
    focused(&browser, "#model-search").await;
    browser.until("the models", "return document.querySelectorAll('.picker .option').length > 1").await;
    let name = browser.run("return document.querySelectorAll('.picker .option-name')[1].innerText", &[]).await;
    browser.press(&format!("{DOWN}{ENTER}")).await;
    focused(&browser, "#model").await;
    browser.shows("#model", name.as_str().unwrap()).await;
    let conversation = browser.run("return location.hash.slice(2)", &[]).await.as_str().unwrap().to_owned();
    browser.until("the stored choice", "return document.querySelector('#model').title.startsWith('Model: openai/')").await;

    // The palette, and the shortcut of a new conversation.
    browser.chord(&[CONTROL], "k").await;
    focused(&browser, ".palette[open] input").await;
    browser.press(DOWN).await;
    browser.until("the second entry", "return document.querySelector('.palette .option.at')?.innerText === 'Inbox'").await;
    // Enter counts for what was typed, although nothing was found for it yet.
    browser.press(&format!("usa{ENTER}")).await;
    browser.until("the usage", "return location.hash === '#/usage' && document.querySelector('.palette') === null").await;
    browser.chord(&[CONTROL, SHIFT], "o").await;
    browser.until("a new conversation", "return location.hash === '#/'").await;
    focused(&browser, "#message").await;

    // A row of the list is opened and renamed.
    back_to(&browser, ".conversation .name").await;
    browser.press(ENTER).await;
    browser.until("the conversation", &format!("return location.hash === '#/{conversation}'")).await;
    browser.shows(".message.user .said", "a line").await;
    back_to(&browser, ".conversation.open .row-menu").await;
    browser.press(ENTER).await;
    focused(&browser, ".menu-item").await;
    browser.until("the item", "return document.activeElement.innerText === 'Rename'").await;
    browser.press(ENTER).await;
    focused(&browser, ".conversation input").await;
    browser.press(&format!("By keys{ENTER}")).await;
    browser.shows("#title", "By keys").await;
    browser.shows(".conversation .words", "By keys").await;
    focused(&browser, ".conversation.open .name").await;

    // The set up, and the link over what is on each page.
    forth_to(&browser, ".foot-link[href='#/setup']").await;
    browser.press(ENTER).await;
    browser.shows(".tabs", "Models").await;
    back_to(&browser, ".skip").await;
    browser.press(ENTER).await;
    focused(&browser, "main").await;
    forth_to(&browser, ".tab").await;
    browser.press(RIGHT).await;
    focused(&browser, ".tab[aria-selected=true][id$=-tools]").await;
    browser.shows("main [data-server=ledger]", "ledger").await;
    forth_to(&browser, "main [data-server=ledger] summary").await;
    browser.press(ENTER).await;
    browser.shows("[data-tool=append]", "asks first").await;

    let record = server.get_json(&format!("/conversations/{conversation}")).await;
    assert_eq!(record["title"], "By keys");
    assert!(record["model"].as_str().unwrap().ends_with(name.as_str().unwrap()), "{record}");
    assert_eq!(server.get_json("/approvals?status=pending").await["data"], json!([]));
}
