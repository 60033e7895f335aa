//! Titles that models write.

use std::time::Duration;

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use support::database::Kind;
use support::dialects::{Dialect, Says};
use support::model::ModelMock;
use support::server::{Server, Site};
use support::wait;
use support::wire::{Answer, Wire};

const PATIENCE: Duration = Duration::from_secs(30);

/// Runs a message in a conversation, or in a new one. Returns the conversation's id.
async fn say(server: &Server, conversation: Option<&str>, input: &str) -> String {
    server.say(conversation, input).await["conversation_id"].as_str().unwrap().to_owned()
}

async fn title(server: &Server, conversation: &str) -> String {
    server.get_json(&format!("/conversations/{conversation}")).await["title"].as_str().unwrap().to_owned()
}

async fn titled(server: &Server, conversation: &str, wanted: &str) {
    wait::until(wanted, PATIENCE, || async { (title(server, conversation).await == wanted).then_some(()) }).await;
}

async fn used(server: &Server, model: &str) -> (u64, u64) {
    let rows = server.get_json("/usage").await["data"].as_array().unwrap().clone();
    let row = rows.iter().find(|row| row["model"] == model);
    row.map_or((0, 0), |row| (row["runs"].as_u64().unwrap(), row["usage"]["model_calls"].as_u64().unwrap()))
}

async fn site(kind: Kind, model: &ModelMock) -> Site {
    let site = Site::scripted(kind, model).await.env("CAPSTAN_AGENT__TITLE", "model");
    site.env("CAPSTAN_AGENT__TITLE_MODEL", "openai/small")
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_model_titles_a_conversation_once_and_in_nobodys_way(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = site(kind, &model).await.env("CAPSTAN_WORKER__SLOTS", "1");
    let server = site.start().await;
    let words = r#"Where is tea from? [[id:tea]][[say:From China.]][[next]][[hold]][[say:"Where **Tea** Comes From."]]"#;
    let tea = say(&server, None, words).await;
    let asked = model.wait_for("the question for a title", "tea", |seen| seen.len() == 2).await.remove(1).request;
    let roles: Vec<&str> = asked["messages"].as_array().unwrap().iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!((asked["model"].as_str().unwrap(), roles), ("small", vec!["system", "user", "assistant", "user"]));
    assert_eq!((asked.get("tools"), asked.get("temperature")), (None, None), "{asked}");
    assert!(title(&server, &tea).await.starts_with("Where is tea from? "), "until then, the title is the first words");

    // Clients that follow the conversation get an event. Other conversations continue meanwhile.
    let path = format!("/conversations/{tea}");
    let head = server.get_json(&path).await["last_seq"].as_i64().unwrap();
    let other = say(&server, None, "[[id:other]][[say:x]][[next]][[say:Something else]]").await;
    titled(&server, &other, "Something else").await;
    model.release("tea");
    titled(&server, &tea, "Where Tea Comes From").await;
    let told = server.get_json(&format!("{path}/events?after={head}")).await["data"].clone();
    assert_eq!((told[0]["type"].as_str(), &told[1]), (Some("conversation.updated"), &Value::Null), "{told}");
    assert_eq!(told[0]["data"], json!({"title": "Where Tea Comes From", "status": "idle"}));
    assert_eq!((used(&server, "openai/mock").await, used(&server, "openai/small").await), ((2, 2), (0, 2)));

    let before = model.total();
    say(&server, Some(&tea), "[[id:more]][[say:y]][[next]][[say:Another title]]").await;
    // A model that the request names is used for the title, too.
    let named = server.start_run(&json!({"input": "[[id:named]][[say:z]][[next]][[say:By name]]", "model": "openai/other"})).await;
    titled(&server, named["conversation_id"].as_str().unwrap(), "By name").await;
    assert_eq!((model.total() - before, used(&server, "openai/other").await), (3, (1, 2)));
    assert_eq!(title(&server, &tea).await, "Where Tea Comes From");
    model.assert_history_was_sendable();
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_title_of_the_users_is_never_overwritten(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, _site, server) = Site::serve(async |model| site(kind, model).await).await;
    let renamed = say(&server, None, "[[id:held]][[say:x]][[next]][[hold]][[say:Too late]]").await;
    model.wait_for("the question for a title", "held", |seen| seen.len() == 2).await;
    let patch = server.request(Method::PATCH, &format!("/conversations/{renamed}")).json(&json!({"title": "Mine"}));
    assert_eq!(patch.send().await.unwrap().status(), 200);
    model.release("held");
    wait::until("the end of the call", PATIENCE, || async { (used(&server, "openai/small").await == (0, 1)).then_some(()) }).await;
    assert_eq!(title(&server, &renamed).await, "Mine");

    // A conversation that was created with a title needs no request. After a failure the first words stay.
    let (_, made) = server.post_json("/conversations", &json!({"title": "Given"})).await;
    let given = made["id"].as_str().unwrap();
    say(&server, Some(given), "[[id:given]][[say:x]][[next]][[say:Other]]").await;
    let failed = say(&server, None, "tea [[id:failed]][[say:x]][[next]][[status:500]]").await;
    wait::until("the failure", PATIENCE, || async { server.log_text().contains("no title was made").then_some(()) }).await;
    say(&server, Some(&failed), "[[id:again]][[say:x]][[next]][[say:Other]]").await;
    let last = say(&server, None, "[[id:last]][[say:x]][[next]][[say:Last]]").await;
    titled(&server, &last, "Last").await;
    assert!(title(&server, &failed).await.starts_with("tea "));
    assert_eq!(title(&server, given).await, "Given");
    let counts = ["given", "failed", "again"].map(|id| model.exchanges(id).len());
    assert_eq!(counts, [1, 2, 1], "asked once at most");
}

#[tokio::test(flavor = "multi_thread")]
async fn title_cut_at_its_limit_leaves_the_first_words() {
    let cut = concat!(
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"A title that never\"},\"finish_reason\":null}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n",
        "data: [DONE]\n\n"
    );
    let said = Dialect::Openai.answer(Says { text: "From China.", ..Says::default() });
    let wire = Wire::play(vec![said, Answer::stream(cut)]).await;
    let mut site = Site::new(Kind::Sqlite).await.env("CAPSTAN_MODEL", Dialect::Openai.model()).env("CAPSTAN_AGENT__TITLE", "model");
    for (name, value) in Dialect::Openai.environment(&wire.base_url) {
        site = site.env(name, &value);
    }
    let server = site.start().await;
    let tea = say(&server, None, "Where is tea from?").await;
    wait::until("the answer without a title", PATIENCE, || async {
        server.log_text().contains("no title was made, because the model reached its output limit").then_some(())
    })
    .await;
    assert_eq!((title(&server, &tea).await.as_str(), wire.asked().len()), ("Where is tea from?", 2));
}
