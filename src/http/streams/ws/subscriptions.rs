//! The subscriptions of one socket.

use std::collections::HashSet;
use std::pin::Pin;

use futures_util::{Stream, stream};
use tokio_stream::{StreamExt as _, StreamMap};

use crate::domain::ids::{ConversationId, RunId};
use crate::domain::problem::ProblemCode;
use crate::http::options::App;
use crate::http::streams::render;
use crate::http::wire::problem::{HttpResult, Problem};
use crate::service::{ListSubscription, Reader, Scope, StoreError, StreamItem};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Target {
    Conversation(ConversationId),
    Run(RunId),
    /// The list of the socket's user.
    Owner,
}

impl Target {
    pub(super) fn of(scope: &Scope) -> Self {
        match scope {
            Scope::Conversation(id) => Self::Conversation(id.clone()),
            Scope::Run { run_id, .. } => Self::Run(run_id.clone()),
        }
    }
}

struct RenderedFrames {
    lines: Vec<String>,
    over: bool,
}

type SubscriptionStreams = StreamMap<Target, Pin<Box<dyn Stream<Item = Result<RenderedFrames, StoreError>> + Send>>>;

pub(super) struct Targets {
    held: HashSet<Target>,
    most: usize,
}

impl Targets {
    pub(super) fn follow(&self, target: &Target) -> bool {
        self.held.contains(target)
    }

    /// Refuses a subscription above the limit of the socket.
    pub(super) fn check_room(&self) -> HttpResult<()> {
        let most = self.most;
        if self.held.len() < most {
            return Ok(());
        }
        let detail = format!("a socket has at most {most} subscriptions; unsubscribe, or open another socket");
        Err(Problem::new(ProblemCode::TooManyRequests, detail))
    }
}

pub(super) struct Subscriptions {
    readers: SubscriptionStreams,
    pub(super) targets: Targets,
}

impl Subscriptions {
    pub(super) fn new(most: usize) -> Self {
        Self { readers: StreamMap::new(), targets: Targets { held: HashSet::new(), most } }
    }

    /// Adds `reader`. It replaces an earlier reader of the same target.
    pub(super) fn insert(&mut self, app: &App, reader: Reader) {
        self.hold(Target::of(&reader.scope), rendered(app.clone(), reader));
    }

    pub(super) fn insert_list(&mut self, app: &App, list: ListSubscription) {
        self.hold(Target::Owner, rendered_list(app.clone(), list));
    }

    fn hold(&mut self, target: Target, frames: impl Stream<Item = Result<RenderedFrames, StoreError>> + Send + 'static) {
        self.targets.held.insert(target.clone());
        self.readers.insert(target, Box::pin(frames));
    }

    /// Removes a subscription. Returns false if there is none.
    pub(super) fn remove(&mut self, target: &Target) -> bool {
        self.readers.remove(target);
        self.targets.held.remove(target)
    }

    /// Returns the next lines to send. Waits forever without subscriptions; cancel-safe. Removes a subscription that ends with
    /// these lines.
    pub(super) async fn next(&mut self) -> Result<Vec<String>, StoreError> {
        let Some((target, rendered)) = self.readers.next().await else { return std::future::pending().await };
        let RenderedFrames { lines, over } = rendered?;
        if over {
            self.remove(&target);
        }
        Ok(lines)
    }
}

fn rendered(app: App, reader: Reader) -> impl Stream<Item = Result<RenderedFrames, StoreError>> + Send {
    stream::unfold((app, reader), |(app, mut reader)| async move {
        let rendered = reader.next().await.map(|items| match items {
            Some(items) => {
                let now = app.service.clock().now();
                let lines = items.iter().map(|item| render::line(item, &reader.scope, now).json).collect();
                RenderedFrames { lines, over: items.last().is_some_and(StreamItem::is_last) }
            }
            // A reader stops without a last item only when the server shuts down, which also closes the socket.
            None => RenderedFrames { lines: Vec::new(), over: true },
        });
        Some((rendered, (app, reader)))
    })
}

fn rendered_list(app: App, list: ListSubscription) -> impl Stream<Item = Result<RenderedFrames, StoreError>> + Send {
    stream::unfold((app, list), |(app, list)| async move {
        let changes = list.next().await;
        let now = app.service.clock().now();
        let lines = changes.iter().map(|change| render::list_change(change, now)).collect();
        Some((Ok(RenderedFrames { lines, over: false }), (app, list)))
    })
}
