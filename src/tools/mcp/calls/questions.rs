//! Passes questions of a server during a call to the user or model, and their answers back.

use std::pin::Pin;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::domain::run::InputAnswer;
use crate::domain::run::question::CANCEL;
use crate::tools::mcp::transport::handler::ServerRequest;
use crate::tools::{ElicitationRequest, ProgressSender, Report, SamplingCall};

pub struct OpenQuestion {
    pub since: Instant,
    /// Completes when the server has its answer.
    answer: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Passes the next question, if there is one, to the user or model.
pub async fn put(next: Option<ServerRequest>, progress: &ProgressSender) -> Option<OpenQuestion> {
    let (report, answer) = match next? {
        ServerRequest::Asks(asks) => {
            let ElicitationRequest { text, elicitation, answer: server } = *asks;
            let (answer, passed_on) = pass_on(server, InputAnswer::new(CANCEL, None));
            (Report::Asks(Box::new(ElicitationRequest { text, elicitation, answer })), passed_on)
        }
        ServerRequest::Samples(samples) => {
            let SamplingCall { request, answer: server } = *samples;
            let (answer, passed_on) = pass_on(server, Err("no model is available".to_owned()));
            (Report::Samples(Box::new(SamplingCall { request, answer })), passed_on)
        }
    };
    let _ = progress.send(report).await;
    Some(OpenQuestion { since: Instant::now(), answer })
}

/// Returns the sender for the answer, and a future that passes the answer to the server. Without an answer, the future passes
/// `otherwise`.
fn pass_on<T: Send + 'static>(
    server: oneshot::Sender<T>,
    otherwise: T,
) -> (oneshot::Sender<T>, Pin<Box<dyn Future<Output = ()> + Send>>) {
    let (answer, answered) = oneshot::channel();
    let passed_on = async move {
        let _ = server.send(answered.await.unwrap_or(otherwise));
    };
    (answer, Box::pin(passed_on))
}

/// Waits until the server has its answer. Never completes if no question is open.
pub async fn answer_of(open: &mut Option<OpenQuestion>) {
    match open {
        Some(question) => (&mut question.answer).await,
        None => std::future::pending().await,
    }
}
