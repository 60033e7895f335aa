//! A transport around each transport, which handles messages before the library does.
//!
//! It gives requests unique ids: the library begins at zero on every connection, so a server that confuses two connections could answer
//! the wrong call. It consumes progress, because the library would start a task for each report. It limits the rate of
//! notifications, so that a flooding server gets backpressure.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use rmcp::RoleClient;
use rmcp::model::{ClientNotification, GetMeta as _, JsonRpcMessage, ProgressToken, RequestId, ServerNotification};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::time::Instant;

use crate::support::random::{Randomness as _, SystemRandomness};
use crate::tools::mcp::transport::handler::Heard;

/// The size of the token bucket for notifications and requests of the server.
const NEWS_AT_ONCE: f64 = 2_000.0;
const NEWS_PER_SECOND: f64 = 1_000.0;
const LOGGED_STRAYS: u64 = 20;
/// The number of ids of one connection.
const NUMBERS: i64 = 1 << 20;

pub struct Attentive<T> {
    inner: T,
    server: String,
    heard: Arc<Heard>,
    numbers: Numbers,
    news: Allowance,
    strays: u64,
}

impl<T> Attentive<T> {
    pub fn new(inner: T, server: &str, heard: Arc<Heard>) -> Self {
        // Without randomness the ids begin at zero.
        let mut connection = [0; 4];
        let _ = SystemRandomness.fill(&mut connection);
        let numbers = Numbers::of(u32::from_be_bytes(connection));
        Self { inner, server: server.to_owned(), heard, numbers, news: Allowance::new(), strays: 0 }
    }

    /// Handles a message, and returns it if the library must see it.
    fn take_in(&mut self, mut message: RxJsonRpcMessage<RoleClient>) -> Option<RxJsonRpcMessage<RoleClient>> {
        match &mut message {
            JsonRpcMessage::Response(response) => match self.numbers.answered(&response.id) {
                Some(id) => response.id = id,
                None => return self.stray(),
            },
            JsonRpcMessage::Error(error) => match error.id.as_ref().map(|id| self.numbers.answered(id)) {
                Some(Some(id)) => error.id = Some(id),
                Some(None) => return self.stray(),
                None => {}
            },
            JsonRpcMessage::Notification(news) => {
                self.news.spend(Instant::now());
                match &news.notification {
                    ServerNotification::ToolListChangedNotification(_) => self.heard.tools_are_stale(),
                    ServerNotification::ProgressNotification(progress) => {
                        if let Some(token) = self.numbers.inner(&progress.params.progress_token.0) {
                            self.heard.report(&ProgressToken(token), &progress.params);
                        }
                        return None;
                    }
                    ServerNotification::LoggingMessageNotification(_) => return None,
                    _ => {}
                }
            }
            // The library starts a task and sends an answer for each.
            JsonRpcMessage::Request(_) => self.news.spend(Instant::now()),
        }
        Some(message)
    }

    /// Drops an answer without an open request.
    fn stray(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        self.strays += 1;
        if self.strays <= LOGGED_STRAYS {
            let count = self.strays;
            tracing::warn!(mcp.server = self.server, count, "MCP server answered something that was not asked, or not any more");
        }
        None
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Attentive<T> {
    type Error = T::Error;

    fn send(&mut self, mut item: TxJsonRpcMessage<RoleClient>) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        match &mut item {
            JsonRpcMessage::Request(request) => {
                request.id = self.numbers.asked(&request.id);
                let meta = request.request.get_meta_mut();
                if let Some(token) = meta.get_progress_token() {
                    meta.set_progress_token(ProgressToken(self.numbers.outer(&token.0)));
                }
            }
            JsonRpcMessage::Notification(news) => {
                if let ClientNotification::CancelledNotification(cancelled) = &mut news.notification
                    && let Some(id) = &mut cancelled.params.request_id
                {
                    *id = self.numbers.given_up(id);
                }
            }
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => {}
        }
        self.inner.send(item)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            // The wait holds no message, because this future may be dropped at any time.
            if let Some(until) = self.news.exhausted_until() {
                tokio::time::sleep_until(until).await;
                self.news.refill(Instant::now());
            }
            let message = self.inner.receive().await?;
            if let Some(message) = self.take_in(message) {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.inner.close().await
    }
}

/// The ids of one connection: those of the library, moved to a range of their own.
struct Numbers {
    base: i64,
    /// Open requests, by the library's id.
    open: HashSet<i64>,
}

impl Numbers {
    /// The ids stay below 2^53, which every language represents exactly.
    fn of(connection: u32) -> Self {
        Self { base: i64::from(connection) * NUMBERS, open: HashSet::new() }
    }

    fn outer(&self, id: &RequestId) -> RequestId {
        match id {
            RequestId::Number(number) => RequestId::Number(self.base + number),
            RequestId::String(text) => RequestId::String(text.clone()),
        }
    }

    /// Returns the library's id for an id of the server; some servers turn numbers into texts.
    fn inner(&self, id: &RequestId) -> Option<RequestId> {
        let number = match id {
            RequestId::Number(number) => *number,
            RequestId::String(text) => text.parse().ok()?,
        };
        number.checked_sub(self.base).filter(|number| *number >= 0).map(RequestId::Number)
    }

    fn asked(&mut self, id: &RequestId) -> RequestId {
        if let RequestId::Number(number) = id {
            self.open.insert(*number);
        }
        self.outer(id)
    }

    fn given_up(&mut self, id: &RequestId) -> RequestId {
        if let RequestId::Number(number) = id {
            self.open.remove(number);
        }
        self.outer(id)
    }

    /// Closes a request and returns the library's id; `None` if it is not open.
    fn answered(&mut self, id: &RequestId) -> Option<RequestId> {
        let inner = self.inner(id)?;
        match &inner {
            RequestId::Number(number) => self.open.remove(number).then_some(inner),
            RequestId::String(_) => None,
        }
    }
}

/// A token bucket.
struct Allowance {
    left: f64,
    at: Instant,
}

impl Allowance {
    fn new() -> Self {
        Self { left: NEWS_AT_ONCE, at: Instant::now() }
    }

    fn refill(&mut self, now: Instant) {
        let gained = now.duration_since(self.at).as_secs_f64() * NEWS_PER_SECOND;
        (self.left, self.at) = (NEWS_AT_ONCE.min(self.left + gained), now);
    }

    fn spend(&mut self, now: Instant) {
        self.refill(now);
        self.left -= 1.0;
    }

    /// Returns when to continue if the bucket is empty. It fills for 100 ms, so that a flood does not wake a task for each message.
    fn exhausted_until(&self) -> Option<Instant> {
        (self.left < 1.0).then(|| self.at + Duration::from_millis(100))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// M-05, M-30.
    #[test]
    fn an_answer_is_taken_once_and_only_on_its_own_connection() {
        let (mut one, mut other) = (Numbers::of(3), Numbers::of(4));
        let (asked, elsewhere) = (one.asked(&RequestId::Number(1)), other.asked(&RequestId::Number(1)));
        assert_ne!(asked, elsewhere);
        assert_eq!(one.answered(&elsewhere), None);
        let as_text = RequestId::String((3 * NUMBERS + 1).to_string().into());
        assert_eq!(one.answered(&as_text), Some(RequestId::Number(1)));
        assert_eq!(one.answered(&asked), None, "twice");
        let late = one.asked(&RequestId::Number(2));
        one.given_up(&RequestId::Number(2));
        assert_eq!(one.answered(&late), None, "after its time");
        for stranger in [RequestId::Number(99), RequestId::Number(-5), RequestId::String("x".into())] {
            assert_eq!(one.answered(&stranger), None);
        }
        assert!(Numbers::of(u32::MAX).base < 1 << 53);
    }

    /// M-28.
    #[tokio::test(start_paused = true)]
    async fn news_is_read_at_a_rate() {
        let mut news = Allowance::new();
        let began = Instant::now();
        for _ in 0..12_000 {
            if let Some(until) = news.exhausted_until() {
                tokio::time::sleep_until(until).await;
                news.refill(Instant::now());
            }
            news.spend(Instant::now());
        }
        let took = began.elapsed().as_secs_f64();
        assert!((9.5..10.5).contains(&took), "{took}");
    }
}
