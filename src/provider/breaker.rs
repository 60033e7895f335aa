//! A breaker before a provider: after failures in a row that are the provider's own, it is left alone for a while, so that runs
//! wait or go to another model at once instead of each finding out for itself.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::Stream;
use tokio::time::Instant;

use super::{ModelClient, ModelStream};
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelRequest};

/// When a breaker opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerLimits {
    /// Failures in a row; 0 for a breaker that never opens.
    pub failures: u32,
    /// How long nothing is asked. After that one request finds out, and the others go on waiting until it begins to be answered.
    pub open: Duration,
}

/// What is known of a provider's health. Outlives clients that are made anew for the same place.
#[derive(Clone)]
pub struct Health(Arc<Gauge>);

impl Health {
    /// Nothing is known yet. `provider` is its name in errors and metrics.
    #[must_use]
    pub fn new(provider: &str, limits: BreakerLimits) -> Self {
        Self(Arc::new(Gauge { provider: provider.to_owned(), limits, state: Mutex::default() }))
    }
}

/// A client with a breaker.
pub struct Breaker {
    inner: Arc<dyn ModelClient>,
    gauge: Arc<Gauge>,
}

impl Breaker {
    /// A closed breaker before a client. `provider` is its name in errors and metrics.
    #[must_use]
    pub fn new(provider: &str, inner: Arc<dyn ModelClient>, limits: BreakerLimits) -> Self {
        Self::with(&Health::new(provider, limits), inner)
    }

    /// A breaker before a client, as open as the provider's health says.
    #[must_use]
    pub fn with(health: &Health, inner: Arc<dyn ModelClient>) -> Self {
        Self { inner, gauge: Arc::clone(&health.0) }
    }
}

#[async_trait]
impl ModelClient for Breaker {
    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let watch = Watch { gauge: Arc::clone(&self.gauge), is_probe: self.gauge.enter()?, told: false };
        match self.inner.stream(request).await {
            Ok(answer) => Ok(Box::pin(Watched { answer, watch })),
            Err(error) => {
                watch.ended(Err(&error));
                Err(error)
            }
        }
    }
}

/// What is known of the provider's health.
struct Gauge {
    provider: String,
    limits: BreakerLimits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    failures: u32,
    open_until: Option<Instant>,
    /// Whether a request is under way that finds out.
    probing: bool,
}

impl Gauge {
    /// Lets a request through, and says whether it is the one that finds out.
    fn enter(&self) -> Result<bool, ModelError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(until) = state.open_until else { return Ok(false) };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() && !state.probing {
            state.probing = true;
            return Ok(true);
        }
        // Whoever comes while one finds out looks again soon: it need only begin to be answered.
        let left = left.max(Duration::from_secs(1));
        let message = format!(
            "provider {} failed {} times in a row and is not asked for another {} s",
            self.provider,
            state.failures,
            left.as_secs().max(1)
        );
        let wait = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        let refusal = ModelError::new(ModelErrorKind::Unavailable, &message);
        Err(ModelError { retry_after_ms: Some(wait), not_asked: true, ..refusal })
    }

    fn ended(&self, end: Result<(), &ModelError>, is_probe: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match end {
            Err(error) if is_providers_own(error.kind) && !error.over_total_limit => {
                state.failures = state.failures.saturating_add(1);
                let opens = self.limits.failures > 0 && state.failures >= self.limits.failures;
                if opens && (state.open_until.is_none() || is_probe) {
                    state.open_until = Some(Instant::now() + self.limits.open);
                    metrics::gauge!("capstan_provider_open", "provider" => self.provider.clone()).set(1.0);
                    tracing::warn!(provider = self.provider, failures = state.failures, error = %error, "provider is left alone");
                }
            }
            // An answer, or an error that an unhealthy provider could not have given.
            Ok(()) | Err(_) => {
                self.close(&mut state);
                state.failures = 0;
            }
        }
        if is_probe {
            state.probing = false;
        }
    }

    /// The request that finds out begins to be answered: nobody waits for the end of that, which may take minutes. The failures
    /// so far stay counted, so that the next one opens it again at once.
    fn found_out(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.probing = false;
        self.close(&mut state);
    }

    fn close(&self, state: &mut State) {
        if state.open_until.take().is_some() {
            metrics::gauge!("capstan_provider_open", "provider" => self.provider.clone()).set(0.0);
            tracing::info!(provider = self.provider, "provider answers again");
        }
    }

    /// Nobody waited for the end, which says nothing.
    fn given_up(&self, is_probe: bool) {
        if is_probe {
            self.state.lock().unwrap_or_else(PoisonError::into_inner).probing = false;
        }
    }
}

/// A provider that nobody asks any more is not left alone either.
impl Drop for Gauge {
    fn drop(&mut self) {
        if self.state.get_mut().unwrap_or_else(PoisonError::into_inner).open_until.is_some() {
            metrics::gauge!("capstan_provider_open", "provider" => self.provider.clone()).set(0.0);
        }
    }
}

/// Whether a failure says that the provider itself is not well, whoever asks.
fn is_providers_own(kind: ModelErrorKind) -> bool {
    match kind {
        ModelErrorKind::Overloaded
        | ModelErrorKind::Unavailable
        | ModelErrorKind::Timeout
        | ModelErrorKind::Network
        | ModelErrorKind::IncompleteStream => true,
        ModelErrorKind::Auth
        | ModelErrorKind::Quota
        | ModelErrorKind::RateLimit
        | ModelErrorKind::ContextOverflow
        | ModelErrorKind::InvalidRequest
        | ModelErrorKind::BadStream
        | ModelErrorKind::EmptyResponse
        | ModelErrorKind::ContentFilter => false,
    }
}

/// One request that was let through.
struct Watch {
    gauge: Arc<Gauge>,
    is_probe: bool,
    told: bool,
}

impl Watch {
    fn ended(mut self, end: Result<(), &ModelError>) {
        self.tell(end);
    }

    fn begins(&mut self) {
        if std::mem::take(&mut self.is_probe) {
            self.gauge.found_out();
        }
    }

    fn tell(&mut self, end: Result<(), &ModelError>) {
        if !self.told {
            self.told = true;
            self.gauge.ended(end, self.is_probe);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.told {
            self.gauge.given_up(self.is_probe);
        }
    }
}

struct Watched {
    answer: ModelStream,
    watch: Watch,
}

impl Stream for Watched {
    type Item = Result<ModelEvent, ModelError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let item = this.answer.as_mut().poll_next(cx);
        match &item {
            Poll::Ready(Some(Ok(ModelEvent::Finished(_)))) => this.watch.tell(Ok(())),
            Poll::Ready(Some(Err(error))) => this.watch.tell(Err(error)),
            Poll::Ready(Some(Ok(_))) => this.watch.begins(),
            Poll::Ready(None) | Poll::Pending => {}
        }
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::{ModelFinish, ModelOptions};
    use futures_util::StreamExt as _;
    use std::collections::VecDeque;

    /// Answers from a list, and counts how often it is asked.
    #[derive(Default)]
    struct Scripted(Mutex<(VecDeque<Option<ModelErrorKind>>, usize)>);

    #[async_trait]
    impl ModelClient for Scripted {
        async fn stream(&self, _request: ModelRequest) -> Result<ModelStream, ModelError> {
            let mut script = self.0.lock().unwrap();
            script.1 += 1;
            let end = match script.0.pop_front().flatten() {
                // Within the answer, as a provider that dies does.
                Some(kind) => Err(ModelError::new(kind, "scripted")),
                None => Ok(ModelEvent::Finished(ModelFinish::Stop)),
            };
            Ok(Box::pin(futures_util::stream::iter([Ok(ModelEvent::Text("x".to_owned())), end])))
        }
    }

    fn request() -> ModelRequest {
        ModelRequest {
            owner: None,
            model: "m".to_owned(),
            system: String::new(),
            messages: Vec::new(),
            tools: Vec::new(),
            options: ModelOptions::default(),
            window: None,
        }
    }

    async fn ask(breaker: &Breaker) -> Result<(), ModelError> {
        let mut answer = breaker.stream(request()).await?;
        while let Some(event) = answer.next().await {
            event?;
        }
        Ok(())
    }

    fn breaker(script: &[Option<ModelErrorKind>]) -> (Arc<Scripted>, Breaker) {
        let inner = Arc::new(Scripted(Mutex::new((script.iter().copied().collect(), 0))));
        let limits = BreakerLimits { failures: 3, open: Duration::from_secs(30) };
        (Arc::clone(&inner), Breaker::new("acme", inner, limits))
    }

    const DOWN: Option<ModelErrorKind> = Some(ModelErrorKind::Unavailable);

    #[tokio::test(start_paused = true)]
    async fn opens_after_failures_in_a_row_and_one_request_finds_out() {
        let (inner, breaker) = breaker(&[DOWN, DOWN, DOWN, DOWN, None]);
        for _ in 0..3 {
            assert_eq!(ask(&breaker).await.unwrap_err().message, "scripted");
        }
        let refused = ask(&breaker).await.unwrap_err();
        assert_eq!((refused.kind, refused.retry_after_ms), (ModelErrorKind::Unavailable, Some(30_000)));
        assert!(refused.message.contains("acme") && refused.message.contains("30 s"), "{refused}");
        assert_eq!(inner.0.lock().unwrap().1, 3, "it was left alone");

        tokio::time::advance(Duration::from_secs(31)).await;
        assert_eq!(ask(&breaker).await.unwrap_err().message, "scripted", "one request finds out");
        assert!(ask(&breaker).await.unwrap_err().message.contains("acme"), "and it stays open");
        tokio::time::advance(Duration::from_secs(31)).await;
        ask(&breaker).await.unwrap();
        ask(&breaker).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_has_begun_lets_the_others_through() {
        let (inner, breaker) = breaker(&[DOWN, DOWN, DOWN, None, None, DOWN]);
        for _ in 0..3 {
            let _ = ask(&breaker).await;
        }
        let refused = ask(&breaker).await.unwrap_err();
        assert!(refused.not_asked, "nobody has failed: {refused}");
        tokio::time::advance(Duration::from_secs(31)).await;
        // One that takes its time, as good answers do.
        let mut slow = breaker.stream(request()).await.unwrap();
        assert!(ask(&breaker).await.unwrap_err().not_asked, "whether it is well is not known before the first word");
        assert_eq!(slow.next().await, Some(Ok(ModelEvent::Text("x".to_owned()))));
        ask(&breaker).await.unwrap();
        drop(slow);
        assert_eq!(inner.0.lock().unwrap().1, 5);
        // An answer that was whole has ended the trouble: one more failure opens nothing.
        assert_eq!(ask(&breaker).await.unwrap_err().message, "scripted");
        ask(&breaker).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_or_a_refusal_between_failures_keeps_it_closed() {
        for between in [None, Some(ModelErrorKind::RateLimit), Some(ModelErrorKind::InvalidRequest)] {
            let (inner, breaker) = breaker(&[DOWN, DOWN, between, DOWN, DOWN, None]);
            for _ in 0..6 {
                let _ = ask(&breaker).await;
            }
            assert_eq!(inner.0.lock().unwrap().1, 6);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_given_up_does_not_keep_others_from_finding_out() {
        let (inner, breaker) = breaker(&[DOWN, DOWN, DOWN]);
        for _ in 0..3 {
            let _ = ask(&breaker).await;
        }
        tokio::time::advance(Duration::from_secs(31)).await;
        assert!(breaker.gauge.enter().unwrap(), "this one finds out");
        assert!(breaker.gauge.enter().is_err());
        drop(Watch { gauge: Arc::clone(&breaker.gauge), is_probe: true, told: false });
        ask(&breaker).await.unwrap();
        assert_eq!(inner.0.lock().unwrap().1, 4);
    }
}
