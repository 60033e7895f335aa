//! Deviations of providers from chat completions: one reader understands all of them.

use std::sync::Arc;
use std::time::Duration;

use capstan::domain::model::{ModelErrorKind, ModelEvent, ModelFinish};
use capstan::provider::{ClientOptions, InlineReasoning, ModelClient, Quirks, SetupError, openai};
use rstest::rstest;
use serde_json::{Value, json};

use super::drive::{DONE, Outcome, ask, chat, delta, event, finish, options, outcome, outcome_of, question, usage};
use super::mutants::{self, Frames};
use support::wire::{Answer, Step, Wire};

async fn said(events: &[Value]) -> Outcome {
    outcome_of(events.iter().map(event).collect::<String>() + DONE).await
}

fn blocks(outcome: &Outcome) -> Vec<Value> {
    let blocks = outcome.events.iter().filter_map(|event| match event {
        ModelEvent::ReasoningBlock(raw) | ModelEvent::ToolCallBlock { raw, .. } => Some(raw.clone()),
        _ => None,
    });
    blocks.collect()
}

/// Returns an answer of `OpenRouter`: comments, an empty first event, reasoning under two names, signed details, a call and
/// usage.
fn openrouter() -> String {
    let thought = |text: &str| json!({"type": "reasoning.text", "text": text, "format": "anthropic-claude-v1", "index": 0});
    let signed = json!({"type": "reasoning.text", "signature": "EuYB/+==", "format": "anthropic-claude-v1", "index": 0});
    [
        ": OPENROUTER PROCESSING\n\n".to_owned(),
        delta(json!({"role": "assistant", "content": "", "reasoning": "Let ", "reasoning_details": [thought("Let ")]})),
        delta(json!({"role": "assistant", "content": "", "reasoning": "me", "reasoning_details": [thought("me")]})),
        delta(json!({"role": "assistant", "content": "", "reasoning": null, "reasoning_details": [signed]})),
        delta(json!({"role": "assistant", "content": "Grüße"})),
        delta(json!({"tool_calls": [{"index": 0, "id": "toolu_1", "type": "function", "function": {"name": "get_time", "arguments": ""}}]})),
        delta(json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"zone\":\"UTC\"}"}}],
            "reasoning_details": [{"type": "reasoning.encrypted", "data": "AA/+==", "id": "toolu_1", "index": 1}]})),
        event(&json!({"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "tool_calls", "native_finish_reason": "tool_use"}]})),
        event(&json!({"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": null}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13, "cost": 0.1}})),
        DONE.to_owned(),
    ]
    .concat()
}

// L-34
#[tokio::test]
async fn details_of_reasoning_are_kept_as_they_came() {
    let outcome = outcome_of(openrouter()).await;
    assert_eq!((outcome.reasoning().as_str(), outcome.text().as_str()), ("Let me", "Grüße"));
    let signed =
        json!({"type": "reasoning.text", "text": "Let me", "signature": "EuYB/+==", "format": "anthropic-claude-v1", "index": 0});
    let encrypted = json!({"type": "reasoning.encrypted", "data": "AA/+==", "id": "toolu_1", "index": 1});
    let block = |detail: &Value| json!({"reasoning_details": [detail]});
    // The first block is before the text, at the end of the reasoning.
    assert_eq!(outcome.events[2], ModelEvent::ReasoningBlock(block(&signed)));
    assert_eq!(blocks(&outcome), [block(&signed), block(&encrypted)]);
    assert_eq!((outcome.finish(), outcome.usage().unwrap().output_tokens), (ModelFinish::ToolCalls, 4));

    let summary = json!({"reasoning_details": [{"type": "reasoning.summary", "summary": "only here"}]});
    assert_eq!(said(&[json!({"choices": [{"delta": summary, "finish_reason": "stop"}]})]).await.reasoning(), "only here");
}

// L-03, L-08, L-09
#[tokio::test]
async fn frames_and_cuts_of_an_accent() {
    let body = openrouter();
    let body = body.trim_start_matches(": OPENROUTER PROCESSING\n\n");
    let expected = outcome_of(body).await;
    mutants::framing_does_not_matter(chat, Frames::Events, body, &expected).await;
    let said_why = body.find("\"finish_reason\":\"tool_calls\"").unwrap();
    let whole_from = said_why + body[said_why..].find("\n\n").unwrap() + 2;
    mutants::a_cut_is_never_whole(chat, body, whole_from, &expected).await;
}

// L-33
#[tokio::test]
async fn signatures_of_calls_are_kept() {
    let signature = json!({"google": {"thought_signature": "Cv/+=="}});
    let call = |more: Value| {
        let mut call =
            json!({"index": 0, "id": "function-call-1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}});
        for (name, value) in more.as_object().unwrap() {
            call[name] = value.clone();
        }
        call
    };
    let outcome = said(&[
        json!({"choices": [{"delta": {"content": "<thought>Plan", "extra_content": {"google": {"thought": true}}}}]}),
        json!({"choices": [{"delta": {"tool_calls": [call(json!({"extra_content": signature}))]}, "finish_reason": null}]}),
        json!({"choices": [{"delta": {"tool_calls": [call(json!({"id": "b", "provider_specific_fields": {"thought_signature": "x"}}))]}, "finish_reason": "stop"}]}),
    ])
    .await;
    assert_eq!((outcome.reasoning().as_str(), outcome.text().as_str()), ("Plan", ""));
    assert_eq!((outcome.calls().len(), outcome.finish()), (2, ModelFinish::ToolCalls));
    assert_eq!(
        blocks(&outcome),
        [json!({"extra_content": signature}), json!({"provider_specific_fields": {"thought_signature": "x"}})]
    );
}

// Mistral, and Databricks in the second case.
#[tokio::test]
async fn content_in_parts_tells_thoughts_from_text() {
    for thought in [
        json!({"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}),
        json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm", "signature": "x"}]}),
    ] {
        let outcome = said(&[
            json!({"choices": [{"delta": {"role": "assistant", "content": [thought]}}]}),
            json!({"choices": [{"delta": {"content": [{"type": "text", "text": "Hel"}, {"type": "reference", "reference_ids": [1]}]}}]}),
            json!({"choices": [{"delta": {"content": "lo"}, "finish_reason": "stop"}]}),
        ])
        .await;
        assert_eq!((outcome.reasoning().as_str(), outcome.text().as_str()), ("hm", "Hello"));
    }
}

// Perplexity repeats the whole text in each event. Other providers send the whole message in one event.
#[tokio::test]
async fn a_message_beside_the_delta_is_not_said_twice() {
    let both = |delta: &str, message: &str, finish: Value| {
        json!({"citations": ["https://host"], "choices": [{"index": 0, "finish_reason": finish,
            "message": {"role": "assistant", "content": message}, "delta": {"role": "assistant", "content": delta}}]})
    };
    let outcome = said(&[both("", "", json!(null)), both("Hel", "Hel", json!(null)), both("lo", "Hello", json!("stop"))]).await;
    assert_eq!((outcome.text().as_str(), outcome.finish()), ("Hello", ModelFinish::Stop));
    assert_eq!(said(&[json!({"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]})]).await.text(), "Hello");
    let whole = outcome_document(&both("", "Hello", json!("stop"))).await;
    assert_eq!(whole.text(), "Hello");
}

async fn outcome_document(body: &Value) -> Outcome {
    outcome(Answer::json(200, &body.to_string())).await
}

#[tokio::test]
async fn the_older_form_of_a_call() {
    let outcome = said(&[
        json!({"choices": [{"delta": {"function_call": {"name": "get_time", "arguments": ""}}}]}),
        json!({"choices": [{"delta": {"function_call": {"arguments": "{\"x\":"}}}]}),
        json!({"choices": [{"delta": {"function_call": {"arguments": "1}"}}}]}),
        json!({"choices": [{"delta": {}, "finish_reason": "function_call"}]}),
    ])
    .await;
    assert_eq!(outcome.calls(), [(String::new(), "get_time".to_owned(), "{\"x\":1}".to_owned())]);
}

// llama-cpp-python repeats name and id in every delta.
#[tokio::test]
async fn a_call_in_both_forms_is_one_call() {
    let piece = |arguments: &str| {
        let function = json!({"name": "get_time", "arguments": arguments});
        let call = json!({"index": 0, "id": "call__0_get_time_cmpl-1", "type": "function", "function": function});
        let delta = json!({"role": null, "content": null, "function_call": function, "tool_calls": [call]});
        json!({"choices": [{"index": 0, "finish_reason": null, "logprobs": null, "delta": delta}]})
    };
    let end = json!({"role": null, "content": null, "function_call": null, "tool_calls": null});
    let end = json!({"choices": [{"index": 0, "finish_reason": "tool_calls", "delta": end}]});
    let outcome = said(&[piece("{"), piece("\"x\":"), piece("1}"), piece(""), end]).await;
    let call = ("call__0_get_time_cmpl-1".to_owned(), "get_time".to_owned(), "{\"x\":1}".to_owned());
    assert_eq!(outcome.calls(), [call]);
}

// L-39: usage in each known position.
#[rstest]
#[case::groq(json!({"choices": [], "x_groq": {"id": "r", "usage": {"prompt_tokens": 9, "completion_tokens": 4}}}), (9, 4, 0, 0))]
#[case::moonshot(json!({"choices": [{"delta": {}, "usage": {"prompt_tokens": 9, "completion_tokens": 4, "cached_tokens": 5}}]}), (9, 4, 5, 0))]
#[case::deepseek(json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4, "prompt_cache_hit_tokens": 5,
    "completion_tokens_details": {"reasoning_tokens": 3}}}), (9, 4, 5, 3))]
#[case::xai_counts_reasoning_beside(json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 20,
    "completion_tokens_details": {"reasoning_tokens": 7}}}), (9, 11, 0, 7))]
#[case::openai_counts_it_in(json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 11, "total_tokens": 20,
    "completion_tokens_details": {"reasoning_tokens": 7}}}), (9, 11, 0, 7))]
#[case::perplexity(json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4, "reasoning_tokens": 2, "num_search_queries": 1}}), (9, 4, 0, 2))]
#[case::gemini_counts_thoughts_in_the_total(json!({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 20, "total_tokens": 650}}), (8, 642, 0, 622))]
#[case::nothing_but_the_sum(json!({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 20, "total_tokens": 28}}), (8, 20, 0, 0))]
#[case::cached_tokens_beside_the_prompt(json!({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 115,
    "cache_read_input_tokens": 100}}), (110, 5, 100, 0))]
#[case::read_from_a_cache_and_written_to_it(json!({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 135,
    "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20}}), (130, 5, 100, 0))]
#[case::cached_tokens_within_the_prompt(json!({"choices": [], "usage": {"prompt_tokens": 110, "completion_tokens": 5, "total_tokens": 115,
    "cache_read_input_tokens": 100}}), (110, 5, 100, 0))]
#[case::details_that_are_none(json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": 0,
    "completion_tokens_details": ""}}), (9, 4, 0, 0))]
#[case::other_names(json!({"choices": [], "usage": {"input_tokens": 9, "output_tokens": 4}}), (9, 4, 0, 0))]
#[tokio::test]
async fn figures_of_many_forms(#[case] figures: Value, #[case] expected: (u64, u64, u64, u64)) {
    let body = [delta(json!({"content": "Hello!"})), finish("stop"), event(&figures), DONE.to_owned()].concat();
    let usage = outcome_of(body).await.usage().unwrap();
    assert_eq!((usage.input_tokens, usage.output_tokens, usage.cached_input_tokens, usage.reasoning_tokens), expected);
    assert!(!usage.estimated);
}

// L-01
#[rstest]
#[case::groq(json!({"choices": [], "x_groq": {"error": "over capacity"}}), ModelErrorKind::Unavailable)]
#[case::minimax(json!({"choices": null, "base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}), ModelErrorKind::Quota)]
#[case::minimax_as_a_text(json!({"choices": null, "base_resp": {"status_code": "1008", "status_msg": "insufficient balance"}}), ModelErrorKind::Quota)]
#[case::minimax_of_a_plan(json!({"id": "", "choices": null, "created": 0, "base_resp": {"status_code": 2056, "status_msg": "usage limit exceeded"}}), ModelErrorKind::Quota)]
#[case::nothing_but_an_empty_error(json!({"error": {"code": null, "message": ""}}), ModelErrorKind::Unavailable)]
#[case::minimax_unknown(json!({"choices": null, "base_resp": {"status_code": 1000, "status_msg": "unknown"}}), ModelErrorKind::Unavailable)]
#[case::litellm(json!({"error": {"message": "litellm.RateLimitError: slow", "type": "None", "param": "None", "code": "429"}}), ModelErrorKind::RateLimit)]
#[case::litellm_key(json!({"error": {"message": "litellm.AuthenticationError: no", "type": "None", "param": "None", "code": "401"}}), ModelErrorKind::Auth)]
#[case::groq_call(json!({"error": {"message": "Failed to call a function. Please adjust your prompt.", "type": "invalid_request_error",
    "code": "tool_use_failed", "failed_generation": "<function=x>", "status_code": 400}}), ModelErrorKind::BadStream)]
#[case::dashscope(json!({"error": {"message": "may contain inappropriate content", "type": "data_inspection_failed", "code": "data_inspection_failed"}}), ModelErrorKind::ContentFilter)]
#[case::google(json!({"error": {"message": "Resource has been exhausted", "status": "RESOURCE_EXHAUSTED"}}), ModelErrorKind::RateLimit)]
#[case::cerebras(json!({"message": "We're experiencing high traffic right now!", "type": "too_many_requests_error", "param": "queue", "code": "queue_exceeded"}), ModelErrorKind::Overloaded)]
#[case::too_many(json!({"message": "slow down", "type": "too_many_requests_error"}), ModelErrorKind::RateLimit)]
#[case::fastapi(json!({"detail": "Internal Server Error"}), ModelErrorKind::Unavailable)]
#[case::fastapi_key(json!({"detail": {"code": "invalid_api_key", "message": "no"}}), ModelErrorKind::Auth)]
#[case::tgi(json!({"error": "busy", "error_type": "overloaded"}), ModelErrorKind::Overloaded)]
#[case::beside(json!({"error": "slow", "status_code": 429}), ModelErrorKind::RateLimit)]
#[case::zhipu(json!({"choices": [{"delta": {}, "finish_reason": "network_error"}]}), ModelErrorKind::Unavailable)]
#[tokio::test]
async fn errors_of_many_forms(#[case] error: Value, #[case] kind: ModelErrorKind) {
    let outcome = outcome_of([delta(json!({"content": "Hel"})), event(&error), finish("stop"), DONE.to_owned()].concat()).await;
    assert_eq!((outcome.error(), outcome.text().as_str()), (kind, "Hel"));
    let fine = json!({"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}], "base_resp": {"status_code": 0, "status_msg": ""}});
    assert_eq!(said(&[fine]).await.finish(), ModelFinish::Stop);
}

#[rstest]
#[case("COMPLETE", ModelFinish::Stop)]
#[case("eos", ModelFinish::Stop)]
#[case("model_length", ModelFinish::Length)]
#[case("repetition", ModelFinish::Length)]
#[case("model_context_window_exceeded", ModelFinish::Length)]
#[case("sensitive", ModelFinish::Refused)]
#[case("max_length", ModelFinish::Length)]
#[case("content-filter", ModelFinish::Refused)]
#[case("ERROR_TOXIC", ModelFinish::Refused)]
#[case("content_filter: PROHIBITED_CONTENT", ModelFinish::Refused)]
#[case("content_filter: RECITATION", ModelFinish::Refused)]
#[case("guardrail_intervened", ModelFinish::Refused)]
#[tokio::test]
async fn words_for_the_end(#[case] word: &str, #[case] expected: ModelFinish) {
    assert_eq!(outcome_of([delta(json!({"content": "Hel"})), finish(word), DONE.to_owned()].concat()).await.finish(), expected);
}

// L-05: a gateway's placeholder for an unknown reason is no finish reason.
#[rstest]
#[tokio::test]
async fn a_reason_that_names_none(#[values("other", "unknown")] word: &str) {
    let text = delta(json!({"content": "Hel"}));
    let call = |arguments: &str| {
        delta(json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "get_time", "arguments": arguments}}]}))
    };
    for (said, end) in [
        (text.clone(), Ok(ModelFinish::Stop)),
        (call("{}"), Ok(ModelFinish::ToolCalls)),
        (call("{\"x\""), Err(ModelErrorKind::IncompleteStream)),
        (String::new(), Err(ModelErrorKind::IncompleteStream)),
    ] {
        let outcome = outcome_of([&said, &finish(word), DONE].concat()).await;
        assert_eq!(outcome.end.map_err(|error| error.kind), end, "{said}");
        assert_eq!(outcome_of([said, finish(word)].concat()).await.error(), ModelErrorKind::IncompleteStream);
    }
    let calls = outcome_of([&call("{}"), &finish("tool-calls"), DONE].concat()).await;
    assert_eq!(calls.finish(), ModelFinish::ToolCalls);
}

// Gemini's compatible endpoint, in an earlier version.
#[tokio::test]
async fn a_reason_to_stop_under_its_other_name() {
    let choice = json!({"index": 0, "delta": {"content": "Hel"}, "finish_reason": null, "finishReason": "length"});
    let outcome = outcome_of(event(&json!({"choices": [choice]}))).await;
    assert_eq!((outcome.text().as_str(), outcome.end), ("Hel", Ok(ModelFinish::Length)));
}

// L-05, L-06
#[rstest]
#[tokio::test]
async fn the_end_mark_in_other_spellings(
    #[values("data: [done]", "data: DONE", "data: \"[DONE]\"", "event: done\ndata: done")] mark: &str,
) {
    let text = delta(json!({"content": "Hel"}));
    let figures = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":\"7\",\"completion_tokens\":1.0}}\n\n";
    for body in [text.clone(), [text.as_str(), &finish("stop"), figures].concat()] {
        let outcome = outcome_of([&body, mark, "\n\n", &text].concat()).await;
        assert_eq!((outcome.text().as_str(), outcome.end.clone()), ("Hel", Ok(ModelFinish::Stop)));
        assert_eq!(outcome.usage().unwrap().estimated, !body.contains("usage"));
    }
}

// L-07: null and empty values where gateways send them, and numbers in other types.
#[tokio::test]
async fn nothing_in_many_forms() {
    let nothing = [
        "data: null\n\n",
        "event: ping\ndata: ping\n\n",
        "event: heartbeat\ndata: 2026-01-01\n\n",
        "data: keep-alive\n\n",
        "data: {\"choices\":[null]}\n\n",
        "data: {\"choices\":[],\"usage\":\"\",\"x_groq\":\"\",\"base_resp\":null}\n\n",
        "data: {\"choices\":[],\"usage\":[]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":\"\",\"finish_reason\":null}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":[],\"message\":false,\"error\":{\"code\":0}}]}\n\n",
        "data: {\"code\":200,\"message\":\"success\",\"choices\":[]}\n\n",
        "data: {\"code\":\"0000\",\"message\":\"Success\",\"choices\":[]}\n\n",
        "data: {\"type\":\"warning\",\"message\":\"this model is old\"}\n\n",
        "data: {\"status\":\"processing\",\"message\":\"queued\"}\n\n",
        "data: {\"result\":\"ok\"}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"\",\"tool_calls\":\"\"},\"finish_reason\":\"\"}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":false,\"reasoning\":{}},\"finish_reason\":\"not_finished\"}]}\n\n",
    ];
    let good =
        |error: Value| json!({"error": error, "choices": [{"index": "0", "delta": {"content": "Hel"}, "finish_reason": null}]});
    let said = [good(json!({"code": null, "message": null})), good(json!({"code": 0, "message": ""})), good(json!(0))];
    let call = json!({"index": 0.0, "id": "a", "function": {"name": "get_time", "arguments": "{"}});
    let rest = json!({"index": "0", "function": {"arguments": "}"}});
    let calls = [call, rest].map(|piece| delta(json!({"tool_calls": [piece], "function_call": ""})));
    let body = [nothing.concat(), said.iter().map(event).collect(), nothing.concat(), calls.concat(), finish("tool_calls")];
    let outcome = outcome_of(body.concat() + DONE).await;
    assert_eq!((outcome.text().as_str(), outcome.end.clone()), ("HelHelHel", Ok(ModelFinish::ToolCalls)));
    assert_eq!(outcome.calls(), [("a".to_owned(), "get_time".to_owned(), "{}".to_owned())]);
    // Text in an unexpected position is not lost.
    let lost = "data: {\"choices\":[{\"delta\":\"Hello\"}]}\n\n";
    assert_eq!(outcome_of([lost, &finish("stop"), DONE].concat()).await.error(), ModelErrorKind::BadStream);
}

// L-32: Gemini's compatible endpoint.
#[tokio::test]
async fn a_call_that_its_provider_cannot_read_is_asked_for_again() {
    let word = "function_call_filter: MALFORMED_FUNCTION_CALL";
    assert_eq!(outcome_of([finish(word), DONE.to_owned()].concat()).await.error(), ModelErrorKind::BadStream);
    assert_eq!(outcome_of([delta(json!({"content": "Hel"})), finish("null"), DONE.to_owned()].concat()).await.text(), "Hel");
}

/// Returns an answer with reasoning tags, as open models write it.
fn thinking_aloud() -> String {
    let text = |text: &str| delta(json!({"content": text}));
    let pieces =
        ["\n<thi", "nk>\nOkay, ", "the user </", "i> says hi", ".\n</", "think", ">", "\n\n", "Hi ", "<think>there</think> ü"];
    [delta(json!({"role": "assistant", "content": ""})), pieces.map(text).concat(), finish("stop"), usage(3, 4), DONE.to_owned()]
        .concat()
}

fn aloud(options: ClientOptions) -> Result<Arc<dyn ModelClient>, SetupError> {
    openai::client(options, Quirks { thoughts_in_text: InlineReasoning::Always, ..Quirks::default() })
}

// L-03, L-09, L-30: reasoning between tags, at any chunk boundary.
#[tokio::test]
async fn thoughts_in_the_text_are_reasoning() {
    let outcome = mutants::outcome_of(aloud, thinking_aloud()).await;
    assert_eq!(outcome.reasoning(), "Okay, the user </i> says hi.");
    assert_eq!((outcome.text().as_str(), outcome.finish()), ("Hi <think>there</think> ü", ModelFinish::Stop));
    let body = thinking_aloud();
    mutants::framing_does_not_matter(aloud, Frames::Events, &body, &outcome).await;
    let said_why = body.find("\"finish_reason\":\"stop\"").unwrap();
    mutants::a_cut_is_never_whole(aloud, &body, said_why + body[said_why..].find("\n\n").unwrap() + 2, &outcome).await;

    // This model is not configured for reasoning tags.
    assert_eq!(outcome_of(thinking_aloud()).await.reasoning(), "");
    let whole = json!({"choices": [{"message": {"content": "<think>hm</think>Hi"}, "finish_reason": "stop"}]}).to_string();
    let outcome = mutants::outcomes_of(aloud, vec![Answer::json(200, &whole)]).await.remove(0);
    assert_eq!((outcome.reasoning().as_str(), outcome.text().as_str()), ("hm", "Hi"));
    // If reasoning arrives in its own field, tags in the text stay text.
    let both = [delta(json!({"reasoning_content": "hm"})), delta(json!({"content": "<think> is a tag"})), finish("stop")].concat();
    let outcome = mutants::outcome_of(aloud, both).await;
    assert_eq!((outcome.reasoning().as_str(), outcome.text().as_str()), ("hm", "<think> is a tag"));
    // Reasoning alone is no text.
    let cut = [delta(json!({"content": "<think>hm"})), finish("length")].concat();
    let outcome = mutants::outcome_of(aloud, cut).await;
    assert_eq!((outcome.reasoning().as_str(), outcome.text().as_str(), outcome.finish()), ("hm", "", ModelFinish::Length));
}

#[test]
fn models_that_think_aloud_are_known_by_name() {
    let usual = Quirks::default();
    for model in [
        "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
        "MiniMax-M2",
        "sonar-reasoning-pro",
        "Qwen/Qwen3-32B",
        "kimi-k2-thinking",
        "qwq-32b",
        "gpt-oss-120b",
        // Its compatible endpoint.
        "gemini-2.5-pro",
    ] {
        assert!(usual.may_inline_reasoning(model), "{model}");
    }
    for model in ["gpt-5", "gpt-4.1", "o3", "claude-sonnet-4-5", "mistral-large-latest", "gpt-x"] {
        assert!(!usual.may_inline_reasoning(model), "{model}");
    }
}

// L-34: LiteLLM, whose last block has the signature and, in some versions, the whole text again.
#[rstest]
#[case::signature_only("")]
#[case::all_again("Let me")]
#[tokio::test]
async fn thinking_blocks_are_kept_as_they_came(#[case] last: &str) {
    let block = |text: &str, signature: &str| json!({"type": "thinking", "thinking": text, "signature": signature});
    let piece = |text: &str, blocks: Value| delta(json!({"reasoning_content": text, "thinking_blocks": blocks}));
    let body = [
        piece("Let ", json!([block("Let ", "")])),
        piece("me", json!([block("me", "")])),
        delta(json!({"thinking_blocks": [block(last, "EqQB==")]})),
        delta(json!({"tool_calls": [{"index": 0, "id": "toolu_1", "function": {"name": "get_time", "arguments": "{}"}}]})),
        finish("tool_calls"),
        DONE.to_owned(),
    ];
    let outcome = outcome_of(body.concat()).await;
    assert_eq!((outcome.reasoning().as_str(), outcome.calls().len()), ("Let me", 1));
    assert_eq!(blocks(&outcome), [json!({"thinking_blocks": [block("Let me", "EqQB==")]})]);
}

// L-21: a finish reason in every chunk is no end while more chunks arrive, however late.
#[tokio::test]
async fn a_reason_to_stop_in_every_event_is_none() {
    let piece = |text: &str| event(&json!({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]}));
    let wire = Wire::play(vec![Answer::events(vec![
        Step::Send([piece("Hel"), piece("lo")].concat().into_bytes()),
        Step::Pause(Duration::from_millis(400)),
        Step::Send([piece(" you"), DONE.to_owned()].concat().into_bytes()),
    ])])
    .await;
    let mut options = options(&wire);
    options.limits.after_finish = Duration::from_millis(50);
    let outcome = ask(options, question()).await;
    assert_eq!((outcome.text().as_str(), outcome.finish()), ("Hello you", ModelFinish::Stop));
}

// L-03: a finish reason in the first event is no end either.
#[tokio::test]
async fn a_reason_to_stop_in_the_first_event_is_none() {
    let piece = |text: &str| event(&json!({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]}));
    let asked = async |last: Step| {
        let steps = vec![Step::Send(piece("Hel").into_bytes()), Step::Pause(Duration::from_millis(400)), last];
        let wire = Wire::play(vec![Answer::events(steps)]).await;
        let mut options = options(&wire);
        options.limits.after_finish = Duration::from_millis(50);
        ask(options, question()).await
    };
    let whole = asked(Step::Send([piece("lo"), DONE.to_owned()].concat().into_bytes())).await;
    assert_eq!((whole.text().as_str(), whole.finish()), ("Hello", ModelFinish::Stop));
    let cut = asked(Step::Cut).await;
    assert_eq!((cut.text().as_str(), cut.error()), ("Hel", ModelErrorKind::IncompleteStream));
}

// Cloudflare's calls have the name at their top level, and its own answers have no choices.
#[tokio::test]
async fn the_forms_of_cloudflare() {
    let call = |x: i64| json!({"name": "get_time", "arguments": {"x": x}});
    let expected = [1, 2].map(|x| (String::new(), "get_time".to_owned(), format!("{{\"x\":{x}}}")));
    let calls = json!({"tool_calls": [call(1), call(2)]});
    let streamed =
        said(&[json!({"choices": [{"delta": calls}]}), json!({"choices": [{"delta": {}, "finish_reason": "stop"}]})]).await;
    let whole = outcome_document(&json!({"choices": [{"message": calls, "finish_reason": "stop"}]})).await;
    let own = said(&[json!({"response": null, "tool_calls": [call(1), call(2)]})]).await;
    for outcome in [streamed, whole, own] {
        assert_eq!((outcome.calls(), outcome.finish()), (expected.to_vec(), ModelFinish::ToolCalls));
    }
    let figures = json!({"response": "", "usage": {"prompt_tokens": 9, "completion_tokens": 4}});
    let enveloped = |result: Value| json!({"result": result, "success": true, "errors": [], "messages": []});
    let usage = json!({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7});
    let inner = json!({"response": "Hello", "tool_calls": [], "usage": usage});
    for whole in [inner.clone(), enveloped(inner)] {
        let whole = outcome_document(&whole).await;
        assert_eq!((whole.text().as_str(), whole.end.clone()), ("Hello", Ok(ModelFinish::Stop)));
        assert_eq!(whole.usage().unwrap().input_tokens, 5);
    }
    let whole = outcome_document(&enveloped(json!({"response": null, "tool_calls": [call(1), call(2)]}))).await;
    assert_eq!((whole.calls(), whole.finish()), (expected.to_vec(), ModelFinish::ToolCalls));
    let own = said(&[json!({"response": "Hel", "p": "ab"}), json!({"response": "lo"}), figures]).await;
    assert_eq!((own.text().as_str(), own.finish(), own.usage().unwrap().output_tokens), ("Hello", ModelFinish::Stop, 4));
}

#[rstest]
#[case(json!(["Hel", "lo"]))]
#[case(json!(["Hel", {"type": "text", "text": "lo"}, null]))]
#[case(json!({"type": "text", "text": "Hello"}))]
#[tokio::test]
async fn content_of_many_forms(#[case] content: Value) {
    let streamed = said(&[json!({"choices": [{"delta": {"content": content}, "finish_reason": "stop"}]})]).await;
    let whole = outcome_document(&json!({"choices": [{"message": {"content": content}, "finish_reason": "stop"}]})).await;
    assert_eq!((streamed.text().as_str(), whole.text().as_str()), ("Hello", "Hello"));
}

// Text in the field of the legacy completions API. Together repeats the delta there.
#[tokio::test]
async fn text_in_place_of_a_delta() {
    let piece = |text: &str| json!({"choices": [{"index": 0, "text": text, "logprobs": null, "finish_reason": null}]});
    let both = json!({"choices": [{"index": 0, "text": " you", "delta": {"content": " you"}, "finish_reason": "stop"}]});
    let outcome = said(&[piece("Hel"), piece("lo"), both]).await;
    assert_eq!((outcome.text().as_str(), outcome.finish()), ("Hello you", ModelFinish::Stop));
    assert_eq!(outcome_of([event(&piece("Hel")), event(&piece("lo"))].concat()).await.error(), ModelErrorKind::IncompleteStream);
}

// L-01, L-20: llama.cpp has its own field for errors.
#[rstest]
#[case(r#"{"code":500,"message":"Failed to parse input at pos 50","type":"server_error"}"#, ModelErrorKind::Unavailable)]
#[case(
    r#"{"code":400,"message":"the request exceeds it","type":"exceed_context_size_error","n_ctx":4096}"#,
    ModelErrorKind::ContextOverflow
)]
#[tokio::test]
async fn an_error_in_a_field_of_its_own(#[case] error: &str, #[case] kind: ModelErrorKind) {
    let body = [delta(json!({"content": "error: {"})), format!("error: {error}\n\n")].concat();
    let expected = outcome_of(&body).await;
    assert_eq!((expected.error(), expected.text().as_str()), (kind, "error: {"));
    mutants::framing_does_not_matter(chat, Frames::Events, &body, &expected).await;
}

// L-09: gateways that drop the blank line before the end mark, or join several events.
#[rstest]
#[case::no_blank_line("\ndata: ")]
#[case::one_line("")]
#[tokio::test]
async fn several_events_in_one(#[case] between: &str) {
    let chunk = |text: &str| json!({"choices": [{"index": 0, "delta": {"content": text}}]}).to_string();
    let closing = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}).to_string();
    // Brackets inside the text separate nothing.
    let body = format!("data: {}\n\n", [chunk("a}{"), chunk("} {b\n{"), closing.clone(), "[DONE]".to_owned()].join(between));
    let outcome = outcome_of(body).await;
    assert_eq!((outcome.text().as_str(), outcome.finish()), ("a}{} {b\n{", ModelFinish::Stop));
    let damaged = format!("data: {}{between}{}\n\n", chunk("Hel"), closing.trim_end_matches('}'));
    let outcome = outcome_of(damaged).await;
    assert_eq!((outcome.text().as_str(), outcome.error()), ("Hel", ModelErrorKind::BadStream));
}

// Copilot spreads an answer of Claude over several choices. Foundry Local numbers its events in the choice index.
#[tokio::test]
async fn an_answer_may_be_in_several_choices() {
    let call = json!({"id": "a", "type": "function", "function": {"name": "get_time", "arguments": "{}"}});
    for index in [json!(null), json!(0)] {
        let message = json!({"choices": [
            {"index": index, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": "wait"}},
            {"index": index, "finish_reason": "tool_calls", "message": {"role": "assistant", "tool_calls": [call]}}]});
        let outcome = outcome_document(&message).await;
        assert_eq!((outcome.text().as_str(), outcome.calls().len(), outcome.finish()), ("wait", 1, ModelFinish::ToolCalls));
    }
    let counted =
        |index: i64, text: &str| json!({"choices": [{"index": index, "delta": {"content": text}, "finish_reason": null}]});
    for first in [0, 1] {
        let mut events: Vec<_> = (first..).zip(["Hel", "lo", " you"]).map(|(index, text)| counted(index, text)).collect();
        events.push(json!({"choices": [{"index": first + 3, "delta": {}, "finish_reason": "stop"}]}));
        let outcome = said(&events).await;
        assert_eq!((outcome.text().as_str(), outcome.finish()), ("Hello you", ModelFinish::Stop));
    }
    let outcome = said(&[
        counted(0, "Hel"),
        counted(0, "lo"),
        counted(1, "other"),
        json!({"choices": [{"index": 0, "finish_reason": "stop"}]}),
    ])
    .await;
    assert_eq!(outcome.text(), "Hello");
}

// The cost that OpenRouter and Perplexity report.
#[rstest]
#[case(json!({"cost": 0.000675}), Some("0.000675"))]
#[case(json!({"cost": 0.05, "is_byok": true, "cost_details": {"upstream_inference_cost": 1.0}}), Some("1.05"))]
#[case(json!({"cost": 0.05, "is_byok": true, "cost_details": {"upstream_inference_cost": null}}), None)]
#[case(json!({"cost": {"input_tokens_cost": 0.1, "total_cost": 0.3}}), Some("0.3"))]
#[case(json!({"cost": "free", "is_byok": 7, "cost_details": []}), None)]
#[case(json!({"cost": -1}), None)]
#[tokio::test]
async fn the_cost_that_a_provider_gives(#[case] more: Value, #[case] cost: Option<&str>) {
    let mut figures = json!({"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13});
    figures.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let body = [delta(json!({"content": "Hi"})), finish("stop"), event(&json!({"choices": [], "usage": figures})), DONE.to_owned()];
    let usage = outcome_of(body.concat()).await.usage().unwrap();
    assert_eq!(usage.cost.map(|cost| cost.to_string()).as_deref(), cost);
}
