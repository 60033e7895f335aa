//! Abilities of models by their names, as the tables of the dialects list them.

use serde::Deserialize;

use super::table::longest_prefix;

/// Groups of models with the same abilities.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::provider) struct Profiles<T> {
    profile: Vec<Profile<T>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile<T> {
    traits: T,
    /// Prefixes of names.
    #[serde(default)]
    starts: Vec<String>,
    /// Full names. A date may follow, or words that do not begin with a number.
    #[serde(default)]
    names: Vec<String>,
}

impl<T: Copy> Profiles<T> {
    /// Returns the abilities of a model: those of its full name, or else of the longest prefix of its name.
    pub(in crate::provider) fn find(&self, model: &str) -> Option<T> {
        let is_named = |name: &String| model.strip_prefix(name.as_str()).is_some_and(has_no_version);
        let named = self.profile.iter().find(|profile| profile.names.iter().any(is_named)).map(|profile| profile.traits);
        let starts = self.profile.iter().flat_map(|profile| profile.starts.iter().map(|start| (start, profile.traits)));
        named.or_else(|| longest_prefix(starts, model).map(|(_, traits)| traits))
    }
}

#[cfg(test)]
impl<T: Copy + PartialEq + std::fmt::Debug> Profiles<T> {
    /// Checks that each name and each prefix finds the abilities of its own profile.
    pub(in crate::provider) fn assert_reachable(&self, traits_of: impl Fn(&str) -> T) {
        for profile in &self.profile {
            for name in profile.starts.iter().chain(&profile.names) {
                assert_eq!(traits_of(name), profile.traits, "{name}");
            }
        }
    }
}

/// Returns whether the rest of a name is a date, or begins with no number: then it names no other version.
fn has_no_version(rest: &str) -> bool {
    let digits = rest.trim_start_matches('-').bytes().take_while(u8::is_ascii_digit).count();
    digits == 0 || digits == 8
}
