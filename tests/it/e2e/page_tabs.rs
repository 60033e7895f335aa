//! Several tabs of one browser: each shows what happens in another one, and none waits for a connection that others hold.

use std::net::SocketAddr;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use support::browser::{Browser, ENTER};
use support::database::Kind;
use support::model::ModelMock;
use support::server::Site;

use super::approvals;
use super::page::{looking_at, pick_in_menu};

/// A card that accepts answers: it has been visible long enough.
const ASKED: &str = ".ask[data-status=pending]:not([data-fresh])";

/// Counts the sockets of a page, and notes whether its list was ever called empty.
const WATCH: &str = "window.sockets = 0;
    window.wasEmpty = false;
    window.WebSocket = class extends WebSocket {
        constructor(...all) {
            super(...all);
            sockets += 1;
        }
    };
    new MutationObserver(() => {
        wasEmpty ||= document.querySelector('#conversations')?.textContent.includes('No conversations yet') === true;
    }).observe(document, { subtree: true, childList: true, characterData: true });";

async fn sign_in(browser: &Browser, key: &str) {
    browser.write("#key-dialog[open] #key", &format!("{key}{ENTER}")).await;
    browser.until("the dialog to close", "return document.querySelector('#key-dialog')?.open === false").await;
}

async fn locked_out(browser: &Browser) {
    browser.until("the dialog", "return document.querySelector('#key-dialog')?.open").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tabs_show_what_happens_in_each_other() {
    let model = ModelMock::start().await;
    let site = approvals::site(Kind::Sqlite, &model).await;
    let (key, other) = (site.key_of("ann").await, site.key_of("ann").await);
    let mut server = site.start().await;
    server.set_key(&key);
    let browser = looking_at(&server).await;
    sign_in(&browser, &key).await;
    let first = browser.tab().await;
    browser.write("#message", &format!("[[id:both]][[text:5,10]][[hold]][[say:the end]]{ENTER}")).await;
    browser.shows(".streaming .text", "t4").await;
    let address = browser.run("return location.href", &[]).await.as_str().unwrap().to_owned();

    // The second tab is signed in, and shows the answer that is under way.
    let second = browser.open_tab().await;
    browser.open(&address).await;
    browser.shows(".streaming .text", "t4").await;
    model.release("both");
    let mut texts = Vec::new();
    for tab in [&second, &first] {
        browser.turn_to(tab).await;
        texts.push(browser.shows(".message.assistant:not(.streaming) .text", "the end").await);
    }
    assert_eq!(texts[0], texts[1]);

    // A question that one tab answers is settled in the other.
    browser.write("#message", &format!(r#"[[id:ask]][[call:ledger__append {{"text":"one"}}]][[next]][[say:bye]]{ENTER}"#)).await;
    browser.shows(ASKED, "Allow once").await;
    browser.turn_to(&second).await;
    browser.shows(ASKED, "Allow once").await;
    browser.click(&format!("{ASKED} .allow")).await;
    browser.turn_to(&first).await;
    browser.shows(".ask[data-status=allowed]", "Allowed once").await;
    browser.until("no badge", "return document.querySelector('.badge') === null").await;
    browser.shows(".run.newest .message.assistant:last-of-type .text", "bye").await;
    assert_eq!(site.ledger.count("append", "one"), 1);

    // A message that one tab edits is another one in both.
    browser.turn_to(&second).await;
    browser.until("the end", "return document.querySelector('.run.newest .end .usage') !== null").await;
    browser.click(".run.newest [aria-label='Edit and send again']").await;
    browser.write(".editing textarea", "[[id:edited]][[say:another answer]]").await;
    browser.click(".editing .primary").await;
    for tab in [&second, &first] {
        browser.turn_to(tab).await;
        browser.shows(".run.newest .message.assistant .text", "another answer").await;
        browser.shows(".message-versions", "2/2").await;
        assert_eq!((browser.count(".message.user").await, browser.count(".ask").await), (2, 0));
    }

    // A conversation that one tab deletes is left by the other. A tab that goes away no longer waits for an "Undo".
    browser.turn_to(&second).await;
    pick_in_menu(&browser, "Delete").await;
    browser.shows(".toast", "Deleted").await;
    browser.open("about:blank").await;
    browser.turn_to(&first).await;
    browser.shows(".toast", "This conversation does not exist any more.").await;
    browser.shows("#conversations", "No conversations yet.").await;
    assert_eq!(browser.run("return location.hash", &[]).await, "#/");

    // Signing out in one tab signs out all, although the others ask for nothing.
    browser.turn_to(&second).await;
    browser.open(&address).await;
    browser.shows(".toast", "This conversation does not exist any more.").await;
    browser.click("#forget").await;
    locked_out(&browser).await;
    browser.turn_to(&first).await;
    locked_out(&browser).await;

    // A key that is revoked while its page is open leads back to the dialog, where another one is accepted.
    sign_in(&browser, &key).await;
    browser.shows("#user", "ann").await;
    let (is_revoked, words) = site.command(&["keys", "revoke", &key[..10]]).await;
    assert!(is_revoked, "{words}");
    locked_out(&browser).await;
    sign_in(&browser, &other).await;
    browser.write("#message", &format!("[[id:again]][[say:welcome]]{ENTER}")).await;
    browser.shows(".message.assistant .text", "welcome").await;
    server.set_key(&other);
    assert_eq!(server.get_json("/conversations").await["data"].as_array().unwrap().len(), 1);
}

// A browser makes six connections to a server for all tabs together, beside its sockets.
#[tokio::test(flavor = "multi_thread")]
async fn seven_tabs_work_at_once() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let run = server.start_run(&json!({"input": "[[id:before]][[say:an answer]]"})).await;
    server.finished(run["id"].as_str().unwrap()).await;
    let address = format!("{}/#/{}", server.url, run["conversation_id"].as_str().unwrap());
    let browser = Browser::start().await;
    let mut tabs = vec![browser.tab().await];
    while tabs.len() < 7 {
        tabs.push(browser.open_tab().await);
    }
    for tab in &tabs {
        browser.turn_to(tab).await;
        browser.run_first(WATCH).await;
        browser.open(&address).await;
    }
    browser.write("#message", &format!("[[id:seven]][[text:5,10]][[hold]][[say:the end]]{ENTER}")).await;
    for (words, is_over) in [("t4", false), ("the end", true)] {
        for tab in &tabs {
            browser.turn_to(tab).await;
            browser.shows(".run.newest .message.assistant .text", words).await;
        }
        if !is_over {
            model.release("seven");
        }
    }
    for tab in &tabs {
        browser.turn_to(tab).await;
        browser.shows(".conversation .words", "[[id:before]]").await;
        assert_eq!(browser.run("return [sockets, wasEmpty]", &[]).await, json!([1, false]));
    }
}

/// A relay to a server that lets no WebSocket through, as some proxies do.
struct RefusingRelay {
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl RefusingRelay {
    async fn to(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut carried = JoinSet::new();
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let target = target.clone();
                carried.spawn(async move {
                    let _ = relay(near, &target).await;
                });
            }
        });
        Self { address, _tasks: tasks }
    }
}

/// Carries a connection. A browser uses a new one for each socket, so only the first request can be one of a socket.
async fn relay(mut near: TcpStream, target: &str) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if near.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    if String::from_utf8_lossy(&head).to_lowercase().contains("\r\nupgrade: websocket") {
        return near.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
    }
    let mut far = TcpStream::connect(target).await?;
    far.write_all(&head).await?;
    copy_bidirectional(&mut near, &mut far).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn page_without_sockets_follows_by_event_streams() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let relay = RefusingRelay::to(server.url.trim_start_matches("http://").to_owned()).await;
    let browser = Browser::start().await;
    browser.run_first(WATCH).await;
    browser.open(&format!("http://{}/", relay.address)).await;
    for id in ["one", "two"] {
        browser.show("#/").await;
        browser.until("a new conversation", "return document.querySelector('.preset') !== null").await;
        browser.write("#message", &format!("[[id:{id}]][[text:5,10]][[hold]][[say:the end of {id}]]{ENTER}")).await;
        browser.shows(".streaming .text", "t4").await;
        browser.until("no notice", "return document.querySelector('#notice').hidden").await;
        model.release(id);
        let shown = browser.shows(".message.assistant:not(.streaming) .text", &format!("the end of {id}")).await;
        assert!((0..5).all(|at| shown.contains(&format!("t{at}"))), "{shown}");
        browser.until("the end", "return document.querySelector('.end .usage') !== null").await;
    }
    // The list is read instead of followed.
    browser.until("both rows", "return document.querySelectorAll('.conversation').length === 2").await;
    let streams =
        "return performance.getEntriesByType('resource').filter(({ name }) => /conversations\\/[^/]+\\/events/.test(name)).length";
    browser.until("the end of the first stream", &format!("{streams} >= 1")).await;
    assert_eq!(browser.run("return sockets", &[]).await, 2, "the page does not try sockets for ever");
}
