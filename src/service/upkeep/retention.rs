//! Retention of conversations: idle ones are archived, and archived ones deleted later; empty ones are deleted early.
//!
//! Each step is complete in itself, so a crash needs no repair. Each write checks again whether the conversation is still idle.

use std::collections::HashSet;
use std::sync::Arc;

use crate::domain::ids::ConversationId;
use crate::live::Hub;
use crate::service::runs::publish;
use crate::service::upkeep::delta_compaction::CompactionMode;
use crate::store::{IdleAction, ServiceStore, StoreResult};

const PIECE: u32 = 100;

/// The ages in milliseconds after which an action happens; `None` for never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleAges {
    /// From the last change until a conversation is archived.
    pub archive_ms: Option<u64>,
    /// From the archiving until a conversation is deleted.
    pub delete_ms: Option<u64>,
    /// From the last change until a conversation without messages and without a user's title is deleted.
    pub empty_ms: Option<u64>,
    /// From the last change until a hidden conversation is deleted.
    pub hidden_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CleanupCounts {
    pub archived: u64,
    pub deleted: u64,
}

pub struct IdleCleanup {
    store: Arc<dyn ServiceStore>,
    /// The subscribers of this process, if any.
    hub: Option<Arc<Hub>>,
    mode: CompactionMode,
    /// The remaining actions; the last element is the next one.
    pending_actions: Vec<(IdleAction, u64)>,
    last: Option<ConversationId>,
    /// Conversations that were counted as empty, so that later steps do not count them again.
    empty: HashSet<ConversationId>,
    pub counts: CleanupCounts,
}

impl IdleCleanup {
    /// Begins a pass. With [`CompactionMode::Count`], nothing is changed.
    pub fn new(store: Arc<dyn ServiceStore>, hub: Option<Arc<Hub>>, ages: IdleAges, mode: CompactionMode) -> Self {
        // Deletion comes first, so that a conversation is never archived and deleted in the same pass.
        let archive = ages.archive_ms.map(|age| (IdleAction::Archive, age));
        let delete = ages.delete_ms.map(|age| (IdleAction::Delete, age));
        let empty = ages.empty_ms.map(|age| (IdleAction::DeleteEmpty, age));
        let hidden = ages.hidden_ms.map(|age| (IdleAction::DeleteHidden, age));
        let pending_actions = [archive, delete, empty, hidden].into_iter().flatten().collect();
        Self { store, hub, mode, pending_actions, last: None, empty: HashSet::new(), counts: CleanupCounts::default() }
    }

    /// Performs one step. Returns false if nothing is left. After an error, the pass can continue.
    pub async fn step(&mut self) -> StoreResult<bool> {
        let Some((action, age_ms)) = self.pending_actions.last().copied() else { return Ok(false) };
        let found = self.store.idle_conversations(action, age_ms, self.last.as_ref(), PIECE).await?;
        let count = match (self.mode, action) {
            (CompactionMode::Count, IdleAction::DeleteEmpty) => {
                self.empty.extend(found.iter().map(|(_, id)| id.clone()));
                found.len() as u64
            }
            (CompactionMode::Count, IdleAction::Archive | IdleAction::Delete | IdleAction::DeleteHidden) => {
                found.iter().filter(|(_, id)| !self.empty.contains(id)).count() as u64
            }
            (CompactionMode::Write, IdleAction::Archive) => {
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
            (CompactionMode::Write, IdleAction::Delete | IdleAction::DeleteEmpty | IdleAction::DeleteHidden) => {
                let mut deleted = 0;
                for (owner, id) in &found {
                    if self.store.delete_idle(owner, id, action, age_ms).await? {
                        deleted += 1;
                        if let Some(hub) = &self.hub {
                            hub.deleted(owner, id);
                        }
                    }
                }
                deleted
            }
        };
        match action {
            IdleAction::Archive => self.counts.archived += count,
            IdleAction::Delete | IdleAction::DeleteEmpty | IdleAction::DeleteHidden => self.counts.deleted += count,
        }
        if found.len() < PIECE as usize {
            self.pending_actions.pop();
            self.last = None;
        } else {
            self.last = found.into_iter().next_back().map(|(_, id)| id);
        }
        Ok(true)
    }
}
