//! Replaces variables in the texts of configuration files.

/// The error of a text. Names variables, never their values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    /// A variable without a value and without a default.
    #[error("the variable {0} is not set")]
    NotSet(String),
    /// `${` without `}`.
    #[error("a ${{ has no closing brace; write $${{ for a literal ${{")]
    NotClosed,
}

/// Replaces `${VAR}` and `${VAR:-default}` by the values that `lookup` returns. An empty variable gets the default, too. `$${` is an escape
/// for a literal `${`. `${env:VAR}`, as other programs write it, means `${VAR}`.
pub fn expand(text: &str, mut lookup: impl FnMut(&str) -> Option<String>) -> Result<String, ExpandError> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        if let Some(before) = before.strip_suffix('$') {
            expanded.push_str(before);
            expanded.push_str("${");
            rest = after;
            continue;
        }
        expanded.push_str(before);
        let (inner, after) = after.split_once('}').ok_or(ExpandError::NotClosed)?;
        let (name, default) = match inner.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inner, None),
        };
        let name = variable_name(name);
        match (lookup(name).filter(|value| default.is_none() || !value.is_empty()), default) {
            (Some(value), _) => expanded.push_str(&value),
            (None, Some(default)) => expanded.push_str(default),
            (None, None) => return Err(ExpandError::NotSet(name.to_owned())),
        }
        rest = after;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// Returns the name of a variable without the prefix of other programs.
pub fn variable_name(name: &str) -> &str {
    name.strip_prefix("env:").unwrap_or(name)
}

/// Returns a text that [`expand`] converts to this one.
pub fn escape(text: &str) -> String {
    text.replace("${", "$${")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_and_nothing_else() {
        let lookup = |name: &str| match name {
            "NAME" => Some("value".to_owned()),
            "EMPTY" => Some(String::new()),
            "DOLLAR" => Some("${NAME}".to_owned()),
            _ => None,
        };
        for (text, expanded) in [
            ("plain $NAME {NAME} $", "plain $NAME {NAME} $"),
            ("a ${NAME} b ${NAME}", "a value b value"),
            ("${MISSING:-default}${EMPTY:-default}", "defaultdefault"),
            ("${MISSING:-}", ""),
            ("${NAME:-default}", "value"),
            ("[${EMPTY}]", "[]"),
            ("${MISSING:-a:-b}", "a:-b"),
            ("${env:NAME}${env:MISSING:-default}", "valuedefault"),
            ("$${NAME} $$${NAME}", "${NAME} $${NAME}"),
            // A value is not expanded again.
            ("${DOLLAR}", "${NAME}"),
        ] {
            assert_eq!(expand(text, lookup), Ok(expanded.to_owned()), "{text}");
            assert_eq!(expand(&escape(text), lookup), Ok(text.to_owned()), "{text}");
        }
        assert_eq!(expand("${MISSING}", lookup), Err(ExpandError::NotSet("MISSING".to_owned())));
        assert_eq!(expand("${env:MISSING}", lookup), Err(ExpandError::NotSet("MISSING".to_owned())));
        assert_eq!(expand("a ${NAME", lookup), Err(ExpandError::NotClosed));
    }
}
