//! User servers: splits an entry into a visible part and encrypted secrets, and limits the entries of members. Must not know the database.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value};

use crate::domain::ids::{McpServerId, UserId};
use crate::domain::tool::ApprovalMode;
use crate::support::net::egress::{self, EgressScope};
use crate::support::variable_expansion::{expand, variable_name};
use crate::tools::mcp::config::arguments::{self, SecretArgument};
use crate::tools::mcp::config::{foreign_formats, is_home, read, unknown_keys};
use crate::tools::mcp::oauth::Tokens;
use crate::tools::mcp::process::HOME;
use crate::tools::mcp::{ServerConfig, ServerTransport};

/// The stored fields of an entry. Other fields belong to other programs and may contain secrets.
const FIELDS: [&str; 10] = ["type", "transport", "image", "command", "args", "env", "cwd", "url", "headers", "capstan"];

/// The largest entry, and the largest secrets of one entry, in bytes of JSON.
const MAX_BYTES: usize = 64 * 1024;

/// The secrets of an entry, by the names of their placeholders.
pub type Secrets = BTreeMap<String, String>;

#[derive(Clone)]
pub struct UserServer {
    pub id: McpServerId,
    /// The owner; `None` for a server of all users.
    pub owner: Option<UserId>,
    pub name: String,
    /// The entry, or the reason why it is invalid.
    pub config: Result<ServerConfig, String>,
    /// Incremented by each change. Connections with an older revision are replaced.
    pub revision: i64,
}

#[async_trait]
pub trait UserServerSource: Send + Sync {
    /// Returns the enabled servers of `owner` and of all users, by name. The result may be a second old, but is not older than the last
    /// [`UserServerSource::clear_cache`].
    async fn of_owner(&self, owner: &UserId) -> Result<Vec<UserServer>, String>;

    /// Returns the current state of those servers among `ids` that are enabled.
    async fn by_ids(&self, ids: &[McpServerId]) -> Result<Vec<UserServer>, String>;

    /// Drops cached servers.
    fn clear_cache(&self);

    /// Returns the store of login tokens, if there is one.
    fn tokens(&self) -> Option<Arc<dyn Tokens>> {
        None
    }
}

/// The limits of members' servers.
#[derive(Debug, Clone, Copy)]
pub struct MemberRules {
    /// Whether they may be commands, which run with the rights of this process, or containers.
    pub commands: bool,
    pub egress: EgressScope,
}

impl MemberRules {
    /// Applies the limits to an entry, or returns which limit it exceeds. `EgressScope::Anywhere` marks the entry of an
    /// administrator, which has no limits.
    pub fn apply(&self, mut config: ServerConfig, egress: EgressScope) -> Result<ServerConfig, String> {
        if egress == EgressScope::Anywhere {
            return Ok(config);
        }
        config.of_member = true;
        match &mut config.transport {
            ServerTransport::Http { url, egress, .. } => {
                *egress = self.egress;
                let parsed_url = reqwest::Url::parse(url).map_err(|error| format!("url: {error}"))?;
                egress::check(&parsed_url, self.egress).map_err(|error| format!("url: {error}"))?;
            }
            ServerTransport::Stdio { .. } | ServerTransport::Container { .. } if self.commands => {}
            ServerTransport::Stdio { .. } | ServerTransport::Container { .. } => {
                return Err(
                    "only an administrator may use commands and containers, unless the setting mcp.allow_user_commands is on"
                        .to_owned(),
                );
            }
        }
        if !config.roots.is_empty() && !self.commands {
            return Err(
                "only an administrator may set capstan.roots, unless the setting mcp.allow_user_commands is on: it names folders of this host"
                    .to_owned(),
            );
        }
        if config.trusted {
            return Err("only an administrator may set capstan.trusted".to_owned());
        }
        match config.approval.iter().find(|(_, mode)| **mode == ApprovalMode::Auto) {
            Some((tool, _)) => Err(format!("capstan.approval.{tool}: only an administrator may set auto")),
            None => Ok(config),
        }
    }
}

/// An entry without its secrets.
#[derive(Debug, PartialEq)]
pub struct SplitEntry {
    /// The entry, with the placeholder `${NAME}` for each secret.
    pub entry: Map<String, Value>,
    pub secrets: Secrets,
    pub warnings: Vec<String>,
}

/// Splits an entry. Secrets are all values of `env` and `headers`, arguments and URL parameters with the name of a secret, the
/// OAuth client secret, and all variables. `lookup` returns the values of variables.
pub fn part(entry: &Map<String, Value>, lookup: &dyn Fn(&str) -> Option<String>) -> Result<SplitEntry, String> {
    let entry = &foreign_formats::canonical(entry)?;
    unknown_keys::check_entry(entry)?;
    // The start of the server replaces this variable, so it stays.
    let lookup = &|name: &str| if is_home(name) { Some(HOME.to_owned()) } else { lookup(name) };
    let mut parting = EntrySplitter { lookup, secrets: Secrets::new(), unknown: unknown(entry, lookup) };
    let mut parted = Map::new();
    for field in FIELDS {
        let Some(value) = entry.get(field) else { continue };
        let value = match (field, value) {
            ("env" | "headers", Value::Object(values)) => {
                let values: Result<Map<_, _>, String> =
                    values.iter().map(|(name, value)| parting.named(field, name, value)).collect();
                Value::Object(values?)
            }
            ("args", Value::Array(args)) => Value::Array(parting.arguments(args)?),
            ("url", Value::String(url)) => Value::String(parting.url(url)?),
            ("capstan", Value::Object(extra)) => Value::Object(parting.extra(extra)?),
            ("command" | "cwd", Value::String(text)) => Value::String(parting.text(field, text)?),
            // A value of a wrong type, which `read_kept` reports, or a value without variables.
            (_, value) => value.clone(),
        };
        parted.insert(field.to_owned(), value);
    }
    let EntrySplitter { secrets, .. } = parting;
    let parted = Value::Object(parted);
    let warnings = unknown_keys::warnings(entry, &read_kept(&parted, &secrets)?.transport);
    let secrets_text = serde_json::to_string(&secrets).map_err(|error| error.to_string())?;
    if parted.to_string().len() > MAX_BYTES || secrets_text.len() > MAX_BYTES {
        return Err(format!("the entry or its secrets have more than {MAX_BYTES} bytes"));
    }
    let Value::Object(entry) = parted else { return Err("the entry must be an object".to_owned()) };
    Ok(SplitEntry { entry, secrets, warnings })
}

/// Parses a split entry. It never uses the environment of this process.
pub fn read_kept(entry: &Value, secrets: &Secrets) -> Result<ServerConfig, String> {
    read(entry, &|name| secrets.get(name).cloned())
}

/// Returns the variables without a value: their defaults apply at each read.
fn unknown(entry: &Map<String, Value>, lookup: &dyn Fn(&str) -> Option<String>) -> BTreeSet<String> {
    let texts: String = FIELDS.iter().filter_map(|field| entry.get(*field)).map(Value::to_string).collect();
    let names = texts.split("${").skip(1).filter_map(|rest| variable_name(rest).split(['}', ':']).next());
    names.filter(|name| lookup(name).is_none()).map(str::to_owned).collect()
}

struct EntrySplitter<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    secrets: Secrets,
    /// Names that must not become placeholders.
    unknown: BTreeSet<String>,
}

impl EntrySplitter<'_> {
    /// Splits a value of `env` or `headers`.
    fn named(&mut self, field: &str, name: &str, value: &Value) -> Result<(String, Value), String> {
        let text = value.as_str().ok_or_else(|| format!("{field}.{name} must be text"))?;
        let value = expand(text, self.lookup).map_err(|error| format!("{field}.{name}: {error}; set it in variables"))?;
        Ok((name.to_owned(), Value::String(self.put(name, value))))
    }

    /// Splits the `capstan` object, which may contain a client secret.
    fn extra(&mut self, extra: &Map<String, Value>) -> Result<Map<String, Value>, String> {
        let mut extra = extra.clone();
        if let Some(secret) = extra.get_mut("oauth").and_then(|oauth| oauth.get_mut("client_secret")) {
            *secret = self.named("capstan.oauth", "client_secret", secret)?.1;
        }
        Ok(extra)
    }

    /// Splits a text in which only the variables are secret.
    fn text(&mut self, field: &str, text: &str) -> Result<String, String> {
        let (lookup, secrets) = (self.lookup, &mut self.secrets);
        let known = |name: &str| {
            let value = lookup(name)?;
            if !is_home(name) {
                secrets.insert(name.to_owned(), value.clone());
            }
            Some(value)
        };
        expand(text, known).map_err(|error| format!("{field}: {error}; set it in variables"))?;
        Ok(text.to_owned())
    }

    /// Splits arguments by [`arguments::secrets`] and by variables.
    fn arguments(&mut self, args: &[Value]) -> Result<Vec<Value>, String> {
        let texts: Option<Vec<&str>> = args.iter().map(Value::as_str).collect();
        let texts = texts.ok_or("args must be a list of texts")?;
        let found = arguments::secrets(&texts);
        let parted = texts.into_iter().zip(found).map(|(text, found)| {
            self.text("args", text)?;
            Ok(Value::String(self.without(text, found)))
        });
        parted.collect()
    }

    /// Replaces the secrets that were found in a text. A secret that contains a variable is stored as that variable.
    fn without(&mut self, text: &str, found: Vec<SecretArgument<'_>>) -> String {
        let mut left = text.to_owned();
        // From the right, so that the other ranges stay valid.
        for SecretArgument { name, at } in found.into_iter().rev().filter(|found| !text[found.at.clone()].contains("${")) {
            let secret = self.put(name, text[at.clone()].to_owned());
            left.replace_range(at, &secret);
        }
        left
    }

    /// Splits a URL by its secret parameters. Fails for a URL with a user or password.
    fn url(&mut self, url: &str) -> Result<String, String> {
        let url = self.text("url", url)?;
        let authority = url.split_once("://").map_or("", |(_, rest)| rest.split(['/', '?', '#']).next().unwrap_or_default());
        if authority.contains('@') {
            return Err("url must not contain a user or password: use headers".to_owned());
        }
        Ok(self.without(&url, arguments::in_address(&url)))
    }

    /// Stores a secret and returns its placeholder. One name never stands for two secrets.
    fn put(&mut self, name: &str, secret: String) -> String {
        let clean: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
        let clean = match clean.trim_matches('_') {
            "" => "SECRET",
            clean => clean,
        };
        let mut names = std::iter::once(clean.to_owned()).chain((2..).map(|n: u32| format!("{clean}_{n}")));
        let is_free = |name: &String| {
            let is_ours = self.secrets.get(name).is_none_or(|known| *known == secret);
            is_ours && !self.unknown.contains(name) && (self.lookup)(name).is_none_or(|known| known == secret)
        };
        let name = names.find(is_free).unwrap_or_default();
        self.secrets.insert(name.clone(), secret);
        format!("${{{name}}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use secrecy::ExposeSecret as _;
    use serde_json::json;

    fn parted(entry: &Value, lookup: &[(&str, &str)]) -> Result<SplitEntry, String> {
        let lookup: BTreeMap<String, String> =
            lookup.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        part(entry.as_object().unwrap(), &|name| lookup.get(name).cloned())
    }

    fn secrets(parted: &SplitEntry) -> Value {
        serde_json::to_value(&parted.secrets).unwrap()
    }

    #[test]
    fn no_secret_stays_in_an_entry() {
        let entry = json!({
            "command": "npx", "args": ["-y", "pkg", "--api-key", "K1", "--token=K2", "-H", "Authorization: Bearer K3", "--root", "/srv",
                "--db=${DB}", "--mode=${MODE:-fast}", "--env=PW_KEY=K9", "pg://ada:KA@${DB}"],
            "env": {"KEY": "K4", "MODE": "${LEVEL} ${MODE:-x}"}, "autoApprove": ["K5"], "disabled": true,
        });
        let done = parted(&entry, &[("DB", "K6"), ("LEVEL", "K7"), ("UNUSED", "K8")]).unwrap();
        let expected = json!({
            "command": "npx", "args": ["-y", "pkg", "--api-key", "${API_KEY}", "--token=${TOKEN}", "-H", "Authorization: ${AUTHORIZATION}",
                "--root", "/srv", "--db=${DB}", "--mode=${MODE:-fast}", "--env=PW_KEY=${PW_KEY}", "pg://ada:${PASSWORD}@${DB}"],
            // The default of the argument must still apply.
            "env": {"KEY": "${KEY}", "MODE": "${MODE_2}"},
        });
        assert_eq!(Value::Object(done.entry.clone()), expected);
        let shown = Value::Object(done.entry.clone()).to_string();
        assert!(!(1..=10).any(|n| shown.contains(&format!("K{n:X}"))), "{shown}");
        let config = read_kept(&Value::Object(done.entry.clone()), &done.secrets).unwrap();
        let ServerTransport::Stdio { args, env, .. } = &config.transport else { panic!("not stdio") };
        assert_eq!(args[3..5], ["K1", "--token=K2"]);
        assert_eq!((args[6].as_str(), env["MODE"].expose_secret()), ("Authorization: Bearer K3", "K7 x"));

        let web = json!({"url": "https://h", "capstan": {"trusted": true, "oauth": {"client_id": "c", "client_secret": "K1"}}});
        let done = parted(&web, &[]).unwrap();
        let shown = json!({"url": "https://h", "capstan": {"trusted": true, "oauth": {"client_id": "c", "client_secret": "${CLIENT_SECRET}"}}});
        assert_eq!((Value::Object(done.entry.clone()), secrets(&done)), (shown, json!({"CLIENT_SECRET": "K1"})));

        let web = json!({"url": "https://h/mcp?profile=a&api_key=K1", "headers": {"Authorization": "Bearer ${T}", "X-T": "t"}});
        let done = parted(&web, &[("T", "K2")]).unwrap();
        let shown = json!({"url": "https://h/mcp?profile=a&api_key=${API_KEY}",
            "headers": {"Authorization": "${AUTHORIZATION}", "X-T": "${X_T}"}});
        assert_eq!(Value::Object(done.entry.clone()), shown);
        assert_eq!(secrets(&done), json!({"API_KEY": "K1", "AUTHORIZATION": "Bearer K2", "X_T": "t"}));
    }

    #[test]
    fn the_folder_of_a_server_is_no_secret() {
        let entry = json!({"command": "a", "args": ["${server.home}/a"], "env": {"FILE": "${server.home}/${NAME}"}});
        let done = parted(&entry, &[("NAME", "b"), ("server.home", "/elsewhere")]).unwrap();
        assert_eq!(secrets(&done), json!({"FILE": "${server.home}/b"}));
        let config = read_kept(&Value::Object(done.entry.clone()), &done.secrets).unwrap();
        let ServerTransport::Stdio { args, env, .. } = &config.transport else { panic!("not stdio") };
        assert_eq!((args[0].as_str(), env["FILE"].expose_secret()), ("${server.home}/a", "${server.home}/b"));
        let names: Vec<(&str, &str)> = done.secrets.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(parted(&Value::Object(done.entry.clone()), &names).unwrap(), done);
    }

    #[test]
    fn user_server_entry_splits_into_secrets_repeatedly() {
        let entry =
            json!({"url": "https://h/${PATH_KEY}/mcp?token=K1", "headers": {"Authorization": "Bearer K2", "authorization_": "K3"}});
        let first = parted(&entry, &[("PATH_KEY", "K4")]).unwrap();
        let secrets: Vec<(&str, &str)> = first.secrets.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(parted(&Value::Object(first.entry.clone()), &secrets).unwrap(), first);
        assert!(first.secrets.contains_key("AUTHORIZATION_2"), "two that are cleaned to one name: {first:?}");
    }

    #[rstest]
    #[case(json!({"command": "a", "env": {"X": "${MISSING}"}}), "env.X: the variable MISSING is not set; set it in variables")]
    #[case(json!({"command": "a", "args": ["${MISSING}"]}), "args: the variable MISSING")]
    #[case(json!({"url": "https://user:pass@host"}), "user or password")]
    #[case(json!({"command": "a", "env": {"X": 5}}), "env.X must be text")]
    #[case(json!({"command": "a", "env": ["X"]}), "env must be an object")]
    #[case(json!({"args": []}), "no command, url or image")]
    #[case(json!({"command": "a", "args": ["x".repeat(MAX_BYTES)]}), "more than")]
    fn entries_that_cannot_be_used_are_refused(#[case] entry: Value, #[case] reason: &str) {
        let error = parted(&entry, &[]).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }

    #[test]
    fn members_may_not_say_everything() {
        let rules = MemberRules { commands: false, egress: EgressScope::Public };
        let config = |entry: Value| read_kept(&entry, &Secrets::new()).unwrap();
        let stdio = json!({"command": "sh"});
        assert!(rules.apply(config(stdio.clone()), EgressScope::Anywhere).is_ok());
        assert!(rules.apply(config(stdio.clone()), EgressScope::Public).is_err());
        let lenient = MemberRules { commands: true, ..rules };
        assert!(lenient.apply(config(stdio), EgressScope::Public).is_ok());
        let url = "https://h/mcp";
        let web = rules.apply(config(json!({"url": url})), EgressScope::Public).ok().unwrap();
        assert!(matches!(web.transport, ServerTransport::Http { egress: EgressScope::Public, .. }));
        assert!(web.of_member && !rules.apply(config(json!({"url": url})), EgressScope::Anywhere).ok().unwrap().of_member);
        let rooted = || config(json!({"url": url, "capstan": {"roots": ["/data"]}}));
        assert!(rules.apply(rooted(), EgressScope::Public).err().unwrap().contains("capstan.roots"));
        assert!(lenient.apply(rooted(), EgressScope::Public).is_ok());
        assert!(rules.apply(rooted(), EgressScope::Anywhere).is_ok());
        for capstan in [json!({"trusted": true}), json!({"approval": {"t": "auto"}})] {
            let entry = json!({"url": url, "capstan": capstan});
            assert!(rules.apply(config(entry.clone()), EgressScope::Public).is_err());
            assert!(rules.apply(config(entry), EgressScope::Anywhere).is_ok());
        }
        assert!(rules.apply(config(json!({"url": url, "capstan": {"approval": {"t": "ask"}}})), EgressScope::Public).is_ok());
    }
}
