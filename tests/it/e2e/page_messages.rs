//! Messages on the page: their times, search, deletion with a way back, and what many of them cost.

use serde_json::json;

use support::browser::{Browser, ENTER};
use support::database::Kind;
use support::print_figure;
use support::server::{Server, Site};
use support::wait;

use super::page::{AT_END, import, looking_at, pick_in_menu, show_run};

// Times, full-text search, a message that is taken back, a deletion that is undone.
#[tokio::test(flavor = "multi_thread")]
async fn messages_have_times_and_can_be_found_and_taken_back() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let browser = looking_at(&server).await;
    let conversation = show_run(&browser, &server, "[[id:first]][[say:a needle in hay]][[hold]]").await;
    browser.shows(".streaming .text", "needle").await;
    browser.write("#message", &format!("[[id:second]][[say:two]]{ENTER}")).await;
    browser.click(".take-back").await;
    browser.until("the text again", "return document.querySelector('#message').value.includes('[[id:second]]')").await;
    model.release("first");
    browser.until("the end", "return document.querySelector('.end .usage') !== null").await;
    // How long ago it was, and behind that of an answer its tokens; the whole time is the tooltip.
    let times = "return [...document.querySelectorAll('.message time')].map((time) => {
        const words = time.innerText.replace(/^(just now|1 minute ago)/, 'NOW');
        return [words, time.title === new Date(time.dateTime).toLocaleString()];
    })";
    assert_eq!(browser.run(times, &[]).await, json!([["NOW", true], ["NOW · 0 tokens", true], ["NOW", true]]));

    browser.write("#search", "needle").await;
    browser.click(".found").await;
    browser.until("the message", "return document.querySelector('.message.assistant.sought') !== null").await;

    // Other days have their date.
    let old = import(&server, &["hello".to_owned(), "good day".to_owned()]).await;
    browser.show(&format!("#/{old}")).await;
    browser
        .until(
            "the date",
            "return /^[A-Z][a-z]+ \\d+, \\d\\d:\\d\\d/.test(document.querySelector('.message.user time')?.innerText ?? '')",
        )
        .await;
    assert_eq!(record_status(&server, &conversation).await, 200);
}

/// Holds the timers of deletions until `passTime`, and keeps the deletions that the page sends.
const HOLD_DELETIONS: &str = "const [start, stop, send] = [window.setTimeout, window.clearTimeout, window.fetch];
    const held = new Map();
    let count = 1e9;
    window.setTimeout = (act, ms, ...more) => {
        if (ms !== 7000) return start(act, ms, ...more);
        held.set(++count, act);
        return count;
    };
    window.clearTimeout = (timer) => held.delete(timer) || stop(timer);
    window.passTime = () => {
        const acts = [...held.values()];
        held.clear();
        for (const act of acts) act();
        return acts.length;
    };
    window.deletions = [];
    window.fetch = (url, options) => {
        if (options?.method === 'DELETE') deletions.push(String(url).split('/').at(-1));
        return send(url, options);
    };";

async fn record_status(server: &Server, conversation: &str) -> u16 {
    server.get(&format!("/conversations/{conversation}")).send().await.unwrap().status().as_u16()
}

/// Deletes the first conversation of the list.
async fn delete_first(browser: &Browser) {
    pick_in_menu(browser, "Delete").await;
    browser.shows(".toast", "Deleted “").await;
}

// A deletion can be taken back before it is sent.
#[tokio::test(flavor = "multi_thread")]
async fn deletion_is_undone_or_sent_when_its_time_has_passed() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let browser = Browser::start().await;
    browser.run_first(HOLD_DELETIONS).await;
    browser.open(&format!("{}/", server.url)).await;
    let conversation = show_run(&browser, &server, "[[id:first]][[say:a needle in hay]]").await;
    browser.shows(".message.assistant .text", "needle").await;
    let rows = async |count: usize| {
        browser.until("the rows", &format!("return document.querySelectorAll('.conversation').length === {count}")).await;
    };
    let gone = async |conversation: &str| {
        wait::until("the deletion", std::time::Duration::from_secs(30), || async {
            (record_status(&server, conversation).await == 404).then_some(())
        })
        .await;
    };
    rows(1).await;
    delete_first(&browser).await;
    browser.until("an empty page", "return document.querySelectorAll('.message').length === 0").await;
    rows(0).await;
    browser.click(".toast button").await;
    browser.shows(".message.assistant .text", "needle").await;
    rows(1).await;
    // The timer of the deletion is gone, so the time that passes sends nothing.
    browser.run("passTime()", &[]).await;
    assert_eq!(browser.run("return deletions", &[]).await, json!([]));
    assert_eq!(record_status(&server, &conversation).await, 200);

    delete_first(&browser).await;
    rows(0).await;
    assert_eq!(record_status(&server, &conversation).await, 200, "nothing is sent before the time has passed");
    assert_eq!(browser.run("return passTime()", &[]).await, 2, "the deletion, and the end of its message");
    browser.until("the request", &format!("return deletions.join() === '{conversation}'")).await;
    gone(&conversation).await;

    // A page that is left sends its deletions.
    let other = show_run(&browser, &server, "[[id:second]][[say:another one]]").await;
    browser.shows(".message.assistant .text", "another one").await;
    rows(1).await;
    delete_first(&browser).await;
    rows(0).await;
    assert_eq!(record_status(&server, &other).await, 200);
    browser.reload().await;
    gone(&other).await;
    browser.shows("#conversations", "No conversations yet.").await;
}

// Messages out of sight cost nothing.
#[tokio::test(flavor = "multi_thread")]
async fn messages_out_of_sight_are_not_drawn() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let texts: Vec<String> = (0..40).map(|at| format!("number {at}. {}", "words ".repeat(100))).collect();
    let conversation = import(&server, &texts).await;
    let browser = looking_at(&server).await;
    browser.show(&format!("#/{conversation}")).await;
    browser.until("the newest", "return document.querySelectorAll('.message').length === 40").await;
    let seen = "const runs = [...document.querySelectorAll('.run')];
        return [runs[0].checkVisibility({ contentVisibilityAuto: true }), runs[0].firstChild.checkVisibility({ contentVisibilityAuto: true }),
            runs.at(-1).firstChild.checkVisibility({ contentVisibilityAuto: true })]";
    browser.until("the state of the first", &format!("{seen}.join() === 'true,false,true'")).await;
}

// An answer of about 200 tokens a second behind 500 messages takes less than half a core.
#[tokio::test(flavor = "multi_thread")]
async fn fast_answer_takes_less_than_half_a_core() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let texts: Vec<String> =
        (0..500).map(|at| format!("number {at}. **Some** `words` of it.\n\n- {}", "words ".repeat(50))).collect();
    let conversation = import(&server, &texts).await;
    let browser = looking_at(&server).await;
    browser.show(&format!("#/{conversation}")).await;
    let up = "const node = document.querySelector('#scroll');
        node.dispatchEvent(new WheelEvent('wheel', { deltaY: -900, bubbles: true }));
        node.scrollTop = 0;
        return document.querySelectorAll('.message').length === 500";
    browser.until("all messages", up).await;
    browser.click("#down").await;
    browser.until("the end in view", AT_END).await;
    // Reading the text seldom, and without a layout, costs nearly nothing.
    let until = "return new Promise((done) => {
        const [count, words] = arguments;
        const isShown = () => {
            const messages = document.querySelectorAll('.message');
            return messages.length >= Number(count) && messages[messages.length - 1].textContent.includes(words);
        };
        const timer = setInterval(() => isShown() && (clearInterval(timer), done(performance.now())), 100);
    })";
    let limit = 0.5 * browser.slowness().await;
    // One of several answers counts, because other processes may delay a single one. Each next one comes faster.
    let mut figures = Vec::new();
    for (answer, pause) in [(1, 3), (2, 2), (3, 1)] {
        server.send(&conversation, &format!("[[id:fast{answer}]][[text:1300,{pause}]]"), "queue").await;
        let count = (500 + 2 * answer).to_string();
        let begun = browser.run(until, &[&count, "t100 "]).await;
        let (used, from) = browser.processor_time().await;
        let ended = browser.run(until, &[&count, "t1100 "]).await;
        let (used_in_all, to) = browser.processor_time().await;
        let rate = 1000.0 / (ended.as_f64().unwrap() - begun.as_f64().unwrap()) * 1000.0;
        let share = (used_in_all - used) / (to - from);
        browser.until("the end", "return document.querySelector('.newest .end .usage') !== null").await;
        assert_eq!(browser.count(".message").await, 500 + 2 * answer);
        figures.push(format!("{:.0} % of a core at {rate:.0} tokens/s", share * 100.0));
        if share < limit && rate >= 180.0 {
            return print_figure(&figures.join(", "));
        }
    }
    panic!("{}", figures.join(", "));
}
