//! Provider faults seen through the API: the rows of the fault catalogue that need the whole server.

use std::time::{Duration, Instant};

use capstan::support::clock::{Clock as _, SystemClock};
use rstest::rstest;
use serde_json::{Value, json};

use support::audit;
use support::database::Kind;
use support::dialects::{Dialect, Says};
use support::server::{Server, Site};
use support::sse::{Frame, kinds};
use support::wait;
use support::wire::{Answer, Step, Wire};

const PATIENCE: Duration = Duration::from_secs(30);

async fn site(kind: Kind, dialect: Dialect, wire: &Wire) -> Site {
    let mut site = Site::new(kind).await.env("CAPSTAN_MODEL", dialect.model());
    for (name, value) in dialect.environment(&wire.base_url) {
        site = site.env(name, &value);
    }
    let ledger = site.ledger.mcp_config();
    site.env("CAPSTAN_AGENT__LLM_RETRY__DELAYS_MS", "[50, 50]").mcp(ledger)
}

fn text(dialect: Dialect, text: &str) -> Answer {
    dialect.answer(Says { text, ..Says::default() })
}

/// Returns the start of an Anthropic answer with this text, without its end.
fn begun(words: &str) -> Vec<u8> {
    let body = Dialect::Anthropic.body(Says { text: words, ..Says::default() });
    let end = body.find("event: content_block_stop").unwrap();
    body.as_bytes()[..end].to_vec()
}

/// Streams a run to its end.
async fn streamed(server: &Server, input: &str) -> (Value, Vec<Frame>) {
    let frames = server.stream_run(&json!({ "input": input })).await.all().await;
    let run = frames[0].json()["run_id"].as_str().unwrap().to_owned();
    (server.finished(&run).await, frames)
}

/// Returns the data of the events of one kind.
fn data(frames: &[Frame], kind: &str) -> Vec<Value> {
    frames.iter().filter(|frame| frame.kind() == kind).map(|frame| frame.json()["data"].clone()).collect()
}

async fn last_text(server: &Server, run: &Value) -> String {
    let messages = server.messages(run["conversation_id"].as_str().unwrap()).await;
    messages.last().unwrap()["parts"].as_array().unwrap().iter().filter_map(|part| part["text"].as_str()).collect()
}

// L-01, L-02, L-03, L-12, L-13: the attempt is repeated, and its partial text is reset.
#[rstest]
#[case::error(Step::Send(b"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n".to_vec()), "provider_overloaded")]
#[case::end(Step::Pause(Duration::ZERO), "provider_incomplete_stream")]
#[case::cut(Step::Cut, "provider_incomplete_stream")]
#[case::silence(Step::Hang, "provider_timeout")]
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_breaks_off(#[case] breaks: Step, #[case] code: &str, #[values(false, true)] has_shown: bool) {
    let is_cut = matches!(breaks, Step::Cut);
    // Only the silent case waits for the idle timeout. The others must end long before it, on a busy machine, too.
    let patience = if matches!(breaks, Step::Hang) { "2000" } else { "20000" };
    let start = if has_shown { vec![Step::Send(begun("Half an")), breaks] } else { vec![breaks] };
    let wire = Wire::play(vec![Answer::events(start), text(Dialect::Anthropic, "A whole answer.")]).await;
    let site = site(Kind::Sqlite, Dialect::Anthropic, &wire).await.env("CAPSTAN_PROVIDERS__ANTHROPIC__IDLE_MS", patience);
    let site = site.env("CAPSTAN_PROVIDERS__ANTHROPIC__FIRST_BYTE_MS", patience);
    let server = site.start().await;
    let (ended, frames) = streamed(&server, "Say it.").await;
    assert_eq!((&ended["status"], wire.asked().len()), (&json!("completed"), 2), "{ended}");
    assert_eq!(last_text(&server, &ended).await, "A whole answer.");
    let retries = data(&frames, "run.retrying");
    assert_eq!(retries.len(), 1);
    // Without a byte of the answer, it is a broken connection.
    let code = if is_cut && !has_shown { "provider_network" } else { code };
    assert_eq!(retries[0]["error"]["code"], code, "{retries:?}");
    let resets = data(&frames, "step.reset");
    assert!(resets.len() == 1 && resets[0]["reason"] == "retry", "{resets:?}");
    // The usage of the broken attempt is charged, as far as it is known.
    let cost = |usage: &Value| usage["cost"]["amount"].as_str().unwrap().parse::<f64>().unwrap();
    let (all, last) = (&ended["usage"], &data(&frames, "step.completed")[0]["usage"]);
    assert_eq!((&all["model_calls"], &last["model_calls"]), (&json!(1 + u32::from(has_shown)), &json!(1)), "{all}");
    assert_eq!((all["estimated"] == true, cost(all) > cost(last)), (has_shown, has_shown), "{all} of {last}");
    // Delta boundaries depend on timing.
    let deltas = data(&frames, "part.delta");
    let shown: String = deltas.iter().filter_map(|delta| delta["delta"].as_str()).collect();
    assert_eq!(shown.starts_with("Half an"), has_shown, "{shown}");
    assert_eq!(wire.asked()[0].json(), wire.asked()[1].json(), "the reset text is not part of the history");
}

// L-13: keep-alive bytes are no progress. L-48: the client's stream reports the error and ends.
#[tokio::test(flavor = "multi_thread")]
async fn signs_of_life_alone_end_in_an_error_that_clients_see() {
    let pings = (0..300).flat_map(|_| {
        [Step::Send(b"event: ping\ndata: {\"type\":\"ping\"}\n\n: x\n\n".to_vec()), Step::Pause(Duration::from_millis(100))]
    });
    let wire = Wire::play(vec![Answer::events(pings.collect())]).await;
    let site = site(Kind::Sqlite, Dialect::Anthropic, &wire).await.env("CAPSTAN_AGENT__LLM_RETRY__DELAYS_MS", "[]");
    let site = site.env("CAPSTAN_PROVIDERS__ANTHROPIC__PROGRESS_MS", "600");
    let server = site.start().await;
    let (ended, frames) = streamed(&server, "Say it.").await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!("provider_timeout")), "{ended}");
    wire.hung_up(PATIENCE).await;
    let kinds = kinds(&frames);
    assert_eq!(kinds[kinds.len() - 2..], ["run.failed", "stream.end"], "{kinds:?}");
    assert_eq!(data(&frames, "run.failed")[0]["error"]["code"], "provider_timeout");
}

// L-14: a model that reasons for a long time has its own limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_first_word_is_waited_for_where_that_is_allowed() {
    let slow = |words: &str| {
        let body = Dialect::Anthropic.body(Says { text: words, ..Says::default() });
        Answer::events(vec![Step::Pause(Duration::from_millis(1_500)), Step::Send(body.into_bytes())])
    };
    let wire = Wire::play(vec![slow("At last.")]).await;
    let site = site(Kind::Sqlite, Dialect::Anthropic, &wire).await.env("CAPSTAN_AGENT__LLM_RETRY__DELAYS_MS", "[]");
    let limits = r#"[{ model = "claude-slow", first_byte_ms = 20000 }]"#;
    let site = site.env("CAPSTAN_PROVIDERS__ANTHROPIC__FIRST_BYTE_MS", "300");
    let site = site.env("CAPSTAN_PROVIDERS__ANTHROPIC__MODEL_LIMITS", limits);
    let server = site.start().await;
    let run = server.start_run(&json!({"input": "x", "model": "anthropic/claude-slow"})).await;
    assert_eq!(server.finished(run["id"].as_str().unwrap()).await["status"], "completed");
    let (ended, _) = streamed(&server, "x").await;
    assert_eq!(ended["error"]["code"], "provider_timeout", "{ended}");
}

// L-15: the connection is refused. Neither the key nor the URL's query appears in the error.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_connection_is_tried_again_and_keeps_secrets() {
    let wire = Wire::play(vec![]).await;
    let nowhere = format!(
        "http://me:canary@127.0.0.1:{}/v1?key=canary",
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    );
    let site = site(Kind::Sqlite, Dialect::Openai, &wire).await.env("OPENAI_BASE_URL", &nowhere);
    let server = site.start().await;
    let (ended, frames) = streamed(&server, "Anybody?").await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!("provider_network")), "{ended}");
    assert_eq!(data(&frames, "run.retrying").len(), 2);
    let shown: String = frames.iter().map(|frame| frame.data.as_str()).collect();
    assert!(!shown.contains("canary") && !ended.to_string().contains("canary"), "{ended}");
    assert!(!server.log_text().contains("canary"));
}

// L-20: in the words of each provider. The request is halved once, and the same request is never sent twice.
#[rstest]
#[case::openai(Dialect::Openai, r#"{"error":{"message":"This model's maximum context length is 8192 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#)]
#[case::responses(Dialect::Responses, r#"{"error":{"message":"Your input exceeds the context window of this model.","type":"invalid_request_error","param":"input","code":"context_length_exceeded"}}"#)]
#[case::anthropic(
    Dialect::Anthropic,
    r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#
)]
#[case::gemini(Dialect::Gemini, r#"[{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}]"#)]
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_too_large_is_halved(#[case] dialect: Dialect, #[case] refusal: &str) {
    let refusal = Answer::json(400, refusal);
    let wire = Wire::play(vec![text(dialect, "I see."), refusal.clone(), text(dialect, "Done."), refusal]).await;
    let site = site(Kind::Sqlite, dialect, &wire).await;
    let server = site.start().await;
    let mut conversation = Value::Null;
    let mut ask = async |input: &str| {
        let run = server.start_run(&json!({"input": input, "conversation_id": conversation})).await;
        let ended = server.finished(run["id"].as_str().unwrap()).await;
        conversation = ended["conversation_id"].clone();
        ended
    };
    let ended = ask(&format!("first {}", "word ".repeat(8_000))).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    let ended = ask(&format!("second {} and then?", "word ".repeat(4_000))).await;
    assert_eq!((&ended["status"], wire.asked().len()), (&json!("completed"), 3), "{ended}");
    let events = server.run_events_json(ended["id"].as_str().unwrap()).await;
    let compacted: Vec<_> =
        events.iter().filter(|event| event["type"] == "context.compacted").map(|event| &event["data"]).collect();
    assert_eq!(compacted, [&json!({"messages": 2, "texts": 0})]);
    assert!(events.iter().all(|event| event["type"] != "run.retrying"), "no retry was made");
    let sizes = |asked: &[support::wire::Asked]| asked.iter().map(|one| one.body.len()).collect::<Vec<_>>();
    let sent = wire.asked();
    let body = String::from_utf8_lossy(&sent[2].body);
    assert!(body.contains("second word") && body.contains("and then?") && !body.contains("first word"));
    assert!(sizes(&sent)[2] < sizes(&sent)[1] / 2, "{:?}", sizes(&sent));
    // Stored messages stay whole. A halved request that is still too large is not sent again.
    let ended = ask("third").await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!("context_overflow")), "{ended}");
    let sent = wire.asked();
    assert!(sent.len() == 5 && String::from_utf8_lossy(&sent[3].body).contains("first word"), "{:?}", sizes(&sent));
    assert!(sizes(&sent)[4] < sizes(&sent)[3] * 2 / 3, "{:?}", sizes(&sent));
}

// L-35: a request that no provider accepts is not sent, and the error says that it is an internal error.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_no_provider_takes_is_not_sent() {
    let arguments = json!({"text": "once"});
    let call = Some(("call_1", "ledger__append_keyed", &arguments));
    let dialect = Dialect::Openai;
    let wire = Wire::play(vec![dialect.answer(Says { call, ..Says::default() }), text(dialect, "Done.")]).await;
    let site = site(Kind::Sqlite, dialect, &wire).await.env("CAPSTAN_PLANTED", "results-lost");
    let server = site.start().await;
    let (ended, _) = streamed(&server, "Go.").await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!("internal_error")), "{ended}");
    assert_eq!(wire.asked().len(), 1);
    assert!(server.log_text().contains("the calls of message 1 are not answered"), "{}", server.log_text());
    audit::assert_sound(&site.database).await;
}

// L-30: an empty answer is no model turn, not even after a tool call. The number of attempts is limited.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_answer_is_asked_for_again(
    #[values(Dialect::Openai, Dialect::Responses, Dialect::Anthropic, Dialect::Gemini, Dialect::Ollama)] dialect: Dialect,
) {
    let arguments = json!({"text": "quiet"});
    let call = Some(("call_1", "ledger__append_keyed", &arguments));
    let empty = dialect.answer(Says::default());
    let answers = vec![dialect.answer(Says { call, ..Says::default() }), empty.clone(), text(dialect, "Here."), empty];
    let wire = Wire::play(answers).await;
    let site = site(Kind::Sqlite, dialect, &wire).await;
    let server = site.start().await;
    let (ended, _) = streamed(&server, "Do it.").await;
    assert_eq!((&ended["status"], wire.asked().len()), (&json!("completed"), 3), "{ended}");
    assert_eq!(last_text(&server, &ended).await, "Here.");
    let (ended, _) = streamed(&server, "Now speak.").await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!("provider_empty_response")), "{ended}");
    assert_eq!(wire.asked().len(), 6);
    assert!(dialect.offered(&wire.asked()[5].json()).is_empty(), "the last request offers no tools");
}

// L-22: announced calls that are missing are no model turn either, with either finish reason.
#[rstest]
#[case::chat(Dialect::Openai, "\"stop\"", "\"tool_calls\"", "")]
#[case::chat_with_words(Dialect::Openai, "\"stop\"", "\"tool_calls\"", "I will look.")]
#[case::anthropic(Dialect::Anthropic, "end_turn", "tool_use", "")]
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_only_announced_are_asked_for_again(
    #[case] dialect: Dialect,
    #[case] over: &str,
    #[case] announced: &str,
    #[case] words: &str,
) {
    let body = dialect.body(Says { text: words, ..Says::default() });
    let hollow = body.replace(over, announced);
    assert_ne!(hollow, body);
    let answers = vec![Answer::stream(&hollow), text(dialect, "Here."), Answer::stream(&hollow)];
    let wire = Wire::play(answers).await;
    let site = site(Kind::Sqlite, dialect, &wire).await;
    let server = site.start().await;
    let (ended, _) = streamed(&server, "Do it.").await;
    assert_eq!((&ended["status"], wire.asked().len()), (&json!("completed"), 2), "{ended}");
    assert_eq!(last_text(&server, &ended).await, "Here.");
    let (ended, _) = streamed(&server, "Again.").await;
    let asked = wire.asked();
    assert_eq!(asked.len(), 5, "twice, and a last time without tools: {ended}");
    assert!(!dialect.offered(&asked[3].json()).is_empty() && dialect.offered(&asked[4].json()).is_empty());
    // The last text counts, if there is any.
    if words.is_empty() {
        assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!("provider_empty_response")), "{ended}");
    } else {
        assert_eq!((&ended["status"], last_text(&server, &ended).await.as_str()), (&json!("completed"), words), "{ended}");
    }
}

// L-31
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_an_answer() {
    let body = Dialect::Anthropic.body(Says { text: "I would rather not.", ..Says::default() }).replace("end_turn", "refusal");
    let wire = Wire::play(vec![Answer::stream(body)]).await;
    let site = site(Kind::Sqlite, Dialect::Anthropic, &wire).await;
    let server = site.start().await;
    let (ended, _) = streamed(&server, "Do harm.").await;
    assert_eq!((&ended["status"], &ended["finish_reason"]), (&json!("completed"), &json!("refused")), "{ended}");
    assert_eq!((last_text(&server, &ended).await.as_str(), wire.asked().len()), ("I would rather not.", 1));
}

// L-40
#[rstest]
#[case(Dialect::Openai, Kind::Postgres)]
#[case(Dialect::Gemini, Kind::Sqlite)]
#[case(Dialect::Anthropic, Kind::Postgres)]
#[case(Dialect::Responses, Kind::Sqlite)]
#[case(Dialect::Ollama, Kind::Sqlite)]
#[tokio::test(flavor = "multi_thread")]
async fn characters_that_no_database_takes(#[case] dialect: Dialect, #[case] kind: Kind) {
    let arguments = json!({"text": "nul:\u{0}."});
    let call = Some(("call_1", "ledger__append_keyed", &arguments));
    let first = Says { text: "A null: \u{0}, and the words \\u0000.", call, ..Says::default() };
    let wire = Wire::play(vec![dialect.answer(first), text(dialect, "Done.")]).await;
    let site = site(kind, dialect, &wire).await;
    let server = site.start().await;
    let (ended, _) = streamed(&server, "Go.").await;
    assert_eq!(ended["status"], "completed", "{ended}");
    let shown = json!(server.messages(ended["conversation_id"].as_str().unwrap()).await).to_string();
    assert!(shown.contains("A null: \u{fffd}, and the words \\\\u0000."), "{shown}");
    assert_eq!(site.ledger.count("append_keyed", "nul:\u{fffd}."), 1, "{:?}", site.ledger.entries());
    assert_eq!(dialect.history(&wire.asked()[1])[0], "call ledger__append_keyed {\"text\":\"nul:\u{fffd}.\"}");
    audit::assert_sound(&site.database).await;
}

// L-44
#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_repeats_itself_is_stopped() {
    let arguments = json!({"text": "again"});
    let call = Some(("call_1", "ledger__append_keyed", &arguments));
    let dialect = Dialect::Gemini;
    let wire = Wire::play(vec![dialect.answer(Says { text: "Once more.", call, ..Says::default() })]).await;
    let site = site(Kind::Sqlite, dialect, &wire).await;
    let server = site.start().await;
    let (ended, frames) = streamed(&server, "Go.").await;
    let asked = wire.asked();
    assert!(asked.len() <= 5, "{} requests: {ended}", asked.len());
    assert_eq!((&ended["status"], &ended["finish_reason"]), (&json!("completed"), &json!("stop")), "{ended}");
    let why = data(&frames, "message.created").into_iter().find(|created| created["message"]["internal"] == true);
    assert!(why.is_some_and(|why| why.to_string().contains("You keep repeating calls")), "the run says why: {frames:?}");
    assert!(dialect.offered(&asked.last().unwrap().json()).is_empty(), "the forced answer offers no tools");
    assert!(site.ledger.count("append_keyed", "again") <= 2, "{:?}", site.ledger.entries());
}

// L-45
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_calls_at_once_are_answered_in_order() {
    let dialect = Dialect::Anthropic;
    let call = |index: usize| {
        let arguments = json!({"text": format!("n{index}")});
        let body =
            dialect.body(Says { call: Some((&format!("toolu_{index}"), "ledger__append_keyed", &arguments)), ..Says::default() });
        let (from, to) = (body.find("event: content_block_start").unwrap(), body.find("event: message_delta").unwrap());
        body[from..to].replace("\"index\":0", &format!("\"index\":{index}"))
    };
    let frame = dialect.body(Says { call: Some(("x", "y", &json!({}))), ..Says::default() });
    let (start, end) = (frame.find("event: content_block_start").unwrap(), frame.find("event: message_delta").unwrap());
    let calls: String = (0..100).map(call).collect();
    let wire = Wire::play(vec![Answer::stream([&frame[..start], &calls, &frame[end..]].concat()), text(dialect, "Done.")]).await;
    let site = site(Kind::Sqlite, dialect, &wire).await;
    let server = site.start().await;
    let (ended, _) = streamed(&server, "Go.").await;
    assert_eq!(ended["status"], "completed", "{ended}");
    let history = dialect.history(&wire.asked()[1]);
    let (results, calls): (Vec<&String>, Vec<&String>) = history.iter().partition(|line| line.starts_with("result "));
    assert_eq!((calls.len(), results.len(), site.ledger.entries().len()), (100, 100, 32));
    for (index, (call, result)) in calls.into_iter().zip(results).enumerate() {
        assert_eq!(*call, format!("call ledger__append_keyed {{\"text\":\"n{index}\"}}"));
        assert_eq!(result.contains("32"), index >= 32, "{index}: {result}");
    }
}

// L-47
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn cancel_hangs_up_on_the_provider(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let wire = Wire::play(vec![Answer::events(vec![Step::Send(begun("Half an answer")), Step::Hang])]).await;
    let site = site(kind, Dialect::Anthropic, &wire).await;
    let server = site.start().await;
    let mut stream = server.stream_run(&json!({"input": "Talk."})).await;
    let run = stream.until_kind("part.delta").await[0].json()["run_id"].as_str().unwrap().to_owned();
    // Both deltas are stored before the cancellation.
    wait::until("all that was said", PATIENCE, || async {
        server.run_events_json(&run).await.iter().any(|event| event.to_string().contains("answer")).then_some(())
    })
    .await;
    let asked = Instant::now();
    let (status, _) = server.post_json(&format!("/runs/{run}/cancel"), &json!({})).await;
    assert!(status.is_success());
    let took = wire.hung_up(PATIENCE).await.duration_since(asked);
    assert!(took < Duration::from_secs(5), "{took:?}");
    let ended = server.finished(&run).await;
    let messages = server.messages(ended["conversation_id"].as_str().unwrap()).await;
    assert_eq!((&ended["status"], &messages.last().unwrap()["status"]), (&json!("cancelled"), &json!("partial")));
    assert_eq!(last_text(&server, &ended).await, "Half an answer");
}

// L-16: the wait that a provider asks for holds no slot and no lease, and survives the server.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_costs_nothing_and_outlives_the_server(
    #[values(Dialect::Anthropic, Dialect::Openai, Dialect::Gemini)] dialect: Dialect,
    #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind,
) {
    let body = r#"{"error":{"message":"slow down","type":"rate_limit_error","status":"RESOURCE_EXHAUSTED"}}"#;
    let headers = [("content-type", "application/json"), ("retry-after", "6")];
    let limited = Answer::new(429, &headers, vec![Step::Send(body.as_bytes().to_vec())]);
    let wire = Wire::play(vec![limited, text(dialect, "Next to it."), text(dialect, "After all.")]).await;
    let site = site(kind, dialect, &wire).await.short_leases().env("CAPSTAN_WORKER__SLOTS", "1");
    let mut server = site.start().await;
    // The wait ends at a time of day, and a correction of the clock moves that against `Instant`.
    let began = SystemClock.now();
    let run = server.start_run(&json!({"input": "First."})).await["id"].as_str().unwrap().to_owned();
    let waiting = wait::until("the wait", PATIENCE, || async {
        Some(server.get_json(&format!("/runs/{run}")).await).filter(|run| run["status"] == "waiting")
    })
    .await;
    assert_eq!(waiting["reason"], "backoff", "{waiting}");
    let leases = site.database.rows(&format!("SELECT run_id FROM run_leases WHERE run_id = '{run}'")).await;
    assert!(leases.is_empty(), "{leases:?}");
    // The only slot is free.
    let other = server.start_run(&json!({"input": "Second."})).await;
    assert_eq!(server.finished(other["id"].as_str().unwrap()).await["status"], "completed");

    server.kill9().await;
    let server = site.start().await;
    let ended = server.finished(&run).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    let now = SystemClock.now();
    assert!(now >= began.after(6_000), "the retry came at {}, and its run began at {}", now.to_rfc3339(), began.to_rfc3339());
    assert_eq!(last_text(&server, &ended).await, "After all.");
    let retries: Vec<Value> =
        server.run_events_json(&run).await.into_iter().filter(|event| event["type"] == "run.retrying").collect();
    assert_eq!((retries.len(), &retries[0]["data"]["after_ms"], wire.asked().len()), (1, &json!(6_000), 3));
}
