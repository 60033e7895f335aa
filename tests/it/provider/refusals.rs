//! Request parts that a provider refuses: the client repeats the request without them and sends notes from then on.

use std::sync::Arc;

use capstan::domain::conversation::message::{BinaryContent, FilePart, Message, Part, Role, TextPart, ToolContent};
use capstan::domain::model::{ModelErrorKind, ModelEvent, ModelFinish, ModelRequest};
use capstan::provider::catalog::ImageLimits;
use capstan::provider::{ClientOptions, ModelClient, Quirks, Vendor, anthropic, gemini, ollama, openai, responses};
use capstan::support::ids::SequentialIds;
use rstest::rstest;
use serde_json::json;

use super::drive::{self, ask_through, call, message, options};
use support::dialects::{Dialect, Says};
use support::wire::{Answer, Wire};

const DIALECTS: [Dialect; 5] = [Dialect::Openai, Dialect::Responses, Dialect::Anthropic, Dialect::Gemini, Dialect::Ollama];

fn client(dialect: Dialect, wire: &Wire) -> Arc<dyn ModelClient> {
    let options = options(wire);
    match dialect {
        Dialect::Openai | Dialect::Openrouter => openai::client(options, Quirks::default()),
        Dialect::Responses => responses::client(options),
        Dialect::Anthropic => anthropic::client(options),
        Dialect::Gemini => gemini::client(options),
        Dialect::Ollama => ollama::client(options),
    }
    .expect("usable options")
}

fn answer(dialect: Dialect) -> Answer {
    dialect.answer(Says { text: "I see.", ..Says::default() })
}

fn refusal(status: u16, words: &str) -> Answer {
    Answer::json(status, &json!({"error": {"message": words, "type": "invalid_request_error"}}).to_string())
}

fn part(media_type: &str, data: &str, name: &str) -> FilePart {
    let id = capstan::domain::ids::PartId::generate(&SequentialIds::default());
    let url = if data.starts_with("http") { data.to_owned() } else { format!("data:{media_type};base64,{data}") };
    FilePart { url: Some(url), name: Some(name.to_owned()), ..FilePart::of(id, media_type) }
}

fn image(data: &str, name: &str) -> Part {
    Part::Image(part("image/png", data, name))
}

fn said_with(parts: Vec<Part>) -> Message {
    message(&SequentialIds::default(), Role::User, |id| {
        [Part::Text(TextPart { id: id(), text: "Look.".to_owned() })].into_iter().chain(parts).collect()
    })
}

fn with_parts(parts: Vec<Part>) -> ModelRequest {
    drive::request(vec![said_with(parts)])
}

fn bodies(wire: &Wire) -> Vec<String> {
    wire.asked().iter().map(|asked| String::from_utf8_lossy(&asked.body).into_owned()).collect()
}

fn changes(outcome: &drive::Outcome) -> Vec<&str> {
    let adapted = outcome.events.iter().filter_map(|event| match event {
        ModelEvent::Adapted(done) => Some(done.change.as_str()),
        _ => None,
    });
    adapted.collect()
}

#[rstest]
#[case(400, "Failed to deserialize the JSON body into the target type: messages[1]: unknown variant `image_url`, expected `text`")]
#[case(400, "mine/llama is not a multimodal model")]
#[case(404, "No endpoints found that support image input")]
#[case(500, "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj")]
#[tokio::test]
async fn image_refused_by_a_model_becomes_a_note(#[case] status: u16, #[case] words: &str) {
    for dialect in DIALECTS {
        let wire = Wire::play(vec![refusal(status, words), answer(dialect)]).await;
        let client = client(dialect, &wire);
        let request = with_parts(vec![image("QUJDRA==", "screenshot.png")]);
        let outcome = ask_through(client.as_ref(), request.clone()).await;
        assert_eq!((outcome.finish(), outcome.text().as_str()), (ModelFinish::Stop, "I see."), "{dialect:?}");
        assert_eq!(changes(&outcome), ["images_left_out"], "{dialect:?}");
        let again = ask_through(client.as_ref(), request).await;
        assert_eq!((again.finish(), changes(&again)), (ModelFinish::Stop, vec![]), "{dialect:?}");
        let bodies = bodies(&wire);
        assert_eq!(bodies.len(), 3, "{dialect:?}: the second request is not refused");
        assert!(bodies[0].contains("QUJDRA=="), "{dialect:?}: {}", bodies[0]);
        for body in &bodies[1..] {
            assert!(
                !body.contains("QUJDRA==") && body.contains("[image screenshot.png: the model does not accept images]"),
                "{body}"
            );
        }
    }
}

// The size of an image is checked before it is sent.
#[rstest]
#[case::bytes(ImageLimits { max_bytes: Some(16), max_edge: None }, "QUJDREVGR0hJSktMTU5P", "QUJDRA==", "its base64 form exceeds")]
// GIF images of 8,001 and 8,000 by 1 pixels.
#[case::pixels(
    ImageLimits { max_bytes: None, max_edge: Some(8_000) },
    "R0lGODlhQR8BAAAAACw=",
    "R0lGODlhQB8BAAAAACw=",
    "a side is longer than the provider's limit of 8000 pixels"
)]
#[tokio::test]
async fn image_above_the_known_size_limit_is_sent_as_a_note(
    #[case] images: ImageLimits,
    #[case] large: &str,
    #[case] small: &str,
    #[case] reason: &str,
) {
    let wire = Wire::play(vec![answer(Dialect::Anthropic)]).await;
    let client = anthropic::client(ClientOptions { images, ..options(&wire) }).expect("usable options");
    let outcome = ask_through(client.as_ref(), with_parts(vec![image(large, "large.png"), image(small, "small.png")])).await;
    assert_eq!((outcome.finish(), changes(&outcome)), (ModelFinish::Stop, vec![]));
    let bodies = bodies(&wire);
    assert_eq!(bodies.len(), 1, "no request is refused");
    let note = format!("[image large.png: left out, {reason}");
    assert!(!bodies[0].contains(large) && bodies[0].contains(&note), "{}", bodies[0]);
    assert!(bodies[0].contains(small), "{}", bodies[0]);
}

#[rstest]
#[case(400, "Could not process image")]
#[case(400, "At least one of the image dimensions exceed max allowed size: 8000 pixels")]
#[case(400, "image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes")]
#[tokio::test]
async fn broken_image_of_a_tool_poisons_nothing(#[case] status: u16, #[case] words: &str) {
    for dialect in DIALECTS {
        let ids = SequentialIds::default();
        let (call, mut result) = call(&ids, Some("id_1"), json!({}), "shot");
        if let Part::ToolResult(result) = &mut result {
            result.content.push(ToolContent::Image(BinaryContent::inline("image/png", None, "QkFE")));
        }
        let history = vec![
            said_with(Vec::new()),
            message(&ids, Role::Assistant, |_| vec![call]),
            message(&ids, Role::Tool, |_| vec![result]),
        ];
        let wire = Wire::play(vec![refusal(status, words), answer(dialect)]).await;
        let client = client(dialect, &wire);
        let outcome = ask_through(client.as_ref(), drive::request(history.clone())).await;
        assert_eq!((outcome.finish(), changes(&outcome)), (ModelFinish::Stop, vec!["parts_left_out"]), "{dialect:?}");
        // The same image stays a note, and another image is sent.
        let later = history.into_iter().chain([said_with(vec![image("R09PRA==", "good.png")])]);
        assert_eq!(ask_through(client.as_ref(), drive::request(later.collect())).await.finish(), ModelFinish::Stop);
        let bodies = bodies(&wire);
        assert_eq!(bodies.len(), 3, "{dialect:?}");
        assert!(bodies[1].contains("could not read it]") && !bodies[1].contains("QkFE"), "{dialect:?}: {}", bodies[1]);
        assert!(bodies[2].contains("R09PRA==") && !bodies[2].contains("QkFE"), "{dialect:?}: {}", bodies[2]);
    }
}

#[rstest]
#[case(
    Dialect::Anthropic,
    "messages.0.content.2.image.source.base64.data: image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes"
)]
#[case(Dialect::Anthropic, "messages.0.content.2.image.source.base64.media_type: image does not match the provided media type")]
#[case(Dialect::Openai, "messages[1].content[2].image_url: you uploaded an unsupported image")]
#[case(Dialect::Responses, "input[0].content[2].image_url: you uploaded an unsupported image")]
#[case(Dialect::Gemini, "contents[0].parts[2].inline_data: Unable to process input image")]
#[tokio::test]
async fn broken_image_is_left_out_by_its_index(#[case] dialect: Dialect, #[case] words: &str) {
    let wire = Wire::play(vec![refusal(400, words), answer(dialect)]).await;
    let request = with_parts(vec![image("T05F", "one.png"), image("VFdP", "two.png"), image("VEhSRUU=", "three.png")]);
    let outcome = ask_through(client(dialect, &wire).as_ref(), request).await;
    assert_eq!(outcome.finish(), ModelFinish::Stop);
    let second = &bodies(&wire)[1];
    assert!(second.contains("T05F") && second.contains("VEhSRUU=") && !second.contains("VFdP"), "{second}");
    assert!(second.contains("[image two.png: the model's provider could not read it]"), "{second}");
}

#[tokio::test]
async fn image_that_cannot_be_downloaded_is_left_out_by_its_url() {
    let words = "Error while downloading https://gone.example/x.png.";
    let wire = Wire::play(vec![refusal(400, words), answer(Dialect::Openai)]).await;
    let request = with_parts(vec![image("https://gone.example/x.png", "x.png"), image("T05F", "one.png")]);
    assert_eq!(ask_through(client(Dialect::Openai, &wire).as_ref(), request).await.finish(), ModelFinish::Stop);
    let second = &bodies(&wire)[1];
    assert!(second.contains("T05F") && !second.contains("https://gone.example"), "{second}");
}

#[tokio::test]
async fn newest_images_stay_where_there_are_too_many() {
    let wire = Wire::play(vec![refusal(400, "At most 1 image(s) may be provided in one prompt."), answer(Dialect::Openai)]).await;
    let request = with_parts(vec![image("T05F", "one.png"), image("VFdP", "two.png"), image("VEhSRUU=", "three.png")]);
    let outcome = ask_through(client(Dialect::Openai, &wire).as_ref(), request).await;
    assert_eq!((outcome.finish(), changes(&outcome)), (ModelFinish::Stop, vec!["images_limited"]));
    let second = &bodies(&wire)[1];
    assert!(second.contains("VEhSRUU=") && !second.contains("T05F") && !second.contains("VFdP"), "{second}");
}

#[rstest]
#[case(Dialect::Anthropic, "'claude-x' does not support PDF input.", "documents_left_out")]
#[case(Dialect::Anthropic, "The PDF specified was not valid.", "parts_left_out")]
#[case(Dialect::Openai, "messages[1]: unknown variant `file`, expected `text` or `image_url`", "documents_left_out")]
#[case(Dialect::Gemini, "The document has no pages.", "parts_left_out")]
#[tokio::test]
async fn refused_document_becomes_a_note(#[case] dialect: Dialect, #[case] words: &str, #[case] change: &str) {
    let wire = Wire::play(vec![refusal(400, words), answer(dialect)]).await;
    let request = with_parts(vec![Part::File(part("application/pdf", "UERG", "rent.pdf")), image("T05F", "one.png")]);
    let outcome = ask_through(client(dialect, &wire).as_ref(), request).await;
    assert_eq!((outcome.finish(), changes(&outcome)), (ModelFinish::Stop, vec![change]));
    let second = &bodies(&wire)[1];
    assert!(second.contains("[file rent.pdf: ") && second.contains("T05F") && !second.contains("UERG"), "{second}");
}

#[tokio::test]
async fn refusal_within_a_stream_is_recognised() {
    let event = json!({"type": "response.failed", "response": {"status": "failed", "error":
        {"code": "invalid_image", "message": "The image data you provided does not represent a valid image."}}});
    let wire = Wire::play(vec![Answer::stream(format!("data: {event}\n\n")), answer(Dialect::Responses)]).await;
    let outcome = ask_through(client(Dialect::Responses, &wire).as_ref(), with_parts(vec![image("T05F", "one.png")])).await;
    assert_eq!((outcome.finish(), changes(&outcome)), (ModelFinish::Stop, vec!["parts_left_out"]));
    assert!(!bodies(&wire)[1].contains("T05F"));
}

#[tokio::test]
async fn refusal_is_not_repeated_where_nothing_is_left_out() {
    let words = "mine/llama is not a multimodal model";
    let wire = Wire::play(vec![refusal(400, words)]).await;
    let client = client(Dialect::Openai, &wire);
    let outcome = ask_through(client.as_ref(), with_parts(Vec::new())).await;
    assert_eq!((outcome.error(), wire.asked().len()), (ModelErrorKind::InvalidRequest, 1), "there is no image");
    let outcome = ask_through(client.as_ref(), with_parts(vec![image("T05F", "one.png")])).await;
    assert_eq!(
        (outcome.error(), wire.asked().len()),
        (ModelErrorKind::InvalidRequest, 3),
        "the request without the image is refused as well"
    );
    // A change that did not help is not remembered.
    ask_through(client.as_ref(), with_parts(vec![image("T05F", "one.png")])).await;
    assert!(bodies(&wire)[3].contains("T05F"));
}

#[rstest]
#[case(400, json!("1113"), ModelErrorKind::InvalidRequest)]
#[case(500, json!(1113), ModelErrorKind::Unavailable)]
#[case(400, json!("1301"), ModelErrorKind::InvalidRequest)]
#[case(429, json!(1308), ModelErrorKind::RateLimit)]
#[case(503, json!("1302"), ModelErrorKind::Overloaded)]
#[tokio::test]
async fn codes_of_one_vendor_mean_nothing_at_another(
    #[case] status: u16,
    #[case] code: serde_json::Value,
    #[case] kind: ModelErrorKind,
) {
    let refused = || Answer::json(status, &json!({"error": {"code": code, "message": "no"}}).to_string());
    for dialect in DIALECTS {
        let wire = Wire::play(vec![refused()]).await;
        assert_eq!(ask_through(client(dialect, &wire).as_ref(), with_parts(Vec::new())).await.error(), kind, "{dialect:?}");
    }
}

#[rstest]
#[case("zai", 400, "1113", ModelErrorKind::Quota)]
#[case("zai", 400, "1301", ModelErrorKind::ContentFilter)]
#[case("groq", 498, "x", ModelErrorKind::Overloaded)]
#[case("iflow", 439, "x", ModelErrorKind::Auth)]
#[case("openai", 439, "x", ModelErrorKind::InvalidRequest)]
#[tokio::test]
async fn codes_of_a_vendor_count_at_their_vendor(
    #[case] provider: &str,
    #[case] status: u16,
    #[case] code: &str,
    #[case] kind: ModelErrorKind,
) {
    let body = json!({"error": {"code": code, "message": "no"}}).to_string();
    let within = format!("data: {body}\n\n");
    let wire = Wire::play(vec![Answer::json(status, &body), Answer::stream(within)]).await;
    let mut options = options(&wire);
    options.vendor = Vendor::default().named(provider);
    let client = drive::chat(options).unwrap();
    assert_eq!(ask_through(client.as_ref(), with_parts(Vec::new())).await.error(), kind);
    if provider == "zai" {
        assert_eq!(ask_through(client.as_ref(), with_parts(Vec::new())).await.error(), kind, "within an answer");
    }
}
