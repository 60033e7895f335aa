//! Delta compaction: merges the deltas of runs that ended long ago.
//!
//! Each step is one page of a log, read without a lock and written in one short transaction, which is refused if the log has
//! changed since. The log is complete after every step, so a crash needs no repair, and the next pass continues.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::domain::conversation::delta_compaction::compact_deltas;
use crate::service::reports::owned_log::PAGE;
use crate::store::{EndedRun, ServiceStore, StoreResult, is_full_page};

/// Number of runs in one look-up.
const RUNS: u32 = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompactionMode {
    Write,
    Count,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompactionStep {
    Compacted,
    /// Another process is compacting and will do the rest.
    LockedElsewhere,
    Done,
}

/// One pass over all runs that ended long enough ago.
pub struct DeltaCompactor {
    store: Arc<dyn ServiceStore>,
    age_ms: u64,
    mode: CompactionMode,
    waiting: VecDeque<EndedRun>,
    /// The last run of the last look-up.
    last: Option<EndedRun>,
    /// The current run, and the cursor in its log.
    at: Option<(EndedRun, i64)>,
    pub runs: u64,
    /// Number of events that were removed, or would be. Other events contain their text.
    pub events: u64,
}

impl DeltaCompactor {
    /// Begins a pass over runs that ended at least `age_ms` ago by the database's clock.
    pub fn new(store: Arc<dyn ServiceStore>, age_ms: u64, mode: CompactionMode) -> Self {
        Self { store, age_ms, mode, waiting: VecDeque::new(), last: None, at: None, runs: 0, events: 0 }
    }

    /// Counts the remaining runs. Reads no log.
    pub async fn runs_left(&self) -> StoreResult<u64> {
        let (mut count, mut last) = (self.waiting.len() as u64 + u64::from(self.at.is_some()), self.last.clone());
        loop {
            let found = self.store.runs_to_compact(self.age_ms, last.as_ref(), RUNS).await?;
            count += found.len() as u64;
            if found.len() < RUNS as usize {
                return Ok(count);
            }
            last = found.into_iter().next_back();
        }
    }

    /// Performs one step: at most one page of a log and one transaction. After an error, the pass can continue.
    pub async fn step(&mut self) -> StoreResult<CompactionStep> {
        let Some((run, cursor)) = self.next().await? else { return Ok(CompactionStep::Done) };
        let mut page = self.store.events(&run.owner, &run.conversation_id, cursor, PAGE).await?;
        let is_full = is_full_page(&page, PAGE);
        page.retain(|event| event.seq <= run.last_seq);
        let is_last = !is_full || page.last().is_none_or(|event| event.seq == run.last_seq);

        let folds = compact_deltas(&page, &run.id);
        let through = is_last.then_some(&run.id);
        let is_idle = folds.is_empty() && through.is_none();
        if self.mode == CompactionMode::Write
            && !is_idle
            && !self.store.compact_deltas(&run.conversation_id, &folds, through).await?
        {
            return Ok(CompactionStep::LockedElsewhere);
        }
        self.events += folds.iter().map(|fold| fold.replaced_seqs.len() as u64).sum::<u64>();
        self.runs += u64::from(is_last);
        // The next page begins with the last event of this one, so that deltas on both sides of the boundary are merged.
        let overlap = i64::from(page.len() > 1);
        self.at = page.last().filter(|_| !is_last).map(|last| (run, last.seq - overlap));
        Ok(CompactionStep::Compacted)
    }

    async fn next(&mut self) -> StoreResult<Option<(EndedRun, i64)>> {
        if self.at.is_none() {
            if self.waiting.is_empty() {
                self.waiting = self.store.runs_to_compact(self.age_ms, self.last.as_ref(), RUNS).await?.into();
                self.last = self.waiting.back().or(self.last.as_ref()).cloned();
            }
            self.at = self.waiting.pop_front().map(|run| (run.clone(), run.first_seq - 1));
        }
        Ok(self.at.clone())
    }
}
