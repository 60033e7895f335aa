//! Lists the models of an endpoint, in any dialect.
//!
//! Protocols: <https://platform.openai.com/docs/api-reference/models/list>,
//! <https://openrouter.ai/docs/api-reference/list-available-models>,
//! <https://docs.anthropic.com/en/api/models-list>, <https://ai.google.dev/api/models>,
//! <https://github.com/ollama/ollama/blob/main/docs/api.md#list-local-models>.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, Url};
use serde_json::{Value, json};

use crate::domain::model::{LongPrices, ModelEntry, ModelError, ModelErrorKind, Price, Prices};
use crate::provider::catalog::quirks::model_quirks;
use crate::provider::http::transport::fetch;
use crate::support::clock::UnixMillis;

/// The longest list, in bytes. OpenRouter's has half a MiB.
const MAX_LIST_BYTES: usize = 8 * 1024 * 1024;

const MAX_MODELS: usize = 2_000;

/// The most models that an Ollama server is asked to describe.
const MAX_DESCRIBED: usize = 100;

/// Requests the list of models of an endpoint and returns it in the endpoint's order.
pub(in crate::provider) async fn ask(
    http: &Client,
    url: Url,
    time_limit: Duration,
    now: UnixMillis,
) -> Result<Vec<ModelEntry>, ModelError> {
    let bad = |why: &str| ModelError::new(ModelErrorKind::BadStream, &format!("the list of models {why}"));
    let body = fetch(http.get(url), MAX_LIST_BYTES, "the list of models did not arrive", time_limit, now).await?;
    let body = body.ok_or_else(|| bad("is too large"))?;
    let list: Value = serde_json::from_slice(&body).map_err(|error| bad(&format!("is not JSON: {error}")))?;
    read(&list).ok_or_else(|| bad("contains no models"))
}

/// Parses a list in any known shape, without models that have no name.
fn read(list: &Value) -> Option<Vec<ModelEntry>> {
    let models = [&list["data"], &list["models"], list].into_iter().find_map(Value::as_array)?;
    Some(models.iter().take(MAX_MODELS).filter_map(read_model).collect())
}

fn read_model(model: &Value) -> Option<ModelEntry> {
    let name = ["id", "name", "model"].into_iter().find_map(|key| model[key].as_str())?;
    let name = name.strip_prefix("models/").unwrap_or(name);
    let number = |keys: &[&str]| keys.iter().find_map(|key| model[*key].as_u64()).filter(|number| *number > 0);
    let has = |list: &Value, word: &str| Some(list.as_array()?.iter().any(|item| item == word));
    let entry = ModelEntry {
        context: number(&["context_length", "context_window", "max_model_len", "max_context_length", "inputTokenLimit"]),
        max_output: number(&["outputTokenLimit", "max_completion_tokens"])
            .or_else(|| model["top_provider"]["max_completion_tokens"].as_u64().filter(|number| *number > 0)),
        prices: read_prices(&model["pricing"]),
        tools: has(&model["supported_parameters"], "tools").or(model["capabilities"]["function_calling"].as_bool()),
        vision: has(&model["architecture"]["input_modalities"], "image")
            .or(model["capabilities"]["vision"].as_bool())
            .or(model["supports_vision"].as_bool()),
        chats: chats(model, name),
        ..ModelEntry::named(name)
    };
    (!name.is_empty()).then_some(entry)
}

/// Returns whether a model answers messages, by its type, capabilities, family or name.
fn chats(model: &Value, name: &str) -> Option<bool> {
    let facts = &model_quirks().not_chat;
    let is_among = |words: &[String], word: &Value| word.as_str().is_some_and(|word| words.iter().any(|known| known == word));
    let has_other_type = is_among(&facts.types, &model["type"]) || is_among(&facts.families, &model["details"]["family"]);
    let declared = model["capabilities"]["completion_chat"].as_bool().or_else(|| says_completion(&model["capabilities"]));
    let bare = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    let has_other_name = facts.names.iter().any(|part| bare.contains(part.as_str()));
    declared.or((has_other_type || has_other_name).then_some(false))
}

/// Reads the capabilities of a local server: Ollama's and llama.cpp's are a list of words.
fn says_completion(capabilities: &Value) -> Option<bool> {
    let words = capabilities.as_array()?;
    Some(words.iter().any(|word| word == "completion" || word == "chat"))
}

/// Asks an Ollama server for the abilities of its models, in parallel. Facts that it does not give stay unknown.
pub(in crate::provider) async fn describe(
    http: &Client,
    url: Url,
    models: &mut [ModelEntry],
    time_limit: Duration,
    now: UnixMillis,
) {
    let described = models.iter().take(MAX_DESCRIBED).map(|model| {
        let request =
            http.post(url.clone()).header(CONTENT_TYPE, "application/json").body(json!({ "model": model.name }).to_string());
        fetch(request, MAX_LIST_BYTES, "the description of a model did not arrive", time_limit, now)
    });
    let described = join_all(described).await;
    for (model, described) in models.iter_mut().zip(described) {
        let Some(described) = described.ok().flatten().and_then(|body| serde_json::from_slice::<Value>(&body).ok()) else {
            continue;
        };
        let Some(words) = described["capabilities"].as_array() else { continue };
        let has = |ability: &str| Some(words.iter().any(|word| word == ability));
        let facts = described["model_info"].as_object();
        let window = facts.and_then(|facts| facts.iter().find(|(name, _)| name.ends_with(".context_length"))?.1.as_u64());
        model.chats = has("completion");
        model.tools = has("tools");
        model.vision = has("vision");
        model.context = model.context.or(window);
    }
}

/// Parses OpenRouter's prices: US dollars per token, as text; negative if unknown. Of several prices for long requests, those with
/// the lowest minimum size are used.
fn read_prices(pricing: &Value) -> Option<Prices> {
    fn price(pricing: &Value, key: &str) -> Option<Price> {
        let dollars: f64 = pricing[key].as_str()?.parse().ok()?;
        Price::per_million(dollars * 1e6).ok()
    }
    let long = pricing["overrides"].as_array().into_iter().flatten().filter_map(|long| {
        Some(LongPrices {
            // A request of exactly that size already has these prices.
            above: long["min_prompt_tokens"].as_u64()?.saturating_sub(1),
            input: price(long, "prompt")?,
            cached_input: price(long, "input_cache_read"),
            output: price(long, "completion")?,
        })
    });
    Some(Prices {
        input: price(pricing, "prompt")?,
        cached_input: price(pricing, "input_cache_read"),
        output: price(pricing, "completion")?,
        long: long.min_by_key(|long| long.above),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_models_that_cannot_chat_are_known() {
        let list = json!({"data": [
            {"id": "text-embedding-nomic-embed-text-v1.5"}, {"id": "x", "type": "embeddings"}, {"id": "y", "details": {"family": "nomic-bert"}},
            {"id": "mxbai-embed-large:latest"}, {"id": "z", "capabilities": ["embedding"]}, {"id": "w", "capabilities": {"completion_chat": false}},
            {"id": "bge-m3:latest"}, {"id": "whisper-1"}, {"id": "qwen3:4b"}, {"id": "v", "capabilities": ["completion"]}]});
        let chats: Vec<_> = read(&list).unwrap().into_iter().map(|model| model.chats).collect();
        assert_eq!(chats[..8], [Some(false); 8]);
        assert_eq!(chats[8..], [None, Some(true)]);
    }

    #[test]
    fn lists_have_several_shapes() {
        let open_router = json!({"data": [{
            "id": "openai/gpt-x", "context_length": 400_000, "architecture": {"input_modalities": ["text", "image"]},
            "pricing": {"prompt": "0.00000125", "completion": "0.00001", "input_cache_read": "0.000000125", "overrides": [
                {"min_prompt_tokens": 400_001, "prompt": "1", "completion": "1"},
                {"min_prompt_tokens": 200_001, "prompt": "0.0000025", "completion": "0.000015"}]},
            "top_provider": {"max_completion_tokens": 128_000}, "supported_parameters": ["tools", "seed"]
        }, {"id": "openrouter/auto", "pricing": {"prompt": "-1", "completion": "-1"}}, {"no": "name"}, {"id": ""}]});
        let models = read(&open_router).unwrap();
        assert_eq!(models.len(), 2);
        let expected = json!({"name": "openai/gpt-x", "context": 400_000, "max_output": 128_000, "tools": true, "vision": true,
            "prices": {"input": 1.25, "cached_input": 0.125, "output": 10.0,
                "long": {"above": 200_000, "input": 2.5, "output": 15.0}}});
        assert_eq!(serde_json::to_value(&models[0]).unwrap(), expected);
        assert_eq!(models[1], ModelEntry::named("openrouter/auto"));

        let gemini = json!({"models": [{"name": "models/gemini-x", "inputTokenLimit": 1_048_576, "outputTokenLimit": 65_536}]});
        let expected = ModelEntry { context: Some(1_048_576), max_output: Some(65_536), ..ModelEntry::named("gemini-x") };
        assert_eq!(read(&gemini).unwrap(), [expected]);
        let ollama = json!({"models": [{"name": "qwen3:4b", "model": "qwen3:4b", "size": 1}]});
        assert_eq!(read(&ollama).unwrap(), [ModelEntry::named("qwen3:4b")]);
        assert_eq!(read(&json!([{"id": "together"}])).unwrap(), [ModelEntry::named("together")]);
        assert_eq!(read(&json!({"data": null})), None);
        let many: Vec<_> = (0..3_000).map(|n| json!({"id": n.to_string()})).collect();
        assert_eq!(read(&json!({ "data": many })).unwrap().len(), MAX_MODELS);
    }
}
