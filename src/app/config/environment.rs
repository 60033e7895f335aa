//! The environment of the process as a value.

use std::collections::BTreeMap;

/// Environment variables. Names and values that are not Unicode are omitted, because no setting can use them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Reads the environment of this process. Called once, at the start.
    pub fn of_process() -> Self {
        #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the environment")]
        let variables = std::env::vars_os();
        variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))).collect()
    }

    /// Returns a variable. An empty variable counts as unset, as in compose files.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

pub(super) fn check_unquoted(environment: &Environment, name: &str) -> Result<(), String> {
    match environment.get(name).is_some_and(is_quoted) {
        true => Err("the value begins and ends with quotes, which count as part of it: remove them (`docker run --env-file` \
         and some service managers keep them)"
            .to_owned()),
        false => Ok(()),
    }
}

pub fn is_quoted(value: &str) -> bool {
    let value = value.trim();
    value.len() >= 2 && ['"', '\''].iter().any(|quote| value.starts_with(*quote) && value.ends_with(*quote))
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl std::fmt::Debug for Environment {
    /// Shows names only, because values may be secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
