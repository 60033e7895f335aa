//! Name repair: finds the tool that a model means by a name.

use std::sync::Arc;

use crate::domain::agent::{NameRepair, RepairPolicy};
use crate::domain::tool::{ReplayClass, ToolDefinition};
use crate::support::text::prefix_chars;

/// Separates the server from the tool in a name.
const DIVIDER: &str = "__";

/// A prefix that some models add.
const NAMESPACE: &str = "functions.";

/// The least similarity of a repaired name.
const SIMILAR: f64 = 0.5;

/// The least similarity of a suggested name.
const SUGGESTED: f64 = 0.3;

const SUGGESTIONS: usize = 3;

/// The maximum number of characters of a name that are compared. No tool has a longer name.
const COMPARED: usize = 64;

/// Pairs of a verb and its synonym. The synonym replaces the verb if no tool matches the written name and exactly one matches the
/// new name.
const SYNONYMS: [(&str, &str); 2] = [("rename", "move"), ("delete", "trash")];

#[derive(Debug, PartialEq)]
pub enum NameMatch<'d> {
    /// A tool, with the reason of the repair if its name differs.
    Tool(&'d ToolDefinition, Option<&'static str>),
    /// No tool; the most similar names, nearest first.
    None(Vec<&'d str>),
}

/// Returns the tool with exactly this name, or with a dot instead of the divider.
pub fn named<'d>(name: &str, tools: &'d [Arc<ToolDefinition>]) -> Option<&'d Arc<ToolDefinition>> {
    let has = |name: &str| tools.iter().find(|tool| tool.name == name);
    has(name).or_else(|| has(&name.replacen('.', DIVIDER, 1)))
}

/// Returns the tool on offer that a model means by `name`.
pub fn match_name<'d>(name: &str, offered: &[&'d Arc<ToolDefinition>], policy: &RepairPolicy) -> NameMatch<'d> {
    if let Some(tool) = offered.iter().find(|tool| tool.name == name) {
        return NameMatch::Tool(tool, None);
    }
    let written = prefix_chars(name.strip_prefix(NAMESPACE).unwrap_or(name), COMPARED);
    let found = match policy.names {
        NameRepair::Off => None,
        NameRepair::Unique => only_match(name, written, offered, policy),
        NameRepair::Similar => {
            only_match(name, written, offered, policy).or_else(|| Some((most_similar(written, offered)?, "similarity")))
        }
    };
    match found {
        Some((tool, why)) => NameMatch::Tool(tool, Some(why)),
        None => NameMatch::None(suggestions(written, offered)),
    }
}

fn only_match<'d>(
    name: &str,
    written: &str,
    offered: &[&'d Arc<ToolDefinition>],
    policy: &RepairPolicy,
) -> Option<(&'d ToolDefinition, &'static str)> {
    let letters = normalize(written);
    if letters.is_empty() {
        return None;
    }
    if let Some(tool) = sole_match(offered, |tool| self::normalize(&tool.name) == letters) {
        return Some((tool, "spelling"));
    }
    let is_half = |tool: &ToolDefinition, wanted_name: &str| {
        self::normalize(tool_half(tool)) == wanted_name || self::normalize(&tool.tool) == wanted_name
    };
    if let Some(tool) = sole_match(offered, |tool| is_half(tool, &letters)) {
        return Some((tool, "prefix"));
    }
    let alias = policy.aliases.get(name).or_else(|| policy.aliases.get(written)).map(String::as_str);
    let by_alias = |alias: &str| {
        let named = offered.iter().copied().find(|tool| tool.name == alias);
        named.or_else(|| sole_match(offered, |tool| is_half(tool, &self::normalize(alias))))
    };
    if let Some(tool) = alias.and_then(by_alias) {
        return Some((tool, "alias"));
    }
    let (server_half, wanted_name) = split_server(written, offered);
    let by_word = |(word, other): (&str, &str)| {
        let words: Vec<&str> = wanted_name.split(|c: char| !c.is_alphanumeric()).collect();
        let renamed = words.iter().any(|written_word| written_word.eq_ignore_ascii_case(word));
        let renamed = renamed.then(|| {
            words.iter().map(|written_word| if written_word.eq_ignore_ascii_case(word) { other } else { written_word }).collect()
        });
        let renamed: Option<String> = renamed;
        let wanted_name = self::normalize(&renamed?);
        sole_match(offered, |tool| server_half.is_none_or(|server| server == tool.server.as_deref()) && is_half(tool, &wanted_name))
    };
    SYNONYMS.into_iter().find_map(by_word).map(|tool| (&**tool, "alias"))
}

/// Returns the most similar tool of the server in the name, or of the only server. Never returns a destructive tool. Returns a tool
/// with another verb only if the tool only reads: `write_file` is similar to `read_file`.
fn most_similar<'d>(written: &str, offered: &[&'d Arc<ToolDefinition>]) -> Option<&'d Arc<ToolDefinition>> {
    let (server_half, wanted_name) = split_server(written, offered);
    let server_half = match server_half {
        Some(server) => server,
        None => {
            let first = offered.first()?.server.as_deref();
            offered.iter().all(|tool| tool.server.as_deref() == first).then_some(first)?
        }
    };
    let of_server = offered.iter().filter(|tool| tool.server.as_deref() == server_half);
    let mut ranked: Vec<(f64, &'d Arc<ToolDefinition>)> =
        of_server.map(|tool| (similarity(wanted_name, tool_half(tool)), *tool)).collect();
    ranked.sort_by(|one, other| other.0.total_cmp(&one.0));
    let (best, tool) = *ranked.first()?;
    let is_tied = ranked.get(1).is_some_and(|(second, _)| *second >= best);
    let is_harmless = tool.replay == ReplayClass::Read || verb(tool_half(tool)) == verb(wanted_name);
    (best >= SIMILAR && !is_tied && !tool.safety.destructive && is_harmless).then_some(tool)
}

fn verb(name: &str) -> String {
    let mut chars = name.chars().peekable();
    let mut verb = String::new();
    while let Some(c) = chars.next().filter(|c| c.is_alphanumeric()) {
        verb.extend(c.to_lowercase());
        if c.is_lowercase() && chars.peek().is_some_and(|next| next.is_uppercase()) {
            break;
        }
    }
    verb
}

fn suggestions<'d>(written: &str, offered: &[&'d Arc<ToolDefinition>]) -> Vec<&'d str> {
    let alike = |tool: &ToolDefinition| similarity(written, &tool.name).max(similarity(written, tool_half(tool)));
    let mut ranked: Vec<(f64, &'d str)> = offered.iter().map(|tool| (alike(tool), tool.name.as_str())).collect();
    ranked.retain(|(alike, _)| *alike > SUGGESTED);
    ranked.sort_by(|one, other| other.0.total_cmp(&one.0));
    ranked.into_iter().take(SUGGESTIONS).map(|(_, name)| name).collect()
}

/// Splits a name into its server, if it has one, and the rest. Splits at the divider, or after the longest server name at its
/// beginning.
fn split_server<'w, 'd>(written: &'w str, offered: &[&'d Arc<ToolDefinition>]) -> (Option<Option<&'d str>>, &'w str) {
    let servers = offered.iter().filter_map(|tool| {
        let (server, _) = tool.name.split_once(DIVIDER)?;
        Some((server, Some(tool.server.as_deref()?)))
    });
    if let Some((before, rest)) = written.split_once(DIVIDER) {
        let mut named = servers.filter(|(server, _)| server.eq_ignore_ascii_case(before));
        return named.next().map_or((None, written), |(_, server_half)| (Some(server_half), rest));
    }
    let named = servers.filter_map(|(server, server_half)| {
        let (before, rest) = written.split_at_checked(server.len())?;
        let is_named = before.eq_ignore_ascii_case(server) && rest.starts_with(|c: char| !c.is_alphanumeric());
        is_named.then_some((server.len(), server_half, rest))
    });
    match named.max_by_key(|(length, _, _)| *length) {
        Some((_, server_half, rest)) => (Some(server_half), rest.trim_start_matches(|c: char| !c.is_alphanumeric())),
        None => (None, written),
    }
}

/// Returns the part of a name after the server.
fn tool_half(tool: &ToolDefinition) -> &str {
    match tool.server {
        Some(_) => tool.name.split_once(DIVIDER).map_or(tool.name.as_str(), |(_, half)| half),
        None => &tool.name,
    }
}

/// Normalizes a name: `files__read_file`, `files.readFile` and `Files/read-file` are equal.
pub fn normalize(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

fn similarity(one: &str, other: &str) -> f64 {
    strsim::normalized_levenshtein(&normalize(one), &normalize(other))
}

fn sole_match<'d>(offered: &[&'d Arc<ToolDefinition>], is_it: impl Fn(&ToolDefinition) -> bool) -> Option<&'d Arc<ToolDefinition>> {
    let mut found = offered.iter().filter(|tool| is_it(tool));
    let first = found.next()?;
    found.next().is_none().then_some(*first)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::domain::tool::approval::ToolSafety;

    fn tool(name: &str) -> ToolDefinition {
        let (server, half) = name.split_once(DIVIDER).map_or((None, name), |(server, half)| (Some(server), half));
        ToolDefinition {
            server: server.map(str::to_owned),
            tool: half.to_owned(),
            safety: ToolSafety { destructive: half.starts_with("drop"), ..ToolSafety::default() },
            ..ToolDefinition::new(name, "", json!({"type": "object"}), ReplayClass::Unsafe)
        }
    }

    const OFFERED: [&str; 9] = [
        "current_time",
        "files__read_file",
        "files__move_file",
        "files__trash_file",
        "files__search",
        "mail__search",
        "mail__send_mail",
        "mail__drop_mail",
        "disk__trash_file",
    ];

    fn ask(name: &str, names: NameRepair) -> (Option<(String, Option<&'static str>)>, Vec<String>) {
        let tools: Vec<Arc<ToolDefinition>> = OFFERED.into_iter().map(|name| tool(name).into()).collect();
        let offered: Vec<&Arc<ToolDefinition>> = tools.iter().collect();
        let aliases = [("look_up".to_owned(), "mail__search".to_owned()), ("gone".to_owned(), "mail__gone".to_owned())];
        let policy = RepairPolicy { names, aliases: aliases.into(), arguments: false };
        match match_name(name, &offered, &policy) {
            NameMatch::Tool(tool, why) => (Some((tool.name.clone(), why)), Vec::new()),
            NameMatch::None(near) => (None, near.into_iter().map(str::to_owned).collect()),
        }
    }

    #[rstest]
    #[case("files__read_file", Some("files__read_file"))]
    #[case("files.read_file", Some("files__read_file"))]
    #[case("current_time", Some("current_time"))]
    #[case("files.readFile", None)]
    #[case("read_file", None)]
    fn a_dot_between_the_halves_is_another_way_to_write_them(#[case] wrote: &str, #[case] tool: Option<&str>) {
        let tools: Vec<Arc<ToolDefinition>> = OFFERED.into_iter().map(|name| self::tool(name).into()).collect();
        assert_eq!(named(wrote, &tools).map(|tool| tool.name.as_str()), tool);
    }

    #[rstest]
    #[case("files__read_file", "files__read_file", None)]
    #[case("files.read_file", "files__read_file", Some("spelling"))]
    #[case("functions.Files__readFile", "files__read_file", Some("spelling"))]
    #[case("CurrentTime", "current_time", Some("spelling"))]
    #[case("read_file", "files__read_file", Some("prefix"))]
    #[case("sendMail", "mail__send_mail", Some("prefix"))]
    #[case("look_up", "mail__search", Some("alias"))]
    #[case("rename_file", "files__move_file", Some("alias"))]
    #[case("files__delete_file", "files__trash_file", Some("alias"))]
    fn the_one_that_must_be_meant_is_found(#[case] wrote: &str, #[case] tool: &str, #[case] why: Option<&'static str>) {
        for names in [NameRepair::Unique, NameRepair::Similar] {
            assert_eq!(ask(wrote, names).0, Some((tool.to_owned(), why)), "{wrote}");
        }
        let untouched = (wrote == tool).then(|| (tool.to_owned(), why));
        assert_eq!(ask(wrote, NameRepair::Off).0, untouched, "{wrote}");
    }

    #[rstest]
    #[case::two_servers("search")]
    #[case::two_servers_by_word("delete_file")]
    #[case::no_such_alias("gone")]
    #[case::nothing("")]
    #[case::no_letters("__")]
    #[case::no_server_and_several_of_them("send_mial")]
    #[case::not_like_any("mail__xyzzy")]
    #[case::what_destroys("mail__drop_mial")]
    #[case::other_script("ファイル")]
    #[case::another_deed("mail__bend_mail")]
    #[case::a_server_that_there_is_not("mail_archive__serch")]
    fn ambiguous_tool_name_is_not_guessed(#[case] wrote: &str) {
        assert_eq!(ask(wrote, NameRepair::Similar).0, None);
    }

    #[test]
    fn name_repair_by_similarity_needs_the_agent_setting() {
        let similar = Some(("mail__send_mail".to_owned(), Some("similarity")));
        assert_eq!(ask("mail__send_mial", NameRepair::Similar).0, similar);
        let (found, near) = ask("mail__send_mial", NameRepair::Unique);
        assert_eq!((found, near[0].as_str()), (None, "mail__send_mail"));
    }

    #[test]
    fn at_most_three_are_suggested_the_nearest_first() {
        let (_, near) = ask("trash_fil", NameRepair::Off);
        assert_eq!(near.len(), 3);
        assert_eq!(near[..2], ["files__trash_file", "disk__trash_file"]);
        assert!(ask("q", NameRepair::Off).1.is_empty());
        assert!(ask(&"x".repeat(100_000), NameRepair::Similar).1.is_empty());
    }

    #[test]
    fn a_word_stands_for_itself_where_it_is_on_offer() {
        let tools = [tool("files__delete_file"), tool("files__trash_file")].map(Arc::new);
        let offered: Vec<&Arc<ToolDefinition>> = tools.iter().collect();
        let policy = RepairPolicy { names: NameRepair::Unique, ..RepairPolicy::default() };
        assert_eq!(match_name("files__delete_file", &offered, &policy), NameMatch::Tool(&tools[0], None));
        assert_eq!(match_name("deleteFile", &offered, &policy), NameMatch::Tool(&tools[0], Some("prefix")));
    }
}
