//! What workers, use cases and streams do without: the model has no keys, no tickets, no providers, no MCP servers, no agents and nothing
//! that is old.

use async_trait::async_trait;
use capstan::domain::agent_record::{AgentRecord, AgentVersion};
use capstan::domain::audit::AuditRecord;
use capstan::domain::event::StoredEvent;
use capstan::domain::feedback::FeedbackRecord;
use capstan::domain::file::StoredFile;
use capstan::domain::fold::FoldedDelta;
use capstan::domain::ids::FileId;
use capstan::domain::ids::{AgentId, ConversationId, KeyId, McpServerId, MessageId, PinId, ProviderId, RunId, UserId};
use capstan::domain::mcp_server::McpServerRecord;
use capstan::domain::pin::{PinStatus, ToolPin};
use capstan::domain::principal::{User, UserRole};
use capstan::domain::provider::ProviderRecord;
use capstan::domain::search::Terms;
use capstan::domain::ticket::StreamTicket;
use capstan::domain::usage::DayUsage;
use capstan::store::{
    AgentCursor, AgentStore, AgentVersionCursor, AuditCursor, AuditFilter, AuditStore, EndedRun, Expired, IdempotencyClaim,
    KeyStore, Keyed, LoginTaker, McpLoginStore, McpServerCursor, McpServerStore, McpTokens, NamedChanged, NamedMade, Page,
    PageRequest, PinScope, PinStore, ProviderChanged, ProviderCursor, ProviderLogin, ProviderMade, ProviderStore, RetentionStore,
    SealedRow, SeenTool, Store, StoreResult, StoredKey, TicketStore, Tidying,
};
use capstan::store::{AttachedFile, FileCursor, FileStore, NewFile};
use capstan::store::{FeedbackCursor, FeedbackFilter, FeedbackGiven, FeedbackStore, GiveFeedback};
use capstan::store::{Found, SearchCursor, SearchStore};
use capstan::store::{Owned, UserStore};
use capstan::store::{TitleMade, TitleStore};
use capstan::store::{UsageCursor, UsageFilter, UsageStore};
use capstan::support::clock::UnixMillis;
use capstan::support::seal::Sealed;

use super::ModelStore;

#[async_trait]
impl KeyStore for ModelStore {
    async fn ensure_user(&self, _id: UserId, _name: &str, _role: UserRole, _now: UnixMillis) -> StoreResult<User> {
        panic!("the model has no users")
    }
    async fn create_key(&self, _id: KeyId, _user: &UserId, _hash: &str, _label: &str, _now: UnixMillis) -> StoreResult<()> {
        panic!("the model has no keys")
    }
    async fn user_by_key_hash(&self, _hash: &str) -> StoreResult<Option<User>> {
        panic!("the model has no keys")
    }
    async fn has_keys(&self) -> StoreResult<bool> {
        Ok(false)
    }
    async fn live_keys(&self, _hashes: &[String]) -> StoreResult<Vec<String>> {
        Ok(Vec::new())
    }
    async fn keys(&self) -> StoreResult<Vec<StoredKey>> {
        Ok(Vec::new())
    }
    async fn revoke_key(&self, _id: &KeyId, _now: UnixMillis) -> StoreResult<bool> {
        Ok(false)
    }
}

#[async_trait]
impl TicketStore for ModelStore {
    async fn create_ticket(&self, _hash: &str, _ticket: &StreamTicket, _lifetime_ms: u32) -> StoreResult<UnixMillis> {
        panic!("the model has no tickets")
    }
    async fn take_ticket(&self, _hash: &str) -> StoreResult<Option<StreamTicket>> {
        Ok(None)
    }
    async fn remove_expired_tickets(&self) -> StoreResult<u64> {
        Ok(0)
    }
}

#[async_trait]
impl FileStore for ModelStore {
    async fn begin_file(&self, _new: &NewFile, _most: u32) -> StoreResult<bool> {
        panic!("the model has no files")
    }
    async fn add_file_chunk(&self, _id: &FileId, _number: u32, _bytes: &[u8]) -> StoreResult<()> {
        panic!("the model has no files")
    }
    async fn finish_file(&self, _owner: &UserId, _id: &FileId) -> StoreResult<Option<StoredFile>> {
        Ok(None)
    }
    async fn file(&self, _owner: &UserId, _id: &FileId) -> StoreResult<Option<StoredFile>> {
        Ok(None)
    }
    async fn file_of(&self, _owner: &UserId, _sha256: &str, _name: &str) -> StoreResult<Option<StoredFile>> {
        Ok(None)
    }
    async fn files(&self, _owner: &UserId, _page: &PageRequest<FileCursor>) -> StoreResult<Page<StoredFile>> {
        panic!("the model has no files")
    }
    async fn file_chunk(&self, _owner: &UserId, _id: &FileId, _number: u32) -> StoreResult<Option<Vec<u8>>> {
        Ok(None)
    }
    async fn attached_files(&self, _owner: &UserId, _ids: &[FileId]) -> StoreResult<Vec<AttachedFile>> {
        Ok(Vec::new())
    }
    async fn delete_file(&self, _owner: &UserId, _id: &FileId) -> StoreResult<bool> {
        Ok(false)
    }
    async fn count_unused_files(&self, _age_ms: u64) -> StoreResult<u64> {
        Ok(0)
    }
    async fn remove_unused_files(&self, _age_ms: u64) -> StoreResult<u64> {
        Ok(0)
    }
    async fn file_bytes(&self) -> StoreResult<u64> {
        Ok(0)
    }
}

#[async_trait]
impl UsageStore for ModelStore {
    async fn usage(&self, _filter: &UsageFilter, _page: &PageRequest<UsageCursor>) -> StoreResult<Page<DayUsage>> {
        panic!("the model adds nothing up")
    }
}

#[async_trait]
impl AuditStore for ModelStore {
    async fn tool_audit(&self, _filter: &AuditFilter, _page: &PageRequest<AuditCursor>) -> StoreResult<Page<AuditRecord>> {
        Ok(Page { items: Vec::new(), next: None })
    }
    async fn remove_old_audit(&self, _age_ms: u64) -> StoreResult<u64> {
        Ok(0)
    }
}

#[async_trait]
impl PinStore for ModelStore {
    async fn sight_tools(&self, _seen: &[SeenTool]) -> StoreResult<Vec<PinId>> {
        Ok(Vec::new())
    }
    async fn tool_pins(&self, _viewer: &UserId, _status: Option<PinStatus>) -> StoreResult<Vec<ToolPin>> {
        Ok(Vec::new())
    }
    async fn accept_tool_pin(&self, _scope: &PinScope, _id: &PinId, _by: &UserId) -> StoreResult<Option<ToolPin>> {
        Ok(None)
    }
}

#[async_trait]
impl RetentionStore for ModelStore {
    async fn remove_unused_tool_sets(&self) -> StoreResult<u64> {
        panic!("the model keeps the tools of each run with it")
    }
    async fn runs_to_fold(&self, _age_ms: u64, _after: Option<&EndedRun>, _limit: u32) -> StoreResult<Vec<EndedRun>> {
        Ok(Vec::new())
    }
    async fn fold_deltas(&self, _of: &ConversationId, _folds: &[FoldedDelta], _through: Option<&RunId>) -> StoreResult<bool> {
        panic!("the model is never old")
    }
    async fn idle_conversations(
        &self,
        _tidying: Tidying,
        _age_ms: u64,
        _after: Option<&ConversationId>,
        _limit: u32,
    ) -> StoreResult<Vec<(UserId, ConversationId)>> {
        Ok(Vec::new())
    }
    async fn archive_idle(&self, _ids: &[ConversationId], _age_ms: u64) -> StoreResult<Vec<StoredEvent>> {
        Ok(Vec::new())
    }
    async fn delete_idle(&self, _owner: &UserId, _id: &ConversationId, _tidying: Tidying, _age_ms: u64) -> StoreResult<bool> {
        Ok(false)
    }
}

#[async_trait]
impl ProviderStore for ModelStore {
    async fn create_provider(
        &self,
        _new: &ProviderRecord,
        _most: u32,
        _key: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<ProviderMade>> {
        panic!("the model has no providers")
    }
    async fn provider(&self, _viewer: &UserId, _id: &ProviderId) -> StoreResult<Option<ProviderRecord>> {
        Ok(None)
    }
    async fn providers(&self, _viewer: &UserId, _page: &PageRequest<ProviderCursor>) -> StoreResult<Page<ProviderRecord>> {
        Ok(Page { items: Vec::new(), next: None })
    }
    async fn provider_named(&self, _owner: &UserId, _name: &str) -> StoreResult<Option<ProviderRecord>> {
        Ok(None)
    }
    async fn change_provider(&self, _changed: &ProviderRecord) -> StoreResult<ProviderChanged> {
        Ok(ProviderChanged::Stale)
    }
    async fn delete_provider(&self, _owner: Option<&UserId>, _id: &ProviderId, _version: i64) -> StoreResult<bool> {
        Ok(false)
    }
    async fn create_login(&self, _state_hash: &str, _login: &ProviderLogin, _lifetime_ms: u32) -> StoreResult<()> {
        panic!("the model has no providers")
    }
    async fn take_login(&self, _state_hash: &str, _taker: &LoginTaker) -> StoreResult<Option<ProviderLogin>> {
        Ok(None)
    }
    async fn master_keys_in_use(&self) -> StoreResult<Vec<(String, i64)>> {
        Ok(Vec::new())
    }
    async fn sealed_rows(&self, _after: Option<&str>, _limit: u32) -> StoreResult<Vec<SealedRow>> {
        Ok(Vec::new())
    }
    async fn reseal(&self, _row: &SealedRow, _anew: Option<&Sealed>) -> StoreResult<bool> {
        Ok(false)
    }
}

#[async_trait]
impl McpServerStore for ModelStore {
    async fn create_mcp_server(
        &self,
        _new: &McpServerRecord,
        _most: u32,
        _key: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<NamedMade<McpServerId>>> {
        panic!("the model has no MCP servers")
    }
    async fn mcp_server(&self, _viewer: &UserId, _id: &McpServerId) -> StoreResult<Option<McpServerRecord>> {
        Ok(None)
    }
    async fn mcp_servers(&self, _viewer: &UserId, _page: &PageRequest<McpServerCursor>) -> StoreResult<Page<McpServerRecord>> {
        Ok(Page { items: Vec::new(), next: None })
    }
    async fn usable_mcp_servers(&self, _owner: &UserId) -> StoreResult<Vec<McpServerRecord>> {
        Ok(Vec::new())
    }
    async fn enabled_mcp_servers(&self, _ids: &[McpServerId]) -> StoreResult<Vec<McpServerRecord>> {
        Ok(Vec::new())
    }
    async fn change_mcp_server(&self, _changed: &McpServerRecord) -> StoreResult<NamedChanged> {
        Ok(NamedChanged::Stale)
    }
    async fn replace_mcp_server(
        &self,
        _changed: &McpServerRecord,
        _key: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<NamedChanged>> {
        Ok(Keyed::Fresh(NamedChanged::Stale))
    }
    async fn renew_mcp_server(&self, _owner: Option<&UserId>, _id: &McpServerId) -> StoreResult<bool> {
        Ok(false)
    }
    async fn delete_mcp_server(&self, _owner: Option<&UserId>, _id: &McpServerId, _version: i64) -> StoreResult<bool> {
        Ok(false)
    }
}

#[async_trait]
impl AgentStore for ModelStore {
    async fn create_agent(
        &self,
        _new: &AgentRecord,
        _first: &AgentVersion,
        _most: u32,
        _key: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<NamedMade<AgentId>>> {
        panic!("the model has no agents")
    }
    async fn agent(&self, _viewer: &UserId, _id: &AgentId) -> StoreResult<Option<AgentRecord>> {
        Ok(None)
    }
    async fn agent_named(&self, _viewer: &UserId, _name: &str) -> StoreResult<Option<AgentRecord>> {
        Ok(None)
    }
    async fn agents(&self, _viewer: &UserId, _page: &PageRequest<AgentCursor>) -> StoreResult<Page<AgentRecord>> {
        Ok(Page { items: Vec::new(), next: None })
    }
    async fn change_agent(&self, _changed: &AgentRecord, _version: Option<&AgentVersion>) -> StoreResult<NamedChanged> {
        Ok(NamedChanged::Stale)
    }
    async fn agent_version(&self, _id: &AgentId, _number: u32) -> StoreResult<Option<AgentVersion>> {
        Ok(None)
    }
    async fn agent_versions(&self, _id: &AgentId, _page: &PageRequest<AgentVersionCursor>) -> StoreResult<Page<AgentVersion>> {
        Ok(Page { items: Vec::new(), next: None })
    }
    async fn delete_agent(&self, _owner: Option<&UserId>, _id: &AgentId, _revision: i64) -> StoreResult<bool> {
        Ok(false)
    }
}

#[async_trait]
impl McpLoginStore for ModelStore {
    async fn create_mcp_login(
        &self,
        _state_hash: &str,
        _server: &McpServerId,
        _login: &ProviderLogin,
        _lifetime_ms: u32,
    ) -> StoreResult<()> {
        panic!("the model has no MCP servers")
    }
    async fn take_mcp_login(&self, _state_hash: &str, _taker: &LoginTaker) -> StoreResult<Option<(McpServerId, ProviderLogin)>> {
        Ok(None)
    }
    async fn mcp_tokens(&self, _server: &McpServerId) -> StoreResult<Option<McpTokens>> {
        Ok(None)
    }
    async fn put_mcp_tokens(&self, _tokens: &McpTokens) -> StoreResult<()> {
        panic!("the model has no MCP servers")
    }
    async fn claim_mcp_tokens(&self, _server: &McpServerId, _version: i64, _for_ms: u32) -> StoreResult<bool> {
        Ok(false)
    }
    async fn end_mcp_refresh(
        &self,
        _server: &McpServerId,
        _version: i64,
        _anew: Option<(&Sealed, Option<i64>)>,
    ) -> StoreResult<bool> {
        Ok(false)
    }
    async fn forget_mcp_tokens(&self, _server: &McpServerId, _version: Option<i64>) -> StoreResult<bool> {
        Ok(false)
    }
    async fn see_mcp_tokens(&self, _servers: &[McpServerId]) -> StoreResult<()> {
        Ok(())
    }
    async fn forget_unseen_mcp_tokens(&self, _unseen_ms: i64) -> StoreResult<u64> {
        Ok(0)
    }
}

#[async_trait]
impl Store for ModelStore {
    async fn ping(&self) -> StoreResult<()> {
        Ok(())
    }
    fn is_shared(&self) -> bool {
        true
    }
    fn caps_owners(&self) -> bool {
        self.state().owner_cap > 0
    }
    async fn count_expired(&self, keys_ms: u64, _audit_ms: Option<u64>) -> StoreResult<Expired> {
        let state = self.state();
        let until = state.now - i64::try_from(keys_ms).unwrap();
        let records = state.answers.values().filter(|(.., at)| *at <= until).count() as u64;
        Ok(Expired { records, ..Expired::default() })
    }
    async fn remove_expired_idempotency(&self, age_ms: u64) -> StoreResult<u64> {
        let mut state = self.state();
        let until = state.now - i64::try_from(age_ms).unwrap();
        Ok(state.answers.extract_if(.., |_, (.., at)| *at <= until).count() as u64)
    }
    async fn close(&self) {}
}

#[async_trait]
impl SearchStore for ModelStore {
    async fn search(
        &self,
        _owner: &UserId,
        _terms: &Terms,
        _archived: Option<bool>,
        _page: &PageRequest<SearchCursor>,
    ) -> StoreResult<Page<Found>> {
        panic!("the model has no search")
    }
}

#[async_trait]
impl FeedbackStore for ModelStore {
    async fn give_feedback(&self, _give: GiveFeedback, _key: Option<IdempotencyClaim>) -> StoreResult<Keyed<FeedbackGiven>> {
        panic!("the model has no feedback")
    }
    async fn withdraw_feedback(&self, _owner: &UserId, _of: &ConversationId, _message: &MessageId) -> StoreResult<bool> {
        Ok(false)
    }
    async fn review_feedback(&self, _: &MessageId, _: Option<&UserId>, _: UnixMillis) -> StoreResult<Option<FeedbackRecord>> {
        Ok(None)
    }
    async fn feedback(&self, _filter: &FeedbackFilter, _page: &PageRequest<FeedbackCursor>) -> StoreResult<Page<FeedbackRecord>> {
        panic!("the model has no feedback")
    }
}

#[async_trait]
impl TitleStore for ModelStore {
    async fn claim_title(&self, _owner: &UserId, _of: &ConversationId) -> StoreResult<Option<String>> {
        Ok(None)
    }
    async fn finish_title(&self, _made: TitleMade) -> StoreResult<Vec<StoredEvent>> {
        panic!("the model makes no titles")
    }
}

#[async_trait]
impl UserStore for ModelStore {
    async fn user_named(&self, _name: &str) -> StoreResult<Option<User>> {
        Ok(None)
    }
    async fn set_role(&self, _user: &UserId, _role: UserRole) -> StoreResult<()> {
        panic!("the model has no users")
    }
    async fn set_groups(&self, _user: &UserId, _groups: &[String]) -> StoreResult<()> {
        panic!("the model has no users")
    }
    async fn groups_of(&self, _user: &UserId) -> StoreResult<Vec<String>> {
        Ok(Vec::new())
    }
    async fn owned_by(&self, _user: &UserId) -> StoreResult<Owned> {
        panic!("the model has no users")
    }
    async fn remove_user(&self, _user: &UserId) -> StoreResult<bool> {
        panic!("the model has no users")
    }
}
