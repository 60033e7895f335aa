//! Retention of idle conversations: they are archived, and much later deleted; sooner, if they are empty.
//!
//! Each piece of a pass is complete in itself: a process that dies leaves nothing to repair. The write looks again whether a conversation is
//! still idle.

use std::collections::HashSet;
use std::sync::Arc;

use crate::domain::ids::ConversationId;
use crate::live::Hub;
use crate::service::runs::publish;
use crate::service::upkeep::retention::FoldMode;
use crate::store::{ServiceStore, StoreResult, Tidying};

const PIECE: u32 = 100;

/// The ages at which something is done; `None` for never. In milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TidyAges {
    /// From the last change until a conversation is archived.
    pub archive_ms: Option<u64>,
    /// From then until it is deleted.
    pub delete_ms: Option<u64>,
    /// From the last change until a conversation without messages and without a title of its user is deleted.
    pub empty_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tidied {
    pub archived: u64,
    pub deleted: u64,
}

pub struct Tidier {
    store: Arc<dyn ServiceStore>,
    /// The subscribers of this process, if there are any.
    hub: Option<Arc<Hub>>,
    mode: FoldMode,
    /// The steps that are left; the next one is the last.
    left: Vec<(Tidying, u64)>,
    last: Option<ConversationId>,
    /// Conversations that were counted as empty. They are still there when the others are counted, and must not be counted twice.
    empty: HashSet<ConversationId>,
    pub tidied: Tidied,
}

impl Tidier {
    /// Begins a pass. With [`FoldMode::Count`] nothing is changed.
    pub fn new(store: Arc<dyn ServiceStore>, hub: Option<Arc<Hub>>, ages: TidyAges, mode: FoldMode) -> Self {
        // A conversation that is archived now is not deleted in the same pass.
        let archive = ages.archive_ms.map(|age| (Tidying::Archive, age));
        let delete = ages.delete_ms.map(|age| (Tidying::Delete, age));
        let empty = ages.empty_ms.map(|age| (Tidying::DeleteEmpty, age));
        let left = [archive, delete, empty].into_iter().flatten().collect();
        Self { store, hub, mode, left, last: None, empty: HashSet::new(), tidied: Tidied::default() }
    }

    /// Does one piece. False if nothing is left. A pass whose step fails may be continued.
    pub async fn step(&mut self) -> StoreResult<bool> {
        let Some((tidying, age_ms)) = self.left.last().copied() else { return Ok(false) };
        let found = self.store.idle_conversations(tidying, age_ms, self.last.as_ref(), PIECE).await?;
        let count = match (self.mode, tidying) {
            (FoldMode::Count, Tidying::DeleteEmpty) => {
                self.empty.extend(found.iter().map(|(_, id)| id.clone()));
                found.len() as u64
            }
            (FoldMode::Count, Tidying::Archive | Tidying::Delete) => {
                found.iter().filter(|(_, id)| !self.empty.contains(id)).count() as u64
            }
            (FoldMode::Fold, Tidying::Archive) => {
                let ids: Vec<ConversationId> = found.iter().map(|(_, id)| id.clone()).collect();
                let events = self.store.archive_idle(&ids, age_ms).await?;
                let archived = events.len() as u64;
                if let Some(hub) = &self.hub {
                    for event in events {
                        let conversation = event.conversation_id.clone();
                        publish(hub, &conversation, vec![event]);
                    }
                }
                archived
            }
            (FoldMode::Fold, Tidying::Delete | Tidying::DeleteEmpty) => {
                let mut deleted = 0;
                for (owner, id) in &found {
                    if self.store.delete_idle(owner, id, tidying, age_ms).await? {
                        deleted += 1;
                        if let Some(hub) = &self.hub {
                            hub.deleted(id);
                        }
                    }
                }
                deleted
            }
        };
        match tidying {
            Tidying::Archive => self.tidied.archived += count,
            Tidying::Delete | Tidying::DeleteEmpty => self.tidied.deleted += count,
        }
        if found.len() < PIECE as usize {
            self.left.pop();
            self.last = None;
        } else {
            self.last = found.into_iter().next_back().map(|(_, id)| id);
        }
        Ok(true)
    }
}
