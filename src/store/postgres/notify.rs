//! Tells other processes that there is something to read, after the commit and on connections of its own: a NOTIFY inside
//! write transactions serialises the commits of the whole database. Only hints: readers that poll miss nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, stream};
use sqlx::postgres::{PgListener, PgPool, PgPoolOptions};

use crate::domain::ids::ConversationId;
use crate::store::StoreResult;

/// The longest list of ids; Postgres refuses payloads of 8,000 bytes and more, and the tag comes on top.
const MAX_PAYLOAD: usize = 7_800;

/// The wait before another try to connect.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);

const LOG: &str = "capstan_log";
const QUEUE: &str = "capstan_queue";
const CONTROL: &str = "capstan_control";
const PRESENT: &str = "capstan_present";

/// What another process, or this one, has said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// These logs have grown.
    Log(Vec<ConversationId>),
    /// Any log may have grown, and anything else may have happened: too many to name, or the connection was down.
    LogUnknown,
    /// A run may have become claimable.
    Queue,
    /// A run in progress may have been asked to end or to take in a message.
    Control,
    /// Another process is there and listens.
    Present,
}

/// Announces and listens on two connections that nothing else uses.
#[derive(Debug, Clone)]
pub struct PgNotifier {
    pool: PgPool,
    /// Stands at the beginning of what this process announces, so that it does not hear itself.
    tag: Arc<str>,
}

impl PgNotifier {
    /// A notifier for the database behind `url`, which connects when it is first used. `tag` is unique to this process and has
    /// no semicolon. LISTEN needs a connection of its own:
    /// behind a pooler in transaction mode nothing is heard, and polling carries alone.
    ///
    /// # Errors
    /// [`crate::store::StoreError::Migration`] if the URL is none.
    pub fn new(url: &str, tag: &str) -> StoreResult<Self> {
        // A hint need not outlive the database, so no notification waits for the disk.
        let pool = PgPoolOptions::new()
            .max_connections(2)
            .acquire_timeout(Duration::from_secs(1))
            .connect_lazy_with(super::connect::connect_options(url)?.options([("synchronous_commit", "off")]));
        Ok(Self { pool, tag: tag.into() })
    }

    /// Says that logs have grown. One notification for all of them.
    ///
    /// # Errors
    /// As any store call; nothing is lost by ignoring them.
    pub async fn announce(&self, conversations: &[ConversationId]) -> StoreResult<()> {
        if conversations.is_empty() {
            return Ok(());
        }
        self.notify(LOG, &payload(conversations)).await
    }

    /// Says that a run may have become claimable.
    ///
    /// # Errors
    /// As any store call; nothing is lost by ignoring them.
    pub async fn announce_queue(&self) -> StoreResult<()> {
        self.notify(QUEUE, "").await
    }

    /// Says that a run in progress may have been asked to end or to take in a message.
    ///
    /// # Errors
    /// As any store call; nothing is lost by ignoring them.
    pub async fn announce_control(&self) -> StoreResult<()> {
        self.notify(CONTROL, "").await
    }

    /// Says that this process is there and listens.
    ///
    /// # Errors
    /// As any store call; nothing is lost by ignoring them.
    pub async fn announce_presence(&self) -> StoreResult<()> {
        self.notify(PRESENT, "").await
    }

    async fn notify(&self, channel: &str, payload: &str) -> StoreResult<()> {
        sqlx::query("SELECT pg_notify($1, $2)").bind(channel).bind(format!("{};{payload}", self.tag)).execute(&self.pool).await?;
        Ok(())
    }

    /// Hears what is announced by other processes. Connects again whenever it has to, and says
    /// [`Notice::LogUnknown`] each time that it is connected, since anything may have been missed before. Never ends.
    pub fn listen(&self) -> impl Stream<Item = Notice> + Send + use<> {
        stream::unfold((self.pool.clone(), Arc::clone(&self.tag), None), |(pool, tag, mut listener)| async move {
            loop {
                let notice = match listener.take() {
                    None => connect(&pool).await.map(|fresh| (fresh, Notice::LogUnknown)),
                    Some(current) => next(current, &tag).await,
                };
                match notice {
                    Ok((listener, notice)) => return Some((notice, (pool, tag, Some(listener)))),
                    Err(error) => {
                        tracing::warn!(%error, "cannot listen for notifications, polling goes on");
                        tokio::time::sleep(RECONNECT_AFTER).await;
                    }
                }
            }
        })
    }

    /// Ends both connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

async fn connect(pool: &PgPool) -> Result<PgListener, sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.ignore_pool_close_event(false);
    listener.listen_all([LOG, QUEUE, CONTROL, PRESENT]).await?;
    Ok(listener)
}

async fn next(mut listener: PgListener, tag: &str) -> Result<(PgListener, Notice), sqlx::Error> {
    loop {
        let notice = match listener.try_recv().await? {
            // The connection was lost and is made again by the listener.
            None => Some(Notice::LogUnknown),
            Some(notification) => read(notification.channel(), notification.payload(), tag),
        };
        if let Some(notice) = notice {
            return Ok((listener, notice));
        }
    }
}

fn read(channel: &str, payload: &str, own_tag: &str) -> Option<Notice> {
    let (tag, payload) = payload.split_once(';').unwrap_or(("", payload));
    if tag == own_tag {
        return None;
    }
    match channel {
        LOG if payload.is_empty() => Some(Notice::LogUnknown),
        LOG => Some(Notice::Log(payload.split(',').filter_map(|id| ConversationId::parse(id).ok()).collect())),
        QUEUE => Some(Notice::Queue),
        CONTROL => Some(Notice::Control),
        PRESENT => Some(Notice::Present),
        _ => None,
    }
}

/// The ids, or nothing if they are too many to name.
fn payload(conversations: &[ConversationId]) -> String {
    let mut joined = String::new();
    for conversation in conversations {
        if joined.len() + 1 + conversation.as_str().len() > MAX_PAYLOAD {
            return String::new();
        }
        if !joined.is_empty() {
            joined.push(',');
        }
        joined.push_str(conversation.as_str());
    }
    joined
}

/// Gathers what is to be announced, so that it can be said at most so often. Its owner keeps the time.
#[derive(Debug, Default)]
pub struct Merger {
    conversations: BTreeSet<ConversationId>,
}

impl Merger {
    /// Another log has grown.
    pub fn add(&mut self, conversation: &ConversationId) {
        if !self.conversations.contains(conversation) {
            self.conversations.insert(conversation.clone());
        }
    }

    /// All that has been gathered since the last time, each once.
    #[must_use]
    pub fn take(&mut self) -> Vec<ConversationId> {
        std::mem::take(&mut self.conversations).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(n: u32) -> ConversationId {
        ConversationId::parse(&format!("conv_{n:032x}")).unwrap()
    }

    #[test]
    fn what_is_announced_is_heard_again() {
        let two = [conversation(1), conversation(2)];
        let of = |ids: &[ConversationId]| format!("node_a;{}", payload(ids));
        assert_eq!(read(LOG, &of(&two), "node_b"), Some(Notice::Log(two.to_vec())));
        assert_eq!(read(LOG, &of(&two), "node_a"), None);
        let many: Vec<_> = (0..300).map(conversation).collect();
        assert_eq!(read(LOG, &of(&many), "node_b"), Some(Notice::LogUnknown));
        assert_eq!(read("other", "", "node_b"), None);
    }

    #[test]
    fn a_log_that_grows_twice_is_announced_once() {
        let mut merger = Merger::default();
        merger.add(&conversation(2));
        merger.add(&conversation(1));
        merger.add(&conversation(2));
        assert_eq!(merger.take(), [conversation(1), conversation(2)]);
        assert!(merger.take().is_empty());
    }
}
