//! What a tool answered, as content that is stored and shown to models.

use serde_json::{Value, json};

use crate::domain::file::tool_picture;
use crate::domain::message::ToolContent;
use crate::support::json::is_same;

/// The most that the pictures of one answer may hold together, in bytes of base64. What is beyond it is named in a text: it
/// would be stored, streamed, and sent to the model with every step that follows.
const PICTURE_BYTES: usize = 8 * 1024 * 1024;

/// Why this is no result of a tool call; `None` if it is one.
pub fn malformed(result: &Value) -> Option<&'static str> {
    match result.get("content").map(Value::as_array) {
        Some(None) => Some("its result is malformed: content is not a list"),
        Some(Some(blocks)) if blocks.iter().any(|block| !block.get("type").is_some_and(Value::is_string)) => {
            Some("its result is malformed: a part of its content is no object with a type")
        }
        Some(Some(_)) | None => None,
    }
}

/// The content of a `tools/call` result. What a model cannot read is named in a text instead; structured content follows where
/// it is not what the texts say already.
pub fn from_result(result: &Value) -> Vec<ToolContent> {
    let blocks = result.get("content").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut room = PICTURE_BYTES;
    let mut content: Vec<ToolContent> = blocks.iter().map(|block| within(from_block(block), &mut room)).collect();
    content.extend(structured_beside(result).map(|block| from_block(&block)));
    if content.is_empty() {
        content.push(ToolContent::text("(the tool answered without content)"));
    }
    content
}

/// The structured content as a text block, unless the texts beside it say the same.
pub fn structured_beside(result: &Value) -> Option<Value> {
    let blocks = result.get("content").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let texts: Vec<&str> = blocks.iter().filter_map(text_of).filter(|text| !text.is_empty()).collect();
    let structured = result.get("structuredContent").filter(|structured| !structured.is_null())?;
    (!say_the_same(&texts, structured)).then(|| json!({"type": "text", "text": structured.to_string()}))
}

/// Whether one of the texts is the same value, or they are together the items of the same list. Servers put into an object with one
/// field what is no object by itself.
fn say_the_same(texts: &[&str], structured: &Value) -> bool {
    let is = |text: &str, value: &Value| {
        value.as_str() == Some(text) || serde_json::from_str::<Value>(text).is_ok_and(|said| is_same(&said, value))
    };
    let only_field = structured.as_object().filter(|fields| fields.len() == 1).and_then(|fields| fields.values().next());
    [Some(structured), only_field].into_iter().flatten().any(|value| {
        let items = value.as_array().filter(|items| items.len() == texts.len() && !items.is_empty());
        texts.iter().any(|text| is(text, value))
            || items.is_some_and(|items| texts.iter().zip(items).all(|(text, item)| is(text, item)))
    })
}

/// Whether the result says that the tool failed.
pub fn is_error(result: &Value) -> bool {
    result.get("isError").and_then(Value::as_bool).unwrap_or(false)
}

/// The content itself, or words about a picture that there is no room for.
fn within(content: ToolContent, room: &mut usize) -> ToolContent {
    match content {
        ToolContent::Image { media_type, data } if data.len() > *room => ToolContent::text(too_large(&media_type, &data)),
        ToolContent::Image { media_type, data } => {
            *room -= data.len();
            ToolContent::Image { media_type, data }
        }
        text @ ToolContent::Text { .. } => text,
    }
}

fn text_of(block: &Value) -> Option<&str> {
    let kind = word(block, "type");
    block.get("text").and_then(Value::as_str).filter(|_| kind == "text")
}

fn word<'a>(block: &'a Value, key: &str) -> &'a str {
    block.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn from_block(block: &Value) -> ToolContent {
    match word(block, "type") {
        "text" => ToolContent::text(word(block, "text")),
        "image" => picture(block, "data"),
        "audio" => ToolContent::text(format!("[audio, {}: cannot be shown]", described(block, "data"))),
        "resource" => from_resource(block.get("resource").unwrap_or(&Value::Null)),
        "resource_link" => {
            let description = word(block, "description");
            let separator = if description.is_empty() { "" } else { ": " };
            ToolContent::text(format!("[link to {} ({}){separator}{description}]", word(block, "uri"), word(block, "name")))
        }
        unknown => ToolContent::text(format!("[content of the unknown kind {unknown:?}: cannot be shown]")),
    }
}

fn from_resource(resource: &Value) -> ToolContent {
    let uri = word(resource, "uri");
    if let Some(text) = resource.get("text").and_then(Value::as_str) {
        return ToolContent::text(format!("[{uri}]\n{text}"));
    }
    let media_type = word(resource, "mimeType");
    if media_type.starts_with("image/") {
        return picture(resource, "blob");
    }
    ToolContent::text(format!("[file {uri}, {}: cannot be shown]", described(resource, "blob")))
}

/// A picture, if it is one that models can be shown: told by its bytes, whatever the server calls it. Another one is named in a text,
/// since providers refuse all of a request for it, and it would be in every request that follows.
fn picture(block: &Value, key: &str) -> ToolContent {
    let data: String = word(block, key).split_ascii_whitespace().collect();
    let claimed = word(block, "mimeType");
    // Larger ones have no room in any case.
    if data.len() <= PICTURE_BYTES { tool_picture(claimed, &data) } else { ToolContent::text(too_large(claimed, &data)) }
}

fn too_large(media_type: &str, data: &str) -> String {
    let bytes = data.trim_end_matches('=').len() * 3 / 4;
    format!("[picture, {media_type}, {bytes} bytes: left out, the pictures of one answer are too large]")
}

/// Media type and size of base64 data.
fn described(block: &Value, key: &str) -> String {
    let media_type = match word(block, "mimeType") {
        "" => "unknown type",
        media_type => media_type,
    };
    let data = word(block, key).trim_end_matches('=');
    format!("{media_type}, {} bytes", data.len() * 3 / 4)
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    /// One pixel.
    const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";

    #[test]
    fn every_kind_is_mapped_or_named() {
        let result = json!({"content": [
            {"type": "text", "text": "hello"},
            {"type": "image", "mimeType": "image/jpg", "data": format!("{}\n{}", &PNG[..20], &PNG[20..])},
            {"type": "image", "mimeType": "image/png", "data": PNG.trim_end_matches('=')},
            {"type": "image", "mimeType": "image/png", "data": "%%%"},
            {"type": "image", "mimeType": "image/svg+xml", "data": "PHN2Zy8+"},
            {"type": "image", "data": &PNG[..40]},
            {"type": "audio", "mimeType": "audio/wav", "data": "AAAAAA=="},
            {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}},
            {"type": "resource", "resource": {"uri": "file:///b", "mimeType": "application/zip", "blob": "AAAA"}},
            {"type": "resource_link", "uri": "file:///c", "name": "c"},
            {"type": "hologram", "data": "?"},
        ], "structuredContent": {"also": "said"}});
        assert_eq!(
            from_result(&result),
            [
                ToolContent::text("hello"),
                ToolContent::Image { media_type: "image/png".to_owned(), data: PNG.to_owned() },
                ToolContent::Image { media_type: "image/png".to_owned(), data: PNG.to_owned() },
                ToolContent::text("[picture, image/png, 2 bytes: cannot be shown, it is no PNG, JPEG, GIF or WebP that is whole]"),
                ToolContent::text(
                    "[picture, image/svg+xml, 6 bytes: cannot be shown, it is no PNG, JPEG, GIF or WebP that is whole]"
                ),
                ToolContent::text(
                    "[picture, unknown type, 30 bytes: cannot be shown, it is no PNG, JPEG, GIF or WebP that is whole]"
                ),
                ToolContent::text("[audio, audio/wav, 4 bytes: cannot be shown]"),
                ToolContent::text("[file:///a]\ninside"),
                ToolContent::text("[file file:///b, application/zip, 3 bytes: cannot be shown]"),
                ToolContent::text("[link to file:///c (c)]"),
                ToolContent::text("[content of the unknown kind \"hologram\": cannot be shown]"),
                ToolContent::text("{\"also\":\"said\"}"),
            ]
        );
        assert!(!is_error(&result));
    }

    #[test]
    fn what_is_no_content_is_no_result() {
        for content in
            [json!("nope"), json!(null), json!({"type": "text", "text": "a"}), json!(5), json!(["a"]), json!([{"text": "a"}])]
        {
            assert!(malformed(&json!({"content": content})).is_some(), "{content}");
        }
        assert_eq!(malformed(&json!({"content": [{"type": "hologram"}]})), None);
        assert_eq!(malformed(&json!({"content": []})), None);
    }

    #[test]
    fn pictures_have_room_together() {
        // What stands behind the end of a picture is nobody's business.
        let picture = |bytes: usize| {
            let mut png = STANDARD.decode(PNG).unwrap();
            png.resize(bytes * 3 / 4, 0);
            json!({"type": "image", "mimeType": "image/png", "data": STANDARD.encode(png)})
        };
        let result = json!({"content": [picture(PICTURE_BYTES - 120), picture(124), picture(120), picture(PICTURE_BYTES + 4)]});
        let content = from_result(&result);
        assert!(matches!(&content[0], ToolContent::Image { .. }) && matches!(&content[2], ToolContent::Image { .. }));
        for (at, bytes) in [(1, 93), (3, PICTURE_BYTES * 3 / 4 + 3)] {
            let words = format!("[picture, image/png, {bytes} bytes: left out, the pictures of one answer are too large]");
            assert_eq!(content[at], ToolContent::text(words));
        }
    }

    #[test]
    fn structured_content_is_kept_unless_the_text_says_the_same() {
        assert_eq!(from_result(&json!({"content": [], "structuredContent": {"a": 1}})), [ToolContent::text("{\"a\":1}")]);
        assert_eq!(from_result(&json!({"content": [{"type": "text", "text": ""}], "structuredContent": 5})).len(), 2);
        assert_eq!(from_result(&json!({"isError": true})), [ToolContent::text("(the tool answered without content)")]);
        assert!(is_error(&json!({"isError": true})));
        let texts = |texts: &[&str]| texts.iter().map(|text| json!({"type": "text", "text": text})).collect::<Vec<Value>>();
        for (said, structured, shown) in [
            (vec!["{ \"b\": [1], \"a\": 1 }"], json!({"a": 1, "b": [1]}), 1),
            (vec!["see below", "{\"a\":1}"], json!({"a": 1}), 2),
            (vec!["391"], json!({"result": 391}), 1),
            (vec!["the whole file"], json!({"content": "the whole file"}), 1),
            (vec!["{\"n\":1}", "two"], json!({"result": [{"n": 1}, "two"]}), 2),
            (vec!["3 found"], json!({"found": [1, 2, 3]}), 2),
            (vec!["391"], json!({"result": 391, "unit": "m"}), 2),
            (vec!["one", "two"], json!({"result": ["one"]}), 3),
            (vec!["nothing"], Value::Null, 1),
        ] {
            let content = from_result(&json!({"content": texts(&said), "structuredContent": structured}));
            assert_eq!(content.len(), shown, "{said:?} {structured}");
            if shown > said.len() {
                assert_eq!(content[said.len()], ToolContent::text(structured.to_string()));
            }
        }
    }
}
