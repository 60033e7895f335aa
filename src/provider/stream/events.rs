//! Streams an answer: decodes frames to events of the model.
//!
//! Owns the waits for the end of an answer. Must not know a dialect.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use tokio::time::Sleep;

use super::decoder::StreamAdapter;
use super::decoder::{AnswerDecoder, Progress};
use super::split_events;
use crate::domain::model::{ModelError, ModelEvent};
use crate::provider::http::sse::{Frame, Frames};
use crate::provider::http::timeouts::{NO_BYTE, StreamLimits, timeout};

/// The events of a streamed answer.
pub(in crate::provider) struct Events<A> {
    frames: Frames,
    decoder: AnswerDecoder<A>,
    /// A failure, returned after the events before it.
    failed: Option<ModelError>,
    state: State,
    limits: StreamLimits,
}

enum State {
    Open,
    /// The stop reason has arrived, but the model may continue. If no event follows, the answer has ended.
    MayContinue,
    /// The stop reason has arrived. Usage and the end mark may follow until the timer fires.
    Closing(Pin<Box<Sleep>>),
    /// The end mark has arrived. The end of the body is awaited until the timer fires, so that the connection can serve the next call.
    Draining(Pin<Box<Sleep>>),
    Over,
}

/// The wait for the end of the body, which nearly always arrives together with the end mark.
const DRAIN: Duration = Duration::from_millis(50);

impl<A: StreamAdapter> Events<A> {
    pub(in crate::provider) fn new(frames: Frames, decoder: AnswerDecoder<A>, limits: StreamLimits) -> Self {
        Self { frames, decoder, failed: None, state: State::Open, limits }
    }

    fn take(&mut self, progress: Result<Progress, ModelError>) {
        self.state = match (progress, &self.state) {
            // An answer that restarts is not closing any more.
            (Ok(Progress::Open), State::Closing(_) | State::MayContinue) => State::Open,
            (Ok(Progress::Closing), State::Open | State::MayContinue) => {
                State::Closing(Box::pin(tokio::time::sleep(self.limits.after_finish)))
            }
            (Ok(Progress::Open | Progress::Closing), _) => return,
            (Ok(Progress::MayContinue), _) => State::MayContinue,
            (Ok(Progress::Complete), _) => State::Draining(Box::pin(tokio::time::sleep(DRAIN))),
            (Err(error), _) => {
                self.failed = Some(error);
                State::Over
            }
        };
    }

    fn frame(&mut self, frame: &Frame) {
        let Some(events) = split_events::events(&frame.data) else { return self.event(frame.event.as_deref(), &frame.data) };
        for data in events {
            if let State::Open | State::MayContinue | State::Closing(_) = self.state {
                self.event(frame.event.as_deref(), data);
            }
        }
    }

    fn event(&mut self, name: Option<&str>, data: &str) {
        let progress = self.decoder.frame(name, data);
        self.take(progress);
    }

    fn close(&mut self) {
        self.failed = self.decoder.close().err();
        self.state = State::Over;
    }
}

impl<A: StreamAdapter> Stream for Events<A> {
    type Item = Result<ModelEvent, ModelError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(event) = this.decoder.next_event() {
                return Poll::Ready(Some(Ok(event)));
            }
            if let State::Over = this.state {
                return Poll::Ready(this.failed.take().map(Err));
            }
            match (this.frames.as_mut().poll_next(cx), &mut this.state) {
                (Poll::Ready(Some(Ok(_))), State::Draining(_)) => {}
                (Poll::Ready(Some(Ok(frame))), _) => this.frame(&frame),
                // The answer is complete; only its usage can be missing.
                (Poll::Ready(Some(Err(_))), State::Closing(_) | State::Draining(_)) => this.close(),
                (Poll::Ready(Some(Err(error))), State::MayContinue) if error == timeout(NO_BYTE, this.limits.idle) => this.close(),
                (Poll::Ready(Some(Err(error))), State::Open | State::MayContinue | State::Over) => this.take(Err(error)),
                (Poll::Ready(None), _) => this.close(),
                (Poll::Pending, State::Closing(alarm) | State::Draining(alarm)) => {
                    if alarm.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    this.close();
                }
                (Poll::Pending, State::Open | State::MayContinue | State::Over) => return Poll::Pending,
            }
        }
    }
}
