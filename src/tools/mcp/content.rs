//! What a tool answered, as content that is stored and shown to models.

use serde_json::Value;

use crate::domain::message::ToolContent;

/// The content of a `tools/call` result. What a model cannot read is named in a text instead; structured content stands in
/// where there is no text.
pub fn from_result(result: &Value) -> Vec<ToolContent> {
    let blocks = result.get("content").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut content: Vec<ToolContent> = blocks.iter().map(from_block).collect();
    let has_text = blocks.iter().any(|block| text_of(block).is_some_and(|text| !text.is_empty()));
    if let Some(structured) = result.get("structuredContent").filter(|structured| !has_text && !structured.is_null()) {
        content.push(ToolContent::text(structured.to_string()));
    }
    if content.is_empty() {
        content.push(ToolContent::text("(the tool answered without content)"));
    }
    content
}

/// Whether the result says that the tool failed.
pub fn is_error(result: &Value) -> bool {
    result.get("isError").and_then(Value::as_bool).unwrap_or(false)
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
        "image" => ToolContent::Image { media_type: word(block, "mimeType").to_owned(), data: word(block, "data").to_owned() },
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
        return ToolContent::Image { media_type: media_type.to_owned(), data: word(resource, "blob").to_owned() };
    }
    ToolContent::text(format!("[file {uri}, {}: cannot be shown]", described(resource, "blob")))
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
    use super::*;
    use serde_json::json;

    #[test]
    fn every_kind_is_mapped_or_named() {
        let result = json!({"content": [
            {"type": "text", "text": "hello"},
            {"type": "image", "mimeType": "image/png", "data": "AAAA"},
            {"type": "audio", "mimeType": "audio/wav", "data": "AAAAAA=="},
            {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}},
            {"type": "resource", "resource": {"uri": "file:///b", "mimeType": "application/zip", "blob": "AAAA"}},
            {"type": "resource_link", "uri": "file:///c", "name": "c"},
            {"type": "hologram", "data": "?"},
        ], "structuredContent": {"ignored": true}});
        assert_eq!(
            from_result(&result),
            [
                ToolContent::text("hello"),
                ToolContent::Image { media_type: "image/png".to_owned(), data: "AAAA".to_owned() },
                ToolContent::text("[audio, audio/wav, 4 bytes: cannot be shown]"),
                ToolContent::text("[file:///a]\ninside"),
                ToolContent::text("[file file:///b, application/zip, 3 bytes: cannot be shown]"),
                ToolContent::text("[link to file:///c (c)]"),
                ToolContent::text("[content of the unknown kind \"hologram\": cannot be shown]"),
            ]
        );
        assert!(!is_error(&result));
    }

    #[test]
    fn structured_content_stands_in_for_missing_text() {
        assert_eq!(from_result(&json!({"content": [], "structuredContent": {"a": 1}})), [ToolContent::text("{\"a\":1}")]);
        assert_eq!(from_result(&json!({"content": [{"type": "text", "text": ""}], "structuredContent": 5})).len(), 2);
        assert_eq!(from_result(&json!({"isError": true})), [ToolContent::text("(the tool answered without content)")]);
        assert!(is_error(&json!({"isError": true})));
    }
}
