//! The audit log of tool calls, for their owner and for administrators.

use super::{Error, Result, Service};
use crate::domain::audit::{AuditOutcome, AuditRecord};
use crate::domain::call_record::ToolCallRecord;
use crate::domain::ids::{CallId, RunId, UserId};
use crate::domain::principal::{Principal, UserRole};
use crate::store::{AuditCursor, AuditFilter, Page, PageRequest};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditOf {
    Own,
    User(UserId),
    All,
}

impl Service {
    /// A page of ended calls, newest first.
    pub async fn tool_audit(
        &self,
        principal: &Principal,
        of: AuditOf,
        run: Option<RunId>,
        tool: Option<String>,
        outcome: Option<AuditOutcome>,
        page: &PageRequest<AuditCursor>,
    ) -> Result<Page<AuditRecord>> {
        let owner = owner_of(principal, of, "the calls of others are an administrator's to see")?;
        Ok(self.store.tool_audit(&AuditFilter { owner, run, tool, outcome }, page).await?)
    }

    pub async fn tool_call(&self, principal: &Principal, run: &RunId, call: &CallId) -> Result<ToolCallRecord> {
        self.store.tool_call(&principal.user_id, run, call).await?.ok_or(Error::NotFound("tool call"))
    }
}

/// Returns the owner whose rows are meant; `None` for all owners.
pub(super) fn owner_of(principal: &Principal, of: AuditOf, refusal: &'static str) -> Result<Option<UserId>> {
    match (of, principal.role) {
        (AuditOf::Own, _) => Ok(Some(principal.user_id.clone())),
        (AuditOf::User(user), UserRole::Admin) => Ok(Some(user)),
        (AuditOf::User(user), UserRole::Member) if user == principal.user_id => Ok(Some(user)),
        (AuditOf::All, UserRole::Admin) => Ok(None),
        (AuditOf::User(_) | AuditOf::All, UserRole::Member) => Err(Error::Forbidden(refusal)),
    }
}
