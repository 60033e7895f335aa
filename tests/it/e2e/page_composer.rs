//! The composer and the list in daily use: long messages, thumbnails, forks, copies and large results.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use support::browser::{Browser, ENTER};
use support::database::Kind;
use support::documents::PNG;
use support::server::{Server, Site};

use super::page::{looking_at, pick_in_menu};

/// The key that is held while the next ones are pressed, and that this key releases.
const SHIFT: &str = "\u{e008}";

/// Waits until the page shows another conversation than this one, and returns its id.
async fn another(browser: &Browser, than: &str) -> String {
    let script = format!("const id = location.hash.slice(2); return id.startsWith('conv_') && id !== '{than}' && id");
    browser.until("another conversation", &script).await.as_str().unwrap().to_owned()
}

async fn texts(server: &Server, conversation: &str) -> Vec<Value> {
    server.messages(conversation).await.iter().map(|message| message["parts"][0]["text"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn composer_grows_and_sends_what_is_there() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let browser = looking_at(&server).await;
    let is_off = "return document.querySelector('#send').disabled";
    browser.until("the composer", "return document.querySelector('#send') !== null").await;
    assert_eq!(browser.run(is_off, &[]).await, true, "there is nothing to send");
    browser.write("#message", "  ").await;
    assert_eq!(browser.run(is_off, &[]).await, true, "spaces are no message");
    browser.write("#message", ENTER).await;
    let size = "const { offsetHeight, clientHeight, scrollHeight } = document.querySelector('#message');
        return [offsetHeight, scrollHeight > clientHeight + 1, offsetHeight <= innerHeight * 0.4 + 1]";
    let lines = async |count: usize| {
        browser.write("#message", &vec!["line"; count].join(&format!("{SHIFT}{ENTER}{SHIFT}"))).await;
        let value = browser.run("return document.querySelector('#message').value", &[]).await;
        assert_eq!(value, vec!["line"; count].join("\n"));
        let size = browser.run(size, &[]).await;
        (size[0].as_u64().unwrap(), size[1].as_bool().unwrap(), size[2].as_bool().unwrap())
    };
    let (few, many) = (lines(1).await, lines(4).await);
    assert!(many.0 >= few.0 * 2 && !many.1, "the field grows with its lines: {few:?} {many:?}");
    let most = lines(40).await;
    assert!(most.1 && most.2, "a long text scrolls in its field: {most:?}");
    assert_eq!(browser.run("return [location.hash, document.querySelectorAll('.conversation').length]", &[]).await, json!(["", 0]));

    let conversation = send_pictures(&browser, &server).await;
    let copies = fork_and_copy(&browser, &server, &conversation).await;

    // From one conversation to a new one, and back by the list.
    browser.click("#new").await;
    browser.shows("#title", "New conversation").await;
    browser.until("the focus", "return document.activeElement?.id === 'message' && location.hash === '#/'").await;
    browser.click(&format!(".conversation .name[href='#/{conversation}']")).await;
    browser.until("the conversation", "return document.querySelectorAll('.message').length === 4").await;
    browser
        .until("its row", &format!("return document.querySelector('.conversation.open .name').hash === '#/{conversation}'"))
        .await;
    assert_eq!(browser.count(".conversation").await, copies + 1);
    show_large_result(&browser, &server, &conversation).await;
}

/// Attaches a picture by the button and another one from the clipboard, and sends both. Returns the conversation.
async fn send_pictures(browser: &Browser, server: &Server) -> String {
    let picture = "const bytes = Uint8Array.from(atob(arguments[0]), (letter) => letter.charCodeAt(0));
        const data = new DataTransfer();
        data.items.add(new File([bytes], arguments[1], { type: 'image/png' }));
        const field = document.querySelector('#file');
        if (arguments[1] === 'pasted.png') {
            const event = new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true });
            return document.querySelector('#message').dispatchEvent(event);
        }
        field.files = data.files;
        return field.dispatchEvent(new Event('change', { bubbles: true }))";
    let drawn = |css: &str, count: usize| {
        format!("const drawn = [...document.querySelectorAll('{css} img')].filter((one) => one.src.startsWith('blob:') && one.naturalWidth > 0);
            return drawn.length === {count}")
    };
    let png = STANDARD.encode(PNG);
    for (at, name) in ["attached.png", "other.png", "pasted.png"].into_iter().enumerate() {
        browser.run(picture, &[&png, name]).await;
        browser.until(name, &drawn("#files .with-picture", at + 1)).await;
    }
    browser.click("[aria-label='Leave out other.png']").await;
    browser.until("two pictures", &drawn("#files .with-picture", 2)).await;
    browser.write("#message", &format!("[[id:pictures]][[say:seen]]{ENTER}")).await;
    browser.shows(".message.assistant .text", "seen").await;
    browser.until("the pictures of the message", &drawn(".message.user", 2)).await;
    let conversation = another(browser, "").await;
    let parts = server.messages(&conversation).await[0]["parts"].clone();
    let names: Vec<&Value> = parts.as_array().unwrap().iter().map(|part| &part["name"]).collect();
    assert_eq!(names, [&Value::Null, &json!("attached.png"), &json!("pasted.png")]);
    conversation
}

/// Continues in a copy from an answer, and copies a whole conversation. Returns the number of copies.
async fn fork_and_copy(browser: &Browser, server: &Server, conversation: &str) -> u64 {
    browser.write("#message", &format!("[[id:later]][[say:a later answer]]{ENTER}")).await;
    browser.shows(".run.newest .message.assistant .text", "a later answer").await;
    browser.until("the end", "return document.querySelector('.run.newest .end .usage') !== null").await;
    browser.click(".run:first-child [aria-label='Continue in a copy from here']").await;
    let fork = another(browser, conversation).await;
    browser.until("the messages", "return document.querySelectorAll('.message').length === 2").await;
    browser.shows(".message.assistant .text", "seen").await;
    let whole = texts(server, conversation).await;
    assert_eq!((texts(server, &fork).await, whole.len()), (whole[..2].to_vec(), 4));

    // The newest conversation is the first of the list.
    browser.until("the row", &format!("return document.querySelector('.conversation .name')?.hash === '#/{fork}'")).await;
    pick_in_menu(browser, "Copy").await;
    let copy = another(browser, &fork).await;
    assert_ne!(copy, conversation);
    browser.shows(".message.assistant .text", "seen").await;
    assert_eq!(texts(server, &copy).await, whole[..2]);
    browser.until("both copies", "return document.querySelectorAll('.conversation').length === 3").await;
    2
}

/// Shows the call of a tool with more characters than the page shows.
async fn show_large_result(browser: &Browser, server: &Server, conversation: &str) {
    let words = "x".repeat(25_000);
    server
        .send(conversation, &format!(r#"[[id:large]][[call:ledger__lookup {{"text":"{words}"}}]][[next]][[say:bye]]"#), "queue")
        .await;
    browser.until("the call", "return document.querySelector('.run.newest .call[data-state=done]') !== null").await;
    browser.click(".run.newest .call summary").await;
    let arguments = browser.shows(".run.newest .call[open] .body pre", "characters more]").await;
    assert!(arguments.starts_with("{\n  \"text\": \"xxx"), "the arguments are shown from their beginning");
    let (shown, rest) = arguments.split_once("\n[").unwrap();
    let rest: usize = rest.split_once(' ').unwrap().0.replace(',', "").parse().unwrap();
    assert_eq!((shown.len(), shown.len() + rest), (20_000, "{\n  \"text\": \"\"\n}".len() + words.len()));
    // The model reads less than the page could show.
    browser.shows(".run.newest .call[open] .body", "The result is longer than this.").await;
}
