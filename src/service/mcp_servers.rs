//! MCP servers that people keep: making, changing, starting, bringing in and taking out.
//!
//! Whoever may see a server may use it. What it is reached with is seen by whoever may change it, without its secrets, which come
//! back to nobody.

use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Map, Value, json};

use super::configured::page_of_all;
use super::idempotency::{Replay, RequestKey, keyed};
use super::mcp_deps::McpDeps;
use super::providers::{TRIES, may_change, reach_of};
use super::{Error, Result, Service};
use crate::domain::ids::{McpServerId, UserId};
use crate::domain::mcp_server::McpServerRecord;
use crate::domain::principal::{Principal, UserRole};
use crate::domain::tool::ToolDefinition;
use crate::store::{McpServerCursor, NamedChanged, NamedMade, Page, PageRequest};
use crate::support::json as stable;
use crate::support::nearest::nearest;
use crate::support::seal::{SealError, Vault};
use crate::tools::mcp::{
    ConfiguredServer, KeptServer, McpPrompt, McpResource, MemberRules, Secrets, ServerConfig, ServerTransport, check_document,
    is_switched_off, last_words, part, read_kept,
};
use crate::tools::{AuthState, ServerStatus};

/// The longest name.
const MAX_NAME_CHARS: usize = 64;
/// How long an answer waits to say whether a server can be reached.
const PROBE: Duration = Duration::from_secs(5);
/// Servers that are read at a time for the whole document.
const PAGE: u32 = 100;
/// What belongs to everybody is an administrator's.
const NOT_YOURS: &str = "MCP servers of the server are an administrator's to change";

/// Values of variables that an entry names.
pub type Variables = std::collections::BTreeMap<String, SecretString>;

/// A server to make.
pub struct NewMcpServer {
    /// What the names of its tools begin with.
    pub name: String,
    /// Its entry, as in an `mcpServers` document.
    pub entry: Map<String, Value>,
    /// Values of the variables in it.
    pub variables: Variables,
    /// Whether runs may use it.
    pub enabled: bool,
    /// Whether it is everybody's.
    pub is_global: bool,
}

/// What to change of a server. What is absent stays.
#[derive(Default)]
pub struct McpServerPatch {
    /// The name.
    pub name: Option<String>,
    /// The entry, all of it. Names that stand for secrets go on to stand for them.
    pub entry: Option<Map<String, Value>>,
    /// New values of variables.
    pub variables: Variables,
    /// Whether runs may use it.
    pub enabled: Option<bool>,
}

/// A server as it is shown.
#[derive(Debug, Clone)]
pub struct ShownMcpServer {
    /// Where it is kept.
    pub server: AnyMcpServer,
    /// How it is doing, as far as this process knows.
    pub status: ServerStatus,
    /// Parts of the entry that was given with this request and that have no effect.
    pub warnings: Vec<String>,
}

/// Where a server is kept.
#[derive(Debug, Clone, PartialEq)]
pub enum AnyMcpServer {
    /// Somebody keeps it.
    Kept(Box<McpServerRecord>),
    /// In the configuration.
    Configured(ConfiguredServer),
}

impl AnyMcpServer {
    fn cursor(&self) -> McpServerCursor {
        let (name, id) = match self {
            Self::Kept(record) => (&record.name, &record.id),
            Self::Configured(server) => (&server.name, &server.id),
        };
        McpServerCursor { name: name.clone(), id: id.clone() }
    }

    /// Whose alone it is.
    fn owner(&self) -> Option<&UserId> {
        match self {
            Self::Kept(record) => record.owner.as_ref(),
            Self::Configured(_) => None,
        }
    }
}

/// What became of an entry that was brought in.
#[derive(Debug)]
pub enum Imported {
    /// It is kept. Beside it, the parts of the entry that have no effect.
    Made(McpServerId, Vec<String>),
    /// The one of that name was changed.
    Replaced(McpServerId, Vec<String>),
    /// It is not kept, and why.
    Refused(String),
}

/// How entries are brought in.
pub struct Import {
    /// The entries by their names.
    pub entries: Map<String, Value>,
    /// Values of the variables in them.
    pub variables: Variables,
    /// Whether they are everybody's.
    pub is_global: bool,
    /// Whether those take the place of servers of their names.
    pub replaces: bool,
    /// The other keys of the document.
    pub rest: Map<String, Value>,
}

/// The outcome of an import.
pub struct ImportReport {
    /// Each entry by its name.
    pub outcomes: Vec<(String, Imported)>,
    /// Parts of the document beside its entries that have no effect.
    pub warnings: Vec<String>,
}

impl Service {
    /// The same with MCP servers that people keep.
    #[must_use]
    pub fn with_mcp_servers(mut self, servers: McpDeps) -> Self {
        self.mcp_servers = Some(servers);
        self
    }

    /// The tools on offer, and how their servers are doing. Connects to servers that are not connected yet.
    pub async fn tools(&self, principal: &Principal) -> (Vec<Arc<ToolDefinition>>, Vec<ServerStatus>) {
        let definitions = self.tools.definitions(&principal.user_id).await;
        let servers = self.tools.servers(&principal.user_id).await;
        let servers = servers.into_iter().map(|server| listed(server, principal)).collect();
        (definitions, servers)
    }

    pub(super) fn mcp_deps(&self) -> Result<&McpDeps> {
        self.mcp_servers.as_ref().ok_or_else(|| Error::Conflict("this server keeps no MCP servers".to_owned()))
    }

    /// Makes a server of the principal's own, or of everybody's, and tries it for a moment: it is kept in any case.
    pub async fn create_mcp_server(
        &self,
        principal: &Principal,
        new: NewMcpServer,
        key: Option<RequestKey>,
    ) -> Result<(ShownMcpServer, Replay)> {
        let (id, replay, warnings) = self.make_mcp_server(principal, new, key).await?;
        let shown = self.probed(principal, &id).await?;
        Ok((ShownMcpServer { warnings, ..shown }, replay))
    }

    async fn make_mcp_server(
        &self,
        principal: &Principal,
        new: NewMcpServer,
        key: Option<RequestKey>,
    ) -> Result<(McpServerId, Replay, Vec<String>)> {
        let deps = self.mcp_deps()?;
        let NewMcpServer { name, entry, variables, enabled, is_global } = new;
        let owner = if is_global { None } else { Some(principal.user_id.clone()) };
        may_change(principal, owner.as_ref(), NOT_YOURS)?;
        check_name(&name)?;
        let now = self.clock.now();
        let mut record = McpServerRecord {
            id: McpServerId::generate(self.ids.as_ref()),
            owner,
            name,
            entry: Map::new(),
            secrets: None,
            reach: reach_of(principal),
            enabled: enabled && !switched_off(&entry)?,
            created_at: now,
            updated_at: now,
            version: 1,
            generation: 1,
        };
        let warnings = self.put_entry(&mut record, &entry, &variables, &Secrets::new()).await?;
        let claim = self.claim(&principal.user_id, key);
        let (made, replay) = keyed(self.store.create_mcp_server(&record, deps.max_per_owner, claim).await?)?;
        match made {
            NamedMade::Made(id) => {
                deps.servers.changed(&id).await;
                Ok((id, replay, warnings))
            }
            NamedMade::NameTaken => Err(name_taken(&record.name)),
            NamedMade::TooMany => Err(Error::Conflict(format!(
                "there are {} MCP servers of this owner already, which is the most; delete one",
                deps.max_per_owner
            ))),
        }
    }

    /// A server of the principal's own, of everybody's, or of the configuration.
    pub async fn mcp_server(&self, principal: &Principal, id: &McpServerId) -> Result<ShownMcpServer> {
        let deps = self.mcp_deps()?;
        let server = self.any_mcp_server(principal, id).await?;
        let status = deps.servers.status_of(&principal.user_id, id).await;
        Ok(described(principal, server, status))
    }

    async fn any_mcp_server(&self, principal: &Principal, id: &McpServerId) -> Result<AnyMcpServer> {
        let configured = self.mcp_deps()?.servers.configured().find(|server| server.id == *id);
        if let Some(server) = configured {
            return Ok(AnyMcpServer::Configured(server));
        }
        let record = self.store.mcp_server(&principal.user_id, id).await?.ok_or(Error::NotFound("MCP server"))?;
        Ok(AnyMcpServer::Kept(Box::new(record)))
    }

    /// All of them, by name.
    pub async fn mcp_servers(&self, principal: &Principal, page: &PageRequest<McpServerCursor>) -> Result<Page<ShownMcpServer>> {
        let deps = self.mcp_deps()?;
        let Page { items, next } = self.store.mcp_servers(&principal.user_id, page).await?;
        let kept = Page { items: items.into_iter().map(|record| AnyMcpServer::Kept(Box::new(record))).collect(), next };
        let configured = deps.servers.configured().map(AnyMcpServer::Configured).collect();
        let limit = page.limit.clamp(1, 100) as usize;
        let Page { items, next } = page_of_all(kept, configured, page.after.as_ref(), limit, AnyMcpServer::cursor);
        let mut statuses = deps.servers.statuses(&principal.user_id).await;
        let describe = |server: AnyMcpServer| {
            let id = server.cursor().id;
            let status = statuses.iter().position(|status| status.id == id).map(|at| statuses.swap_remove(at));
            let mut shown = described(principal, server, status);
            shown.status = cut(shown.status);
            shown
        };
        Ok(Page { items: items.into_iter().map(describe).collect(), next })
    }

    /// Changes a server, of one of these versions if any are named, and tries it for a moment.
    pub async fn update_mcp_server(
        &self,
        principal: &Principal,
        id: &McpServerId,
        patch: &McpServerPatch,
        versions: Option<&[i64]>,
    ) -> Result<ShownMcpServer> {
        for _ in 0..TRIES {
            let before = self.changeable_mcp_server(principal, id, versions).await?;
            let mut after = before.clone();
            if let Some(name) = &patch.name {
                check_name(name)?;
                after.name.clone_from(name);
            }
            after.enabled = patch.enabled.unwrap_or(after.enabled);
            if let Some(entry) = &patch.entry {
                after.enabled &= !switched_off(entry)?;
            }
            let mut warnings = Vec::new();
            if patch.entry.is_some() || !patch.variables.is_empty() {
                let entry = patch.entry.as_ref().unwrap_or(&before.entry);
                after.reach = reach_of(principal);
                // Those that cannot be opened are to be given anew, and are missed by their names until they are.
                let secrets = opened(&self.provider_deps()?.vault, &before).unwrap_or_default();
                warnings = self.put_entry(&mut after, entry, &patch.variables, &secrets).await?;
            }
            after.updated_at = self.clock.now().max(before.updated_at);
            match self.store.change_mcp_server(&after).await? {
                NamedChanged::Changed(_) => {
                    self.mcp_server_changed(&before, &after).await?;
                    let shown = self.probed(principal, id).await?;
                    return Ok(ShownMcpServer { warnings, ..shown });
                }
                NamedChanged::NameTaken => return Err(name_taken(&after.name)),
                NamedChanged::Stale => {}
            }
        }
        Err(Error::Stale)
    }

    /// Deletes a server, of one of these versions if any are named, and ends its connections.
    pub async fn delete_mcp_server(&self, principal: &Principal, id: &McpServerId, versions: Option<&[i64]>) -> Result<()> {
        let deps = self.mcp_deps()?;
        for _ in 0..TRIES {
            let record = self.changeable_mcp_server(principal, id, versions).await?;
            if self.store.delete_mcp_server(record.owner.as_ref(), id, record.version).await? {
                deps.servers.changed(id).await;
                return Ok(());
            }
        }
        Err(Error::Stale)
    }

    /// Connects to a server, whatever has gone wrong with it before.
    pub async fn start_mcp_server(&self, principal: &Principal, id: &McpServerId) -> Result<ShownMcpServer> {
        let server = self.steerable_mcp_server(principal, id).await?;
        match self.mcp_deps()?.servers.start(&principal.user_id, id, PROBE).await {
            Some(status) => Ok(described(principal, server, Some(status))),
            None => Err(Error::Conflict("this MCP server is not enabled; change that first".to_owned())),
        }
    }

    /// Ends the connections to a server, and all processes. The next use makes another one.
    pub async fn stop_mcp_server(&self, principal: &Principal, id: &McpServerId) -> Result<ShownMcpServer> {
        let deps = self.mcp_deps()?;
        let server = self.steerable_mcp_server(principal, id).await?;
        if let AnyMcpServer::Kept(record) = &server {
            // Other processes see the other generation.
            self.store.renew_mcp_server(record.owner.as_ref(), id).await?;
        }
        deps.servers.stop(id).await;
        deps.servers.changed(id).await;
        let status = deps.servers.status_of(&principal.user_id, id).await;
        Ok(described(principal, server, status))
    }

    /// Ends the connections to a server and makes one again.
    pub async fn restart_mcp_server(&self, principal: &Principal, id: &McpServerId) -> Result<ShownMcpServer> {
        self.stop_mcp_server(principal, id).await?;
        self.start_mcp_server(principal, id).await
    }

    /// The tools of a server, as runs are offered them.
    pub async fn mcp_server_tools(&self, principal: &Principal, id: &McpServerId) -> Result<Vec<Arc<ToolDefinition>>> {
        let server = self.any_mcp_server(principal, id).await?;
        listed_or(principal, &server, self.mcp_deps()?.servers.tools_of(&principal.user_id, id).await)
    }

    /// The resources that a server lists.
    pub async fn mcp_server_resources(&self, principal: &Principal, id: &McpServerId) -> Result<Vec<McpResource>> {
        let server = self.any_mcp_server(principal, id).await?;
        listed_or(principal, &server, self.mcp_deps()?.servers.resources_of(&principal.user_id, id).await)
    }

    /// The prompts that a server lists.
    pub async fn mcp_server_prompts(&self, principal: &Principal, id: &McpServerId) -> Result<Vec<McpPrompt>> {
        let server = self.any_mcp_server(principal, id).await?;
        listed_or(principal, &server, self.mcp_deps()?.servers.prompts_of(&principal.user_id, id).await)
    }

    /// Brings in the entries of an `mcpServers` document, each by itself.
    pub async fn import_mcp_servers(&self, principal: &Principal, import: Import, key: Option<RequestKey>) -> Result<ImportReport> {
        let Import { entries, variables, is_global, replaces, rest } = import;
        let warnings = check_rest(&rest)?;
        let mut outcomes = Vec::with_capacity(entries.len());
        let mut fresh = Vec::new();
        for (at, (name, entry)) in entries.into_iter().enumerate() {
            let Value::Object(entry) = entry else {
                outcomes.push((name, Imported::Refused("the entry must be an object".to_owned())));
                continue;
            };
            let enabled = match switched_off(&entry) {
                Ok(off) => !off,
                Err(error) => {
                    outcomes.push((name, Imported::Refused(error.to_string())));
                    continue;
                }
            };
            // Each entry by itself, and in the order of the document, which is the same each time. What comes of making one is read as
            // something else than what comes of replacing one, and has another key.
            let key_for = |what: &str| {
                key.as_ref().map(|RequestKey { key, fingerprint }| RequestKey {
                    key: stable::hash_bytes(format!("{key}\0{at}{what}").as_bytes()),
                    fingerprint: fingerprint.clone(),
                })
            };
            let new = NewMcpServer { name: name.clone(), entry: entry.clone(), variables: variables.clone(), enabled, is_global };
            // Made before it is looked for: what a request has made the first time is there when it comes again, and is not to be replaced.
            let mut is_new = true;
            let mut outcome = self.make_mcp_server(principal, new, key_for("")).await;
            // Its name may be taken; or there may be no room for another one, or its secrets may be those that are kept.
            if replaces
                && matches!(outcome, Err(Error::Invalid { .. } | Error::Conflict(_)))
                && let Some(id) = self.mcp_server_named(principal, &name, is_global).await?
            {
                let patch = McpServerPatch { entry: Some(entry), variables: variables.clone(), enabled: Some(enabled), name: None };
                is_new = false;
                let replaced = self.replace_mcp_server(principal, &id, &patch, key_for("\0replace")).await;
                outcome = replaced.map(|(replay, warnings)| (id, replay, warnings));
            }
            outcomes.push((
                name,
                match outcome {
                    Ok((id, replay, warnings)) => {
                        fresh.extend((replay == Replay::Fresh).then(|| id.clone()));
                        if is_new { Imported::Made(id, warnings) } else { Imported::Replaced(id, warnings) }
                    }
                    Err(error @ (Error::Invalid { .. } | Error::Conflict(_) | Error::Stale)) => {
                        Imported::Refused(error.to_string())
                    }
                    Err(error) => return Err(error),
                },
            ));
        }
        // Each is tried, as one that is made or changed by itself is, but side by side: how many there are is for their document to say.
        let servers = &self.mcp_deps()?.servers;
        futures_util::future::join_all(fresh.iter().map(|id| servers.start(&principal.user_id, id, PROBE))).await;
        Ok(ImportReport { outcomes, warnings })
    }

    async fn replace_mcp_server(
        &self,
        principal: &Principal,
        id: &McpServerId,
        patch: &McpServerPatch,
        key: Option<RequestKey>,
    ) -> Result<(Replay, Vec<String>)> {
        let before = self.changeable_mcp_server(principal, id, None).await?;
        // Those that cannot be opened are to be given anew, and are missed by their names until they are.
        let secrets = opened(&self.provider_deps()?.vault, &before).unwrap_or_default();
        let mut after = McpServerRecord { reach: reach_of(principal), updated_at: self.clock.now(), ..before.clone() };
        after.enabled = patch.enabled.unwrap_or(after.enabled);
        let mut warnings = Vec::new();
        if let Some(entry) = &patch.entry {
            warnings = self.put_entry(&mut after, entry, &patch.variables, &secrets).await?;
        }
        let claim = self.claim(&principal.user_id, key);
        match keyed(self.store.replace_mcp_server(&after, claim).await?)? {
            (NamedChanged::Changed(_), Replay::Fresh) => {
                self.mcp_server_changed(&before, &after).await?;
                Ok((Replay::Fresh, warnings))
            }
            // Whatever has become of it since stays as it is.
            (NamedChanged::Changed(_), Replay::Replayed) => Ok((Replay::Replayed, warnings)),
            (NamedChanged::Stale | NamedChanged::NameTaken, Replay::Fresh | Replay::Replayed) => Err(Error::Stale),
        }
    }

    /// What follows from a change that is stored.
    async fn mcp_server_changed(&self, before: &McpServerRecord, after: &McpServerRecord) -> Result<()> {
        if before.entry.get("url") != after.entry.get("url") {
            // Tokens are for the place where somebody has logged in.
            self.store.forget_mcp_tokens(&after.id, None).await?;
        }
        self.mcp_deps()?.servers.changed(&after.id).await;
        Ok(())
    }

    /// The server of exactly that name among those of the principal, or of everybody.
    async fn mcp_server_named(&self, principal: &Principal, name: &str, is_global: bool) -> Result<Option<McpServerId>> {
        // Before any of that name: no id is empty. There are two of a name at most, one of them everybody's.
        let after = McpServerCursor { name: name.to_owned(), id: McpServerId::from_stored(String::new()) };
        let page = self.store.mcp_servers(&principal.user_id, &PageRequest { limit: 2, after: Some(after) }).await?;
        let found = page.items.into_iter().find(|record| record.name == name && record.owner.is_none() == is_global);
        Ok(found.map(|record| record.id))
    }

    /// The `mcpServers` document of the principal's own servers, or of everybody's, without secrets.
    pub async fn export_mcp_servers(&self, principal: &Principal, is_global: bool) -> Result<Value> {
        if is_global {
            may_change(principal, None, NOT_YOURS)?;
        }
        let mut entries = Map::new();
        let mut after = None;
        loop {
            let page = self.store.mcp_servers(&principal.user_id, &PageRequest { limit: PAGE, after }).await?;
            for McpServerRecord { name, mut entry, enabled, .. } in
                page.items.into_iter().filter(|record| record.owner.is_none() == is_global)
            {
                if !enabled {
                    entry.insert("disabled".to_owned(), Value::Bool(true));
                }
                entries.insert(name, Value::Object(entry));
            }
            match page.next {
                Some(next) => after = Some(next.parse().map_err(|_| Error::InvalidCursor("the list has no end".to_owned()))?),
                None => return Ok(json!({ "mcpServers": entries })),
            }
        }
    }

    /// What a server is after it was tried for a moment. Whether it can be reached is no matter of keeping it.
    pub(super) async fn probed(&self, principal: &Principal, id: &McpServerId) -> Result<ShownMcpServer> {
        let server = self.any_mcp_server(principal, id).await?;
        let status = self.mcp_deps()?.servers.start(&principal.user_id, id, PROBE).await;
        Ok(described(principal, server, status))
    }

    /// The server, if the principal may change it, and it is of one of the named versions.
    async fn changeable_mcp_server(
        &self,
        principal: &Principal,
        id: &McpServerId,
        versions: Option<&[i64]>,
    ) -> Result<McpServerRecord> {
        let record = match self.any_mcp_server(principal, id).await? {
            AnyMcpServer::Kept(record) => *record,
            AnyMcpServer::Configured(_) => return Err(Error::Forbidden("MCP servers of the configuration are changed there")),
        };
        may_change(principal, record.owner.as_ref(), NOT_YOURS)?;
        match versions {
            Some(versions) if !versions.contains(&record.version) => Err(Error::Stale),
            Some(_) | None => Ok(record),
        }
    }

    /// The server, if the principal may start and stop it.
    pub(super) async fn steerable_mcp_server(&self, principal: &Principal, id: &McpServerId) -> Result<AnyMcpServer> {
        let server = self.any_mcp_server(principal, id).await?;
        may_change(principal, server.owner(), NOT_YOURS)?;
        Ok(server)
    }

    /// Puts an entry into a record, its secrets sealed, and returns the parts of it that have no effect. `kept` are those that it has: names that stand for them go on to stand for
    /// them, unless the entry leads to another host.
    async fn put_entry(
        &self,
        record: &mut McpServerRecord,
        entry: &Map<String, Value>,
        variables: &Variables,
        kept: &Secrets,
    ) -> Result<Vec<String>> {
        let rules = &self.mcp_deps()?.rules;
        let refused = |reason: String| Error::field("/entry", reason);
        let given = |name: &str| variables.get(name).map(|value| value.expose_secret().to_owned());
        let given_or_kept = |name: &str| given(name).or_else(|| kept.get(name).cloned());
        let mut parted = part(entry, &given_or_kept).map_err(refused)?;
        let read = |entry: &Map<String, Value>, secrets: &Secrets| read_kept(&Value::Object(entry.clone()), secrets);
        let mut config = read(&parted.entry, &parted.secrets).map_err(refused)?;
        let leads_elsewhere =
            !kept.is_empty() && read(&record.entry, kept).map_or(true, |before| destination(&before) != destination(&config));
        if leads_elsewhere {
            let why = "the entry leads elsewhere, and its secrets were not given for that";
            parted = part(entry, &given).map_err(|reason| refused(format!("{reason}: {why}")))?;
            config = read(&parted.entry, &parted.secrets).map_err(refused)?;
        }
        rules.apply(config, record.reach).map_err(refused)?;
        record.entry = parted.entry;
        record.secrets = None;
        if !parted.secrets.is_empty() {
            let secrets = serde_json::to_string(&parted.secrets).map_err(|error| refused(error.to_string()))?;
            record.secrets = Some(self.seal(&record.secrets_place(), &SecretString::from(secrets)).await?);
        }
        Ok(parted.warnings)
    }
}

/// Whether an entry says that its server is switched off.
fn switched_off(entry: &Map<String, Value>) -> Result<bool> {
    is_switched_off(entry).map_err(|reason| Error::field("/entry", reason))
}

/// Refuses keys of a document that are meant for Capstan and are not read, and returns what is to be told of the others.
fn check_rest(rest: &Map<String, Value>) -> Result<Vec<String>> {
    for key in rest.keys() {
        if let Some(near) = nearest(key, ["variables", "scope", "replace"]) {
            return Err(Error::field(&format!("/{key}"), format!("is not known; did you mean {near:?}?")));
        }
    }
    check_document(rest).map_err(|reason| Error::field("", reason))
}

/// Where an entry leads: the host, or this machine.
fn destination(config: &ServerConfig) -> Option<String> {
    match &config.transport {
        ServerTransport::Stdio { .. } | ServerTransport::Container { .. } => None,
        ServerTransport::Http { url, .. } => Some(super::providers::origin(url)),
    }
}

/// Whether a principal may know what has gone wrong inside of a server. Errors of the operator's servers name hosts, programs and
/// settings of theirs, and nobody knows what a server writes on its standard error stream.
fn sees_inside(principal: &Principal, owner: Option<&UserId>) -> bool {
    match principal.role {
        UserRole::Admin => true,
        UserRole::Member => owner == Some(&principal.user_id),
    }
}

/// A status as a principal may see it. That a server is in error everybody is told who may use it.
fn shown(status: ServerStatus, principal: &Principal) -> ServerStatus {
    let sees = sees_inside(principal, status.owner.as_ref());
    ServerStatus { error: status.error.filter(|_| sees), stderr: status.stderr.filter(|_| sees), ..status }
}

/// The same with no more than the last words of what its process said: for lists.
fn cut(status: ServerStatus) -> ServerStatus {
    ServerStatus { stderr: status.stderr.map(|said| last_words(&said).to_owned()), ..status }
}

/// A status as it stands in a list for a principal.
fn listed(status: ServerStatus, principal: &Principal) -> ServerStatus {
    cut(shown(status, principal))
}

fn described(principal: &Principal, server: AnyMcpServer, status: Option<ServerStatus>) -> ShownMcpServer {
    let McpServerCursor { name, id } = server.cursor();
    let owner = server.owner().cloned();
    let unknown = || ServerStatus {
        id,
        name,
        status: "unknown".to_owned(),
        since: None,
        error: None,
        stderr: None,
        tools: 0,
        left_out: false,
        auth: AuthState::None,
        owner,
    };
    let status = shown(status.unwrap_or_else(unknown), principal);
    ShownMcpServer { server, status, warnings: Vec::new() }
}

/// What a server lists, or why it does not, as far as the principal may know that.
fn listed_or<T>(principal: &Principal, server: &AnyMcpServer, all: Option<std::result::Result<Vec<T>, String>>) -> Result<Vec<T>> {
    match all {
        Some(Ok(all)) => Ok(all),
        Some(Err(reason)) if sees_inside(principal, server.owner()) => {
            Err(Error::Conflict(format!("what it offers cannot be listed: {reason}")))
        }
        Some(Err(_)) => Err(Error::Conflict("what it offers cannot be listed; an administrator can see why".to_owned())),
        None => Err(Error::Conflict("this MCP server is not enabled; change that first".to_owned())),
    }
}

fn name_taken(name: &str) -> Error {
    Error::Conflict(format!("there is an MCP server called {name:?} already; change that one, or choose another name"))
}

fn check_name(name: &str) -> Result<()> {
    let is_fit = (1..=MAX_NAME_CHARS).contains(&name.chars().count()) && !name.contains(char::is_control) && name.trim() == name;
    let detail = || format!("must have 1 to {MAX_NAME_CHARS} characters, no control characters, and no space at its ends");
    if is_fit { Ok(()) } else { Err(Error::field("/name", detail())) }
}

/// The secrets of a record.
fn opened(vault: &Vault, record: &McpServerRecord) -> std::result::Result<Secrets, SealError> {
    let Some(sealed) = &record.secrets else { return Ok(Secrets::new()) };
    let secrets = vault.open(&record.secrets_place(), sealed)?;
    serde_json::from_str(secrets.expose_secret()).map_err(|_| SealError::Damaged { key_id: sealed.key_id.clone() })
}

/// A record as it is connected to, by the present settings.
#[must_use]
pub fn open_mcp_server(vault: &Vault, record: &McpServerRecord, rules: &MemberRules) -> KeptServer {
    let secrets = opened(vault, record).map_err(|error| {
        tracing::error!(mcp.server.id = %record.id, error = %error, "the secrets of an MCP server cannot be opened");
        "its secrets cannot be opened by this server, whose log says why; give them anew".to_owned()
    });
    let entry = Value::Object(record.entry.clone());
    let config = secrets.and_then(|secrets| read_kept(&entry, &secrets)).and_then(|config| rules.apply(config, record.reach));
    KeptServer {
        id: record.id.clone(),
        owner: record.owner.clone(),
        name: record.name.clone(),
        config,
        revision: record.version + record.generation,
    }
}
