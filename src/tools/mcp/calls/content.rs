//! Converts the result of a tool call into content for the store and for models.

use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use crate::domain::conversation::ToolContent;
use crate::domain::conversation::content::tool_binary;
use crate::domain::conversation::file::{decoded, is_text_type, may_be_pdf, utf8_text};
use crate::support::json::is_same;

/// Returns why a value is not a tool result; `None` if it is one.
pub fn malformed(result: &Value) -> Option<&'static str> {
    match result.get("content").map(Value::as_array) {
        Some(None) => Some("its result is malformed: content is not a list"),
        Some(Some(blocks)) if blocks.iter().any(|block| !block.get("type").is_some_and(Value::is_string)) => {
            Some("its result is malformed: a part of its content is not an object with a type")
        }
        Some(Some(_)) | None => None,
    }
}

/// Decodes base64 resources whose bytes are text. Redaction works on texts only, because redacted base64 could not be decoded.
pub fn decode_texts(result: &mut Value) {
    let blocks = result.get_mut("content").and_then(Value::as_array_mut);
    for resource in blocks.into_iter().flatten().filter_map(|block| block.get_mut("resource")) {
        let Some(bytes) = blob(resource).as_deref().and_then(decoded) else { continue };
        if let Some(text) = utf8_text(&bytes).filter(|_| !may_be_pdf(&bytes))
            && let Some(fields) = resource.as_object_mut()
        {
            fields.remove("blob");
            fields.insert("text".to_owned(), json!(text));
        }
    }
}

/// Returns the base64 of a resource without text.
fn blob(resource: &Value) -> Option<String> {
    let has_text = resource.get("text").is_some_and(Value::is_string);
    let blob = resource.get("blob").and_then(Value::as_str).filter(|blob| !has_text && !blob.is_empty())?;
    Some(blob.split_ascii_whitespace().collect())
}

/// Returns the content of a `tools/call` result. Structured content follows, unless the texts have the same content.
pub fn from_result(result: &Value) -> Vec<ToolContent> {
    let blocks = result.get("content").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let binaries = binaries(blocks);
    let mut content: Vec<ToolContent> = blocks.iter().map(|block| from_block(block, &binaries)).collect();
    content.extend(structured_beside(result).map(|block| from_block(&block, &binaries)));
    // The run says it of an error.
    if content.is_empty() && !is_error(result) {
        content.push(ToolContent::text("(the tool answered without content)"));
    }
    content
}

/// Returns the structured content as a text block, unless the texts have the same content.
pub fn structured_beside(result: &Value) -> Option<Value> {
    let blocks = result.get("content").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let texts = blocks.iter().filter(|block| word(block, "type") == "text").map(|block| word(block, "text"));
    let texts: Vec<&str> = texts.filter(|text| !text.is_empty()).collect();
    let structured = result.get("structuredContent").filter(|structured| !structured.is_null())?;
    (!have_same_content(&texts, structured)).then(|| {
        let text = without_repeated(&structured.to_string(), &binaries(blocks));
        let shortened_text = serde_json::from_str(&text).map_or(text, |value| without_base64(&value).to_string());
        json!({"type": "text", "text": shortened_text})
    })
}

/// Returns whether one text has the same value, or the texts are the items of the same list. Servers wrap a value other than an
/// object in an object with one field, so that field is compared too.
fn have_same_content(texts: &[&str], structured: &Value) -> bool {
    let is = |text: &str, value: &Value| {
        value.as_str() == Some(text) || serde_json::from_str::<Value>(text).is_ok_and(|parsed| is_same(&parsed, value))
    };
    let only_field = structured.as_object().filter(|fields| fields.len() == 1).and_then(|fields| fields.values().next());
    [Some(structured), only_field].into_iter().flatten().any(|value| {
        let items = value.as_array().filter(|items| items.len() == texts.len() && !items.is_empty());
        texts.iter().any(|text| is(text, value))
            || items.is_some_and(|items| texts.iter().zip(items).all(|(text, item)| is(text, item)))
    })
}

pub fn is_error(result: &Value) -> bool {
    result.get("isError").and_then(Value::as_bool).unwrap_or(false)
}

fn word<'a>(block: &'a Value, key: &str) -> &'a str {
    block.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// The shortest base64 that a note replaces, in characters.
const LONG_BASE64: usize = 1_000;

/// Returns the base64 of blocks that carry bytes.
fn binaries(blocks: &[Value]) -> Vec<&str> {
    let data = ["/data", "/resource/blob"];
    let all = blocks.iter().flat_map(|block| data.into_iter().filter_map(move |pointer| block.pointer(pointer)?.as_str()));
    all.filter(|data| data.len() >= 64).collect()
}

/// Returns a structured value in which notes replace base64: models cannot read it, and each character costs tokens.
fn without_base64(value: &Value) -> Value {
    match value {
        Value::String(text) if is_long_base64(text) => json!(format!("[{} characters of base64 are left out]", text.len())),
        Value::Array(items) => items.iter().map(without_base64).collect(),
        Value::Object(fields) => fields.iter().map(|(name, field)| (name.clone(), without_base64(field))).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

fn is_long_base64(text: &str) -> bool {
    let base64 = text.split_once(";base64,").filter(|(head, _)| head.starts_with("data:")).map_or(text, |(_, base64)| base64);
    base64.len() >= LONG_BASE64 && base64.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/-_=\r\n".contains(&byte))
}

/// Returns a text in which a note replaces each repetition of bytes that have their own block.
fn without_repeated(text: &str, binaries: &[&str]) -> String {
    let mut text = text.to_owned();
    for data in binaries {
        if text.contains(data) {
            text = text.replace(data, "[the same bytes as in another part of this answer]");
        }
    }
    text
}

fn from_block(block: &Value, binaries: &[&str]) -> ToolContent {
    match word(block, "type") {
        "text" => ToolContent::text(without_repeated(word(block, "text"), binaries)),
        "image" => tool_binary("picture", word(block, "mimeType"), None, word(block, "data")),
        "audio" => tool_binary("audio", word(block, "mimeType"), None, word(block, "data")),
        "resource" => from_resource(block.get("resource").unwrap_or(&Value::Null)),
        "resource_link" => ToolContent::text(link(block)),
        unknown => ToolContent::text(format!("[content of the unknown kind {unknown:?}]\n{block}")),
    }
}

fn link(block: &Value) -> String {
    let field = |key: &str, before: &str| match word(block, key) {
        "" => String::new(),
        text => format!("{before}{text}"),
    };
    let name = if word(block, "title").is_empty() { word(block, "name") } else { word(block, "title") };
    let size = block.get("size").and_then(Value::as_u64).map(|size| format!(", {size} bytes")).unwrap_or_default();
    let (media_type, description) = (field("mimeType", ", "), field("description", ": "));
    format!("[link to {} ({name}){media_type}{size}{description}]", word(block, "uri"))
}

fn from_resource(resource: &Value) -> ToolContent {
    let uri = word(resource, "uri");
    if let Some(text) = resource.get("text").and_then(Value::as_str) {
        return ToolContent::text(format!("[{uri}]\n{text}"));
    }
    let claimed = word(resource, "mimeType");
    match blob(resource) {
        Some(blob) => {
            let name = name_of(uri).or_else(|| Some(word(resource, "name").to_owned()).filter(|name| !name.is_empty()));
            tool_binary("file", claimed, name.as_deref(), &blob)
        }
        None if is_text_type(claimed) => ToolContent::text(format!("[{uri}]\n")),
        None => ToolContent::text(format!("[file {uri}: the tool sent neither its text nor its bytes]")),
    }
}

/// Returns the file name in a URI: the last segment of its path.
fn name_of(uri: &str) -> Option<String> {
    let path = uri.split(['?', '#']).next()?;
    // Without a path, the text after the scheme is a host.
    let path = path.split_once("://").map_or(Some(path), |(_, rest)| rest.split_once('/').map(|(_, path)| path))?;
    let last = path.trim_end_matches('/').rsplit(['/', ':']).next().filter(|last| !last.is_empty())?;
    Some(percent_decode_str(last).decode_utf8_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;
    use crate::domain::conversation::message::BinaryContent;

    /// One pixel.
    const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";

    fn picture(name: Option<&str>) -> ToolContent {
        ToolContent::Image(BinaryContent::inline("image/png", name.map(str::to_owned), PNG))
    }

    fn file(media_type: &str, name: Option<&str>, data: &str) -> ToolContent {
        ToolContent::File(BinaryContent::inline(media_type, name.map(str::to_owned), data))
    }

    #[test]
    fn every_kind_of_content_is_mapped_or_named() {
        let resource = |resource: Value| json!({"type": "resource", "resource": resource});
        let mut result = json!({"content": [
            {"type": "text", "text": "hello"},
            {"type": "image", "mimeType": "image/jpg", "data": format!("{}\n{}", &PNG[..20], &PNG[20..])},
            {"type": "image", "mimeType": "image/png", "data": PNG.trim_end_matches('=')},
            {"type": "image", "mimeType": "image/png", "data": "%%%"},
            {"type": "image", "mimeType": "image/svg+xml", "data": "PHN2Zy8+"},
            {"type": "image", "data": &PNG[..40]},
            {"type": "image", "mimeType": "image/png", "data": ""},
            {"type": "audio", "mimeType": "audio/wav", "data": "AAAAAA=="},
            resource(json!({"uri": "file:///a", "text": "inside"})),
            resource(json!({"uri": "file:///b/the%20archive.zip?x", "mimeType": "application/zip", "blob": "AAAA"})),
            resource(json!({"uri": "file:///c.csv", "mimeType": "text/csv", "blob": "YSxiCg=="})),
            resource(json!({"uri": "file:///c", "blob": "eyJhIjoxfQ=="})),
            resource(json!({"uri": "file:///latin.txt", "mimeType": "text/plain", "blob": "Z3L2337f"})),
            resource(json!({"uri": "shot://screen", "mimeType": "application/octet-stream", "blob": PNG})),
            resource(json!({"uri": "file:///bad.pdf", "mimeType": "application/pdf", "blob": "not base64!"})),
            resource(json!({"uri": "file:///none", "mimeType": "application/pdf"})),
            {"type": "resource_link", "uri": "file:///c", "name": "c"},
            {"type": "resource_link", "uri": "file:///d", "name": "d", "title": "The D", "mimeType": "application/pdf", "size": 5, "description": "all of it"},
            {"type": "hologram"},
        ], "structuredContent": {"also": "said"}});
        decode_texts(&mut result);
        let no_base64 = "it cannot be read, because the tool sent invalid base64]";
        assert_eq!(
            from_result(&result),
            [
                ToolContent::text("hello"),
                picture(None),
                picture(None),
                ToolContent::text(format!("[picture, image/png, 2 bytes: {no_base64}")),
                file("image/svg+xml", None, "PHN2Zy8+"),
                file("application/octet-stream", None, &PNG[..40]),
                ToolContent::text("[picture, image/png, 0 bytes: it is empty]"),
                file("audio/wav", None, "AAAAAA=="),
                ToolContent::text("[file:///a]\ninside"),
                file("application/zip", Some("the archive.zip"), "AAAA"),
                ToolContent::text("[file:///c.csv]\na,b\n"),
                ToolContent::text("[file:///c]\n{\"a\":1}"),
                file("text/plain", Some("latin.txt"), "Z3L2337f"),
                picture(None),
                ToolContent::text(format!("[file bad.pdf, application/pdf, 7 bytes: {no_base64}")),
                ToolContent::text("[file file:///none: the tool sent neither its text nor its bytes]"),
                ToolContent::text("[link to file:///c (c)]"),
                ToolContent::text("[link to file:///d (The D), application/pdf, 5 bytes: all of it]"),
                ToolContent::text("[content of the unknown kind \"hologram\"]\n{\"type\":\"hologram\"}"),
                ToolContent::text("{\"also\":\"said\"}"),
            ]
        );
        assert!(!is_error(&result));
    }

    #[test]
    fn file_name_is_the_last_segment_of_its_address() {
        for (uri, name) in [
            ("file:///a/b.pdf", Some("b.pdf")),
            ("https://host/a%20b.txt?download#1", Some("a b.txt")),
            ("https://host", None),
            ("https://host/", None),
            ("memo:notes/7", Some("7")),
            ("", None),
        ] {
            assert_eq!(name_of(uri).as_deref(), name, "{uri}");
        }
    }

    #[test]
    fn result_without_valid_content_is_refused() {
        for content in
            [json!("nope"), json!(null), json!({"type": "text", "text": "a"}), json!(5), json!(["a"]), json!([{"text": "a"}])]
        {
            assert!(malformed(&json!({"content": content})).is_some(), "{content}");
        }
        assert_eq!(malformed(&json!({"content": [{"type": "hologram"}]})), None);
        assert_eq!(malformed(&json!({"content": []})), None);
    }

    #[test]
    fn base64_in_structured_content_becomes_a_note() {
        let (long, kept) = ("QUJD".repeat(300), "a sentence of words, ".repeat(80));
        let result = json!({"content": [{"type": "image", "mimeType": "image/png", "data": PNG}, {"type": "text", "text": format!("shot: {PNG}")}],
            "structuredContent": {"shot": PNG, "url": format!("data:image/png;base64,{PNG}"), "raw": long, "n": 1.10, "words": kept}});
        let note = "[the same bytes as in another part of this answer]";
        let raw = "[1200 characters of base64 are left out]";
        let structured =
            json!({"shot": note, "url": format!("data:image/png;base64,{note}"), "raw": raw, "n": 1.10, "words": kept});
        assert_eq!(
            from_result(&result),
            [picture(None), ToolContent::text(format!("shot: {note}")), ToolContent::text(structured.to_string())]
        );
        // The note of an image that is long enough to be left out says what it is.
        let large = STANDARD.encode([decoded(PNG).unwrap(), vec![0; 1_200]].concat());
        let image = json!({"type": "image", "mimeType": "image/png", "data": large});
        let result = json!({"content": [image], "structuredContent": {"shot": large}});
        assert_eq!(from_result(&result)[1], ToolContent::text(json!({"shot": note}).to_string()));
    }

    #[test]
    fn structured_content_is_kept_unless_the_text_says_the_same() {
        assert_eq!(from_result(&json!({"content": [], "structuredContent": {"a": 1}})), [ToolContent::text("{\"a\":1}")]);
        assert_eq!(from_result(&json!({"content": [{"type": "text", "text": ""}], "structuredContent": 5})).len(), 2);
        assert_eq!(from_result(&json!({})), [ToolContent::text("(the tool answered without content)")]);
        assert_eq!(from_result(&json!({"isError": true})), []);
        assert!(is_error(&json!({"isError": true})));
        let texts = |texts: &[&str]| texts.iter().map(|text| json!({"type": "text", "text": text})).collect::<Vec<Value>>();
        for (parsed, structured, shortened_text) in [
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
            let content = from_result(&json!({"content": texts(&parsed), "structuredContent": structured}));
            assert_eq!(content.len(), shortened_text, "{parsed:?} {structured}");
            if shortened_text > parsed.len() {
                assert_eq!(content[parsed.len()], ToolContent::text(structured.to_string()));
            }
        }
    }
}
