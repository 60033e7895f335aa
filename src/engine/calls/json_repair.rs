//! Repairs text of models that is nearly a JSON object, if it has only one possible meaning. Does not repair text that ends before
//! its brackets are closed: it may have been cut, even if the provider reports a complete answer.

use serde_json::{Map, Number, Value};

use crate::domain::tool::MAX_NESTING;
use crate::support::json::decode_escape;
use crate::support::number::MAX_NUMBER_CHARS;
use crate::support::text::storable;

#[derive(Debug, PartialEq)]
pub struct RepairedJson {
    pub value: Value,
    pub fixes: Vec<&'static str>,
}

/// Repairs a text; `None` if it cannot be repaired.
pub fn repair(raw: &str) -> Option<RepairedJson> {
    repair_within(raw, 0)
}

fn repair_within(raw: &str, strings: u32) -> Option<RepairedJson> {
    let text = raw.trim_start_matches('\u{feff}').trim();
    let bare = unfenced(text);
    let mut reader = Reader { text: bare, at: 0, open: Vec::new(), fixes: Vec::new() };
    if bare.len() != text.len() {
        reader.fix("code_fence");
    }
    if bare.starts_with('"') && strings == 0 {
        let inner: String = serde_json::from_str(bare).ok()?;
        let RepairedJson { value, mut fixes } = repair_within(&inner, 1)?;
        fixes.insert(0, "encoded_twice");
        return Some(RepairedJson { value, fixes });
    }
    if !bare.starts_with('{') {
        return None;
    }
    let value = reader.value()?;
    reader.end()?;
    Some(RepairedJson { value, fixes: reader.fixes })
}

/// Removes a code fence around the whole text.
pub fn unfenced(text: &str) -> &str {
    let text = text.trim();
    let Some(inner) = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```")) else { return text };
    let inner = inner.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
    inner.trim()
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    /// The open brackets, outermost first.
    open: Vec<char>,
    fixes: Vec<&'static str>,
}

impl Reader<'_> {
    fn fix(&mut self, description: &'static str) {
        if !self.fixes.contains(&description) {
            self.fixes.push(description);
        }
    }

    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn take(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    /// Returns the next character that is no white space, without consuming it.
    fn next(&mut self) -> Option<char> {
        while self.peek().is_some_and(char::is_whitespace) {
            self.take();
        }
        self.peek()
    }

    /// Accepts surplus closing brackets, and no other text.
    fn end(&mut self) -> Option<()> {
        while let Some(next) = self.next() {
            if !matches!(next, '}' | ']') {
                return None;
            }
            self.take();
            self.fix("extra_bracket");
        }
        Some(())
    }

    fn value(&mut self) -> Option<Value> {
        match self.next()? {
            '{' => self.object(),
            '[' => self.array(),
            quote @ ('"' | '\'') => self.string(quote).map(Value::String),
            '-' | '0'..='9' => self.number(),
            _ => self.word(),
        }
    }

    fn object(&mut self) -> Option<Value> {
        let mut map = Map::new();
        self.list('{', '}', |reader| {
            let key = match reader.next()? {
                quote @ ('"' | '\'') => reader.string(quote)?,
                _ => reader.key()?,
            };
            if reader.next()? != ':' {
                return None;
            }
            reader.take();
            map.insert(key, reader.value()?);
            Some(())
        })?;
        Some(Value::Object(map))
    }

    fn array(&mut self) -> Option<Value> {
        let mut items = Vec::new();
        self.list('[', ']', |reader| {
            items.push(reader.value()?);
            Some(())
        })?;
        Some(Value::Array(items))
    }

    /// Reads items between two brackets, separated by commas.
    fn list(&mut self, open: char, end: char, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        if self.open.len() >= MAX_NESTING {
            return None;
        }
        self.take();
        self.open.push(open);
        let mut is_empty = true;
        while self.next()? != end {
            item(self)?;
            is_empty = false;
            match self.next() {
                Some(',') => drop(self.take()),
                other => {
                    self.close(other, end)?;
                    self.open.pop();
                    return Some(());
                }
            }
        }
        if !is_empty {
            self.fix("trailing_comma");
        }
        self.take();
        self.open.pop();
        Some(())
    }

    /// Closes the open bracket after a complete value. The closing bracket may be missing if the closing bracket of an outer level
    /// follows.
    fn close(&mut self, next: Option<char>, bracket: char) -> Option<()> {
        let around = &self.open[..self.open.len().saturating_sub(1)];
        let is_missing = match next {
            Some(next) if next == bracket => false,
            Some('}') => around.contains(&'{'),
            Some(']') => around.contains(&'['),
            Some(_) | None => return None,
        };
        if is_missing {
            self.fix("closing_bracket");
            return Some(());
        }
        // Fails if the next bracket does not match the open one.
        (next == Some(bracket)).then(|| self.take())?.map(drop)
    }

    fn key(&mut self) -> Option<String> {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | '-' | '$')).unwrap_or(rest.len());
        let key = rest[..end].to_owned();
        if key.is_empty() {
            return None;
        }
        self.at += end;
        self.fix("unquoted_key");
        Some(key)
    }

    fn number(&mut self) -> Option<Value> {
        let rest = self.rest();
        let end = rest.find(|c: char| !matches!(c, '0'..='9' | '-' | '+' | '.' | 'e' | 'E')).unwrap_or(rest.len());
        if end > MAX_NUMBER_CHARS {
            return None;
        }
        let number: Number = serde_json::from_str(&rest[..end]).ok()?;
        self.at += end;
        Some(Value::Number(number))
    }

    fn word(&mut self) -> Option<Value> {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (value, is_python) = match &rest[..end] {
            "true" => (Value::Bool(true), false),
            "false" => (Value::Bool(false), false),
            "null" => (Value::Null, false),
            "True" => (Value::Bool(true), true),
            "False" => (Value::Bool(false), true),
            "None" => (Value::Null, true),
            _ => return None,
        };
        self.at += end;
        if is_python {
            self.fix("python_literal");
        }
        Some(value)
    }

    fn string(&mut self, quote: char) -> Option<String> {
        self.take();
        let mut is_doubled = false;
        if quote == '\'' {
            self.fix("single_quotes");
        } else if self.rest().chars().nth(1).is_some_and(|c| !c.is_whitespace() && !matches!(c, ',' | ':' | '}' | ']'))
            && self.peek() == Some('"')
        {
            self.take();
            is_doubled = true;
            self.fix("doubled_quotes");
        }
        let mut text = String::new();
        loop {
            match self.take()? {
                c if c == quote => {
                    if is_doubled && self.take()? != '"' {
                        return None;
                    }
                    return Some(storable(&text).into_owned());
                }
                '\\' => self.escape(&mut text)?,
                c => {
                    if c.is_control() {
                        self.fix("control_character");
                    }
                    text.push(c);
                }
            }
        }
    }

    /// Reads the escape whose backslash was just taken.
    fn escape(&mut self, text: &mut String) -> Option<()> {
        if let Some((c, length)) = self.text.get(self.at - 1..).and_then(decode_escape) {
            text.push(c);
            self.at += length - 1;
            return Some(());
        }
        match self.take()? {
            'u' => return None,
            '\'' => text.push('\''),
            // A backslash in a path or a regular expression is literal.
            other => text.extend(['\\', other]),
        }
        self.fix("escape");
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(r#"{"a": 1,}"#, json!({"a": 1}), &["trailing_comma"])]
    #[case(r#"{"a": [1, 2, ], }"#, json!({"a": [1, 2]}), &["trailing_comma"])]
    #[case(r#"{"a": [1, 2}"#, json!({"a": [1, 2]}), &["closing_bracket"])]
    #[case(r#"[{"a": 1]"#, Value::Null, &[])]
    #[case(r#"{"a": [{"b": 1], "c": 2}"#, json!({"a": [{"b": 1}], "c": 2}), &["closing_bracket"])]
    #[case(r#"{"a": 1}}"#, json!({"a": 1}), &["extra_bracket"])]
    #[case("{'a': 'it is', 'b': \"it's\"}", json!({"a": "it is", "b": "it's"}), &["single_quotes"])]
    #[case("{'a': True, 'b': None, 'c': False}", json!({"a": true, "b": null, "c": false}), &["single_quotes", "python_literal"])]
    #[case("{a: 1, b-c: \"x\"}", json!({"a": 1, "b-c": "x"}), &["unquoted_key"])]
    #[case("```json\n{\"a\": 1}\n```", json!({"a": 1}), &["code_fence"])]
    #[case("```\n{\"a\": 1,}\n```", json!({"a": 1}), &["code_fence", "trailing_comma"])]
    #[case(r#""{\"a\": 1}""#, json!({"a": 1}), &["encoded_twice"])]
    #[case(r#"{""a"": ""b"", "c": ""}"#, json!({"a": "b", "c": ""}), &["doubled_quotes"])]
    #[case("{\"a\": \"one\ntwo\"}", json!({"a": "one\ntwo"}), &["control_character"])]
    #[case(r#"{"a": "\d+ \'x\' \ud83d\ude00 \ud83d \u00e9",}"#, json!({"a": "\\d+ 'x' 😀 \u{fffd} é"}), &["escape", "trailing_comma"])]
    #[case("{\"a\": \"x\\u0000\",}", json!({"a": "x\u{fffd}"}), &["trailing_comma"])]
    #[case("\u{feff}{\"a\": -1.5e3}", json!({"a": -1500.0}), &[])]
    fn mends(#[case] raw: &str, #[case] value: Value, #[case] fixes: &[&str]) {
        match repair(raw) {
            Some(repaired) => {
                assert!(crate::support::json::is_same(&repaired.value, &value), "{}", repaired.value);
                assert_eq!(repaired.fixes.as_slice(), fixes);
            }
            None => assert_eq!(value, Value::Null, "{raw} is repaired"),
        }
    }

    #[rstest]
    #[case::in_a_string(r#"{"path": "/srv/da"#)]
    #[case::in_a_number(r#"{"amount": 12"#)]
    #[case::in_a_word(r#"{"force": fals"#)]
    #[case::after_a_word(r#"{"force": true"#)]
    #[case::after_a_key(r#"{"path""#)]
    #[case::before_a_value(r#"{"path":"#)]
    #[case::after_a_comma(r#"{"path": "a","#)]
    #[case::after_a_bracket(r#"{"paths": ["#)]
    #[case::after_a_text(r#"{"a": {"b": "c""#)]
    #[case::after_an_object(r#"{"a": [{"b": 1}"#)]
    #[case::at_the_beginning("{")]
    #[case::in_a_fence("```json\n{\"path\": \"a\"")]
    #[case::in_an_escape(r#"{"path": "a\"#)]
    #[case::words_behind(r#"{"a": 1} and so on"#)]
    #[case::words_before(r#"Here: {"a": 1}"#)]
    #[case::two_objects(r#"{"a": 1}{"b": 2}"#)]
    #[case::an_apostrophe("{'a': 'it's'}")]
    #[case::a_list("[1, 2,]")]
    #[case::a_word("yes")]
    #[case::nothing("")]
    #[case::a_call("f(x)")]
    #[case::no_literal("{\"a\": undefined}")]
    fn cut_or_unclear_json_is_not_repaired(#[case] raw: &str) {
        assert_eq!(repair(raw), None);
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |levels: usize| format!("{}1,{}", "{\"a\":".repeat(levels), "}".repeat(levels));
        assert!(repair(&nested(MAX_NESTING)).is_some());
        assert_eq!(repair(&nested(MAX_NESTING + 1)), None);
        assert_eq!(repair(&"{\"a\":[".repeat(100_000)), None);
    }

    fn objects() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(Value::from),
            "[^\u{0}]{0,8}".prop_map(Value::from),
        ];
        let value = leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
                prop::collection::btree_map("[^\u{0}]{0,6}", inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        });
        prop::collection::btree_map("[^\u{0}]{0,6}", value, 0..4).prop_map(|map| Value::Object(map.into_iter().collect()))
    }

    proptest! {
        #[test]
        fn valid_json_is_unchanged_by_repair(value in objects()) {
            let repaired = repair(&value.to_string());
            prop_assert_eq!(repaired.map(|repaired| repaired.value), Some(value));
        }

        #[test]
        fn a_cut_text_is_never_repaired(value in objects(), cut in 1_usize..400) {
            let text = value.to_string();
            let at = text.floor_char_boundary(text.len().saturating_sub(cut));
            prop_assert_eq!(repair(&text[..at]), None);
        }

        #[test]
        fn no_text_breaks_it(text in ".{0,60}|[{}\\[\\]\"':, a1\\\\`]{0,40}") {
            let _ = repair(&text);
        }
    }
}
