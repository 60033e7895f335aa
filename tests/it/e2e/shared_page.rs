//! Shares on the page: a link is made, listed and revoked by its owner, and read by browsers without a key.

use serde_json::{Value, json};

use support::browser::{Browser, ENTER, ESCAPE, LEFT, TAB};
use support::database::Kind;
use support::model::ModelMock;
use support::server::{Server, Site};

use super::page::{import, looking_at, pick_in_menu};
use super::page_axe::axe_violations;

/// Records what a page sends and what its policy refuses, from the first script on.
const WATCH: &str = "window.sent = [];
    window.sockets = 0;
    window.refused = [];
    addEventListener('securitypolicyviolation', ({ violatedDirective }) => refused.push(violatedDirective));
    const real = window.fetch;
    window.fetch = (url, options) => {
        sent.push(`${new URL(url, location).pathname} ${options.credentials}`);
        return real(url, options);
    };
    window.WebSocket = class extends WebSocket {
        constructor(...all) {
            super(...all);
            sockets += 1;
        }
    };";

/// Markup, scripts, pictures and formulas that must do nothing.
const HOSTILE: &str = concat!(
    r#"<img src=x onerror="window.owned=1"> <script>window.owned=1</script> <style>*{display:none}</style> [a](javascript:window.owned=1)"#,
    r" ![b](https://example.com/b.png) $\href{javascript:window.owned=1}{c}$ $x^2$ **whole**",
    "\n\n```rust\n// a comment\nfn main() {}\n```"
);

const GONE: &str = "This link does not work: it has ended, was revoked, or was not copied whole.";

/// A server with a user, who has a conversation with a call of a tool and a hostile answer.
async fn site_with_conversation() -> (ModelMock, Site, Server, String, String) {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Sqlite, &model).await;
    let key = site.key_of("ann").await;
    let mut server = site.start().await;
    server.set_key(&key);
    let input = format!(r#"[[id:share]][[call:ledger__lookup {{"text":"canary"}}]][[next]][[say:{HOSTILE}]]"#);
    let run = server.start_run(&json!({"input": input})).await;
    server.finished(run["id"].as_str().unwrap()).await;
    let conversation = run["conversation_id"].as_str().unwrap().to_owned();
    server
        .request(reqwest::Method::PATCH, &format!("/conversations/{conversation}"))
        .json(&json!({"title": "Rivers"}))
        .send()
        .await
        .unwrap();
    (model, site, server, key, conversation)
}

/// Opens the page, signs in, and waits for the list.
async fn signed_in(server: &Server, key: &str, conversation: &str) -> Browser {
    let browser = Browser::start().await;
    browser.run_first(WATCH).await;
    browser.open(&format!("{}/#/{conversation}", server.url)).await;
    browser.write("#key-dialog[open] #key", &format!("{key}{ENTER}")).await;
    browser.until("the dialog to close", "return !document.querySelector('#key-dialog').open").await;
    browser.shows(".conversation .words", "Rivers").await;
    browser
}

async fn make_link(server: &Server, conversation: &str) -> (String, String) {
    let (status, made) = server.post_json(&format!("/conversations/{conversation}/shares"), &json!({"expires_in_days": 1})).await;
    assert_eq!(status, 201, "{made}");
    let text = |name: &str| made[name].as_str().unwrap().to_owned();
    (format!("{}/#/share/{}", server.url, text("token")), text("id"))
}

#[tokio::test(flavor = "multi_thread")]
async fn link_made_by_keyboard_is_read_without_a_key() {
    let (_model, _site, server, key, conversation) = site_with_conversation().await;
    let owner = signed_in(&server, &key, &conversation).await;
    let focused = async |what: &str, css: &str| {
        owner.until(what, &format!("return document.activeElement.matches(`{css}`)")).await;
    };
    // A page over plain HTTP has no clipboard, and copies by the command of the browser.
    let clipboard = "Object.defineProperty(navigator, 'clipboard', { value: undefined });
        addEventListener('copy', ({ target }) => (window.copied = target.value));
        document.querySelector('.row-menu').focus()";
    owner.run(clipboard, &[]).await;
    owner.press(ENTER).await;
    focused("the menu", ".menu-item").await;
    owner.press("sh").await;
    owner.until("the item", "return document.activeElement.innerText === 'Share…'").await;
    owner.press(ENTER).await;
    focused("the usual choice", "dialog[open] input[value=\"30\"]").await;
    let explained = owner.shows("dialog.share", "There are no links.").await;
    for words in ["Share “Rivers”", "names of used tools", "Messages that come later"] {
        assert!(explained.contains(words), "{words}: {explained}");
    }
    owner.press(&format!("{LEFT}{TAB}{ENTER}")).await;
    focused("the button that copies", ".share-link button").await;
    owner.press(ENTER).await;
    owner.shows(".share-link button", "Copied").await;
    focused("the button as before", ".share-link button").await;
    let link = owner.run("return copied", &[]).await.as_str().unwrap().to_owned();
    assert!(link.starts_with(&format!("{}/#/share/", server.url)), "{link}");
    let listed = server.get_json(&format!("/conversations/{conversation}/shares")).await;
    let days =
        "const [from, until] = [...arguments].map((time) => Date.parse(time)); return Math.round((until - from) / 86_400_000)";
    let times = ["created_at", "expires_at"].map(|name| listed["data"][0][name].as_str().unwrap());
    assert_eq!(owner.run(days, &times).await, 7);
    assert_eq!(owner.count("[data-share]").await, 1);
    owner.press(ESCAPE).await;
    focused("the button of the menu", ".row-menu").await;
    assert_eq!(owner.run("return refused", &[]).await, json!([]));

    let reader = Browser::start().await;
    reader.run_first(WATCH).await;
    reader.open(&link).await;
    reader.shows(".message.assistant .text strong", "whole").await;
    reader.shows(".message.user .said", "<script>").await;
    assert_eq!(reader.shows(".shared-tools", "ledger__lookup").await.trim(), "ledger__lookup");
    reader.until("the formula", "return document.querySelector('.text math') !== null").await;
    let state = "return [document.title, sent, sockets, refused, window.owned ?? null,
        document.querySelectorAll('dialog, .text :is(img, script, style, a[href^=javascript])').length]";
    assert_eq!(reader.run(state, &[]).await, json!(["Rivers · Capstan", ["/api/v1/shared omit"], 0, [], null, 0]));

    // Each browser of the tests notices what a policy refuses.
    reader.run("document.body.setAttribute('style', 'color: red')", &[]).await;
    assert_eq!(reader.refused().await.len(), 1);
    assert!(reader.refused().await.is_empty());

    // The owner revokes it, by keyboard.
    pick_in_menu(&owner, "Share…").await;
    owner.until("the link", "document.querySelector('[data-share] button')?.focus(); return document.activeElement.closest('[data-share]') !== null").await;
    owner.press(ENTER).await;
    owner.shows(".share-links", "There are no links.").await;
    focused("the heading of the list", "#share-links").await;
    reader.reload().await;
    reader.shows(".shared-note", GONE).await;
    assert_eq!(reader.count(".message").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_view_follows_address_and_network() {
    let (_model, _site, server, _key, conversation) = site_with_conversation().await;
    let (link, _) = make_link(&server, &conversation).await;
    let (other, id) = make_link(&server, &conversation).await;
    let reader = Browser::start().await;
    reader.run_first(WATCH).await;
    reader.open(&link).await;
    reader.shows(".message.assistant .text strong", "whole").await;
    // A token that was cut is never sent where it cannot be a token.
    for token in ["cut", "", "a b", "../me"] {
        reader.show(&format!("#/share/{token}")).await;
        reader.shows(".shared-note", GONE).await;
        reader.show(link.split_once('#').unwrap().1).await;
        reader.shows(".message.assistant .text strong", "whole").await;
    }
    let sent = reader.run("return sent", &[]).await;
    assert_eq!(sent.as_array().unwrap().len(), 6, "{sent}");

    let cut = "window.whole = fetch; window.fetch = () => Promise.reject(new TypeError('lost')); location.hash = arguments[0]";
    reader.run(cut, &[other.split_once('#').unwrap().1]).await;
    reader.shows(".shared-note", "The server cannot be reached.").await;
    reader.click(".shared-note button").await;
    reader.until("the second try", "return document.querySelector('.shared-note button')?.disabled === false").await;
    reader.run("window.fetch = whole", &[]).await;
    reader.click(".shared-note button").await;
    reader.shows(".message.assistant .text strong", "whole").await;

    // The page of users needs a key, and the share still none.
    reader.click(".brand").await;
    reader.until("the dialog", "return document.querySelector('#key-dialog')?.open").await;
    assert_eq!(reader.run("return document.title", &[]).await, "Capstan");
    reader.run("history.back()", &[]).await;
    reader.shows(".message.assistant .text strong", "whole").await;
    assert_eq!((reader.count("dialog").await, reader.run("return refused", &[]).await), (0, json!([])));

    let revoked =
        server.request(reqwest::Method::DELETE, &format!("/conversations/{conversation}/shares/{id}")).send().await.unwrap();
    assert_eq!(revoked.status(), 204);
    reader.reload().await;
    reader.shows(".shared-note", GONE).await;
    reader.show(link.split_once('#').unwrap().1).await;
    reader.shows(".message.assistant .text strong", "whole").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn links_of_all_conversations_are_listed_and_revoked() {
    let (_model, _site, server) = Site::serve(async |model| {
        Site::scripted(Kind::Sqlite, model).await.env("CAPSTAN_LIMITS__MAX_SHARES_PER_CONVERSATION", "60")
    })
    .await;
    let (rivers, lakes) = (import(&server, &["hello".to_owned()]).await, import(&server, &["hello".to_owned()]).await);
    for (conversation, title) in [(&rivers, "Rivers"), (&lakes, "Lakes")] {
        let patch = server.request(reqwest::Method::PATCH, &format!("/conversations/{conversation}"));
        assert_eq!(patch.json(&json!({"title": title})).send().await.unwrap().status(), 200);
    }
    let (link, first) = make_link(&server, &rivers).await;
    for _ in 0..50 {
        make_link(&server, &lakes).await;
    }
    let browser = looking_at(&server).await;
    browser.click("#shares").await;
    browser.shows("dialog.share [data-share] a", "Lakes").await;
    assert_eq!(browser.count("[data-share]").await, 50, "the first page");
    browser.click("dialog.share .more").await;
    browser.until("the next page", "return document.querySelectorAll('[data-share]').length === 51").await;
    let row = browser.shows(&format!("[data-share={first}]"), "Rivers").await;
    assert!(row.contains("created") && row.contains("ends") && row.contains("1 message"), "{row}");
    assert_eq!(browser.count("dialog.share .more").await, 0);

    let focus = format!("document.querySelector('[data-share={first}] button').focus(); return true");
    browser.until("the button", &focus).await;
    browser.press(ENTER).await;
    let is_gone =
        format!("return document.querySelector('[data-share={first}]') === null && document.activeElement.matches('dialog h2')");
    browser.until("the end of the row, with the focus on the heading", &is_gone).await;
    let reader = Browser::start().await;
    reader.open(&link).await;
    reader.shows(".shared-note", GONE).await;

    // The dialog gives the focus back, and its rows lead to their conversations.
    browser.press(ESCAPE).await;
    browser.until("the focus as before", "return document.activeElement?.id === 'shares'").await;
    browser.click("#shares").await;
    browser.click("dialog.share [data-share] a").await;
    browser.shows("#title", "Lakes").await;
    assert_eq!(
        (browser.count("dialog[open]").await, browser.run("return location.hash", &[]).await),
        (0, json!(format!("#/{lakes}")))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn share_dialog_offers_what_the_server_allows() {
    let offered = async |name: &str, value: &str, words: &str| {
        let (_model, _site, server) = Site::serve(async |model| Site::scripted(Kind::Sqlite, model).await.env(name, value)).await;
        import(&server, &["hello".to_owned()]).await;
        let browser = looking_at(&server).await;
        browser.shows(".conversation .words", "Imported").await;
        pick_in_menu(&browser, "Share…").await;
        browser.shows("dialog.share", words).await;
        let days = "return [...document.querySelectorAll('dialog.share [name=days]')].map((one) => [one.value, one.checked])";
        browser.run(days, &[]).await
    };
    let limited = offered("CAPSTAN_LIMITS__MAX_SHARE_DAYS", "10", "10 days").await;
    assert_eq!(limited, json!([["1", false], ["7", false], ["10", true]]));
    assert_eq!(offered("CAPSTAN_SERVER__SHARES", "false", "This server does not share conversations.").await, json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn long_share_grows_while_it_is_read() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let texts: Vec<String> = (0..200).map(|at| format!("number {at}. {}", "words ".repeat(200))).collect();
    let conversation = import(&server, &texts).await;
    let (link, _) = make_link(&server, &conversation).await;
    let reader = Browser::start().await;
    reader.open(&link).await;
    reader.shows(".message.user .said", "number 0.").await;
    assert!(reader.count(".message").await < 100, "the page begins with a part");
    let down = "document.querySelector('#scroll').scrollTop = 1e9;
        return [...document.querySelectorAll('.message')].at(-1).textContent.includes('number 199.')";
    reader.until("the last message", down).await;
    assert_eq!(reader.count(".message").await, 200);
    reader.shows(".shared-foot", "A copy to read").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn views_of_a_share_have_no_axe_violation() {
    let (_model, _site, server, key, conversation) = site_with_conversation().await;
    let browser = signed_in(&server, &key, &conversation).await;
    let (link, _) = make_link(&server, &conversation).await;
    let mut found = Vec::new();
    let mut check = async |place: &str| {
        for (scheme, width) in [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)] {
            browser.look(scheme, width).await;
            let wide = "return document.documentElement.scrollWidth > innerWidth || [...document.querySelectorAll('dialog[open]')].some((one) => one.scrollWidth > one.clientWidth)";
            assert_eq!(browser.run(wide, &[]).await, Value::Bool(false), "{place} is wider than {width}");
            found.extend(
                axe_violations(&browser).await.into_iter().map(|violation| format!("{scheme} {width} {place} {violation}")),
            );
        }
        browser.look("light", 1280).await;
    };
    pick_in_menu(&browser, "Share…").await;
    browser.click("dialog.share button[type=submit]").await;
    browser.until("the lists", "return document.querySelectorAll('[data-share]').length === 2").await;
    check("dialog").await;
    browser.press(ESCAPE).await;
    browser.click("#shares").await;
    browser.shows("dialog.share h2", "Shared links").await;
    browser.until("the links", "return document.querySelectorAll('[data-share] a').length === 2").await;
    check("all links").await;
    browser.show(link.split_once('#').unwrap().1).await;
    browser.shows(".message.assistant .text strong", "whole").await;
    browser.until("the colours", "return document.querySelector('.hljs-comment') !== null").await;
    check("share").await;
    browser.show("#/share/cut").await;
    browser.shows(".shared-note", GONE).await;
    check("no share").await;
    assert!(found.is_empty(), "{}", found.join("\n"));
}
