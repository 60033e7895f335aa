//! Wraps each transport, and handles messages before the library does. Must not know which transport it wraps.
//!
//! It gives requests unique ids: the library starts at zero on every connection, so a server that confuses two connections could answer the
//! wrong call. It consumes progress, because the library would start a task for each report. It limits the rate of notifications, so that a
//! flooding server gets backpressure.

use std::collections::HashSet;
use std::sync::Arc;

use rmcp::RoleClient;
use rmcp::model::{ClientNotification, GetMeta as _, JsonRpcMessage, ProgressToken, RequestId, ServerNotification};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::time::Instant;

use crate::support::random::{Randomness as _, SystemRandomness};
use crate::tools::mcp::transport::flood_limits::TokenBucket;
use crate::tools::mcp::transport::handler::CallSubscriptions;

const LOGGED_STRAYS: u64 = 20;
/// The number of ids of one connection.
const ID_RANGE: i64 = 1 << 20;

pub struct ControlledTransport<T> {
    inner: T,
    server: String,
    subscriptions: Arc<CallSubscriptions>,
    numbers: RequestIdRange,
    messages: TokenBucket,
    strays: u64,
}

impl<T> ControlledTransport<T> {
    pub fn new(inner: T, server: &str, subscriptions: Arc<CallSubscriptions>) -> Self {
        // Without randomness the ids begin at zero.
        let mut connection = [0; 4];
        let _ = SystemRandomness.fill(&mut connection);
        let numbers = RequestIdRange::of(u32::from_be_bytes(connection));
        Self { inner, server: server.to_owned(), subscriptions, numbers, messages: TokenBucket::new(), strays: 0 }
    }

    /// Handles a message, and returns it if the library must see it.
    fn handle(&mut self, mut message: RxJsonRpcMessage<RoleClient>) -> Option<RxJsonRpcMessage<RoleClient>> {
        match &mut message {
            JsonRpcMessage::Response(response) => match self.numbers.answered(&response.id) {
                Some(id) => response.id = id,
                None => return self.drop_unmatched(),
            },
            JsonRpcMessage::Error(error) => match error.id.as_ref().map(|id| self.numbers.answered(id)) {
                Some(Some(id)) => error.id = Some(id),
                Some(None) => return self.drop_unmatched(),
                None => {}
            },
            JsonRpcMessage::Notification(message) => {
                self.messages.spend(Instant::now());
                match &message.notification {
                    ServerNotification::ToolListChangedNotification(_) => self.subscriptions.mark_tools_stale(),
                    ServerNotification::ProgressNotification(progress) => {
                        if let Some(token) = self.numbers.library_id(&progress.params.progress_token.0) {
                            self.subscriptions.report(&ProgressToken(token), &progress.params);
                        }
                        return None;
                    }
                    ServerNotification::LoggingMessageNotification(_) => return None,
                    _ => {}
                }
            }
            // The library starts a task and sends an answer for each request of the server.
            JsonRpcMessage::Request(_) => self.messages.spend(Instant::now()),
        }
        Some(message)
    }

    /// Drops an answer without an open request.
    fn drop_unmatched(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        self.strays += 1;
        if self.strays <= LOGGED_STRAYS {
            let count = self.strays;
            tracing::warn!(mcp.server = self.server, count, "MCP server sent an answer without an open request");
        }
        None
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for ControlledTransport<T> {
    type Error = T::Error;

    fn send(&mut self, mut item: TxJsonRpcMessage<RoleClient>) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        match &mut item {
            JsonRpcMessage::Request(request) => {
                request.id = self.numbers.outgoing_id(&request.id);
                let meta = request.request.get_meta_mut();
                if let Some(token) = meta.get_progress_token() {
                    meta.set_progress_token(ProgressToken(self.numbers.outer(&token.0)));
                }
            }
            JsonRpcMessage::Notification(message) => {
                if let ClientNotification::CancelledNotification(cancelled) = &mut message.notification
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
            // The wait buffers no message, because this future may be dropped at any time.
            if let Some(until) = self.messages.exhausted_until() {
                tokio::time::sleep_until(until).await;
                self.messages.refill(Instant::now());
            }
            let message = self.inner.receive().await?;
            if let Some(message) = self.handle(message) {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.inner.close().await
    }
}

/// The ids of one connection: those of the library, moved to a separate range.
struct RequestIdRange {
    base: i64,
    /// Open requests, by the library's id.
    open: HashSet<i64>,
}

impl RequestIdRange {
    /// Returns ids below 2^53, which every language represents exactly.
    fn of(connection: u32) -> Self {
        Self { base: i64::from(connection) * ID_RANGE, open: HashSet::new() }
    }

    fn outer(&self, id: &RequestId) -> RequestId {
        match id {
            RequestId::Number(number) => RequestId::Number(self.base + number),
            RequestId::String(text) => RequestId::String(text.clone()),
        }
    }

    /// Returns the library's id for an id of the server; some servers convert numbers to texts.
    fn library_id(&self, id: &RequestId) -> Option<RequestId> {
        let number = match id {
            RequestId::Number(number) => *number,
            RequestId::String(text) => text.parse().ok()?,
        };
        number.checked_sub(self.base).filter(|number| *number >= 0).map(RequestId::Number)
    }

    fn outgoing_id(&mut self, id: &RequestId) -> RequestId {
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
        let library_id = self.library_id(id)?;
        match &library_id {
            RequestId::Number(number) => self.open.remove(number).then_some(library_id),
            RequestId::String(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// M-05, M-30.
    #[test]
    fn an_answer_is_taken_once_and_only_on_its_own_connection() {
        let (mut one, mut other) = (RequestIdRange::of(3), RequestIdRange::of(4));
        let (outgoing_id, elsewhere) = (one.outgoing_id(&RequestId::Number(1)), other.outgoing_id(&RequestId::Number(1)));
        assert_ne!(outgoing_id, elsewhere);
        assert_eq!(one.answered(&elsewhere), None);
        let as_text = RequestId::String((3 * ID_RANGE + 1).to_string().into());
        assert_eq!(one.answered(&as_text), Some(RequestId::Number(1)));
        assert_eq!(one.answered(&outgoing_id), None, "twice");
        let late = one.outgoing_id(&RequestId::Number(2));
        one.given_up(&RequestId::Number(2));
        assert_eq!(one.answered(&late), None, "after its time");
        for stranger in [RequestId::Number(99), RequestId::Number(-5), RequestId::String("x".into())] {
            assert_eq!(one.answered(&stranger), None);
        }
        assert!(RequestIdRange::of(u32::MAX).base < 1 << 53);
    }
}
