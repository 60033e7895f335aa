//! Timeouts of providers, and readers that disconnect.

use std::time::{Duration, Instant};

use capstan::domain::model::{ModelErrorKind, ModelEvent, ModelFinish};
use capstan::provider::{Quirks, openai};
use futures_util::StreamExt as _;
use serde_json::json;

use super::drive::{DONE, ask, delta, finish, options, question};
use support::wait::within;
use support::wire::{Answer, Step, Wire};

const SHORT: Duration = Duration::from_millis(200);

fn text() -> Step {
    Step::Send(delta(json!({"content": "Hel"})).into_bytes())
}

/// Returns SSE comments for about ten seconds.
fn comments() -> impl Iterator<Item = Step> {
    (0..200).flat_map(|_| [Step::Send(b": still here\n\n".to_vec()), Step::Pause(Duration::from_millis(50))])
}

// L-12
#[tokio::test]
async fn silence_after_a_byte_is_noticed() {
    let wire = Wire::play(vec![Answer::events(vec![text(), Step::Hang])]).await;
    let mut options = options(&wire);
    options.limits.idle = SHORT;
    let outcome = ask(options, question()).await;
    assert_eq!((outcome.text().as_str(), outcome.error()), ("Hel", ModelErrorKind::Timeout));
    assert_eq!(outcome.end.unwrap_err().message, "no byte arrived for 200 ms");
    wire.hung_up(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn a_connection_that_does_not_come_is_noticed() {
    // No process accepts here, and with a full backlog the system leaves further connections unanswered.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut connecting = tokio::task::JoinSet::new();
    for _ in 0..16 {
        connecting.spawn(tokio::net::TcpStream::connect(address));
    }
    let mut waiting = Vec::new();
    while waiting.len() < 2 {
        waiting
            .push(within("the queue to be full", Duration::from_secs(5), connecting.join_next()).await.unwrap().unwrap().unwrap());
    }
    let mut options = capstan::provider::ClientOptions::new(format!("http://{address}/v1"));
    options.limits.connect = SHORT;
    let begun = Instant::now();
    let error = ask(options, question()).await.end.unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::Network, "{error}");
    assert!(error.message.contains("Connect"), "{error}");
    assert!(begun.elapsed() >= SHORT && begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn silence_before_the_first_byte_is_noticed() {
    let answers = [Answer::events(vec![Step::Hang]), Answer::new(200, &[], vec![Step::Pause(Duration::from_secs(60))])];
    for answer in answers {
        let wire = Wire::play(vec![answer]).await;
        let mut options = options(&wire);
        options.limits.first_byte = SHORT;
        let outcome = ask(options, question()).await;
        assert_eq!(outcome.end.unwrap_err().message, "no answer arrived for 200 ms");
        wire.hung_up(Duration::from_secs(10)).await;
    }
}

// L-13: keep-alive bytes are no progress.
#[tokio::test]
async fn signs_of_life_are_no_progress() {
    let steps = [text()].into_iter().chain(comments()).collect();
    let wire = Wire::play(vec![Answer::events(steps)]).await;
    let mut options = options(&wire);
    (options.limits.idle, options.limits.progress) = (Duration::from_secs(5), Duration::from_millis(400));
    let outcome = ask(options, question()).await;
    assert_eq!((outcome.text().as_str(), outcome.error()), ("Hel", ModelErrorKind::Timeout));
    assert_eq!(outcome.end.unwrap_err().message, "only keep-alives arrived for 400 ms");
    wire.hung_up(Duration::from_secs(10)).await;
}

// L-14: comments keep the connection alive, and the model's own limits allow the wait.
#[tokio::test]
async fn a_model_that_thinks_has_its_own_limits() {
    let thinking = comments().take(20);
    let end = Step::Send([finish("stop"), DONE.to_owned()].concat().into_bytes());
    let wire = Wire::play(vec![Answer::events(thinking.chain([text(), end]).collect())]).await;
    let mut options = options(&wire);
    let patient = options.limits;
    options.limits.progress = SHORT;
    options.model_limits.insert("gpt-x".to_owned(), patient);
    assert_eq!(ask(options, question()).await.finish(), ModelFinish::Stop);
}

// At the default limits, in virtual time.
#[tokio::test(start_paused = true)]
async fn slow_stream_of_twenty_minutes_completes() {
    let tokens = (0..1_200).flat_map(|_| [text(), Step::Pause(Duration::from_secs(1))]);
    let end = Step::Send([finish("stop"), DONE.to_owned()].concat().into_bytes());
    let wire = Wire::play(vec![Answer::events(tokens.chain([end]).collect())]).await;
    let options = capstan::provider::ClientOptions::new(&wire.base_url);
    let client = openai::client(options, Quirks::default()).unwrap();
    let mut stream = client.stream(question()).await.unwrap();
    let mut said = 0;
    loop {
        match stream.next().await.unwrap().unwrap() {
            ModelEvent::Text(_) => said += 1,
            ModelEvent::Finished(end) => break assert_eq!(end, ModelFinish::Stop),
            _ => {}
        }
    }
    assert_eq!(said, 1_200);
}

#[tokio::test]
async fn the_whole_call_has_a_limit() {
    let steps = (0..200).flat_map(|_| [text(), Step::Pause(Duration::from_millis(20))]).collect();
    let wire = Wire::play(vec![Answer::events(steps)]).await;
    let mut options = options(&wire);
    options.limits.total = Duration::from_secs(2);
    let outcome = ask(options, question()).await;
    assert_eq!((outcome.text().is_empty(), outcome.error()), (false, ModelErrorKind::Timeout));
    wire.hung_up(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn dropping_the_request_closes_the_connection() {
    let wire = Wire::play(vec![Answer::events(vec![Step::Hang])]).await;
    let client = openai::client(options(&wire), Quirks::default()).unwrap();
    let asked = support::wait::until("the request to arrive", Duration::from_secs(5), || async {
        (!wire.asked().is_empty()).then_some(())
    });
    tokio::select! {
        answer = client.stream(question()) => panic!("an answer: {:?}", answer.err()),
        () = asked => {}
    }
    wire.hung_up(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn tokens_come_as_they_are_sent() {
    let wire = Wire::play(vec![Answer::events(vec![text(), Step::Hang])]).await;
    let client = openai::client(options(&wire), Quirks::default()).unwrap();
    let mut stream = client.stream(question()).await.unwrap();
    let first = within("the first token while the provider goes on", Duration::from_secs(2), stream.next()).await;
    assert_eq!(first, Some(Ok(ModelEvent::Text("Hel".to_owned()))));
}
