//! What a server wants to know in the middle of a call, on its way to whoever answers it and back.

use std::pin::Pin;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::handler::Wanted;
use crate::domain::input::{CANCEL, InputAnswer};
use crate::tools::{Asks, ProgressSender, Report, Samples};

/// Something that a person or a model thinks about.
pub struct Thought {
    /// Since when.
    pub since: Instant,
    /// Over when the server has its answer.
    answer: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Puts what a server wants to know to whoever answers it, if it wants anything.
pub async fn put(wanted: Option<Wanted>, progress: &ProgressSender) -> Option<Thought> {
    let answer: Pin<Box<dyn Future<Output = ()> + Send>> = match wanted? {
        Wanted::Asks(asks) => {
            let Asks { text, elicitation, answer: server } = *asks;
            let (answer, person) = oneshot::channel();
            let _ = progress.send(Report::Asks(Box::new(Asks { text, elicitation, answer }))).await;
            Box::pin(async move {
                let said = person.await.unwrap_or_else(|_| InputAnswer::new(CANCEL, None));
                let _ = server.send(said);
            })
        }
        Wanted::Samples(samples) => {
            let Samples { request, answer: server } = *samples;
            let (answer, model) = oneshot::channel();
            let _ = progress.send(Report::Samples(Box::new(Samples { request, answer }))).await;
            Box::pin(async move {
                let said = model.await.unwrap_or_else(|_| Err("no model can be asked".to_owned()));
                let _ = server.send(said);
            })
        }
    };
    Some(Thought { since: Instant::now(), answer })
}

/// Waits until the server has its answer. Never resolves while there is no question.
pub async fn answer_of(thinks: &mut Option<Thought>) {
    match thinks {
        Some(thought) => (&mut thought.answer).await,
        None => std::future::pending().await,
    }
}
