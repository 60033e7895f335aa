//! Checks unknown keys of an `mcpServers` document: some refuse an entry, others only cause a warning.
//!
//! Other programs share these files, so an unknown key is not a mistake by itself. A key that disables or restricts a server is never
//! ignored: Capstan applies it, or refuses the entry.

use serde_json::{Map, Value};

use crate::support::suggestion::{nearest, normalized};
use crate::tools::mcp::ServerTransport;
use crate::tools::mcp::config::foreign_formats::{ENTRY, servers_key};

const CAPSTAN: [&str; 15] = [
    "trusted",
    "approval",
    "replay",
    "undo",
    "preview",
    "elicitation",
    "sampling",
    "shared",
    "per_owner",
    "timeout",
    "max_timeout",
    "concurrency",
    "oauth",
    "container",
    "roots",
];

/// Switches of other programs, without case, `_` and `-`: those that enable a server, and those that disable it.
const ON: [&str; 5] = ["enabled", "enable", "isenabled", "active", "isactive"];
const OFF: [&str; 7] = ["disabled", "disable", "isdisabled", "inactive", "paused", "suspended", "off"];

/// Prefixes of other programs' keys that allow something. Ignoring them is safe, although some look like restrictions.
const PERMISSIVE: [&str; 5] = ["autoapprov", "autoallow", "alwaysallow", "alwaysapprov", "trust"];

/// Parts of keys that disable or restrict, as in `disabledTools`, `require_approval` and `toolFilter`.
const RESTRICTIVE: [&str; 21] = [
    "tool",
    "approv",
    "alwaysask",
    "confirm",
    "permission",
    "allow",
    "deny",
    "denied",
    "exclude",
    "include",
    "block",
    "restrict",
    "readonly",
    "sandbox",
    "enable",
    "disable",
    "whitelist",
    "blacklist",
    "filter",
    "limit",
    "polic",
];

/// Parts of keys that exclude the tools in their list, as in `disabledTools`.
const EXCLUDING: [&str; 13] = [
    "disable",
    "disallow",
    "exclude",
    "block",
    "deny",
    "denied",
    "blacklist",
    "forbid",
    "hidden",
    "hide",
    "ignore",
    "skip",
    "reject",
];

/// Parts of keys that restrict the tools in their list without excluding them, as in `require_approval`.
const GUARDING: [&str; 6] = ["approv", "alwaysask", "confirm", "restrict", "readonly", "sandbox"];

/// Returns whether any switch disables the server. Fails for a switch that is neither true nor false.
pub fn is_switched_off(entry: &Map<String, Value>) -> Result<bool, String> {
    let mut off = false;
    for (key, value) in entry.iter().filter(|(key, _)| is_switch(key)) {
        let value_of_switch: Option<bool> = match value {
            Value::Null => continue,
            Value::Bool(value_of_switch) => Some(*value_of_switch),
            Value::String(text) => text.trim().to_ascii_lowercase().parse().ok(),
            Value::Number(_) | Value::Array(_) | Value::Object(_) => None,
        };
        let value_of_switch =
            value_of_switch.ok_or_else(|| format!("{key:?} must be true or false: it enables or disables the server"))?;
        off |= value_of_switch == OFF.contains(&normalized(key).as_str());
    }
    Ok(off)
}

/// Returns warnings about unknown keys. Fails for a key that restricts the server, or that belongs inside `capstan`.
pub fn check_entry(entry: &Map<String, Value>) -> Result<Vec<String>, String> {
    let unknown = entry.iter().filter(|(key, _)| !ENTRY.contains(&key.as_str()) && !is_switch(key));
    unknown.map(|(key, value)| check_unknown(key, value)).collect()
}

/// Returns all warnings about a valid entry.
pub fn warnings(entry: &Map<String, Value>, transport: &ServerTransport) -> Vec<String> {
    let (unread, of): (&[&str], &str) = match transport {
        ServerTransport::Stdio { .. } | ServerTransport::Container { .. } => (&["headers"], "a url"),
        ServerTransport::Http { .. } => (&["args", "env", "cwd"], "a command"),
    };
    let present = unread.iter().filter(|key| entry.get(**key).is_some_and(|value| !is_empty(value)));
    let without_effect = present.map(|key| format!("the key {key:?} has no effect: it applies to servers with {of}"));
    check_entry(entry).unwrap_or_default().into_iter().chain(without_effect).collect()
}

fn check_unknown(key: &str, value: &Value) -> Result<String, String> {
    let plain = normalized(key);
    if plain.contains("timeout") {
        let way_out = "the time limit of calls is \"capstan\": {\"timeout\": \"30s\"}";
        return Ok(format!("the key {key:?} is ignored; {way_out}"));
    }
    if PERMISSIVE.iter().any(|beginning| plain.starts_with(beginning)) && plain != "trusted" {
        let way_out = "tools that never ask are set with \"capstan\": {\"approval\": {\"TOOL\": \"auto\"}}";
        return Ok(format!("the key {key:?} is ignored; {way_out}"));
    }
    match nearest(key, ENTRY.into_iter().chain(CAPSTAN)).filter(|_| plain != "auth") {
        Some(near) if CAPSTAN.contains(&near) => Err(format!(
            "{key:?} has no effect beside \"capstan\": write it inside, as \"capstan\": {{{near:?}: ...}}, or remove it"
        )),
        Some(near @ ("capstan" | "enabled" | "disabled")) => Err(format!("the key {key:?} is unknown; did you mean {near:?}?")),
        _ if is_restriction(&plain, value) => Err(format!(
            "the key {key:?} may narrow down what the server may do, and Capstan does not read it: remove it; agent.tools names the \
             tools on offer, and \"capstan\": {{\"approval\": {{\"TOOL\": \"ask\"}}}} the tools that ask first"
        )),
        Some(near) => Ok(format!("the key {key:?} is ignored; did you mean {near:?}?")),
        None => Ok(format!("the key {key:?} is ignored")),
    }
}

/// Returns warnings about keys beside `mcpServers`. Fails for a key that belongs inside entries.
pub fn check_document(document: &Map<String, Value>) -> Result<Vec<String>, String> {
    let servers = servers_key(document);
    let unknown = document.keys().filter(|key| *key != servers && *key != "$schema");
    let warnings = unknown.map(|key| {
        let plain = normalized(key);
        if is_switch(key) || std::iter::once("capstan").chain(CAPSTAN).any(|known| normalized(known) == plain) {
            return Err(format!("{key:?} has no effect beside \"mcpServers\": write it into the entry of each server"));
        }
        let hint = nearest(key, ["mcpServers"]).map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
        Ok(format!("the key {key:?} beside \"mcpServers\" is ignored{hint}"))
    });
    warnings.collect()
}

/// Returns the hint for an unknown key inside `capstan`.
pub fn hint_inside_capstan(key: &str) -> String {
    if ENTRY.contains(&key) {
        return "; it belongs beside \"capstan\", not inside it".to_owned();
    }
    nearest(key, CAPSTAN).map(|near| format!("; did you mean capstan.{near}?")).unwrap_or_default()
}

fn is_switch(key: &str) -> bool {
    let plain = normalized(key);
    ON.iter().chain(&OFF).any(|switch| *switch == plain)
}

/// Returns whether an unknown key may restrict its server: by its name, unless the value means no restriction, or by its value.
fn is_restriction(plain: &str, value: &Value) -> bool {
    let is_off = value.as_str().is_some_and(|text| OFF.contains(&normalized(text).as_str()));
    let has = |parts: &[&str]| parts.iter().any(|part| plain.contains(part));
    let asks = plain.starts_with("ask");
    let is_list_of_all = matches!(value, Value::Array(items) if matches!(&items[..], [Value::String(all)] if all == "*"));
    // A list of all tools restricts nothing as a list of allowed tools. As a list of excluded tools, or of tools that ask first, it
    // restricts every tool.
    let allows_all = is_list_of_all && !has(&EXCLUDING) && !has(&GUARDING) && !asks;
    let excludes_nothing = has(&EXCLUDING) && is_empty(value);
    let restricts_nothing = value.is_null() || allows_all || excludes_nothing;
    is_off || ((has(&RESTRICTIVE) || asks) && !restricts_nothing)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn map(value: &Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap()
    }

    #[rstest]
    #[case(json!({}), Some(false))]
    #[case(json!({"disabled": true}), Some(true))]
    #[case(json!({"disabled": "true"}), Some(true))]
    #[case(json!({"disabled": "True "}), Some(true))]
    #[case(json!({"disabled": false}), Some(false))]
    #[case(json!({"disabled": "false"}), Some(false))]
    #[case(json!({"disabled": null}), Some(false))]
    #[case(json!({"enabled": false}), Some(true))]
    #[case(json!({"enabled": "false"}), Some(true))]
    #[case(json!({"enabled": true}), Some(false))]
    #[case(json!({"enabled": true, "disabled": true}), Some(true))]
    #[case(json!({"enabled": false, "disabled": false}), Some(true))]
    #[case(json!({"isActive": false}), Some(true))]
    #[case(json!({"Disabled": true}), Some(true))]
    #[case(json!({"paused": true}), Some(true))]
    #[case(json!({"disabled": 1}), None)]
    #[case(json!({"disabled": "yes"}), None)]
    #[case(json!({"enabled": []}), None)]
    #[case(json!({"enabled": 0}), None)]
    fn switch_is_obeyed_or_refused(#[case] entry: Value, #[case] off: Option<bool>) {
        assert_eq!(is_switched_off(&map(&entry)).ok(), off);
    }

    #[rstest]
    #[case(json!({"approval": {"transfer": "ask"}}), "write it inside")]
    #[case(json!({"aproval": {"transfer": "ask"}}), "\"capstan\": {\"approval\"")]
    #[case(json!({"Replay": {"a": "read"}}), "\"capstan\": {\"replay\"")]
    #[case(json!({"trusted": true}), "write it inside")]
    #[case(json!({"undo": {}}), "write it inside")]
    #[case(json!({"roots": ["/"]}), "write it inside")]
    #[case(json!({"oauth": {}}), "write it inside")]
    #[case(json!({"perOwner": true}), "\"capstan\": {\"per_owner\"")]
    #[case(json!({"capstn": {}}), "did you mean \"capstan\"")]
    #[case(json!({"Capstan": {}}), "did you mean \"capstan\"")]
    #[case(json!({"disabeld": true}), "did you mean \"disabled\"")]
    #[case(json!({"includeTools": ["a"]}), "narrow")]
    #[case(json!({"includeTools": []}), "narrow")]
    #[case(json!({"excludeTools": ["a"]}), "narrow")]
    #[case(json!({"allowed_tools": ["a"]}), "narrow")]
    #[case(json!({"disabledTools": ["a"]}), "narrow")]
    #[case(json!({"excludeTools": ["*"]}), "narrow")]
    #[case(json!({"disabledTools": ["*"]}), "narrow")]
    #[case(json!({"disallowedTools": ["*"]}), "narrow")]
    #[case(json!({"forbiddenTools": ["*"]}), "narrow")]
    #[case(json!({"require_approval": ["*"]}), "narrow")]
    #[case(json!({"alwaysAsk": ["*"]}), "narrow")]
    #[case(json!({"askFor": ["*"]}), "narrow")]
    #[case(json!({"tools": ["a"]}), "narrow")]
    #[case(json!({"tools": {"a": false}}), "narrow")]
    #[case(json!({"require_approval": "always"}), "narrow")]
    #[case(json!({"alwaysAsk": ["a"]}), "narrow")]
    #[case(json!({"askFor": ["a"]}), "narrow")]
    #[case(json!({"readOnly": true}), "narrow")]
    #[case(json!({"permissions": {}}), "narrow")]
    #[case(json!({"sandboxEnabled": true}), "narrow")]
    #[case(json!({"status": "disabled"}), "narrow")]
    fn key_that_narrows_down_refuses_the_entry(#[case] entry: Value, #[case] reason: &str) {
        let error = check_entry(&map(&entry)).unwrap_err();
        let key = entry.as_object().unwrap().keys().next().unwrap();
        assert!(error.contains(reason) && error.contains(&format!("{key:?}")), "{error}");
    }

    #[rstest]
    #[case(json!({"command": "a", "args": [], "env": {}, "cwd": "/", "type": "stdio", "disabled": false, "capstan": {}}), &[])]
    #[case(json!({"description": "x", "gallery": true}), &["\"description\"", "\"gallery\""])]
    #[case(json!({"alwaysAllow": ["a"], "autoApprove": ["a"], "trust": true}), &["\"alwaysAllow\"", "\"autoApprove\"", "\"trust\""])]
    #[case(json!({"timeout": 60, "tool_timeout_sec": 5}), &["\"timeout\"", "\"tool_timeout_sec\""])]
    #[case(json!({"arg": ["x"]}), &["did you mean \"args\""])]
    #[case(json!({"auth": {"x": 1}}), &["\"auth\""])]
    #[case(json!({"disabledTools": [], "tools": ["*"], "excludeTools": null}), &["\"disabledTools\"", "\"excludeTools\"", "\"tools\""])]
    #[case(json!({"allowed_tools": ["*"], "includeTools": ["*"]}), &["\"allowed_tools\"", "\"includeTools\""])]
    fn harmless_unknown_key_is_reported(#[case] entry: Value, #[case] warnings: &[&str]) {
        let mut found = check_entry(&map(&entry)).unwrap();
        found.sort();
        assert_eq!(found.len(), warnings.len(), "{found:?}");
        assert!(found.iter().zip(warnings).all(|(found, warnings)| found.contains(warnings)), "{found:?}");
    }

    #[test]
    fn unknown_top_level_key_warns_or_is_refused() {
        let warnings = check_document(&map(&json!({"mcpServers": {}, "$schema": "x", "mcpServer": {}, "theme": 1}))).unwrap();
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings.iter().any(|warnings| warnings.contains("did you mean \"mcpServers\"")), "{warnings:?}");
        for key in ["approval", "capstan", "disabled", "trusted"] {
            assert!(check_document(&map(&json!({"mcpServers": {}, key: {}}))).unwrap_err().contains(key));
        }
    }

    #[test]
    fn unknown_key_of_capstan_gets_a_hint() {
        assert!(hint_inside_capstan("aproval").contains("capstan.approval"));
        assert!(hint_inside_capstan("disabled").contains("beside"));
        assert_eq!(hint_inside_capstan("gallery"), "");
    }
}
