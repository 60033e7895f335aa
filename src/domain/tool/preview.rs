//! Previews: one line that describes a call in its approval.

use serde_json::Value;

use crate::support::json;
use crate::support::text::prefix_chars;

/// The prefix of a reference in a template. `$$` is a literal `$`.
const REFERENCE: &str = "$arguments.";

const MAX_TEMPLATE: usize = 500;

/// Limits in characters: of a value, of a preview, and of a preview without a template.
const MAX_VALUE: usize = 100;
const MAX_PREVIEW: usize = 500;
const MAX_PLAIN: usize = 100;

pub fn check(template: &str) -> Result<(), String> {
    if template.trim().is_empty() || template.len() > MAX_TEMPLATE || template.contains(char::is_control) {
        return Err(format!("must be one line of 1 to {MAX_TEMPLATE} bytes"));
    }
    filled(template, &mut |_| String::new())
        .map(drop)
        .ok_or_else(|| "a $ must begin a reference: write $arguments.NAME, or $$ for a literal $".to_owned())
}

/// Fills the template with the arguments of a call. Without a template, shows the beginning of the arguments. Values are JSON, so
/// that they cannot be mistaken for the template's text.
pub fn preview(template: Option<&str>, arguments: &Value) -> String {
    let argument_text = |path: &str| {
        json::at(arguments, path).map_or_else(|| "nothing".to_owned(), |value| shortened(&value.to_string(), MAX_VALUE))
    };
    match template.and_then(|template| filled(template, &mut |path| argument_text(path))) {
        Some(text) => shortened(&text, MAX_PREVIEW),
        None => shortened(&arguments.to_string(), MAX_PLAIN),
    }
}

fn shortened(text: &str, most: usize) -> String {
    let start = prefix_chars(text, most);
    if start.len() < text.len() { format!("{start}...") } else { start.to_owned() }
}

/// Replaces the references in a template. `None` for an unknown reference.
fn filled(template: &str, stands_for: &mut impl FnMut(&str) -> String) -> Option<String> {
    let (mut text, mut rest) = (String::new(), template);
    while let Some((before, from)) = rest.find('$').map(|at| rest.split_at(at)) {
        text.push_str(before);
        if let Some(after) = from.strip_prefix("$$") {
            text.push('$');
            rest = after;
            continue;
        }
        let after = from.strip_prefix(REFERENCE)?;
        let end = after.find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))).unwrap_or(after.len());
        // A full stop at the end is punctuation, not a part of the name.
        let path = after[..end].trim_end_matches('.');
        if path.is_empty() {
            return None;
        }
        text.push_str(&stands_for(path));
        rest = &after[path.len()..];
    }
    text.push_str(rest);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case("Move $arguments.source to $arguments.target.", r#"Move "/a" to "/b to /c"."#)]
    #[case("Pay $$$arguments.order.items.0.price, $arguments.gone", "Pay $7, nothing")]
    #[case("Nothing is said", "Nothing is said")]
    fn a_template_is_filled_in_with_values_that_read_like_no_words(#[case] template: &str, #[case] argument_text: &str) {
        let arguments = json!({"source": "/a", "target": "/b to /c", "order": {"items": [{"price": 7}]}});
        assert_eq!(check(template), Ok(()));
        assert_eq!(preview(Some(template), &arguments), argument_text);
    }

    #[rstest]
    #[case("")]
    #[case("two\nlines")]
    #[case("Pay $7")]
    #[case("Pay $arguments.")]
    #[case("Pay $argument.x")]
    fn unfillable_preview_is_refused(#[case] template: &str) {
        assert!(check(template).is_err());
    }

    #[test]
    fn a_preview_has_an_end() {
        let arguments = json!({"text": "\u{1f980}\n".repeat(5_000)});
        assert_eq!(preview(None, &arguments).chars().count(), MAX_PLAIN + 3);
        let one = preview(Some("Write $arguments.text"), &arguments);
        assert_eq!(one.chars().count(), "Write ".len() + MAX_VALUE + 3);
        assert!(one.starts_with("Write \"\u{1f980}\\n\u{1f980}"), "{one}");
        let most = preview(Some(&"$arguments.text ".repeat(30)), &arguments);
        assert_eq!(most.chars().count(), MAX_PREVIEW + 3);
        assert_eq!(preview(None, &json!({})), "{}");
    }
}
