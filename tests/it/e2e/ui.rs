//! The web page in a real browser.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};

use super::approvals;
use super::tool_files::Gallery;
use support::audit;
use support::browser::{Browser, ENTER, ESCAPE};
use support::database::Kind;
use support::documents::PNG;
use support::model::ModelMock;
use support::server::{Server, Site};

/// A card that accepts answers: it has been visible long enough.
const ASKED: &str = ".ask[data-status=pending]:not([data-fresh])";

/// A script that attaches files of these names.
const ATTACH: &str = "const files = new DataTransfer();
    for (const name of arguments) files.items.add(new File(['x'], name, { type: 'text/plain' }));
    const input = document.querySelector('#file');
    input.files = files.files;
    input.dispatchEvent(new Event('change', { bubbles: true }));";

/// A script that holds the page's later POST requests until `letGo`.
const HOLD: &str = "const real = window.fetch;
    window.held = [];
    window.fetch = (url, options) => options?.method === 'POST'
        ? new Promise((resolve, reject) => held.push(() => real(url, options).then(resolve, reject)))
        : real(url, options);
    window.letGo = () => {
        window.fetch = real;
        return Promise.all(held.map((go) => go()));
    };";

async fn looking_at(server: &Server) -> Browser {
    let browser = Browser::start().await;
    browser.open(&format!("{}/", server.url)).await;
    browser
}

async fn say(browser: &Browser, words: &str) {
    browser.write("#message", &format!("{words}{ENTER}")).await;
}

/// Chooses a model by its name; the empty name chooses the default.
async fn choose_model(browser: &Browser, name: &str) {
    browser.click("#model").await;
    browser.write("#model-search", &format!("{name}{ENTER}")).await;
    browser.until("the list to close", "return document.querySelector('.picker') === null").await;
}

/// Creates a conversation whose model answers with this text.
async fn said(server: &Server, name: &str, words: &str) -> String {
    let run = server.start_run(&json!({"input": format!("[[id:{name}]][[say:{words}]]")})).await;
    server.finished(run["id"].as_str().unwrap()).await;
    run["conversation_id"].as_str().unwrap().to_owned()
}

/// Waits until this many runs have ended with an answer.
async fn ended(browser: &Browser, runs: usize) {
    let script = format!("return document.querySelectorAll('.end .usage').length >= {runs}");
    browser.until("the end of the run", &script).await;
}

/// Returns the messages of the open conversation.
async fn messages(browser: &Browser, server: &Server) -> Vec<Value> {
    let conversation = browser.run("return location.hash.split('/')[1]", &[]).await;
    server.messages(conversation.as_str().unwrap()).await
}

/// Returns the text of the last message with single spaces.
fn last_text(messages: &[Value]) -> String {
    words(messages.last().unwrap()["parts"].as_array().unwrap().last().unwrap()["text"].as_str().unwrap())
}

/// Returns the result of the last tool call.
fn last_result(messages: &[Value]) -> &str {
    let last = messages.iter().rfind(|message| message["role"] == "tool").unwrap();
    last["parts"][0]["content"][0]["text"].as_str().unwrap()
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_answered_on_the_page() {
    let (model, site, server) = Site::start_scripted(Kind::Sqlite).await;
    let browser = looking_at(&server).await;
    assert!(browser.count(".preset").await >= 3, "the page offers presets");

    let calls = r#"[[id:page]][[reason:3,0]][[call:ledger__lookup {"text":"a"}]]"#;
    say(&browser, &format!("{calls}[[next]][[text:5,10]][[hold]][[say:**whole** end]]")).await;
    // Partial text is shown before the answer is complete.
    browser.shows(".streaming .text", "t4").await;
    let step = browser.shows("#step", "Step 2 of 20").await;
    assert!(step.contains("writes"), "{step}");
    assert_eq!(browser.run("return document.querySelector('#message').value", &[]).await, "");
    model.release("page");
    ended(&browser, 1).await;
    browser.shows(".message.assistant .text strong", "whole").await;
    assert_eq!(browser.count("#progress[hidden]").await, 1);

    browser.click(".call summary").await;
    // The page renders the content after its toggle event, a moment after the opening.
    let call = browser.shows(".call[open][data-state=done]", "Result").await;
    assert!(call.contains("ledger__lookup") && call.contains("\"text\": \"a\""), "{call}");
    // Milliseconds, or seconds.
    browser.shows(".call .time", "s").await;
    browser.click(".thinking summary").await;
    browser.shows(".thinking[open]", "think2").await;

    // The conversation has its own URL, and a reload shows all of it.
    browser.reload().await;
    ended(&browser, 1).await;
    browser.shows(".message.assistant .text strong", "whole").await;
    assert_eq!((browser.count(".message.user").await, browser.count(".call[data-state=done]").await), (1, 1));
    browser.shows(".conversation.open .words", "[[id:page]]").await;
    audit::assert_sound(&site.database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_allowed_on_the_page_and_made_once() {
    let (_model, site, server) = Site::serve(async |model| approvals::site(Kind::Sqlite, model).await).await;
    let browser = looking_at(&server).await;
    say(&browser, approvals::INPUT).await;
    let card = browser.shows(ASKED, "Allow once").await;
    for words in ["ledger__append", "Append \"one\" to the ledger", "\"text\": \"one\"", "Always allow", "Decline"] {
        assert!(card.contains(words), "{words}: {card}");
    }
    browser.shows("#step", "waits for your decision").await;
    assert_eq!(site.ledger.entries().len(), 0);
    // A double click counts once.
    browser.run("const allow = document.querySelector('.ask .allow'); allow.click(); allow.click();", &[]).await;
    browser.shows(".ask[data-status=allowed]", "Allowed once").await;
    ended(&browser, 1).await;
    browser.shows(".message.assistant:last-of-type", "bye").await;
    assert_eq!(site.ledger.count("append", "one"), 1);

    // The first call is denied, and the next one has edited arguments.
    say(&browser, r#"[[id:no]][[call:ledger__append {"text":"two"}]][[next]][[say:no]]"#).await;
    browser.write(&format!("{ASKED} .deny input"), "not today").await;
    browser.click(&format!("{ASKED} button.deny")).await;
    browser.shows(".ask[data-status=denied]", "not today").await;
    ended(&browser, 2).await;
    say(&browser, r#"[[id:edit]][[call:ledger__append {"text":"three"}]][[next]][[say:yes]]"#).await;
    edit(&browser, "\"four\"").await;
    browser.click(&format!("{ASKED} .allow")).await;
    ended(&browser, 3).await;
    let made: Vec<_> = ["one", "two", "three", "four"].iter().map(|text| site.ledger.count("append", text)).collect();
    assert_eq!(made, [1, 0, 0, 1]);
    audit::assert_sound(&site.database).await;
}

/// Replaces the text in the shown arguments and returns the old text.
async fn edit(browser: &Browser, text: &str) -> String {
    browser.shows(ASKED, "Edit arguments").await;
    let open = "[...document.querySelectorAll('.ask button')].find((button) => button.textContent === 'Edit arguments').click()";
    browser.run(open, &[]).await;
    browser.until("the editor", "return document.querySelector('.ask textarea') !== null").await;
    let script = r#"const editor = document.querySelector(`${arguments[0]} textarea`);
        const before = editor.value;
        editor.value = before.replace(/"text": ".*"/, `"text": ${arguments[1]}`);
        return before;"#;
    browser.run(script, &[ASKED, text]).await.as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn approval_shows_the_arguments_that_run() {
    const LARGE: u64 = 12_345_678_901_234_567_890;
    let (_model, site, server) = Site::serve(async |model| approvals::site(Kind::Sqlite, model).await).await;
    let browser = looking_at(&server).await;
    // A number beyond JavaScript's integers, and invisible letters.
    let arguments = format!(r#"{{"text":"o\u200bn\u3164\ufe0fe","n":{LARGE}}}"#);
    say(&browser, &format!("[[id:exact]][[call:ledger__append {arguments}]][[next]][[say:bye]]")).await;
    let seen = async || {
        let shown = browser.shows(&format!("{ASKED} .arguments"), &format!("\"n\": {LARGE}")).await;
        assert!(shown.contains("\"o<U+200B>n<U+3164><U+FE0F>e\""), "{shown}");
    };
    seen().await;
    // From the snapshot as well.
    browser.reload().await;
    seen().await;
    // A click at the moment when the card appears was meant for something else.
    let early = "const card = document.querySelector('.ask');
        card.dataset.fresh = '';
        card.querySelector('.allow').click();
        delete card.dataset.fresh;
        return card.dataset.sent ?? card.querySelector('.allow').disabled";
    assert_eq!(browser.run(early, &[]).await, false);
    let before = edit(&browser, "\"two\"").await;
    assert!(before.contains(r"o\u200bn\u3164\ufe0fe") && before.contains(&LARGE.to_string()), "{before}");
    browser.click(&format!("{ASKED} .allow")).await;
    browser.shows(".ask[data-status=allowed]", "with other arguments").await;
    ended(&browser, 1).await;
    let made: Vec<Value> = site.ledger.entries().into_iter().map(|entry| entry.arguments).collect();
    assert_eq!(made, [json!({"text": "two", "n": LARGE})]);
    browser.click(".call summary").await;
    browser.shows(".call[open]", &format!("\"n\": {LARGE}")).await;
    audit::assert_sound(&site.database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_are_answered_on_the_page() {
    let (_model, site, server) =
        Site::serve(async |model| Site::scripted(Kind::Sqlite, model).await.env("CAPSTAN_TOOLS__ENABLE", r#"["ask_user"]"#)).await;
    let browser = looking_at(&server).await;
    let question = r#"{"question":"Which\u200b one?","choices":["red","blue"]}"#;
    say(&browser, &format!("[[id:choice]][[call:ask_user {question}]][[next]][[say:bye]]")).await;
    browser.shows(ASKED, "Which<U+200B> one?").await;
    browser.click(&format!("{ASKED} .choice:nth-of-type(2)")).await;
    ended(&browser, 1).await;
    assert_eq!(last_result(&messages(&browser, &server).await), "blue");

    // Values keep their types, independent of their names.
    let form = json!({"type": "object", "required": ["seats"], "properties": {
        "day": {"type": "string", "title": "Day"},
        "days": {"type": "array", "items": {"type": "string", "enum": ["Mon", "Tue"]}},
        "left": {"type": "string"},
        "rate": {"type": "number", "oneOf": [{"const": 0.5, "title": "half"}, {"const": 1, "title": "whole"}]},
        "seats": {"type": "integer", "enum": [1, 2, 3]},
    }});
    let question = json!({"question": "When?", "form": form});
    say(&browser, &format!("[[id:form]][[call:ask_user {question}]][[next]][[say:bye]]")).await;
    let shown = browser.shows(ASKED, "When?").await;
    assert!(shown.contains("Day (optional)") && shown.contains("half"), "{shown}");
    browser.write(&format!("{ASKED} input[type=text]"), "Monday").await;
    browser.click(&format!("{ASKED} input[type=checkbox]")).await;
    let choose = "for (const option of document.querySelectorAll(`${arguments[0]} option`)) {
            if (['half', '2'].includes(option.textContent)) option.selected = true;
        }";
    browser.run(choose, &[ASKED]).await;
    browser.click(&format!("{ASKED} button[type=submit]")).await;
    ended(&browser, 2).await;
    let messages = messages(&browser, &server).await;
    let given: Value = serde_json::from_str(last_result(&messages)).unwrap();
    assert_eq!(given, json!({"day": "Monday", "days": ["Mon"], "rate": 0.5, "seats": 2}));
    audit::assert_sound(&site.database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn form_on_the_page_keeps_numbers_and_order() {
    let (_model, _site, server) =
        Site::serve(async |model| Site::scripted(Kind::Sqlite, model).await.env("CAPSTAN_TOOLS__ENABLE", r#"["ask_user"]"#)).await;
    let browser = looking_at(&server).await;
    // On one line, because a line break would send the message.
    let form = concat!(
        r#"{"type":"object","properties":{"total":{"type":"integer","default":20000000000000000001},"#,
        r#""rate":{"type":"number","enum":[1.10,20000000000000000003]},"each":{"type":"number"}}}"#
    );
    say(&browser, &format!(r#"[[id:form]][[call:ask_user {{"question":"How much?","form":{form}}}]][[next]][[say:bye]]"#)).await;
    browser.shows(ASKED, "How much?").await;
    let fill = "const card = document.querySelector(arguments[0]);
        for (const option of card.querySelectorAll('option')) option.selected = option.textContent === '20000000000000000003';
        const [total, each] = card.querySelectorAll('input[type=number]');
        each.value = '1.10';
        return total.value;";
    assert_eq!(browser.run(fill, &[ASKED]).await, "20000000000000000001");
    browser.click(&format!("{ASKED} button[type=submit]")).await;
    ended(&browser, 1).await;
    let told = last_result(&messages(&browser, &server).await).to_owned();
    assert_eq!(told, r#"{"total":20000000000000000001,"rate":20000000000000000003,"each":1.10}"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_conversation_shows_its_own() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let one = said(&server, "one", "words of one").await;
    let two = said(&server, "two", "words of two").await;
    let browser = looking_at(&server).await;
    let shows = async |words: &str| {
        browser.shows(".message.assistant .text", words).await;
        ended(&browser, 1).await;
        assert_eq!((browser.count(".message.user").await, browser.count(".message.assistant").await), (1, 1), "{words}");
    };
    let hurry = "for (let at = 0; at < 30; at += 1) location.hash = `#/${arguments[at % 2]}`;";
    browser.run(hurry, &[&one, &two]).await;
    shows("words of two").await;
    browser.run(hurry, &[&two, &one]).await;
    shows("words of one").await;

    // Files whose upload is under way do not appear in another conversation.
    browser.run(HOLD, &[]).await;
    browser.run(ATTACH, &["one.txt", "another.txt"]).await;
    browser.until("the file to be on its way", "return held.length === 1").await;
    browser.show(&format!("#/{two}")).await;
    shows("words of two").await;
    browser.run("return letGo().then(() => null)", &[]).await;
    browser.run(ATTACH, &["two.txt"]).await;
    browser.until("the file", "return document.querySelector('#files .i-file') !== null").await;
    assert_eq!(browser.run("return document.querySelector('#files').innerText.trim()", &[]).await, "two.txt");

    // A message whose request is under way does not switch the open conversation.
    browser.show("#/").await;
    browser.until("a new conversation", "return document.querySelector('#title').innerText === 'New conversation'").await;
    browser.run(HOLD, &[]).await;
    say(&browser, "[[id:slow]][[say:words of slow]]").await;
    browser.until("the message to be on its way", "return held.length === 1").await;
    browser.show(&format!("#/{one}")).await;
    shows("words of one").await;
    browser.run(ATTACH, &["late.txt"]).await;
    browser.run("return letGo().then(() => null)", &[]).await;
    browser.until("the message to be sent", "return document.querySelector('#message').value === ''").await;
    browser.until("the third conversation", "return document.querySelectorAll('.conversation').length === 3").await;
    assert_eq!(browser.run("return location.hash", &[]).await, format!("#/{one}"));
    shows("words of one").await;
    browser.until("the file that stays", "return document.querySelector('#files .i-file') !== null").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_huge_table_stays_text() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let table = format!("{}\n{}\n{}", "|a".repeat(600), "|-".repeat(600), "|\n".repeat(2000));
    let small = "| A | B |\n|---|--:|\n| 1 |\n";
    let conversation = said(&server, "table", &format!("{table}\n{small}\nthe end")).await;
    let browser = looking_at(&server).await;
    browser.show(&format!("#/{conversation}")).await;
    browser.shows(".message.assistant .text", "the end").await;
    let nodes = browser.count("#transcript *").await;
    assert!(nodes < 100, "{nodes}");
    assert_eq!((browser.count(".text .code").await, browser.count(".text table").await), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_ends_the_answer_and_the_call_of_the_model() {
    let (model, site, server) = Site::start_scripted(Kind::Sqlite).await;
    let browser = looking_at(&server).await;
    let hung_up = async |id: &str| {
        model.wait_for("the hang-up", id, |seen| seen.iter().any(|one| one.hung_up.is_some())).await;
    };
    say(&browser, "[[id:button]][[text:5,10]][[hold]][[text:5,10]]").await;
    browser.shows(".streaming .text", "t4").await;
    browser.click("#stop").await;
    browser.shows(".end", "Stopped.").await;
    hung_up("button").await;
    // The partial text stays.
    browser.shows(".message.assistant .text", "t4").await;

    say(&browser, "[[id:escape]][[text:5,10]][[hold]][[text:5,10]]").await;
    browser.shows(".streaming .text", "t4").await;
    browser.write("#message", ESCAPE).await;
    browser.until("the second end", "return document.querySelectorAll('.run[data-status=cancelled]').length === 2").await;
    hung_up("escape").await;
    audit::assert_sound(&site.database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_outlives_its_server() {
    let (model, site, mut server) = Site::serve(async |model| Site::scripted(Kind::Sqlite, model).await.short_leases()).await;
    let browser = looking_at(&server).await;
    say(&browser, "[[id:gone]][[text:5,10]][[hold]][[text:300,1]]").await;
    browser.shows(".streaming .text", "t4").await;
    server.kill9().await;
    browser.shows("#notice:not([hidden])", "The connection is lost.").await;

    // On the same address, where the page reconnects.
    let again = site.restarted(&server).await;
    model.release("gone");
    browser.until("the notice to go", "return document.querySelector('#notice').hidden").await;
    ended(&browser, 1).await;
    let whole = last_text(&messages(&browser, &again).await);
    assert!(whole.contains("t304"), "{whole}");
    let shown = browser.shows(".message.assistant .text", "t304").await;
    assert_eq!(words(&shown), whole, "the whole text, and once");
    assert_eq!(browser.count(".message.assistant").await, 1);
    audit::assert_sound(&site.database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn model_output_is_shown_as_text() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let browser = looking_at(&server).await;
    let markup = r#"<img src=x onerror="window.owned=1"><script>window.owned=1</script> <b>bold</b>"#;
    let links = "[a](javascript:window.owned=1) [b](data:text/html,x) ![c](https://example.com/c.png) [d](https://example.com/d)";
    say(&browser, &format!("[[id:markup]][[say:{markup} {links} end of it]]")).await;
    ended(&browser, 1).await;
    let shown = browser.shows(".message.assistant .text", "end of it").await;
    assert!(shown.contains(markup) && shown.contains("[a](javascript:window.owned=1)"), "{shown}");
    assert_eq!(browser.count("#transcript :is(img, script, b, iframe, style)").await, 0, "{shown}");
    let links = "return [...document.querySelectorAll('#transcript a[target]')].map((link) => `${link.href} ${link.rel}`)";
    let links = browser.run(links, &[]).await;
    let expected = ["https://example.com/c.png", "https://example.com/d"].map(|url| format!("{url} noopener noreferrer"));
    assert_eq!(links, serde_json::json!(expected));
    assert_eq!(browser.run("return window.owned ?? null", &[]).await, Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_titles_results_and_errors_stay_text() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let browser = looking_at(&server).await;
    let markup = "<img/src=x/onerror=window.owned=1>";
    let script =
        format!(r#"[[id:names]][[call:{markup} {{}}]][[next]][[call:ledger__lookup {{"text":"{markup}"}}]][[next]][[say:bye]]"#);
    choose_model(&browser, markup).await;
    say(&browser, &script).await;
    browser.shows("#trouble", markup).await;
    choose_model(&browser, "").await;
    browser.run(ATTACH, &["<img src=x onerror=window.owned=1>.txt"]).await;
    browser.until("the file", "return document.querySelector('#files .i-file') !== null").await;
    browser.shows("#files", "<img src=x").await;
    say(&browser, &script).await;
    ended(&browser, 1).await;
    browser.shows(".message.user .chip", "<img src=x").await;
    browser.run("for (const call of document.querySelectorAll('.call')) call.open = true", &[]).await;
    browser.shows(".call[open][data-state=failed] .name", markup).await;
    browser.shows(".call[open][data-state=failed] .body", &format!("no tool named \"{markup}\"")).await;
    browser.shows(".call[open][data-state=done] .body", &format!("recorded {markup}")).await;
    let conversation = browser.run("return location.hash.split('/')[1]", &[]).await;
    let path = format!("/conversations/{}", conversation.as_str().unwrap());
    let renamed = server.request(Method::PATCH, &path).json(&json!({"title": markup})).send().await.unwrap();
    assert_eq!(renamed.status(), 200);
    browser.shows("#title", markup).await;
    browser.shows(".conversation.open .words", markup).await;
    let markup = ":is(#transcript, #sidebar, #title, #trouble, #files) :is(img, script, iframe, style)";
    assert_eq!(browser.count(markup).await, 0);
    assert_eq!(browser.run("return window.owned ?? null", &[]).await, Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn browser_signs_in_once_and_out() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Sqlite, &model).await;
    let key = site.key_of("ann").await;
    let server = site.start().await;
    let browser = looking_at(&server).await;
    browser.write("#key-dialog[open] #key", &format!("cap_wrong{ENTER}")).await;
    // The text is in the page from the beginning, and hidden until a key was refused.
    browser.shows("#key-trouble:not([hidden])", "does not let you in").await;
    browser.write("#key-dialog[open] #key", &format!("{key}{ENTER}")).await;
    browser.until("the dialog to close", "return !document.querySelector('#key-dialog').open").await;
    say(&browser, "[[id:key]][[say:secret]]").await;
    ended(&browser, 1).await;
    browser.shows(".message.assistant .text", "secret").await;

    // All tabs are signed in, by a cookie that no script can read.
    assert_eq!(browser.run("return localStorage.length + document.cookie.length", &[]).await, 0);
    browser.open(&format!("{}/", server.url)).await;
    browser.shows("#user", "ann").await;
    browser.shows(".conversation .words", "[[id:key]]").await;
    assert_eq!(browser.count("#key-dialog[open]").await, 0);

    browser.click("#forget").await;
    browser.until("the dialog", "return document.querySelector('#key-dialog')?.open").await;
    assert_eq!(browser.run("return sessionStorage.length", &[]).await, 0);
    assert_eq!((browser.count(".message").await, browser.count(".conversation").await), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn earlier_messages_are_shown_on_demand() {
    let site = Site::new(Kind::Sqlite).await;
    let server = site.start().await;
    let messages: Vec<Value> = (0..60_usize)
        .map(|at| {
            let role = if at % 2 == 0 { "user" } else { "assistant" };
            // The newest message exceeds the size of a snapshot, so the snapshot has no messages.
            let long = if at == 59 { 50_000 } else { 100 };
            json!({"id": format!("msg_{at:032x}"), "conversation_id": format!("conv_{:032x}", 1), "role": role, "status": "complete",
                "run_id": format!("run_{:032x}", at / 2), "created_at": "2026-01-01T00:00:00.000Z",
                "parts": [{"type": "text", "id": format!("part_{at:032x}"), "text": format!("number {at}. {}", "words ".repeat(long))}]})
        })
        .collect();
    let document = json!({"format": "capstan.conversation", "version": 1, "conversation": {"title": "Long"}, "messages": messages});
    let (_, made) = server.post_json("/conversations/import", &document).await;
    let browser = looking_at(&server).await;
    browser.show(&format!("#/{}", made["id"].as_str().unwrap())).await;
    browser.until("a page of messages", "return document.querySelectorAll('.message').length === 50").await;
    browser.shows(".run:last-of-type .message.assistant", "number 59.").await;
    // A click of the driver scrolls to the button first, and reaching the top shows earlier messages without it.
    browser.run("document.querySelector('.earlier').click()", &[]).await;
    browser.until("all messages", "return document.querySelectorAll('.message').length === 60").await;
    let order =
        "return [...document.querySelectorAll('.message')].map((node) => /number ([0-9]+)/.exec(node.textContent)[1]).join(' ')";
    let expected: Vec<String> = (0..60).map(|at| at.to_string()).collect();
    assert_eq!(browser.run(order, &[]).await, expected.join(" "));
    assert_eq!(browser.count(".earlier").await, 0, "there is no button before the first message");
}

#[tokio::test(flavor = "multi_thread")]
async fn picture_of_a_tool_is_shown_by_its_url() {
    let model = ModelMock::start().await;
    let gallery = Gallery::new(Kind::Sqlite, &model).await;
    let picture = json!({"type": "image", "mimeType": "image/png", "data": STANDARD.encode(PNG)});
    gallery.hang("shot", &json!([picture]));
    let server = gallery.site.start().await;
    let browser = looking_at(&server).await;
    say(&browser, "[[id:ui]][[call:gallery__show {\"text\":\"shot\"}]][[next]][[say:bye]]").await;
    ended(&browser, 1).await;
    browser.run("for (const call of document.querySelectorAll('.call')) call.open = true", &[]).await;
    let script = "return [...document.querySelectorAll('.call img')].some((image) => image.src.startsWith('blob:') && image.naturalWidth > 0)";
    browser.until("the picture", script).await;
}
