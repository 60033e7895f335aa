//! Aggregates that the model store lacks or simplifies: it has no tool reviews, no titles and no records.

use async_trait::async_trait;
use capstan::domain::event::StoredEvent;
use capstan::domain::ids::{ConversationId, PinId, UserId};
use capstan::domain::tool::pin::{PinStatus, ToolPin};
use capstan::store::{CommonStore, Expired, PinScope, PinStore, RecordStore, SeenTool, Store, StoreResult, TitleMade, TitleStore};

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
impl TitleStore for ModelStore {
    async fn claim_title(&self, _owner: &UserId, _of: &ConversationId) -> StoreResult<Option<String>> {
        Ok(None)
    }
    async fn finish_title(&self, _made: TitleMade) -> StoreResult<Vec<StoredEvent>> {
        panic!("the model makes no titles")
    }
}
