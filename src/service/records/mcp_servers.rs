//! User servers: creation, changes, starts, import and export.
//!
//! A user may use every visible MCP server. Only users who may change a server see its entry. Secrets of an entry are never shown.

use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::domain::access::principal::{Principal, UserRole};
use crate::domain::ids::{McpServerId, UserId};
use crate::domain::tool::ToolDefinition;
use crate::domain::tool::approval::ApprovalMode;
use crate::domain::tool::mcp_server::McpServerRecord;
use crate::service::idempotency_outcome::{Replay, RequestKey, outcome_or_conflict};
use crate::service::records::mcp_deps::McpDeps;
use crate::service::records::named::{Kind, OwnerScope, TRIES, check_version, default_true, may_change, new_owner, page_of_all};
use crate::service::records::providers::egress_of;
use crate::service::runs::agent_and_model::is_short;
use crate::service::{Error, Result, Service};
use crate::store::{McpServerCursor, Page, PageRequest, UpdateNamedOutcome};
use crate::support::encryption::{EncryptionError, Vault};
use crate::support::json as stable;
use crate::support::suggestion::nearest;
use crate::tools::ServerStatus;
use crate::tools::mcp::{
    ConfiguredServer, McpPrompt, McpResource, MemberRules, Secrets, ServerConfig, ServerTransport, UserServer, check_document,
    is_switched_off, part, read_kept, stderr_end,
};

const MAX_NAME_CHARS: usize = 64;
/// How long a response waits for the result of a connection attempt.
const PROBE_TIME_LIMIT: Duration = Duration::from_secs(5);
/// Number of servers that an export reads at a time.
const PAGE: u32 = 100;
const SERVERS: Kind =
    Kind { one: "an MCP server", many: "MCP servers", refusal: "only an administrator can change MCP servers of the server" };

pub type Variables = std::collections::BTreeMap<String, SecretString>;

/// An MCP server to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateMcpServerBody)]
pub struct NewMcpServer {
    /// The prefix of its tools' names: `name__tool`.
    #[schema(min_length = 1, max_length = 64)]
    name: String,
    /// The entry, as in an `mcpServers` document. The server removes its secrets and never shows them again.
    #[schema(value_type = Object)]
    entry: Map<String, Value>,
    /// Values of variables that the entry names as `${NAME}`.
    #[serde(default)]
    #[schema(value_type = Object, write_only)]
    variables: Variables,
    /// Whether runs may use the server.
    #[serde(default = "default_true")]
    #[schema(default = true)]
    enabled: bool,
    /// The owner of the MCP server: the caller or the server. Only an administrator may create an MCP server for all users.
    #[serde(default)]
    scope: OwnerScope,
}

/// The changes to an MCP server. Absent fields stay unchanged.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = UpdateMcpServerBody)]
pub struct McpServerPatch {
    /// The new name.
    #[schema(min_length = 1, max_length = 64)]
    name: Option<String>,
    /// The complete new entry. A `${NAME}` of a stored secret keeps its value, unless the entry names another host.
    #[schema(value_type = Option<Object>)]
    entry: Option<Map<String, Value>>,
    /// New values of variables that the entry names as `${NAME}`.
    #[serde(default)]
    #[schema(value_type = Object, write_only)]
    variables: Variables,
    /// Whether runs may use the server.
    enabled: Option<bool>,
}

#[derive(Debug, Clone)]
pub struct McpServerView {
    pub server: AnyMcpServer,
    /// The status in this process.
    pub status: ServerStatus,
    /// Parts of the entry of this request that have no effect.
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum AnyMcpServer {
    Stored(Box<McpServerRecord>),
    Configured(ConfiguredServer),
}

impl AnyMcpServer {
    fn cursor(&self) -> McpServerCursor {
        let (name, id) = match self {
            Self::Stored(record) => (&record.name, &record.id),
            Self::Configured(server) => (&server.name, &server.id),
        };
        McpServerCursor { name: name.clone(), id: id.clone() }
    }

    fn owner(&self) -> Option<&UserId> {
        match self {
            Self::Stored(record) => record.owner.as_ref(),
            Self::Configured(_) => None,
        }
    }
}

/// A document to import. Other keys are reported in `warnings`, because programs commonly store more in such a document.
#[derive(Deserialize, ToSchema)]
#[schema(as = ImportMcpServersBody)]
pub struct McpServersDocument {
    /// The MCP servers, in the common form of other programs. `servers`, as in VS Code, is another name of this key.
    #[serde(rename = "mcpServers", alias = "servers")]
    #[schema(value_type = Object)]
    mcp_servers: Map<String, Value>,
    /// Values of variables that the entries name as `${NAME}`.
    #[serde(default)]
    #[schema(value_type = Object, write_only)]
    variables: Variables,
    /// The owner of the imported servers: the caller or the server.
    #[serde(default)]
    scope: OwnerScope,
    /// Whether imported servers replace existing servers with the same names.
    #[serde(default)]
    replace: bool,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

/// The outcome of an imported entry.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImportOutcome {
    Made,
    Replaced,
    Refused,
}

/// An entry of an imported document.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
pub struct ImportedMcpServer {
    /// The name in the document.
    name: String,
    /// The outcome of the entry.
    outcome: ImportOutcome,
    /// The id of the server that was created or changed.
    id: Option<McpServerId>,
    /// The reason why the entry was refused.
    reason: Option<String>,
    /// Parts of the entry that have no effect, such as unknown keys.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    warnings: Vec<String>,
}

/// The result of an import.
#[derive(Debug, Serialize, ToSchema)]
pub struct ImportedMcpServers {
    /// The outcome of each entry.
    data: Vec<ImportedMcpServer>,
    /// Always `null`, because all entries are on one page.
    #[schema(required)]
    next_cursor: Option<String>,
    /// Parts of the document outside its entries that have no effect, such as unknown keys.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    warnings: Vec<String>,
}

impl Service {
    /// Returns the offered tools, and the status of their servers. Connects to servers that are not connected.
    pub async fn tools(&self, principal: &Principal) -> (Vec<Arc<ToolDefinition>>, Vec<ServerStatus>) {
        let definitions = self.tools.definitions(&principal.user_id).await;
        let servers = self.tools.servers(&principal.user_id).await;
        let servers = servers.into_iter().map(|server| shorten_stderr(status_visible_to(server, principal))).collect();
        (definitions, servers)
    }

    pub(in crate::service) fn mcp_deps(&self) -> Result<&McpDeps> {
        self.mcp_servers.as_ref().ok_or_else(|| Error::conflict("this server stores no MCP servers"))
    }

    /// Stores a new MCP server of the principal or for all users, and then tries to connect. It stays stored if that fails.
    pub async fn create_mcp_server(
        &self,
        principal: &Principal,
        new: NewMcpServer,
        key: Option<RequestKey>,
    ) -> Result<(McpServerView, Replay)> {
        let (id, replay, warnings) = self.store_new_mcp_server(principal, new, key).await?;
        let view = self.probe_mcp_server(principal, &id).await?;
        Ok((McpServerView { warnings, ..view }, replay))
    }

    async fn store_new_mcp_server(
        &self,
        principal: &Principal,
        new: NewMcpServer,
        key: Option<RequestKey>,
    ) -> Result<(McpServerId, Replay, Vec<String>)> {
        let deps = self.mcp_deps()?;
        let NewMcpServer { name, entry, variables, enabled, scope } = new;
        let owner = new_owner(principal, scope, &SERVERS)?;
        check_name(&name)?;
        let now = self.clock.now();
        let mut record = McpServerRecord {
            id: McpServerId::generate(self.ids.as_ref()),
            owner,
            name,
            entry: Map::new(),
            secrets: None,
            egress: egress_of(principal),
            enabled: enabled && !switched_off(&entry)?,
            created_at: now,
            updated_at: now,
            version: 1,
            generation: 1,
        };
        let warnings = self.put_entry(&mut record, &entry, &variables, &Secrets::new()).await?;
        let claim = self.claim(&principal.user_id, key);
        let (outcome, replay) = outcome_or_conflict(self.store.create_mcp_server(&record, deps.max_per_owner, claim).await?)?;
        let id = SERVERS.created_id(outcome, &record.name, deps.max_per_owner)?;
        deps.servers.changed(&id).await;
        Ok((id, replay, warnings))
    }

    pub async fn mcp_server(&self, principal: &Principal, id: &McpServerId) -> Result<McpServerView> {
        let deps = self.mcp_deps()?;
        let server = self.any_mcp_server(principal, id).await?;
        let status = deps.servers.status_of(&principal.user_id, id).await;
        Ok(server_view(principal, server, status))
    }

    async fn any_mcp_server(&self, principal: &Principal, id: &McpServerId) -> Result<AnyMcpServer> {
        let configured = self.mcp_deps()?.servers.configured().find(|server| server.id == *id);
        if let Some(server) = configured {
            return Ok(AnyMcpServer::Configured(server));
        }
        let record = self.store.mcp_server(&principal.user_id, id).await?.ok_or(Error::NotFound("MCP server"))?;
        Ok(AnyMcpServer::Stored(Box::new(record)))
    }

    pub async fn mcp_servers(&self, principal: &Principal, page: &PageRequest<McpServerCursor>) -> Result<Page<McpServerView>> {
        let deps = self.mcp_deps()?;
        let stored = self.store.mcp_servers(&principal.user_id, page).await?;
        let configured = deps.servers.configured().map(AnyMcpServer::Configured).collect();
        let Page { items, next } = page_of_all(stored, AnyMcpServer::Stored, configured, page, AnyMcpServer::cursor);
        let mut statuses = deps.servers.statuses(&principal.user_id).await;
        let describe = |server: AnyMcpServer| {
            let id = server.cursor().id;
            let status = statuses.iter().position(|status| status.id == id).map(|at| statuses.swap_remove(at));
            let mut view = server_view(principal, server, status);
            view.status = shorten_stderr(view.status);
            view
        };
        Ok(Page { items: items.into_iter().map(describe).collect(), next })
    }

    /// Changes a server, and then tries to connect. If versions are named, the server must have one of them.
    pub async fn update_mcp_server(
        &self,
        principal: &Principal,
        id: &McpServerId,
        patch: &McpServerPatch,
        versions: Option<&[i64]>,
    ) -> Result<McpServerView> {
        for _ in 0..TRIES {
            let before = self.changeable_mcp_server(principal, id, versions).await?;
            let (after, warnings) = self.patched_mcp_server(principal, &before, patch).await?;
            match self.store.change_mcp_server(&after).await? {
                UpdateNamedOutcome::Changed(_) => {
                    self.mcp_server_changed(&before, &after).await?;
                    let view = self.probe_mcp_server(principal, id).await?;
                    return Ok(McpServerView { warnings, ..view });
                }
                UpdateNamedOutcome::NameTaken => return Err(SERVERS.name_taken(&after.name)),
                UpdateNamedOutcome::Stale => {}
            }
        }
        Err(Error::Stale)
    }

    /// Applies a patch. Returns the changed record, and the parts of the new entry that have no effect.
    async fn patched_mcp_server(
        &self,
        principal: &Principal,
        before: &McpServerRecord,
        patch: &McpServerPatch,
    ) -> Result<(McpServerRecord, Vec<String>)> {
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
            after.egress = egress_of(principal);
            // If the stored secrets cannot be decrypted, they must be sent again. The error about the entry names the missing ones.
            let secrets = decrypt_secrets(&self.provider_deps()?.vault, before).unwrap_or_default();
            warnings = self.put_entry(&mut after, entry, &patch.variables, &secrets).await?;
        }
        after.updated_at = self.clock.now().max(before.updated_at);
        Ok((after, warnings))
    }

    pub async fn delete_mcp_server(&self, principal: &Principal, id: &McpServerId, versions: Option<&[i64]>) -> Result<()> {
        let deps = self.mcp_deps()?;
        for _ in 0..TRIES {
            let record = self.changeable_mcp_server(principal, id, versions).await?;
            if self.store.delete_mcp_server(record.owner.as_ref(), id, record.version).await? {
                // The reviews of its tools are deleted with it.
                self.hub.reviews_changed(record.owner.as_ref());
                deps.servers.changed(id).await;
                return Ok(());
            }
        }
        Err(Error::Stale)
    }

    /// Connects to a server, even after failures.
    pub async fn start_mcp_server(&self, principal: &Principal, id: &McpServerId) -> Result<McpServerView> {
        let server = self.steerable_mcp_server(principal, id).await?;
        match self.mcp_deps()?.servers.start(&principal.user_id, id, PROBE_TIME_LIMIT).await {
            Some(status) => Ok(server_view(principal, server, Some(status))),
            None => Err(Error::conflict("this MCP server is disabled; enable it first")),
        }
    }

    /// Closes the connections to a server in all processes. The next use connects again.
    pub async fn stop_mcp_server(&self, principal: &Principal, id: &McpServerId) -> Result<McpServerView> {
        let deps = self.mcp_deps()?;
        let server = self.steerable_mcp_server(principal, id).await?;
        if let AnyMcpServer::Stored(record) = &server {
            // Other processes notice the new generation.
            self.store.renew_mcp_server(record.owner.as_ref(), id).await?;
        }
        deps.servers.stop(id).await;
        deps.servers.changed(id).await;
        let status = deps.servers.status_of(&principal.user_id, id).await;
        Ok(server_view(principal, server, status))
    }

    pub async fn restart_mcp_server(&self, principal: &Principal, id: &McpServerId) -> Result<McpServerView> {
        self.stop_mcp_server(principal, id).await?;
        self.start_mcp_server(principal, id).await
    }

    /// Returns the tools of a server, and how the server's default agent treats the calls of each.
    pub async fn mcp_server_tools(
        &self,
        principal: &Principal,
        id: &McpServerId,
    ) -> Result<Vec<(Arc<ToolDefinition>, ApprovalMode)>> {
        let server = self.any_mcp_server(principal, id).await?;
        let tools = listed_or(principal, &server, self.mcp_deps()?.servers.tools_of(&principal.user_id, id).await)?;
        let mode = |tool: &ToolDefinition| self.default_profile.approval.mode(&tool.name, tool.safety);
        Ok(tools.into_iter().map(|tool| (Arc::clone(&tool), mode(&tool))).collect())
    }

    pub async fn mcp_server_resources(&self, principal: &Principal, id: &McpServerId) -> Result<Vec<McpResource>> {
        let server = self.any_mcp_server(principal, id).await?;
        listed_or(principal, &server, self.mcp_deps()?.servers.resources_of(&principal.user_id, id).await)
    }

    pub async fn mcp_server_prompts(&self, principal: &Principal, id: &McpServerId) -> Result<Vec<McpPrompt>> {
        let server = self.any_mcp_server(principal, id).await?;
        listed_or(principal, &server, self.mcp_deps()?.servers.prompts_of(&principal.user_id, id).await)
    }

    /// Imports each entry of an `mcpServers` document separately, and then tries to connect to the new servers.
    pub async fn import_mcp_servers(
        &self,
        principal: &Principal,
        mut document: McpServersDocument,
        key: Option<RequestKey>,
    ) -> Result<ImportedMcpServers> {
        let warnings = check_rest(&document.rest)?;
        let entries = std::mem::take(&mut document.mcp_servers);
        let mut data = Vec::with_capacity(entries.len());
        let mut fresh = Vec::new();
        for (at, (name, entry)) in entries.into_iter().enumerate() {
            // Keys of entries depend on the order in the document, which is the same for a repeated request. Creating and replacing
            // have outcomes of different types, and so different keys.
            let keys = ["", "\0replace"].map(|suffix| {
                key.as_ref().map(|RequestKey { key, fingerprint }| RequestKey {
                    key: stable::hash_bytes(format!("{key}\0{at}{suffix}").as_bytes()),
                    fingerprint: fingerprint.clone(),
                })
            });
            data.push(match self.import_mcp_server(principal, &document, (&name, entry), keys).await {
                Ok((id, outcome, replay, warnings)) => {
                    fresh.extend((replay == Replay::Fresh).then(|| id.clone()));
                    ImportedMcpServer { name, outcome, id: Some(id), reason: None, warnings }
                }
                Err(error @ (Error::Invalid { .. } | Error::Conflict(_) | Error::Stale)) => {
                    let (outcome, reason) = (ImportOutcome::Refused, Some(error.to_string()));
                    ImportedMcpServer { name, outcome, id: None, reason, warnings: Vec::new() }
                }
                Err(error) => return Err(error),
            });
        }
        // The servers are probed concurrently, because the document decides their number.
        let servers = &self.mcp_deps()?.servers;
        futures_util::future::join_all(fresh.iter().map(|id| servers.start(&principal.user_id, id, PROBE_TIME_LIMIT))).await;
        Ok(ImportedMcpServers { data, next_cursor: None, warnings })
    }

    async fn import_mcp_server(
        &self,
        principal: &Principal,
        document: &McpServersDocument,
        (name, entry): (&str, Value),
        [key, replace_key]: [Option<RequestKey>; 2],
    ) -> Result<(McpServerId, ImportOutcome, Replay, Vec<String>)> {
        let Value::Object(entry) = entry else { return Err(Error::conflict("the entry must be an object")) };
        let (enabled, variables, scope) = (!switched_off(&entry)?, document.variables.clone(), document.scope);
        let new = NewMcpServer { name: name.to_owned(), entry: entry.clone(), variables: variables.clone(), enabled, scope };
        // Creates first and searches later: a server that the first try of a repeated request created must not be replaced.
        let outcome = self.store_new_mcp_server(principal, new, key).await;
        // The name may exist, the limit may be reached, or the entry may need stored secrets.
        if document.replace
            && matches!(outcome, Err(Error::Invalid { .. } | Error::Conflict(_)))
            && let Some(id) = self.mcp_server_named(principal, name, scope).await?
        {
            let patch = McpServerPatch { entry: Some(entry), variables, enabled: Some(enabled), name: None };
            let (replay, warnings) = self.replace_mcp_server(principal, &id, &patch, replace_key).await?;
            return Ok((id, ImportOutcome::Replaced, replay, warnings));
        }
        outcome.map(|(id, replay, warnings)| (id, ImportOutcome::Made, replay, warnings))
    }

    async fn replace_mcp_server(
        &self,
        principal: &Principal,
        id: &McpServerId,
        patch: &McpServerPatch,
        key: Option<RequestKey>,
    ) -> Result<(Replay, Vec<String>)> {
        let before = self.changeable_mcp_server(principal, id, None).await?;
        let (after, warnings) = self.patched_mcp_server(principal, &before, patch).await?;
        let claim = self.claim(&principal.user_id, key);
        match outcome_or_conflict(self.store.replace_mcp_server(&after, claim).await?)? {
            (UpdateNamedOutcome::Changed(_), Replay::Fresh) => {
                self.mcp_server_changed(&before, &after).await?;
                Ok((Replay::Fresh, warnings))
            }
            // A repeated request does not overwrite later changes of the server.
            (UpdateNamedOutcome::Changed(_), Replay::Replayed) => Ok((Replay::Replayed, warnings)),
            (UpdateNamedOutcome::Stale | UpdateNamedOutcome::NameTaken, Replay::Fresh | Replay::Replayed) => Err(Error::Stale),
        }
    }

    /// Deletes tokens that a stored change invalidates, and closes connections that use them.
    async fn mcp_server_changed(&self, before: &McpServerRecord, after: &McpServerRecord) -> Result<()> {
        if before.entry.get("url") != after.entry.get("url") {
            // Tokens are bound to the URL of the login.
            self.store.forget_mcp_tokens(&after.id, None).await?;
        }
        self.mcp_deps()?.servers.changed(&after.id).await;
        Ok(())
    }

    /// Returns the MCP server with exactly that name: the principal's own one, or the one for all users.
    async fn mcp_server_named(&self, principal: &Principal, name: &str, scope: OwnerScope) -> Result<Option<McpServerId>> {
        // The cursor is before all records with that name, because no id is empty. At most two records have the name: the
        // principal's, and one for all users.
        let after = McpServerCursor { name: name.to_owned(), id: McpServerId::from_stored(String::new()) };
        let page = self.store.mcp_servers(&principal.user_id, &PageRequest { limit: 2, after: Some(after) }).await?;
        let is_global = scope == OwnerScope::Global;
        let found = page.items.into_iter().find(|record| record.name == name && record.owner.is_none() == is_global);
        Ok(found.map(|record| record.id))
    }

    /// Returns the `mcpServers` document of the principal's own MCP servers, or of those for all users, without secrets.
    pub async fn export_mcp_servers(&self, principal: &Principal, scope: OwnerScope) -> Result<Value> {
        let is_global = scope == OwnerScope::Global;
        if is_global {
            may_change(principal, None, &SERVERS)?;
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
                Some(next) => {
                    after = Some(
                        next.parse()
                            .map_err(|_| Error::InvalidCursor("the list of MCP servers has an invalid cursor".to_owned()))?,
                    );
                }
                None => return Ok(json!({ "mcpServers": entries })),
            }
        }
    }

    /// Probes a server briefly and returns its status. A server stays stored if it cannot be reached.
    pub(in crate::service) async fn probe_mcp_server(&self, principal: &Principal, id: &McpServerId) -> Result<McpServerView> {
        let server = self.any_mcp_server(principal, id).await?;
        let status = self.mcp_deps()?.servers.start(&principal.user_id, id, PROBE_TIME_LIMIT).await;
        Ok(server_view(principal, server, status))
    }

    /// Returns the record, if the principal may change it. If versions are named, the record must have one of them.
    async fn changeable_mcp_server(
        &self,
        principal: &Principal,
        id: &McpServerId,
        versions: Option<&[i64]>,
    ) -> Result<McpServerRecord> {
        let record = match self.any_mcp_server(principal, id).await? {
            AnyMcpServer::Stored(record) => *record,
            AnyMcpServer::Configured(_) => {
                return Err(Error::Forbidden("MCP servers of the configuration can only be changed there"));
            }
        };
        may_change(principal, record.owner.as_ref(), &SERVERS)?;
        check_version(versions, record.version)?;
        Ok(record)
    }

    /// Returns the server, if the principal may start and stop it.
    pub(in crate::service) async fn steerable_mcp_server(&self, principal: &Principal, id: &McpServerId) -> Result<AnyMcpServer> {
        let server = self.any_mcp_server(principal, id).await?;
        may_change(principal, server.owner(), &SERVERS)?;
        Ok(server)
    }

    /// Sets the entry of a record with its secrets encrypted, and returns the parts without effect. `stored` contains the stored
    /// secrets. The new entry may refer to them by name, unless its host differs.
    async fn put_entry(
        &self,
        record: &mut McpServerRecord,
        entry: &Map<String, Value>,
        variables: &Variables,
        stored: &Secrets,
    ) -> Result<Vec<String>> {
        let rules = &self.mcp_deps()?.rules;
        let refused = |reason: String| Error::field("/entry", reason);
        let variable = |name: &str| variables.get(name).map(|value| value.expose_secret().to_owned());
        let given_or_stored = |name: &str| variable(name).or_else(|| stored.get(name).cloned());
        let mut parted = part(entry, &given_or_stored).map_err(refused)?;
        let read = |entry: &Map<String, Value>, secrets: &Secrets| read_kept(&Value::Object(entry.clone()), secrets);
        let mut config = read(&parted.entry, &parted.secrets).map_err(refused)?;
        let leads_elsewhere =
            !stored.is_empty() && read(&record.entry, stored).map_or(true, |before| entry_host(&before) != entry_host(&config));
        if leads_elsewhere {
            let why = "the entry has another host, and its secrets were not given for that host";
            parted = part(entry, &variable).map_err(|reason| refused(format!("{reason}: {why}")))?;
            config = read(&parted.entry, &parted.secrets).map_err(refused)?;
        }
        rules.apply(config, record.egress).map_err(refused)?;
        record.entry = parted.entry;
        record.secrets = None;
        if !parted.secrets.is_empty() {
            let secrets = serde_json::to_string(&parted.secrets).map_err(|error| refused(error.to_string()))?;
            record.secrets = Some(self.encrypt(&record.secrets_place(), &SecretString::from(secrets)).await?);
        }
        Ok(parted.warnings)
    }
}

fn switched_off(entry: &Map<String, Value>) -> Result<bool> {
    is_switched_off(entry).map_err(|reason| Error::field("/entry", reason))
}

/// Refuses keys of a document that are misspelt keys of Capstan. Returns warnings about the others.
fn check_rest(rest: &Map<String, Value>) -> Result<Vec<String>> {
    for key in rest.keys() {
        if let Some(near) = nearest(key, ["variables", "scope", "replace"]) {
            return Err(Error::field(&format!("/{key}"), format!("is not known; did you mean {near:?}?")));
        }
    }
    check_document(rest).map_err(|reason| Error::field("", reason))
}

/// Returns the host of an entry; `None` for a local process.
fn entry_host(config: &ServerConfig) -> Option<String> {
    match &config.transport {
        ServerTransport::Stdio { .. } | ServerTransport::Container { .. } => None,
        ServerTransport::Http { url, .. } => Some(crate::service::records::providers::origin(url)),
    }
}

/// Returns whether a principal may see the errors of a server. Errors of the operator's servers contain hosts, programs and
/// settings, and a server may write anything to its standard error stream.
fn sees_inside(principal: &Principal, owner: Option<&UserId>) -> bool {
    match principal.role {
        UserRole::Admin => true,
        UserRole::Member => owner == Some(&principal.user_id),
    }
}

/// Returns a status as a principal may see it. All users of a server see whether it is in error.
fn status_visible_to(status: ServerStatus, principal: &Principal) -> ServerStatus {
    let sees = sees_inside(principal, status.owner.as_ref());
    ServerStatus { error: status.error.filter(|_| sees), stderr: status.stderr.filter(|_| sees), ..status }
}

fn shorten_stderr(status: ServerStatus) -> ServerStatus {
    ServerStatus { stderr: status.stderr.map(|text| stderr_end(&text).to_owned()), ..status }
}

fn server_view(principal: &Principal, server: AnyMcpServer, status: Option<ServerStatus>) -> McpServerView {
    let McpServerCursor { name, id } = server.cursor();
    let owner = server.owner().cloned();
    let status = status_visible_to(status.unwrap_or_else(|| ServerStatus::unknown(id, name, owner)), principal);
    McpServerView { server, status, warnings: Vec::new() }
}

/// Returns what a server lists, or the reason why not, as far as the principal may see it.
fn listed_or<T>(principal: &Principal, server: &AnyMcpServer, all: Option<std::result::Result<Vec<T>, String>>) -> Result<Vec<T>> {
    match all {
        Some(Ok(all)) => Ok(all),
        Some(Err(reason)) if sees_inside(principal, server.owner()) => {
            Err(Error::Conflict(format!("the MCP server cannot be listed: {reason}")))
        }
        Some(Err(_)) => Err(Error::conflict("the MCP server cannot be listed; an administrator can see the reason")),
        None => Err(Error::conflict("this MCP server is disabled; enable it first")),
    }
}

fn check_name(name: &str) -> Result<()> {
    let is_fit = is_short(name, MAX_NAME_CHARS) && name.trim() == name;
    let detail = || format!("must have 1 to {MAX_NAME_CHARS} characters, no control characters, and no space at its ends");
    if is_fit { Ok(()) } else { Err(Error::field("/name", detail())) }
}

fn decrypt_secrets(vault: &Vault, record: &McpServerRecord) -> std::result::Result<Secrets, EncryptionError> {
    let Some(encrypted) = &record.secrets else { return Ok(Secrets::new()) };
    let secrets = vault.decrypt(&record.secrets_place(), encrypted)?;
    serde_json::from_str(secrets.expose_secret()).map_err(|_| EncryptionError::Damaged { key_id: encrypted.key_id.clone() })
}

/// Returns a record with its decrypted secrets, by the current settings.
pub fn decrypt_mcp_server(vault: &Vault, record: &McpServerRecord, rules: &MemberRules) -> UserServer {
    let secrets = decrypt_secrets(vault, record).map_err(|error| {
        tracing::error!(mcp.server.id = %record.id, error = %error, "the secrets of an MCP server cannot be decrypted");
        "this server cannot decrypt its secrets (the server's log has the reason); enter them again".to_owned()
    });
    let entry = Value::Object(record.entry.clone());
    let config = secrets.and_then(|secrets| read_kept(&entry, &secrets)).and_then(|config| rules.apply(config, record.egress));
    UserServer {
        id: record.id.clone(),
        owner: record.owner.clone(),
        name: record.name.clone(),
        config,
        revision: record.version + record.generation,
    }
}
