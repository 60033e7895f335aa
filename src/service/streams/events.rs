//! Pages and streams of the event log.

use std::sync::Arc;

use crate::domain::access::principal::Principal;
use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, RunId};
use crate::live::Subscription;
use crate::service::reports::owned_log::{OwnedLog, PAGE};
use crate::service::streams::snapshot::take_snapshot;
use crate::service::streams::stream::{Reader, ResetReason, Restart, Scope, StreamItem, is_gone};
use crate::service::{Error, Result, Service};
use crate::store::{LogBounds, LogStore, PAGE_BYTES, is_full_page};

/// The `seq` of the last event that a client has received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor(pub i64);

impl Cursor {
    /// Parses the decimal digits of a `seq`, or 0 for the beginning.
    pub fn parse(text: &str) -> Result<Self> {
        let digits = !text.is_empty() && text.len() <= 19 && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(seq) if digits => Ok(Self(seq)),
            Ok(_) | Err(_) => Err(Error::InvalidCursor("a cursor is the seq of an event in decimal digits".to_owned())),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct EventPage {
    pub events: Vec<StoredEvent>,
    /// The cursor of the next page, if more events exist.
    pub next: Option<i64>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct KindsOfRun {
    pub events: Vec<StoredEvent>,
    /// The `seq` of the newest event of any kind.
    pub last_seq: i64,
}

/// The beginning of a stream. `Finished`: the client has every event and the run has ended, so the client need not reconnect.
pub enum StreamStart {
    Stream(Reader),
    Finished { scope: Scope, last_seq: i64 },
}

impl Service {
    fn log(&self, principal: &Principal) -> OwnedLog {
        OwnedLog::new(Arc::clone(&self.store) as Arc<dyn LogStore>, principal.user_id.clone())
    }

    pub async fn conversation_events(
        &self,
        principal: &Principal,
        id: &ConversationId,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<EventPage> {
        self.conversation(principal, id).await?;
        let after = after.map_or(0, |Cursor(seq)| seq);
        let log = self.log(principal);
        let bounds = bounds(&log, id).await?;
        check_cursor(after, bounds)?;
        let events = log.events(id, after, limit + 1).await?;
        goes_on(&log, id, after, &events, bounds).await?;
        Ok(page(events, limit, bounds.head))
    }

    pub async fn run_events(&self, principal: &Principal, id: &RunId, after: Option<Cursor>, limit: u32) -> Result<EventPage> {
        let view = self.run_view(principal, id).await?;
        let conversation = &view.run.conversation_id;
        let mut cursor = after.map_or(0, |Cursor(seq)| seq).max(view.first_seq - 1);
        let log = self.log(principal);
        let bounds = bounds(&log, conversation).await?;
        check_cursor(cursor, bounds)?;
        let end = view.last_seq.unwrap_or(bounds.head);
        let mut events = Vec::new();
        while !is_full_page(&events, limit + 1) && view.last_seq.is_none_or(|last| cursor < last) {
            let page = log.events(conversation, cursor, PAGE).await?;
            goes_on(&log, conversation, cursor, &page, bounds).await?;
            let Some(last) = page.last() else { break };
            cursor = last.seq;
            events.extend(page.into_iter().filter(|event| event.run_id.as_ref() == Some(id)));
        }
        Ok(page(events, limit, end))
    }

    /// Returns all events of these kinds of a run, without reading its other events.
    pub async fn run_events_of_kinds(&self, principal: &Principal, id: &RunId, kinds: &[&str]) -> Result<KindsOfRun> {
        let view = self.run_view(principal, id).await?;
        let run = (&view.run.conversation_id, id);
        let (mut events, mut after): (Vec<StoredEvent>, i64) = (Vec::new(), view.first_seq - 1);
        loop {
            let page = self.store.run_events_of_kinds(&principal.user_id, run, kinds, after, PAGE).await?;
            let goes_on = is_full_page(&page, PAGE);
            after = page.last().map_or(after, |last| last.seq);
            events.extend(page);
            if !goes_on {
                break;
            }
        }
        let last_seq = match view.last_seq {
            Some(last) => last,
            // Read last: an event that comes meanwhile is newer than all of these.
            None => self.store.last_run_event(&principal.user_id, run).await?.unwrap_or(after),
        };
        Ok(KindsOfRun { events, last_seq })
    }

    /// Streams a conversation: from a cursor, or from a snapshot.
    pub async fn stream_conversation(
        &self,
        principal: &Principal,
        id: &ConversationId,
        after: Option<Cursor>,
    ) -> Result<StreamStart> {
        self.conversation(principal, id).await?;
        let tail = self.hub.subscribe(id);
        let log = self.log(principal);
        let bounds = bounds(&log, id).await?;
        let scope = Scope::Conversation(id.clone());
        let mut reader = Reader::new(log, tail, scope, bounds.head, Restart::Snapshot(Arc::clone(&self.store)));
        match after {
            Some(Cursor(after)) if after <= bounds.head => reader.cursor = after,
            after => {
                reader.first.extend(after.map(|_| in_future(bounds)));
                let snapshot = take_snapshot(self.store.as_ref(), &principal.user_id, id, bounds.head).await?;
                (reader.cursor, reader.head) = (snapshot.head, snapshot.head);
                reader.first.push(StreamItem::Snapshot(Box::new(snapshot)));
            }
        }
        Ok(StreamStart::Stream(reader))
    }

    /// Streams a run: from a cursor, or from its first event.
    pub async fn stream_run(&self, principal: &Principal, id: &RunId, after: Option<Cursor>) -> Result<StreamStart> {
        let view = self.run_view(principal, id).await?;
        let conversation_id = view.run.conversation_id.clone();
        let tail = self.hub.subscribe(&conversation_id);
        let log = self.log(principal);
        let bounds = bounds(&log, &conversation_id).await?;
        let begin = view.first_seq - 1;
        let cursor = after.map_or(begin, |Cursor(seq)| seq.max(begin));
        let scope = Scope::Run { conversation_id, run_id: id.clone(), last_seq: view.last_seq };
        let mut reader = Reader::new(log, tail, scope, begin, Restart::From(begin));
        reader.head = bounds.head;
        if cursor > bounds.head {
            reader.first.push(in_future(bounds));
        } else if let Some(last_seq) = view.last_seq.filter(|last| cursor >= *last) {
            return Ok(StreamStart::Finished { scope: reader.scope, last_seq });
        } else {
            reader.cursor = cursor;
        }
        Ok(StreamStart::Stream(reader))
    }

    /// Streams a run that was just accepted. The subscription is from before its commit.
    pub(in crate::service) fn stream_accepted(
        &self,
        principal: &Principal,
        tail: Subscription,
        scope: Scope,
        first_seq: i64,
        replay: crate::service::Replay,
    ) -> Reader {
        let begin = first_seq - 1;
        let reader = Reader::new(self.log(principal), tail, scope, begin, Restart::From(begin));
        match replay {
            crate::service::Replay::Fresh => reader.at_the_tail(),
            crate::service::Replay::Replayed => reader,
        }
    }
}

async fn bounds(log: &OwnedLog, conversation: &ConversationId) -> Result<LogBounds> {
    log.bounds(conversation).await?.ok_or(Error::NotFound("conversation"))
}

/// Refuses a cursor from which the log does not continue. `page` contains the events after it.
async fn goes_on(log: &OwnedLog, conversation: &ConversationId, after: i64, page: &[StoredEvent], bounds: LogBounds) -> Result<()> {
    let LogBounds { oldest, head } = bounds;
    match is_gone(log, conversation, after, page, head).await? {
        true => Err(Error::CursorGone { after, oldest, head }),
        false => Ok(()),
    }
}

fn in_future(bounds: LogBounds) -> StreamItem {
    StreamItem::Reset { reason: ResetReason::CursorInFuture, oldest: bounds.oldest, head: bounds.head }
}

fn check_cursor(after: i64, bounds: LogBounds) -> Result<()> {
    let LogBounds { oldest, head } = bounds;
    if after > head { Err(Error::CursorGone { after, oldest, head }) } else { Ok(()) }
}

/// Cuts a page at its limits, and sets the cursor of the next page. `end` is the last known `seq`.
fn page(mut events: Vec<StoredEvent>, limit: u32, end: i64) -> EventPage {
    let mut bytes = 0;
    let fitting = events.iter().take(limit as usize).take_while(|event| {
        let fits = bytes < PAGE_BYTES;
        bytes += event.data.len();
        fits
    });
    let count = fitting.count();
    let cut = events.len() > count;
    events.truncate(count);
    // The page reached its limit of bytes, so more events may exist.
    let next = events.last().map(|event| event.seq).filter(|last| cut || (bytes >= PAGE_BYTES && *last < end));
    EventPage { events, next }
}
