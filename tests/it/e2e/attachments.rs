//! Files: uploads, references in messages, and their content in requests. The transcript holds references only.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use support::database::Kind;
use support::dialects::{Dialect, Says};
use support::documents::{PNG, bomb, docx, encrypted_pdf, endless_pdf, pdf, workbook};
use support::model::ModelMock;
use support::server::{Server, Site};
use support::wire::{Answer, Wire};

/// Returns a multipart form as curl builds it.
fn form(name: &str, claimed: &str, bytes: &[u8]) -> (String, Vec<u8>) {
    let mut body = b"--XyZ\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nassistants\r\n".to_vec();
    body.extend(
        format!("--XyZ\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\ncontent-type: {claimed}\r\n\r\n")
            .bytes(),
    );
    body.extend(bytes);
    body.extend(b"\r\n--XyZ--\r\n");
    ("multipart/form-data; boundary=XyZ".to_owned(), body)
}

async fn upload(server: &Server, name: &str, bytes: &[u8]) -> (StatusCode, Value) {
    let (kind, body) = form(name, "application/x-whatever", bytes);
    let answer = server.request(Method::POST, "/files").header("content-type", kind).body(body).send().await.unwrap();
    (answer.status(), answer.json().await.unwrap())
}

async fn uploaded(server: &Server, name: &str, bytes: &[u8]) -> String {
    let (status, file) = upload(server, name, bytes).await;
    assert_eq!(status, StatusCode::CREATED, "{file}");
    file["id"].as_str().unwrap().to_owned()
}

fn file(id: &str) -> Value {
    json!({"type": "file", "file_id": id})
}

/// Returns all parts of the user's last message in the request.
fn last_said(request: &Value) -> Vec<Value> {
    let messages = request["messages"].as_array().unwrap();
    let last = messages.iter().rfind(|message| message["role"] == "user").unwrap();
    last["content"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_seen_by_models_and_not_in_the_transcript() {
    for kind in [Kind::Sqlite, Kind::Postgres] {
        let model = ModelMock::start().await;
        let site = Site::scripted(kind, &model).await;
        let server = site.start().await;
        let picture = uploaded(&server, "cat.txt", PNG).await;
        let paper = uploaded(&server, "rent.pdf", &pdf("The rent is due")).await;
        let letter = uploaded(&server, "letter.docx", &docx(&["Dear Ada"])).await;
        let raw = server.request(Method::POST, "/files?name=..%2Fa.csv").header("content-type", "image/png").body("a,b\n1,2\n");
        let raw = raw.send().await.unwrap();
        assert_eq!(raw.status(), StatusCode::CREATED);
        let place = raw.headers()["location"].to_str().unwrap().to_owned();
        let raw: Value = raw.json().await.unwrap();
        assert_eq!((&raw["name"], &raw["media_type"], &raw["size"]), (&json!("a.csv"), &json!("text/csv"), &json!(8)), "{raw}");
        assert_eq!(place, format!("/api/v1/files/{}", raw["id"].as_str().unwrap()));
        let table = raw["id"].as_str().unwrap();

        let script = "[[id:s]][[call:ledger__pay {\"text\":\"rent\"}]][[next]][[say:paid]]";
        let parts = json!([{"type": "text", "text": script}, file(&picture), file(&paper), file(&letter), file(table)]);
        let run = server.start_run(&json!({"input": parts, "model": "openai/gpt-4o"})).await;
        let ended = server.finished(run["id"].as_str().unwrap()).await;
        assert_eq!(ended["status"], "completed", "{ended}");

        let asked = model.exchanges("s");
        for exchange in &asked {
            let said = last_said(&exchange.request);
            assert_eq!(said[1]["image_url"]["url"], format!("data:image/png;base64,{}", STANDARD.encode(PNG)), "{said:?}");
            assert_eq!(said[2]["file"]["filename"], "rent.pdf", "the model reads images, so it reads pages: {said:?}");
            assert!(said[2]["file"]["file_data"].as_str().unwrap().starts_with("data:application/pdf;base64,JVBERi0xLjQK"));
            let words = |at: usize| said[at]["text"].as_str().unwrap_or_default();
            assert!(words(3).starts_with("[file letter.docx, ") && words(3).ends_with("]\nDear Ada"), "{said:?}");
            assert_eq!(words(4), "[file a.csv, text/csv]\na,b\n1,2\n");
        }
        assert_eq!(asked.len(), 2, "each round sends the files");

        let conversation = ended["conversation_id"].as_str().unwrap();
        let stored = server.messages(conversation).await;
        let said = &stored[0]["parts"];
        assert_eq!(
            (&said[1]["type"], &said[1]["file_id"], &said[1]["name"]),
            (&json!("image"), &json!(picture), &json!("cat.txt"))
        );
        assert_eq!((&said[2]["type"], &said[2]["media_type"]), (&json!("file"), &json!("application/pdf")));
        assert_eq!(
            (&said[1]["text_chars"], &said[3]["text_chars"]),
            (&Value::Null, &json!(8)),
            "a document states its number of characters: {said}"
        );
        let events = json!(server.run_events_json(run["id"].as_str().unwrap()).await).to_string();
        for transcript in [json!(stored).to_string(), events] {
            assert!(!transcript.contains("Dear Ada") && !transcript.contains("base64"), "{transcript}");
        }

        // An unknown model gets the text of documents. A deleted file becomes a note.
        let gone = server.request(Method::DELETE, &format!("/files/{picture}")).send().await.unwrap();
        assert_eq!(gone.status(), StatusCode::NO_CONTENT);
        let body = json!({"input": "[[id:again]][[say:ok]]", "conversation_id": conversation, "model": "openai/mock"});
        server.finished(server.start_run(&body).await["id"].as_str().unwrap()).await;
        let again = &model.exchanges("again")[0].request["messages"];
        let words = again.to_string();
        assert!(words.contains("[file cat.txt, image/png: it has been deleted since]"), "{words}");
        assert!(words.contains("[file rent.pdf, application/pdf]") && words.contains("The rent is due"), "{words}");
        assert!(!words.contains("base64"), "{words}");

        // Files are deleted with their conversation.
        let path = format!("/conversations/{conversation}");
        assert_eq!(server.request(Method::DELETE, &path).send().await.unwrap().status(), StatusCode::NO_CONTENT);
        assert_eq!(server.get_json("/files").await["data"], json!([]));
        site.assert_sound(&model).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bytes_come_back_as_an_attachment_to_their_owner_alone() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Sqlite, &model).await;
    let (ada, ben) = (site.key_of("ada").await, site.key_of("ben").await);
    let mut server = site.start().await;
    server.set_key(&ada);
    let page = "<script>alert(1)</script>\n".repeat(60_000);
    let id = uploaded(&server, "größe.html", page.as_bytes()).await;
    let content = server.get(&format!("/files/{id}/content")).send().await.unwrap();
    let header = |name: &str| content.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(header("content-disposition"), "attachment; filename*=UTF-8''gr%C3%B6%C3%9Fe%2Ehtml");
    assert_eq!(header("x-content-type-options"), "nosniff");
    assert_eq!(header("content-length"), page.len().to_string());
    assert_eq!(content.text().await.unwrap(), page, "the file has more than one piece");
    let known = server.get_json(&format!("/files/{id}")).await;
    assert_eq!((&known["text_chars"], &known["text_cut"]), (&json!(100_000), &json!(true)), "{known}");

    server.set_key(&ben);
    assert_eq!(server.get_json("/files").await["data"], json!([]));
    for (method, path) in [(Method::GET, ""), (Method::GET, "/content"), (Method::DELETE, "")] {
        let answer = server.request(method, &format!("/files/{id}{path}")).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::NOT_FOUND);
    }
    let (status, problem) = server.post_json("/runs", &json!({"input": [{"type": "text", "text": "hi"}, file(&id)]})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("unusable_file")));
    assert_eq!(problem["errors"][0]["pointer"], "/input/1/file_id");

    // A page of another origin cannot make a browser store files: browsers send forms without a preflight.
    let (kind, body) = form("a.txt", "text/plain", b"hi");
    let forged =
        server.request(Method::POST, "/files").header("origin", "https://evil.example").header("content-type", kind).body(body);
    assert_eq!(forged.send().await.unwrap().status(), StatusCode::FORBIDDEN);
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_uploads_are_refused_and_the_server_lives() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Sqlite, &model).await;
    let site = site.env("CAPSTAN_LIMITS__FILE_BYTES", "3000000").env("CAPSTAN_LIMITS__MAX_FILES_PER_OWNER", "7");
    let site = site.env("CAPSTAN_LIMITS__MAX_MESSAGE_CHARS", "300");
    let server = site.start().await;
    let (status, problem) = server.post_json("/runs", &json!({"input": "\u{e9}".repeat(301)})).await;
    assert_eq!((status, &problem["errors"][0]["pointer"]), (StatusCode::BAD_REQUEST, &json!("/input")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("has 301 characters; at most 300 are accepted"), "{problem}");
    let huge = workbook("<sheetData/>");
    let huge: Vec<(&str, &str)> = huge.iter().map(|(name, content)| (*name, content.as_str())).collect();
    for (bytes, why) in
        [(b"MZ\x90\0".to_vec(), "the type of the file is not accepted"), (bomb(&huge), "too large"), (encrypted_pdf(), "encrypted")]
    {
        let (status, problem) = upload(&server, "a.pdf", &bytes).await;
        assert_eq!((status, &problem["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("unusable_file")), "{why}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(why), "{why}: {problem}");
    }
    let (status, problem) = upload(&server, "a.txt", &vec![b'a'; 3_000_001]).await;
    assert_eq!((status, &problem["code"]), (StatusCode::PAYLOAD_TOO_LARGE, &json!("payload_too_large")), "{problem}");
    let raw = server.request(Method::POST, "/files").body(vec![b'a'; 3_000_001]).send().await.unwrap();
    assert_eq!(raw.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let largest = uploaded(&server, "a.txt", &vec![b'a'; 3_000_000]).await;
    for body in ["", "--XyZ\r\ncontent-disposition: form-data; name=\"x\"\r\n\r\nhi\r\n--XyZ--\r\n"] {
        let request = server.request(Method::POST, "/files").header("content-type", "multipart/form-data; boundary=XyZ").body(body);
        assert_eq!(request.send().await.unwrap().status(), StatusCode::BAD_REQUEST, "{body:?}");
    }

    // A PDF whose text cannot be read is kept for models that read pages.
    let (status, endless) = upload(&server, "a.pdf", &endless_pdf()).await;
    assert_eq!(
        (status, &endless["media_type"], &endless["text_chars"]),
        (StatusCode::CREATED, &json!("application/pdf"), &Value::Null),
        "{endless}"
    );

    let mut ids = vec![largest];
    for n in 0..5 {
        ids.push(uploaded(&server, "a.md", format!("# {n}").as_bytes()).await);
    }
    let (status, problem) = upload(&server, "b.md", b"one more").await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("conflict")), "{problem}");

    let files = |ids: &[String]| ids.iter().map(|id| file(id)).collect::<Vec<_>>();
    ids.push(endless["id"].as_str().unwrap().to_owned());
    let (status, problem) = server.post_json("/runs", &json!({"input": files(&ids[..6])})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("it may have 5"), "{problem}");
    let run = server.start_run(&json!({"input": files(&ids[..4])})).await;
    server.finished(run["id"].as_str().unwrap()).await;
    let path = format!("/conversations/{}/messages", run["conversation_id"].as_str().unwrap());
    let (status, _) = server.post_json(&path, &json!({"content": files(&ids[4..6])})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "the conversation already has four files");
    let (status, _) = server.post_json(&path, &json!({"content": files(&ids[..5])})).await;
    assert_eq!(status, StatusCode::ACCEPTED, "the same files do not count again");

    for (part, pointer) in [
        (json!({"type": "image", "file_id": ids[1]}), "/input/0/file_id"),
        (json!({"type": "file", "file_id": "file_00000000000000000000000000000000"}), "/input/0/file_id"),
        (json!({"type": "file", "file_id": "nonsense"}), "/input/0"),
        (json!({"type": "file", "file_id": ids[1], "url": "https://a.example/b"}), "/input/0"),
        (json!({"type": "file", "name": "a"}), "/input/0"),
        (json!({"type": "file", "url": "https://a.example/b"}), "/input/0"),
    ] {
        let (status, problem) = server.post_json("/runs", &json!({"input": [part]})).await;
        assert!(status.is_client_error(), "{problem}");
        assert!(problem["errors"][0]["pointer"].as_str().unwrap().starts_with(pointer), "{problem}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cleaning_up_leaves_young_files() {
    let (_model, site, server) = Site::start_scripted(Kind::Sqlite).await;
    let id = uploaded(&server, "a.md", b"# hello").await;
    let (ok, said) = site.command(&["cleanup", "--dry-run"]).await;
    assert!(ok && said.contains("unused files to remove: 0"), "{said}");
    let (ok, said) = site.command(&["cleanup"]).await;
    assert!(ok && said.contains("unused files removed: 0"), "{said}");
    assert_eq!(server.get_json(&format!("/files/{id}")).await["name"], "a.md");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_picture_that_comes_up_again_is_sent_once() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let picture = uploaded(&server, "cat.png", PNG).await;
    let say = |id: &str| json!([{"type": "text", "text": format!("[[id:{id}]][[say:ok]]")}, file(&picture), file(&picture)]);
    let run = server.start_run(&json!({"input": say("first"), "model": "openai/gpt-4o"})).await;
    server.finished(run["id"].as_str().unwrap()).await;
    let conversation = run["conversation_id"].as_str().unwrap();
    let body = json!({"input": say("second"), "conversation_id": conversation, "model": "openai/gpt-4o"});
    server.finished(server.start_run(&body).await["id"].as_str().unwrap()).await;
    for (id, more) in [("first", 1), ("second", 3)] {
        let asked = model.exchanges(id)[0].request["messages"].to_string();
        assert_eq!(asked.matches("data:image/png;base64,").count(), 1, "{asked}");
        assert_eq!(asked.matches("[file cat.png, image/png: the same as in a later message]").count(), more, "{asked}");
    }
    let second = model.exchanges("second");
    assert!(last_said(&second[0].request)[1]["image_url"].is_object() || last_said(&second[0].request)[2]["image_url"].is_object());
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_comes_again_is_answered_as_before(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (_model, _site, server) = Site::start_scripted(kind).await;
    let letter = uploaded(&server, "letter.txt", b"Dear Ada").await;
    let body = json!({"input": [{"type": "text", "text": "[[say:ok]]"}, file(&letter)]});
    let send = || server.post("/runs", &body).header("idempotency-key", "k").send();
    let first: Value = send().await.unwrap().json().await.unwrap();
    let run = first["run"]["id"].as_str().unwrap();
    server.finished(run).await;
    let gone = server.request(Method::DELETE, &format!("/files/{letter}")).send().await.unwrap();
    assert_eq!(gone.status(), StatusCode::NO_CONTENT);
    let again = send().await.unwrap();
    assert_eq!((again.status(), again.headers()["idempotent-replayed"].to_str().unwrap()), (StatusCode::ACCEPTED, "true"));
    assert_eq!(again.json::<Value>().await.unwrap()["run"]["id"], run);
    let (status, problem) = server.post_json("/runs", &body).await;
    assert_eq!(
        (status, &problem["errors"][0]["pointer"]),
        (StatusCode::UNPROCESSABLE_ENTITY, &json!("/input/1/file_id")),
        "{problem}"
    );
}

/// The abilities in a provider's record take precedence over the catalogue, for images in URLs, too.
#[tokio::test(flavor = "multi_thread")]
async fn request_matches_its_attachment_record() {
    let wire = Wire::play(vec![Dialect::Openai.answer(Says { text: "I see.", ..Says::default() })]).await;
    let site = Site::new(Kind::Sqlite).await;
    let server = site.start().await;
    let models = json!([{"name": "llava-x", "vision": false}, {"name": "gpt-3.5-turbo", "vision": true}]);
    let body = json!({"name": "mine", "kind": "openai", "base_url": wire.base_url, "key": "sk-0123456789", "models": models});
    let (status, made) = server.post_json("/providers", &body).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let picture = uploaded(&server, "cat.png", PNG).await;
    let url = format!("data:image/png;base64,{}", STANDARD.encode(PNG));
    let inline = json!({"type": "image", "media_type": "image/png", "url": url, "name": "dog.png"});
    let input = json!([{"type": "text", "text": "What is it?"}, file(&picture), inline]);
    for model in ["mine/llava-x", "mine/gpt-3.5-turbo"] {
        let run = server.start_run(&json!({"input": input, "model": model})).await;
        let ended = server.finished(run["id"].as_str().unwrap()).await;
        assert_eq!(ended["status"], "completed", "{ended}");
    }
    let asked: Vec<Value> = wire.asked().iter().map(|asked| asked.json()["messages"].clone()).collect();
    let blind = asked[0].to_string();
    assert!(!blind.contains("base64") && !blind.contains("image_url"), "{blind}");
    for name in ["cat.png", "dog.png"] {
        assert!(blind.contains(&format!("[picture {name}, image/png: not sent, because the model accepts no images")), "{blind}");
    }
    assert_eq!(asked[1].to_string().matches(&url).count(), 2, "{}", asked[1]);
}

/// Returns text of three bytes a character, as in most of its script.
fn long_text(chars: usize) -> String {
    "\u{65e5}\u{672c}\u{8a9e}\u{306e}\u{6587}".chars().cycle().take(chars).collect()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_file_larger_than_the_window_is_cut_and_answered(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, _site, server) = Site::start_scripted(kind).await;
    for (id, text, bytes_of_char) in [("latin", "word ".repeat(20_000), 1), ("han", long_text(100_000), 3)] {
        let (status, stored) = upload(&server, "long.txt", text.as_bytes()).await;
        assert_eq!((status, &stored["text_chars"]), (StatusCode::CREATED, &json!(100_000)), "{stored}");
        assert_eq!(stored["text_bytes"], 100_000 * bytes_of_char, "{stored}");
        let script = json!({"type": "text", "text": format!("[[id:{id}]][[say:I have read it.]]")});
        let input = json!([script, file(stored["id"].as_str().unwrap())]);
        let body = json!({"input": input, "model": "openai/mock", "agent": "desktop"});
        let run = server.start_run(&body).await;
        let ended = server.finished(run["id"].as_str().unwrap()).await;
        assert_eq!(ended["status"], "completed", "{ended}");
        let said = last_said(&model.exchanges(id)[0].request);
        let (words, last) = said[1]["text"].as_str().unwrap().rsplit_once('\n').unwrap();
        let (head, left) = words.split_once('\n').unwrap();
        assert_eq!(head, "[file long.txt, text/plain]");
        assert!(text.starts_with(left) && left.len() > 60_000 && left.len() < 28_500 * 16 / 5, "{}", left.len());
        let notice = format!(
            "[cut: only the first {} characters of the text of long.txt, which has {} bytes]",
            left.chars().count(),
            text.len()
        );
        assert_eq!(last, notice);
        // The stored message holds the file's id only.
        let messages = server.messages(ended["conversation_id"].as_str().unwrap()).await;
        let part = &messages[0]["parts"][1];
        assert_eq!((&part["text_chars"], part.get("text_limit")), (&json!(100_000), None), "{part}");
    }
    model.assert_history_was_sendable();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_has_no_room_for_a_file_gets_half_of_it() {
    let refusal = r#"{"error":{"message":"This model's maximum context length is 8192 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#;
    let answer = || Dialect::Openai.answer(Says { text: "I see.", ..Says::default() });
    let wire = Wire::play(vec![Answer::json(400, refusal), answer(), answer()]).await;
    let mut site = Site::new(Kind::Sqlite).await.env("CAPSTAN_MODEL", Dialect::Openai.model());
    for (name, value) in Dialect::Openai.environment(&wire.base_url) {
        site = site.env(name, &value);
    }
    let server = site.start().await;
    let text = long_text(20_000);
    let letter = uploaded(&server, "letter.txt", text.as_bytes()).await;
    let input = json!([{"type": "text", "text": "What does it say?"}, file(&letter)]);
    let run = server.start_run(&json!({"input": input})).await;
    let ended = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!((&ended["status"], wire.asked().len()), (&json!("completed"), 2), "{ended}");
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    let compacted: Vec<_> =
        events.iter().filter(|event| event["type"] == "context.compacted").map(|event| &event["data"]).collect();
    assert_eq!(compacted, [&json!({"messages": 0, "texts": 1})]);
    let sent = |at: usize| serde_json::from_slice::<Value>(&wire.asked()[at].body).unwrap();
    let said = |at: usize| last_said(&sent(at))[1]["text"].as_str().unwrap().to_owned();
    assert!(said(0).ends_with(&text), "the first request holds the whole file");
    assert!(said(1).contains("[cut: only the first ") && said(1).len() < said(0).len() * 6 / 10, "{}", said(1).len());
    assert!(said(1).len() > said(0).len() * 4 / 10, "{}", said(1).len());
    // The next run sends the whole file again.
    let body = json!({"input": "Thanks.", "conversation_id": ended["conversation_id"]});
    server.finished(server.start_run(&body).await["id"].as_str().unwrap()).await;
    assert!(sent(2)["messages"].to_string().contains(&text));
}

/// Returns a file part with inline data, as clients without uploads send it.
fn inline(media_type: &str, name: Option<&str>, bytes: &[u8]) -> Value {
    let url = format!("data:{media_type};base64,{}", STANDARD.encode(bytes));
    json!({"type": "file", "media_type": media_type, "url": url, "name": name})
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn files_that_come_with_a_message_are_read_like_uploads(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::start_scripted(kind).await;
    let unknown = "application/octet-stream";
    let input = json!([
        {"type": "text", "text": "[[id:s]][[say:ok]]"},
        inline(unknown, Some("cat.bin"), PNG),
        inline("text/plain", Some("../rent.pdf"), &pdf("The rent is due")),
        inline(unknown, Some("letter.docx"), &docx(&["Dear Ada"])),
        inline("text/csv", None, b"a,b\n1,2\n"),
    ]);
    let body = json!({"input": input, "model": "openai/gpt-4o"});
    let send = || server.post("/runs", &body).header("idempotency-key", "k").send();
    let first: Value = send().await.unwrap().json().await.unwrap();
    let ended = server.finished(first["run"]["id"].as_str().unwrap()).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    let said = last_said(&model.exchanges("s")[0].request);
    assert_eq!(said[1]["image_url"]["url"], format!("data:image/png;base64,{}", STANDARD.encode(PNG)), "{said:?}");
    assert_eq!(said[2]["file"]["filename"], "rent.pdf", "{said:?}");
    assert!(said[3]["text"].as_str().unwrap().ends_with("]\nDear Ada"), "{said:?}");
    assert_eq!(said[4]["text"], "[file file.csv, text/csv]\na,b\n1,2\n");

    // The transcript has references, and the same request refers to the same files.
    let conversation = ended["conversation_id"].as_str().unwrap();
    let stored = server.messages(conversation).await;
    assert!(!json!(stored).to_string().contains("base64"), "{stored:?}");
    assert_eq!((&stored[0]["parts"][1]["type"], &stored[0]["parts"][4]["text_chars"]), (&json!("image"), &json!(8)));
    let again = send().await.unwrap();
    assert_eq!(again.headers()["idempotent-replayed"].to_str().unwrap(), "true");
    assert_eq!(server.get_json("/files").await["data"].as_array().unwrap().len(), 4);

    // Inline files count toward the limit.
    let path = format!("/conversations/{conversation}/messages");
    let two = json!({"content": [inline("text/plain", None, b"one"), inline("text/plain", None, b"two")]});
    let (status, problem) = server.post_json(&path, &two).await;
    assert_eq!((status, &problem["errors"][0]["pointer"]), (StatusCode::BAD_REQUEST, &json!("/content")), "{problem}");
    let six: Vec<Value> = (0..6).map(|n| inline("text/plain", None, format!("{n}").as_bytes())).collect();
    let (status, problem) = server.post_json("/runs", &json!({"input": six})).await;
    assert_eq!((status, &problem["errors"][0]["pointer"]), (StatusCode::BAD_REQUEST, &json!("/input")), "{problem}");

    // A part that no model accepts is refused, here and in an import.
    for (part, why) in [
        (inline("application/pdf", None, &encrypted_pdf()), "encrypted"),
        (inline("image/png", None, &PNG[..40]), "its end is missing"),
        (inline("application/pdf", None, b"MZ\x90\0"), "the type of the file is not accepted"),
        (json!({"type": "file", "media_type": "text/plain", "url": "data:text/plain,hi"}), "upload it"),
    ] {
        let (status, problem) = server.post_json("/runs", &json!({"input": [part]})).await;
        assert_eq!((status, &problem["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("unusable_file")), "{problem}");
        assert_eq!(problem["errors"][0]["pointer"], "/input/0/url");
        assert!(problem["detail"].as_str().unwrap().contains(why), "{problem}");
        let mut exported: Value = server.get_json(&format!("/conversations/{conversation}/export")).await;
        let mut part = part;
        part["id"] = exported["messages"][0]["parts"][0]["id"].clone();
        exported["messages"][0]["parts"] = json!([part]);
        let (status, problem) = server.post_json("/conversations/import", &exported).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{problem}");
        assert_eq!(problem["errors"][0]["pointer"], "/messages/0/parts/0/url");
    }
    let mut exported: Value = server.get_json(&format!("/conversations/{conversation}/export")).await;
    let mut letter = inline(unknown, Some("letter.docx"), &docx(&["Dear Ada"]));
    letter["id"] = exported["messages"][0]["parts"][0]["id"].clone();
    exported["messages"][0]["parts"] = json!([letter]);
    let (status, imported) = server.post_json("/conversations/import", &exported).await;
    assert_eq!(status, StatusCode::CREATED, "{imported}");
    let kept = server.messages(imported["id"].as_str().unwrap()).await;
    let part = |message: &Value, at: usize| message["parts"][at]["file_id"].clone();
    assert_eq!(part(&kept[0], 0), part(&stored[0], 3), "both parts refer to one file");
    site.assert_sound(&model).await;
}
