//! Finds the field of a body that an error refuses, and removes or renames fields.

use serde_json::Value;

use crate::domain::model::ModelError;

/// Maximum depth of a field that can be removed.
const MAX_DEPTH: usize = 3;

/// The shortest name that counts without quotes: shorter ones, such as `stop`, are words of any sentence.
const MIN_BARE_NAME: usize = 8;

/// Removes a field, and the object around it if that has no other field.
pub(super) fn remove(body: &mut Value, path: &str) {
    let Some(object) = body.as_object_mut() else { return };
    let Some((first, rest)) = path.split_once('.') else {
        object.shift_remove(path);
        return;
    };
    if let Some(inner) = object.get_mut(first) {
        remove(inner, rest);
        if inner.as_object().is_some_and(serde_json::Map::is_empty) {
            object.shift_remove(first);
        }
    }
}

/// Renames a top-level field, unless the new name exists.
pub(super) fn rename(body: &mut Value, from: &str, to: &str) {
    if let Some(object) = body.as_object_mut()
        && !object.contains_key(to)
        && let Some(value) = object.shift_remove(from)
    {
        object.insert(to.to_owned(), value);
    }
}

/// Returns the path of the body field that an error names. The error's typed fields take precedence over its message.
pub(super) fn refused_field(error: &ModelError, body: &Value) -> Option<String> {
    let mut paths = Vec::new();
    collect_paths(body, String::new(), 1, &mut paths);
    let typed = error.details.as_deref().map(|details| details.fields.as_slice()).unwrap_or_default();
    let mut names = typed.iter().map(String::as_str).chain(names_in(&error.message));
    names.find_map(|name| {
        let fits = paths.iter().filter(|path| is_named(path, name));
        // The shortest path is preferred: `reasoning` names the whole object.
        fits.min_by_key(|path| path.len()).cloned()
    })
}

fn collect_paths(value: &Value, prefix: String, depth: usize, paths: &mut Vec<String>) {
    let Some(object) = value.as_object().filter(|_| depth <= MAX_DEPTH) else { return };
    for (name, inner) in object {
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        collect_paths(inner, path.clone(), depth + 1, paths);
        paths.push(path);
    }
}

/// Returns names in a text: quoted ones, the one before a colon, and long or compound words.
fn names_in(text: &str) -> impl Iterator<Item = &str> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '[' | ']');
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let from = rest.find(is_of_name)?;
            let quote = rest.get(..from)?.chars().next_back();
            let word = rest.get(from..)?;
            let end = word.find(|c| !is_of_name(c)).unwrap_or(word.len());
            let (name, after) = word.split_at(end);
            rest = after;
            let name = name.trim_end_matches('.');
            let is_quoted = quote.is_some_and(|quote| matches!(quote, '\'' | '"' | '`')) && after.starts_with(['\'', '"', '`']);
            let is_place = after.starts_with(':') && quote.is_none();
            if is_quoted || is_place || name.len() >= MIN_BARE_NAME || name.contains(['_', '.']) {
                return Some(name);
            }
        }
    })
}

/// Returns whether a name and a path are equal, or one ends with the other. Ignores case and underscores.
fn is_named(path: &str, name: &str) -> bool {
    let plain = |text: &str| text.chars().filter(|c| *c != '_').collect::<String>().to_ascii_lowercase();
    let (path, name) = (plain(path), plain(name));
    let ends = |long: &str, end: &str| long.strip_suffix(end).is_some_and(|before| before.is_empty() || before.ends_with('.'));
    !name.is_empty() && (ends(&path, &name) || ends(&name, &path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::{ErrorDetails, ModelErrorKind};
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case("Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.", "", Some("max_tokens"))]
    #[case("no", "reasoning.summary", Some("reasoning.summary"))]
    #[case("Unknown name \"topP\" at 'generation_config': Cannot find field.", "", Some("generationConfig.topP"))]
    #[case("temperature: Extra inputs are not permitted", "", Some("temperature"))]
    #[case("'temperature' is not supported", "body.temperature", Some("temperature"))]
    #[case("stop doing that", "", None)]
    #[case("`stop` is not supported", "", Some("stop"))]
    #[case("tools[0].function.parameters is not supported", "", None)]
    fn refused_field_is_found_by_its_name(#[case] message: &str, #[case] field: &str, #[case] path: Option<&str>) {
        let body = json!({"max_tokens": 1, "reasoning": {"summary": "auto"}, "generationConfig": {"topP": 1}, "temperature": 1,
            "stop": ["x"], "tools": []});
        let details = ErrorDetails { codes: Vec::new(), fields: if field.is_empty() { vec![] } else { vec![field.to_owned()] } };
        let error = ModelError {
            details: Some(Box::new(details)),
            message: message.to_owned(),
            ..ModelError::new(ModelErrorKind::InvalidRequest, "")
        };
        assert_eq!(refused_field(&error, &body).as_deref(), path);
    }
}
