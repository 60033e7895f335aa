//! Recorded-style answers of each provider, read with its quirks. The streams in `played/` have the form of real ones, with
//! empty and repeated fields, usage and end marks.

use std::sync::Arc;

use capstan::domain::model::{ModelErrorKind, ModelEvent, ModelFinish, ModelRequest};
use capstan::provider::ModelClient;
use capstan::provider::catalog::{self, ProviderKind};
use rstest::rstest;
use serde_json::{Value, json};

use super::drive::{Outcome, ask_through, options, question};
use support::wire::{Answer, Step, Wire};

fn stream(name: &str) -> String {
    let path = format!("{}/provider/played/{name}.sse", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns a client of the dialect that a stream is named after. Other streams use chat completions with the quirks of the
/// provider, or with OpenAI's if it is unknown.
fn client(wire: &Wire, provider: &str) -> Arc<dyn ModelClient> {
    let known = catalog::providers().unwrap().get(provider);
    let kind = match provider.split('-').next() {
        Some("anthropic") => ProviderKind::Anthropic,
        Some("gemini") if provider != "gemini-compatible" => ProviderKind::Gemini,
        _ => ProviderKind::Openai,
    };
    capstan::provider::client(kind, options(wire), known.map(|known| known.quirks.clone()).unwrap_or_default()).unwrap()
}

async fn played(provider: &str, model: &str, answers: Vec<Answer>) -> Vec<Outcome> {
    let count = answers.len();
    let wire = Wire::play(answers).await;
    let client = client(&wire, provider);
    let mut outcomes = Vec::new();
    for _ in 0..count {
        let request = ModelRequest { model: model.to_owned(), ..question() };
        outcomes.push(ask_through(client.as_ref(), request).await);
    }
    outcomes
}

/// Returns reasoning and text without the parts that were reset.
fn told(outcome: &Outcome) -> (String, String) {
    let from = outcome.events.iter().rposition(|event| *event == ModelEvent::Restarted).unwrap_or(0);
    let last = Outcome { events: outcome.events[from..].to_vec(), end: outcome.end.clone() };
    (last.reasoning(), last.text())
}

const BERN: (&str, &str, &str) = ("", "get_weather", r#"{"city":"Bern"}"#);
const CET: (&str, &str, &str) = ("", "get_time", r#"{"zone":"CET"}"#);

fn named(id: &'static str, call: (&'static str, &'static str, &'static str)) -> (&'static str, &'static str, &'static str) {
    (id, call.1, call.2)
}

// L-03 to L-09, L-21, L-24 to L-28, L-39: input, output, cached and reasoning tokens stand last.
#[rstest]
#[case::openai("openai", "gpt-5-mini", "", "", vec![named("call_a", BERN), named("call_b", CET)], [90, 60, 64, 32])]
#[case::azure("azure", "gpt-4.1", "", "Hello", vec![], [10, 2, 0, 0])]
#[case::openrouter("openrouter", "anthropic/claude-sonnet-4.5", "I look.", "Let me see.", vec![named("toolu_1", BERN)], [400, 80, 0, 20])]
#[case::deepseek("deepseek", "deepseek-reasoner", "Hm.", "Hello", vec![], [9, 12, 4, 7])]
#[case::mistral("mistral", "magistral-medium-latest", "Hm.", "Now.", vec![named("D681PevKs", BERN), ("E681PevKs", "get_time", "{}")], [50, 30, 0, 0])]
#[case::groq("groq", "openai/gpt-oss-120b", "Hm.", "Hello", vec![], [70, 20, 0, 9])]
#[case::xai("xai", "grok-4", "Hm.", "", vec![named("call_1", BERN), ("call_2", "get_weather", r#"{"city":"Bonn"}"#)], [100, 70, 3, 50])]
#[case::together("together", "deepseek-ai/DeepSeek-R1", "Hm.", "Hello", vec![], [8, 12, 0, 0])]
#[case::together_eos("together-eos", "meta-llama/Llama-3.3-70B-Instruct-Turbo", "", "Hello", vec![], [8, 2, 0, 0])]
#[case::fireworks("fireworks", "accounts/fireworks/models/glm-4p6", "Hm.", "", vec![named("call_1", CET)], [60, 25, 48, 0])]
#[case::cerebras("cerebras", "gpt-oss-120b", "Hm.", "Hello", vec![], [20, 10, 0, 0])]
#[case::sambanova("sambanova", "Meta-Llama-3.3-70B-Instruct", "", "Hello", vec![], [30, 6, 0, 0])]
#[case::cohere("cohere", "command-a-03-2025", "", "", vec![named("get_weather_1", BERN)], [30, 12, 0, 0])]
#[case::perplexity("perplexity", "sonar", "", "Hello", vec![], [4, 5, 0, 0])]
#[case::moonshot("moonshot", "kimi-k2-thinking", "Hm.", "", vec![named("functions.get_weather:0", BERN), ("functions.get_weather:1", "get_weather", r#"{"city":"Bonn"}"#)], [40, 30, 32, 0])]
#[case::zai("zai", "glm-4.6", "\nHm.", "\nHello", vec![named("call_1", CET)], [20, 14, 6, 0])]
#[case::dashscope("dashscope", "qwen3-max", "Hm.", "", vec![named("call_1", BERN), ("call_2", "get_time", "{}")], [33, 21, 0, 4])]
#[case::minimax("minimax", "MiniMax-M2", "Hm.", "Hello you", vec![], [40, 20, 0, 0])]
#[case::nvidia("nvidia", "nvidia/nemotron-nano-9b-v2", "Hm.", "Hello", vec![], [15, 9, 0, 0])]
#[case::deepinfra("deepinfra", "meta-llama/Llama-3.3-70B", "", "Hello", vec![], [10, 3, 0, 0])]
#[case::huggingface("huggingface", "openai/gpt-oss-20b", "", "Hello", vec![], [11, 3, 0, 0])]
#[case::tgi("tgi", "tgi", "", "", vec![named("0", BERN)], [12, 9, 0, 0])]
#[case::vllm("vllm", "deepseek-ai/DeepSeek-R1", "Hm. A greeting.", "Hello", vec![], [7, 19, 0, 0])]
#[case::sglang("sglang", "Qwen/Qwen3-32B", "Hm.", "", vec![named("call_1", BERN)], [31, 17, 0, 3])]
#[case::llamacpp("llamacpp", "gpt-oss", "Hm.", "Hello", vec![], [9, 6, 0, 0])]
#[case::litellm("litellm", "claude", "Hm.", "Hello", vec![named("toolu_1", CET)], [50, 20, 0, 0])]
#[case::cloudflare("cloudflare", "@cf/meta/llama-3.3-70b", "", "Hello", vec![], [5, 2, 0, 0])]
#[case::gemini("gemini-compatible", "gemini-3-pro-preview", "Hm.", "Hello", vec![], [9, 22, 0, 20])]
#[case::bedrock("bedrock", "openai.gpt-oss-20b-1:0", "Hm.", "Hello", vec![], [6, 8, 0, 0])]
#[case::spark("spark", "4.0Ultra", "", "Hello", vec![], [6, 1, 0, 0])]
#[case::copilot("copilot", "claude-opus-4.5", "Hm.", "Hello", vec![], [9, 9, 0, 0])]
#[case::lmstudio("lmstudio", "qwen3", "", "Hello", vec![named("365174485", CET)], [0; 4])]
#[case::siliconflow("siliconflow", "deepseek-ai/DeepSeek-R1", "Hm.", "Hello", vec![], [14, 5, 0, 2])]
#[case::volcengine("volcengine", "doubao-seed-1-6", "Hm.", "", vec![named("call_1", BERN)], [60, 24, 16, 9])]
#[case::stepfun("stepfun", "step-3", "Hm.", "Hello", vec![], [7, 9, 2, 0])]
#[case::baichuan("baichuan", "Baichuan4", "", "Hello", vec![], [5, 2, 0, 0])]
#[case::ollama("ollama-compatible", "qwen3", "Hm.", "", vec![named("call_a", BERN), ("call_b", "get_weather", r#"{"city":"Bonn"}"#)], [70, 40, 0, 0])]
#[case::databricks("databricks", "databricks-claude-sonnet-4-5", "Hm.", "Hello", vec![], [20, 6, 8, 0])]
#[case::qianfan("qianfan", "ernie-4.5-turbo", "", "Hello", vec![], [3, 2, 0, 0])]
#[case::hunyuan("hunyuan", "hunyuan-t1", "Hm.", "Using get_weather", vec![named("call_1", BERN)], [8, 15, 0, 0])]
#[case::gigachat("gigachat", "GigaChat-2", "", "", vec![BERN], [80, 22, 0, 0])]
#[case::anthropic("anthropic", "claude-opus-4-5", "Hm.", "I look.", vec![named("toolu_1", BERN)], [40, 25, 6, 0])]
#[case::anthropic_bedrock("anthropic-bedrock", "claude-sonnet-4-5", "", "Hello", vec![], [12, 5, 0, 0])]
#[case::anthropic_vertex("anthropic-vertex", "claude-sonnet-4-5", "", "Hello", vec![], [12, 5, 0, 0])]
#[case::anthropic_minimax("anthropic-minimax", "MiniMax-M2", "Hm.", "", vec![named("call_function_1", BERN)], [50, 21, 6, 0])]
#[case::anthropic_deepseek("anthropic-deepseek", "deepseek-chat", "Hm.", "Hello", vec![], [9, 7, 0, 0])]
#[case::anthropic_litellm("anthropic-litellm", "any", "", "", vec![named("call_1", BERN)], [31, 17, 0, 0])]
#[case::anthropic_one_block("anthropic-one-block", "any", "Hm.", "Hello", vec![], [5, 6, 0, 0])]
#[case::gemini_vertex("gemini-vertex", "gemini-3-pro", "Hm.", "", vec![BERN], [12, 13, 4, 8])]
#[case::gemini_code_assist("gemini-code-assist", "gemini-3-pro", "Hm.", "Hello", vec![], [9, 5, 0, 3])]
#[case::gateway("gateway", "any", "", "Hello", vec![], [0; 4])]
#[case::openwebui("openwebui", "any", "", "Let me see.", vec![named("call_1", CET)], [0; 4])]
#[case::repeating("repeating", "any", "", "", vec![named("call_1", CET)], [0; 4])]
#[tokio::test]
async fn streams_of_providers(
    #[case] provider: &str,
    #[case] model: &str,
    #[case] reasoning: &str,
    #[case] text: &str,
    #[case] calls: Vec<(&str, &str, &str)>,
    #[case] tokens: [u64; 4],
) {
    let body = stream(provider);
    let events: Vec<&str> = body.split_inclusive("\n\n").flat_map(|event| event.split_inclusive("\r\n\r\n")).collect();
    let bytewise = body.bytes().map(|byte| Step::Send(vec![byte])).collect();
    let cut = (0..events.len()).map(|at| Answer::stream(events[..at].concat()));
    let answers = [Answer::stream(&body), Answer::events(bytewise)].into_iter().chain(cut).collect();
    let mut outcomes = played(provider, model, answers).await;
    let (whole, bytewise) = (outcomes.remove(0), outcomes.remove(0));
    assert_eq!(told(&whole), (reasoning.to_owned(), text.to_owned()), "{whole:?}");
    let spaceless = |arguments: String| serde_json::from_str::<Value>(&arguments).expect("JSON").to_string();
    let said: Vec<_> = whole.calls().into_iter().map(|(id, name, arguments)| (id, name, spaceless(arguments))).collect();
    let said: Vec<(&str, &str, &str)> =
        said.iter().map(|(id, name, arguments)| (id.as_str(), name.as_str(), arguments.as_str())).collect();
    assert_eq!(said, calls);
    assert_eq!(whole.finish(), if calls.is_empty() { ModelFinish::Stop } else { ModelFinish::ToolCalls });
    let usage = whole.usage().unwrap();
    if tokens[0] == 0 {
        assert!(usage.estimated);
    } else {
        let counted = [usage.input_tokens, usage.output_tokens, usage.cached_input_tokens, usage.reasoning_tokens];
        assert_eq!((counted, usage.estimated), (tokens, false));
    }
    assert_eq!(bytewise, whole, "byte by byte");
    // A truncated answer is incomplete, or lacks only its usage.
    for (at, cut) in outcomes.iter().enumerate() {
        match &cut.end {
            Ok(finish) if provider != "openwebui" => {
                assert_eq!(
                    (*finish, told(cut), cut.calls()),
                    (whole.finish(), told(&whole), whole.calls()),
                    "cut after {at} events"
                );
            }
            // If every event has the finish reason, a truncated body with an orderly end looks complete.
            Ok(_) => assert!(at >= 2, "{cut:?}"),
            Err(error) => assert!(matches!(error.kind, ModelErrorKind::IncompleteStream | ModelErrorKind::Network), "{error}"),
        }
    }
}

// L-01, L-31, L-32
#[rstest]
#[case::github("github", Ok(ModelFinish::Refused), "Well")]
#[case::openrouter("openrouter-error", Err(ModelErrorKind::Unavailable), "Hel")]
#[case::groq("groq-call", Err(ModelErrorKind::BadStream), "")]
#[case::vllm("vllm-error", Err(ModelErrorKind::Unavailable), "Hel")]
#[case::llamacpp("llamacpp-error", Err(ModelErrorKind::Unavailable), "Hel")]
#[case::lmstudio("lmstudio-error", Err(ModelErrorKind::Unavailable), "Hel")]
#[case::cloudflare("cloudflare-error", Err(ModelErrorKind::Unavailable), "")]
#[tokio::test]
async fn streams_that_end_badly(#[case] name: &str, #[case] end: Result<ModelFinish, ModelErrorKind>, #[case] text: &str) {
    let provider = name.split('-').next().unwrap();
    let outcome = played(provider, "any", vec![Answer::stream(stream(name))]).await.remove(0);
    assert_eq!((outcome.end.clone().map_err(|error| error.kind), outcome.text().as_str()), (end, text), "{outcome:?}");
}

// L-39
#[rstest]
#[case("xai", "0.0037756")]
#[case("deepinfra", "0.000012")]
#[case("openrouter", "0.00234")]
#[case("perplexity", "0.005")]
#[tokio::test]
async fn costs_that_providers_say(#[case] name: &str, #[case] cost: &str) {
    let outcome = played(name, "any", vec![Answer::stream(stream(name))]).await.remove(0);
    assert_eq!(outcome.usage().unwrap().cost.map(|cost| cost.to_string()).as_deref(), Some(cost));
}

// L-33: a signature outside of a call is kept unchanged.
#[rstest]
#[case("gemini-compatible", json!({"extra_content": {"google": {"thought_signature": "Cv/+=="}}}))]
#[case("copilot", json!({"reasoning_opaque": "sealed=="}))]
#[tokio::test]
async fn signatures_of_messages_are_kept(#[case] name: &str, #[case] fields: Value) {
    let outcome = played(name, "gemini-3-pro", vec![Answer::stream(stream(name))]).await.remove(0);
    assert!(outcome.events.contains(&ModelEvent::ReasoningBlock(json!({"message": fields}))), "{outcome:?}");
}

/// Every file is used by a test.
#[test]
fn every_stream_is_played() {
    let code = include_str!("played.rs");
    let folder = format!("{}/provider/played", env!("CARGO_MANIFEST_DIR"));
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(code.contains(&format!("(\"{}\"", name.trim_end_matches(".sse"))), "{name}");
    }
}
