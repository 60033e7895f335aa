//! Faults of MCP servers.

use std::time::{Duration, Instant};

use capstan::domain::tool::ToolCallState;
use capstan::tools::Toolbox as _;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use support::mcp::{PATIENCE, Scripted, Tools, owner, text};
use support::wait;

/// M-01, M-06.
#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_both_streams_does_no_harm() {
    let (server, tools) = Tools::scripted(&["banner"], None).await;
    for _ in 0..3 {
        assert_eq!(text(&tools.call("s__noise", json!({})).await), "after the noise");
    }
    assert_eq!(text(&tools.call("s__echo", json!({"text": "fine"})).await), "fine");
    assert_eq!(server.log("ready").len(), 1, "the server was not restarted");
    let kept = wait::until("the end of what it said", PATIENCE, || async {
        tools.status("s").await.stderr.filter(|said| said.ends_with("last words"))
    });
    let kept = kept.await;
    assert!(kept.len() <= 64 * 1024 && !kept.contains("first words"), "{} bytes", kept.len());
    tools.shutdown().await;
}

/// M-02.
#[tokio::test(flavor = "multi_thread")]
async fn crashed_server_ends_its_calls_and_restarts() {
    let server = Scripted::default();
    let mut entry = server.entry(&[]);
    entry["env"] = json!({"SECRET": "hunter2hunter2"});
    entry["capstan"] = json!({"replay": {"hang": "read"}});
    let tools = Tools::new(&json!({"s": entry})).await;
    let waiting = async {
        let outcome = tools.call("s__hang", json!({})).await;
        (outcome, Instant::now())
    };
    let dying = async {
        wait::until("the first call to arrive", PATIENCE, || async { (!server.log("called").is_empty()).then_some(()) }).await;
        let outcome = tools.call("s__die", json!({})).await;
        (outcome, Instant::now())
    };
    let began = Instant::now();
    let ((waited, waited_until), (died, died_at)) = tokio::join!(waiting, dying);
    // The repeatable call failed, and the outcome of the unsafe call is unknown.
    assert_eq!((waited.state, died.state), (ToolCallState::Failed, ToolCallState::Unknown), "{waited:?} {died:?}");
    let apart = waited_until.max(died_at) - waited_until.min(died_at);
    assert!(apart < Duration::from_secs(5) && began.elapsed() < PATIENCE, "{apart:?}");
    let said = text(&died);
    assert!(said.contains("exit status: 3"), "{said}");
    assert!(!said.contains("about to die") && !said.contains("hunter2"), "standard error is not shown to users: {said}");

    assert_eq!(text(&tools.call("s__echo", json!({"text": "back"})).await), "back");
    assert_eq!(server.log("ready").len(), 2);
    tools.shutdown().await;
    server.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn abandoned_call_is_cancelled_at_the_server() {
    let (server, tools) = Tools::scripted(&[], None).await;
    let arrived = wait::until("the call to arrive", PATIENCE, || async { (!server.log("called").is_empty()).then_some(()) });
    // As when its run's lease is lost: the call is dropped without a cancellation.
    tokio::select! {
        outcome = tools.call("s__hang", json!({})) => panic!("{outcome:?}"),
        () = arrived => {}
    }
    wait::until("the server to be told", PATIENCE, || async { (!server.log("cancelled").is_empty()).then_some(()) }).await;
    assert_eq!(text(&tools.call("s__echo", json!({"text": "fine"})).await), "fine");
    assert_eq!(server.log("cancelled").len(), 1, "an answered call gets no cancellation");
    tools.shutdown().await;
}

/// M-03.
#[tokio::test(flavor = "multi_thread")]
async fn timed_out_call_is_cancelled_at_the_server() {
    let (server, tools) = Tools::scripted(&[], None).await;
    let outcome = tools.call_within(Duration::from_secs(1), "s__hang", json!({})).await;
    assert_eq!(outcome.state, ToolCallState::Unknown, "an unsafe tool may have taken effect");
    assert!(text(&outcome).contains("did not answer within 1s"), "{outcome:?}");
    wait::until("the server to be told", PATIENCE, || async { (!server.log("cancelled").is_empty()).then_some(()) }).await;

    let cancel = CancellationToken::new();
    let (progress, _reports) = mpsc::channel(1);
    let call = tools.call_with("s__hang", json!({}), PATIENCE, progress, cancel.clone());
    let stop = async {
        wait::until("the call to arrive", PATIENCE, || async { (server.log("called").len() == 2).then_some(()) }).await;
        cancel.cancel();
    };
    let (outcome, ()) = tokio::join!(call, stop);
    assert_eq!(outcome.state, ToolCallState::Unknown, "{outcome:?}");
    wait::until("the server to be told again", PATIENCE, || async { (server.log("cancelled").len() == 2).then_some(()) }).await;
    assert_eq!(text(&tools.call("s__echo", json!({"text": "alive"})).await), "alive");
    tools.shutdown().await;
}

/// M-07.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_read_its_input_any_more_is_replaced() {
    let (server, tools) = Tools::scripted(&[], None).await;
    let limit = Duration::from_secs(1);
    assert_eq!(tools.call_within(limit, "s__wedge", json!({})).await.state, ToolCallState::Unknown);
    // More than fits into the pipe: neither the call nor its cancellation can be written completely.
    let outcome = tools.call_within(limit, "s__echo", json!({"text": "x".repeat(1024 * 1024)})).await;
    assert_eq!(outcome.state, ToolCallState::Unknown, "{outcome:?}");
    assert_eq!(text(&tools.call("s__echo", json!({"text": "replaced"})).await), "replaced");
    assert_eq!(server.log("ready").len(), 2);
    tools.shutdown().await;
    server.gone().await;
}

/// M-08.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_without_end_is_cut_off() {
    let (server, tools) = Tools::scripted(&[], None).await;
    let outcome = tools.call("s__big", json!({})).await;
    assert_eq!(outcome.state, ToolCallState::Unknown, "{}", text(&outcome));
    assert!(text(&outcome).contains("a line of more than 33554432 bytes"), "{}", text(&outcome));
    assert_eq!(text(&tools.call("s__echo", json!({"text": "again"})).await), "again");
    tools.shutdown().await;
    server.gone().await;
}

/// M-08.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_result_comes_whole() {
    let (_server, tools) = Tools::scripted(&["large"], None).await;
    let outcome = tools.call("s__echo", json!({})).await;
    assert_eq!((outcome.state, text(&outcome).len()), (ToolCallState::Done, 10 * 1024 * 1024));
    tools.shutdown().await;
}

/// M-01.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_babbles_without_end_is_replaced() {
    let (server, tools) = Tools::scripted(&[], None).await;
    let outcome = tools.call("s__babble", json!({})).await;
    assert_eq!(outcome.state, ToolCallState::Unknown, "{}", text(&outcome));
    assert!(text(&outcome).contains("1001 lines"), "{}", text(&outcome));
    assert_eq!(text(&tools.call("s__echo", json!({"text": "again"})).await), "again");
    assert_eq!(server.log("ready").len(), 2);
    tools.shutdown().await;
}

/// M-04.
#[rstest]
#[case::dies("dies-when-cancelled")]
#[case::wedges("wedges-when-cancelled")]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_survive_a_cancelled_call_is_replaced(#[case] habit: &str) {
    let (server, tools) = Tools::scripted(&[habit], None).await;
    assert_eq!(tools.call_within(Duration::from_secs(1), "s__hang", json!({})).await.state, ToolCallState::Unknown);
    wait::until("the server to be used again", PATIENCE, || async {
        // If the failure is not detected yet, the server receives the call and does not answer.
        let outcome = tools.call_within(Duration::from_secs(5), "s__echo", json!({"text": "again"})).await;
        (text(&outcome) == "again").then_some(())
    })
    .await;
    assert_eq!(server.log("ready").len(), 2);
    tools.shutdown().await;
    server.gone().await;
}

/// M-05.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_goes_to_its_own_call_or_to_none() {
    let (server, tools) = Tools::scripted(&[], None).await;
    assert_eq!(text(&tools.call("s__twice", json!({})).await), "first");
    assert_eq!(text(&tools.call("s__echo", json!({"text": "mine"})).await), "mine");
    assert_eq!(tools.call_within(Duration::from_secs(1), "s__late", json!({})).await.state, ToolCallState::Unknown);
    wait::until("the late answer", PATIENCE, || async { (!server.log("finished").is_empty()).then_some(()) }).await;
    assert_eq!(text(&tools.call("s__echo", json!({"text": "mine, too"})).await), "mine, too");
    assert_eq!(server.log("ready").len(), 1, "the server was not restarted");
    tools.shutdown().await;
}

/// M-29.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_cannot_be_read_ends_its_call_at_once() {
    let (server, tools) = Tools::scripted(&[], None).await;
    let outcome = tools.call("s__deep", json!({})).await;
    assert!(outcome.is_error && text(&outcome).contains("cannot be read"), "{}", text(&outcome));
    assert_eq!(text(&tools.call("s__echo", json!({"text": "fine"})).await), "fine");
    assert_eq!(server.log("ready").len(), 1, "the server was not restarted");
    tools.shutdown().await;
}

/// M-28.
#[tokio::test(flavor = "multi_thread")]
async fn notification_flood_is_throttled_without_harm() {
    let (server, other) = (Scripted::default(), Scripted::default());
    let tools = Tools::new(&json!({"s": server.entry(&["polite"]), "t": other.entry(&[])})).await;
    assert_eq!(text(&tools.call("s__flood", json!({})).await), "after the flood");
    tools.shutdown().await;

    let tools = Tools::new(&json!({"s": server.entry(&[]), "t": other.entry(&[])})).await;
    let (progress, mut reports) = mpsc::channel(16);
    let cancel = CancellationToken::new();
    let flooded = tools.call_with("s__flood", json!({}), PATIENCE, progress, cancel.clone());
    let beside = async {
        reports.recv().await.unwrap();
        for n in 0..20 {
            assert_eq!(text(&tools.call("t__echo", json!({"text": n.to_string()})).await), n.to_string());
        }
        cancel.cancel();
    };
    let (outcome, ()) = tokio::join!(flooded, beside);
    assert_eq!(outcome.state, ToolCallState::Unknown, "40,000 notifications take longer than that: {outcome:?}");
    tools.shutdown().await;
    server.gone().await;
}

/// M-22.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_may_ask_for_nothing() {
    let (server, tools) = Tools::scripted(&[], None).await;
    let replies: Value = serde_json::from_str(&text(&tools.call("s__asks", json!({})).await)).unwrap();
    assert!(replies[0]["error"]["code"].is_i64(), "sampling is refused: {replies}");
    assert_eq!(replies[1]["result"], json!({"action": "decline"}), "elicitation is declined without a question");
    assert_eq!(replies[2]["error"]["code"], -32601, "roots are not available");
    assert_eq!(replies[3]["result"], json!({}), "a ping is answered");
    let tasks = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    assert_eq!(server.log("capabilities"), [tasks], "the only capability is that of tasks");
    tools.shutdown().await;
}

/// M-22.
#[tokio::test(flavor = "multi_thread")]
async fn server_gets_the_roots_of_its_entry() {
    let (server, tools) = Tools::scripted(&[], Some(json!({"roots": ["/data", "/a b"]}))).await;
    let replies: Value = serde_json::from_str(&text(&tools.call("s__asks", json!({})).await)).unwrap();
    let roots = json!({"roots": [{"uri": "file:///data"}, {"uri": "file:///a%20b"}]});
    assert_eq!(replies[2]["result"], roots, "{replies}");
    assert!(replies[0]["error"]["code"].is_i64(), "and no other capability: {replies}");
    assert_eq!(server.log("capabilities")[0]["roots"], json!({}));
    tools.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_start_says_why_and_is_tried_again_later() {
    let server = Scripted::default();
    let mut entry = server.entry(&["broken", "--api-key", "SECRETARG123", "plain"]);
    entry["env"] = json!({"SERVICE_PASSWORD": "plain"});
    let tools = Tools::new(&json!({"s": entry})).await;
    let status = tools.status("s").await;
    let (error, stderr) = (status.error.unwrap(), status.stderr.unwrap());
    assert_eq!(status.status, "error");
    assert!(error.contains("exit status: 7") && !error.contains("licence"), "{error}");
    let shown = "cannot read the licence file; token=[redacted] args=['broken', '--api-key', '[redacted]', '[redacted]']";
    assert_eq!(stderr, shown);
    // A restart waits for its backoff, however often the server is requested.
    tools.door.definitions(&owner()).await;
    tools.door.definitions(&owner()).await;
    assert_eq!(server.log("pid").len(), 1);
    wait::until("a second attempt", PATIENCE, || async {
        tools.door.definitions(&owner()).await;
        (server.log("pid").len() == 2).then_some(())
    })
    .await;
    tools.shutdown().await;
}

/// M-25.
#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_not_followed() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let elsewhere = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = format!("http://{}/mcp", elsewhere.local_addr().unwrap());
    let redirecting = axum::Router::new().fallback(move || {
        let target = target.clone();
        async move { axum::response::Redirect::temporary(&target) }
    });
    let mut serving = tokio::task::JoinSet::new();
    serving.spawn(async move { axum::serve(listener, redirecting).await });
    let entry = json!({"url": format!("http://{address}/mcp"), "headers": {"Authorization": "Bearer hunter2hunter2"}});
    let tools = Tools::new(&json!({"s": entry})).await;
    let status = tools.status("s").await;
    assert_eq!(status.status, "error");
    assert!(!status.error.unwrap().contains("hunter2"));
    let knocked = tokio::time::timeout(Duration::from_millis(50), elsewhere.accept()).await;
    assert!(knocked.is_err(), "the redirect was followed");
    tools.shutdown().await;
}
