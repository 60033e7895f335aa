//! Reasoning tags in the text of an answer, alone and beside separate reasoning fields.

use std::sync::Arc;

use capstan::domain::model::{ModelEvent, ModelFinish, ModelRequest};
use capstan::provider::{ModelClient, openai};
use rstest::rstest;
use serde_json::{Value, json};

use super::drive::{DONE, Outcome, ask_through, delta, finish, options, question};
use support::wire::{Answer, Wire};

fn client(wire: &Wire, accent: &str) -> Arc<dyn ModelClient> {
    openai::client(options(wire), toml::from_str(accent).unwrap()).unwrap()
}

/// Returns the outcome of these deltas, read with these quirks.
async fn said(accent: &str, model: &str, deltas: &[Value], reason: &str) -> Outcome {
    let events: String = deltas.iter().cloned().map(delta).collect();
    let wire = Wire::play(vec![Answer::stream([events, finish(reason), DONE.to_owned()].concat())]).await;
    let request = ModelRequest { model: model.to_owned(), ..question() };
    ask_through(client(&wire, accent).as_ref(), request).await
}

/// Returns the outcome of an answer in one document.
async fn said_at_once(model: &str, message: Value) -> Outcome {
    let body = json!({"choices": [{"message": message, "finish_reason": "stop"}]}).to_string();
    let wire = Wire::play(vec![Answer::json(200, &body)]).await;
    let request = ModelRequest { model: model.to_owned(), ..question() };
    ask_through(client(&wire, "").as_ref(), request).await
}

fn told(outcome: &Outcome) -> (String, String) {
    (outcome.reasoning(), outcome.text())
}

fn expected(reasoning: &str, text: &str) -> (String, String) {
    (reasoning.to_owned(), text.to_owned())
}

// MiniMax sends the same reasoning in tags and in a separate field.
#[tokio::test]
async fn reasoning_in_both_fields_is_reported_once() {
    let both = [
        json!({"content": "<think>\nThe user", "reasoning_content": "The user"}),
        json!({"content": " says hi.\n</thi", "reasoning_content": " says hi."}),
        json!({"content": "nk>\n\nHi"}),
        json!({"content": " there"}),
    ];
    for accent in ["", "thoughts_in_text = 'always'"] {
        assert_eq!(told(&said(accent, "MiniMax-M2", &both, "stop").await), expected("The user says hi.", "Hi there"));
    }
    let cut = said("", "MiniMax-M2", &both[..1], "length").await;
    assert_eq!((told(&cut), cut.finish()), (expected("The user", ""), ModelFinish::Length));
    let message = json!({"content": "<think>\nThe user\n</think>\n\nHi", "reasoning_content": "The user"});
    assert_eq!(told(&said_at_once("MiniMax-M2", message).await), expected("The user", "Hi"));
    // Different reasoning is no repetition.
    let others = [json!({"reasoning": "In short."}), json!({"content": "<think>At length.</think>Hi"})];
    assert_eq!(told(&said("", "MiniMax-M2", &others, "stop").await), expected("In short.At length.", "Hi"));
}

// Gemini's compatible endpoint.
#[tokio::test]
async fn thoughts_that_are_marked_and_named() {
    let thought = |text: &str| json!({"content": text, "extra_content": {"google": {"thought": true}}});
    for model in ["gemini-2.5-pro", "gpt-x"] {
        let outcome =
            said("", model, &[thought("<thought>Plan"), thought(" it"), json!({"content": "</thought>Hi"})], "stop").await;
        assert_eq!(told(&outcome), expected("Plan it", "Hi"));
        let outcome = said("", model, &[thought("Plan"), json!({"content": "Hi"})], "stop").await;
        assert_eq!(told(&outcome), expected("Plan", "Hi"));
    }
    let whole = |more: Value| json!({"content": "<thought>Plan</thought>Hi", "extra_content": more});
    for more in [json!(null), json!({"google": {"thought": true}})] {
        assert_eq!(told(&said_at_once("gemini-2.5-pro", whole(more)).await), expected("Plan", "Hi"));
    }
}

// vLLM without its reasoning parser: the prompt ends with the opening tag.
#[tokio::test]
async fn the_prompt_may_open_the_thoughts() {
    let deltas = ["Okay, ", "so...</th", "ink>", "\n\nHi"].map(|text| json!({"content": text}));
    let accent = "think_opened = ['-r1']";
    let model = "deepseek-ai/DeepSeek-R1";
    assert_eq!(told(&said(accent, model, &deltas, "stop").await), expected("Okay, so...", "Hi"));
    // The answer is not lost if the server has removed the reasoning, whether it sends it separately or not.
    let shown = [json!({"reasoning_content": "hm"}), json!({"content": "Hi"})];
    assert_eq!(told(&said(accent, model, &shown, "stop").await), expected("hm", "Hi"));
    assert_eq!(told(&said(accent, model, &shown[1..], "stop").await), expected("Hi", "Hi"));
    assert_eq!(told(&said(accent, model, &shown[1..], "length").await), expected("Hi", ""));
    // A document can be inspected as a whole.
    let whole = json!({"content": "Okay, so...</think>\n\nHi"});
    assert_eq!(told(&said_at_once(model, whole.clone()).await), expected("Okay, so...", "Hi"));
    assert_eq!(told(&said_at_once("gpt-x", whole).await), expected("", "Okay, so...</think>\n\nHi"));
}

// The prompt opened the reasoning, and no quirk says so: the shown text is reset at the closing tag.
#[rstest]
#[case::streamed("Okay, so...\n</think>\n\nHi </think>", "Okay, so...", "Hi </think>")]
#[case::at_once("</think>\n\nHi", "", "Hi")]
#[case::quoted("It ends with `</think>`.", "", "It ends with `</think>`.")]
#[case::both_named("After <think> comes </think>.", "", "After <think> comes </think>.")]
#[tokio::test]
async fn a_closing_tag_alone_ends_thoughts(#[case] whole: &str, #[case] thought: &str, #[case] text: &str) {
    let deltas: Vec<Value> = whole.chars().map(|c| json!({"content": c.to_string()})).collect();
    let outcome = said("", "Qwen/Qwen3-Thinking", &deltas, "stop").await;
    let restarts: Vec<usize> = (0..outcome.events.len()).filter(|at| outcome.events[*at] == ModelEvent::Restarted).collect();
    assert_eq!(restarts.len(), usize::from(!thought.is_empty()), "{outcome:?}");
    let last = Outcome { events: outcome.events[restarts.first().copied().unwrap_or(0)..].to_vec(), end: outcome.end.clone() };
    assert_eq!((told(&last), last.finish()), (expected(thought, text), ModelFinish::Stop));
    assert_eq!(told(&said_at_once("Qwen/Qwen3-Thinking", json!({"content": whole})).await), expected(thought, text));
    // This model is not configured for reasoning tags.
    assert_eq!(told(&said("", "gpt-x", &deltas, "stop").await), expected("", whole));
    // After a call has begun, no text is reset. Neither is text beside a separate reasoning field.
    let call = json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "get_time", "arguments": "{}"}}]});
    let after = said("", "Qwen3", &[json!({"content": "Hi </"}), call, json!({"content": "think>"})], "stop").await;
    assert_eq!((told(&after), after.calls().len()), (expected("", "Hi </think>"), 1));
    let beside = said("", "Qwen3", &[json!({"reasoning": "hm"}), json!({"content": "Hi </think>"})], "stop").await;
    assert_eq!(told(&beside), expected("hm", "Hi </think>"));
}

#[rstest]
#[case::seed("ByteDance-Seed/Seed-OSS-36B-Instruct", "<seed:think>hm</seed:think>Hi", "hm", "Hi")]
#[case::magistral("Magistral-Small-2509", "[THINK]hm[/THINK]Hi", "hm", "Hi")]
#[case::kimi("Kimi-VL-A3B-Thinking-2506", "◁think▷hm◁/think▷Hi", "hm", "Hi")]
#[case::harmony(
    "gpt-oss-20b",
    "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hi",
    "hm",
    "Hi"
)]
#[case::bedrock("openai.gpt-oss-120b-1:0", "<reasoning>hm</reasoning>Hi", "hm", "Hi")]
#[case::minimax("MiniMax-M3", "<mm:think>hm</mm:think>Hi", "hm", "Hi")]
#[case::gemini("gemini-3-pro", "<thought>hm</thought>Hi", "hm", "Hi")]
#[case::a_prompt_may_ask_for_it("MiniMax-M3", "<thinking>hm</thinking>Hi", "", "<thinking>hm</thinking>Hi")]
#[case::within_the_answer("MiniMax-M3", "Hi <mm:think>hm</mm:think>", "", "Hi <mm:think>hm</mm:think>")]
#[case::another_model("gpt-x", "<reasoning>hm</reasoning>Hi", "", "<reasoning>hm</reasoning>Hi")]
#[tokio::test]
async fn tags_of_many_models(#[case] model: &str, #[case] whole: &str, #[case] thought: &str, #[case] text: &str) {
    let deltas: Vec<Value> = whole.chars().map(|c| json!({"content": c.to_string()})).collect();
    assert_eq!(told(&said("", model, &deltas, "stop").await), expected(thought, text));
}

#[tokio::test]
async fn tags_are_data() {
    let accent = "thoughts_in_text = 'always'\nthink_tags = [['[THINK]', '[/THINK]'], ['', 'never']]";
    let deltas = ["[THINK]hm[/", "THINK]Hi"].map(|text| json!({"content": text}));
    assert_eq!(told(&said(accent, "gpt-x", &deltas, "stop").await), expected("hm", "Hi"));
}
