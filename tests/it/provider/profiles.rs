//! Model profiles: what a provider refuses is left out of the same request, and of all later ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use capstan::domain::conversation::message::{Message, Part, Role, TextPart};
use capstan::domain::model::provider::{LearnedLimitation, ModelEntry, ProviderKind};
use capstan::domain::model::{
    ModelErrorKind, ModelEvent, ModelFinish, ModelOptions, ModelRequest, OutputSchema, ReasoningEffort, ToolChoice,
};
use capstan::domain::tool::{ReplayClass, ToolDefinition};
use capstan::provider::{
    ChosenModels, ClientOptions, LimitationStore, ModelClient, ProviderLimitationStore, Quirks, client as client_of,
};
use capstan::support::ids::SequentialIds;
use futures_util::StreamExt as _;
use rstest::rstest;
use serde_json::{Value, json};

use super::drive::{self, Outcome, ask_through, call, file, message, options};
use support::dialects::{Dialect, Says};
use support::refusing::{Judge, Refusal, RefusingProvider, refuse_everything};
use support::wire::{Answer, Step, Wire};

const DIALECTS: [Dialect; 5] = [Dialect::Openai, Dialect::Responses, Dialect::Anthropic, Dialect::Gemini, Dialect::Ollama];

/// A store in memory, which outlives clients.
#[derive(Default)]
struct MemoryStore(Mutex<BTreeMap<(String, String), Vec<LearnedLimitation>>>);

#[async_trait]
impl LimitationStore for MemoryStore {
    async fn load(&self, provider: &str, model: &str) -> Option<Vec<LearnedLimitation>> {
        self.0.lock().unwrap().get(&(provider.to_owned(), model.to_owned())).cloned()
    }

    async fn save(&self, provider: &str, learned: &[LearnedLimitation]) {
        for known in learned {
            self.0.lock().unwrap().entry((provider.to_owned(), known.model.clone())).or_default().push(known.clone());
        }
    }
}

fn kind(dialect: Dialect) -> ProviderKind {
    match dialect {
        Dialect::Openai | Dialect::Openrouter => ProviderKind::Openai,
        Dialect::Responses => ProviderKind::OpenaiResponses,
        Dialect::Anthropic => ProviderKind::Anthropic,
        Dialect::Gemini => ProviderKind::Gemini,
        Dialect::Ollama => ProviderKind::Ollama,
    }
}

fn base_url(dialect: Dialect, base_url: &str) -> String {
    match dialect {
        Dialect::Openai | Dialect::Openrouter | Dialect::Responses => base_url.to_owned(),
        Dialect::Anthropic | Dialect::Gemini | Dialect::Ollama => base_url.trim_end_matches("/v1").to_owned(),
    }
}

fn client(dialect: Dialect, url: &str, kept: Option<&Arc<MemoryStore>>) -> Arc<dyn ModelClient> {
    let limitation_store = kept.map(|kept| ProviderLimitationStore { store: Arc::clone(kept) as _, provider: "acme".to_owned() });
    let extra = [("parallel_tool_calls".to_owned(), json!(true))].into_iter().collect();
    let quirks = Quirks { extra, ..Quirks::default() };
    client_of(kind(dialect), ClientOptions { limitation_store, ..ClientOptions::new(base_url(dialect, url)) }, quirks)
        .expect("usable options")
}

fn tool(name: &str, parameters: Value) -> Arc<ToolDefinition> {
    Arc::new(ToolDefinition::new(name, format!("does {name}"), parameters, ReplayClass::Read))
}

fn plain_schema() -> Value {
    json!({"type": "object", "properties": {"text": {"type": "string"}}})
}

fn many(count: usize) -> Vec<Arc<ToolDefinition>> {
    (0..count).map(|at| tool(&format!("tool_{at:03}"), plain_schema())).collect()
}

fn request(tools: Vec<Arc<ToolDefinition>>, options: ModelOptions) -> ModelRequest {
    ModelRequest { model: "acme-1".to_owned(), tools, options, ..drive::request(vec![hello(Vec::new())]) }
}

fn hello(parts: Vec<Part>) -> Message {
    message(&SequentialIds::default(), Role::User, |id| {
        [Part::Text(TextPart { id: id(), text: "Hi".to_owned() })].into_iter().chain(parts).collect()
    })
}

fn changes(outcome: &Outcome) -> Vec<String> {
    let adapted = outcome.events.iter().filter_map(|event| match event {
        ModelEvent::Adapted(done) => Some(done.change.clone()),
        _ => None,
    });
    adapted.collect()
}

fn refuse_if(refuse: impl Fn(&Value) -> Option<Refusal> + Send + Sync + 'static) -> Judge {
    Arc::new(move |_, _, body| refuse(body))
}

fn error(status: u16, message: &str) -> Refusal {
    (status, json!({"error": {"message": message, "type": "invalid_request_error"}}))
}

// The whole of issue D, point 1.
#[rstest]
#[tokio::test]
async fn everything_refused_is_learned_in_one_request(
    #[values(Dialect::Openai, Dialect::Responses, Dialect::Anthropic, Dialect::Gemini, Dialect::Ollama)] dialect: Dialect,
) {
    let provider = RefusingProvider::start(dialect, Arc::new(refuse_everything)).await;
    let kept = Arc::new(MemoryStore::default());
    let mut tools = many(149);
    tools.insert(0, tool("strict", json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?!x)a"}}})));
    let options = ModelOptions {
        temperature: Some(0.2),
        max_output_tokens: Some(9_000),
        reasoning_effort: (dialect == Dialect::Responses).then_some(ReasoningEffort::Low),
        ..ModelOptions::default()
    };
    let image = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let image = Part::Image(file(
        capstan::domain::ids::PartId::generate(&SequentialIds::default()),
        "image/png",
        Some(&format!("data:image/png;base64,{image}")),
        Some("x.png"),
    ));
    let request = ModelRequest { messages: vec![hello(vec![image])], ..request(tools, options) };
    let first = ask_through(client(dialect, &provider.base_url, Some(&kept)).as_ref(), request.clone()).await;
    assert_eq!((first.finish(), first.text().as_str()), (ModelFinish::Stop, "Hello."), "{dialect:?}");
    let learned = changes(&first);
    for change in ["tools_limited:128", "look_around_left_out", "tools_left_out", "images_left_out", "system_prompt_moved"] {
        assert!(learned.iter().any(|known| known == change), "{dialect:?}: {change} in {learned:?}");
    }
    let of_dialect = match dialect {
        Dialect::Openai => {
            vec![
                "field_left_out:temperature",
                "field_left_out:parallel_tool_calls",
                "field_renamed:max_tokens:max_completion_tokens",
            ]
        }
        Dialect::Responses => {
            vec!["field_left_out:temperature", "field_left_out:reasoning.summary", "field_left_out:max_output_tokens"]
        }
        Dialect::Anthropic => vec!["field_left_out:temperature", "output_limited:4096"],
        Dialect::Gemini => vec!["field_left_out:generationConfig.temperature", "field_left_out:generationConfig.maxOutputTokens"],
        Dialect::Ollama => vec!["field_left_out:options.temperature", "field_left_out:options.num_predict"],
        Dialect::Openrouter => unreachable!("no case"),
    };
    for change in of_dialect.into_iter().chain(["streaming_left_out"]) {
        assert!(learned.iter().any(|known| known == change), "{dialect:?}: {change} in {learned:?}");
    }
    let refused = provider.refused();
    assert_eq!(refused, learned.len(), "each refusal is answered by one change");
    let second = ask_through(client(dialect, &provider.base_url, Some(&kept)).as_ref(), request).await;
    assert_eq!((second.finish(), changes(&second)), (ModelFinish::Stop, vec![]), "a new client knows");
    assert_eq!(provider.refused(), refused, "{dialect:?}: the second request is not refused");
}

#[tokio::test]
async fn model_without_tools_is_asked_without_tools() {
    let refuse = |body: &Value| {
        (body["tools"].is_array()).then(|| (400, json!({"error": "registry.ollama.ai/library/gemma3:4b does not support tools"})))
    };
    let provider = RefusingProvider::start(Dialect::Ollama, refuse_if(refuse)).await;
    let client = client(Dialect::Ollama, &provider.base_url, None);
    let options = ModelOptions { tool_choice: Some(ToolChoice::Auto), ..ModelOptions::default() };
    let outcome = ask_through(client.as_ref(), request(many(2), options.clone())).await;
    assert_eq!((outcome.finish(), changes(&outcome)), (ModelFinish::Stop, vec!["tools_left_out".to_owned()]));
    ask_through(client.as_ref(), request(many(2), options)).await;
    assert_eq!(provider.refused(), 1);
}

// A record with `"tools": false` is honoured.
#[tokio::test]
async fn configured_model_without_tools_gets_none() {
    let provider = RefusingProvider::start(Dialect::Openai, refuse_if(|_| None)).await;
    let models = vec![ModelEntry { tools: Some(false), ..ModelEntry::named("acme-1") }];
    let options = ClientOptions { models, ..ClientOptions::new(&provider.base_url) };
    let client = client_of(ProviderKind::Openai, options, Quirks::default()).unwrap();
    ask_through(client.as_ref(), request(many(2), ModelOptions::default())).await;
    ask_through(client.as_ref(), ModelRequest { model: "other".to_owned(), ..request(many(2), ModelOptions::default()) }).await;
    let offered: Vec<usize> = provider.asked().iter().map(|asked| Dialect::Openai.offered(&asked.body).len()).collect();
    assert_eq!(offered, [0, 2]);
}

// Patterns are left out of all schemas by one refusal.
#[tokio::test]
async fn refused_look_around_is_left_out_of_all_schemas() {
    for dialect in DIALECTS {
        let provider = RefusingProvider::start(
            dialect,
            Arc::new(
                |dialect: Dialect, path: &str, body: &Value| {
                    if body.to_string().contains("(?!") { refuse_everything(dialect, path, body) } else { None }
                },
            ),
        )
        .await;
        let strict = |at: usize| {
            tool(&format!("strict_{at}"), json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?!x)a"}}}))
        };
        let outcome = ask_through(
            client(dialect, &provider.base_url, None).as_ref(),
            request((0..20).map(strict).collect(), ModelOptions::default()),
        )
        .await;
        assert_eq!(
            (outcome.finish(), changes(&outcome)),
            (ModelFinish::Stop, vec!["look_around_left_out".to_owned()]),
            "{dialect:?}"
        );
        assert_eq!((provider.refused(), dialect.offered(&provider.asked()[1].body).len()), (1, 20), "{dialect:?}");
    }
}

fn refuse_tools(dialect: Dialect, is_bad: impl Fn(&str, &str) -> bool + Send + Sync + 'static) -> Judge {
    Arc::new(move |_, _, body: &Value| {
        let names = dialect.offered(body);
        let tools = match dialect {
            Dialect::Gemini => body.pointer("/tools/0/functionDeclarations"),
            _ => body.get("tools"),
        };
        let tools = tools.and_then(Value::as_array).cloned().unwrap_or_default();
        let at = names.iter().zip(&tools).position(|(name, tool)| is_bad(name, &tool.to_string()))?;
        let message = format!("Invalid schema for function '{}': it is not valid", names[at]);
        let param =
            if dialect == Dialect::Gemini { format!("tools[0].function_declarations[{at}]") } else { format!("tools[{at}]") };
        Some((400, json!({"error": {"message": message, "param": param}})))
    })
}

// Issue D: 200 tools, 40 of them with schemas that the dialect refuses.
#[tokio::test]
async fn forty_refused_schemas_cost_a_few_requests_once() {
    for dialect in DIALECTS {
        let provider = RefusingProvider::start(dialect, refuse_tools(dialect, |_, tool| tool.contains("\"title\""))).await;
        let kept = Arc::new(MemoryStore::default());
        let odd =
            json!({"type": "object", "title": "odd", "properties": {"a": {"type": "string", "title": "A"}}, "required": ["a"]});
        let tools: Vec<_> =
            (0..200).map(|at| tool(&format!("t_{at}"), if at % 5 == 0 { odd.clone() } else { plain_schema() })).collect();
        for round in 0..2 {
            let client = client(dialect, &provider.base_url, Some(&kept));
            let outcome = ask_through(client.as_ref(), request(tools.clone(), ModelOptions::default())).await;
            assert_eq!(outcome.finish(), ModelFinish::Stop, "{dialect:?}");
            assert_eq!(changes(&outcome).is_empty(), round == 1, "{dialect:?}");
        }
        assert_eq!(provider.refused(), 3, "{dialect:?}: the third refusal shows that all schemas are concerned");
        let last = provider.asked().pop().unwrap();
        assert_eq!(dialect.offered(&last.body).len(), 200, "{dialect:?}: no tool is lost");
    }
}

#[tokio::test]
async fn forty_refused_tools_are_left_out_for_good() {
    let dialect = Dialect::Openai;
    let provider = RefusingProvider::start(dialect, refuse_tools(dialect, |name, _| name.starts_with("bad"))).await;
    let kept = Arc::new(MemoryStore::default());
    let tools: Vec<_> =
        (0..200).map(|at| tool(&format!("{}_{at}", if at % 5 == 0 { "bad" } else { "good" }), plain_schema())).collect();
    let first =
        ask_through(client(dialect, &provider.base_url, Some(&kept)).as_ref(), request(tools.clone(), ModelOptions::default()))
            .await;
    assert_eq!(first.finish(), ModelFinish::Stop);
    assert_eq!((provider.refused(), changes(&first)[0].as_str()), (40, "tool_left_out:bad_0"));
    // A changed definition is another tool.
    let mut changed = tools.clone();
    changed[0] = tool("bad_0", json!({"type": "object", "properties": {"other": {"type": "string"}}}));
    let second =
        ask_through(client(dialect, &provider.base_url, Some(&kept)).as_ref(), request(changed, ModelOptions::default())).await;
    assert_eq!((second.finish(), provider.refused()), (ModelFinish::Stop, 41));
    assert_eq!(dialect.offered(&provider.asked().pop().unwrap().body).len(), 160);
}

// An error about one tool has numbers, too: they are no limit for the number of tools.
#[tokio::test]
async fn long_description_is_cut_and_no_tool_is_lost() {
    let refuse = |body: &Value| {
        let tools = body["tools"].as_array()?;
        let at = tools.iter().position(|tool| tool["function"]["description"].as_str().is_some_and(|text| text.len() > 1_024))?;
        let message = format!("tools.{at}.function.description: String should have at most 1024 characters");
        Some((400, json!({"error": {"message": message, "type": "invalid_request_error"}})))
    };
    let provider = RefusingProvider::start(Dialect::Openai, refuse_if(refuse)).await;
    let mut tools = many(30);
    Arc::make_mut(&mut tools[20]).description = "d".repeat(2_000);
    let client = client(Dialect::Openai, &provider.base_url, None);
    let outcome = ask_through(client.as_ref(), request(tools, ModelOptions::default())).await;
    assert_eq!((outcome.finish(), changes(&outcome)), (ModelFinish::Stop, vec!["tool_schema_simplified:tool_020".to_owned()]));
    assert_eq!(Dialect::Openai.offered(&provider.asked()[1].body).len(), 30);
}

#[tokio::test]
async fn tools_above_the_limit_are_left_out_and_called_ones_stay() {
    let refuse = |body: &Value| {
        let count = body["tools"].as_array().map_or(0, Vec::len);
        let message = format!(
            "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length {count} instead."
        );
        (count > 128).then(|| (400, json!({"error": {"message": message, "param": "tools", "code": "array_above_max_length"}})))
    };
    let provider = RefusingProvider::start(Dialect::Openai, refuse_if(refuse)).await;
    let ids = SequentialIds::default();
    let (mut call, result) = call(&ids, Some("id_1"), json!({}), "done");
    if let Part::ToolCall(call) = &mut call {
        call.name = "tool_149".to_owned();
    }
    let history =
        vec![hello(Vec::new()), message(&ids, Role::Assistant, |_| vec![call]), message(&ids, Role::Tool, |_| vec![result])];
    let client = client(Dialect::Openai, &provider.base_url, None);
    let asked = ModelRequest { messages: history, ..request(many(150), ModelOptions::default()) };
    let outcome = ask_through(client.as_ref(), asked).await;
    assert_eq!((outcome.finish(), changes(&outcome)), (ModelFinish::Stop, vec!["tools_limited:128".to_owned()]));
    let offered = Dialect::Openai.offered(&provider.asked()[1].body);
    assert_eq!((offered.len(), offered[0].as_str()), (128, "tool_149"));
    let owner = capstan::domain::ids::UserId::from_stored(String::new());
    assert_eq!(client.capacity(&owner, "acme-1").await.max_tools, Some(128), "the engine ranks the tools from now on");
}

#[tokio::test]
async fn refused_output_limit_is_renamed_once() {
    let refuse = |body: &Value| {
        let message = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.";
        body.get("max_tokens")
            .map(|_| (400, json!({"error": {"message": message, "param": "max_tokens", "code": "unsupported_parameter"}})))
    };
    let provider = RefusingProvider::start(Dialect::Openai, refuse_if(refuse)).await;
    let client = client(Dialect::Openai, &provider.base_url, None);
    let options = ModelOptions { max_output_tokens: Some(50), ..ModelOptions::default() };
    for _ in 0..2 {
        assert_eq!(ask_through(client.as_ref(), request(Vec::new(), options.clone())).await.finish(), ModelFinish::Stop);
    }
    assert_eq!((provider.refused(), &provider.asked()[2].body["max_completion_tokens"]), (1, &json!(50)));
}

#[tokio::test]
async fn refused_reasoning_summary_is_left_out() {
    let refuse = |body: &Value| {
        let message = "Your organization must be verified to generate reasoning summaries.";
        body.pointer("/reasoning/summary")
            .map(|_| (400, json!({"error": {"message": message, "param": "reasoning.summary", "code": "unsupported_value"}})))
    };
    let provider = RefusingProvider::start(Dialect::Responses, refuse_if(refuse)).await;
    let client = client(Dialect::Responses, &provider.base_url, None);
    let options = ModelOptions { reasoning_effort: Some(ReasoningEffort::Low), ..ModelOptions::default() };
    for _ in 0..2 {
        assert_eq!(ask_through(client.as_ref(), request(Vec::new(), options.clone())).await.finish(), ModelFinish::Stop);
    }
    assert_eq!((provider.refused(), &provider.asked()[2].body["reasoning"]), (1, &json!({"effort": "low"})));
}

/// Returns a history in which a tool was called.
fn with_call() -> Vec<Message> {
    let ids = SequentialIds::default();
    let (call, result) = call(&ids, Some("id_1"), json!({}), "done");
    vec![hello(Vec::new()), message(&ids, Role::Assistant, |_| vec![call]), message(&ids, Role::Tool, |_| vec![result])]
}

#[tokio::test]
async fn tools_of_the_history_are_declared_once_it_is_asked_for() {
    for (dialect, choice) in [
        (Dialect::Openai, json!({"tool_choice": "none"})),
        (Dialect::Responses, json!({"tool_choice": "none"})),
        (Dialect::Anthropic, json!({"tool_choice": {"type": "none"}})),
        (Dialect::Gemini, json!({"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}})),
    ] {
        let words = "litellm.UnsupportedParamsError: Bedrock doesn't support tool calling without `tools=` param specified. Pass `tools=` param.";
        let refuse = move |body: &Value| body.get("tools").is_none().then(|| error(400, words));
        let provider = RefusingProvider::start(dialect, refuse_if(refuse)).await;
        let client = client(dialect, &provider.base_url, None);
        for _ in 0..2 {
            let asked = ModelRequest { messages: with_call(), ..request(Vec::new(), ModelOptions::default()) };
            assert_eq!(ask_through(client.as_ref(), asked).await.finish(), ModelFinish::Stop, "{dialect:?}");
        }
        assert_eq!(provider.refused(), usize::from(dialect != Dialect::Anthropic), "{dialect:?}");
        let body = provider.asked().pop().unwrap().body;
        assert_eq!(dialect.offered(&body).len(), 1, "{dialect:?}: {body}");
        let (name, value) = choice.as_object().unwrap().iter().next().unwrap();
        assert_eq!(body[name], *value, "{dialect:?}");
    }
}

#[tokio::test]
async fn reasoning_goes_back_once_it_is_asked_for() {
    let refuse = |body: &Value| {
        let messages = body["messages"].as_array()?;
        let is_bare = messages.iter().any(|message| message["role"] == "assistant" && message.get("reasoning_content").is_none());
        is_bare.then(|| error(400, "The `reasoning_content` in the thinking mode must be passed back to the API."))
    };
    let provider = RefusingProvider::start(Dialect::Openai, refuse_if(refuse)).await;
    let client = client(Dialect::Openai, &provider.base_url, None);
    for _ in 0..2 {
        let asked = ModelRequest { messages: with_call(), ..request(many(1), ModelOptions::default()) };
        assert_eq!(ask_through(client.as_ref(), asked).await.finish(), ModelFinish::Stop);
    }
    assert_eq!(provider.refused(), 1);
}

#[rstest]
// vLLM.
#[case(422, json!({"detail": [{"type": "string_type", "loc": ["body", "messages", 2, "content"], "msg": "Input should be a valid string"}]}))]
// llama.cpp's Python server.
#[case(500, json!({"error": {"message": "8 validation errors:\n  {'type': 'literal_error', 'loc': ('body', 'messages', 1, 'typed-dict', 'role'), \
    'msg': \"Input should be 'system'\", 'input': 'assistant', 'ctx': {'expected': \"'system'\"}}", "type": "internal_server_error",
    "param": null, "code": null}}))]
#[tokio::test]
async fn refused_null_content_becomes_an_empty_text(#[case] status: u16, #[case] error: Value) {
    let refuse = move |body: &Value| {
        let is_null = body["messages"].as_array()?.iter().any(|message| message["content"].is_null());
        is_null.then(|| (status, error.clone()))
    };
    let provider = RefusingProvider::start(Dialect::Openai, refuse_if(refuse)).await;
    let asked = ModelRequest { messages: with_call(), ..request(many(1), ModelOptions::default()) };
    let outcome = ask_through(client(Dialect::Openai, &provider.base_url, None).as_ref(), asked).await;
    assert_eq!((outcome.finish(), changes(&outcome)), (ModelFinish::Stop, vec!["null_content_left_out".to_owned()]));
}

// The words of Ollama, OpenAI, vLLM, Groq and Gemini.
#[rstest]
#[case(Dialect::Ollama, 400, "\"embedder\" does not support chat")]
#[case(
    Dialect::Openai,
    404,
    "This is not a chat model and thus not supported in the v1/chat/completions endpoint. Did you mean to use v1/completions?"
)]
#[case(Dialect::Openai, 400, "The model does not support Chat Completions API")]
#[case(Dialect::Openai, 400, "The model `whisper-large-v3` does not support chat completions")]
#[case(Dialect::Gemini, 404, "models/embedder is not found for API version v1beta, or is not supported for generateContent.")]
#[tokio::test]
async fn chosen_model_without_chat_is_replaced(#[case] dialect: Dialect, #[case] status: u16, #[case] words: &'static str) {
    let refuse = move |_: Dialect, path: &str, body: &Value| {
        let names_it = body["model"] == "embedder" || path.contains("/embedder:");
        names_it.then(|| error(status, words))
    };
    let provider = RefusingProvider::start_with(dialect, Arc::new(refuse), &["embedder", "acme-1"]).await;
    let kept = Arc::new(MemoryStore::default());
    let made = || {
        let limitation_store = Some(ProviderLimitationStore { store: Arc::clone(&kept) as _, provider: "acme".to_owned() });
        let chosen = ChosenModels::default();
        let options =
            ClientOptions { limitation_store, chosen: chosen.clone(), ..ClientOptions::new(base_url(dialect, &provider.base_url)) };
        (client_of(kind(dialect), options, Quirks::default()).unwrap(), chosen)
    };
    let asked = ModelRequest { model: "embedder".to_owned(), ..request(Vec::new(), ModelOptions::default()) };
    let (client, chosen) = made();
    let outcome = ask_through(client.as_ref(), asked.clone()).await;
    assert_eq!(outcome.error(), ModelErrorKind::InvalidRequest, "a model that somebody named is not replaced");
    chosen.add("embedder");
    let outcome = ask_through(client.as_ref(), asked.clone()).await;
    assert_eq!((outcome.text().as_str(), changes(&outcome)), ("Hello.", vec!["model_replaced:acme-1".to_owned()]));
    // After a restart, too, nothing that was refused is asked again.
    let (client, chosen) = made();
    assert!(!client.may_chat("embedder").await && client.may_chat("acme-1").await);
    chosen.add("embedder");
    let outcome = ask_through(client.as_ref(), asked).await;
    assert_eq!((outcome.text().as_str(), provider.refused()), ("Hello.", 2));
}

#[tokio::test]
async fn refused_output_schema_moves_into_the_prompt() {
    let refuse = |body: &Value| body.get("response_format").map(|_| error(400, "This response_format type is unavailable now"));
    let provider = RefusingProvider::start(Dialect::Openai, refuse_if(refuse)).await;
    let schema = OutputSchema { name: "answer".to_owned(), schema: json!({"type": "object", "title": "canary"}), strict: false };
    let options = ModelOptions { output_schema: Some(schema), ..ModelOptions::default() };
    let outcome = ask_through(client(Dialect::Openai, &provider.base_url, None).as_ref(), request(Vec::new(), options)).await;
    assert_eq!(changes(&outcome), ["output_schema_moved"]);
    assert!(provider.asked()[1].body["messages"][0]["content"].as_str().unwrap().contains("canary"));
}

#[tokio::test]
async fn request_on_a_dead_connection_is_sent_again_at_once() {
    let hello = || Dialect::Openai.answer(Says { text: "Hello.", ..Says::default() });
    let dies = Answer::dead();
    let wire = Wire::play(vec![hello(), dies, hello()]).await;
    let client = drive::chat(options(&wire)).unwrap();
    for _ in 0..2 {
        let outcome = ask_through(client.as_ref(), request(Vec::new(), ModelOptions::default())).await;
        assert_eq!((outcome.finish(), outcome.text().as_str()), (ModelFinish::Stop, "Hello."));
    }
    assert_eq!((wire.asked().len(), wire.connections()), (3, 2));
}

// A server that loads a model is asked again.
#[tokio::test]
async fn loading_model_is_waited_for() {
    let loading = r#"{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}"#;
    let hello = Dialect::Openai.answer(Says { text: "Hello.", ..Says::default() });
    let wire = Wire::play(vec![Answer::json(503, loading), Answer::json(503, loading), hello]).await;
    let client = client(Dialect::Openai, &wire.base_url, None);
    let outcome = ask_through(client.as_ref(), request(Vec::new(), ModelOptions::default())).await;
    assert_eq!((outcome.finish(), wire.asked().len()), (ModelFinish::Stop, 3));
}

// A cold Ollama that needs 90 s for its first byte, in virtual time.
#[tokio::test(start_paused = true)]
async fn cold_ollama_has_minutes_for_its_first_byte() {
    let body = Dialect::Ollama.body(Says { text: "Hello.", ..Says::default() });
    let steps = vec![Step::Pause(Duration::from_secs(90)), Step::Send(body.into_bytes())];
    let wire = Wire::play(vec![Answer::new(200, &[("content-type", "application/x-ndjson")], steps)]).await;
    let options = ClientOptions { may_load: true, ..ClientOptions::new(base_url(Dialect::Ollama, &wire.base_url)) };
    let client = client_of(ProviderKind::Ollama, options, Quirks::default()).unwrap();
    let mut answer = client.stream(request(Vec::new(), ModelOptions::default())).await.unwrap();
    let mut text = String::new();
    while let Some(event) = answer.next().await {
        if let ModelEvent::Text(piece) = event.unwrap() {
            text.push_str(&piece);
        }
    }
    assert_eq!((text.as_str(), wire.asked().len()), ("Hello.", 1));
}

#[tokio::test]
async fn missing_path_is_named_in_the_error() {
    let wire = Wire::play(vec![Answer::json(404, r#"{"error":{"message":"Resource not found"}}"#)]).await;
    let outcome =
        ask_through(client(Dialect::Openai, &wire.base_url, None).as_ref(), request(Vec::new(), ModelOptions::default())).await;
    let error = outcome.end.unwrap_err();
    assert!(error.message.contains("/v1/chat/completions") && !error.message.contains("127.0.0.1"), "{error}");
}
