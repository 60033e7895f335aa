//! The audit log of tool calls, for their owner and for administrators.

use crate::domain::access::audit::{AuditOutcome, AuditRecord};
use crate::domain::access::principal::{Principal, UserRole};
use crate::domain::ids::{CallId, RunId, UserId};
use crate::domain::tool::call_record::ToolCallRecord;
use crate::service::{Error, Result, Service};
use crate::store::{AuditCursor, AuditFilter, Page, PageRequest};

/// The word for all owners in a query.
const ALL: &str = "all";

impl Service {
    /// A page of ended calls, newest first.
    pub async fn tool_audit(
        &self,
        principal: &Principal,
        owner: Option<&str>,
        run: Option<RunId>,
        tool: Option<String>,
        outcome: Option<AuditOutcome>,
        page: &PageRequest<AuditCursor>,
    ) -> Result<Page<AuditRecord>> {
        let owner = owner_of(principal, owner, "the calls of others are an administrator's to see")?;
        Ok(self.store.tool_audit(&AuditFilter { owner, run, tool, outcome }, page).await?)
    }

    pub async fn tool_call(&self, principal: &Principal, run: &RunId, call: &CallId) -> Result<ToolCallRecord> {
        self.store.tool_call(&principal.user_id, run, call).await?.ok_or(Error::NotFound("tool call"))
    }
}

/// Reads the owner whose rows are wanted, the principal if none is named; `None` for all owners.
pub(in crate::service) fn owner_of(principal: &Principal, owner: Option<&str>, refusal: &'static str) -> Result<Option<UserId>> {
    let invalid = |_| Error::invalid("the query's owner is neither a user's id nor all");
    let wanted = match owner {
        None => Some(principal.user_id.clone()),
        Some(ALL) => None,
        Some(owner) => Some(UserId::parse(owner).map_err(invalid)?),
    };
    match principal.role {
        UserRole::Member if wanted.as_ref() != Some(&principal.user_id) => Err(Error::Forbidden(refusal)),
        UserRole::Member | UserRole::Admin => Ok(wanted),
    }
}
