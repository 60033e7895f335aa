//! The desktop agent with two models, along its sequence diagram: a plan, a tool call for each step, and a report. If the plan
//! fails, the single-model loop takes over.

use rstest::rstest;
use serde_json::{Map, Value, json};

use super::{run_of, said};
use support::database::Kind;
use support::desktop::{Desktop, like_desktop};
use support::model::{Exchange, ModelMock};
use support::server::{Server, Site};
use support::vectors::{Mood, VectorsMock};

const TWO_MODELS: &str = r#"{"strategy": "plan_execute", "plan": {"planner": "openai/large", "router": "openai/small"}}"#;

async fn with_two_models(server: &Server, name: &str) {
    like_desktop(server, name, serde_json::from_str(TWO_MODELS).unwrap()).await;
}

/// Returns a step in the planner's format.
fn step(area: &str, words: &str) -> String {
    format!("[step({}, {})] ", json!(area), json!(words))
}

/// Returns two steps for each of these screenshots, numbered from `from`.
fn steps(desktop: &Desktop, numbers: impl IntoIterator<Item = usize>, from: usize) -> String {
    let both = |(n, at): (usize, usize)| {
        let read = step("ocr", &format!("Read the screenshot: use {}", desktop.reading(n)));
        let rename = format!("Name it after what step {} has read: use {}", from + 2 * at, desktop.renaming(n));
        read + &step("filesystem", &rename)
    };
    numbers.into_iter().zip(0..).map(both).collect()
}

/// Returns forty-eight unrelated tools, so that there are sixty-seven in all.
fn fillers() -> (tempfile::TempDir, Map<String, Value>) {
    let folder = tempfile::tempdir().unwrap();
    let tools: Map<String, Value> = (0..48).map(|at| (format!("t{at:02}"), json!(format!("A chore, kind {at}")))).collect();
    let catalogue = folder.path().join("catalogue.json");
    std::fs::write(&catalogue, Value::Object(tools).to_string()).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/mcp/server.py");
    let arguments = json!([script, folder.path(), format!("catalogue={}", catalogue.display())]);
    let server = json!({"command": "python3", "args": arguments, "capstan": {"trusted": true}});
    (folder, Map::from_iter([("chores".to_owned(), server)]))
}

fn with_vectors(site: Site, vectors: &VectorsMock) -> Site {
    site.env("CAPSTAN_PROVIDERS__VECTORS__KIND", "openai")
        .env("CAPSTAN_PROVIDERS__VECTORS__BASE_URL", &vectors.base_url)
        .env("CAPSTAN_EMBEDDINGS__MODEL", "vectors/small")
        .env("CAPSTAN_EMBEDDINGS__TIMEOUT_MS", "20000")
}

fn offered(seen: &Exchange) -> Vec<&str> {
    let tools = seen.request["tools"].as_array().map_or(&[][..], Vec::as_slice);
    tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect()
}

/// Returns the model that a request names, and the text of its last message.
fn asked(seen: &Exchange) -> (&str, &str) {
    let last = seen.request["messages"].as_array().unwrap().last().unwrap();
    (seen.request["model"].as_str().unwrap(), last["content"].as_str().unwrap())
}

fn of_plan(events: &[Value]) -> Vec<&str> {
    events.iter().filter_map(|event| event["type"].as_str()).filter(|kind| kind.starts_with("plan.")).collect()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn plans_rename_the_seven_screenshots(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, vectors) = (ModelMock::start().await, VectorsMock::start().await);
    let (_folder, fillers) = fillers();
    let (site, desktop) = Desktop::site(kind, &model, fillers).await;
    let site = with_vectors(site, &vectors);
    let server = Desktop::start(&site).await;
    with_two_models(&server, "duo").await;
    // A plan has at most ten steps, and a screenshot takes two of them.
    let plan = steps(&desktop, 1..=5, 1);
    let input = format!("Rename the first five screenshots. [[id:five]][[say:{plan}[done()] ]]");
    let run = run_of(&server, "duo", &input).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")), "{run}");
    desktop.assert_renamed(1..=5);

    // The planner gets the descriptions of the tools, but no tools to call.
    let planned = model.exchanges("five").remove(0);
    assert_eq!((planned.request["model"].as_str(), offered(&planned).len()), (Some("large"), 0));
    let system = planned.request["messages"][0]["content"].as_str().unwrap();
    for line in ["\n- ocr (1): extract_text_from_image", "\n- filesystem (14): ", "\n- chores (48): "] {
        assert!(system.contains(line), "{system}");
    }
    // The router gets no history: only its step, the results that the step depends on, and fifteen of sixty-seven tools.
    let routed = model.exchanges(".step");
    assert_eq!(routed.len(), 10);
    for (seen, at) in routed.iter().zip(0..) {
        assert_eq!((asked(seen).0, seen.request["messages"].as_array().unwrap().len()), ("small", 2));
        let tool = if at % 2 == 0 { "ocr__extract_text_from_image" } else { "filesystem__move_file" };
        assert_eq!((offered(seen).len(), offered(seen).contains(&tool)), (15, true), "{:?}", offered(seen));
    }
    let texts: Vec<usize> = vectors.asked().iter().map(|asked| asked.texts.len()).collect();
    assert_eq!(texts, [vec![1 + 67], vec![1; 9]].concat(), "each step is matched by vectors");
    let result_of = |at: usize, step: usize| asked(&routed[at]).1.split_once(&format!("\nResult of step {step}: ")).unwrap().1;
    assert_eq!(result_of(1, 1), format!("ok: {}", desktop.text(1)), "a short result is passed whole");
    let long = result_of(3, 3);
    let long = long.strip_prefix("ok: ").unwrap();
    assert!(long.chars().count() == 150 && desktop.text(2).starts_with(long), "{long}");

    // The planner streams the report.
    let told = model.exchanges("five.told").remove(0);
    assert_eq!((asked(&told).0, offered(&told).len()), ("large", 0));
    assert_eq!((told.request["temperature"].as_f64(), planned.request["temperature"].as_f64()), (Some(0.7), Some(0.1)));
    assert_eq!(asked(&told).1.matches(" - ok: ").count(), 10);
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    let each = ["plan.step_started", "plan.step_completed"].repeat(10);
    assert_eq!(of_plan(&events), [vec!["plan.created"], each].concat());
    assert!(said(&events, "plan.step_completed").iter().all(|data| data["state"] == "done"));
    assert_eq!(said(&events, "tool.started").len(), 10, "each call goes through the tool executor");
    assert!(said(&events, "part.delta").iter().any(|data| data.to_string().contains("told: ok")), "it is streamed");

    // The planner gets the last six messages of the history to plan the remaining two screenshots.
    let plan = steps(&desktop, 6..=7, 1);
    let input = format!("And the others. [[id:two]][[say:{plan}[done()] ]]");
    let body = json!({"input": input, "agent": "duo", "conversation_id": run["conversation_id"]});
    let run = server.start_run(&body).await;
    let run = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!(run["status"], "completed", "{run}");
    desktop.assert_renamed(1..=7);
    let read = model.exchanges("two")[0].request["messages"].as_array().unwrap().len();
    assert!(read <= 1 + 6, "{read}");
    site.assert_sound(&model).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_single_model_takes_over_and_renames_nothing_twice(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, vectors) = (ModelMock::start().await, VectorsMock::start().await);
    let (site, desktop) = Desktop::site(kind, &model, Map::new()).await;
    let site = with_vectors(site, &vectors);
    let server = Desktop::start(&site).await;
    with_two_models(&server, "duo").await;
    let nowhere = desktop.old(1).with_file_name("nowhere.png");
    let plan = [
        steps(&desktop, [1], 1),
        step("ocr", &format!("Read the screenshot: use {}", desktop.reading_of(&nowhere))),
        step("filesystem", &format!("Name it after what step 3 has read: use {}", desktop.renaming(2))),
    ];
    let rest = [desktop.renaming(1), desktop.reading(2), desktop.renaming(2)];
    let rest: String = rest.iter().map(|call| format!("[[call:{call}]][[next]]")).collect();
    // The request of the single model holds three answers of the router.
    let input = format!("Rename two. [[id:left]][[say:{}[done()] ]]{}{rest}[[say:Both are.]]", plan.concat(), "[[next]]".repeat(3));
    let run = run_of(&server, "duo", &input).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")), "{run}");
    desktop.assert_renamed([1, 2]);

    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    let ended: Vec<&Value> = said(&events, "plan.step_completed").into_iter().map(|data| &data["state"]).collect();
    assert_eq!(ended, ["done", "done", "failed", "skipped"]);
    let moved = |n: usize| {
        let of = json!(desktop.old(n));
        said(&events, "tool.started").iter().filter(|data| data["arguments"]["source"] == of).count()
    };
    assert_eq!((moved(1), moved(2)), (1, 1), "a screenshot that the plan renamed is not renamed again");
    let seen = model.exchanges("left");
    let models: Vec<&str> = seen.iter().map(|seen| asked(seen).0).collect();
    assert_eq!(models, ["large", "mock", "mock", "mock", "mock"]);
    assert!(asked(&seen[1]).1.starts_with("The plan for this task was given up."), "{}", asked(&seen[1]).1);
    assert_eq!(offered(&seen[1]).len(), 19);
    let quoted = asked(&seen[2]).1;
    assert!(quoted.starts_with("not carried out again: ") && quoted.contains("Successfully moved"), "{quoted}");
    site.assert_sound(&model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_plan_the_single_model_does_it_all() {
    let model = ModelMock::start().await;
    let (site, desktop) = Desktop::site(Kind::Sqlite, &model, Map::new()).await;
    let server = Desktop::start(&site).await;
    with_two_models(&server, "duo").await;
    // The planner fails on the retry, too. The mock scripts by round, and the planner's round is also the first round of the
    // single model.
    let rounds = [desktop.listing(), desktop.reading(1), desktop.renaming(1)].map(|call| format!("[[call:{call}]][[next]]"));
    let input = format!("Rename one. [[id:ill]][[flaky:2,500]]{}[[say:It is.]]", rounds.concat());
    let run = run_of(&server, "duo", &input).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")), "{run}");
    desktop.assert_renamed([1]);
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    assert_eq!((of_plan(&events), said(&events, "tool.started").len()), (vec!["plan.rejected"], 3));
    let seen = model.exchanges("ill");
    let models: Vec<&str> = seen.iter().map(|seen| asked(seen).0).collect();
    assert_eq!(models, ["large", "large", "mock", "mock", "mock", "mock"]);

    // Seven screenshots need more steps than a plan may have, so none of them is executed.
    let plan = steps(&desktop, 1..=7, 1);
    let run = run_of(&server, "duo", &format!("Rename all. [[id:long]][[say:{plan}[done()] ]]")).await;
    assert_eq!(run["status"], "completed", "{run}");
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    assert_eq!((of_plan(&events), said(&events, "tool.started").len()), (vec!["plan.rejected"], 0));
    let seen = model.exchanges("long");
    assert_eq!(seen.iter().map(|seen| (asked(seen).0, offered(seen).len())).collect::<Vec<_>>(), [("large", 0), ("mock", 19)]);
    desktop.assert_renamed([1]);
    model.assert_history_was_sendable();
}

/// The router calls no tool for any step, on each attempt.
#[tokio::test(flavor = "multi_thread")]
async fn where_no_tool_is_called_the_single_model_takes_over() {
    let (model, vectors) = (ModelMock::start().await, VectorsMock::start().await);
    let (site, desktop) = Desktop::site(Kind::Sqlite, &model, Map::new()).await;
    let site = with_vectors(site, &vectors);
    let server = Desktop::start(&site).await;
    with_two_models(&server, "duo").await;
    let plan = step("ocr", "Read the first screenshot") + &step("filesystem", "Name it");
    let run = run_of(&server, "duo", &format!("Rename one. [[id:none]][[say:{plan}[done()] ]]")).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")), "{run}");
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    let ended: Vec<&Value> = said(&events, "plan.step_completed").into_iter().map(|data| &data["state"]).collect();
    assert_eq!(ended, ["failed", "failed"]);
    assert_eq!(said(&events, "tool.started").len(), 0);
    assert_eq!(model.exchanges(".step").len(), 2 * 3);
    let seen = model.exchanges("none");
    assert_eq!(seen.iter().map(|seen| (asked(seen).0, offered(seen).len())).collect::<Vec<_>>(), [("large", 0), ("mock", 19)]);
    assert!(model.exchanges("none.told").is_empty(), "there is nothing to report");
    desktop.assert_renamed([]);
    model.assert_history_was_sendable();
}

/// The tools have no vector index, or the index fails.
#[rstest]
#[case::not_configured(None)]
#[case::ill(Some(Mood::Ill))]
#[tokio::test(flavor = "multi_thread")]
async fn without_vectors_the_single_model_takes_over(#[case] mood: Option<Mood>) {
    let (model, vectors) = (ModelMock::start().await, VectorsMock::start().await);
    let (mut site, desktop) = Desktop::site(Kind::Sqlite, &model, Map::new()).await;
    if let Some(mood) = mood {
        vectors.feel(mood);
        site = with_vectors(site, &vectors);
    }
    let server = Desktop::start(&site).await;
    with_two_models(&server, "duo").await;
    let plan = steps(&desktop, [1], 1);
    let run = run_of(&server, "duo", &format!("Rename one. [[id:lost]][[say:{plan}[done()] ]]")).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")), "{run}");
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    let ended: Vec<&Value> = said(&events, "plan.step_completed").into_iter().map(|data| &data["state"]).collect();
    assert_eq!(ended, ["skipped", "skipped"]);
    assert!(model.exchanges(".step").is_empty(), "the router is not asked");
    assert_eq!(mood.is_some(), !vectors.asked().is_empty());
    let seen = model.exchanges("lost");
    assert_eq!(seen.iter().map(|seen| (asked(seen).0, offered(seen).len())).collect::<Vec<_>>(), [("large", 0), ("mock", 19)]);
    desktop.assert_renamed([]);
    model.assert_history_was_sendable();
}
