//! The set up on the page: MCP servers with their logins, providers with their models, and agents.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use support::browser::{Browser, ENTER, ESCAPE};
use support::database::Kind;
use support::dialects::Dialect;
use support::mcp::Scripted;
use support::model::ModelMock;
use support::oauth::Guarded;
use support::refusing::RefusingProvider;
use support::server::{Server, Site};
use support::wait;

use super::page::looking_at;

/// How long a server or a record may take to reach its state.
const PATIENCE: Duration = Duration::from_secs(60);

/// Clicks the button with these words inside the first element that the selector finds, as soon as it is there and on.
pub(super) async fn press_button(browser: &Browser, css: &str, words: &str) {
    let script = format!(
        "const button = [...(document.querySelector({})?.querySelectorAll('button') ?? [])].find((one) => one.innerText.trim() === {} && !one.disabled);
        button?.click();
        return button !== undefined",
        json!(css),
        json!(words)
    );
    browser.until(&format!("the button {words}"), &script).await;
}

/// Waits until nothing on the page matches the selector.
async fn gone(browser: &Browser, css: &str) {
    browser.until(&format!("no {css}"), &format!("return document.querySelector({}) === null", json!(css))).await;
}

/// Returns the scripted server as a command of one line, with these habits.
fn command_line(scripted: &Scripted, habits: &[&str]) -> String {
    let words = std::iter::once("python3".to_owned()).chain(scripted.command(habits));
    words.map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ")
}

async fn add_server(browser: &Browser, kind: &str, name: &str, field: &str, value: &str) {
    press_button(browser, ".setup-head", "Add a server").await;
    press_button(browser, ".setup-form", kind).await;
    browser.write(".setup-form [name=name]", name).await;
    browser.write(&format!(".setup-form [name={field}]"), value).await;
    browser.click(".setup-form button[type=submit]").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_servers_are_set_up_on_the_page() {
    let (model, scripted, broken) = (ModelMock::start().await, Scripted::default(), Scripted::default());
    let site = Site::new(Kind::Sqlite).await.with_model(&model);
    let server = site.start().await;
    let browser = looking_at(&server).await;
    browser.show("#/setup/tools").await;
    browser.shows(".setup-section", "No MCP server is connected.").await;

    // By a command, with a variable.
    press_button(&browser, ".setup-head", "Add a server").await;
    press_button(&browser, ".setup-form", "Command").await;
    browser.write(".setup-form [name=name]", "mine").await;
    browser.write(".setup-form [name=command]", &command_line(&scripted, &[])).await;
    browser.write(".setup-form [name=pairs]", "SECRET=a-canary-of-some-length").await;
    browser.click(".setup-form button[type=submit]").await;
    gone(&browser, ".setup-form").await;
    browser.shows("[data-server=mine]", "ready").await;
    let listed = server.get_json("/mcp-servers").await;
    let entry = &listed["data"][0]["entry"];
    assert_eq!((&entry["command"], &entry["env"]), (&json!("python3"), &json!({"SECRET": "${SECRET}"})), "{listed}");
    assert_eq!(entry["args"].as_array().unwrap().len(), 2, "the quoted words are arguments: {listed}");
    browser.click("[data-server=mine] summary").await;
    browser.shows("[data-server=mine] [data-tool=echo]", "echo").await;

    // The restart ends the process, and the switch does so too.
    let pids = || scripted.log("pid").len();
    assert_eq!((pids(), scripted.alive().len()), (1, 1));
    press_button(&browser, "[data-server=mine]", "Restart").await;
    wait::until("another process", PATIENCE, || async { (pids() == 2 && scripted.alive().len() == 1).then_some(()) }).await;
    browser.shows("[data-server=mine]", "ready").await;
    press_button(&browser, "[data-server=mine]", "Turn off").await;
    browser.shows("[data-server=mine] .state", "off").await;
    scripted.gone().await;
    press_button(&browser, "[data-server=mine]", "Turn on").await;
    browser.shows("[data-server=mine]", "ready").await;

    import_servers(&browser, &server, &broken).await;
    for name in ["broken", "mine"] {
        press_button(&browser, &format!("[data-server={name}]"), "Remove").await;
        gone(&browser, &format!("[data-server={name}]")).await;
    }
    browser.shows(".setup-section", "No MCP server is connected.").await;
    assert_eq!(server.get_json("/mcp-servers").await["data"], json!([]));
    scripted.gone().await;
}

/// Imports a file with a server that cannot start, and one whose name is taken.
async fn import_servers(browser: &Browser, server: &Server, broken: &Scripted) {
    let file =
        json!({"mcpServers": {"broken": {"command": "python3", "args": broken.command(&["broken"])}, "mine": {"command": "true"}}});
    press_button(browser, ".setup-head", "Import").await;
    let pick = "const data = new DataTransfer();
        data.items.add(new File([arguments[0]], 'mcp.json', { type: 'application/json' }));
        const field = document.querySelector('.setup-form input[type=file]');
        field.files = data.files;
        field.dispatchEvent(new Event('change', { bubbles: true }))";
    browser.run(pick, &["{"]).await;
    browser.until("the text of the file", "return document.querySelector('.setup-form [name=file]').value === '{'").await;
    browser.click(".setup-form button[type=submit]").await;
    browser.shows(".setup-form .trouble", "JSON").await;
    browser.run(pick, &[&file.to_string()]).await;
    browser.until("the text of the file", "return document.querySelector('.setup-form [name=file]').value.length > 1").await;
    browser.click(".setup-form button[type=submit]").await;
    let outcomes = browser.shows(".plain-list", "broken").await;
    assert!(outcomes.contains("broken added") && outcomes.contains("mine refused"), "{outcomes}");
    press_button(browser, ".setup-section", "Close").await;
    browser.shows("[data-server=broken] .state", "failed").await;
    let card = browser.shows("[data-server=broken] .trouble", "7").await;
    assert!(!card.contains("hunter2"), "{card}");
    browser.click("[data-server=broken] summary").await;
    let output = browser.shows("[data-server=broken] .output", "cannot read the licence file").await;
    assert!(!output.contains("hunter2"), "{output}");
    assert_eq!(server.get_json("/mcp-servers").await["data"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_server_login_begins_and_ends_on_the_page() {
    let (model, bank) = (ModelMock::start().await, Guarded::start().await);
    let site = Site::new(Kind::Sqlite).await.with_model(&model).env("CAPSTAN_OUTBOUND__ALLOW_PRIVATE", "true");
    let server = site.start().await;
    let browser = looking_at(&server).await;
    browser.show("#/setup/tools").await;
    add_server(&browser, "Address", "bank", "url", &bank.url).await;
    browser.shows("[data-server=bank] .state", "needs a login").await;
    // The login opens in another tab, which this one plays afterwards.
    browser.run("window.open = () => ({ close() {}, location: { replace: (url) => { window.opened = url; } } })", &[]).await;
    press_button(&browser, "[data-server=bank]", "Log in").await;
    let login = browser.until("the page of the login", "return window.opened ?? null").await;
    browser.open(login.as_str().unwrap()).await;
    browser.shows("body", "You are logged in.").await;
    browser.open(&format!("{}/#/setup/tools", server.url)).await;
    browser.shows("[data-server=bank] .state", "ready, 2 tools").await;
    browser.show("#/").await;
    browser.write("#message", &format!("[[id:pay]][[call:bank__pay {{}}]][[next]][[say:bye]]{ENTER}")).await;
    browser.shows(".call[data-state=done]", "bank__pay").await;
    assert_eq!(bank.book().calls, 1);
    browser.show("#/setup/tools").await;
    press_button(&browser, "[data-server=bank]", "Log out").await;
    browser
        .until("the end of the login", "return !document.querySelector('[data-server=bank]').innerText.includes('Log out')")
        .await;
    browser.shows("[data-server=bank] .state", "needs a login").await;
    browser.until("the button", "return document.querySelector('[data-server=bank]').innerText.includes('Log in')").await;
    assert_eq!(login_state(&server).await, "needed");
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_server_that_was_lost_shows_its_next_attempt() {
    let (model, scripted) = (ModelMock::start().await, Scripted::default());
    let site = Site::new(Kind::Sqlite).await.with_model(&model);
    let server = site.start().await;
    let browser = looking_at(&server).await;
    browser.show("#/setup/tools").await;
    add_server(&browser, "Command", "mine", "command", &command_line(&scripted, &[])).await;
    browser.shows("[data-server=mine] .state", "ready").await;
    let card = browser.run("return document.querySelector('[data-server=mine]').innerText", &[]).await;
    assert!(!card.as_str().unwrap().contains("attempt"), "{card}");
    // The wait after each failed attempt is longer, and in the end longer than the time between two looks of the page.
    scripted.damage();
    server.start_run(&json!({"input": "[[id:die]][[call:mine__die {}]][[next]][[say:gone]]"})).await;
    let is_time = "const words = document.querySelector('.card[data-server=mine]').innerText;
        return /failed \\d+ times in a row · next attempt at \\d+:\\d\\d:\\d\\d/.test(words)";
    browser.until("the time of the next attempt", is_time).await;
    browser.click("#servers").await;
    browser.shows(".server-list [data-server=mine]", "next attempt at").await;
    browser.press(ESCAPE).await;
    scripted.repair();
    press_button(&browser, ".card[data-server=mine]", "Restart").await;
    browser.shows(".card[data-server=mine] .state", "ready").await;
}

/// Returns the state of the login of the only server.
async fn login_state(server: &Server) -> String {
    server.get_json("/mcp-servers").await["data"][0]["status"]["auth"].as_str().unwrap().to_owned()
}

/// Sends new providers to the played address of their kind, and keeps what the page has sent.
const PLAYED: &str = "const played = JSON.parse(arguments[0]);
    const real = window.fetch;
    window.posted = [];
    window.fetch = (url, options) => {
        if (options?.method !== 'POST' || !String(url).endsWith('/providers')) return real(url, options);
        const body = JSON.parse(options.body);
        posted.push(body);
        return real(url, { ...options, body: JSON.stringify({ ...body, base_url: played[body.name] ?? body.base_url }) });
    };";

#[tokio::test(flavor = "multi_thread")]
async fn providers_are_connected_tested_and_switched_on_the_page() {
    let never = || Arc::new(|_: Dialect, _: &str, _: &Value| None);
    let openai = ModelMock::start().await;
    let anthropic = RefusingProvider::start(Dialect::Anthropic, never()).await;
    let ollama = RefusingProvider::start_with(Dialect::Ollama, never(), &["acme-1", "acme-2"]).await;
    let host = |provider: &RefusingProvider| provider.base_url.trim_end_matches("/v1").to_owned();
    let site = Site::new(Kind::Sqlite).await;
    let server = site.start().await;
    let browser = looking_at(&server).await;
    let played = json!({"openai": openai.base_url, "openrouter": openai.base_url, "anthropic": host(&anthropic)});
    browser.run(PLAYED, &[&played.to_string()]).await;
    browser.show("#/setup/models").await;
    browser.shows(".setup-section", "No provider is connected.").await;

    // Cards with a preset address ask for the key alone, and that of Ollama for the address alone.
    for (kind, field, value) in [
        ("openai", "key", "sk-0123456789abcdef-one1"),
        ("anthropic", "key", "sk-ant-0123456789abcdef-two2"),
        ("openrouter", "key", "sk-or-0123456789abcdef-thr3"),
        ("ollama", "url", host(&ollama).as_str()),
    ] {
        press_button(&browser, ".setup-head", "Add a provider").await;
        browser.click(&format!("[data-kind={kind}]")).await;
        let fields = "return [...document.querySelectorAll('.setup-form input')].map((field) => field.name)";
        browser.until("the fields", &format!("{fields}.length > 0")).await;
        assert_eq!(browser.run(fields, &[]).await, json!([field]), "{kind}");
        browser.write(&format!(".setup-form [name={field}]"), value).await;
        browser.click(".setup-form button[type=submit]").await;
        browser.shows(".choose-model", &format!("{kind} is connected.")).await;
        if kind == "openai" {
            browser.click(".choose-model .choose").await;
            browser.shows(".toast", "New conversations use openai/mock.").await;
        } else {
            press_button(&browser, ".choose-model", "Not now").await;
        }
        browser.shows(&format!("[data-provider={kind}]"), "yours").await;
    }
    let openrouter = json!({"name": "openrouter", "kind": "openai", "base_url": "https://openrouter.ai/api/v1", "key": "sk-or-0123456789abcdef-thr3"});
    let sent = json!([
        {"name": "openai", "kind": "openai", "key": "sk-0123456789abcdef-one1"},
        {"name": "anthropic", "kind": "anthropic", "key": "sk-ant-0123456789abcdef-two2"},
        openrouter,
        {"name": "ollama", "kind": "ollama", "base_url": host(&ollama)},
    ]);
    assert_eq!(browser.run("return posted", &[]).await, sent);

    for (kind, facts) in [("openai", "…one1"), ("anthropic", "…two2"), ("ollama", host(&ollama).as_str())] {
        let card = format!("[data-provider={kind}]");
        browser.shows(&card, facts).await;
        press_button(&browser, &card, "Test").await;
        browser.shows(&format!("{card} .state.good"), "answers in").await;
    }
    assert_eq!(anthropic.asked().len(), 1, "the test asks the model once");

    let models = async || {
        let listed = server.get_json("/models").await;
        let ids = listed["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned());
        ids.filter(|id| id.starts_with("ollama/")).collect::<Vec<_>>()
    };
    let card = "[data-provider=ollama]";
    press_button(&browser, card, "Turn off").await;
    browser.shows(&format!("{card} .state.off"), "off").await;
    assert_eq!(models().await, Vec::<String>::new());
    press_button(&browser, card, "Turn on").await;
    gone(&browser, &format!("{card} .state.off")).await;
    assert_eq!(models().await, ["ollama/acme-1", "ollama/acme-2"]);

    browser.click(&format!("{card} summary")).await;
    press_button(&browser, &format!("{card} .model-list li:last-child"), "Make default").await;
    browser.shows(&format!("{card} .model-list li:last-child"), "default").await;
    browser.shows(".setup-section", "New conversations use ollama/acme-2.").await;
    assert_eq!(server.get_json("/me").await["default_model"], "ollama/acme-2");
    press_button(&browser, "[data-provider=anthropic]", "Remove").await;
    gone(&browser, "[data-provider=anthropic]").await;
    let kept = server.get_json("/providers").await;
    let kept: Vec<&Value> = kept["data"].as_array().unwrap().iter().map(|provider| &provider["name"]).collect();
    assert_eq!(kept, ["ollama", "openai", "openrouter"]);

    // The chosen model answers the next conversation.
    browser.show("#/").await;
    browser.write("#message", &format!("hello{ENTER}")).await;
    browser.shows(".message.assistant .text", "Hello.").await;
    assert_eq!(ollama.asked().last().unwrap().body["model"], "acme-2");
}

/// Writes a text into the field of the form whose label has one of these words.
async fn fill(browser: &Browser, labels: &str, text: &str) {
    let script = format!(
        "const label = [...document.querySelectorAll('.setup-form label')].find((one) => /^({labels})/i.test(one.innerText.trim()));
        const field = label?.control;
        if (field == null) return false;
        const kind = field instanceof HTMLTextAreaElement ? HTMLTextAreaElement : HTMLInputElement;
        Object.getOwnPropertyDescriptor(kind.prototype, 'value').set.call(field, {});
        field.dispatchEvent(new Event('input', {{ bubbles: true }}));
        return true",
        json!(text)
    );
    browser.until(labels, &script).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_made_on_the_page_answers_with_each_version() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let browser = looking_at(&server).await;
    browser.show("#/setup/agents").await;
    press_button(&browser, ".setup-head", "Make an agent").await;
    fill(&browser, "name", "poet").await;
    fill(&browser, "model", "openai/bard").await;
    fill(&browser, "instructions|system prompt", "Rhyme all that you say.").await;
    browser.click(".setup-form button[type=submit]").await;
    browser.shows("[data-agent=poet]", "version 1").await;
    press_button(&browser, "[data-agent=poet]", "Edit").await;
    fill(&browser, "instructions|system prompt", "Never rhyme.").await;
    browser.click(".setup-form button[type=submit]").await;
    browser.shows("[data-agent=poet]", "version 2").await;
    let agent = server.get_json("/agents/poet").await;
    assert_eq!(
        (&agent["profile"]["model"], &agent["profile"]["system_prompt"]),
        (&json!("openai/bard"), &json!("Never rhyme.")),
        "{agent}"
    );

    // The agent of a conversation is chosen beside the message.
    let asked = |id: &str| model.exchanges(id).pop().unwrap().request;
    browser.show("#/").await;
    browser.click("#agent").await;
    let is_listed = "return [...document.querySelectorAll('.picker .option-name')].some((name) => name.innerText === 'poet')";
    browser.until("the agent in the list", is_listed).await;
    browser.write("#agent-search", &format!("poet{ENTER}")).await;
    browser.shows("#agent", "poet").await;
    browser.write("#message", &format!("[[id:second]][[say:plain]]{ENTER}")).await;
    browser.shows(".message.assistant .text", "plain").await;
    let request = asked("second");
    assert_eq!(request["model"], "bard");
    assert!(request["messages"][0].to_string().contains("Never rhyme."), "{request}");
    let conversation = browser.run("return location.hash.slice(2)", &[]).await;
    let path = format!("/conversations/{}", conversation.as_str().unwrap());
    assert!(server.get_json(&path).await["agent"].as_str().unwrap().starts_with("poet"));

    browser.show("#/setup/agents").await;
    browser.click("[data-agent=poet] summary").await;
    press_button(&browser, "[data-agent=poet] .versions > li:last-child", "Roll back to it").await;
    browser.shows("[data-agent=poet]", "version 3").await;
    browser.show(&format!("#/{}", conversation.as_str().unwrap())).await;
    browser.shows("#agent", "poet").await;
    browser.write("#message", &format!("[[id:third]][[say:in verse]]{ENTER}")).await;
    browser.shows(".run.newest .message.assistant .text", "in verse").await;
    let request = asked("third");
    assert!(request["messages"][0].to_string().contains("Rhyme all that you say."), "{request}");

    // Another agent for the rest of the conversation.
    browser.click("#agent").await;
    browser.until("the list", "return document.querySelector('.picker .option') !== null").await;
    browser.click(".picker .options > :first-child .option").await;
    wait::until("the default agent", PATIENCE, || async {
        let agent = server.get_json(&path).await["agent"].as_str().unwrap_or_default().to_owned();
        agent.starts_with("default").then_some(())
    })
    .await;
    browser.write("#message", &format!("[[id:fourth]][[say:by default]]{ENTER}")).await;
    browser.shows(".run.newest .message.assistant .text", "by default").await;
    assert_eq!(asked("fourth")["model"], "mock");
}

/// Opens the form of an agent with all its groups.
async fn edit_agent(browser: &Browser, name: &str) {
    press_button(browser, &format!("[data-agent={name}]"), "Edit").await;
    open_groups(browser).await;
}

async fn open_groups(browser: &Browser) {
    let open = "const groups = [...document.querySelectorAll('.agent-form .field-group')];
        for (const group of groups) group.open = true;
        return groups.length > 0";
    browser.until("the groups of the form", open).await;
}

/// Returns whether the box is checked that tells an empty value of a field from an inherited one.
async fn inherits_nothing(browser: &Browser, path: &str) -> bool {
    let checked = "return document.querySelector(`[name='nothing:${arguments[0]}']`).checked";
    browser.run(checked, &[path]).await.as_bool().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_form_tells_empty_from_inherited_values() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let profile = async || server.get_json("/agents/bare").await["profile"].to_string();
    // JavaScript would round this number.
    let answers = json!({"name": "count", "schema": {"type": "integer", "maximum": 9_007_199_254_740_993_u64}});
    let stored = json!({"system_prompt": "", "options": {"top_p": 0.5, "temperature": 0.25, "stop": [], "output_schema": answers},
        "builtin_tools": "none", "approval": {"tools": {}}, "sampling": {}});
    let (status, made) = server.post_json("/agents", &json!({"name": "bare", "profile": stored})).await;
    assert_eq!(status, 201, "{made}");
    let browser = looking_at(&server).await;
    browser.show("#/setup/agents").await;

    // All else stays as it is, in its order.
    edit_agent(&browser, "bare").await;
    assert!(inherits_nothing(&browser, "system_prompt").await && inherits_nothing(&browser, "options/stop").await);
    assert!(!inherits_nothing(&browser, "options/seed").await);
    let limit = "return document.querySelector('[name=\"nothing:budget/run_usd\"]').closest('label').innerText";
    assert!(browser.run(limit, &[]).await.as_str().unwrap().starts_with("No limit"));
    browser.write("[name=max_rounds]", "7").await;
    browser.click(".setup-form button[type=submit]").await;
    browser.shows("[data-agent=bare]", "version 2").await;
    let mut expected = stored.clone();
    expected["max_rounds"] = json!(7);
    assert_eq!(profile().await, expected.to_string());

    // An empty value becomes an inherited one, and the other way round.
    edit_agent(&browser, "bare").await;
    browser.click("[name='nothing:system_prompt']").await;
    browser.click("[name='nothing:options/stop']").await;
    browser.click("[name='nothing:options/seed']").await;
    browser.click(".setup-form button[type=submit]").await;
    browser.shows("[data-agent=bare]", "version 3").await;
    let expected = json!({"options": {"top_p": 0.5, "temperature": 0.25, "output_schema": answers, "seed": null},
        "builtin_tools": "none", "approval": {"tools": {}}, "sampling": {}, "max_rounds": 7});
    assert_eq!(profile().await, expected.to_string());
    let usual = server.get_json("/agents/default").await;
    assert_eq!(server.get_json("/agents/bare").await["effective"]["system_prompt"], usual["effective"]["system_prompt"]);
    edit_agent(&browser, "bare").await;
    assert!(!inherits_nothing(&browser, "system_prompt").await && inherits_nothing(&browser, "options/seed").await);

    // A text replaces the choice.
    browser.click("[name='nothing:system_prompt']").await;
    browser.write("[name=system_prompt]", "Rhyme.").await;
    assert!(!inherits_nothing(&browser, "system_prompt").await);
    browser.click(".setup-form button[type=submit]").await;
    browser.shows("[data-agent=bare]", "version 4").await;
    assert_eq!(server.get_json("/agents/bare").await["profile"]["system_prompt"], "Rhyme.");

    // A version that was saved meanwhile is not replaced.
    edit_agent(&browser, "bare").await;
    let other = json!({"profile": {"max_rounds": 9}});
    let saved = server.request(Method::PATCH, "/agents/bare").json(&other).send().await.unwrap();
    assert_eq!(saved.status(), 200);
    browser.write("[name=max_rounds]", "8").await;
    browser.click(".setup-form button[type=submit]").await;
    browser.shows(".setup-form > .trouble", "The agent was changed meanwhile.").await;
    assert_eq!(profile().await, other["profile"].to_string());
    browser.shows("[data-agent=bare]", "version 5").await;
    press_button(&browser, "[data-agent=bare]", "Edit").await;
    browser.until("the other version", "return document.querySelector('[name=max_rounds]').value === '9'").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_form_offers_members_what_the_server_accepts() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Sqlite, &model).await;
    let site = site.env("CAPSTAN_AGENT__NAME", "house").env("CAPSTAN_AGENT__OPTIONS__MAX_OUTPUT_TOKENS", "3000");
    let member = site.key_of("ann").await;
    let mut server = site.start().await;
    server.set_key(&member);
    // An agent of the member may have the usual name of the settings' agent.
    let (status, made) = server.post_json("/agents", &json!({"name": "default", "profile": {"max_rounds": 3}})).await;
    assert_eq!(status, 201, "{made}");
    let browser = looking_at(&server).await;
    browser.write("#key-dialog[open] #key", &format!("{member}{ENTER}")).await;
    browser.shows("#user", "ann").await;
    browser.show("#/setup/agents").await;
    press_button(&browser, ".setup-head", "Make an agent").await;
    open_groups(&browser).await;
    let usual = server.get_json("/agents/house").await["effective"]["max_rounds"].to_string();
    let inherited = format!("return document.querySelector('[name=max_rounds]').placeholder === {}", json!(usual));
    browser.until("the values of the settings' agent", &inherited).await;
    let values = |css: &str| format!("[...document.querySelector({}).options].map(({{ value }}) => value).join()", json!(css));
    let choices = format!("return {} === ',tell_model,ask,fail'", values("[name=on_unknown]"));
    browser.until("the choices of a member", &choices).await;
    // The agent of the settings limits answers, but not the costs of a day.
    let boxes = ["options/max_output_tokens", "budget/day/usd"].map(|path| format!("[name='nothing:{path}']"));
    assert_eq!((browser.count(&boxes[0]).await, browser.count(&boxes[1]).await), (0, 1));
    let rule = "[aria-label='Permission of ledger__lookup']";
    browser.until("the tools", &format!("return document.querySelector({}) !== null", json!(rule))).await;
    assert_eq!(browser.run(&format!("return {}", values(rule)), &[]).await, ",always_ask");
    let choose = "const select = document.querySelector(arguments[0]);
        select.value = 'always_ask';
        select.dispatchEvent(new Event('change', { bubbles: true }))";
    browser.run(choose, &[rule]).await;

    // The server alone knows its limits. Its refusal stands at the field.
    browser.write("[name=name]", "careful").await;
    browser.write("[name=max_rounds]", "1000").await;
    browser.click(".setup-form button[type=submit]").await;
    browser.shows("[data-field=max_rounds] .trouble", "only an administrator can exceed the limit").await;
    browser.write("[name=max_rounds]", "5").await;
    browser.click(".setup-form button[type=submit]").await;
    browser.shows("[data-agent=careful]", "yours").await;
    let made = server.get_json("/agents/careful").await;
    assert_eq!(made["profile"], json!({"max_rounds": 5, "approval": {"tools": {"ledger__lookup": "always_ask"}}}));

    // A new conversation has the agent of the settings, under its name.
    browser.show("#/").await;
    browser.shows("#agent", "house").await;
    browser.write("#message", &format!("[[id:house]][[say:at home]]{ENTER}")).await;
    browser.shows(".message.assistant .text", "at home").await;
    browser.shows("#agent", "house").await;
}
