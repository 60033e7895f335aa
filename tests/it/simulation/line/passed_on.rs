//! What a node asks of the store that the weather does not touch: no claim in the simulation rests on it.

use async_trait::async_trait;
use capstan::domain::agent_record::{AgentRecord, AgentVersion};
use capstan::domain::audit::AuditRecord;
use capstan::domain::event::StoredEvent;
use capstan::domain::feedback::FeedbackRecord;
use capstan::domain::file::StoredFile;
use capstan::domain::fold::FoldedDelta;
use capstan::domain::ids::{AgentId, ConversationId, FileId, KeyId, McpServerId, MessageId, PinId, ProviderId, RunId, UserId};
use capstan::domain::mcp_server::McpServerRecord;
use capstan::domain::pin::{PinStatus, ToolPin};
use capstan::domain::principal::{User, UserRole};
use capstan::domain::provider::ProviderRecord;
use capstan::domain::search::Terms;
use capstan::domain::ticket::StreamTicket;
use capstan::domain::usage::DayUsage;
use capstan::store::*;
use capstan::support::clock::UnixMillis;
use capstan::support::seal::Sealed;

use super::Line;

#[async_trait]
impl KeyStore for Line {
    async fn ensure_user(&self, id: UserId, name: &str, role: UserRole, now: UnixMillis) -> StoreResult<User> {
        self.model.ensure_user(id, name, role, now).await
    }
    async fn create_key(&self, id: KeyId, user: &UserId, hash: &str, label: &str, now: UnixMillis) -> StoreResult<()> {
        self.model.create_key(id, user, hash, label, now).await
    }
    async fn user_by_key_hash(&self, hash: &str) -> StoreResult<Option<User>> {
        self.model.user_by_key_hash(hash).await
    }
    async fn has_keys(&self) -> StoreResult<bool> {
        self.model.has_keys().await
    }
    async fn live_keys(&self, hashes: &[String]) -> StoreResult<Vec<String>> {
        self.model.live_keys(hashes).await
    }
    async fn keys(&self) -> StoreResult<Vec<StoredKey>> {
        self.model.keys().await
    }
    async fn revoke_key(&self, id: &KeyId, now: UnixMillis) -> StoreResult<bool> {
        self.model.revoke_key(id, now).await
    }
}

#[async_trait]
impl TicketStore for Line {
    async fn create_ticket(&self, hash: &str, ticket: &StreamTicket, lifetime_ms: u32) -> StoreResult<UnixMillis> {
        self.model.create_ticket(hash, ticket, lifetime_ms).await
    }
    async fn take_ticket(&self, hash: &str) -> StoreResult<Option<StreamTicket>> {
        self.model.take_ticket(hash).await
    }
    async fn remove_expired_tickets(&self) -> StoreResult<u64> {
        self.model.remove_expired_tickets().await
    }
}

#[async_trait]
impl FileStore for Line {
    async fn begin_file(&self, new: &NewFile, most: u32) -> StoreResult<bool> {
        self.model.begin_file(new, most).await
    }
    async fn add_file_chunk(&self, id: &FileId, number: u32, bytes: &[u8]) -> StoreResult<()> {
        self.model.add_file_chunk(id, number, bytes).await
    }
    async fn finish_file(&self, owner: &UserId, id: &FileId) -> StoreResult<Option<StoredFile>> {
        self.model.finish_file(owner, id).await
    }
    async fn file(&self, owner: &UserId, id: &FileId) -> StoreResult<Option<StoredFile>> {
        self.model.file(owner, id).await
    }
    async fn file_of(&self, owner: &UserId, sha256: &str, name: &str) -> StoreResult<Option<StoredFile>> {
        self.model.file_of(owner, sha256, name).await
    }
    async fn files(&self, owner: &UserId, page: &PageRequest<FileCursor>) -> StoreResult<Page<StoredFile>> {
        self.model.files(owner, page).await
    }
    async fn file_chunk(&self, owner: &UserId, id: &FileId, number: u32) -> StoreResult<Option<Vec<u8>>> {
        self.model.file_chunk(owner, id, number).await
    }
    async fn attached_files(&self, owner: &UserId, ids: &[FileId]) -> StoreResult<Vec<AttachedFile>> {
        self.model.attached_files(owner, ids).await
    }
    async fn delete_file(&self, owner: &UserId, id: &FileId) -> StoreResult<bool> {
        self.model.delete_file(owner, id).await
    }
    async fn count_unused_files(&self, age_ms: u64) -> StoreResult<u64> {
        self.model.count_unused_files(age_ms).await
    }
    async fn remove_unused_files(&self, age_ms: u64) -> StoreResult<u64> {
        self.model.remove_unused_files(age_ms).await
    }
    async fn file_bytes(&self) -> StoreResult<u64> {
        self.model.file_bytes().await
    }
}

#[async_trait]
impl UsageStore for Line {
    async fn usage(&self, filter: &UsageFilter, page: &PageRequest<UsageCursor>) -> StoreResult<Page<DayUsage>> {
        self.model.usage(filter, page).await
    }
}

#[async_trait]
impl AuditStore for Line {
    async fn tool_audit(&self, filter: &AuditFilter, page: &PageRequest<AuditCursor>) -> StoreResult<Page<AuditRecord>> {
        self.model.tool_audit(filter, page).await
    }
    async fn remove_old_audit(&self, age_ms: u64) -> StoreResult<u64> {
        self.model.remove_old_audit(age_ms).await
    }
}

#[async_trait]
impl PinStore for Line {
    async fn sight_tools(&self, seen: &[SeenTool]) -> StoreResult<Vec<PinId>> {
        self.model.sight_tools(seen).await
    }
    async fn tool_pins(&self, viewer: &UserId, status: Option<PinStatus>) -> StoreResult<Vec<ToolPin>> {
        self.model.tool_pins(viewer, status).await
    }
    async fn accept_tool_pin(&self, scope: &PinScope, id: &PinId, by: &UserId) -> StoreResult<Option<ToolPin>> {
        self.model.accept_tool_pin(scope, id, by).await
    }
}

#[async_trait]
impl RetentionStore for Line {
    async fn remove_unused_tool_sets(&self) -> StoreResult<u64> {
        self.model.remove_unused_tool_sets().await
    }
    async fn runs_to_fold(&self, age_ms: u64, after: Option<&EndedRun>, limit: u32) -> StoreResult<Vec<EndedRun>> {
        self.model.runs_to_fold(age_ms, after, limit).await
    }
    async fn fold_deltas(&self, of: &ConversationId, folds: &[FoldedDelta], through: Option<&RunId>) -> StoreResult<bool> {
        self.model.fold_deltas(of, folds, through).await
    }
    async fn idle_conversations(
        &self,
        tidying: Tidying,
        age_ms: u64,
        after: Option<&ConversationId>,
        limit: u32,
    ) -> StoreResult<Vec<(UserId, ConversationId)>> {
        self.model.idle_conversations(tidying, age_ms, after, limit).await
    }
    async fn archive_idle(&self, ids: &[ConversationId], age_ms: u64) -> StoreResult<Vec<StoredEvent>> {
        self.model.archive_idle(ids, age_ms).await
    }
    async fn delete_idle(&self, owner: &UserId, id: &ConversationId, tidying: Tidying, age_ms: u64) -> StoreResult<bool> {
        self.model.delete_idle(owner, id, tidying, age_ms).await
    }
}

#[async_trait]
impl ProviderStore for Line {
    async fn create_provider(
        &self,
        new: &ProviderRecord,
        most: u32,
        key: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<ProviderMade>> {
        self.model.create_provider(new, most, key).await
    }
    async fn provider(&self, viewer: &UserId, id: &ProviderId) -> StoreResult<Option<ProviderRecord>> {
        self.model.provider(viewer, id).await
    }
    async fn providers(&self, viewer: &UserId, page: &PageRequest<ProviderCursor>) -> StoreResult<Page<ProviderRecord>> {
        self.model.providers(viewer, page).await
    }
    async fn provider_named(&self, owner: &UserId, name: &str) -> StoreResult<Option<ProviderRecord>> {
        self.model.provider_named(owner, name).await
    }
    async fn change_provider(&self, changed: &ProviderRecord) -> StoreResult<ProviderChanged> {
        self.model.change_provider(changed).await
    }
    async fn delete_provider(&self, owner: Option<&UserId>, id: &ProviderId, version: i64) -> StoreResult<bool> {
        self.model.delete_provider(owner, id, version).await
    }
    async fn create_login(&self, state_hash: &str, login: &ProviderLogin, lifetime_ms: u32) -> StoreResult<()> {
        self.model.create_login(state_hash, login, lifetime_ms).await
    }
    async fn take_login(&self, state_hash: &str, taker: &LoginTaker) -> StoreResult<Option<ProviderLogin>> {
        self.model.take_login(state_hash, taker).await
    }
    async fn master_keys_in_use(&self) -> StoreResult<Vec<(String, i64)>> {
        self.model.master_keys_in_use().await
    }
    async fn sealed_rows(&self, after: Option<&str>, limit: u32) -> StoreResult<Vec<SealedRow>> {
        self.model.sealed_rows(after, limit).await
    }
    async fn reseal(&self, row: &SealedRow, anew: Option<&Sealed>) -> StoreResult<bool> {
        self.model.reseal(row, anew).await
    }
}

#[async_trait]
impl McpServerStore for Line {
    async fn create_mcp_server(
        &self,
        new: &McpServerRecord,
        most: u32,
        key: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<NamedMade<McpServerId>>> {
        self.model.create_mcp_server(new, most, key).await
    }
    async fn mcp_server(&self, viewer: &UserId, id: &McpServerId) -> StoreResult<Option<McpServerRecord>> {
        self.model.mcp_server(viewer, id).await
    }
    async fn mcp_servers(&self, viewer: &UserId, page: &PageRequest<McpServerCursor>) -> StoreResult<Page<McpServerRecord>> {
        self.model.mcp_servers(viewer, page).await
    }
    async fn usable_mcp_servers(&self, owner: &UserId) -> StoreResult<Vec<McpServerRecord>> {
        self.model.usable_mcp_servers(owner).await
    }
    async fn enabled_mcp_servers(&self, ids: &[McpServerId]) -> StoreResult<Vec<McpServerRecord>> {
        self.model.enabled_mcp_servers(ids).await
    }
    async fn change_mcp_server(&self, changed: &McpServerRecord) -> StoreResult<NamedChanged> {
        self.model.change_mcp_server(changed).await
    }
    async fn replace_mcp_server(&self, new: &McpServerRecord, key: Option<IdempotencyClaim>) -> StoreResult<Keyed<NamedChanged>> {
        self.model.replace_mcp_server(new, key).await
    }
    async fn renew_mcp_server(&self, owner: Option<&UserId>, id: &McpServerId) -> StoreResult<bool> {
        self.model.renew_mcp_server(owner, id).await
    }
    async fn delete_mcp_server(&self, owner: Option<&UserId>, id: &McpServerId, version: i64) -> StoreResult<bool> {
        self.model.delete_mcp_server(owner, id, version).await
    }
}

#[async_trait]
impl AgentStore for Line {
    async fn create_agent(
        &self,
        new: &AgentRecord,
        first: &AgentVersion,
        most: u32,
        key: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<NamedMade<AgentId>>> {
        self.model.create_agent(new, first, most, key).await
    }
    async fn agent(&self, viewer: &UserId, id: &AgentId) -> StoreResult<Option<AgentRecord>> {
        self.model.agent(viewer, id).await
    }
    async fn agent_named(&self, viewer: &UserId, name: &str) -> StoreResult<Option<AgentRecord>> {
        self.model.agent_named(viewer, name).await
    }
    async fn agents(&self, viewer: &UserId, page: &PageRequest<AgentCursor>) -> StoreResult<Page<AgentRecord>> {
        self.model.agents(viewer, page).await
    }
    async fn change_agent(&self, changed: &AgentRecord, version: Option<&AgentVersion>) -> StoreResult<NamedChanged> {
        self.model.change_agent(changed, version).await
    }
    async fn agent_version(&self, id: &AgentId, number: u32) -> StoreResult<Option<AgentVersion>> {
        self.model.agent_version(id, number).await
    }
    async fn agent_versions(&self, id: &AgentId, page: &PageRequest<AgentVersionCursor>) -> StoreResult<Page<AgentVersion>> {
        self.model.agent_versions(id, page).await
    }
    async fn delete_agent(&self, owner: Option<&UserId>, id: &AgentId, revision: i64) -> StoreResult<bool> {
        self.model.delete_agent(owner, id, revision).await
    }
}

#[async_trait]
impl McpLoginStore for Line {
    async fn create_mcp_login(
        &self,
        state_hash: &str,
        server: &McpServerId,
        login: &ProviderLogin,
        lifetime_ms: u32,
    ) -> StoreResult<()> {
        self.model.create_mcp_login(state_hash, server, login, lifetime_ms).await
    }
    async fn take_mcp_login(&self, state_hash: &str, taker: &LoginTaker) -> StoreResult<Option<(McpServerId, ProviderLogin)>> {
        self.model.take_mcp_login(state_hash, taker).await
    }
    async fn mcp_tokens(&self, server: &McpServerId) -> StoreResult<Option<McpTokens>> {
        self.model.mcp_tokens(server).await
    }
    async fn put_mcp_tokens(&self, tokens: &McpTokens) -> StoreResult<()> {
        self.model.put_mcp_tokens(tokens).await
    }
    async fn claim_mcp_tokens(&self, server: &McpServerId, version: i64, for_ms: u32) -> StoreResult<bool> {
        self.model.claim_mcp_tokens(server, version, for_ms).await
    }
    async fn end_mcp_refresh(&self, server: &McpServerId, version: i64, anew: Option<(&Sealed, Option<i64>)>) -> StoreResult<bool> {
        self.model.end_mcp_refresh(server, version, anew).await
    }
    async fn forget_mcp_tokens(&self, server: &McpServerId, version: Option<i64>) -> StoreResult<bool> {
        self.model.forget_mcp_tokens(server, version).await
    }
    async fn see_mcp_tokens(&self, servers: &[McpServerId]) -> StoreResult<()> {
        self.model.see_mcp_tokens(servers).await
    }
    async fn forget_unseen_mcp_tokens(&self, unseen_ms: i64) -> StoreResult<u64> {
        self.model.forget_unseen_mcp_tokens(unseen_ms).await
    }
}

#[async_trait]
impl SearchStore for Line {
    async fn search(
        &self,
        owner: &UserId,
        terms: &Terms,
        archived: Option<bool>,
        page: &PageRequest<SearchCursor>,
    ) -> StoreResult<Page<Found>> {
        self.model.search(owner, terms, archived, page).await
    }
}

#[async_trait]
impl FeedbackStore for Line {
    async fn give_feedback(&self, give: GiveFeedback, key: Option<IdempotencyClaim>) -> StoreResult<Keyed<FeedbackGiven>> {
        self.model.give_feedback(give, key).await
    }
    async fn withdraw_feedback(&self, owner: &UserId, of: &ConversationId, message: &MessageId) -> StoreResult<bool> {
        self.model.withdraw_feedback(owner, of, message).await
    }
    async fn review_feedback(
        &self,
        message: &MessageId,
        by: Option<&UserId>,
        now: UnixMillis,
    ) -> StoreResult<Option<FeedbackRecord>> {
        self.model.review_feedback(message, by, now).await
    }
    async fn feedback(&self, filter: &FeedbackFilter, page: &PageRequest<FeedbackCursor>) -> StoreResult<Page<FeedbackRecord>> {
        self.model.feedback(filter, page).await
    }
}

#[async_trait]
impl TitleStore for Line {
    async fn claim_title(&self, owner: &UserId, of: &ConversationId) -> StoreResult<Option<String>> {
        self.model.claim_title(owner, of).await
    }
    async fn finish_title(&self, made: TitleMade) -> StoreResult<Vec<StoredEvent>> {
        self.model.finish_title(made).await
    }
}

#[async_trait]
impl UserStore for Line {
    async fn user_named(&self, name: &str) -> StoreResult<Option<User>> {
        self.model.user_named(name).await
    }
    async fn set_role(&self, user: &UserId, role: UserRole) -> StoreResult<()> {
        self.model.set_role(user, role).await
    }
    async fn set_groups(&self, user: &UserId, groups: &[String]) -> StoreResult<()> {
        self.model.set_groups(user, groups).await
    }
    async fn groups_of(&self, user: &UserId) -> StoreResult<Vec<String>> {
        self.model.groups_of(user).await
    }
    async fn owned_by(&self, user: &UserId) -> StoreResult<Owned> {
        self.model.owned_by(user).await
    }
    async fn remove_user(&self, user: &UserId) -> StoreResult<bool> {
        self.model.remove_user(user).await
    }
}
