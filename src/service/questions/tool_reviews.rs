//! Tool reviews: humans accept tool definitions that have changed.

use crate::domain::access::principal::{Principal, UserRole};
use crate::domain::ids::ToolReviewId;
use crate::domain::tool::tool_review::{ToolReview, ToolReviewStatus};
use crate::service::{Error, Result, Service};
use crate::store::ToolReviewScope;
use crate::tools::invisible_chars::{shown_value, spell_out_invisible};

impl Service {
    /// Returns the reviews of the principal's servers and of shared servers, newest first. A `status` selects those that have it.
    pub async fn tool_reviews(&self, principal: &Principal, status: Option<ToolReviewStatus>) -> Result<Vec<ToolReview>> {
        let found = self.store.tool_reviews(&principal.user_id, status).await?;
        Ok(found.into_iter().map(for_reviewers).collect())
    }

    /// Accepts a definition: runs that begin from now on are offered its tool.
    pub async fn accept_tool_review(&self, principal: &Principal, id: &ToolReviewId) -> Result<ToolReview> {
        let scope = ToolReviewScope { owner: principal.user_id.clone(), includes_shared: principal.role == UserRole::Admin };
        let found = self.store.accept_tool_review(&scope, id, &principal.user_id).await?;
        let review = found.ok_or(Error::NotFound("tool review"))?;
        self.hub.reviews_changed(review.owner_id.as_ref());
        tracing::info!(server = review.server, tool = review.tool, user = %principal.user_id, "a changed tool definition was accepted");
        Ok(for_reviewers(review))
    }
}

fn for_reviewers(mut review: ToolReview) -> ToolReview {
    for definition in std::iter::once(&mut review.definition).chain(&mut review.before) {
        definition.description = spell_out_invisible(&definition.description);
        definition.parameters = shown_value(&definition.parameters);
        definition.hints = shown_value(&definition.hints);
    }
    review
}
