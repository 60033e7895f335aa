//! Looks inside on the page: a run at each of its events, the requests of its steps, states of MCP servers, and budgets.

use reqwest::Method;
use serde_json::{Value, json};

use support::browser::{Browser, ESCAPE};
use support::database::Kind;
use support::model::ModelMock;
use support::server::{Server, Site};

use super::page::{choose, looking_at};
use super::page_axe::axe_violations;

/// The answers of the replayed conversation, also those out of sight.
const ANSWERS: &str = "[...document.querySelectorAll('#replay .message.assistant .text')].map((text) => text.textContent)";

/// Adds a provider whose model has prices: a thousandth of a dollar for each token of a request. Its model becomes the default.
pub(super) async fn add_priced(server: &Server, model: &ModelMock) {
    let models = json!([{"name": "mock", "prices": {"input": 1000, "output": 2000}}]);
    let provider = json!({"name": "priced", "kind": "openai", "base_url": model.base_url, "models": models});
    let (status, made) = server.post_json("/providers", &provider).await;
    assert_eq!(status, 201, "{made}");
    let change = server.request(Method::PATCH, "/me").json(&json!({"default_model": "priced/mock"})).send().await.unwrap();
    assert_eq!(change.status(), 200);
}

/// A conversation of three runs. Returns its id and the run in the middle, which calls a tool.
async fn three_runs(server: &Server) -> (String, String) {
    let first = server.start_run(&json!({"input": "[[id:one]][[say:the first answer]]"})).await;
    server.finished(first["id"].as_str().unwrap()).await;
    let conversation = first["conversation_id"].as_str().unwrap().to_owned();
    let input = r#"[[id:two]][[call:ledger__lookup {"text":"a"}]][[next]][[say:the second answer]]"#;
    let second = server.send(&conversation, input, "queue").await["run"]["id"].as_str().unwrap().to_owned();
    server.finished(&second).await;
    let third = server.send(&conversation, "[[id:three]][[say:a later answer]]", "queue").await;
    server.finished(third["run"]["id"].as_str().unwrap()).await;
    (conversation, second)
}

/// Moves the slider to an event, from 1.
async fn scrub(browser: &Browser, place: usize) {
    let script = "const slider = document.querySelector('.scrubber input');
        Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(slider, arguments[0]);
        slider.dispatchEvent(new Event('input', { bubbles: true }))";
    browser.run(script, &[&place.to_string()]).await;
}

async fn inspect(browser: &Browser, run: &str) {
    browser.show(&format!("#/run/{run}")).await;
    let is_shown = format!("return {ANSWERS}.join() === 'the first answer,the second answer'");
    browser.until("the conversation at the end of the run", &is_shown).await;
}

/// Changes the look, and waits until the side bar has slid away or back.
async fn look(browser: &Browser, scheme: &str, width: u32) {
    browser.look(scheme, width).await;
    let is_still = "return document.getAnimations().every((one) => !(one instanceof CSSTransition) || one.playState !== 'running')";
    browser.until("the end of movements", is_still).await;
}

/// Asserts that nothing shown violates WCAG 2.2 AA or scrolls sideways, light and dark, on desktops and phones.
async fn assert_usable(browser: &Browser) {
    let mut found = Vec::new();
    for (scheme, width) in [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)] {
        look(browser, scheme, width).await;
        let wide = "const page = document.querySelector('.scroll-page');
            return document.documentElement.scrollWidth > innerWidth || (page !== null && page.scrollWidth > page.clientWidth)";
        assert_eq!(browser.run(wide, &[]).await, false, "{scheme} {width}");
        found.extend(axe_violations(browser).await.into_iter().map(|violation| format!("{scheme} {width} {violation}")));
    }
    look(browser, "light", 1280).await;
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn inspector_shows_the_conversation_as_of_an_event() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let (_, run) = three_runs(&server).await;
    let events = server.run_events_json(&run).await;
    let place = |kind: &str| events.iter().position(|event| event["type"] == kind).unwrap() + 1;
    let browser = looking_at(&server).await;
    inspect(&browser, &run).await;
    browser.shows("#replay .run-begins", "This run").await;
    assert_eq!(browser.count("#replay button:enabled").await, 0, "a replay is only read");

    // Before its first step, the run has its message, and the conversation what was there before.
    scrub(&browser, place("run.started")).await;
    browser.until("the beginning of the run", &format!("return {ANSWERS}.join() === 'the first answer'")).await;
    assert_eq!((browser.count("#replay .message.user").await, browser.count("#replay .call").await), (2, 0));
    scrub(&browser, place("tool.started")).await;
    browser.until("the call", "return document.querySelector('#replay .call[data-state=started]') !== null").await;
    scrub(&browser, place("tool.completed") - 1).await;
    browser.click("[aria-label='Event after']").await;
    browser.until("the result", "return document.querySelector('#replay .call[data-state=done]') !== null").await;
    browser.shows(".event-detail summary", "tool.completed").await;
    assert_usable(&browser).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inspector_shows_what_the_model_was_sent() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    add_priced(&server, &model).await;
    let (_, run) = three_runs(&server).await;
    let browser = looking_at(&server).await;
    inspect(&browser, &run).await;
    browser.until("the model steps", "return document.querySelectorAll('.step-tree .sent').length === 2").await;
    // The cost of each step, and of all.
    let costs = "return [...document.querySelectorAll('.step-tree [data-kind=model] .step-line')].map((line) => line.innerText.split(' · ').slice(1).join(' · '))";
    let each = "10 tokens in, 0 out · $0.010";
    assert_eq!(browser.run(costs, &[]).await, json!([each, each]));
    let facts = browser.shows(".inspector .facts", "$0.020").await;
    assert!(facts.contains("priced/mock") && facts.contains("20 in, 0 out"), "{facts}");
    browser.click(".step-tree > li:first-child .sent > summary").await;
    let first = browser.shows(".step-tree > li:first-child .sent-messages", "the first answer").await;
    assert!(first.contains("[[id:two]]") && !first.contains("Result of"), "{first}");
    browser.shows(".step-tree > li:first-child .sent-body", "tools").await;
    // The second request has the call and its result.
    browser.click(".step-tree > li:last-child .sent > summary").await;
    let second = browser.shows(".step-tree > li:last-child .sent-messages", "Result of ledger__lookup").await;
    assert!(second.contains("Calls ledger__lookup"), "{second}");
    let open = "for (const part of document.querySelectorAll('.sent-fold')) part.open = true";
    browser.run(open, &[]).await;
    browser.shows(".step-tree > li:last-child .sent-tools", "ledger__lookup").await;
    assert_usable(&browser).await;

    // Runs of older versions have no record of their requests.
    let lost = "const real = window.fetch;
        window.fetch = (url, options) => real(String(url).endsWith('/request') ? `api/v1/runs/run_${'0'.repeat(32)}/steps/1/request` : url, options)";
    browser.reload().await;
    browser.run(lost, &[]).await;
    browser.click(".step-tree > li:first-child .sent > summary").await;
    browser.shows(".step-tree > li:first-child .sent", "This request is not recorded").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_servers_show_their_states_at_a_glance() {
    let (_model, _site, server) = Site::serve(async |model| {
        let site = Site::scripted(Kind::Sqlite, model).await;
        let config: Value = json!({"mcpServers": {"ledger": site.ledger.mcp_server(), "broken": {"command": "false"}}});
        site.mcp(config)
    })
    .await;
    let run = server.start_run(&json!({"input": "[[id:offered]][[say:ok]]"})).await;
    server.finished(run["id"].as_str().unwrap()).await;
    let browser = looking_at(&server).await;
    browser.click("#servers").await;
    let ready = browser.shows(".server-list [data-server=ledger]", "ready").await;
    assert!(ready.contains("tools"), "{ready}");
    browser.shows(".server-list [data-server=broken]", "failed").await;
    assert_usable(&browser).await;
    browser.press(ESCAPE).await;
    browser.until("the end of the list", "return document.querySelector('.server-list') === null").await;
    browser.until("the focus as before", "return document.activeElement?.id === 'servers'").await;

    // Each server leads to its card of the set up.
    browser.click("#servers").await;
    browser.click(".server-list [data-server=ledger] a").await;
    browser.until("the card", "return document.activeElement?.matches('.card[data-server=ledger]')").await;
    assert_eq!(browser.count(".server-list").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_shows_budgets_of_agents_and_days_of_users() {
    let (_model, _site, server) = Site::serve(async |model| {
        Site::scripted(Kind::Sqlite, model).await.env("CAPSTAN_LIMITS__MAX_DAY_TOKENS_PER_OWNER", "1000000")
    })
    .await;
    let budget = json!({"conversation": {"tokens": 4000}, "day": {"usd": 2}});
    let thrifty = json!({"name": "thrifty", "profile": {"max_run_tokens": 900, "budget": budget}});
    let (status, made) = server.post_json("/agents", &thrifty).await;
    assert_eq!(status, 201, "{made}");
    let run = server.start_run(&json!({"input": "[[id:spent]][[say:ok]]"})).await;
    server.finished(run["id"].as_str().unwrap()).await;
    let browser = looking_at(&server).await;
    browser.show("#/usage").await;
    browser.shows(".day-limits", "of 1,000,000 tokens of today").await;
    browser.shows(".budgets tbody", "thrifty").await;
    let cells = "return [...document.querySelector('.budgets tbody tr').cells].map((cell) => cell.innerText)";
    assert_eq!(browser.run(cells, &[]).await, json!(["thrifty", "900 tokens", "4,000 tokens", "$2.00"]));
    choose(&browser, "By", "user").await;
    browser.shows(".day-limits", "(you): ").await;
    assert_eq!(browser.count(".day-limits [role=meter]").await, 1);
    assert_usable(&browser).await;
}
