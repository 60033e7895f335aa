//! The audit of tool calls: the trait.

use async_trait::async_trait;

use crate::domain::access::audit::AuditRecord;
use crate::store::{AuditCursor, AuditFilter, Page, PageRequest, StoreResult};

/// The most rows of the audit that are removed at a time.
pub const AUDIT_PIECE: i64 = 5_000;

/// The ends of all tool calls. The log writes them with the outcomes, and they outlive their conversations.
#[async_trait]
pub trait AuditStore: Send + Sync {
    /// A page of ended calls, newest first.
    async fn tool_audit(&self, filter: &AuditFilter, page: &PageRequest<AuditCursor>) -> StoreResult<Page<AuditRecord>>;

    /// Removes rows that are at least `age_ms` old by the database's clock, at most [`AUDIT_PIECE`]. Returns how many.
    async fn remove_old_audit(&self, age_ms: u64) -> StoreResult<u64>;
}
