//! The native protocol of a WebSocket: requests of use cases, and subscriptions.

use super::methods::{self, Reply};
use super::requests;
use super::socket::{Close, SocketProtocol};
use super::subscriptions::Subscriptions;
use crate::domain::access::principal::Principal;
use crate::domain::problem::ProblemBody;
use crate::domain::trace::TraceId;
use crate::http::options::App;
use crate::http::wire::problem::Problem;
use crate::service::{Access, StoreError};

/// Limit of consecutive unreadable frames that get a response. The next one closes the socket.
const PATIENCE: u32 = 20;

pub(super) struct NativeProtocol {
    app: App,
    principal: Principal,
    trace: TraceId,
    subscriptions: Subscriptions,
    strikes: u32,
}

impl SocketProtocol for NativeProtocol {
    const MAX_MESSAGE_BYTES: usize = 1024 * 1024;

    const FIRST_FRAME_KEY: Option<fn(&str) -> Option<String>> = Some(|first| methods::auth_token(&requests::read(first).ok()?));

    fn new(app: App, access: Access, trace: TraceId) -> Self {
        let subscriptions = Subscriptions::new(app.options.limits.ws_max_subscriptions);
        Self { app, principal: access.principal().clone(), trace, subscriptions, strikes: 0 }
    }

    async fn request(&mut self, text: &str) -> Result<Vec<String>, Close> {
        let frame = match requests::read(text) {
            Ok(frame) => frame,
            Err(error) => {
                self.strikes += 1;
                if self.strikes > PATIENCE {
                    return Err(Close::Abuse);
                }
                return Ok(vec![self.refusal("null", error.problem())]);
            }
        };
        self.strikes = 0;
        let held = &self.subscriptions.targets;
        Ok(match methods::call(&self.app, &self.principal, held, &self.trace, &frame).await {
            Ok(reply) => self.answer(frame.id, reply),
            Err(Problem(problem)) => vec![self.refusal(frame.id, *problem)],
        })
    }

    async fn next(&mut self) -> Result<Vec<String>, StoreError> {
        self.subscriptions.next().await
    }
}

impl NativeProtocol {
    /// Returns the lines of a response. The events of a new subscription follow them.
    fn answer(&mut self, id: &str, reply: Reply) -> Vec<String> {
        let outcome = match reply {
            Reply::Done(outcome) => outcome,
            Reply::Stream { outcome, reader } => {
                self.subscriptions.insert(&self.app, *reader);
                outcome
            }
            Reply::List { outcome, list } => {
                self.subscriptions.insert_list(&self.app, list);
                outcome
            }
            Reply::Finished { target, outcome, line } => {
                // No event may follow the end.
                self.subscriptions.remove(&target);
                return vec![requests::result(id, outcome), line];
            }
            Reply::Unsubscribe(target) => {
                let removed = self.subscriptions.remove(&target);
                serde_json::json!({ "unsubscribed": removed }).into()
            }
        };
        vec![requests::result(id, outcome)]
    }

    fn refusal(&self, id: &str, mut problem: ProblemBody) -> String {
        problem.request_id = format!("req_{}", self.app.service.ids().next());
        if problem.status >= 500 {
            tracing::error!(request_id = problem.request_id, code = problem.code, "a WebSocket request failed");
        }
        requests::error(id, &problem)
    }
}
