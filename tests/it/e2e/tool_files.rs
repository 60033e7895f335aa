//! Binary content of tool results and inline images in messages become stored files, which events and messages refer to.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use support::database::Kind;
use support::documents::{PNG, docx, encrypted_pdf, pdf};
use support::model::ModelMock;
use support::server::{Server, Site};

/// The largest frame of a stream.
const FRAME: usize = 512 * 1024;

/// A model that is known to read images.
const SEES: &str = "openai/gpt-4o";

/// The scripted server, and the folder from which its tool `gallery__show` answers.
pub struct Gallery {
    pub site: Site,
    folder: tempfile::TempDir,
}

impl Gallery {
    pub async fn new(kind: Kind, model: &ModelMock) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/support/gallery.py");
        let entry = json!({"command": "python3", "args": [script], "env": {"GALLERY": folder.path().to_str().unwrap()},
            "capstan": {"trusted": true}});
        let site = Site::new(kind).await.with_model(model).mcp(json!({"mcpServers": {"gallery": entry}}));
        Self { site, folder }
    }

    fn env(self, name: &str, value: &str) -> Self {
        Self { site: self.site.env(name, value), ..self }
    }

    /// Makes the tool answer `name` with this content.
    pub fn hang(&self, name: &str, content: &Value) {
        std::fs::write(self.folder.path().join(name), json!({"content": content}).to_string()).unwrap();
    }
}

/// Returns an image of this many bytes that models accept.
fn shot(bytes: usize) -> Vec<u8> {
    let mut shot = PNG.to_vec();
    // Trailing bytes after the end of an image are not part of it.
    shot.extend((PNG.len()..bytes).map(|at| (at * 31 % 251) as u8));
    shot
}

fn image(bytes: &[u8]) -> Value {
    json!({"type": "image", "mimeType": "image/png", "data": STANDARD.encode(bytes)})
}

fn blob(uri: &str, media_type: &str, bytes: &[u8]) -> Value {
    json!({"type": "resource", "resource": {"uri": uri, "mimeType": media_type, "blob": STANDARD.encode(bytes)}})
}

/// Runs a message in which the tool shows `name`. Returns the run and its events.
async fn shown(server: &Server, id: &str, name: &str) -> (Value, Vec<Value>) {
    let script = format!("[[id:{id}]][[call:gallery__show {{\"text\":\"{name}\"}}]][[next]][[say:seen]]");
    let run = server.start_run(&json!({"input": script, "model": SEES})).await;
    let run = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!(run["status"], "completed", "{run}");
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    for event in &events {
        assert!(event.to_string().len() < FRAME, "{} is a frame of {} bytes", event["type"], event.to_string().len());
    }
    (run, events)
}

fn completed(events: &[Value]) -> &Value {
    &events.iter().find(|event| event["type"] == "tool.completed").unwrap()["data"]
}

/// Downloads the file of a reference.
async fn bytes_of(server: &Server, reference: &Value) -> Result<Vec<u8>, StatusCode> {
    let path = reference["url"].as_str().unwrap().strip_prefix("/api/v1").unwrap();
    let answer = server.get(path).send().await.unwrap();
    match answer.status() {
        StatusCode::OK => Ok(answer.bytes().await.unwrap().to_vec()),
        status => Err(status),
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn screenshot_of_a_tool_is_a_file_of_its_owner(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let gallery = Gallery::new(kind, &model).await;
    let bytes = shot(3_000_000);
    gallery.hang("shot", &json!([{"type": "text", "text": "here"}, image(&bytes)]));
    let (ann, bob) = (gallery.site.key_of("ann").await, gallery.site.key_of("bob").await);
    let mut server = gallery.site.start().await;
    server.set_key(&ann);
    let (run, events) = shown(&server, "shot", "shot").await;
    let (run_id, conversation) = (run["id"].as_str().unwrap(), run["conversation_id"].as_str().unwrap());

    let content = &completed(&events)["content"];
    let reference = &content[1];
    let id = reference["file_id"].as_str().unwrap();
    let expected = json!({"type": "image", "media_type": "image/png", "file_id": id, "size": 3_000_000,
        "url": format!("/api/v1/files/{id}/content"), "name": "picture.png"});
    assert_eq!((reference, &content[0]["text"]), (&expected, &json!("here")));
    let said = server.messages(conversation).await;
    assert_eq!(said[2]["parts"][0]["content"][1], expected, "{}", said[2]);
    assert_eq!(bytes_of(&server, reference).await, Ok(bytes.clone()));
    let call = completed(&events)["call_id"].as_str().unwrap();
    let record = server.get_json(&format!("/runs/{run_id}/tool-calls/{call}")).await;
    assert_eq!(record["content"][1], expected, "the record of the call");
    assert_eq!(server.get_json(&format!("/files/{id}")).await["origin"], "content");

    // The model gets the image, and gets it again in the next run, after a restart.
    let encoded = STANDARD.encode(&bytes);
    let asked = |id: &str, at: usize| model.exchanges(id)[at].request["messages"].to_string();
    assert!(asked("shot", 1).contains(&encoded), "the model gets the image");
    server.kill9().await;
    let mut server = gallery.site.start().await;
    server.set_key(&ann);
    let body = json!({"input": "[[id:later]][[say:still]]", "conversation_id": conversation, "model": SEES});
    server.finished(server.start_run(&body).await["id"].as_str().unwrap()).await;
    assert!(asked("later", 0).contains(&encoded), "the next run gets the image");
    let blind = json!({"input": "[[id:blind]][[say:no]]", "conversation_id": conversation, "model": "openai/gpt-3.5-turbo"});
    server.finished(server.start_run(&blind).await["id"].as_str().unwrap()).await;
    let words = format!(
        "[picture picture.png, image/png, 3000000 bytes: its bytes are not shown here; the user finds it at /api/v1/files/{id}"
    );
    assert!(!asked("blind", 0).contains("base64") && asked("blind", 0).contains(&words), "{}", asked("blind", 0));

    // Keys of other users find no such file.
    server.set_key(&bob);
    assert_eq!(bytes_of(&server, reference).await, Err(StatusCode::NOT_FOUND));
    server.set_key(&ann);

    // Copies of the conversation refer to it, too.
    let (status, fork) = server.post_json(&format!("/conversations/{conversation}/fork"), &json!({})).await;
    assert_eq!(status, StatusCode::CREATED, "{fork}");
    let export = server.get_json(&format!("/conversations/{conversation}/export?format=json")).await;
    assert!(export.to_string().len() < FRAME && export.to_string().contains(id), "the document refers to it");
    let (status, import) = server.post_json("/conversations/import", &export).await;
    assert_eq!(status, StatusCode::CREATED, "{import}");
    for copy in [&fork, &import] {
        let said = server.messages(copy["id"].as_str().unwrap()).await;
        assert_eq!(said[2]["parts"][0]["content"][1], expected, "{}", said[2]);
    }
    for (at, copy) in [conversation, fork["id"].as_str().unwrap(), import["id"].as_str().unwrap()].into_iter().enumerate() {
        assert!(bytes_of(&server, reference).await.is_ok(), "{at}");
        let gone = server.request(Method::DELETE, &format!("/conversations/{copy}")).send().await.unwrap();
        assert_eq!(gone.status(), StatusCode::NO_CONTENT);
    }
    assert_eq!(bytes_of(&server, reference).await, Err(StatusCode::NOT_FOUND), "it is deleted with the last reference");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn documents_of_a_tool_are_read_and_kept(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let gallery = Gallery::new(kind, &model).await;
    let rent = pdf("The rent is due");
    let docx_type = "application/vnd.openxmlformats-officedocument.wordprocessingml.document";
    let blobs = [
        blob("file:///home/my%20rent.pdf", "application/pdf", &rent),
        blob("file:///letter", "application/octet-stream", &docx(&["Dear Ada"])),
        blob("file:///a.csv", "text/csv", "a,b\n1,ü\n".as_bytes()),
        blob("file:///latin.txt", "text/plain", b"gr\xfc\xdfe"),
        blob("file:///locked.pdf", "application/pdf", &encrypted_pdf()),
        blob("file:///tool.bin", "", b"\x7fELF\0\xff"),
        json!({"type": "audio", "mimeType": "audio/wav", "data": STANDARD.encode(b"RIFF\0\xff")}),
        json!({"type": "resource", "resource": {"uri": "file:///x.pdf", "mimeType": "application/pdf", "blob": "no base64!"}}),
    ];
    gallery.hang("papers", &json!(blobs));
    let server = gallery.site.start().await;
    let (run, events) = shown(&server, "papers", "papers").await;
    let data = completed(&events);
    let record =
        server.get_json(&format!("/runs/{}/tool-calls/{}", run["id"].as_str().unwrap(), data["call_id"].as_str().unwrap())).await;
    assert_eq!(record["content"], data["content"]);
    let content = record["content"].as_array().unwrap();
    let is_file = |at: usize, name: &str, media_type: &str| {
        assert_eq!(
            (&content[at]["type"], &content[at]["name"], &content[at]["media_type"]),
            (&json!("file"), &json!(name), &json!(media_type))
        );
    };
    let says = |at: usize| content[at]["text"].as_str().unwrap();
    is_file(0, "my rent.pdf", "application/pdf");
    assert!(says(1).starts_with("[text of my rent.pdf]\n") && says(1).contains("The rent is due"), "{}", says(1));
    assert_eq!(bytes_of(&server, &content[0]).await, Ok(rent));
    is_file(2, "letter", docx_type);
    assert_eq!(says(3), "[text of letter]\nDear Ada");
    assert_eq!(says(4), "[file:///a.csv]\na,b\n1,ü\n");
    is_file(5, "latin.txt", "text/plain");
    assert_eq!(says(6), "[text of latin.txt, which is not UTF-8, read as Latin-1]\ngrüße");
    is_file(7, "locked.pdf", "application/pdf");
    assert!(says(8).starts_with("[the text of locked.pdf cannot be read: the PDF is encrypted"), "{}", says(8));
    is_file(9, "tool.bin", "application/octet-stream");
    is_file(10, "audio.wav", "audio/wav");
    assert_eq!(bytes_of(&server, &content[10]).await, Ok(b"RIFF\0\xff".to_vec()));
    assert_eq!(says(11), "[file x.pdf, application/pdf, 6 bytes: it cannot be read, because the tool sent invalid base64]");

    let asked = model.exchanges("papers")[1].request["messages"].to_string();
    for words in [
        "The rent is due",
        "Dear Ada",
        "grüße",
        "a,b\\n1,ü",
        "[file tool.bin, application/octet-stream, 6 bytes: ",
        "/api/v1/files/file_",
    ] {
        assert!(asked.contains(words), "{words}: {asked}");
    }
    let run = server
        .start_run(&json!({"input": "[[id:more]][[say:ok]]", "conversation_id": run["conversation_id"], "model": SEES}))
        .await;
    server.finished(run["id"].as_str().unwrap()).await;
    assert!(model.exchanges("more")[0].request["messages"].to_string().contains("The rent is due"));
}

#[tokio::test(flavor = "multi_thread")]
async fn content_beyond_a_limit_is_a_note_and_no_failure() {
    let model = ModelMock::start().await;
    let gallery = Gallery::new(Kind::Sqlite, &model)
        .await
        .env("CAPSTAN_LIMITS__FILE_BYTES", "1000")
        .env("CAPSTAN_LIMITS__TOOL_CALL_FILE_BYTES", "1500")
        .env("CAPSTAN_LIMITS__MAX_CONTENT_FILES_PER_OWNER", "2");
    gallery.hang("large", &json!([image(&shot(1_001)), image(&shot(900)), image(&shot(601)), image(&shot(600))]));
    gallery.hang("another", &json!([image(&shot(300))]));
    let server = gallery.site.start().await;
    let (_, events) = shown(&server, "large", "large").await;
    let data = completed(&events);
    assert_eq!((data["is_error"].as_bool().unwrap_or(false), &data["content"][1]["size"]), (false, &json!(900)), "{data}");
    let one = "[picture, image/png, 1001 bytes: not stored, one file may have 1000 bytes]";
    let all = "[picture, image/png, 601 bytes: not stored, the files of one call may have 1500 bytes together]";
    assert_eq!((&data["content"][0]["text"], &data["content"][2]["text"]), (&json!(one), &json!(all)));
    assert_eq!(data["content"][3]["size"], 600);
    let (_, events) = shown(&server, "another", "another").await;
    let full = "[picture, image/png, 300 bytes: not stored, the user has reached the limit of 2 files of this kind]";
    assert_eq!(completed(&events)["content"][0]["text"], full);
    // Uploads have their own limit.
    let upload = server.request(Method::POST, "/files?name=a.txt").body("hello").send().await.unwrap();
    assert_eq!(upload.status(), StatusCode::CREATED);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn picture_inside_a_message_becomes_a_file(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, _site, server) = Site::start_scripted(kind).await;
    let picture = |bytes: &[u8]| json!({"type": "image", "media_type": "image/png", "url": format!("data:image/png;base64,{}", STANDARD.encode(bytes))});
    let bytes = shot(700_000);
    let input = json!([{"type": "text", "text": "[[id:own]][[say:seen]]"}, picture(&bytes)]);
    let run = server.start_run(&json!({"input": input, "model": SEES})).await;
    assert_eq!(server.finished(run["id"].as_str().unwrap()).await["status"], "completed");
    let conversation = run["conversation_id"].as_str().unwrap();
    let part = server.messages(conversation).await[0]["parts"][1].clone();
    let id = part["file_id"].as_str().unwrap();
    let expected = json!({"type": "image", "id": part["id"], "media_type": "image/png", "file_id": id, "size": 700_000,
        "url": format!("/api/v1/files/{id}/content"), "name": "picture.png"});
    assert_eq!(part, expected);
    assert_eq!(bytes_of(&server, &part).await, Ok(bytes.clone()));
    for event in server.run_events_json(run["id"].as_str().unwrap()).await {
        assert!(event.to_string().len() < FRAME, "{}", event["type"]);
    }
    assert!(
        model.exchanges("own")[0].request["messages"].to_string().contains(&STANDARD.encode(&bytes)),
        "the model gets the image"
    );

    // A part may be sent back as it was shown. Inline images do not count as uploads, which a conversation may have five of.
    let echo = json!({"type": "image", "media_type": "image/png", "file_id": id, "url": part["url"], "name": part["name"]});
    let many: Vec<Value> = (1..=7).map(|more| picture(&shot(1_000 + more))).chain([echo]).collect();
    let input = json!([json!({"type": "text", "text": "[[id:many]][[say:seen]]"})].into_iter().chain(many).collect::<Vec<_>>());
    let run = server.start_run(&json!({"input": input, "conversation_id": conversation, "model": SEES})).await;
    assert_eq!(server.finished(run["id"].as_str().unwrap()).await["status"], "completed");
    let asked = model.exchanges("many")[0].request["messages"].to_string();
    assert_eq!(asked.matches("data:image/png;base64,").count(), 8);
}
