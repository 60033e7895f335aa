//! What one socket follows.

use std::collections::HashSet;
use std::pin::Pin;

use futures_util::{Stream, stream};
use tokio_stream::{StreamExt as _, StreamMap};

use crate::domain::ids::{ConversationId, RunId};
use crate::domain::problem::ProblemCode;
use crate::http::options::App;
use crate::http::problem::{Answer, Problem};
use crate::http::wire;
use crate::service::{Reader, Scope, StoreError, StreamItem};

/// What a subscription is about: one per target and socket.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Target {
    Conversation(ConversationId),
    Run(RunId),
}

impl Target {
    /// The target of a stream.
    pub(super) fn of(scope: &Scope) -> Self {
        match scope {
            Scope::Conversation(id) => Self::Conversation(id.clone()),
            Scope::Run { run_id, .. } => Self::Run(run_id.clone()),
        }
    }
}

/// What a reader said, rendered.
struct Said {
    lines: Vec<String>,
    /// Whether nothing follows.
    over: bool,
}

type Readers = StreamMap<Target, Pin<Box<dyn Stream<Item = Result<Said, StoreError>> + Send>>>;

/// What is followed, for those who ask only that.
pub(super) struct Targets {
    held: HashSet<Target>,
    most: usize,
}

impl Targets {
    /// Whether the socket follows this already.
    pub(super) fn follow(&self, target: &Target) -> bool {
        self.held.contains(target)
    }

    /// Refuses one more.
    pub(super) fn check_room(&self) -> Answer<()> {
        let most = self.most;
        if self.held.len() < most {
            return Ok(());
        }
        let detail = format!("a socket has at most {most} subscriptions; unsubscribe, or open another socket");
        Err(Problem::new(ProblemCode::TooManyRequests, detail))
    }
}

/// The subscriptions of one socket, at most one per target.
pub(super) struct Subscriptions {
    readers: Readers,
    targets: Targets,
}

impl Subscriptions {
    /// None yet, and at most so many.
    pub(super) fn new(most: usize) -> Self {
        Self { readers: StreamMap::new(), targets: Targets { held: HashSet::new(), most } }
    }

    /// What is followed.
    pub(super) fn targets(&self) -> &Targets {
        &self.targets
    }

    /// Follows `reader`, instead of what it followed for the same target.
    pub(super) fn insert(&mut self, app: &App, reader: Reader) {
        let target = Target::of(reader.scope());
        self.targets.held.insert(target.clone());
        self.readers.insert(target, Box::pin(said(app.clone(), reader)));
    }

    /// Ends one. False if there is none.
    pub(super) fn remove(&mut self, target: &Target) -> bool {
        self.readers.remove(target);
        self.targets.held.remove(target)
    }

    /// The next lines to send. Waits for ever if nothing is followed; cancel-safe. One whose last word is among them is gone:
    /// whoever asks for its target next asks anew.
    pub(super) async fn next(&mut self) -> Result<Vec<String>, StoreError> {
        let Some((target, said)) = self.readers.next().await else { return std::future::pending().await };
        let Said { lines, over } = said?;
        if over {
            self.remove(&target);
        }
        Ok(lines)
    }
}

fn said(app: App, reader: Reader) -> impl Stream<Item = Result<Said, StoreError>> + Send {
    stream::unfold((app, reader), |(app, mut reader)| async move {
        let said = match reader.next().await {
            Ok(Some(items)) => {
                let now = app.service.clock().now();
                let lines = items.iter().map(|item| wire::line(item, reader.scope(), now).json).collect();
                Ok(Said { lines, over: items.last().is_some_and(StreamItem::is_last) })
            }
            // Only a server that ends stops without a last word, and then the socket itself is told.
            Ok(None) => Ok(Said { lines: Vec::new(), over: true }),
            Err(error) => Err(error),
        };
        Some((said, (app, reader)))
    })
}
