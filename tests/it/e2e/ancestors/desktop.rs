//! The desktop agent, along its sequence diagram: seven screenshots are read and renamed through MCP servers. The model stops
//! early, deflects, falls silent, and exceeds its context window.

use rstest::rstest;
use serde_json::{Map, Value, json};

use super::{asked, decide, run_of, said, site_of_a_stranger};
use support::audit;
use support::database::Kind;
use support::desktop::{Desktop, like_desktop};
use support::model::{Exchange, ModelMock};
use support::server::{Server, Site};

const ASKED: &str = "Review screenshots on Desktop, extract names, and rename them.";
const TIRED: &str = "I've renamed 3 files. There are 4 remaining.";
const LAST_WORDS: &str = "No model can answer at the moment. Please try again later.";
const DONE: &str = "All screenshots have been renamed successfully.";

/// Returns the input text with the scripted answers, round by round.
fn script(id: &str, rounds: &[String]) -> String {
    format!("{ASKED} [[id:{id}]]{}", rounds.join("[[next]]"))
}

fn call(call: &str) -> String {
    format!("[[call:{call}]]")
}

fn say(words: &str) -> String {
    format!("[[say:{words}]]")
}

/// Returns two rounds for each of these screenshots: read it, then rename it.
fn renamed(desktop: &Desktop, numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
    numbers.into_iter().flat_map(|n| [call(&desktop.reading(n)), call(&desktop.renaming(n))]).collect()
}

/// Makes the agent allow seventeen model calls, as in the diagram. The final program had ten, and so has the preset.
async fn seventeen_rounds(server: &Server) {
    like_desktop(server, "desk", json!({"max_rounds": 17})).await;
}

async fn run_in(server: &Server, agent: &str, conversation: &Value, input: &str) -> Value {
    let run = server.start_run(&json!({"input": input, "agent": agent, "conversation_id": conversation})).await;
    server.finished(run["id"].as_str().unwrap()).await
}

async fn events_of(server: &Server, run: &Value) -> Vec<Value> {
    server.run_events_json(run["id"].as_str().unwrap()).await
}

async fn messages_of(server: &Server, run: &Value) -> Vec<Value> {
    server.messages(run["conversation_id"].as_str().unwrap()).await
}

fn sent(seen: &Exchange) -> &[Value] {
    seen.request["messages"].as_array().unwrap()
}

/// Returns the text of the message that is `before_end` messages before the end. Consecutive texts of one role are parts of one
/// message.
fn words(seen: &Exchange, before_end: usize) -> String {
    let messages = sent(seen);
    match &messages[messages.len() - 1 - before_end]["content"] {
        Value::Array(parts) => parts.iter().map(|part| part["text"].as_str().unwrap()).collect::<Vec<_>>().join("\n"),
        content => content.as_str().unwrap().to_owned(),
    }
}

fn system(seen: &Exchange) -> &str {
    sent(seen)[0]["content"].as_str().unwrap()
}

fn tools(seen: &Exchange) -> Vec<&Value> {
    seen.request["tools"].as_array().into_iter().flatten().map(|tool| &tool["function"]).collect()
}

fn sampled(seen: &Exchange) -> (Option<f64>, Option<f64>) {
    (seen.request["temperature"].as_f64(), seen.request["top_p"].as_f64())
}

/// Returns the assistant's texts that a client shows.
fn shown(messages: &[Value]) -> Vec<&str> {
    let shown = messages.iter().filter(|message| message["role"] == "assistant" && message["internal"] != true);
    shown.flat_map(|message| message["parts"].as_array().unwrap()).filter_map(|part| part["text"].as_str()).collect()
}

/// Returns the internal messages that the model gets and clients do not.
fn hints(messages: &[Value]) -> Vec<&str> {
    let hints = messages.iter().filter(|message| message["role"] == "user" && message["internal"] == true);
    hints.map(|message| message["parts"][0]["text"].as_str().unwrap()).collect()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn seven_screenshots_are_renamed_despite_a_model_that_stops(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let (site, desktop) = Desktop::site(kind, &model, Map::new()).await;
    let server = Desktop::start(&site).await;
    seventeen_rounds(&server).await;
    let mut rounds = vec![call(&desktop.listing())];
    rounds.extend(renamed(&desktop, 1..=3));
    rounds.push(say(TIRED));
    rounds.extend(renamed(&desktop, 4..=7));
    rounds.push(say(DONE));
    let run = run_of(&server, "desk", &script("seven", &rounds)).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")), "{run}");
    desktop.assert_renamed(1..=7);

    let (seen, events) = (model.exchanges("seven"), events_of(&server, &run).await);
    let messages = messages_of(&server, &run).await;
    assert_eq!(seen.len(), 17);
    tools_are_measured_and_each_round_has_its_budget(&seen, &events);
    each_call_is_stored_before_it_is_made_and_its_result_before_the_next_round(&seen, &events);
    results_are_cut_and_older_ones_stay(&desktop, &seen, &events);
    results_are_kept_whole(&server, &desktop, &run, &events).await;
    the_tired_model_goes_on(&seen, &events, &messages);
    site.assert_sound(&model).await;
}

/// Asserts phases 1 and 2, and the token budget check before each round.
fn tools_are_measured_and_each_round_has_its_budget(seen: &[Exchange], events: &[Value]) {
    let roles: Vec<&str> = sent(&seen[0]).iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user"]);
    let names = |seen: &Exchange| tools(seen).iter().map(|tool| tool["name"].clone()).collect::<Vec<_>>();
    let offered = names(&seen[0]);
    assert_eq!(offered.len(), 19, "fifteen tools of the two servers and four built-in ones: {offered:?}");
    assert!(seen.iter().all(|seen| names(seen) == offered && seen.request["stream"] == true), "every round offers the same tools");
    assert!(seen.iter().all(|seen| sampled(seen) == (Some(0.1), Some(0.2))), "{:?}", sampled(&seen[0]));

    let budgets = said(events, "context.budget");
    assert_eq!(budgets.len(), seen.len(), "one budget check before each round");
    for budget in &budgets {
        assert_eq!((&budget["unit"], &budget["window"]), (&json!("tokens"), &json!(32_768)));
        assert_eq!(budget["used"].as_i64().unwrap() + budget["remaining"].as_i64().unwrap(), 32_768 - 2_000 - 768);
        assert!(budget["remaining"].as_i64().unwrap() >= 1_500, "{budget}");
    }
    // The token budget counts the definitions by their size. The original program assumed 2,000.
    let bytes = |value: &Value| value.as_str().map_or_else(|| value.to_string().len(), str::len) as f64;
    let of_tool = |tool: &&Value| (bytes(&tool["name"]) + bytes(&tool["description"]) + bytes(&tool["parameters"])) / 2.8;
    let of_tools: f64 = tools(&seen[0]).iter().map(of_tool).sum();
    let of_words = sent(&seen[0]).iter().map(|message| bytes(&message["content"]) / 3.2).sum::<f64>();
    let (used, estimated) = (budgets[0]["used"].as_f64().unwrap(), of_tools + of_words);
    assert!((used - estimated).abs() < used / 20.0, "{used} tokens used, {estimated} expected");
}

/// Asserts phase 3: each round adds a call and a result. A call runs only after it is stored.
fn each_call_is_stored_before_it_is_made_and_its_result_before_the_next_round(seen: &[Exchange], events: &[Value]) {
    let lengths: Vec<usize> = seen.iter().map(|seen| sent(seen).len()).collect();
    let expected: Vec<usize> = (0..17).map(|round| 2 + 2 * round).collect();
    assert_eq!(lengths, expected, "the incomplete answer and its nudge are two more messages");
    let calls = said(events, "tool.started");
    let servers: Vec<&str> = calls.iter().map(|call| call["server"].as_str().unwrap()).collect();
    assert_eq!(servers, [&["filesystem"][..], &["ocr", "filesystem"].repeat(7)].concat());
    for call in calls {
        let id = call["call_id"].as_str().unwrap();
        let at = |kind: &str, holds: &str| {
            events.iter().position(|event| event["type"] == kind && event["data"].to_string().contains(holds)).unwrap()
        };
        let (stored, begun, answered) = (at("message.completed", id), at("tool.started", id), at("tool.completed", id));
        assert!(stored < begun && begun < answered, "{stored} {begun} {answered}");
        assert!(
            events[begun..answered].iter().all(|event| event["type"] != "step.started"),
            "no round begins between a call and its result"
        );
        assert_eq!(events[answered]["data"]["state"], "done", "{}", events[answered]);
    }
}

/// The character limit of a result in a request.
const WHOLE: usize = 6_000;

fn results_are_cut_and_older_ones_stay(desktop: &Desktop, seen: &[Exchange], events: &[Value]) {
    let reads: Vec<&Value> =
        said(events, "tool.completed").into_iter().filter(|call| call["name"] == "ocr__extract_text_from_image").collect();
    for n in 1..=7 {
        let text = desktop.text(n);
        let is_cut = text.len() > WHOLE;
        // The request after the reading round. The model stops early after three screenshots, which costs one more round.
        let after = 2 * n + usize::from(n > 3);
        let read = words(&seen[after], 0);
        assert_eq!(read == text, !is_cut, "{n}: {read}");
        assert_eq!(reads[n - 1]["truncated"], is_cut);
        if is_cut {
            assert!((WHOLE - 10..=WHOLE).contains(&read.chars().count()), "{}", read.chars().count());
            let (head, rest) = read.split_once("\n[cut: the first ").unwrap();
            let (sizes, tail) = rest.split_once(" characters are shown]\n").unwrap();
            assert_eq!(sizes, format!("{} and the last {} of {}", head.len(), tail.len(), text.len()));
            assert!(text.starts_with(head) && text.ends_with(tail));
        }
        // Most of the window is free, so older results stay as they were read first.
        if after + 2 < seen.len() {
            assert_eq!(words(&seen[after + 2], 4), read, "{n}");
        }
    }
}

/// Asserts that truncation applies to requests only: stored results stay whole.
async fn results_are_kept_whole(server: &Server, desktop: &Desktop, run: &Value, events: &[Value]) {
    let of_ocr = |call: &&Value| call["server"] == "ocr";
    let calls: Vec<&Value> = said(events, "tool.completed").into_iter().filter(of_ocr).collect();
    for (call, n) in calls.iter().zip(1..) {
        let (run, call) = (run["id"].as_str().unwrap(), call["call_id"].as_str().unwrap());
        let record = server.get_json(&format!("/runs/{run}/tool-calls/{call}")).await;
        assert_eq!((&record["tool"], &record["state"]), (&json!("extract_text_from_image"), &json!("done")));
        assert_eq!(record["content"][0]["text"], desktop.text(n));
    }
    assert_eq!(calls.len(), 7);
}

/// Asserts round 7: text where a call was expected, and the rounds after it.
fn the_tired_model_goes_on(seen: &[Exchange], events: &[Value], messages: &[Value]) {
    let [.., tired, told] = sent(&seen[8]) else { panic!("{:?}", seen[8].request) };
    assert_eq!((&tired["role"], &tired["content"]), (&json!("assistant"), &json!(TIRED)));
    assert_eq!(told["role"], "user");
    assert!(told["content"].as_str().unwrap().starts_with("You stopped before the task was finished."), "{told}");
    let resets: Vec<&Value> = said(events, "step.reset").into_iter().map(|data| &data["reason"]).collect();
    assert_eq!(resets, ["continuation"], "the incomplete answer is reset once");
    // The user's message, fifteen calls with results, the incomplete answer with its nudge, and the final answer.
    assert_eq!(messages.len(), 1 + 30 + 2 + 1);
    assert_eq!((shown(messages), hints(messages).len()), (vec![DONE], 1));
    let after_reset = events.iter().skip_while(|event| event["type"] != "step.reset");
    let deltas = after_reset.filter(|event| event["type"] == "part.delta").map(|event| event["data"].to_string());
    assert!(deltas.collect::<String>().contains(DONE), "the answer is streamed");
    assert_eq!(events.last().unwrap()["type"], "run.completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_rounds_end_in_a_summary_and_the_next_turn_has_the_rest() {
    let model = ModelMock::start().await;
    let (site, desktop) = Desktop::site(Kind::Sqlite, &model, Map::new()).await;
    let server = Desktop::start(&site).await;
    let far = "I processed 4 of 7 screenshots. Three are still to be renamed.";
    let mut rounds = vec![call(&desktop.listing())];
    rounds.extend(renamed(&desktop, 1..=4));
    rounds.extend([call(&desktop.reading(5)), say(far)]);
    let run = run_of(&server, "desktop", &script("ten", &rounds)).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("max_rounds")), "{run}");
    desktop.assert_renamed(1..=4);
    let seen = model.exchanges("ten");
    let offered: Vec<bool> = seen.iter().map(|seen| !tools(seen).is_empty()).collect();
    assert_eq!(offered, [vec![true; 10], vec![false]].concat());
    assert!(words(&seen[10], 0).starts_with("The limit of rounds is reached"), "{}", words(&seen[10], 0));
    assert_eq!(sampled(&seen[10]), (Some(0.7), Some(0.9)));
    assert_eq!(shown(&messages_of(&server, &run).await), [far]);

    let mut rounds = vec![call(&desktop.renaming(5))];
    rounds.extend(renamed(&desktop, 6..=7));
    rounds.push(say(DONE));
    let run = run_in(&server, "desktop", &run["conversation_id"], &script("rest", &rounds)).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")), "{run}");
    desktop.assert_renamed(1..=7);
    let first = &model.exchanges("rest")[0];
    assert!(!first.request.to_string().contains("The limit of rounds"), "a nudge applies to its own run only");
    assert_eq!(shown(&messages_of(&server, &run).await), [far, DONE]);
    site.assert_sound(&model).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_deflects_is_sent_back_three_times(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let (site, desktop) = Desktop::site(kind, &model, Map::new()).await;
    let server = Desktop::start(&site).await;
    let deflections = ["I can't do that.", "I don't have access to your files.", "Which one shall I rename first?"];
    let last = "I cannot rename the others.";
    let mut rounds = vec![call(&desktop.listing())];
    rounds.extend(renamed(&desktop, 1..=1));
    rounds.extend(deflections.map(say));
    rounds.push(say(last));
    let run = run_of(&server, "desktop", &script("no", &rounds)).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")), "{run}");
    desktop.assert_renamed([1]);

    let seen = model.exchanges("no");
    assert_eq!(seen.len(), 3 + 4);
    for (seen, deflection) in seen[4..].iter().zip(deflections) {
        assert_eq!(words(seen, 1), deflection);
        assert!(
            words(seen, 0).starts_with("Do not ask questions and do not offer help. Go on with the task"),
            "{}",
            words(seen, 0)
        );
        assert!(!tools(seen).is_empty());
    }
    let (events, messages) = (events_of(&server, &run).await, messages_of(&server, &run).await);
    assert_eq!(said(&events, "step.reset").iter().filter(|data| data["reason"] == "continuation").count(), 3);
    assert_eq!((shown(&messages), hints(&messages).len()), (vec![last], 3), "the fourth answer is accepted");

    let run = run_in(&server, "desktop", &run["conversation_id"], "Never mind. [[id:mind]][[say:Fine.]]").await;
    assert_eq!(run["status"], "completed", "{run}");
    let next = model.exchanges("mind").remove(0);
    let said: Vec<&str> = sent(&next)[2..].iter().filter_map(|message| message["content"].as_str()).collect();
    assert!(!said.iter().any(|said| deflections.contains(said) || said.starts_with("Do not ask")), "{said:?}");
    assert_eq!(words(&next, 1), last);
    site.assert_sound(&model).await;
}

/// The diagram makes no difference between the first answer and later ones, nor by the number of calls.
#[tokio::test(flavor = "multi_thread")]
async fn deflection_before_any_success_is_sent_back() {
    let model = ModelMock::start().await;
    let (site, desktop) = Desktop::site(Kind::Sqlite, &model, Map::new()).await;
    let server = Desktop::start(&site).await;
    let mut rounds = vec![say("I can't do that.")];
    rounds.extend(renamed(&desktop, 1..=3));
    rounds.extend([say("Shall I go on?"), say(DONE)]);
    let run = run_of(&server, "desktop", &script("first", &rounds)).await;
    assert_eq!(run["status"], "completed", "{run}");
    desktop.assert_renamed(1..=3);
    let messages = messages_of(&server, &run).await;
    assert_eq!((shown(&messages), hints(&messages).len()), (vec![DONE], 2));
    model.assert_history_was_sendable();
    audit::assert_sound(&site.database).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_that_grows_keeps_ten_messages_and_a_summary(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let (site, desktop) = Desktop::site(kind, &model, Map::new()).await;
    let server = Desktop::start(&site).await;
    let run = run_of(&server, "desktop", "Good morning. [[id:hello]][[say:Good morning.]]").await;
    let budget = said(&events_of(&server, &run).await, "context.budget")[0].clone();
    // Enough text to leave 7,200 tokens: above the 5,000 at which messages are evicted, until a long result arrives.
    let chars = (budget["remaining"].as_u64().unwrap() - 7_200) * 16 / 5;
    let paste = format!("Names look like this: {} [[id:paste]][[say:I see.]]", "name ".repeat(usize::try_from(chars / 5).unwrap()));
    let conversation = run_of(&server, "desktop", &paste).await["conversation_id"].clone();
    let first = format!("The first, please. [[id:first]]{}[[next]][[say:It is.]]", renamed(&desktop, [1]).join("[[next]]"));
    assert_eq!(run_in(&server, "desktop", &conversation, &first).await["status"], "completed");

    let mut rounds = vec![call(&desktop.listing())];
    rounds.extend(renamed(&desktop, [3, 2]));
    rounds.push(say("The three of them bear their new names."));
    let input = script("grown", &rounds);
    let run = run_in(&server, "desktop", &conversation, &input).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")), "{run}");
    desktop.assert_renamed(1..=3);

    let (seen, events) = (model.exchanges("grown"), events_of(&server, &run).await);
    assert_eq!(seen.len(), 6);
    let compacted = said(&events, "context.compacted");
    let [compacted] = compacted.as_slice() else { panic!("said once: {compacted:?}") };
    let summary = compacted["summary"].as_str().unwrap();
    let summed_up: Vec<bool> = seen.iter().map(|seen| system(seen).ends_with(&format!("\n\n{summary}"))).collect();
    assert_eq!(
        summed_up,
        [false, false, false, false, true, true],
        "compaction starts at the long result, in the middle of the loop"
    );
    // After compaction a request holds the newest ten messages, and a note that there were others.
    assert_eq!((sent(&seen[3]).len(), sent(&seen[4]).len(), sent(&seen[5]).len()), (1 + 9 + 6, 1 + 1 + 10, 1 + 1 + 12));
    assert_eq!((&compacted["messages"], &sent(&seen[4])[3]["content"]), (&json!(9 + 8 - 10), &json!(input)));
    assert!(
        words(&seen[4], 0).starts_with("Quarterly Report")
            && !sent(&seen[4])[1..].iter().any(|message| message.to_string().contains("name name"))
    );
    for line in [
        "\nuser: Names look like this: name",
        "\nassistant: I see.",
        "\nuser: The first, please.",
        "\nassistant:  (called ocr__extract_text_from_image)\ntool ocr__extract_text_from_image: Meeting Notes",
        "\ntool filesystem__move_file: Successfully moved",
    ] {
        assert!(summary.contains(line), "{summary}");
    }
    let files = summary.split_once("\nFiles that they were about: ").unwrap().1;
    assert!(files.contains(desktop.renamed(1).to_str().unwrap()), "{files}");
    let remaining = |at: usize| said(&events, "context.budget")[at]["remaining"].as_i64().unwrap();
    assert!(remaining(3) >= 5_000 && remaining(4) > remaining(3) + 5_000, "{} {}", remaining(3), remaining(4));
    // Stored messages stay whole, and the next run starts from the summary.
    assert_eq!(messages_of(&server, &run).await.len(), 2 + 6 + 1 + 10 + 1);
    assert_eq!(run_in(&server, "desktop", &conversation, "Thanks. [[id:later]][[say:Gladly.]]").await["status"], "completed");
    assert!(system(&model.exchanges("later")[0]).ends_with(summary));
    site.assert_sound(&model).await;
}

/// The model's window is smaller than the agent's setting, and the message is longer than both.
#[tokio::test(flavor = "multi_thread")]
async fn request_is_cut_for_a_smaller_context_window() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    for (agent, window) in [("default", 8_192), ("desktop", 8_192), ("react", (8_192 - 2_768) * 14 / 5)] {
        let input = format!("[[id:{agent}]][[say:I have read it.]] {}", "word ".repeat(11_000));
        let run = server.start_run(&json!({"input": input, "agent": agent, "model": "openai/gpt-4-0613"})).await;
        let run = server.finished(run["id"].as_str().unwrap()).await;
        assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")), "{run}");
        assert_eq!(said(&events_of(&server, &run).await, "context.budget")[0]["window"], window, "{agent}");
        let [seen] = &model.exchanges(agent)[..] else { panic!("{agent}: one request") };
        let read = seen.request.to_string().matches("word").count();
        assert!((1_000..8_192 - 2_768).contains(&read), "{agent}: {read}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_room_for_a_round_the_call_is_the_last_one() {
    let model = ModelMock::start().await;
    let (site, _desktop) = Desktop::site(Kind::Sqlite, &model, Map::new()).await;
    let server = Desktop::start(&site).await;
    let run = run_of(&server, "desktop", "Good morning. [[id:wide]][[say:Good morning.]]").await;
    let used = said(&events_of(&server, &run).await, "context.budget")[0]["used"].as_u64().unwrap();
    // Instructions and tools leave 1,400 tokens beside the reserve, and a round needs 1,500.
    like_desktop(&server, "narrow", json!({"context": {"limit": used + 2_768 + 1_400}})).await;
    let run = run_of(&server, "narrow", "Good morning. [[id:narrow]][[say:There is no room.]]").await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("budget")), "{run}");
    let seen = model.exchanges("narrow");
    assert_eq!((seen.len(), tools(&model.exchanges("wide")[0]).len(), tools(&seen[0]).len()), (1, 19, 0));
    assert!(words(&seen[0], 0).contains("There is no room left for more tool calls"), "{}", words(&seen[0], 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_falls_silent_is_made_to_sum_up() {
    let model = ModelMock::start().await;
    let (site, desktop) = Desktop::site(Kind::Sqlite, &model, Map::new()).await;
    let server = Desktop::start(&site).await;
    seventeen_rounds(&server).await;
    let far = "I processed 5 of 7 screenshots.";
    let mut rounds = vec![call(&desktop.listing())];
    rounds.extend(renamed(&desktop, 1..=5));
    rounds.push(format!("[[mute:2]]{}", say(far)));
    let run = run_of(&server, "desk", &script("mute", &rounds)).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")), "{run}");
    desktop.assert_renamed(1..=5);

    let seen = model.exchanges("mute");
    let offered: Vec<bool> = seen.iter().map(|seen| !tools(seen).is_empty()).collect();
    assert_eq!(offered, [vec![true; 13], vec![false]].concat(), "asked once more, then without tools");
    assert!(words(&seen[12], 0).starts_with("Your last answer was empty."), "{}", words(&seen[12], 0));
    assert!(words(&seen[13], 0).contains("Your last answers were empty."), "{}", words(&seen[13], 0));
    let (events, messages) = (events_of(&server, &run).await, messages_of(&server, &run).await);
    assert_eq!((shown(&messages), hints(&messages).len()), (vec![far], 2));
    assert!(said(&events, "part.delta").iter().any(|data| data.to_string().contains(far)), "it is streamed");

    // A model that stays silent on the forced answer, too.
    let run = run_of(&server, "desk", &script("dumb", &["[[mute:9]]".to_owned()])).await;
    assert_eq!((&run["status"], &run["error"]["code"]), (&json!("completed"), &json!("provider_empty_response")), "{run}");
    assert_eq!((model.exchanges("dumb").len(), shown(&messages_of(&server, &run).await)), (3, vec![LAST_WORDS]));
    site.assert_sound(&model).await;
}

/// A provider that answers 500 to its model's malformed output, or 429, may succeed on the next attempt.
#[tokio::test(flavor = "multi_thread")]
async fn the_only_model_gets_a_second_try() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    for status in [500, 429] {
        let id = format!("again{status}");
        let run = run_of(&server, "desktop", &format!("Hello. [[id:{id}]][[flaky:1,{status}]][[say:Here I am.]]")).await;
        assert_eq!((&run["status"], &run["error"]), (&json!("completed"), &Value::Null), "{run}");
        assert_eq!(shown(&messages_of(&server, &run).await), ["Here I am."]);
        assert_eq!(model.exchanges(&id).len(), 2);
    }
    let run = run_of(&server, "desktop", "Hello. [[id:ill]][[status:500]]").await;
    assert_eq!((model.exchanges("ill").len(), shown(&messages_of(&server, &run).await)), (2, vec![LAST_WORDS]));
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_models_fall_back_and_then_a_fixed_text_ends_the_run() {
    let model = ModelMock::start().await;
    let (site, desktop) = Desktop::site(Kind::Sqlite, &model, Map::new()).await;
    let server = Desktop::start(&site).await;
    like_desktop(&server, "safe", json!({"fallbacks": ["openai/spare"]})).await;
    let rounds = [
        call(&desktop.listing()),
        format!("[[flaky:1,500]]{}", call(&desktop.reading(1))),
        call(&desktop.renaming(1)),
        "[[status:500]]".to_owned(),
    ];
    let run = run_of(&server, "safe", &script("ill", &rounds)).await;
    assert_eq!((&run["status"], &run["error"]["code"]), (&json!("completed"), &json!("provider_unavailable")), "{run}");
    desktop.assert_renamed([1]);
    let seen = model.exchanges("ill");
    let asked: Vec<&str> = seen.iter().map(|seen| seen.request["model"].as_str().unwrap()).collect();
    let expected = ["mock", "mock", "spare", "spare", "spare", "spare"];
    assert_eq!(asked, expected, "only the last model of the chain is retried");
    let messages = messages_of(&server, &run).await;
    assert_eq!(shown(&messages), [LAST_WORDS]);
    site.assert_sound(&model).await;
}

/// "On all models fail: static fallback text", for every kind of failure.
#[tokio::test(flavor = "multi_thread")]
async fn refused_request_ends_with_the_fixed_text_too() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    for status in [400, 404, 422] {
        let run = run_of(&server, "desktop", &format!("Hello. [[id:no{status}]][[status:{status}]]")).await;
        assert_eq!((&run["status"], &run["error"]["code"]), (&json!("completed"), &json!("provider_invalid_request")), "{run}");
        assert_eq!(shown(&messages_of(&server, &run).await), [LAST_WORDS]);
    }
}

/// Round 0 of the diagram: a built-in tool runs in-process, beside the tools of MCP servers.
#[tokio::test(flavor = "multi_thread")]
async fn the_folder_is_listed_in_process() {
    let model = ModelMock::start().await;
    let (site, desktop) = Desktop::site(Kind::Sqlite, &model, Map::new()).await;
    let folder = desktop.old(1).parent().unwrap().display().to_string();
    let site = site.env("CAPSTAN_TOOLS__FILES_ROOT", &folder);
    let server = Desktop::start(&site).await;
    let line = |n: usize| {
        let file = desktop.old(n);
        format!("{} ({} bytes)", file.file_name().unwrap().to_str().unwrap(), std::fs::metadata(&file).unwrap().len())
    };
    let listing: Vec<String> = (1..=7).map(line).collect();
    let mut rounds = vec![call(r#"list_directory {"path":"."}"#)];
    rounds.extend(renamed(&desktop, 1..=1));
    rounds.push(say(DONE));
    let run = run_of(&server, "desktop", &script("own", &rounds)).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")), "{run}");
    desktop.assert_renamed([1]);

    let (seen, events) = (model.exchanges("own"), events_of(&server, &run).await);
    let offered: Vec<Value> = tools(&seen[0]).into_iter().map(|tool| tool["name"].clone()).collect();
    for name in ["list_directory", "filesystem__list_directory"] {
        assert!(offered.contains(&json!(name)), "{name} is not among {offered:?}");
    }
    assert_eq!(words(&seen[1], 0), listing.join("\n"));
    let calls = said(&events, "tool.started");
    let servers: Vec<Value> = calls.iter().map(|call| call["server"].clone()).collect();
    assert_eq!(servers, [Value::Null, json!("ocr"), json!("filesystem")], "the built-in call has no server: {calls:?}");
    let completed = said(&events, "tool.completed")[0];
    assert_eq!((&completed["name"], &completed["state"]), (&json!("list_directory"), &json!("done")), "{completed}");
    site.assert_sound(&model).await;
}

/// The server is untrusted: its tools ask once for each conversation, and each time if they are destructive.
#[tokio::test(flavor = "multi_thread")]
async fn untrusted_tool_gets_a_grant_and_destructive_call_asks_again() {
    let (model, site, server) = Site::serve(async |model| site_of_a_stranger(model).await).await;
    let writing = |text: &str| call(&format!(r#"ledger__append {{"text":"{text}"}}"#));
    let destroying = |text: &str| call(&format!(r#"ledger__destroy {{"text":"{text}"}}"#));
    let rounds = [writing("one"), writing("two"), destroying("old"), destroying("older"), say(DONE)];
    let run = server.start_run(&json!({"input": script("asks", &rounds), "agent": "desktop"})).await;
    let id = run["id"].as_str().unwrap();
    let first = asked(&server, id).await;
    assert_eq!((&first["tool"], &first["arguments"]["text"]), (&json!("append"), &json!("one")), "{first}");
    let scopes = json!(["once", "conversation", "always"]);
    assert_eq!((&first["destructive"], &first["scopes"]), (&json!(false), &scopes), "{first}");
    assert_eq!(site.ledger.entries().len(), 0, "no call runs before the approval");
    decide(&server, &first, &json!({"decision": "allow", "scope": "conversation"})).await;
    for text in ["old", "older"] {
        let each = asked(&server, id).await;
        assert_eq!((&each["tool"], &each["arguments"]["text"]), (&json!("destroy"), &json!(text)), "{each}");
        assert_eq!((&each["destructive"], &each["scopes"]), (&json!(true), &json!(["once"])), "{each}");
        let path = format!("/approvals/{}", each["id"].as_str().unwrap());
        for scope in ["conversation", "always"] {
            let (status, refused) = server.post_json(&path, &json!({"decision": "allow", "scope": scope})).await;
            assert_eq!((status.as_u16(), &refused["errors"][0]["pointer"]), (400, &json!("/scope")), "{refused}");
        }
        assert_eq!(site.ledger.count("destroy", text), 0);
        decide(&server, &each, &json!({"decision": "allow"})).await;
    }
    let run = server.finished(id).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")), "{run}");
    let made = |entry: support::ledger::Entry| format!("{} {}", entry.tool, entry.arguments["text"].as_str().unwrap());
    let made: Vec<String> = site.ledger.entries().into_iter().map(made).collect();
    assert_eq!(made, ["append one", "append two", "destroy old", "destroy older"]);
    assert_eq!(said(&events_of(&server, &run).await, "approval.requested").len(), 3, "no question for the second line");

    // The approval holds for the next run of this conversation, and for no other conversation.
    let next = run_in(&server, "desktop", &run["conversation_id"], &script("next", &[writing("three"), say(DONE)])).await;
    assert_eq!((&next["status"], site.ledger.count("append", "three")), (&json!("completed"), 1), "{next}");
    let input = script("other", &[writing("four"), say("I leave it as it is.")]);
    let other = server.start_run(&json!({"input": input, "agent": "desktop"})).await;
    let other = other["id"].as_str().unwrap();
    let approval = asked(&server, other).await;
    decide(&server, &approval, &json!({"decision": "deny", "reason": "enough"})).await;
    let ended = server.finished(other).await;
    assert_eq!((&ended["status"], site.ledger.count("append", "four")), (&json!("completed"), 0), "{ended}");
    // The model gets the denial and goes on.
    let told = words(&model.exchanges("other")[1], 0);
    assert!(told.contains("denied") && told.contains("enough"), "{told}");
    assert_eq!(shown(&messages_of(&server, &ended).await), ["I leave it as it is."]);
    site.assert_sound(&model).await;
}
