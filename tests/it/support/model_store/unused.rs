//! Aggregates that the model store lacks or simplifies: it has no tool reviews, no titles and no records.

use async_trait::async_trait;
use capstan::domain::event::StoredEvent;
use capstan::domain::ids::{ConversationId, ToolReviewId, UserId};
use capstan::domain::tool::tool_review::{ToolReview, ToolReviewStatus};
use capstan::store::{
    CommonStore, ComparedDefinitions, ExpiredRowCounts, GeneratedTitle, ListedDefinition, RecordStore, Store, StoreResult,
    TitleStore, ToolReviewScope, ToolReviewStore,
};

use super::ModelStore;

#[async_trait]
impl CommonStore for ModelStore {
    async fn ping(&self) -> StoreResult<()> {
        Ok(())
    }
    fn is_shared(&self) -> bool {
        true
    }
    fn caps_owners(&self) -> bool {
        self.state().owner_cap > 0
    }
    fn records(&self) -> &(dyn RecordStore + 'static) {
        panic!("the model has no records")
    }
}

#[async_trait]
impl Store for ModelStore {
    async fn count_expired(&self, keys_ms: u64, _audit_ms: Option<u64>) -> StoreResult<ExpiredRowCounts> {
        let state = self.state();
        let until = state.now - i64::try_from(keys_ms).unwrap();
        let records = state.answers.values().filter(|(.., at)| *at <= until).count() as u64;
        Ok(ExpiredRowCounts { records, ..ExpiredRowCounts::default() })
    }
    async fn remove_expired_idempotency(&self, age_ms: u64) -> StoreResult<u64> {
        let mut state = self.state();
        let until = state.now - i64::try_from(age_ms).unwrap();
        Ok(state.answers.extract_if(.., |_, (.., at)| *at <= until).count() as u64)
    }
    async fn close(&self) {}
}

#[async_trait]
impl ToolReviewStore for ModelStore {
    async fn compare_tool_definitions(&self, _seen: &[ListedDefinition]) -> StoreResult<ComparedDefinitions> {
        Ok(ComparedDefinitions::default())
    }
    async fn tool_reviews(&self, _viewer: &UserId, _status: Option<ToolReviewStatus>) -> StoreResult<Vec<ToolReview>> {
        Ok(Vec::new())
    }
    async fn accept_tool_review(
        &self,
        _scope: &ToolReviewScope,
        _id: &ToolReviewId,
        _by: &UserId,
    ) -> StoreResult<Option<ToolReview>> {
        Ok(None)
    }
}

#[async_trait]
impl TitleStore for ModelStore {
    async fn claim_title(&self, _owner: &UserId, _of: &ConversationId) -> StoreResult<Option<String>> {
        Ok(None)
    }
    async fn finish_title(&self, _made: GeneratedTitle) -> StoreResult<Vec<StoredEvent>> {
        panic!("the model makes no titles")
    }
}
