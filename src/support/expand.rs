//! Variables in the texts of configuration files.

/// Names variables, never their values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    /// A variable without a value and without a default.
    #[error("the variable {0} is not set")]
    NotSet(String),
    /// `${` without `}`.
    #[error("a ${{ is not closed; a ${{ that is meant as it stands is written $${{")]
    NotClosed,
}

/// Replaces `${VAR}` and `${VAR:-default}` by the values that `lookup` returns. An empty variable gets the default, too. `$${` stands for
/// a `${` that begins no variable.
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

/// Returns a text that [`expand`] turns into this one.
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
            ("$${NAME} $$${NAME}", "${NAME} $${NAME}"),
            // A value is not expanded again.
            ("${DOLLAR}", "${NAME}"),
        ] {
            assert_eq!(expand(text, lookup), Ok(expanded.to_owned()), "{text}");
            assert_eq!(expand(&escape(text), lookup), Ok(text.to_owned()), "{text}");
        }
        assert_eq!(expand("${MISSING}", lookup), Err(ExpandError::NotSet("MISSING".to_owned())));
        assert_eq!(expand("a ${NAME", lookup), Err(ExpandError::NotClosed));
    }
}
