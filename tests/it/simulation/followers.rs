//! Readers that compare a stream with the stored log: slow ones, and ones that reconnect with their cursor.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use capstan::domain::access::principal::Principal;
use capstan::domain::event::StoredEvent;
use capstan::domain::ids::{ConversationId, RunId};
use capstan::service::{Cursor, Error, Reader, StreamItem, StreamStart};

use super::cluster::{Cluster, Node};
use super::line::tail;
use super::people::Promises;

/// The time limit of a client for the start of a stream.
const PATIENCE: Duration = Duration::from_secs(10);

/// The run or conversation that a reader follows.
#[derive(Clone)]
pub enum Subject {
    Conversation(ConversationId),
    Run(ConversationId, RunId),
}

impl Subject {
    fn conversation(&self) -> &ConversationId {
        match self {
            Self::Conversation(id) | Self::Run(id, _) => id,
        }
    }

    fn is_about(&self, event: &StoredEvent) -> bool {
        match self {
            Self::Conversation(_) => true,
            Self::Run(_, run) => event.run_id.as_ref() == Some(run),
        }
    }
}

pub struct Follower {
    cluster: Arc<Cluster>,
    promises: Arc<Mutex<Promises>>,
    principal: Principal,
    pub subject: Subject,
    /// The sequence number of the last event that it received.
    pub cursor: Arc<AtomicI64>,
}

/// The reason for leaving a stream.
#[derive(PartialEq)]
enum Left {
    /// The stream is complete.
    Over,
    /// The reader will reconnect with its cursor.
    Cut,
}

impl Follower {
    pub fn new(cluster: &Arc<Cluster>, promises: &Arc<Mutex<Promises>>, principal: &Principal, subject: Subject) -> Self {
        Self {
            cluster: Arc::clone(cluster),
            promises: Arc::clone(promises),
            principal: principal.clone(),
            subject,
            cursor: Arc::default(),
        }
    }

    fn wrong(&self, what: &str) {
        let (id, cursor) = (tail(self.subject.conversation().as_str()), self.cursor.load(Ordering::SeqCst));
        self.cluster.ground.witness.wrong(format!("a reader of {id}, who has everything up to {cursor}, {what}"));
    }

    fn is_deleted(&self) -> bool {
        self.promises.lock().unwrap().deleted.contains(self.subject.conversation())
    }

    /// Follows a stream that is open already, and then the rest.
    pub async fn go_on(self, node: Arc<Node>, reader: Reader) {
        if self.read(&node, reader).await == Left::Cut {
            self.follow().await;
        }
    }

    /// Follows to the end, from the beginning or from its cursor.
    pub async fn follow(self) {
        let dice = &self.cluster.ground.dice;
        loop {
            if let Some(node) = self.cluster.any() {
                let begun = tokio::select! {
                    biased;
                    () = node.gone.cancelled() => None,
                    begun = tokio::time::timeout(PATIENCE, self.begin(&node)) => begun.ok(),
                };
                match begun {
                    Some(Ok(StreamStart::Stream(reader))) => {
                        if self.read(&node, reader).await == Left::Over {
                            return;
                        }
                    }
                    Some(Ok(StreamStart::Finished { last_seq, .. })) => {
                        if last_seq != self.cursor.load(Ordering::SeqCst) {
                            self.wrong(&format!("is told that the last event is {last_seq}"));
                        }
                        return;
                    }
                    // Not created yet, or deleted.
                    Some(Err(Error::NotFound(_))) if self.is_deleted() => return,
                    Some(Err(Error::NotFound(_) | Error::Store(_))) | None => {}
                    Some(Err(error)) => return self.wrong(&format!("is refused: {error}")),
                }
            }
            dice.sleep(10, 1_500).await;
        }
    }

    async fn begin(&self, node: &Node) -> Result<StreamStart, Error> {
        let after = Some(Cursor(self.cursor.load(Ordering::SeqCst)));
        match &self.subject {
            Subject::Conversation(id) => node.service.stream_conversation(&self.principal, id, after).await,
            Subject::Run(_, run) => node.service.stream_run(&self.principal, run, after).await,
        }
    }

    async fn read(&self, node: &Node, mut reader: Reader) -> Left {
        let dice = &self.cluster.ground.dice;
        loop {
            let items = tokio::select! {
                biased;
                () = node.gone.cancelled() => return Left::Cut,
                items = reader.next() => items,
            };
            let items = match items {
                Ok(Some(items)) => items,
                Ok(None) | Err(_) => return Left::Cut,
            };
            for item in items {
                match item {
                    StreamItem::Event(event) => self.take(&event),
                    StreamItem::End { last_seq } => {
                        if last_seq != self.cursor.load(Ordering::SeqCst) {
                            self.wrong(&format!("is told that it ends at {last_seq}"));
                        }
                        return Left::Over;
                    }
                    StreamItem::Deleted { .. } => {
                        if !self.is_deleted() {
                            self.wrong("is told that it is deleted");
                        }
                        return Left::Over;
                    }
                    StreamItem::Reset { reason, .. } => self.wrong(&format!("is reset: {reason:?}")),
                    StreamItem::Snapshot(_) => self.wrong("gets a snapshot that it did not ask for"),
                }
            }
            match dice.below(40) {
                0 => return Left::Cut,
                1..6 => dice.sleep(50, 4_000).await,
                _ => dice.stumble().await,
            }
        }
    }

    /// Compares an event with the log as it is stored at this moment.
    fn take(&self, event: &StoredEvent) {
        let cursor = self.cursor.swap(event.seq, Ordering::SeqCst);
        let state = self.cluster.ground.model.state();
        let Some(row) = state.conversations.get(self.subject.conversation()) else { return };
        let place = usize::try_from(event.seq - 1).unwrap();
        if row.log.get(place) != Some(event) {
            self.wrong(&format!("is shown {event:?}, but stored is {:?}", row.log.get(place)));
        }
        // The stream of a message that joined a run starts with that message.
        let is_first = cursor == 0 && matches!(self.subject, Subject::Run(..));
        let since = if is_first { place } else { usize::try_from(cursor).unwrap() };
        if event.seq <= cursor {
            self.wrong(&format!("is shown {} again", event.seq));
        } else if let Some(missed) = row.log.iter().take(place).skip(since).find(|event| self.subject.is_about(event)) {
            self.wrong(&format!("had {cursor} before, and is not shown {} ({})", missed.seq, missed.kind));
        }
    }
}
