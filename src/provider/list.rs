//! The models that an endpoint lists, whatever wire it speaks.
//!
//! Facts: <https://platform.openai.com/docs/api-reference/models/list>, <https://openrouter.ai/docs/api-reference/list-available-models>,
//! <https://docs.anthropic.com/en/api/models-list>, <https://ai.google.dev/api/models>,
//! <https://github.com/ollama/ollama/blob/main/docs/api.md#list-local-models>.

use std::time::Duration;

use futures_util::StreamExt as _;
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName};
use secrecy::ExposeSecret as _;
use serde_json::Value;
use tokio::time::timeout;

use super::client::{ClientOptions, header};
use super::failure::RequestNames;
use super::openai::Accent;
use super::secrets::Secrets;
use super::transport::{base_url, client, endpoint_url, network_error, refusal, versioned_url};
use super::{SetupError, limits};
use crate::domain::cost::{LongPrices, Price, Prices};
use crate::domain::model::{ModelError, ModelErrorKind};
use crate::domain::provider::{ModelEntry, ProviderKind};

/// The most bytes of a list. That of OpenRouter has half of one.
const MAX_LIST_BYTES: usize = 8 * 1024 * 1024;

/// The most models of a list.
const MAX_MODELS: usize = 2_000;

/// The models that an endpoint lists, in its order.
///
/// # Errors
/// A typed failure, like that of a model call.
pub async fn list_models(
    kind: ProviderKind,
    accent: &Accent,
    options: &ClientOptions,
    patience: Duration,
) -> Result<Vec<ModelEntry>, ModelError> {
    let unusable = |error: SetupError| ModelError::new(ModelErrorKind::InvalidRequest, &error.to_string());
    let (url, headers) = request(kind, accent, options).map_err(unusable)?;
    let secrets = Secrets::of(&options.base_url, &headers);
    ask(url, headers, options, patience).await.map_err(|error| secrets.hide(options.vendor.classify(error)))
}

async fn ask(url: Url, headers: HeaderMap, options: &ClientOptions, patience: Duration) -> Result<Vec<ModelEntry>, ModelError> {
    let unusable = |error: SetupError| ModelError::new(ModelErrorKind::InvalidRequest, &error.to_string());
    let http = client(url.as_str(), headers, &options.limits, options.reach).map_err(unusable)?;
    let asked = timeout(patience, async {
        let response = http.get(url).send().await.map_err(network_error)?;
        if !response.status().is_success() {
            return Err(
                refusal(response, tokio::time::Instant::now() + patience, options.clock.now(), RequestNames::default()).await
            );
        }
        let (mut body, mut chunks) = (Vec::new(), Box::pin(response.bytes_stream()));
        while let Some(chunk) = chunks.next().await {
            body.extend_from_slice(&chunk.map_err(network_error)?);
            if body.len() > MAX_LIST_BYTES {
                return Err(ModelError::new(ModelErrorKind::BadStream, "the list of models is too long"));
            }
        }
        Ok(body)
    });
    let body = asked.await.map_err(|_| limits::timeout("the list of models did not come", patience))??;
    let list: Value = serde_json::from_slice(&body)
        .map_err(|error| ModelError::new(ModelErrorKind::BadStream, &format!("the list of models is not JSON: {error}")))?;
    read(&list).ok_or_else(|| ModelError::new(ModelErrorKind::BadStream, "the list of models has no models in it"))
}

fn request(kind: ProviderKind, accent: &Accent, options: &ClientOptions) -> Result<(Url, HeaderMap), SetupError> {
    let base = options.base_url.as_str();
    let (mut url, key_header) = match kind {
        ProviderKind::Openai => {
            let base = base.trim_end_matches('/');
            (endpoint_url(base.strip_suffix("/chat/completions").unwrap_or(base), "/models")?, accent.key_header.as_str())
        }
        ProviderKind::OpenaiResponses => (endpoint_url(base, "/models")?, "authorization"),
        ProviderKind::Anthropic => (versioned_url(base, "v1", "/models")?, "x-api-key"),
        ProviderKind::Gemini => (versioned_url(base, "v1beta", "/models")?, "x-goog-api-key"),
        ProviderKind::Ollama => {
            let (mut url, path) = base_url(base)?;
            let path = path.strip_suffix("/v1").or_else(|| path.strip_suffix("/api")).unwrap_or(&path);
            url.set_path(&format!("{path}/api/tags"));
            (url, "authorization")
        }
    };
    // One page is asked for that holds them all.
    match kind {
        ProviderKind::Anthropic => drop(url.query_pairs_mut().append_pair("limit", "1000")),
        ProviderKind::Gemini => drop(url.query_pairs_mut().append_pair("pageSize", "1000")),
        ProviderKind::Openai | ProviderKind::OpenaiResponses | ProviderKind::Ollama => {}
    }
    let mut headers = HeaderMap::new();
    if kind == ProviderKind::Anthropic {
        headers.insert("anthropic-version", header("anthropic-version", "2023-06-01")?);
    }
    let key = options.api_key.as_ref().map(|key| key.expose_secret().trim()).filter(|key| !key.is_empty());
    if let Some(key) = key {
        let value =
            if key_header == "authorization" { header(key_header, &format!("Bearer {key}"))? } else { header(key_header, key)? };
        let name = HeaderName::try_from(key_header).map_err(|_| SetupError::Header { name: key_header.to_owned() })?;
        headers.insert(name, value);
    }
    for (name, value) in &options.headers {
        let parsed = HeaderName::try_from(name).map_err(|_| SetupError::Header { name: name.clone() })?;
        headers.insert(parsed, header(name, value.expose_secret())?);
    }
    headers.values_mut().for_each(|value| value.set_sensitive(true));
    Ok((url, headers))
}

/// The models of a list in any of the known shapes. Those without a name are left out.
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
        ..ModelEntry::named(name)
    };
    (!name.is_empty()).then_some(entry)
}

/// OpenRouter's prices: US dollars for one token, as text. Some of its models cost what others decide, which is a negative one.
/// Of the prices of longer requests, those of the shortest such are taken.
fn read_prices(pricing: &Value) -> Option<Prices> {
    fn price(pricing: &Value, key: &str) -> Option<Price> {
        let dollars: f64 = pricing[key].as_str()?.parse().ok()?;
        Price::per_million(dollars * 1e6).ok()
    }
    let long = pricing["overrides"].as_array().into_iter().flatten().filter_map(|long| {
        Some(LongPrices {
            // They are those of requests of that size, too.
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
    use serde_json::json;

    #[test]
    fn every_wire_has_its_list() {
        use ProviderKind as Kind;
        for (kind, base, url, key_header) in [
            (Kind::Openai, "https://api.openai.com", "https://api.openai.com/v1/models", "authorization"),
            (Kind::Openai, "https://openrouter.ai/api/v1/", "https://openrouter.ai/api/v1/models", "authorization"),
            (Kind::Openai, "https://h/v1/chat/completions", "https://h/v1/models", "authorization"),
            (Kind::OpenaiResponses, "https://h/v1", "https://h/v1/models", "authorization"),
            (Kind::Anthropic, "https://api.anthropic.com", "https://api.anthropic.com/v1/models?limit=1000", "x-api-key"),
            (Kind::Anthropic, "https://h/x/v1/", "https://h/x/v1/models?limit=1000", "x-api-key"),
            (Kind::Gemini, "https://h", "https://h/v1beta/models?pageSize=1000", "x-goog-api-key"),
            (Kind::Gemini, "https://h/v1beta", "https://h/v1beta/models?pageSize=1000", "x-goog-api-key"),
            (Kind::Ollama, "http://127.0.0.1:11434", "http://127.0.0.1:11434/api/tags", "authorization"),
            (Kind::Ollama, "http://127.0.0.1:11434/v1", "http://127.0.0.1:11434/api/tags", "authorization"),
            (Kind::Ollama, "http://127.0.0.1:11434/api", "http://127.0.0.1:11434/api/tags", "authorization"),
        ] {
            let options = ClientOptions { api_key: Some("sk".into()), ..ClientOptions::new(base) };
            let (asked, headers) = request(kind, &Accent::default(), &options).unwrap();
            assert_eq!(asked.as_str(), url, "{kind:?} {base}");
            assert!(headers[key_header].to_str().unwrap().ends_with("sk") && headers[key_header].is_sensitive(), "{kind:?}");
        }
        assert!(request(Kind::Gemini, &Accent::default(), &ClientOptions::new("nonsense")).is_err());
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
