//! What became of every call of a tool, for its owner and for administrators.

use super::{Error, Result, Service};
use crate::domain::audit::{AuditOutcome, AuditRecord};
use crate::domain::call_record::ToolCallRecord;
use crate::domain::ids::{CallId, RunId, UserId};
use crate::domain::principal::{Principal, UserRole};
use crate::store::{AuditCursor, AuditFilter, Page, PageRequest};

/// Whose calls, or whose runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditOf {
    /// The caller's own.
    Own,
    /// Those of a user.
    User(UserId),
    /// All.
    Everybody,
}

impl Service {
    /// A page of ended calls, newest first.
    ///
    /// # Errors
    /// `Forbidden` for those of others, unless the caller is an administrator.
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

    /// One call of a run, with its whole result.
    ///
    /// # Errors
    /// `NotFound` for a call that is none of that run's, or somebody else's.
    pub async fn tool_call(&self, principal: &Principal, run: &RunId, call: &CallId) -> Result<ToolCallRecord> {
        self.store.tool_call(&principal.user_id, run, call).await?.ok_or(Error::NotFound("tool call"))
    }
}

/// Whose rows are meant; `None` for everybody's.
pub(super) fn owner_of(principal: &Principal, of: AuditOf, refusal: &'static str) -> Result<Option<UserId>> {
    match (of, principal.role) {
        (AuditOf::Own, _) => Ok(Some(principal.user_id.clone())),
        (AuditOf::User(user), UserRole::Admin) => Ok(Some(user)),
        (AuditOf::User(user), UserRole::Member) if user == principal.user_id => Ok(Some(user)),
        (AuditOf::Everybody, UserRole::Admin) => Ok(None),
        (AuditOf::User(_) | AuditOf::Everybody, UserRole::Member) => Err(Error::Forbidden(refusal)),
    }
}
