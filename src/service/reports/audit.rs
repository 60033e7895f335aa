//! The audit log of tool calls, for their owner and for administrators.

use crate::domain::access::audit::{AuditOutcome, AuditRecord};
use crate::domain::access::principal::{Principal, UserRole};
use crate::domain::ids::{CallId, RunId, UserId};
use crate::domain::tool::call_record::ToolCallRecord;
use crate::service::{Error, Result, Service};
use crate::store::{AuditCursor, AuditFilter, Page, PageRequest};

const ALL: &str = "all";

impl Service {
    /// Returns a page of ended calls, newest first.
    pub async fn tool_audit(
        &self,
        principal: &Principal,
        owner: Option<&str>,
        run: Option<RunId>,
        tool: Option<String>,
        outcome: Option<AuditOutcome>,
        page: &PageRequest<AuditCursor>,
    ) -> Result<Page<AuditRecord>> {
        let owner = owner_of(principal, owner, "only an administrator can see the calls of others")?;
        Ok(self.store.tool_audit(&AuditFilter { owner, run, tool, outcome }, page).await?)
    }

    pub async fn tool_call(&self, principal: &Principal, run: &RunId, call: &CallId) -> Result<ToolCallRecord> {
        self.store.tool_call(&principal.user_id, run, call).await?.ok_or(Error::NotFound("tool call"))
    }
}

/// Returns the owner of the requested rows, by default the principal; `None` for all owners.
pub(in crate::service) fn owner_of(principal: &Principal, owner: Option<&str>, refusal: &'static str) -> Result<Option<UserId>> {
    let invalid = |_| Error::invalid("the query parameter owner must be a user's id or all");
    let requested_owner = match owner {
        None => Some(principal.user_id.clone()),
        Some(ALL) => None,
        Some(owner) => Some(UserId::parse(owner).map_err(invalid)?),
    };
    match principal.role {
        UserRole::Member if requested_owner.as_ref() != Some(&principal.user_id) => Err(Error::Forbidden(refusal)),
        UserRole::Member | UserRole::Admin => Ok(requested_owner),
    }
}
