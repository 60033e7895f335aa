//! Parses the standard `{"mcpServers": {...}}` document, with Capstan's own fields under `"capstan"`. Must not know connections.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Component, Path};
use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Map, Value, json};

use crate::domain::ids::{McpServerId, UserId};
use crate::domain::run::UndoRule;
use crate::domain::tool::tool_name_check::check_no_pattern;
use crate::domain::tool::{ApprovalMode, ReplayClass};
use crate::support::json as stable;
use crate::support::json::duplicate_key;
use crate::support::net::egress::EgressScope;
use crate::support::variable_expansion::expand;
use crate::tools::mcp::calls::sampling::SamplingRules;
use crate::tools::mcp::config::redaction::SecretRedactor;
use crate::tools::mcp::oauth::OAuthEntry;
use crate::tools::mcp::process::HOME;
use crate::tools::mcp::process::container::Container;

pub(super) mod arguments;
pub(super) mod encoded_secrets;
pub(super) mod foreign_formats;
pub(super) mod redaction;
pub(super) mod unknown_keys;
pub(super) mod user_servers;

const DEFAULT_CONCURRENCY: usize = 4;
/// The default for a server that may ask questions, because a question does not name its call.
const CONCURRENCY_OF_ASKERS: usize = 1;
const MAX_ROOTS: usize = 32;
/// The longest path of a root, in bytes.
const MAX_ROOT: usize = 4_096;
/// The longest time limit of a call.
const LONGEST: Duration = Duration::from_secs(24 * 3_600);

#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// How long an unused connection stays open; `None` for no limit.
    pub idle: Option<Duration>,
    /// The most processes of servers at a time, containers included; `None` for no limit.
    pub processes: Option<usize>,
    /// The time limit from a server's start to its list of tools.
    pub start: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self { idle: Some(Duration::from_secs(1_800)), processes: Some(100), start: Duration::from_secs(60) }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum McpConfigError {
    #[error("the MCP configuration is not valid JSON: {0}")]
    Syntax(#[from] serde_json::Error),
    #[error("the MCP configuration has no object \"mcpServers\" (or \"servers\", as in VS Code)")]
    NoServers,
    #[error("the MCP configuration has the key {0:?} twice in one object: keep one of them")]
    Duplicate(String),
    #[error("the MCP configuration: {0}")]
    Misplaced(String),
}

/// All configured servers that are not disabled.
#[derive(Default)]
pub struct McpConfig {
    /// Each server by name, or the reason why its entry is invalid.
    pub servers: BTreeMap<String, Result<ServerConfig, String>>,
    pub warnings: Vec<McpWarning>,
}

/// A part of a document that has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpWarning {
    /// The entry; `None` for the document itself.
    pub entry: Option<String>,
    pub text: String,
}

/// The configuration of one server. The maps have the tool's name at the server as key.
#[derive(Clone)]
pub struct ServerConfig {
    pub transport: ServerTransport,
    /// The secrets of its entry.
    pub redactor: SecretRedactor,
    /// Whether the annotations of its tools are trusted.
    pub trusted: bool,
    /// Whether it is a user server of a member, who has also chosen its name.
    pub of_member: bool,
    pub approval: BTreeMap<String, ApprovalMode>,
    pub replay: BTreeMap<String, ReplayClass>,
    pub undo: BTreeMap<String, UndoRule>,
    pub preview: BTreeMap<String, String>,
    /// The time limit of its calls, which overrides the agent's.
    pub timeout: Option<Duration>,
    /// The longest time of a call with progress; `None` for ten times its limit.
    pub max_timeout: Option<Duration>,
    pub concurrency: usize,
    /// Whether it may ask the user. Each owner then has a separate connection.
    pub elicitation: bool,
    /// The limits of its sampling requests, if it may make any. Each owner then has a separate connection.
    pub sampling: Option<SamplingRules>,
    /// The roots, as `file:` URIs.
    pub roots: Arc<[String]>,
    /// Whether all owners share one connection or process.
    pub shared: bool,
}

impl ServerConfig {
    /// Returns whether it may ask a user or a model during a call.
    pub fn may_ask(&self) -> bool {
        self.elicitation || self.sampling.is_some()
    }

    /// Returns the tools that the entry names, each with the key of its rule.
    pub fn named_tools(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let undoing = self.undo.iter().flat_map(|(tool, rule)| [("undo", tool), ("undo", &rule.tool)]);
        let reconciling = self.replay.values().filter_map(|class| {
            let ReplayClass::Reconcile { tool } = class else { return None };
            Some(("replay", tool))
        });
        let approval = self.approval.keys().map(|tool| ("approval", tool));
        let replay = self.replay.keys().map(|tool| ("replay", tool));
        let preview = self.preview.keys().map(|tool| ("preview", tool));
        approval.chain(replay).chain(preview).chain(undoing).chain(reconciling).map(|(key, tool)| (key, tool.as_str()))
    }
}

/// How a server is reached. Values that are often secrets are wrapped in `SecretString`.
#[derive(Clone)]
pub enum ServerTransport {
    /// A child process, over its standard streams.
    Stdio {
        /// The program, looked up in `PATH`.
        command: String,
        args: Vec<String>,
        /// Its environment, beside the few variables that every child gets.
        env: BTreeMap<String, SecretString>,
        /// The working directory; `None` for a folder of its own.
        cwd: Option<String>,
    },
    /// A container, over the standard streams of its first process.
    Container {
        container: Container,
        /// The program in it; `None` for the image's own.
        command: Option<String>,
        args: Vec<String>,
        /// Its environment, beside the image's.
        env: BTreeMap<String, SecretString>,
    },
    Http {
        url: String,
        headers: BTreeMap<String, SecretString>,
        oauth: OAuthEntry,
        style: HttpStyle,
        egress: EgressScope,
    },
}

impl ServerTransport {
    /// Returns the hash of its destination: the endpoint without parameters, or the program or image with its arguments.
    pub fn destination(&self) -> String {
        let destination = match self {
            Self::Stdio { command, args, .. } => json!(["command", command, args]),
            Self::Container { container, command, args, .. } => json!(["container", container.image, command, args]),
            Self::Http { url, .. } => json!(["url", url.split(['?', '#']).next()]),
        };
        stable::hash(&destination)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpStyle {
    /// Streamable HTTP, of 2025-03-26 and later.
    Streamable,
    /// SSE, of 2024-11-05.
    Sse,
    /// Not configured: Streamable HTTP, or SSE if the server does not support it.
    Either,
}

impl McpConfig {
    /// Parses a document, which may have comments and trailing commas. `lookup` returns the values of `${VAR}` and
    /// `${VAR:-default}` in commands, arguments, variables, folders, URLs and headers. An invalid entry does not affect other
    /// servers.
    pub fn parse(document: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self, McpConfigError> {
        let document = foreign_formats::plain_json(document);
        if let Some(key) = duplicate_key(&document) {
            return Err(McpConfigError::Duplicate(key));
        }
        let document: Value = serde_json::from_str(&document)?;
        let document = document.as_object().ok_or(McpConfigError::NoServers)?;
        let found_warnings = unknown_keys::check_document(document).map_err(McpConfigError::Misplaced)?;
        let entries =
            document.get(foreign_formats::servers_key(document)).and_then(Value::as_object).ok_or(McpConfigError::NoServers)?;
        let mut config = Self {
            servers: BTreeMap::new(),
            warnings: found_warnings.into_iter().map(|text| McpWarning { entry: None, text }).collect(),
        };
        for (name, entry) in entries {
            let entry = as_object(entry, "the entry").and_then(foreign_formats::canonical);
            let server = match entry.as_ref().map_err(Clone::clone).and_then(unknown_keys::is_switched_off) {
                Ok(true) => continue,
                // The frozen key of an operator server is its name, and that of a user server its id.
                Ok(false) if McpServerId::parse(name).is_ok() => Err("the name looks like an id: choose another one".to_owned()),
                Ok(false) => entry.clone().and_then(|entry| read(&Value::Object(entry), lookup)),
                Err(reason) => Err(reason),
            };
            if let (Ok(server), Ok(entry)) = (&server, &entry) {
                let found_warnings = unknown_keys::warnings(entry, &server.transport);
                config.warnings.extend(found_warnings.into_iter().map(|text| McpWarning { entry: Some(name.clone()), text }));
            }
            config.servers.insert(name.clone(), server);
        }
        Ok(config)
    }
}

/// Parses one entry. `lookup` returns the values of variables.
pub fn read(entry: &Value, lookup: &dyn Fn(&str) -> Option<String>) -> Result<ServerConfig, String> {
    Entry { lookup, redactor: RefCell::default() }.server(entry)
}

struct Entry<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    /// The secrets found so far.
    redactor: RefCell<SecretRedactor>,
}

impl Entry<'_> {
    fn server(&self, entry: &Value) -> Result<ServerConfig, String> {
        let entry = as_object(entry, "the entry")?;
        unknown_keys::check_entry(entry)?;
        let empty = Map::new();
        let capstan = entry.get("capstan").map_or(Ok(&empty), |extra| as_object(extra, "capstan"));
        let mut server = ServerConfig {
            transport: self.transport(entry)?,
            redactor: self.redactor.take(),
            trusted: false,
            of_member: false,
            approval: BTreeMap::new(),
            replay: BTreeMap::new(),
            undo: BTreeMap::new(),
            preview: BTreeMap::new(),
            timeout: None,
            max_timeout: None,
            concurrency: DEFAULT_CONCURRENCY,
            elicitation: false,
            sampling: None,
            roots: self.roots(capstan_value(entry, "roots"))?,
            shared: false,
        };
        read_capstan(capstan?, &mut server)?;
        Ok(server)
    }

    fn transport(&self, entry: &Map<String, Value>) -> Result<ServerTransport, String> {
        let setting = capstan_value(entry, "container").filter(|setting| **setting != Value::Bool(false));
        if entry.contains_key("image") || setting.is_some() {
            return self.container(entry, setting);
        }
        match (entry.get("command"), entry.get("url")) {
            (Some(command), None) => Ok(ServerTransport::Stdio {
                command: self.text(command, "command")?,
                args: self.arguments(entry.get("args"))?,
                env: self.secrets(entry.get("env"), "env")?,
                cwd: entry.get("cwd").map(|cwd| self.text(cwd, "cwd")).transpose()?,
            }),
            (None, Some(url)) => {
                let style = match entry.get("type").or_else(|| entry.get("transport")).and_then(Value::as_str) {
                    None => HttpStyle::Either,
                    Some("sse") => HttpStyle::Sse,
                    Some(_) => HttpStyle::Streamable,
                };
                let url = self.text(url, "url")?;
                if !url.starts_with("http://") && !url.starts_with("https://") {
                    return Err("url must begin with http:// or https://".to_owned());
                }
                let headers = self.secrets(entry.get("headers"), "headers")?;
                let oauth = self.oauth(capstan_value(entry, "oauth"))?;
                Ok(ServerTransport::Http { url, headers, oauth, style, egress: EgressScope::Anywhere })
            }
            (Some(_), Some(_)) => Err("the entry has both command and url: keep one of them".to_owned()),
            (None, None) => Err("the entry has no command, url or image".to_owned()),
        }
    }

    fn oauth(&self, setting: Option<&Value>) -> Result<OAuthEntry, String> {
        let mut oauth = OAuthEntry::default();
        let Some(setting) = setting else { return Ok(oauth) };
        for (key, value) in as_object(setting, "capstan.oauth")? {
            match key.as_str() {
                "client_id" => oauth.client_id = Some(self.text(value, "capstan.oauth.client_id")?),
                "issuer" => oauth.issuer = Some(self.text(value, "capstan.oauth.issuer")?),
                "client_secret" => {
                    let secret = self.text(value, "capstan.oauth.client_secret")?;
                    self.redactor.borrow_mut().add("client_secret", &secret);
                    oauth.client_secret = Some(SecretString::from(secret));
                }
                "scopes" => {
                    let scopes = value.as_array().map(|scopes| scopes.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
                    let scopes = scopes.flatten().filter(|scopes| scopes.iter().all(|scope| is_scope(scope)));
                    let scopes = scopes.ok_or("capstan.oauth.scopes must be a list of texts without spaces")?;
                    oauth.scopes = Some(scopes.into_iter().map(str::to_owned).collect());
                }
                unknown => return Err(format!("capstan.oauth.{unknown} is unknown")),
            }
        }
        if oauth.client_secret.is_some() && oauth.client_id.is_none() {
            return Err("capstan.oauth.client_secret needs a client_id".to_owned());
        }
        Ok(oauth)
    }

    fn roots(&self, setting: Option<&Value>) -> Result<Arc<[String]>, String> {
        let wrong = || format!("capstan.roots must be a list of at most {MAX_ROOTS} absolute folders, without ..");
        let Some(setting) = setting else { return Ok(Arc::default()) };
        let folders = setting.as_array().filter(|folders| folders.len() <= MAX_ROOTS).ok_or_else(wrong)?;
        let uri = |folder: &Value| {
            let folder = self.text(folder, "capstan.roots")?;
            let climbs = Path::new(&folder).components().any(|part| part == Component::ParentDir);
            // Fails for a relative path.
            let uri = reqwest::Url::from_file_path(&folder).ok().filter(|_| !climbs && folder.len() <= MAX_ROOT);
            uri.map(String::from).ok_or_else(wrong)
        };
        folders.iter().map(uri).collect()
    }

    fn container(&self, entry: &Map<String, Value>, setting: Option<&Value>) -> Result<ServerTransport, String> {
        if let Some(key) = ["url", "cwd"].into_iter().find(|key| entry.contains_key(*key)) {
            return Err(format!("an entry of a container has no {key}"));
        }
        let image = entry.get("image").map(|image| self.text(image, "image")).transpose()?;
        let (args, env) = (self.arguments(entry.get("args"))?, self.secrets(entry.get("env"), "env")?);
        if args.iter().any(|arg| arg.contains(HOME)) || env.values().any(|value| value.expose_secret().contains(HOME)) {
            return Err(format!("{HOME} is a folder of this machine, which does not exist in a container"));
        }
        Ok(ServerTransport::Container {
            container: Container::read(setting, image)?,
            command: entry.get("command").map(|command| self.text(command, "command")).transpose()?,
            args,
            env,
        })
    }

    fn arguments(&self, value: Option<&Value>) -> Result<Vec<String>, String> {
        let args = match value {
            None => Vec::new(),
            Some(Value::Array(args)) => args.iter().map(|arg| self.text(arg, "args")).collect::<Result<_, _>>()?,
            Some(_) => return Err("args must be a list of texts".to_owned()),
        };
        self.redactor.borrow_mut().add_arguments(&args);
        Ok(args)
    }

    fn text(&self, value: &Value, key: &str) -> Result<String, String> {
        let text = value.as_str().ok_or_else(|| format!("{key} must be text"))?;
        let expanded = expand(text, |name| {
            if is_home(name) {
                return Some(HOME.to_owned());
            }
            let value = (self.lookup)(name)?;
            // Values of the environment are often secrets, in every field.
            self.redactor.borrow_mut().add(name, &value);
            Some(value)
        });
        expanded.map_err(|error| format!("{key}: {error}"))
    }

    fn secrets(&self, value: Option<&Value>, key: &str) -> Result<BTreeMap<String, SecretString>, String> {
        let Some(value) = value else { return Ok(BTreeMap::new()) };
        as_object(value, key)?
            .iter()
            .map(|(name, value)| {
                let value = self.text(value, &format!("{key}.{name}"))?;
                self.redactor.borrow_mut().add(name, &value);
                Ok((name.clone(), SecretString::from(value)))
            })
            .collect()
    }
}

/// Returns whether a variable is the placeholder of the server's folder, which is known only at its start.
pub fn is_home(name: &str) -> bool {
    HOME.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')) == Some(name)
}

/// Returns a value of the `capstan` object of an entry.
fn capstan_value<'a>(entry: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    entry.get("capstan")?.get(key)
}

fn as_object<'a>(value: &'a Value, name: &str) -> Result<&'a Map<String, Value>, String> {
    value.as_object().ok_or_else(|| format!("{name} must be an object"))
}

/// Returns whether a text is a valid scope (RFC 6749, section 3.3).
fn is_scope(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\'))
}

fn read_capstan(extra: &Map<String, Value>, server: &mut ServerConfig) -> Result<(), String> {
    for (key, value) in extra {
        match key.as_str() {
            "trusted" => server.trusted = flag(key, value)?,
            "approval" => server.approval = by_tool(key, value, approval)?,
            "replay" => server.replay = by_tool(key, value, replay)?,
            "undo" => server.undo = by_tool(key, value, undo)?,
            "preview" => server.preview = by_tool(key, value, preview)?,
            "elicitation" => server.elicitation = flag(key, value)?,
            "sampling" => server.sampling = SamplingRules::read(value)?,
            "shared" => server.shared = flag(key, value)?,
            // The older key, from versions in which servers were shared by default.
            "per_owner" if extra.contains_key("shared") => {
                return Err("capstan.per_owner and capstan.shared have the same meaning: keep shared".to_owned());
            }
            "per_owner" => server.shared = !flag(key, value)?,
            "timeout" => server.timeout = Some(duration(key, value)?),
            "max_timeout" => server.max_timeout = Some(duration(key, value)?),
            "concurrency" => {
                let concurrency = value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| (1..=256).contains(n));
                server.concurrency = concurrency.ok_or("capstan.concurrency must be an integer from 1 to 256")?;
            }
            "oauth" if !matches!(server.transport, ServerTransport::Http { .. }) => {
                return Err("capstan.oauth is for servers with a url".to_owned());
            }
            // Read with the rest of the entry, because they may contain variables.
            "container" | "oauth" | "roots" => {}
            unknown => return Err(format!("capstan.{unknown} is unknown{}", unknown_keys::hint_inside_capstan(unknown))),
        }
    }
    // A rule for a pattern would match no tool, and protect none.
    for (key, tool) in server.named_tools() {
        check_no_pattern(tool).map_err(|reason| format!("capstan.{key}: {reason}"))?;
    }
    if server.may_ask() && !extra.contains_key("concurrency") {
        server.concurrency = CONCURRENCY_OF_ASKERS;
    }
    if server.may_ask() && server.shared {
        if extra.contains_key("shared") {
            let setting = if server.elicitation { "elicitation" } else { "sampling" };
            return Err(format!(
                "a server with capstan.{setting} cannot be capstan.shared: a question does not name its call, so its owner would be unknown"
            ));
        }
        server.shared = false;
    }
    Ok(())
}

/// Parses an object with names of tools as keys.
fn by_tool<T>(key: &str, value: &Value, read: impl Fn(&str, &Value) -> Result<T, String>) -> Result<BTreeMap<String, T>, String> {
    let rules = as_object(value, &format!("capstan.{key}"))?;
    rules.iter().map(|(tool, rule)| Ok((tool.clone(), read(tool, rule)?))).collect()
}

fn flag(key: &str, value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| format!("capstan.{key} must be true or false"))
}

fn approval(tool: &str, word: &Value) -> Result<ApprovalMode, String> {
    let mode = word.as_str().and_then(|word| serde_json::from_value(word.into()).ok());
    mode.ok_or_else(|| format!("capstan.approval.{tool} must be auto, ask or always_ask"))
}

fn replay(tool: &str, word: &Value) -> Result<ReplayClass, String> {
    match word.as_str() {
        Some("read") => Ok(ReplayClass::Read),
        Some("idempotent") => Ok(ReplayClass::Idempotent),
        Some("unsafe") => Ok(ReplayClass::Unsafe),
        Some(word) => replay_by_name(tool, word).ok_or_else(|| {
            format!(
                "capstan.replay.{tool} must be read, idempotent, keyed:ARGUMENT, keyed:_meta.FIELD, reconcile:TOOL (another tool \
                 of the server) or unsafe"
            )
        }),
        None => Err(format!("capstan.replay.{tool} must be text")),
    }
}

/// Parses a class that names an argument, a field or a tool.
fn replay_by_name(tool: &str, word: &str) -> Option<ReplayClass> {
    let (class, name) = word.split_once(':').filter(|(_, name)| !name.is_empty())?;
    match (class, name.strip_prefix("_meta.")) {
        ("keyed", None) => Some(ReplayClass::Keyed { argument: name.to_owned() }),
        ("keyed", Some("" | "progressToken")) => None,
        ("keyed", Some(field)) => Some(ReplayClass::KeyedMeta { field: field.to_owned() }),
        ("reconcile", _) if name != tool => Some(ReplayClass::Reconcile { tool: name.to_owned() }),
        _ => None,
    }
}

fn undo(tool: &str, rule: &Value) -> Result<UndoRule, String> {
    let rule: UndoRule = serde_json::from_value(rule.clone())
        .map_err(|error| format!("capstan.undo.{tool} must be {{\"tool\": NAME, \"arguments\": {{...}}}}: {error}"))?;
    rule.check().map_err(|error| format!("capstan.undo.{tool}: {error}"))?;
    Ok(rule)
}

fn preview(tool: &str, template: &Value) -> Result<String, String> {
    let template = template.as_str().ok_or_else(|| format!("capstan.preview.{tool} must be a text"))?;
    crate::domain::tool::preview::check(template).map_err(|error| format!("capstan.preview.{tool}: {error}"))?;
    Ok(template.to_owned())
}

fn duration(key: &str, value: &Value) -> Result<Duration, String> {
    let text = value.as_str().ok_or_else(|| format!("capstan.{key} must be a text such as \"30s\""))?;
    let parsed: Option<Duration> = text.parse::<jiff::SignedDuration>().ok().and_then(|parsed| parsed.try_into().ok());
    parsed
        .filter(|parsed| !parsed.is_zero() && *parsed <= LONGEST)
        .ok_or_else(|| format!("capstan.{key} {text:?} is not a duration of at most a day: write \"30s\" or \"5m\""))
}

#[derive(Debug, Clone)]
pub struct Identity {
    /// The key in frozen tool definitions: the name of an operator server, or the id of a user server.
    pub key: String,
    pub id: McpServerId,
    pub name: String,
    /// The owner of a user server; `None` for a server of all owners.
    pub owner: Option<UserId>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn parse(document: &Value) -> McpConfig {
        McpConfig::parse(&document.to_string(), &|name| match name {
            "TOKEN" => Some("s3cret".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        })
        .unwrap()
    }

    #[test]
    fn standard_entries_are_read() {
        let config = parse(&json!({"mcpServers": {
            "files": {"command": "npx", "args": ["-y", "pkg", "${DIR:-/data}"], "env": {"KEY": "${TOKEN}"}, "cwd": "/tmp",
                "autoApprove": ["x"],
                "capstan": {"trusted": true, "timeout": "1m 30s", "max_timeout": "20m", "concurrency": 1, "roots": ["${DIR:-/data}", "/a b"], "approval": {"a": "always_ask"},
                    "replay": {"a": "read", "b": "keyed:id", "c": "keyed:_meta.example.com/key", "d": "reconcile:a"},
                    "undo": {"a": {"tool": "b", "arguments": {"id": "$result.id"}}},
                    "preview": {"a": "Make $arguments.name"}}},
            "web": {"type": "http", "url": "https://example.com/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}},
            "off": {"command": "x", "disabled": true},
            "off too": {"command": "x", "enabled": "false"},
        }}));
        let [McpWarning { entry, text }] = &config.warnings[..] else { panic!("{:?}", config.warnings) };
        assert!(entry.as_deref() == Some("files") && text.contains("autoApprove"), "{text}");
        assert_eq!(config.servers.keys().collect::<Vec<_>>(), ["files", "web"]);
        let files = config.servers["files"].as_ref().ok().unwrap();
        assert!(files.trusted);
        assert_eq!((files.timeout, files.concurrency), (Some(Duration::from_secs(90)), 1));
        assert_eq!(files.max_timeout, Some(Duration::from_secs(1_200)));
        assert_eq!(files.replay["b"], ReplayClass::Keyed { argument: "id".to_owned() });
        assert_eq!(files.replay["c"], ReplayClass::KeyedMeta { field: "example.com/key".to_owned() });
        assert_eq!(files.replay["d"], ReplayClass::Reconcile { tool: "a".to_owned() });
        assert_eq!(*files.roots, ["file:///data".to_owned(), "file:///a%20b".to_owned()]);
        assert_eq!(files.undo["a"].tool, "b");
        assert_eq!(files.preview["a"], "Make $arguments.name");
        assert_eq!(files.approval["a"], ApprovalMode::AlwaysAsk);
        let ServerTransport::Stdio { command, args, env, cwd } = &files.transport else { panic!("not stdio") };
        assert_eq!((command.as_str(), args.join(" "), cwd.as_deref()), ("npx", "-y pkg /data".to_owned(), Some("/tmp")));
        assert_eq!(env["KEY"].expose_secret(), "s3cret");
        let web = config.servers["web"].as_ref().ok().unwrap();
        let ServerTransport::Http { headers, .. } = &web.transport else { panic!("not http") };
        assert_eq!(headers["Authorization"].expose_secret(), "Bearer s3cret");
        assert!(!web.trusted);
        assert_eq!(web.redactor.redact("s3cret was refused"), "[redacted] was refused");
        assert_eq!(files.redactor.redact("pkg at /data: s3cret"), "pkg at /data: [redacted]");
    }

    #[rstest]
    #[case(json!({}), "no command, url or image")]
    #[case(json!({"image": "a", "url": "http://b"}), "has no url")]
    #[case(json!({"image": "a", "cwd": "/"}), "has no cwd")]
    #[case(json!({"image": "a", "env": {"FILE": "${server.home}/f"}}), "which does not exist in a container")]
    #[case(json!({"command": "npx", "capstan": {"container": {"privileged": true}}}), "capstan.container.privileged is unknown")]
    #[case(json!({"command": "a", "url": "http://b"}), "both")]
    #[case(json!({"command": "a", "args": "b"}), "args must be a list")]
    #[case(json!({"command": "${MISSING}"}), "command: the variable MISSING is not set")]
    #[case(json!({"command": "a", "env": {"X": "${MISSING}"}}), "env.X: the variable MISSING is not set")]
    #[case(json!({"command": "${TOKEN"}), "no closing brace")]
    #[case(json!({"url": "ftp://b"}), "http")]
    #[case(json!({"command": "a", "capstan": {"trust": true}}), "capstan.trust is unknown; did you mean capstan.trusted?")]
    #[case(json!({"command": "a", "capstan": {"disabled": true}}), "capstan.disabled is unknown; it belongs beside")]
    #[case(json!({"command": "a", "approval": {"t": "ask"}}), "\"approval\" has no effect beside")]
    #[case(json!({"command": "a", "disabled": "off"}), "\"disabled\" must be true or false")]
    #[case(json!({"command": "a", "excludeTools": ["t"]}), "may narrow down")]
    #[case(json!({"command": "a", "capstan": {"approval": {"m__*": "ask"}}}), "capstan.approval: \"m__*\" is a pattern")]
    #[case(json!({"command": "a", "capstan": {"replay": {"*": "read"}}}), "\"*\" is a pattern")]
    #[case(json!({"command": "a", "capstan": {"replay": {"t": "reconcile:find_*"}}}), "\"find_*\" is a pattern")]
    #[case(json!({"command": "a", "capstan": {"preview": {"t?": "x"}}}), "\"t?\" is a pattern")]
    #[case(json!({"command": "a", "capstan": {"undo": {"t": {"tool": "u*", "arguments": {}}}}}), "\"u*\" is a pattern")]
    #[case(json!({"command": "a", "capstan": {"oauth": {}}}), "capstan.oauth is for servers with a url")]
    #[case(json!({"url": "http://b", "capstan": {"oauth": {"id": "x"}}}), "capstan.oauth.id is unknown")]
    #[case(json!({"url": "http://b", "capstan": {"oauth": {"client_secret": "x"}}}), "needs a client_id")]
    #[case(json!({"url": "http://b", "capstan": {"oauth": {"scopes": ["a b"]}}}), "capstan.oauth.scopes")]
    #[case(json!({"command": "a", "capstan": {"timeout": "soon"}}), "capstan.timeout")]
    #[case(json!({"command": "a", "capstan": {"max_timeout": "0s"}}), "capstan.max_timeout")]
    #[case(json!({"command": "a", "capstan": {"timeout": "9223372036854775807s"}}), "at most a day")]
    #[case(json!({"command": "a", "capstan": {"concurrency": 0}}), "capstan.concurrency")]
    #[case(json!({"command": "a", "capstan": {"shared": "yes"}}), "capstan.shared must be true or false")]
    #[case(json!({"command": "a", "capstan": {"shared": true, "per_owner": false}}), "keep shared")]
    #[case(json!({"command": "a", "capstan": {"shared": true, "elicitation": true}}), "cannot be capstan.shared")]
    #[case(json!({"command": "a", "capstan": {"roots": "/data"}}), "capstan.roots must be a list")]
    #[case(json!({"command": "a", "capstan": {"roots": ["data"]}}), "absolute")]
    #[case(json!({"command": "a", "capstan": {"roots": ["/data/../etc"]}}), "without ..")]
    #[case(json!({"command": "a", "capstan": {"roots": ["/a".repeat(2_049)]}}), "capstan.roots")]
    #[case(json!({"command": "a", "capstan": {"roots": vec!["/a"; 33]}}), "at most 32")]
    #[case(json!({"command": "a", "capstan": {"sampling": "yes"}}), "capstan.sampling must be")]
    #[case(json!({"command": "a", "capstan": {"shared": true, "sampling": true}}), "capstan.sampling cannot be capstan.shared")]
    #[case(json!({"command": "a", "capstan": {"replay": {"t": "keyed:"}}}), "capstan.replay.t")]
    #[case(json!({"command": "a", "capstan": {"replay": {"t": "keyed:_meta."}}}), "capstan.replay.t")]
    #[case(json!({"command": "a", "capstan": {"replay": {"t": "keyed:_meta.progressToken"}}}), "capstan.replay.t")]
    #[case(json!({"command": "a", "capstan": {"replay": {"t": "reconcile:t"}}}), "capstan.replay.t")]
    #[case(json!({"command": "a", "capstan": {"replay": {"t": "sometimes:t"}}}), "capstan.replay.t")]
    #[case(json!({"command": "a", "capstan": {"undo": {"t": "u"}}}), "capstan.undo.t must be")]
    #[case(json!({"command": "a", "capstan": {"undo": {"t": {"tool": "u"}}}}), "missing field `arguments`")]
    #[case(json!({"command": "a", "capstan": {"undo": {"t": {"tool": "u", "arguments": {"x": "$argument.y"}}}}}), "$argument.y")]
    #[case(json!({"command": "a", "capstan": {"preview": {"t": 7}}}), "capstan.preview.t must be a text")]
    #[case(json!({"command": "a", "capstan": {"preview": {"t": "Pay $argument.x"}}}), "capstan.preview.t: a $ must begin a reference")]
    fn a_broken_entry_concerns_only_its_server(#[case] entry: Value, #[case] reason: &str) {
        let config = parse(&json!({"mcpServers": {"bad": entry, "good": {"command": "${EMPTY:-sh}"}}}));
        let error = config.servers["bad"].as_ref().err().unwrap();
        assert!(error.contains(reason), "{error}");
        assert!(config.servers["good"].is_ok());
    }

    #[rstest]
    #[case(json!({}), false)]
    #[case(json!({"shared": true}), true)]
    #[case(json!({"per_owner": true}), false)]
    #[case(json!({"per_owner": false}), true)]
    #[case(json!({"per_owner": false, "elicitation": true}), false)]
    fn each_owner_has_their_own_unless_the_entry_says_otherwise(#[case] capstan: Value, #[case] shared: bool) {
        for entry in [json!({"command": "a"}), json!({"image": "a"}), json!({"url": "https://a"})] {
            let mut entry = entry;
            entry["capstan"] = capstan.clone();
            let config = parse(&json!({"mcpServers": {"s": entry}}));
            assert_eq!(config.servers["s"].as_ref().ok().unwrap().shared, shared);
        }
    }

    #[rstest]
    #[case(json!({}), 4)]
    #[case(json!({"elicitation": true}), 1)]
    #[case(json!({"sampling": true}), 1)]
    #[case(json!({"elicitation": true, "concurrency": 3}), 3)]
    fn server_with_elicitation_gets_one_call_at_a_time(#[case] capstan: Value, #[case] concurrency: usize) {
        let config = parse(&json!({"mcpServers": {"s": {"command": "a", "capstan": capstan}}}));
        assert_eq!(config.servers["s"].as_ref().ok().unwrap().concurrency, concurrency);
    }

    #[test]
    fn documents_of_other_programs_are_read() {
        let text = "\u{feff}// of VS Code\n{\"servers\": {\"web\": {\"type\": \"http\", \"url\": \"https://h/${env:TOKEN}\", \"headers\": null},}, \"inputs\": []}";
        let lookup = |name: &str| (name == "TOKEN").then(|| "s3cret".to_owned());
        let config = McpConfig::parse(text, &lookup).unwrap();
        let ServerTransport::Http { url, headers, .. } = &config.servers["web"].as_ref().ok().unwrap().transport else {
            panic!("not a URL")
        };
        assert_eq!((url.as_str(), headers.len()), ("https://h/s3cret", 0));
        assert_eq!(config.warnings.len(), 1, "{:?}", config.warnings);
        let both =
            McpConfig::parse(r#"{"mcpServers": {"a": {"command": "x"}}, "servers": {"b": {"command": "y"}}}"#, &lookup).unwrap();
        assert_eq!(both.servers.keys().collect::<Vec<_>>(), ["a"]);
        let zed = McpConfig::parse(r#"{"context_servers": {"c": {"command": "z"}}}"#, &lookup).unwrap();
        assert!(zed.servers.contains_key("c") && zed.warnings.is_empty());
        assert!(both.warnings[0].text.contains("servers"), "{:?}", both.warnings);
    }

    #[test]
    fn a_document_without_servers_is_refused() {
        assert!(matches!(McpConfig::parse("{", &|_| None), Err(McpConfigError::Syntax(_))));
        assert!(matches!(McpConfig::parse("{}", &|_| None), Err(McpConfigError::NoServers)));
        let twice = r#"{"mcpServers": {"a": {"command": "x", "capstan": {}, "capstan": {}}}}"#;
        assert!(matches!(McpConfig::parse(twice, &|_| None), Err(McpConfigError::Duplicate(key)) if key == "capstan"));
        let misplaced = r#"{"mcpServers": {}, "approval": {}}"#;
        assert!(matches!(McpConfig::parse(misplaced, &|_| None), Err(McpConfigError::Misplaced(_))));
    }
}
