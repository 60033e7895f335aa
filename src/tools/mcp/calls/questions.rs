//! Questions of a server in the middle of a call, on their way to the user or model and back.

use std::pin::Pin;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::domain::run::input::{CANCEL, InputAnswer};
use crate::tools::mcp::transport::handler::Wanted;
use crate::tools::{Asks, ProgressSender, Report, Samples};

pub struct OpenQuestion {
    pub since: Instant,
    /// Ends when the server has its answer.
    answer: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Passes a question on to the user or model, if there is one.
pub async fn put(wanted: Option<Wanted>, progress: &ProgressSender) -> Option<OpenQuestion> {
    let (report, answer) = match wanted? {
        Wanted::Asks(asks) => {
            let Asks { text, elicitation, answer: server } = *asks;
            let (answer, passed_on) = pass_on(server, InputAnswer::new(CANCEL, None));
            (Report::Asks(Box::new(Asks { text, elicitation, answer })), passed_on)
        }
        Wanted::Samples(samples) => {
            let Samples { request, answer: server } = *samples;
            let (answer, passed_on) = pass_on(server, Err("no model can be asked".to_owned()));
            (Report::Samples(Box::new(Samples { request, answer })), passed_on)
        }
    };
    let _ = progress.send(report).await;
    Some(OpenQuestion { since: Instant::now(), answer })
}

/// Returns where the answer goes, and a future that passes it on to the server: `otherwise` if there is none.
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

/// Waits until the server has its answer. Never resolves while there is no question.
pub async fn answer_of(open: &mut Option<OpenQuestion>) {
    match open {
        Some(question) => (&mut question.answer).await,
        None => std::future::pending().await,
    }
}
