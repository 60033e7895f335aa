//! The page on a phone: by touch, on 390 pixels, and as an app of its own.

use serde_json::{Value, json};

use support::browser::{Browser, ENTER};
use support::database::Kind;
use support::server::Site;

use super::approvals;
use super::page::{AT_END, end_of_lines, import, looking_at};

/// Returns whether neither the page nor the conversation scrolls sideways.
const FITS: &str = "return ['html', '#scroll', '#composer', 'main'].every((css) => {
    const node = document.querySelector(css);
    return node.scrollWidth <= node.clientWidth;
}) && document.documentElement.scrollWidth <= innerWidth";

async fn fits(browser: &Browser, what: &str) {
    assert_eq!(browser.run(FITS, &[]).await, true, "{what} is wider than the window");
}

#[tokio::test(flavor = "multi_thread")]
async fn phone_chats_approves_and_scrolls_by_touch() {
    let (model, site, server) = Site::serve(async |model| approvals::site(Kind::Sqlite, model).await).await;
    let (status, made) = server.post_json("/conversations", &json!({"title": "Errands"})).await;
    assert_eq!(status, 201, "{made}");
    let conversation = made["id"].as_str().unwrap();
    let browser = looking_at(&server).await;
    browser.become_phone().await;
    browser.reload().await;
    assert_eq!(browser.run("return matchMedia('(pointer: coarse)').matches", &[]).await, true);

    // Enter begins a line, and the button sends.
    browser.write("#message", &format!("a line{ENTER}[[id:phone]][[say:short]]")).await;
    let written = "return document.querySelector('#message').value";
    assert_eq!(browser.run(written, &[]).await, "a line\n[[id:phone]][[say:short]]");
    assert_eq!(browser.count(".message").await, 0);
    browser.tap("#send:not(:disabled)").await;
    browser.shows(".message.user .said", "a line\n[[id:phone]]").await;
    browser.shows(".message.assistant .text", "short").await;

    // The menu leads to another conversation, where a message is sent and a call approved.
    browser.tap("#menu").await;
    let is_still = "return document.querySelector('.page.menu') !== null && document.getAnimations().length === 0";
    browser.until("the open menu", is_still).await;
    browser.tap(&format!(".page.menu .conversation [href='#/{conversation}']")).await;
    browser.shows("#title", "Errands").await;
    browser.until("the closed menu", "return document.querySelector('.page.menu') === null").await;
    browser.write("#message", r#"[[id:errand]][[call:ledger__append {"text":"milk"}]][[next]][[say:bought]]"#).await;
    browser.tap("#send:not(:disabled)").await;
    browser.shows(".ask:not([data-fresh])", "Allow once").await;
    fits(&browser, "the card").await;
    browser.tap(".ask .allow").await;
    browser.shows(".ask[data-status=allowed]", "Allowed once").await;
    browser.shows(".message.assistant:last-of-type .text", "bought").await;
    assert_eq!(site.ledger.count("append", "milk"), 1);

    // A reader who scrolls up by touch stays there while the answer grows.
    let lines = "a line of the answer\n\n".repeat(60);
    server.send(conversation, &format!("[[id:up]][[say:{lines}]][[hold]][[say:{lines}the end]]"), "queue").await;
    end_of_lines(&browser, 60).await;
    let place = "return document.querySelector('#scroll').scrollTop";
    let before = browser.run(place, &[]).await.as_f64().unwrap();
    browser.swipe_down(300).await;
    browser.until("the way to the newest", "return !document.querySelector('#down').hidden").await;
    let stayed = browser.run(place, &[]).await.as_f64().unwrap();
    assert!(stayed < before - 200.0, "{before} {stayed}");
    model.release("up");
    browser.shows(".run.newest .message.assistant .text", "the end").await;
    browser.until("the end of the run", "return document.querySelector('.run.newest .end .usage') !== null").await;
    assert_eq!(browser.run(place, &[]).await.as_f64().unwrap(), stayed);
    browser.tap("#down").await;
    browser.until("the end in view", AT_END).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn phone_shows_wide_content_and_installs_the_page() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    // A table keeps its words whole, and scrolls by itself.
    let row = |words: &str| format!("|{}\n", format!(" {words} |").repeat(12));
    let table = format!("{}{}{}", row("Responsibility"), row("---"), row("characteristically"));
    let long = "word".repeat(100);
    let formula = format!("\\[ {} \\]", "a_{1} + ".repeat(60));
    let text = format!("{table}\n\n```js\nconst wide = '{long}';\n```\n\n{formula}\n\n{long}\n\nthe end");
    let conversation = import(&server, &["hello".to_owned(), text]).await;
    let browser = looking_at(&server).await;
    browser.become_phone().await;
    browser.show(&format!("#/{conversation}")).await;
    browser.shows(".message.assistant .text", "the end").await;
    browser.until("the formula", "return document.querySelector('.text math') !== null").await;
    fits(&browser, "the answer").await;
    let cells = "return [...document.querySelectorAll('.text :is(th, td)')].map((cell) => {
        const range = document.createRange();
        range.selectNodeContents(cell);
        return range.getClientRects().length;
    })";
    assert_eq!(browser.run(cells, &[]).await, json!(vec![1; 24]), "each word is on one line");
    let scrolls = "return [...document.querySelectorAll('.text :is(table, pre, math)')].map((node) => {
        for (let at = node; !at.matches('.text'); at = at.parentElement) {
            if (at.scrollWidth > at.clientWidth && ['auto', 'scroll'].includes(getComputedStyle(at).overflowX)) return true;
        }
        return false;
    })";
    assert_eq!(browser.run(scrolls, &[]).await, json!([true, true, true]), "each scrolls by itself");

    // The browser offers to install the page, with a name and an icon.
    let manifest = browser.command("Page.getAppManifest", &json!({})).await;
    assert_eq!(manifest["errors"], json!([]), "{manifest}");
    let told: Value = serde_json::from_str(manifest["data"].as_str().unwrap()).unwrap();
    assert_eq!((&told["name"], &told["display"]), (&json!("Capstan"), &json!("standalone")));
    let errors = browser.command("Page.getInstallabilityErrors", &json!({})).await;
    assert_eq!(errors["installabilityErrors"], json!([]), "{errors}");
    let icons = "const link = document.querySelector('link[rel=manifest]').href;
        const manifest = await (await fetch(link)).json();
        const start = new URL(manifest.start_url, link).href;
        const sizes = await Promise.all(manifest.icons.map(async ({ src, type }) => {
            const answer = await fetch(new URL(src, link));
            const image = new Image();
            image.src = answer.url;
            await image.decode();
            return answer.headers.get('content-type') === type && image.naturalWidth > 0;
        }));
        return [start === document.baseURI.replace(/#.*/, ''), ...sizes]";
    let icons = browser.run(&format!("return (async () => {{ {icons} }})()"), &[]).await;
    let icons = icons.as_array().unwrap();
    assert!(icons.len() > 1 && icons.iter().all(|is_right| *is_right == true), "{icons:?}");
}
