//! Notifies other processes that there is something to read. A notification is sent after the commit and on a separate connection,
//! because NOTIFY inside a write transaction serializes the commits of the database. Notifications are hints: readers also poll.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, stream};
use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgListener, PgPoolOptions};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};

use super::timeouts::with_deadline;
use crate::domain::conversation::ListHint;
use crate::domain::ids::{ConversationId, UserId};
use crate::store::StoreResult;

/// Limit of a list of ids in bytes. Postgres refuses payloads of 8,000 bytes or more, which include the tag.
const MAX_PAYLOAD: usize = 7_800;

const RECONNECT_AFTER: Duration = Duration::from_secs(1);

const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// The time limit for sending a notification. After it, the connection is replaced.
const ANNOUNCE_LIMIT: Duration = Duration::from_secs(3);

/// A connection that receives nothing for this long is replaced, because a connection can break silently. A listener receives its
/// own presence every few seconds, if it [announces](PgNotifier::announce_presence) that.
const SILENCE: Duration = Duration::from_secs(10);

const LOG: &str = "capstan_log";
const LIST: &str = "capstan_list";
const QUEUE: &str = "capstan_queue";
const CONTROL: &str = "capstan_control";
const PRESENT: &str = "capstan_present";

/// The word for tool reviews among the ids of conversations. Earlier versions ignore it.
const REVIEWS: &str = "reviews";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// These logs have grown.
    Log(Vec<ConversationId>),
    /// Any log may have grown, and anything else may have happened: the ids were too many, or the connection was down.
    LogUnknown,
    /// The feeds of owners may have to show these changes.
    List(Vec<ListHint>),
    /// The feeds of owners may have to show any change: the ids were too many.
    ListUnknown,
    /// A run may have become claimable.
    Queue,
    /// A running run may have a cancellation or a new message.
    Control,
    /// Another process is running and listens.
    Present,
}

/// Sends and receives notifications on two separate connections. An error loses no data.
#[derive(Clone)]
pub struct PgNotifier {
    /// The connection for sending, while it is not in use. It belongs to no pool: a pool waits for an answer when a connection is
    /// returned, and a silent connection never answers.
    voice: Arc<Mutex<Option<PgConnection>>>,
    options: PgConnectOptions,
    /// The prefix of this process's notifications, by which it ignores its own.
    tag: Arc<str>,
    silence: Duration,
}

impl PgNotifier {
    /// Returns a notifier that connects to `url` at its first use. `tag` is unique to this process and contains no semicolon.
    ///
    /// LISTEN needs a session. Behind a pooler in transaction mode no notification arrives, and readers only poll.
    pub fn new(url: &str, tag: &str) -> StoreResult<Self> {
        // A hint need not be durable, so no notification waits for the disk.
        let options = super::connect::connect_options(url)?.options([("synchronous_commit", "off")]);
        Ok(Self { voice: Arc::default(), options, tag: tag.into(), silence: SILENCE })
    }

    /// Returns the notifier with another limit for a silent connection.
    pub fn with_idle_timeout(self, limit: Duration) -> Self {
        Self { silence: limit, ..self }
    }

    /// Notifies that logs have grown, in one notification.
    pub async fn announce(&self, conversations: &[ConversationId]) -> StoreResult<()> {
        if conversations.is_empty() {
            return Ok(());
        }
        self.notify(LOG, &payload(conversations.iter().map(ToString::to_string))).await
    }

    /// Notifies that the feeds of owners may have to show changes, in one notification.
    pub async fn announce_lists(&self, hints: &BTreeSet<ListHint>) -> StoreResult<()> {
        if hints.is_empty() {
            return Ok(());
        }
        let words = hints.iter().map(|hint| match hint {
            ListHint::Changed(conversation) => conversation.to_string(),
            ListHint::Removed(conversation, owner) => format!("{conversation}/{owner}"),
            ListHint::Reviews(None) => REVIEWS.to_owned(),
            ListHint::Reviews(Some(owner)) => format!("{REVIEWS}/{owner}"),
        });
        self.notify(LIST, &payload(words)).await
    }

    /// Notifies that a run may have become claimable.
    pub async fn announce_queue(&self) -> StoreResult<()> {
        self.notify(QUEUE, "").await
    }

    /// Notifies that a running run may have a cancellation or a new message.
    pub async fn announce_control(&self) -> StoreResult<()> {
        self.notify(CONTROL, "").await
    }

    /// Notifies that this process is running and listens.
    pub async fn announce_presence(&self) -> StoreResult<()> {
        self.notify(PRESENT, "").await
    }

    async fn notify(&self, channel: &str, payload: &str) -> StoreResult<()> {
        let payload = format!("{};{payload}", self.tag);
        let notify = async {
            let mut voice = self.voice.lock().await;
            // The open connection may be broken. After an error it is not used again.
            if let Some(known) = voice.take()
                && let Ok(connection) = self.send_notify(known, channel, &payload).await
            {
                *voice = Some(connection);
                return Ok(());
            }
            let fresh = PgConnection::connect_with(&self.options).await?;
            *voice = Some(self.send_notify(fresh, channel, &payload).await?);
            Ok(())
        };
        with_deadline(ANNOUNCE_LIMIT, notify).await
    }

    async fn send_notify(&self, mut on: PgConnection, channel: &str, payload: &str) -> Result<PgConnection, sqlx::Error> {
        sqlx::query("SELECT pg_notify($1, $2)").bind(channel).bind(payload).execute(&mut on).await?;
        Ok(on)
    }

    /// Receives notifications of other processes. Reconnects when necessary, also after a silence. Returns [`Notice::LogUnknown`]
    /// after each connect, because notifications may have been missed before. Never ends.
    pub fn listen(&self) -> impl Stream<Item = Notice> + Send + use<> {
        let listener =
            NoticeListener { options: self.options.clone(), tag: Arc::clone(&self.tag), silence: self.silence, has_logged: false };
        stream::unfold((listener, None), |(mut listener, mut listening)| async move {
            loop {
                let notice = match listening.take() {
                    None => listener.connect().await.map(|fresh| (fresh, Notice::LogUnknown)),
                    Some(current) => listener.next(current).await,
                };
                match notice {
                    Ok((listening, notice)) => return Some((notice, (listener, Some(listening)))),
                    Err(error) => {
                        listener.log_failure(&error);
                        tokio::time::sleep(RECONNECT_AFTER).await;
                    }
                }
            }
        })
    }

    /// Closes the connection for sending. The other one closes with the stream of [`Self::listen`].
    pub async fn close(&self) {
        if let Some(voice) = self.voice.lock().await.take() {
            // A server that does not receive the termination message closes the connection by itself.
            let _ = timeout(CONNECT_LIMIT, voice.close()).await;
        }
    }
}

struct NoticeListener {
    options: PgConnectOptions,
    tag: Arc<str>,
    silence: Duration,
    /// Whether the log contains the warning that no notifications arrive.
    has_logged: bool,
}

struct ListenerConnection {
    listener: PgListener,
    heard_at: Instant,
}

impl NoticeListener {
    /// Creates a separate pool, because the library closes a connection only after a last answer, and a silent connection must not
    /// block the next one.
    async fn connect(&self) -> Result<ListenerConnection, sqlx::Error> {
        let options = PgPoolOptions::new().max_connections(1).acquire_timeout(CONNECT_LIMIT).max_lifetime(None).idle_timeout(None);
        let pool = options.connect_lazy_with(self.options.clone());
        let connect = async {
            let mut listener = PgListener::connect_with(&pool).await?;
            listener.listen_all([LOG, LIST, QUEUE, CONTROL, PRESENT]).await?;
            Ok::<_, sqlx::Error>(ListenerConnection { listener, heard_at: Instant::now() })
        };
        timeout(self.silence, connect).await.unwrap_or_else(|_| Err(silent(self.silence)))
    }

    async fn next(&mut self, mut on: ListenerConnection) -> Result<(ListenerConnection, Notice), sqlx::Error> {
        loop {
            let heard = timeout_at(on.heard_at + self.silence, on.listener.try_recv()).await;
            let notice = match heard.map_err(|_| silent(self.silence))?? {
                // The connection was lost, and the listener reconnects.
                None => Some(Notice::LogUnknown),
                Some(notification) => {
                    self.has_logged = false;
                    read(notification.channel(), notification.payload(), &self.tag)
                }
            };
            on.heard_at = Instant::now();
            if let Some(notice) = notice {
                return Ok((on, notice));
            }
        }
    }

    /// Logs once until notifications arrive again: behind a pooler in transaction mode none ever do.
    fn log_failure(&mut self, error: &sqlx::Error) {
        if self.has_logged {
            tracing::debug!(%error, "still no notifications are received");
        } else {
            tracing::warn!(%error, "cannot listen for notifications: this process polls instead");
        }
        self.has_logged = true;
    }
}

fn silent(after: Duration) -> sqlx::Error {
    let words = format!("no notification was received for {} s, not even of this process itself", after.as_secs_f32());
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, words))
}

fn read(channel: &str, payload: &str, own_tag: &str) -> Option<Notice> {
    let (tag, payload) = payload.split_once(';').unwrap_or(("", payload));
    if tag == own_tag {
        return None;
    }
    match channel {
        LOG if payload.is_empty() => Some(Notice::LogUnknown),
        LOG => Some(Notice::Log(payload.split(',').filter_map(|id| ConversationId::parse(id).ok()).collect())),
        LIST if payload.is_empty() => Some(Notice::ListUnknown),
        LIST => Some(Notice::List(payload.split(',').filter_map(read_hint).collect())),
        QUEUE => Some(Notice::Queue),
        CONTROL => Some(Notice::Control),
        PRESENT => Some(Notice::Present),
        _ => None,
    }
}

fn read_hint(word: &str) -> Option<ListHint> {
    let (subject, owner) = match word.split_once('/') {
        Some((subject, owner)) => (subject, Some(UserId::parse(owner).ok()?)),
        None => (word, None),
    };
    if subject == REVIEWS {
        return Some(ListHint::Reviews(owner));
    }
    let conversation = ConversationId::parse(subject).ok()?;
    Some(match owner {
        Some(owner) => ListHint::Removed(conversation, owner),
        None => ListHint::Changed(conversation),
    })
}

/// Returns the words as a payload, or an empty payload if they are too many.
fn payload(words: impl Iterator<Item = String>) -> String {
    let mut joined = String::new();
    for word in words {
        if joined.len() + 1 + word.len() > MAX_PAYLOAD {
            return String::new();
        }
        if !joined.is_empty() {
            joined.push(',');
        }
        joined.push_str(&word);
    }
    joined
}

/// Collects notifications, so that their rate can be limited. The caller keeps the time.
#[derive(Debug, Default)]
pub struct NotificationBatch {
    conversations: BTreeSet<ConversationId>,
}

impl NotificationBatch {
    /// Adds a log that has grown.
    pub fn add(&mut self, conversation: &ConversationId) {
        if !self.conversations.contains(conversation) {
            self.conversations.insert(conversation.clone());
        }
    }

    /// Returns and clears the collected ids, each once.
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
    fn sent_notification_is_received() {
        let two = [conversation(1), conversation(2)];
        let of = |ids: &[ConversationId]| format!("node_a;{}", payload(ids.iter().map(ToString::to_string)));
        assert_eq!(read(LOG, &of(&two), "node_b"), Some(Notice::Log(two.to_vec())));
        assert_eq!(read(LOG, &of(&two), "node_a"), None);
        let many: Vec<_> = (0..300).map(conversation).collect();
        assert_eq!(read(LOG, &of(&many), "node_b"), Some(Notice::LogUnknown));
        assert_eq!(read("other", "", "node_b"), None);
    }

    #[test]
    fn a_log_that_grows_twice_is_announced_once() {
        let mut merger = NotificationBatch::default();
        merger.add(&conversation(2));
        merger.add(&conversation(1));
        merger.add(&conversation(2));
        assert_eq!(merger.take(), [conversation(1), conversation(2)]);
        assert!(merger.take().is_empty());
    }
}
