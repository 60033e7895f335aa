//! Questions, effects and interventions on the page: elicitation, approvals in the inbox, and messages to a run under way.

use std::time::Duration;

use serde_json::{Value, json};

use support::browser::{Browser, ENTER};
use support::database::Kind;
use support::model::ModelMock;
use support::server::{Server, Site};

use super::elicitation::{Asking, asking};
use super::page::looking_at;
use super::page_setup::press_button;

/// A card that accepts answers: it has been visible long enough.
const ASKED: &str = ".ask[data-status=pending]:not([data-fresh])";

async fn say(browser: &Browser, words: &str) {
    browser.write("#message", &format!("{words}{ENTER}")).await;
}

/// Returns the address of the open conversation.
async fn place(browser: &Browser) -> String {
    let place = browser.until("the conversation", "return /conv_/.test(location.hash) && location.hash").await;
    place.as_str().unwrap().to_owned()
}

/// Waits until this many runs have ended.
async fn ended(browser: &Browser, runs: usize) {
    browser.until("the end of the run", &format!("return document.querySelectorAll('.run .end .usage').length === {runs}")).await;
}

/// Returns the texts of all results of tools, in order.
async fn results(server: &Server, place: &str) -> Vec<Value> {
    let messages = server.messages(place.trim_start_matches("#/")).await;
    let parts =
        messages.iter().filter(|message| message["role"] == "tool").flat_map(|message| message["parts"].as_array().unwrap());
    parts.map(|part| serde_json::from_str(part["content"][0]["text"].as_str().unwrap()).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn elicitation_is_answered_in_conversation_and_inbox() {
    let Asking { site, model: _model, folder: _folder } = asking(Kind::Sqlite, &[], json!({"elicitation": true})).await;
    let server = site.start().await;
    let browser = looking_at(&server).await;
    let form = |id: &str| format!("[[id:{id}]][[call:s__form {{}}]][[next]][[say:bye]]");

    // A form in the conversation.
    say(&browser, &form("form")).await;
    let card = browser.shows(ASKED, "The server s asks").await;
    assert!(card.contains("Which colour?") && card.contains("count (optional)"), "{card}");
    browser.shows("#step", "waits for your answer").await;
    let place = place(&browser).await;
    browser.click(&format!("{ASKED} button[type=submit]")).await;
    assert_eq!(browser.count(&format!("{ASKED} select:invalid")).await, 1, "the colour is required");
    let choose = "for (const option of document.querySelectorAll(`${arguments[0]} option`)) option.selected = option.textContent === 'green'";
    browser.run(choose, &[ASKED]).await;
    browser.write(&format!("{ASKED} input[type=number]"), "7").await;
    browser.click(&format!("{ASKED} button[type=submit]")).await;
    browser.shows(".ask[data-status=answered]", "Which colour?").await;
    ended(&browser, 1).await;

    // A form in the inbox, which the user declines.
    say(&browser, &form("inbox")).await;
    browser.shows(ASKED, "Which colour?").await;
    browser.show("#/inbox").await;
    let card = browser.shows(&format!(".inbox {ASKED}"), "The server s asks").await;
    assert!(card.contains("colour"), "{card}");
    press_button(&browser, &format!(".inbox {ASKED}"), "Provide nothing; the tool may continue without").await;
    browser.shows(".inbox", "Nothing waits for you.").await;
    browser.show(&place).await;
    ended(&browser, 2).await;

    // A page to visit: the address is a link, and nothing opens by itself.
    say(&browser, r#"[[id:page]][[call:s__page {"text":"https://example.org/login"}]][[next]][[say:bye]]"#).await;
    browser.shows(ASKED, "Sign in").await;
    let link =
        "const link = document.querySelector(`${arguments[0]} a`); return [link.href, link.innerText, link.target, link.rel]";
    let expected = json!(["https://example.org/login", "https://example.org/login", "_blank", "noopener noreferrer"]);
    assert_eq!(browser.run(link, &[ASKED]).await, expected);
    press_button(&browser, ASKED, "Provide the requested input").await;
    ended(&browser, 3).await;
    let accepted = json!({"action": "accept", "content": {"colour": "green", "count": 7}});
    assert_eq!(results(&server, &place).await, [accepted, json!({"action": "decline"}), json!({"action": "accept"})]);
    browser.until("the end of the badge", "return document.querySelector('.badge') === null").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn approval_shows_the_effect_and_is_decided_in_the_inbox() {
    let capstan = json!({"approval": {"echo": "ask"}});
    let Asking { site, model: _model, folder: _folder } = asking(Kind::Sqlite, &[], capstan).await;
    let server = site.start().await;
    let browser = looking_at(&server).await;
    let change = json!({"path": "src/main.rs", "edits": [{"oldText": "one\ntwo", "newText": "one\n<b>three</b>"}]});
    let command = json!({"command": "rm -rf build\u{200b} && make"});
    let mail = json!({"to": "ann@example.org", "subject": "The plan", "body": "Dear Ann"});
    let calls: Vec<String> = [&change, &command, &mail].iter().map(|arguments| format!("[[call:s__echo {arguments}]]")).collect();
    say(&browser, &format!("[[id:effects]]{}[[next]][[say:bye]]", calls.join("[[next]]"))).await;

    // The changed lines stand before the arguments, which are shown in full.
    let card = browser.shows(ASKED, "src/main.rs").await;
    assert!(card.find("+ <b>three</b>") < card.find("Arguments") && card.contains("\"newText\""), "{card}");
    let lines = "const lines = document.querySelectorAll(`${arguments[0]} .effect .diff [data-sign]`);
        return [...lines].map((line) => [line.dataset.sign, line.innerText.trim()])";
    let expected = json!([["-", "- one"], ["-", "- two"], ["+", "+ one"], ["+", "+ <b>three</b>"]]);
    assert_eq!(browser.run(lines, &[ASKED]).await, expected);
    assert_eq!(browser.count(".ask b").await, 0);
    let place = place(&browser).await;

    // The other calls are decided in the inbox.
    browser.show("#/inbox").await;
    let asked = format!(".inbox {ASKED}");
    browser.shows(&format!("{asked} .effect-path"), "src/main.rs").await;
    browser.click(&format!("{asked} .allow")).await;
    browser.shows(&format!("{asked} .effect.command"), "rm -rf build<U+200B> && make").await;
    browser.write(&format!("{asked} .deny input"), "not on this machine").await;
    browser.click(&format!("{asked} button.deny")).await;
    let mail_shown = browser.shows(&format!("{asked} .effect.mail"), "Dear Ann").await;
    assert!(mail_shown.contains("To ann@example.org") && mail_shown.contains("The plan"), "{mail_shown}");
    browser.click(&format!("{asked} .allow")).await;
    browser.shows(".inbox", "Nothing waits for you.").await;

    browser.show(&place).await;
    ended(&browser, 1).await;
    browser.shows(".ask[data-status=denied]", "not on this machine").await;
    assert_eq!(browser.count(".ask[data-status=allowed]").await, 2);
    let messages = server.messages(place.trim_start_matches("#/")).await;
    let told: Vec<&str> = messages
        .iter()
        .filter(|message| message["role"] == "tool")
        .map(|message| message["parts"][0]["content"][0]["text"].as_str().unwrap())
        .collect();
    let read = |text: &str| serde_json::from_str::<Value>(text).ok();
    assert_eq!((told.len(), read(told[0]), read(told[2])), (3, Some(change), Some(mail)), "{told:?}");
    assert!(told[1].contains("not on this machine"), "{told:?}");
}

/// Chooses the way in which the next message reaches the run that is under way.
async fn choose_busy(browser: &Browser, way: &str) {
    let choose = "const list = document.querySelector('#busy');
        list.value = arguments[0];
        list.dispatchEvent(new Event('change', { bubbles: true }));
        return list.value";
    browser.until("the list", "return document.querySelector('#busy') !== null").await;
    assert_eq!(browser.run(choose, &[way]).await, json!(way));
}

#[tokio::test(flavor = "multi_thread")]
async fn run_is_steered_interrupted_and_resumed_on_the_page() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Sqlite, &model).await.short_leases().env("CAPSTAN_AGENT__ON_UNKNOWN", "ask");
    // A call whose server crashes: its outcome is unknown, and the user is asked.
    let mut first = site.start_with(&[("CAPSTAN_FAILPOINTS", "C13=kill")]).await;
    let run = first.start_run(&json!({"input": r#"[[id:lost]][[call:ledger__append {"text":"one"}]][[next]][[say:bye]]"#})).await;
    first.ended(Duration::from_secs(20)).await;
    let server = site.start().await;
    let browser = looking_at(&server).await;
    browser.show(&format!("#/{}", run["conversation_id"].as_str().unwrap())).await;
    let card = browser.shows(ASKED, "Did this call take effect?").await;
    assert!(card.contains("ledger__append") && card.contains("\"text\": \"one\""), "{card}");
    press_button(&browser, ASKED, "Unknown: tell the model, and continue").await;
    ended(&browser, 1).await;
    browser.shows(".call[data-state=unknown] .time", "outcome unknown").await;
    browser.click(".call summary").await;
    browser.shows(".call[open] .body", "its effect is unknown").await;
    assert_eq!(site.ledger.count("append", "one"), 1);

    // A message that the run reads before its end.
    say(&browser, "[[id:steered]][[say:at work]][[hold]]").await;
    browser.shows(".streaming .text", "at work").await;
    choose_busy(&browser, "steer").await;
    // The message may stand before or behind the answer that was under way.
    say(&browser, "[[id:steer]][[say:in another way]][[next]][[say:in another way]]").await;
    browser.until("the message", "return document.querySelectorAll('.run.newest .message.user').length === 2").await;
    model.release("steered");
    ended(&browser, 2).await;
    browser.shows(".run.newest .message.assistant:last-of-type .text", "in another way").await;
    assert_eq!(browser.count(".run").await, 2, "the message has joined the run");

    // A message that ends the run.
    say(&browser, "[[id:long]][[say:a long story]][[hold]]").await;
    browser.shows(".streaming .text", "a long story").await;
    choose_busy(&browser, "interrupt").await;
    say(&browser, "[[id:next]][[say:another story]]").await;
    browser.shows(".run.newest .message.assistant .text", "another story").await;
    let stopped = browser.shows(".run[data-status=cancelled]", "Stopped for the next message.").await;
    assert!(stopped.contains("a long story") && stopped.contains("stopped here"), "{stopped}");
    model.wait_for("the hang-up", "long", |seen| seen.iter().any(|one| one.hung_up.is_some())).await;

    // A run that has failed goes on.
    say(&browser, "[[id:fails]][[flaky:1,400]][[say:it works now]]").await;
    browser.shows(".run.newest .end .error", "provider_invalid_request").await;
    browser.click(".run.newest .end .resume").await;
    browser.shows(".run.newest .message.assistant .text", "it works now").await;
    browser.until("the end", "return document.querySelector('.run.newest .end .usage') !== null").await;
    assert_eq!(browser.count(".end .resume").await, 0);

    // A run that may not take another step.
    let path = place(&browser).await.replace("#/", "/conversations/") + "/messages";
    let input = r#"[[id:early]][[call:ledger__lookup {"text":"a"}]][[next]][[say:what I know]]"#;
    let (status, answer) = server.post_json(&path, &json!({"content": input, "limits": {"max_rounds": 1}})).await;
    assert_eq!(status, 202, "{answer}");
    browser.shows(".run.newest .end", "Ended early: the steps were used up.").await;
}
