//! Rows of the fault catalogue that apply to every dialect.

use std::time::{Duration, Instant};

use capstan::domain::model::{ModelErrorKind, ModelEvent, ModelFinish};
use capstan::provider::{ClientOptions, anthropic, gemini, ollama, responses};
use futures_util::StreamExt as _;
use rstest::rstest;
use serde_json::{Value, json};

use super::drive::{self, Outcome, ask_through, options, question};
use super::mutants::{self, Frames, NewClient};
use Dialect::{Anthropic, Chat, Gemini, Ollama, Responses};
use support::wire::{Answer, Step, Wire};

const SHORT: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Chat,
    Responses,
    Anthropic,
    Gemini,
    Ollama,
}

impl Dialect {
    fn client(self) -> NewClient {
        match self {
            Chat => drive::chat,
            Responses => responses::client,
            Anthropic => anthropic::client,
            Gemini => gemini::client,
            Ollama => ollama::client,
        }
    }

    fn frame(self, value: &Value) -> String {
        match self {
            Ollama => format!("{value}\n"),
            Chat | Responses | Anthropic | Gemini => format!("data: {value}\n\n"),
        }
    }

    /// Returns the events of an answer up to the text "Hel".
    fn beginning(self) -> Vec<String> {
        let events = match self {
            Chat => vec![json!({"choices": [{"index": 0, "delta": {"content": "Hel"}, "finish_reason": null}]})],
            Responses => vec![
                json!({"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": []}}),
                json!({"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "item_id": "m", "delta": "Hel"}),
            ],
            Anthropic => vec![
                json!({"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "content": [], "usage": {"input_tokens": 5}}}),
                json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
                json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}}),
            ],
            Gemini => vec![json!({"candidates": [{"content": {"parts": [{"text": "Hel"}], "role": "model"}, "index": 0}]})],
            Ollama => vec![json!({"message": {"role": "assistant", "content": "Hel"}, "done": false})],
        };
        events.iter().map(|event| self.frame(event)).collect()
    }

    /// Returns the event that completes an answer. Optional end marks are not included.
    fn end(self) -> String {
        let events = match self {
            Chat => vec![json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})],
            Responses => vec![json!({"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "output": [
                {"id": "m", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hel"}]}]}})],
            Anthropic => vec![
                json!({"type": "content_block_stop", "index": 0}),
                json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}),
            ],
            Gemini => vec![json!({"candidates": [{"finishReason": "STOP", "index": 0}]})],
            Ollama => vec![json!({"message": {"role": "assistant", "content": ""}, "done": true, "done_reason": "stop"})],
        };
        events.iter().map(|event| self.frame(event)).collect()
    }

    /// Returns keep-alive bytes without content.
    fn sign_of_life(self) -> &'static [u8] {
        match self {
            Ollama => b"\n",
            Chat | Responses | Anthropic | Gemini => b": still here\n\n",
        }
    }

    fn text(self) -> Step {
        Step::Send(self.beginning().concat().into_bytes())
    }

    async fn ask(self, wire: &Wire, change: impl FnOnce(&mut ClientOptions)) -> Outcome {
        let mut options = options(wire);
        change(&mut options);
        ask_through(self.client()(options).unwrap().as_ref(), question()).await
    }
}

/// Returns `count` keep-alives, one every 50 milliseconds.
fn signs(dialect: Dialect, count: usize) -> impl Iterator<Item = Step> {
    (0..count).flat_map(move |_| [Step::Send(dialect.sign_of_life().to_vec()), Step::Pause(Duration::from_millis(50))])
}

// L-04: the event with the finish reason is the end, and the client closes the connection.
#[rstest]
#[tokio::test]
async fn the_connection_is_closed_after_the_end(#[values(Chat, Responses, Anthropic, Gemini, Ollama)] dialect: Dialect) {
    let end = Step::Send(dialect.end().into_bytes());
    let wire = Wire::play(vec![Answer::events(vec![dialect.text(), end, Step::Hang])]).await;
    let outcome = dialect.ask(&wire, |options| options.limits.after_finish = SHORT).await;
    assert_eq!((outcome.text().as_str(), outcome.finish()), ("Hel", ModelFinish::Stop));
    wire.hung_up(Duration::from_secs(10)).await;
}

fn overloaded() -> Value {
    json!({"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE", "type": "x"}})
}

/// Returns how the client classifies an error in an answer that also looks complete.
async fn error_after(dialect: Dialect, before: &str, error: &str) -> (ModelErrorKind, String) {
    let done = if dialect == Ollama { "" } else { "data: [DONE]\n\n" };
    let body = [before, error, &dialect.end(), done].concat();
    let outcome = mutants::outcome_of(dialect.client(), body).await;
    assert_eq!(outcome.text(), if before.is_empty() { "" } else { "Hel" });
    let error = outcome.end.unwrap_err();
    (error.kind, error.message)
}

// L-01: Gemini writes errors between its events, over several lines and without a field name.
#[rstest]
#[tokio::test]
async fn an_error_in_no_field(#[values(Chat, Responses, Anthropic, Gemini)] dialect: Dialect) {
    let (before, expected) = (dialect.beginning().concat(), (ModelErrorKind::Overloaded, "The model is overloaded.".to_owned()));
    let pretty = serde_json::to_string_pretty(&overloaded()).unwrap();
    for error in [pretty.clone(), overloaded().to_string(), format!("[{pretty}\n]")] {
        // With the end of the previous event, and without it.
        for before in [before.as_str(), before.trim_end_matches('\n')] {
            let line_end = if before.ends_with('\n') { "" } else { "\n" };
            for rest in ["\n", "\n\n", " ,\r\n\r\n"] {
                assert_eq!(error_after(dialect, before, &format!("{line_end}{error}{rest}")).await, expected, "{error}{rest}");
            }
        }
        let body = format!("{before}{error}");
        let outcome = mutants::outcome_of(dialect.client(), &body).await;
        assert_eq!(outcome.error(), ModelErrorKind::Overloaded, "{error}");
        let cut = mutants::outcome_of(dialect.client(), &body[..body.len() - 2]).await;
        assert_eq!(cut.error(), ModelErrorKind::IncompleteStream, "{error}");
    }
    let body = format!("{before}{pretty}\n");
    let expected = mutants::outcome_of(dialect.client(), &body).await;
    mutants::framing_does_not_matter(dialect.client(), Frames::Events, &body, &expected).await;
}

#[rstest]
#[tokio::test]
async fn line_that_only_begins_like_json_is_skipped(#[values(Chat, Responses, Anthropic, Gemini)] dialect: Dialect) {
    for stray in [
        "[INFO] ready\n",
        "[INFO] {\"error\": 7}\n",
        "[DONE]\n",
        "{\n",
        "{\"error\": [\n: a comment\n",
        "{\"a\": \"\n\n",
        "{} said {\"error\": 7}\n",
    ] {
        let body = [dialect.beginning().concat(), stray.to_owned(), dialect.end()].concat();
        let outcome = mutants::outcome_of(dialect.client(), &body).await;
        assert_eq!((outcome.text().as_str(), outcome.end), ("Hel", Ok(ModelFinish::Stop)), "{stray}");
    }
}

// L-01, L-42: several documents in one line, with and without a field name. A truncated one is incomplete.
#[rstest]
#[tokio::test]
async fn several_events_in_the_place_of_one(#[values(Chat, Responses, Anthropic, Gemini, Ollama)] dialect: Dialect) {
    let data = |event: &String| event.trim().trim_start_matches("data: ").to_owned();
    let mut events: Vec<String> = dialect.beginning().iter().map(data).collect();
    events.extend(dialect.end().lines().filter(|line| !line.is_empty()).map(|line| data(&line.to_owned())));
    let field = if dialect == Ollama { "" } else { "data: " };
    for list in [events.concat(), events.join(" "), format!("[{}]", events.join(","))] {
        for body in [format!("{field}{list}\n\n"), format!("{list}\n")] {
            let outcome = mutants::outcome_of(dialect.client(), &body).await;
            assert_eq!((outcome.text().as_str(), outcome.end), ("Hel", Ok(ModelFinish::Stop)), "{body}");
            let last = body.rfind('}').unwrap();
            for at in [last, last - 5, body.rfind("{\"").unwrap()] {
                for end in ["", "\n\n"] {
                    let cut = mutants::outcome_of(dialect.client(), format!("{}{end}", &body[..at])).await;
                    assert!(cut.end.is_err() && "Hel".starts_with(&cut.text()), "{}: {cut:?}", &body[..at]);
                }
            }
        }
    }
    // An error among them counts, and later documents are ignored.
    let (text, end) = (events[..dialect.beginning().len()].concat(), dialect.end().replace("data: ", ""));
    let outcome = mutants::outcome_of(dialect.client(), format!("{field}{text}{}{}\n\n", overloaded(), end.trim())).await;
    let end = outcome.end.clone().map_err(|error| error.kind);
    assert_eq!((outcome.text().as_str(), end), ("Hel", Err(ModelErrorKind::Overloaded)));
}

// L-01
#[rstest]
#[tokio::test]
async fn an_error_without_a_word(
    #[values(Chat, Responses, Anthropic, Gemini)] dialect: Dialect,
    #[values("\n", "data:\n\n", "data: null\n\n", "data: {}\n\n")] data: &str,
) {
    let (kind, words) = error_after(dialect, &dialect.beginning().concat(), &format!("event: error\n{data}")).await;
    assert_eq!((kind, words.as_str()), (ModelErrorKind::Unavailable, "the provider broke off with an error"));
}

// L-01: Google writes an error list outside of event streams, and gateways pass it on.
#[rstest]
#[tokio::test]
async fn an_error_in_a_list(#[values(Chat, Responses, Anthropic, Gemini, Ollama)] dialect: Dialect) {
    let before = dialect.beginning().concat();
    let (kind, words) = error_after(dialect, &before, &dialect.frame(&json!([overloaded()]))).await;
    assert_eq!((kind, words.as_str()), (ModelErrorKind::Overloaded, "The model is overloaded."));
    let (kind, words) = error_after(dialect, &before, &dialect.frame(&json!([1, 2]))).await;
    assert!(kind == ModelErrorKind::BadStream && words.starts_with("bad_frame: "), "{words}");
    let exhausted = json!([{"error": {"code": 429, "message": "Resource has been exhausted.", "status": "RESOURCE_EXHAUSTED"}}]);
    let wire = Wire::play(vec![Answer::json(200, &exhausted.to_string())]).await;
    assert_eq!(dialect.ask(&wire, |_| {}).await.error(), ModelErrorKind::RateLimit);
}

// L-01, L-10: a document that is no event of the dialect is a bad event, unless it is an error.
#[rstest]
#[tokio::test]
async fn unknown_payload_is_no_event(
    #[values(Chat, Responses, Anthropic, Gemini, Ollama)] dialect: Dialect,
    #[values("nonsense", "7", "true", "\"words\"", "[1]", "[\"x\"]", "[{},1]")] data: &str,
) {
    let event = if dialect == Ollama { format!("{data}\n") } else { format!("data: {data}\n\n") };
    let (kind, words) = error_after(dialect, &dialect.beginning().concat(), &event).await;
    assert_eq!(kind, ModelErrorKind::BadStream);
    assert!(words.starts_with(&format!("bad_frame: event {} of the answer: ", dialect.beginning().len() + 1)), "{words}");
    if data.starts_with('[') {
        let wire = Wire::play(vec![Answer::json(200, data)]).await;
        assert_eq!(dialect.ask(&wire, |_| {}).await.error(), ModelErrorKind::BadStream);
    }
}

// L-01: other fields beside the error, or other entries in its list, do not hide it.
#[rstest]
#[case(json!({"code": 401, "msg": "token expired", "choices": 7, "output": 7, "output_index": {}, "delta": 7, "content": 7,
    "candidates": 7, "message": 7}), ModelErrorKind::Auth, "token expired")]
#[case(json!([1, overloaded()]), ModelErrorKind::Overloaded, "The model is overloaded.")]
#[tokio::test]
async fn an_error_beside_fields_that_cannot_be_read(
    #[values(Chat, Responses, Anthropic, Gemini, Ollama)] dialect: Dialect,
    #[case] error: Value,
    #[case] kind: ModelErrorKind,
    #[case] words: &str,
) {
    assert_eq!(error_after(dialect, &dialect.beginning().concat(), &dialect.frame(&error)).await, (kind, words.to_owned()));
    let wire = Wire::play(vec![Answer::json(200, &error.to_string())]).await;
    let error = dialect.ask(&wire, |_| {}).await.end.unwrap_err();
    assert_eq!((error.kind, error.message.as_str()), (kind, words));
}

// L-01: the envelopes of z.ai and iFlow, of Baidu, of Azure's gateway, and a generic one.
#[rstest]
#[case(json!({"code": 401, "msg": "token expired or incorrect", "success": false}), ModelErrorKind::Auth)]
#[case(json!({"code": 500, "msg": "404 NOT_FOUND", "success": false}), ModelErrorKind::Unavailable)]
#[case(json!({"status": "439", "msg": "Your API Token has expired.", "body": null}), ModelErrorKind::Auth)]
#[case(json!({"error_code": 17, "error_msg": "Open api daily request limit reached", "id": "as-1"}), ModelErrorKind::Quota)]
#[case(json!({"error_code": 110, "error_msg": "Access token invalid or no longer valid"}), ModelErrorKind::Auth)]
#[case(json!({"error_code": 18, "error_msg": "Open api qps request limit reached"}), ModelErrorKind::RateLimit)]
#[case(json!({"error_code": "REQUEST_LIMIT_EXCEEDED", "message": "slow"}), ModelErrorKind::RateLimit)]
#[case(json!({"statusCode": 429, "message": "Rate limit is exceeded. Try again in 5 seconds."}), ModelErrorKind::RateLimit)]
#[case(json!({"message": "Too many requests", "type": "rate_limit", "code": 429}), ModelErrorKind::RateLimit)]
#[case(json!({"message": "no", "type": "authentication_error"}), ModelErrorKind::Auth)]
#[tokio::test]
async fn an_envelope_in_place_of_an_answer(
    #[values(Chat, Responses, Anthropic, Gemini, Ollama)] dialect: Dialect,
    #[case] envelope: Value,
    #[case] expected: ModelErrorKind,
) {
    let words = ["msg", "message", "error_msg"].iter().find_map(|name| envelope[name].as_str()).unwrap();
    let wire = Wire::play(vec![Answer::json(200, &envelope.to_string())]).await;
    let error = dialect.ask(&wire, |_| {}).await.end.unwrap_err();
    assert_eq!((error.kind, error.message.as_str()), (expected, words));
    // Ollama's `message` is an object, and its lines have no gateway envelope.
    if dialect != Ollama {
        for before in [String::new(), dialect.beginning().concat()] {
            assert_eq!(error_after(dialect, &before, &dialect.frame(&envelope)).await, (expected, words.to_owned()));
        }
    }
}

// L-12, L-38: a document is complete by its syntax, however its connection ends.
#[rstest]
#[tokio::test]
async fn a_document_whose_connection_does_not_end(#[values(Chat, Responses, Anthropic, Gemini)] dialect: Dialect) {
    let document = match dialect {
        Chat => json!({"choices": [{"message": {"content": "Hel"}, "finish_reason": "stop"}]}),
        Responses => {
            json!({"status": "completed", "output": [{"type": "message", "content": [{"type": "output_text", "text": "Hel"}]}]})
        }
        Anthropic => json!({"type": "message", "content": [{"type": "text", "text": "Hel"}], "stop_reason": "end_turn"}),
        _ => json!({"candidates": [{"content": {"parts": [{"text": "Hel"}]}, "finishReason": "STOP"}]}),
    };
    let document = document.to_string();
    for last in [Step::Cut, Step::Hang] {
        let asked = async |body: &str| {
            let wire = Wire::play(vec![Answer::events(vec![Step::Send(body.as_bytes().to_vec()), last.clone()])]).await;
            dialect.ask(&wire, |options| options.limits.idle = SHORT).await
        };
        let whole = asked(&document).await;
        assert_eq!((whole.text().as_str(), whole.end), ("Hel", Ok(ModelFinish::Stop)));
        let kind = if let Step::Cut = last { ModelErrorKind::IncompleteStream } else { ModelErrorKind::Timeout };
        assert_eq!(asked(&document[..document.len() - 1]).await.error(), kind);
    }
}

/// Returns an answer whose first event has the finish reason, with or without usage.
fn at_once(dialect: Dialect, has_figures: bool) -> String {
    let mut event = match dialect {
        Chat => json!({"choices": [{"index": 0, "delta": {"content": "Hel"}, "finish_reason": "stop"}]}),
        _ => json!({"candidates": [{"content": {"parts": [{"text": "Hel"}]}, "finishReason": "STOP"}]}),
    };
    if has_figures {
        event["usage"] = json!({"prompt_tokens": 9, "completion_tokens": 1});
        event["usageMetadata"] = json!({"promptTokenCount": 9, "candidatesTokenCount": 1});
    }
    dialect.frame(&event)
}

// L-12, L-21: if the first event has the finish reason, the idle timeout completes the answer. A broken connection does not.
#[rstest]
#[tokio::test]
async fn silence_after_a_finished_answer(#[values(Chat, Gemini)] dialect: Dialect) {
    let asked = async |body: String, last: Step| {
        let wire = Wire::play(vec![Answer::events(vec![Step::Send(body.into_bytes()), last])]).await;
        dialect.ask(&wire, |options| (options.limits.idle, options.limits.after_finish) = (SHORT, SHORT / 10)).await
    };
    let whole = asked(at_once(dialect, true), Step::Hang).await;
    assert_eq!((whole.text().as_str(), whole.end), ("Hel", Ok(ModelFinish::Stop)));
    assert_eq!(asked(at_once(dialect, false), Step::Hang).await.error(), ModelErrorKind::Timeout);
    assert_eq!(asked(at_once(dialect, true), Step::Cut).await.error(), ModelErrorKind::IncompleteStream);
    // More events followed, so none of the finish reasons counts.
    let twice = at_once(dialect, true).repeat(2);
    assert_eq!(asked(twice, Step::Hang).await.error(), ModelErrorKind::Timeout);
    // Keep-alives reset the idle timeout.
    let wire = Wire::play(vec![Answer::events(
        [Step::Send(at_once(dialect, true).into_bytes())].into_iter().chain(signs(dialect, 200)).collect(),
    )])
    .await;
    let outcome = dialect.ask(&wire, |options| (options.limits.idle, options.limits.progress) = (SHORT, SHORT * 2)).await;
    assert_eq!(outcome.error(), ModelErrorKind::Timeout);
}

// L-12, L-21: Gemini sends the usage with every chunk, so usage does not prove that the answer is complete.
#[tokio::test]
async fn silence_after_a_sum_is_no_end() {
    let mut chunk = json!({"candidates": [{"content": {"parts": [{"text": "Hel"}]}, "finishReason": "STOP"}]});
    chunk["usageMetadata"] = json!({"promptTokenCount": 7, "totalTokenCount": 7});
    let wire = Wire::play(vec![Answer::events(vec![Step::Send(Gemini.frame(&chunk).into_bytes()), Step::Hang])]).await;
    let outcome = Gemini.ask(&wire, |options| (options.limits.idle, options.limits.after_finish) = (SHORT, SHORT / 10)).await;
    assert_eq!((outcome.text().as_str(), outcome.error()), ("Hel", ModelErrorKind::Timeout));
}

// L-06: Gemini has no end mark. Usage may follow the finish reason, and the end marks of other dialects are ignored.
#[tokio::test]
async fn content_after_the_finish_reason() {
    let figures = Gemini.frame(&json!({"usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 1}}));
    let body = [Gemini.beginning().concat(), Gemini.end(), "data: [DONE]\n\n".to_owned(), figures].concat();
    let wire = Wire::play(vec![Answer::stream(body)]).await;
    let outcome = Gemini.ask(&wire, |_| {}).await;
    assert_eq!((outcome.text().as_str(), outcome.finish()), ("Hel", ModelFinish::Stop));
    assert_eq!(outcome.usage().unwrap().input_tokens, 7);
}

// L-10
#[rstest]
#[tokio::test]
async fn bytes_that_are_no_text_are_named(#[values(Chat, Responses, Anthropic, Gemini, Ollama)] dialect: Dialect) {
    let good = dialect.beginning();
    let last = good.last().unwrap();
    let (before, after) = last.split_once("Hel").unwrap();
    let bad = [before.as_bytes(), b"\xff", after.as_bytes()].concat();
    let body = [good.concat().as_bytes(), &bad, dialect.end().as_bytes()].concat();
    let wire = Wire::play(vec![Answer::stream(body)]).await;
    let error = dialect.ask(&wire, |_| {}).await.end.unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::BadStream);
    let expected = format!("bad_frame: event {} of the answer: ", good.len() + 1);
    assert!(error.message.starts_with(&expected), "{error}");
}

// L-11
#[rstest]
#[tokio::test]
async fn headers_are_bounded(#[values(Chat, Responses, Anthropic, Gemini, Ollama)] dialect: Dialect) {
    for (kib, is_taken) in [(31, true), (64, false)] {
        let header = "x".repeat(kib * 1024);
        let steps = vec![dialect.text(), Step::Send(dialect.end().into_bytes())];
        let wire = Wire::play(vec![Answer::new(200, &[("x-huge", &header)], steps)]).await;
        let outcome = dialect.ask(&wire, |_| {}).await;
        if is_taken {
            assert_eq!(outcome.finish(), ModelFinish::Stop);
            continue;
        }
        let error = outcome.end.unwrap_err();
        assert_eq!(error.kind, ModelErrorKind::BadStream);
        assert!(error.message.contains("headers of the answer are larger than 32 KiB"), "{error}");
    }
}

// L-12
#[rstest]
#[tokio::test]
async fn silence_is_noticed(#[values(Chat, Responses, Anthropic, Gemini, Ollama)] dialect: Dialect) {
    let wire = Wire::play(vec![Answer::events(vec![dialect.text(), Step::Hang])]).await;
    let outcome = dialect.ask(&wire, |options| options.limits.idle = SHORT).await;
    assert_eq!(outcome.error(), ModelErrorKind::Timeout);
    assert_eq!(outcome.end.unwrap_err().message, "no byte arrived for 200 ms");
    wire.hung_up(Duration::from_secs(10)).await;
}

// L-13
#[rstest]
#[tokio::test]
async fn signs_of_life_are_no_progress(#[values(Chat, Responses, Anthropic, Gemini, Ollama)] dialect: Dialect) {
    let steps = [dialect.text()].into_iter().chain(signs(dialect, 200)).collect();
    let wire = Wire::play(vec![Answer::events(steps)]).await;
    let outcome = dialect.ask(&wire, |options| options.limits.progress = Duration::from_millis(400)).await;
    assert_eq!(outcome.error(), ModelErrorKind::Timeout);
    assert_eq!(outcome.end.unwrap_err().message, "only keep-alives arrived for 400 ms");
    wire.hung_up(Duration::from_secs(10)).await;
}

// L-14
#[rstest]
#[tokio::test]
async fn a_model_that_thinks_has_its_own_limits(#[values(Chat, Responses, Anthropic, Gemini, Ollama)] dialect: Dialect) {
    let end = Step::Send(dialect.end().into_bytes());
    let steps = [dialect.text()].into_iter().chain(signs(dialect, 16)).chain([end]).collect();
    let wire = Wire::play(vec![Answer::events(steps)]).await;
    let outcome = dialect.ask(&wire, |options| {
        options.model_limits.insert("gpt-x".to_owned(), options.limits);
        options.limits.progress = SHORT;
    });
    assert_eq!(outcome.await.finish(), ModelFinish::Stop);
}

// L-16: the header takes precedence over the body.
#[rstest]
#[tokio::test]
async fn waits_of_a_refusal(#[values(Chat, Responses, Anthropic, Gemini, Ollama)] dialect: Dialect) {
    for (headers, wait) in [
        (&[("retry-after", "2")][..], Some(2_000)),
        (&[("retry-after", "2"), ("retry-after-ms", "1500")][..], Some(1_500)),
        (&[("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT")][..], Some(0)),
        (&[("retry-after", "10800")][..], Some(10_800_000)),
        (&[("retry-after", "soon")][..], None),
        (&[][..], None),
    ] {
        let body = Step::Send(br#"{"error":{"message":"slow down"}}"#.to_vec());
        let wire = Wire::play(vec![Answer::new(429, headers, vec![body])]).await;
        let error = dialect.ask(&wire, |_| {}).await.end.unwrap_err();
        assert_eq!((error.kind, error.status, error.retry_after_ms), (ModelErrorKind::RateLimit, Some(429), wait), "{headers:?}");
    }
}

// L-17: an exhausted quota is not retried, because waiting does not refill it.
#[rstest]
#[case::chat(Chat, 429, r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#)]
#[case::responses(Responses, 429, r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#)]
#[case::anthropic(Anthropic, 400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API."}}"#)]
#[case::gemini(Gemini, 429, r#"{"error":{"code":429,"message":"You exceeded your current quota.","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaId":"GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}]}}"#)]
#[case::ollama_cloud(Ollama, 402, r#"{"error":"payment required"}"#)]
#[tokio::test]
async fn spent_money_is_not_waited_for(#[case] dialect: Dialect, #[case] status: u16, #[case] body: &str) {
    let headers = [("content-type", "application/json"), ("retry-after", "1")];
    let wire = Wire::play(vec![Answer::new(status, &headers, vec![Step::Send(body.as_bytes().to_vec())])]).await;
    let error = dialect.ask(&wire, |_| {}).await.end.unwrap_err();
    assert_eq!((error.kind, error.status, error.retry_after_ms), (ModelErrorKind::Quota, Some(status), None));
    assert!(!error.kind.is_retryable());
    assert_eq!(wire.asked().len(), 1);
}

// L-18, L-19
#[rstest]
#[tokio::test]
async fn refusals(#[values(Chat, Responses, Anthropic, Gemini, Ollama)] dialect: Dialect) {
    for (status, kind) in [
        (500, ModelErrorKind::Unavailable),
        (502, ModelErrorKind::Unavailable),
        (503, ModelErrorKind::Overloaded),
        (504, ModelErrorKind::Unavailable),
        (529, ModelErrorKind::Overloaded),
        (400, ModelErrorKind::InvalidRequest),
        (401, ModelErrorKind::Auth),
        (402, ModelErrorKind::Quota),
        (403, ModelErrorKind::Auth),
        (404, ModelErrorKind::InvalidRequest),
        (413, ModelErrorKind::ContextOverflow),
        (422, ModelErrorKind::InvalidRequest),
    ] {
        for (content_type, body) in [("application/json", r#"{"error":{"message":"no"}}"#), ("text/html", "<html>no</html>")] {
            let answer = Answer::new(status, &[("content-type", content_type)], vec![Step::Send(body.as_bytes().to_vec())]);
            let wire = Wire::play(vec![answer]).await;
            let error = dialect.ask(&wire, |_| {}).await.end.unwrap_err();
            assert_eq!((error.kind, error.status), (kind, Some(status)), "{error}");
            assert!(!error.message.contains('<') && !error.message.is_empty(), "{error}");
            assert_eq!(kind.is_retryable(), status >= 500);
        }
    }
}

// L-39
#[rstest]
#[case::last(json!({}), json!({"prompt_eval_count": 9, "eval_count": 2}), Some((9, 2)))]
#[case::in_the_middle(json!({"prompt_eval_count": 9, "eval_count": 2}), json!({}), Some((9, 2)))]
#[case::twice(json!({"prompt_eval_count": 1, "eval_count": 1}), json!({"prompt_eval_count": 9, "eval_count": 2}), Some((9, 2)))]
#[case::null_last(json!({"prompt_eval_count": 9, "eval_count": 2}), json!({"prompt_eval_count": null, "eval_count": null}), Some((9, 2)))]
#[case::missing(json!({}), json!({}), None)]
#[case::negative(json!({}), json!({"prompt_eval_count": -9, "eval_count": 2}), None)]
#[case::huge(json!({}), json!({"prompt_eval_count": i64::MAX, "eval_count": 2}), None)]
#[tokio::test]
async fn tokens_used_by_ollama(#[case] middle: Value, #[case] last: Value, #[case] expected: Option<(u64, u64)>) {
    let with = |mut line: Value, figures: &Value| {
        line.as_object_mut().unwrap().extend(figures.as_object().unwrap().clone());
        Ollama.frame(&line)
    };
    let body =
        with(json!({"message": {"content": "Hello!"}}), &middle) + &with(json!({"done": true, "done_reason": "stop"}), &last);
    let wire = Wire::play(vec![Answer::stream(body)]).await;
    let usage = Ollama.ask(&wire, |_| {}).await.usage().unwrap();
    assert_eq!((usage.estimated, usage.model_calls), (expected.is_none(), 1));
    match expected {
        Some(expected) => assert_eq!((usage.input_tokens, usage.output_tokens), expected),
        None => assert!(usage.input_tokens > 20 && usage.output_tokens == 2, "{usage:?}"),
    }
}

// L-41
#[rstest]
#[tokio::test]
async fn redirects_are_refused_and_the_key_stays(#[values(Chat, Responses, Anthropic, Gemini, Ollama)] dialect: Dialect) {
    let other = Wire::play(vec![Answer::json(200, "{}")]).await;
    for location in ["http://169.254.169.254/latest", &other.base_url, "/v1/elsewhere"] {
        for status in [301, 302, 303, 307, 308] {
            let wire = Wire::play(vec![Answer::new(status, &[("location", location)], vec![])]).await;
            let error = dialect.ask(&wire, |_| {}).await.end.unwrap_err();
            assert_eq!((error.kind, error.status), (ModelErrorKind::InvalidRequest, Some(status)));
            assert!(error.message.contains("redirect"), "{error}");
            assert_eq!(wire.asked().len(), 1);
        }
    }
    assert!(other.asked().is_empty());
}

// L-47
#[rstest]
#[tokio::test]
async fn dropping_the_stream_closes_the_connection(#[values(Chat, Responses, Gemini, Ollama)] dialect: Dialect) {
    let wire = Wire::play(vec![Answer::events(vec![dialect.text(), Step::Hang])]).await;
    let client = dialect.client()(options(&wire)).unwrap();
    let mut stream = client.stream(question()).await.unwrap();
    assert_eq!(stream.next().await, Some(Ok(ModelEvent::Text("Hel".to_owned()))));
    let dropped = Instant::now();
    drop(stream);
    let hung_up = wire.hung_up(Duration::from_secs(10)).await;
    assert!(hung_up - dropped < Duration::from_secs(5));
}
