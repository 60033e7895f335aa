//! Third-party servers as providers: a litellm proxy before the scripted model, and llama.cpp with a random model.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::{Child, Command};

use super::mcp_servers::installed;
use support::database::Kind;
use support::model::ModelMock;
use support::repository::root;
use support::server::{Port, Server, Site};
use support::wait;

const KEY: &str = "sk-canary-0123456789";

/// Either of them loads slowly on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Starts a process and waits until it answers on its port. The port is the first field, so it is freed after the process ends.
async fn listening(mut command: Command, folder: &Path, path: &str) -> (Port, Child) {
    let port = Port::free();
    let log = std::fs::File::create(folder.join("peer.log")).unwrap();
    command.args(["--host", "127.0.0.1", "--port", &port.number.to_string()]).current_dir(folder).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let mut child = command.spawn().unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://127.0.0.1:{}{path}", port.number);
    wait::until("the peer to listen", PATIENCE, || {
        let ended = child.try_wait().unwrap();
        let request = client.get(&url).bearer_auth(KEY).send();
        async move {
            assert!(
                ended.is_none(),
                "the process exited: {}",
                std::fs::read_to_string(folder.join("peer.log")).unwrap_or_default()
            );
            request.await.is_ok_and(|answer| answer.status().is_success()).then_some(())
        }
    })
    .await;
    (port, child)
}

async fn finished(server: &Server, body: &Value) -> (Value, String) {
    let run = server.start_run(body).await;
    let ended = server.finished(run["id"].as_str().unwrap()).await;
    let messages = server.messages(ended["conversation_id"].as_str().unwrap()).await;
    let parts = messages.last().unwrap()["parts"].as_array().unwrap().clone();
    (ended, parts.iter().filter_map(|part| part["text"].as_str()).collect())
}

// litellm writes each wire format itself, so each dialect meets a stream that these tests did not design.
#[tokio::test(flavor = "multi_thread")]
async fn litellm_relays_every_wire() {
    let packages = installed().await;
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Sqlite, &model).await;
    let call = json!({"id": "call_mock", "type": "function", "function": {"name": "ledger__append_keyed", "arguments": r#"{"text": "mocked"}"#}});
    let entry = |name: &str, more: Value| {
        let mut parameters = json!({"model": "custom_openai/mock", "api_key": "sk-behind"});
        parameters.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"model_name": name, "litellm_params": parameters})
    };
    let config = json!({
        "model_list": [
            entry("relay", json!({"api_base": model.base_url})),
            entry("words", json!({"mock_response": "Words of a mock."})),
            entry("caller", json!({ "mock_tool_calls": [call] })),
        ],
        "litellm_settings": {"num_retries": 0},
        "general_settings": {"master_key": KEY},
    });
    // JSON is YAML.
    std::fs::write(site.folder.path().join("litellm.yaml"), config.to_string()).unwrap();
    let mut command = Command::new(packages.join("venv-models/bin/litellm"));
    // Otherwise it would download a list of prices.
    command.args(["--config", "litellm.yaml", "--telemetry", "False"]).env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
    let (port, _litellm) = listening(command, site.folder.path(), "/health/liveliness").await;

    let host = format!("http://127.0.0.1:{}", port.number);
    let whole =
        format!("[providers.whole]\nkind = 'openai'\nbase_url = '{host}/v1'\nkey_env = 'OPENAI_API_KEY'\nstreaming = false\n");
    std::fs::write(site.folder.path().join("capstan.toml"), whole).unwrap();
    let site = site.env("OPENAI_BASE_URL", &format!("{host}/v1")).env("OPENAI_API_KEY", KEY).env("CAPSTAN_MODEL", "openai/relay");
    let site = site
        .env("ANTHROPIC_BASE_URL", &host)
        .env("ANTHROPIC_API_KEY", KEY)
        .env("GEMINI_BASE_URL", &host)
        .env("GEMINI_API_KEY", KEY);
    let server = site.start().await;

    for provider in ["openai", "whole", "anthropic", "openai-responses", "gemini"] {
        let script = format!(
            "[[id:{provider}]][[call:ledger__append_keyed {{\"text\":\"{provider}, größer\"}}]][[next]][[say:Through ]][[say:litellm.]]"
        );
        let (ended, text) = finished(&server, &json!({"input": script, "model": format!("{provider}/relay")})).await;
        assert_eq!((&ended["status"], text.as_str()), (&json!("completed"), "Through litellm."), "{provider}: {ended}");
        assert_eq!(site.ledger.count("append_keyed", &format!("{provider}, größer")), 1, "{provider}");
        assert_eq!(model.exchanges(provider).len(), 2, "{provider}");
        // With Gemini it reports zeros as usage.
        assert!(ended["usage"]["input_tokens"].as_u64() > Some(0) || provider == "gemini", "{provider}: {ended}");
        // The next run, with these messages in its history.
        let again = json!({"input": format!("[[id:{provider}-2]][[say:And again.]]"), "model": format!("{provider}/relay"),
            "conversation_id": ended["conversation_id"]});
        assert_eq!(finished(&server, &again).await.1, "And again.", "{provider}");
    }
    model.assert_history_was_sendable();

    let (ended, text) = finished(&server, &json!({"input": "Hello", "model": "openai/words"})).await;
    assert_eq!((&ended["status"], text.as_str()), (&json!("completed"), "Words of a mock."), "{ended}");
    // L-21: its mocked calls have the finish reason `stop`, round after round, until the run reaches its limit.
    let (ended, _) = finished(&server, &json!({"input": "Hello", "model": "whole/caller"})).await;
    assert!(site.ledger.count("append_keyed", "mocked") >= 1, "{ended}");
    let (ended, _) = finished(&server, &json!({"input": "Hello", "model": "openai/nobody"})).await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!("provider_invalid_request")), "{ended}");
    assert!(!server.log_text().contains("canary"));
}

// Its answers and its calls come from a grammar that it derives from the tools.
#[tokio::test(flavor = "multi_thread")]
async fn llama_cpp_calls_a_tool_that_it_is_forced_to() {
    let packages = installed().await;
    let site = Site::new(Kind::Sqlite).await;
    let python = packages.join("venv-models/bin/python");
    let mut write = Command::new(&python);
    write.arg(root().join("tests/it/support/tiny_model.py")).arg(site.folder.path().join("tiny.gguf"));
    assert!(wait::within("the model to be written", PATIENCE, write.status()).await.unwrap().success());
    let mut command = Command::new(&python);
    command.arg(root().join("tests/it/support/llama_server.py")).args(["tiny.gguf", KEY]);
    let (port, _llama) = listening(command, site.folder.path(), "/v1/models").await;

    let ledger = site.ledger.mcp_config();
    let url = format!("http://127.0.0.1:{}/v1", port.number);
    let site = site.mcp(ledger).env("OPENAI_BASE_URL", &url).env("OPENAI_API_KEY", KEY);
    let site = site.env("CAPSTAN_AGENT__OPTIONS", r#"{ tool_choice = "required", max_output_tokens = 200, temperature = 0.0 }"#);
    let site = site.env("CAPSTAN_AGENT__TOOLS_POLICY", "one_round_then_text");
    let site = site.env("CAPSTAN_AGENT__TOOLS", r#"["ledger__environment"]"#);
    for streaming in ["true", "false"] {
        // Without a configured model, the first model that the server lists is used.
        let server = site.start_with(&[("CAPSTAN_PROVIDERS__OPENAI__STREAMING", streaming)]).await;
        let (ended, _) = finished(&server, &json!({"input": "Which variables are there?"})).await;
        assert_eq!((&ended["status"], &ended["model"]), (&json!("completed"), &json!("openai/tiny")), "{ended}");
        let messages = server.messages(ended["conversation_id"].as_str().unwrap()).await;
        let parts: Vec<&Value> = messages.iter().flat_map(|message| message["parts"].as_array().unwrap()).collect();
        let calls: Vec<&&Value> = parts.iter().filter(|part| part["type"] == "tool_call").collect();
        assert_eq!(calls.len(), 1, "{messages:#?}");
        assert_eq!((&calls[0]["name"], &calls[0]["arguments"]), (&json!("ledger__environment"), &json!({})));
        let results: Vec<&&Value> = parts.iter().filter(|part| part["type"] == "tool_result").collect();
        assert!(results.len() == 1 && results[0].to_string().contains("LEDGER_FILE"), "{results:?}");
        assert!(ended["usage"]["input_tokens"].as_u64() > Some(0), "{ended}");
        assert!(!server.log_text().contains("canary"));
    }
}
