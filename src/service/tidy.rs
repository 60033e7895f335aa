//! What becomes of conversations in which nothing has happened for long: they are put away, and much later deleted; sooner, if nothing was
//! ever said in them.
//!
//! In pieces, each of which holds by itself: a process that dies over it leaves nothing to mend. Whether a conversation is still
//! idle is looked at again in the write that tidies it.

use std::collections::HashSet;
use std::sync::Arc;

use super::retention::FoldMode;
use super::runs::publish;
use crate::domain::ids::ConversationId;
use crate::live::Hub;
use crate::store::{ServiceStore, StoreResult, Tidying};

/// Conversations that are looked up at a time.
const PIECE: u32 = 100;

/// After how long; `None` for never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TidyAges {
    /// From the last change until a conversation is put away, in milliseconds.
    pub archive_ms: Option<u64>,
    /// From then until it is deleted.
    pub delete_ms: Option<u64>,
    /// From the last change until one is deleted in which nothing was ever said, and that nobody has named.
    pub empty_ms: Option<u64>,
}

/// How many there were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tidied {
    /// Put away, or to be put away.
    pub archived: u64,
    /// Deleted, or to be deleted.
    pub deleted: u64,
}

/// One pass over all conversations.
pub struct Tidier {
    store: Arc<dyn ServiceStore>,
    /// Who is told that a conversation has changed or is gone, if anybody in this process listens.
    hub: Option<Arc<Hub>>,
    mode: FoldMode,
    /// What is left to do, the next last.
    left: Vec<(Tidying, u64)>,
    last: Option<ConversationId>,
    /// Those that were counted as empty ones. They are still there when the others are counted, and are not to be counted with them.
    empty: HashSet<ConversationId>,
    tidied: Tidied,
}

impl Tidier {
    /// A pass that has not begun. With [`FoldMode::Count`] nothing is changed.
    #[must_use]
    pub fn new(store: Arc<dyn ServiceStore>, hub: Option<Arc<Hub>>, ages: TidyAges, mode: FoldMode) -> Self {
        // What is put away now is not deleted in the same pass.
        let archive = ages.archive_ms.map(|age| (Tidying::Archive, age));
        let delete = ages.delete_ms.map(|age| (Tidying::Delete, age));
        let empty = ages.empty_ms.map(|age| (Tidying::DeleteEmpty, age));
        let left = [archive, delete, empty].into_iter().flatten().collect();
        Self { store, hub, mode, left, last: None, empty: HashSet::new(), tidied: Tidied::default() }
    }

    /// How many so far.
    #[must_use]
    pub fn tidied(&self) -> Tidied {
        self.tidied
    }

    /// Does one piece. False if nothing is left.
    ///
    /// # Errors
    /// If the store fails. The pass may be continued.
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
