//! Streams of the log: every event once, in order, without a gap.
//!
//! A reader subscribes first, then reads the store from its cursor, then follows the live tail. It drops repeated events by `seq`,
//! and reads the store again where it finds a gap. It fetches only on request, so a slow client costs at most its queue and one
//! page.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::conversation::delta_compaction::covers_cursor;
use crate::domain::event::{SharedEvent, StoredEvent};
use crate::domain::ids::{ConversationId, RunId};
use crate::live::{Subscription, Tail};
use crate::store::{LogBounds, ServiceStore, StoreError, StoreResult, is_full_page};
use crate::support::failpoint;

use crate::service::Error;
use crate::service::reports::owned_log::{OwnedLog, PAGE};
use crate::service::streams::snapshot::{Snapshot, take_snapshot};

/// Number of events in the first page of a stream. Each further page is twice as large, up to [`PAGE`]: a client that connects and
/// does not read must cost little.
const FIRST_PAGE: u32 = 100;
/// The delay after the first failed read of the store. It doubles up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// The reason why a stream does not continue at the client's cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetReason {
    /// The log does not contain this event yet: the cursor is not from the current log.
    CursorInFuture,
    /// The log does not continue there: the cursor is inside compacted deltas, or names an event that a restored log has lost.
    CursorExpired,
}

impl ResetReason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CursorInFuture => "cursor_in_future",
            Self::CursorExpired => "cursor_expired",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum StreamItem {
    Event(SharedEvent),
    /// The state at `head`, instead of the events up to it.
    Snapshot(Box<Snapshot>),
    /// The stream cannot continue at the client's cursor. It continues as for a client without a cursor.
    Reset {
        reason: ResetReason,
        oldest: i64,
        head: i64,
    },
    /// The run has ended; nothing follows. `last_seq` is the `seq` of its last event.
    End {
        last_seq: i64,
    },
    /// The conversation was deleted with its log; nothing follows. `last_seq` is the newest `seq` that was read.
    Deleted {
        last_seq: i64,
    },
}

impl StreamItem {
    pub fn is_last(&self) -> bool {
        match self {
            Self::End { .. } | Self::Deleted { .. } => true,
            Self::Event(_) | Self::Snapshot(_) | Self::Reset { .. } => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    Conversation(ConversationId),
    /// The events of one run, with the sequence numbers of the conversation. `last_seq` is the `seq` of the terminal event, if the
    /// run has ended.
    Run {
        conversation_id: ConversationId,
        run_id: RunId,
        last_seq: Option<i64>,
    },
}

impl Scope {
    pub fn conversation_id(&self) -> &ConversationId {
        match self {
            Self::Conversation(conversation_id) | Self::Run { conversation_id, .. } => conversation_id,
        }
    }

    pub fn run_id(&self) -> Option<&RunId> {
        match self {
            Self::Conversation(_) => None,
            Self::Run { run_id, .. } => Some(run_id),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Reads the store. Without events, checks whether the conversation was deleted.
    CatchUp,
    Live,
    Over,
}

/// How a stream restarts that cannot continue at its cursor.
#[derive(Clone)]
pub(in crate::service) enum Restart {
    /// From the event after this one.
    From(i64),
    Snapshot(Arc<dyn ServiceStore>),
}

/// A page of the log. `Lost`: the log does not continue at the cursor; `items` restart the stream, and the log continues after
/// `cursor`.
enum Page {
    Events(Vec<StoredEvent>),
    Lost { items: Vec<StreamItem>, cursor: i64 },
    Gone,
}

/// Returns whether the event at `cursor` no longer exists: it was compacted, or lost when the log was restored from a copy and
/// continued with higher sequence numbers. `page` contains the events after the cursor, `head` is the newest `seq`.
pub(in crate::service) async fn is_gone(
    log: &OwnedLog,
    conversation: &ConversationId,
    cursor: i64,
    page: &[StoredEvent],
    head: i64,
) -> StoreResult<bool> {
    let goes_on = match page.first() {
        Some(first) if covers_cursor(first, cursor) => return Ok(true),
        Some(first) => first.seq == cursor + 1,
        None => head <= cursor,
    };
    if goes_on || cursor == 0 {
        return Ok(false);
    }
    // A `seq` that no event ever had is valid for a client that has the event before it.
    let next = log.events(conversation, cursor - 1, 1).await?;
    Ok(next.first().is_none_or(|next| next.seq > cursor + 1))
}

/// A position in a log that moves forward. See the module documentation.
pub struct Reader {
    log: OwnedLog,
    tail: Subscription,
    pub scope: Scope,
    /// The newest `seq` that was read. A client that has received everything may reconnect with it.
    pub cursor: i64,
    /// The newest `seq` of the log when the stream was requested.
    pub head: i64,
    phase: Phase,
    /// Whether the stream of a run has the messages of other runs.
    has_queued_messages: bool,
    /// The items before the first event.
    pub(in crate::service) first: Vec<StreamItem>,
    afresh: Restart,
    page: u32,
    pause: Duration,
}

impl Reader {
    /// Reads the events after `cursor`. `tail` must be subscribed before anything is read on which `cursor` depends.
    pub(in crate::service) fn new(log: OwnedLog, tail: Subscription, scope: Scope, cursor: i64, afresh: Restart) -> Self {
        let (first, phase, page, pause) = (Vec::new(), Phase::CatchUp, FIRST_PAGE, FIRST_PAUSE);
        Self { log, tail, scope, cursor, head: cursor, phase, has_queued_messages: false, first, afresh, page, pause }
    }

    /// Adds the messages that are sent while the run is active and begin other runs.
    pub fn with_queued_messages(mut self) -> Self {
        self.has_queued_messages = true;
        self
    }

    /// Starts at the live tail without reading the store. Correct if nothing can be committed after `cursor` before `tail` is
    /// subscribed. Missed events of other processes appear as a gap or a hint.
    pub(in crate::service) fn at_the_tail(mut self) -> Self {
        self.phase = Phase::Live;
        self
    }

    /// Returns the next items, at least one; `None` at the end of the stream. Cancel-safe. While the store is unavailable, it waits
    /// and retries. Fails if a retry cannot help.
    pub async fn next(&mut self) -> Result<Option<Vec<StreamItem>>, StoreError> {
        if !self.first.is_empty() {
            return Ok(Some(std::mem::take(&mut self.first)));
        }
        loop {
            let items = match self.phase {
                Phase::Over => return Ok(None),
                Phase::CatchUp => self.read_page().await?,
                Phase::Live => self.follow().await,
            };
            if !items.is_empty() {
                return Ok(Some(items));
            }
        }
    }

    async fn read_page(&mut self) -> Result<Vec<StreamItem>, StoreError> {
        if self.is_past_the_end() {
            return Ok(self.end());
        }
        let page = match self.page().await {
            Ok(Page::Events(page)) => page,
            Ok(Page::Lost { items, cursor }) => {
                self.cursor = cursor;
                return Ok(items);
            }
            Ok(Page::Gone) => return Ok(self.deleted()),
            Err(error) if error.is_transient() => {
                tokio::time::sleep(self.pause).await;
                self.pause = (self.pause * 2).min(MAX_PAUSE);
                return Ok(Vec::new());
            }
            Err(error) => return Err(error),
        };
        self.pause = FIRST_PAUSE;
        if !is_full_page(&page, self.page) {
            self.phase = Phase::Live;
        }
        self.page = (self.page * 2).min(PAGE);
        let mut items = Vec::with_capacity(page.len());
        for event in page {
            self.take(Arc::new(event), &mut items);
        }
        Ok(items)
    }

    async fn page(&self) -> Result<Page, StoreError> {
        let conversation = self.scope.conversation_id();
        let page = self.log.events(conversation, self.cursor, self.page).await?;
        if page.first().is_some_and(|first| first.seq == self.cursor + 1 && !covers_cursor(first, self.cursor)) {
            return Ok(Page::Events(page));
        }
        let Some(LogBounds { oldest, head }) = self.log.bounds(conversation).await? else { return Ok(Page::Gone) };
        let reason = if head < self.cursor {
            // The database has lost commits that it had confirmed, and this event with them.
            ResetReason::CursorInFuture
        } else if is_gone(&self.log, conversation, self.cursor, &page, head).await? {
            ResetReason::CursorExpired
        } else {
            return Ok(Page::Events(page));
        };
        let reset = StreamItem::Reset { reason, oldest, head };
        match &self.afresh {
            Restart::From(cursor) => Ok(Page::Lost { items: vec![reset], cursor: *cursor }),
            Restart::Snapshot(store) => match take_snapshot(store.as_ref(), self.log.owner(), conversation, head).await {
                Ok(snapshot) => {
                    let cursor = snapshot.head;
                    Ok(Page::Lost { items: vec![reset, StreamItem::Snapshot(Box::new(snapshot))], cursor })
                }
                Err(Error::Store(error)) => Err(error),
                // A snapshot fails only if the conversation is missing.
                Err(_) => Ok(Page::Gone),
            },
        }
    }

    async fn follow(&mut self) -> Vec<StreamItem> {
        if self.is_past_the_end() {
            return self.end();
        }
        let mut items = Vec::new();
        let skips_what_it_lost = failpoint::is_planted("lag-skipped");
        match self.tail.next().await {
            Tail::Events(events) => {
                for event in events {
                    if self.phase == Phase::Over {
                        break;
                    }
                    if event.seq <= self.cursor {
                        continue;
                    }
                    if event.seq > self.cursor + 1 && !skips_what_it_lost {
                        // There is a gap: the store contains the missing events and the rest of this batch.
                        self.phase = Phase::CatchUp;
                        break;
                    }
                    self.take(event, &mut items);
                }
            }
            Tail::Reread if skips_what_it_lost => {}
            Tail::Reread => self.phase = Phase::CatchUp,
            Tail::Deleted => return self.deleted(),
            Tail::Closed => self.phase = Phase::Over,
        }
        items
    }

    /// Advances past one event, and adds it to the items if it belongs to the stream.
    fn take(&mut self, event: SharedEvent, items: &mut Vec<StreamItem>) {
        if self.phase == Phase::Over || event.seq <= self.cursor {
            return;
        }
        self.cursor = event.seq;
        let Scope::Run { run_id, .. } = &self.scope else {
            items.push(StreamItem::Event(event));
            return;
        };
        if event.run_id.as_ref() != Some(run_id) {
            if self.has_queued_messages && event.kind == "message.created" {
                items.push(StreamItem::Event(event));
            }
            return;
        }
        let last = event.ends_run().then_some(event.seq);
        items.push(StreamItem::Event(event));
        if let Some(last_seq) = last {
            items.push(StreamItem::End { last_seq });
            self.phase = Phase::Over;
        }
    }

    fn is_past_the_end(&self) -> bool {
        match &self.scope {
            Scope::Run { last_seq: Some(last), .. } => self.cursor >= *last,
            Scope::Run { last_seq: None, .. } | Scope::Conversation(_) => false,
        }
    }

    fn deleted(&mut self) -> Vec<StreamItem> {
        self.phase = Phase::Over;
        vec![StreamItem::Deleted { last_seq: self.cursor }]
    }

    fn end(&mut self) -> Vec<StreamItem> {
        self.phase = Phase::Over;
        match &self.scope {
            Scope::Run { last_seq: Some(last_seq), .. } => vec![StreamItem::End { last_seq: *last_seq }],
            Scope::Run { last_seq: None, .. } | Scope::Conversation(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
