//! Splits a frame that contains several events. Gateways omit the line ends between two events, or put a list of events into a frame. Must
//! not know a dialect: each event is then decoded separately.

use serde_json::value::RawValue;

const DONE: &str = "[DONE]";

/// Returns the events in a frame, if it contains several or a list. Text after the last complete event is another event.
pub(in crate::provider) fn events(data: &str) -> Option<Vec<&str>> {
    let data = data.trim();
    if data.starts_with('[') {
        return list(data);
    }
    if !may_have_more(data) {
        return None;
    }
    let (mut events, mut rest) = (Vec::new(), data);
    loop {
        // Skips the beginning of a line whose previous line has no end.
        rest = rest.strip_prefix("data:").unwrap_or(rest).trim_start();
        let event = match serde_json::Deserializer::from_str(rest).into_iter::<&RawValue>().next() {
            Some(Ok(event)) => event.get(),
            _ if rest.starts_with(DONE) => DONE,
            Some(Err(_)) => rest,
            None => break,
        };
        events.push(event);
        rest = rest.get(event.len()..).unwrap_or_default().trim_start();
    }
    (events.len() > 1).then_some(events)
}

/// Returns the objects of a list that contains only objects.
pub(in crate::provider) fn list(data: &str) -> Option<Vec<&str>> {
    let items: Vec<&str> = serde_json::from_str::<Vec<&RawValue>>(data).ok()?.into_iter().map(RawValue::get).collect();
    let are_objects = !items.is_empty() && items.iter().all(|item| item.starts_with('{'));
    are_objects.then_some(items)
}

/// Returns whether a closing brace is followed by a character that JSON does not allow there. Cheap, because every event is checked.
fn may_have_more(data: &str) -> bool {
    data.match_indices('}').any(|(at, _)| {
        let rest = data.as_bytes().get(at + 1..).unwrap_or_default();
        let next = rest.iter().find(|byte| !byte.is_ascii_whitespace());
        next.is_some_and(|byte| !matches!(byte, b',' | b']' | b'}' | b'"' | b'\\'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_in_one_frame() {
        for (data, expected) in [
            (r#"{"a":1}{"b":"}{"}"#, vec![r#"{"a":1}"#, r#"{"b":"}{"}"#]),
            ("{\"a\":1} {\"b\":2}\n{}", vec![r#"{"a":1}"#, r#"{"b":2}"#, "{}"]),
            (r#"{"a":1}[DONE]"#, vec![r#"{"a":1}"#, "[DONE]"]),
            ("{\"a\":1}\n[DONE]\n{}", vec![r#"{"a":1}"#, "[DONE]", "{}"]),
            (r#"{"a":1}data: {"b":2}data:[DONE]"#, vec![r#"{"a":1}"#, r#"{"b":2}"#, "[DONE]"]),
            (r#"{"a":1}{"b":"#, vec![r#"{"a":1}"#, r#"{"b":"#]),
            ("{\"a\":1}\nnonsense {}", vec![r#"{"a":1}"#, "nonsense {}"]),
            (r#"{"a":"\ud83d"}{"b":2}"#, vec![r#"{"a":"\ud83d"}"#, r#"{"b":2}"#]),
            (r#"[{"a":1}, {"b":[{}]}]"#, vec![r#"{"a":1}"#, r#"{"b":[{}]}"#]),
            (r#"[{"a":1}]"#, vec![r#"{"a":1}"#]),
        ] {
            assert_eq!(events(data), Some(expected), "{data}");
        }
        for data in [
            "",
            "[DONE]",
            "[]",
            "[1,{}]",
            "[{}",
            r#"{"a":{"b":[{},{}]}}"#,
            "{\n \"a\": {\n }\n}\n",
            r#"{"a":"} {} x"}"#,
            r#"{"a":"{\"b\":1}"}"#,
            r#"{"a":} {}"#,
            "nonsense",
        ] {
            assert_eq!(events(data), None, "{data}");
        }
    }
}
