//! Tells other processes that there is something to read, after the commit and on connections of its own: a NOTIFY inside
//! write transactions serialises the commits of the whole database. Only hints: readers that poll miss nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, stream};
use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgListener, PgPoolOptions};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};

use super::answer::within;
use crate::domain::ids::ConversationId;
use crate::store::StoreResult;

/// The longest list of ids; Postgres refuses payloads of 8,000 bytes and more, and the tag comes on top.
const MAX_PAYLOAD: usize = 7_800;

/// The wait before another try to connect.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);

/// The longest wait for a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// The longest wait for a hint to be taken. It is late by then, and a connection that takes none is replaced.
const ANNOUNCE_LIMIT: Duration = Duration::from_secs(3);

/// A connection that received nothing for this long is replaced: a connection can end without a sign. A listener hears its own
/// presence every few seconds, if it [announces](PgNotifier::announce_presence) that.
const SILENCE: Duration = Duration::from_secs(10);

const LOG: &str = "capstan_log";
const QUEUE: &str = "capstan_queue";
const CONTROL: &str = "capstan_control";
const PRESENT: &str = "capstan_present";

/// An announcement of a process.
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

/// Announces and listens on two connections that nothing else uses. No error of an announcement loses anything.
#[derive(Clone)]
pub struct PgNotifier {
    /// The connection for announcements, while no announcement uses it. It belongs to no pool: a pool waits for an answer when a
    /// connection is returned, and a silent connection never gives one.
    voice: Arc<Mutex<Option<PgConnection>>>,
    options: PgConnectOptions,
    /// The prefix of this process's notices, by which it ignores its own.
    tag: Arc<str>,
    silence: Duration,
}

impl PgNotifier {
    /// Returns a notifier that connects to `url` at its first use. `tag` is unique to this process and has no semicolon.
    ///
    /// LISTEN needs a connection of its own. Behind a pooler in transaction mode no notice arrives, and only polling is left.
    pub fn new(url: &str, tag: &str) -> StoreResult<Self> {
        // A hint need not outlive the database, so no notification waits for the disk.
        let options = super::connect::connect_options(url)?.options([("synchronous_commit", "off")]);
        Ok(Self { voice: Arc::default(), options, tag: tag.into(), silence: SILENCE })
    }

    /// The same with another limit on how long a connection may be silent.
    pub fn bearing_silence(self, limit: Duration) -> Self {
        Self { silence: limit, ..self }
    }

    /// Announces that logs have grown, in one notification.
    pub async fn announce(&self, conversations: &[ConversationId]) -> StoreResult<()> {
        if conversations.is_empty() {
            return Ok(());
        }
        self.notify(LOG, &payload(conversations)).await
    }

    /// Announces that a run may have become claimable.
    pub async fn announce_queue(&self) -> StoreResult<()> {
        self.notify(QUEUE, "").await
    }

    /// Announces that a run under way may have been asked to end or been sent a message.
    pub async fn announce_control(&self) -> StoreResult<()> {
        self.notify(CONTROL, "").await
    }

    /// Announces that this process is there and listens.
    pub async fn announce_presence(&self) -> StoreResult<()> {
        self.notify(PRESENT, "").await
    }

    async fn notify(&self, channel: &str, payload: &str) -> StoreResult<()> {
        let payload = format!("{};{payload}", self.tag);
        let notify = async {
            let mut voice = self.voice.lock().await;
            // The known connection may have been closed meanwhile. After an error it is not used again.
            if let Some(known) = voice.take()
                && let Ok(connection) = self.say(known, channel, &payload).await
            {
                *voice = Some(connection);
                return Ok(());
            }
            let fresh = PgConnection::connect_with(&self.options).await?;
            *voice = Some(self.say(fresh, channel, &payload).await?);
            Ok(())
        };
        within(ANNOUNCE_LIMIT, notify).await
    }

    async fn say(&self, mut on: PgConnection, channel: &str, payload: &str) -> Result<PgConnection, sqlx::Error> {
        sqlx::query("SELECT pg_notify($1, $2)").bind(channel).bind(payload).execute(&mut on).await?;
        Ok(on)
    }

    /// Hears what is announced by other processes. Connects again whenever it has to, also if nothing is heard for a while, and says
    /// [`Notice::LogUnknown`] each time that it is connected, since anything may have been missed before. Never ends.
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

    /// Ends the connection for announcements; the other one ends with the stream of [`Self::listen`].
    pub async fn close(&self) {
        if let Some(voice) = self.voice.lock().await.take() {
            // A server that does not hear the last word closes the connection by itself.
            let _ = timeout(CONNECT_LIMIT, voice.close()).await;
        }
    }
}

fn one_connection() -> PgPoolOptions {
    PgPoolOptions::new().max_connections(1).acquire_timeout(CONNECT_LIMIT)
}

struct NoticeListener {
    options: PgConnectOptions,
    tag: Arc<str>,
    silence: Duration,
    /// The log knows that nothing can be heard.
    has_logged: bool,
}

/// A connection on which something was heard.
struct Listening {
    listener: PgListener,
    heard_at: Instant,
}

impl NoticeListener {
    /// With a pool of its own: the library gives a connection up only after a last answer, and one that is silent must not keep the
    /// place of the next.
    async fn connect(&self) -> Result<Listening, sqlx::Error> {
        let pool = one_connection().max_lifetime(None).idle_timeout(None).connect_lazy_with(self.options.clone());
        let connect = async {
            let mut listener = PgListener::connect_with(&pool).await?;
            listener.listen_all([LOG, QUEUE, CONTROL, PRESENT]).await?;
            Ok::<_, sqlx::Error>(Listening { listener, heard_at: Instant::now() })
        };
        timeout(self.silence, connect).await.unwrap_or_else(|_| Err(silent(self.silence)))
    }

    async fn next(&mut self, mut on: Listening) -> Result<(Listening, Notice), sqlx::Error> {
        loop {
            let heard = timeout_at(on.heard_at + self.silence, on.listener.try_recv()).await;
            let notice = match heard.map_err(|_| silent(self.silence))?? {
                // The connection was lost and is made again by the listener.
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

    /// Once until something is heard again: behind a pooler in transaction mode nothing ever is.
    fn log_failure(&mut self, error: &sqlx::Error) {
        if self.has_logged {
            tracing::debug!(%error, "still no notifications are heard");
        } else {
            tracing::warn!(%error, "cannot listen for notifications, polling goes on");
        }
        self.has_logged = true;
    }
}

fn silent(after: Duration) -> sqlx::Error {
    let words = format!("nothing was heard for {} s, not even of this process itself", after.as_secs_f32());
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
