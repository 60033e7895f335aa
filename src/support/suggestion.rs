//! Suggestions for misspelt names.

/// The least similarity of a suggested name; 1 means equal.
const MIN_SIMILARITY: f64 = 0.7;

/// Returns the known name that is most similar to `wrong`, if it is similar enough. Case, `_` and `-` do not count.
pub fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wrong = normalized(wrong);
    let scored = known.into_iter().map(|name| (strsim::normalized_damerau_levenshtein(&wrong, &normalized(name)), name));
    scored.filter(|(score, _)| *score >= MIN_SIMILARITY).max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, name)| name)
}

/// Returns a name in lower case and without `_` and `-`, so that `disabledTools` and `disabled_tools` are one name.
pub fn normalized(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).collect()
}

/// Adds a suggestion to an error of serde that names an unknown field or variant and the known ones.
pub fn with_suggestion(message: &str) -> String {
    let parts = message.strip_prefix("unknown ").and_then(|rest| rest.split_once(", expected "));
    let Some((unknown, expected)) = parts else { return message.to_owned() };
    let quoted = |text| str::split(text, '`').skip(1).step_by(2);
    match quoted(unknown).next().and_then(|wrong| nearest(wrong, quoted(expected))) {
        Some(near) => format!("unknown {unknown} (did you mean `{near}`?), expected {expected}"),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("arg", Some("args"))]
    #[case("Args", Some("args"))]
    #[case("comand", Some("command"))]
    #[case("evn", None)]
    #[case("aproval", Some("approval"))]
    #[case("gallery", None)]
    #[case("trust", Some("trusted"))]
    fn misspelt_name_gets_the_nearest_known_one(#[case] wrong: &str, #[case] expected: Option<&str>) {
        assert_eq!(nearest(wrong, ["args", "command", "env", "approval", "trusted"]), expected);
    }

    #[rstest]
    #[case(
        "unknown field `slot`, expected one of `slots`, `lease_ms`",
        "unknown field `slot` (did you mean `slots`?), expected one of `slots`, `lease_ms`"
    )]
    #[case("unknown variant `aks`, expected `auto` or `ask`", "unknown variant `aks`, expected `auto` or `ask`")]
    #[case("unknown field `zzz`, expected `a` or `b`", "unknown field `zzz`, expected `a` or `b`")]
    #[case("missing field `slots`", "missing field `slots`")]
    fn error_of_serde_gets_a_suggestion(#[case] message: &str, #[case] expected: &str) {
        assert_eq!(with_suggestion(message), expected);
    }
}
