//! Model profiles seen through the API: a refused request is repeated in another form, and what was learned survives a restart.

use std::sync::Arc;

use rstest::rstest;
use serde_json::{Value, json};

use support::audit;
use support::database::Kind;
use support::dialects::Dialect;
use support::refusing::{Refusal, RefusingProvider, refuse_everything, refuse_look_around};
use support::server::{Server, Site};

async fn site(kind: Kind, dialect: Dialect, provider: &RefusingProvider) -> Site {
    let mut site = Site::new(kind).await;
    for (name, value) in dialect.environment(&provider.base_url) {
        site = site.env(name, &value);
    }
    let name = dialect.model().split_once('/').unwrap().0.to_owned();
    site.env("CAPSTAN_MODEL", &format!("{name}/acme-1"))
}

async fn hi(server: &Server) -> (Value, Vec<Value>) {
    let body = json!({"input": "Hi", "options": {"temperature": 0.2, "max_output_tokens": 9_000}});
    let run = server.start_run(&body).await;
    let ended = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    assert!(events.iter().all(|event| event["type"] != "run.retrying"), "no retry is counted: {events:?}");
    let adapted = events.into_iter().filter(|event| event["type"] == "model.adapted").map(|event| event["data"].clone());
    (ended, adapted.collect())
}

/// Returns two servers of a hundred tools each. Twenty tools have look-around in their schemas, twenty have names that are refused.
fn two_hundred(site: &Site) -> Value {
    let server = concat!(env!("CARGO_MANIFEST_DIR"), "/mcp/server.py");
    let servers = ["one", "two"].map(|name| {
        let folder = site.folder.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let kind = |at: usize| match at % 10 {
            0 => "strict",
            5 => "bad",
            _ => "good",
        };
        let tools: serde_json::Map<String, Value> =
            (0..100).map(|at| (format!("{}_{at:02}", kind(at)), json!(format!("Does {at}")))).collect();
        let catalogue = folder.join("catalogue.json");
        std::fs::write(&catalogue, Value::Object(tools).to_string()).unwrap();
        let catalogue = format!("catalogue={}", catalogue.display());
        (name.to_owned(), json!({"command": "python3", "args": [server, folder, catalogue], "capstan": {"trusted": true}}))
    });
    json!({"mcpServers": serde_json::Map::from_iter(servers)})
}

fn refuse_odd_tools(dialect: Dialect, _path: &str, body: &Value) -> Option<Refusal> {
    if let Some(refusal) = refuse_look_around(dialect, body) {
        return Some(refusal);
    }
    let names = dialect.offered(body);
    let at = names.iter().position(|name| name.contains("__bad"))?;
    let message = format!("Invalid schema for function '{}'", names[at]);
    Some((400, json!({"error": {"message": message, "param": format!("tools[{at}].function.parameters")}})))
}

// Issue D: with 200 MCP tools of which 40 are refused, the first run completes, and no later run has a refused request.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_tools_with_forty_refused_ones_are_offered() {
    let provider = RefusingProvider::start(Dialect::Openai, Arc::new(refuse_odd_tools)).await;
    let site = Site::new(Kind::Sqlite).await;
    let servers = two_hundred(&site);
    let site = site.mcp(servers).env("CAPSTAN_PROVIDERS__ACME__KIND", "openai").env("CAPSTAN_MODEL", "acme/acme-1");
    let site = site.env("CAPSTAN_PROVIDERS__ACME__BASE_URL", &provider.base_url);
    let mut server = site.start().await;
    let (_, adapted) = hi(&server).await;
    assert_eq!((adapted.len(), provider.refused()), (21, 21), "one for look-around, and one for each refused tool: {adapted:?}");
    server.kill9().await;
    let server = site.start().await;
    let (_, adapted) = hi(&server).await;
    assert_eq!((adapted.len(), provider.refused()), (0, 21));
    let offered = Dialect::Openai.offered(&provider.asked().pop().unwrap().body);
    let of_servers = offered.iter().filter(|name| name.contains("__")).count();
    assert_eq!(of_servers, 180, "{offered:?}");
    let (_, report) = site.doctor().await;
    assert!(report.contains("acme/acme-1: ") && report.contains(" more until "), "{report}");
}

// The first model of the list cannot chat. The next one answers the run, and begins all later ones.
#[tokio::test(flavor = "multi_thread")]
async fn default_model_without_chat_is_replaced_by_the_next() {
    let refuse = |_: Dialect, _: &str, body: &Value| {
        let error = json!({"error": "\"acme-vectors\" does not support chat"});
        (body["model"] == "acme-vectors").then_some((400, error))
    };
    let provider = RefusingProvider::start_with(Dialect::Ollama, Arc::new(refuse), &["acme-vectors", "acme-1"]).await;
    let site = Site::new(Kind::Sqlite).await.env("OLLAMA_HOST", provider.base_url.trim_end_matches("/v1"));
    let mut server = site.start().await;
    let (_, adapted) = hi(&server).await;
    assert_eq!((adapted.len(), &adapted[0]["change"]), (1, &json!("model_replaced:acme-1")), "{adapted:?}");
    let (ended, adapted) = hi(&server).await;
    assert_eq!((&ended["model"], adapted.len()), (&json!("ollama/acme-1"), 0), "{ended}");
    server.kill9().await;
    let server = site.start().await;
    let (ended, _) = hi(&server).await;
    assert_eq!((&ended["model"], provider.refused()), (&json!("ollama/acme-1"), 1), "{ended}");
}

// The limit of a known provider. The tool that the user asks for is offered, and the others are named.
#[tokio::test(flavor = "multi_thread")]
async fn tools_above_the_limit_of_the_provider_are_ranked() {
    let provider = RefusingProvider::start(Dialect::Openai, Arc::new(refuse_above_limit)).await;
    let site = Site::new(Kind::Sqlite).await;
    let servers = two_hundred(&site);
    let mut site = site.mcp(servers);
    for (name, value) in Dialect::Openai.environment(&provider.base_url) {
        site = site.env(name, &value);
    }
    let site = site.env("CAPSTAN_MODEL", "openai/acme-1");
    let server = site.start().await;
    let run = server.start_run(&json!({"input": "Please call two__good_99."})).await;
    let ended = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!((&ended["status"], provider.refused()), (&json!("completed"), 0), "{ended}");
    let offered = Dialect::Openai.offered(&provider.asked()[0].body);
    assert!(offered.len() <= 128 && offered.iter().any(|name| name == "two__good_99"), "{offered:?}");
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    let started = events.iter().find(|event| event["type"] == "step.started").unwrap();
    let tools = &started["data"]["tools"];
    assert_eq!(tools["offered"], json!(offered.len()), "{tools}");
    let left_out = tools["left_out"].as_array().unwrap().len();
    assert_eq!(json!(left_out + offered.len()), tools["of"], "{tools}");
}

fn refuse_above_limit(dialect: Dialect, path: &str, body: &Value) -> Option<Refusal> {
    if dialect.offered(body).len() > 128 { refuse_everything(dialect, path, body) } else { None }
}

// Issue D: a first "Hi" is answered on all five dialects, and no later run has a refused request.
#[rstest]
#[case(Kind::Sqlite, Dialect::Openai)]
#[case(Kind::Postgres, Dialect::Openai)]
#[case(Kind::Sqlite, Dialect::Responses)]
#[case(Kind::Sqlite, Dialect::Anthropic)]
#[case(Kind::Sqlite, Dialect::Gemini)]
#[case(Kind::Sqlite, Dialect::Ollama)]
#[tokio::test(flavor = "multi_thread")]
async fn first_hi_is_answered_by_a_provider_that_refuses_everything(#[case] kind: Kind, #[case] dialect: Dialect) {
    let provider = RefusingProvider::start(dialect, Arc::new(refuse_everything)).await;
    let site = site(kind, dialect, &provider).await;
    let mut server = site.start().await;
    let (_, adapted) = hi(&server).await;
    let refused = provider.refused();
    assert!(refused >= 4 && adapted.len() == refused, "{adapted:?}");
    let changes: Vec<&str> = adapted.iter().map(|event| event["change"].as_str().unwrap()).collect();
    for change in ["tools_left_out", "system_prompt_moved", "streaming_left_out"] {
        assert!(changes.contains(&change), "{changes:?}");
    }
    server.kill9().await;
    let server = site.start().await;
    let (_, adapted) = hi(&server).await;
    assert_eq!((adapted.len(), provider.refused()), (0, refused), "the second run has no refused request");
    let models = server.get_json("/models").await;
    let id = format!("{}/acme-1", dialect.model().split_once('/').unwrap().0);
    let model = models["data"].as_array().unwrap().iter().find(|model| model["id"] == json!(id)).unwrap();
    assert_eq!((&model["abilities"]["tools"], &model["available"]), (&json!(false), &json!(true)), "{model}");
    let learned = model["learned"].as_array().unwrap();
    assert_eq!(learned.len(), changes.len(), "{learned:?}");
    assert!(learned.iter().all(|known| known["until"].as_str().unwrap().ends_with('Z')), "{learned:?}");
    let (_, report) = site.doctor().await;
    let line = report.lines().find(|line| line.contains("acme-1: ")).unwrap_or(&report);
    assert!(line.contains("tools_left_out") && line.contains(" until "), "{report}");
    audit::assert_sound(&site.database).await;
}
