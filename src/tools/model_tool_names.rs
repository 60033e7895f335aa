//! Tool names that every model accepts, made from the names of servers and their tools.
//!
//! A model sees `server__tool`. Both parts are cleaned to `[a-zA-Z0-9_-]` without two underscores in a row or at an end. So the
//! first `__` always divides them, and tools of two servers never have the same name. A part that was cut, or that is not unique
//! after cleaning, ends in at least eight hexadecimal digits of a hash: of the server's key, or of the server's key and the tool's
//! raw name. So names do not depend on the order of raw names.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::{json, text};

/// The longest name that every provider accepts.
pub const MAX_NAME: usize = 64;
pub const MAX_SERVER: usize = 32;
const DIVIDER: &str = "__";
/// Lengths of the hash: the next one is tried while names are not unique.
const HASH_LENGTHS: [usize; 4] = [0, 8, 16, 24];

/// Returns the name prefixes of servers. Each server has a unique key and a name that need not be unique. None of the prefixes is `taken`.
pub fn server_halves(taken: &BTreeSet<String>, servers: &[(&str, &str)]) -> Vec<String> {
    unique("", taken, servers, "server", MAX_SERVER)
}

/// Returns the names of one server's tools for models, in the order of `tools`, which must be distinct. `half` comes from
/// [`server_halves`]; `server` is the server's key.
pub fn tool_names(server: &str, half: &str, tools: &[&str]) -> Vec<String> {
    let room = MAX_NAME - half.len() - DIVIDER.len();
    let tools: Vec<(&str, &str)> = tools.iter().map(|name| (*name, *name)).collect();
    unique(server, &BTreeSet::new(), &tools, "tool", room).into_iter().map(|tool| format!("{half}{DIVIDER}{tool}")).collect()
}

/// Returns a unique name of at most `limit` characters for each pair of key and raw name, none of them `taken`. `scope` is part of the
/// hashes; `fallback` replaces a name that is empty after cleaning.
fn unique(scope: &str, taken: &BTreeSet<String>, raws: &[(&str, &str)], fallback: &str, limit: usize) -> Vec<String> {
    let cleaned: Vec<String> = raws.iter().map(|(_, raw)| clean(raw, fallback)).collect();
    let mut levels: Vec<usize> = cleaned.iter().map(|name| usize::from(name.len() > limit)).collect();
    loop {
        let names: Vec<String> = (0..raws.len())
            .map(|at| with_hash(&cleaned[at], &json::hash_bytes(format!("{scope}\0{}", raws[at].0).as_bytes()), levels[at], limit))
            .collect();
        let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
        for name in &names {
            *uses.entry(name).or_default() += 1;
        }
        let meets = |name: &String| uses[name.as_str()] > 1 || taken.contains(name);
        let clashing: Vec<usize> =
            (0..names.len()).filter(|at| meets(&names[*at]) && levels[*at] + 1 < HASH_LENGTHS.len()).collect();
        if clashing.is_empty() {
            return names;
        }
        for at in clashing {
            levels[at] += 1;
        }
    }
}

fn with_hash(cleaned: &str, hash: &str, level: usize, limit: usize) -> String {
    let digits = HASH_LENGTHS[level];
    if digits == 0 {
        return cleaned.to_owned();
    }
    let stem = text::prefix(cleaned, limit.saturating_sub(digits + 1)).trim_end_matches('_');
    format!("{stem}_{}", &hash[..digits])
}

fn clean(raw: &str, fallback: &str) -> String {
    let mut name = String::with_capacity(raw.len());
    for c in raw.chars() {
        let c = if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        if c != '_' || !name.ends_with('_') {
            name.push(c);
        }
    }
    match name.trim_matches('_') {
        "" => fallback.to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn distinct_halves(servers: &[&str]) -> Vec<String> {
        let keys: Vec<(&str, &str)> = servers.iter().map(|name| (*name, *name)).collect();
        server_halves(&BTreeSet::new(), &keys)
    }

    fn all(sets: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
        let servers: Vec<&str> = sets.keys().map(String::as_str).collect();
        let halves = distinct_halves(&servers);
        let mut names = Vec::new();
        for (server, half) in servers.iter().zip(&halves) {
            let tools: Vec<&str> = sets[*server].iter().map(String::as_str).collect();
            names.extend(tool_names(server, half, &tools));
        }
        names
    }

    #[test]
    fn ordinary_names_stay_readable() {
        assert_eq!(distinct_halves(&["files", "time"]), ["files", "time"]);
        assert_eq!(tool_names("files", "files", &["read_file", "list-dir"]), ["files__read_file", "files__list-dir"]);
        assert_eq!(tool_names("a", "a", &["get.weather", "_private"]), ["a__get_weather", "a__private"]);
    }

    #[test]
    fn colliding_names_get_a_hash_in_any_order() {
        let one = distinct_halves(&["a.b", "a_b", "a-b"]);
        let other = distinct_halves(&["a-b", "a_b", "a.b"]);
        assert_eq!(one.iter().rev().cloned().collect::<Vec<_>>(), other);
        assert_eq!(one[2], "a-b");
        assert!(one[0].starts_with("a_b_") && one[0].len() == "a_b_".len() + 8, "{one:?}");
        assert_ne!(one[0], one[1]);
    }

    #[test]
    fn taken_tool_name_is_kept() {
        let taken = BTreeSet::from(["mail".to_owned()]);
        let halves = server_halves(&taken, &[("id-1", "mail"), ("id-2", "mail"), ("id-3", "notes")]);
        assert!(halves[0].starts_with("mail_") && halves[1].starts_with("mail_") && halves[0] != halves[1], "{halves:?}");
        assert_eq!(halves[2], "notes");
        assert_eq!(server_halves(&taken, &[("id-1", "mail")]), halves[..1], "whoever else is there");
    }

    #[test]
    fn long_names_are_cut_to_64_characters() {
        let long = "x".repeat(65);
        let almost = format!("{}y", "x".repeat(64));
        let names = tool_names("s", "s", &[&long, &almost]);
        assert_ne!(names[0], names[1]);
        assert!(names.iter().all(|name| name.len() == 64), "{names:?}");
        assert_eq!(distinct_halves(&[&"s".repeat(40)])[0].len(), 32);
        let fits = "t".repeat(61);
        assert_eq!(tool_names("s", "s", &[&fits]), [format!("s__{fits}")]);
    }

    #[test]
    fn other_scripts_become_distinct_names() {
        let names = tool_names("天気", "server", &["天気", "温度"]);
        assert_ne!(names[0], names[1]);
        assert!(names.iter().all(|name| name.starts_with("server__tool_")), "{names:?}");
    }

    proptest! {
        /// M-14.
        #[test]
        fn never_two_tools_under_one_name(
            sets in prop::collection::btree_map(
                "[ab_.é-]{0,4}|.{0,70}",
                prop::collection::btree_set("[ab_.é-]{0,4}|.{0,90}", 0..6),
                0..6,
            )
        ) {
            let names = all(&sets);
            let distinct: BTreeSet<&String> = names.iter().collect();
            prop_assert_eq!(distinct.len(), names.len());
            for name in &names {
                prop_assert!(!name.is_empty() && name.len() <= MAX_NAME);
                prop_assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-'));
            }
        }
    }
}
