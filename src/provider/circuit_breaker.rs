//! The circuit breaker of a provider: after several failures in a row, runs wait or use another model at once.
//!
//! Decides which failures open the breaker. Must not know dialects.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use async_trait::async_trait;
use futures_util::Stream;

use super::model_client::{ModelClient, ModelStream};
use crate::domain::ids::UserId;
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelRequest};
use crate::domain::run::Capacity;
pub use crate::support::circuit_breaker::BreakerLimits;
use crate::support::circuit_breaker::{BreakerChange, BreakerPermit, CircuitBreaker};
use crate::support::locks::lock;

/// The breaker state of a provider. It outlives clients that are recreated for the same endpoint.
#[derive(Clone)]
pub struct ProviderBreaker(Arc<ProviderBreakerState>);

/// The breaker of a provider, and its metric.
struct ProviderBreakerState {
    provider: String,
    breaker: CircuitBreaker,
    /// Locked while the metric is set, so that an older state never overwrites a newer one.
    metric: Mutex<()>,
}

impl ProviderBreaker {
    /// Returns a closed breaker for a provider with this name in errors and metrics.
    pub fn new(provider: &str, limits: BreakerLimits) -> Self {
        Self(Arc::new(ProviderBreakerState {
            provider: provider.to_owned(),
            breaker: CircuitBreaker::new(limits),
            metric: Mutex::default(),
        }))
    }

    fn enter(&self) -> Result<MonitoredRequest, ModelError> {
        let permit = self.0.breaker.enter().map_err(|open| {
            let message = format!(
                "provider {} failed {} times in a row; its circuit breaker stays open for another {} s",
                self.0.provider,
                open.failures,
                open.wait.as_secs().max(1)
            );
            let wait = u64::try_from(open.wait.as_millis()).unwrap_or(u64::MAX);
            let refusal = ModelError::new(ModelErrorKind::Unavailable, &message);
            ModelError { retry_after_ms: Some(wait), request_not_sent: true, ..refusal }
        })?;
        Ok(MonitoredRequest { gauge: Arc::clone(&self.0), permit })
    }
}

impl ProviderBreakerState {
    fn update_metric(&self) {
        let _held = lock(&self.metric);
        self.set_open(self.breaker.is_open());
    }

    fn set_open(&self, is_open: bool) {
        metrics::gauge!("capstan_provider_open", "provider" => self.provider.clone()).set(if is_open { 1.0 } else { 0.0 });
    }
}

/// Resets the metric, because a provider without clients has no open breaker.
impl Drop for ProviderBreakerState {
    fn drop(&mut self) {
        if self.breaker.is_open() {
            self.set_open(false);
        }
    }
}

pub struct BreakerClient {
    inner: Arc<dyn ModelClient>,
    health: ProviderBreaker,
}

impl BreakerClient {
    /// Puts the breaker of a provider before a client.
    pub fn new(health: &ProviderBreaker, inner: Arc<dyn ModelClient>) -> Self {
        Self { inner, health: health.clone() }
    }
}

#[async_trait]
impl ModelClient for BreakerClient {
    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let mut watch = self.health.enter()?;
        match self.inner.stream(request).await {
            Ok(answer) => Ok(Box::pin(MonitoredStream { answer, watch, is_receiving: false })),
            Err(error) => {
                watch.failed(&error);
                Err(error)
            }
        }
    }

    async fn capacity(&self, owner: &UserId, model: &str) -> Capacity {
        self.inner.capacity(owner, model).await
    }

    async fn may_chat(&self, model: &str) -> bool {
        self.inner.may_chat(model).await
    }
}

/// Returns whether a failure shows that the provider fails for all requests.
fn is_provider_failure(error: &ModelError) -> bool {
    let is_failure = matches!(
        error.kind,
        ModelErrorKind::Overloaded
            | ModelErrorKind::Unavailable
            | ModelErrorKind::Timeout
            | ModelErrorKind::Network
            | ModelErrorKind::IncompleteStream
    );
    is_failure && !error.over_total_limit
}

struct MonitoredRequest {
    gauge: Arc<ProviderBreakerState>,
    permit: BreakerPermit,
}

impl MonitoredRequest {
    fn failed(&mut self, error: &ModelError) {
        // Any other error shows that the provider answers requests.
        let change = if is_provider_failure(error) { self.permit.failed() } else { self.permit.succeeded() };
        self.report(change, Some(error));
    }

    fn report(&self, change: BreakerChange, error: Option<&ModelError>) {
        let provider = &self.gauge.provider;
        match change {
            BreakerChange::None => return,
            BreakerChange::Opened { failures } => {
                let error = error.map(tracing::field::display);
                tracing::warn!(provider, failures, error, "circuit breaker opened");
            }
            BreakerChange::Closed => tracing::info!(provider, "circuit breaker closed"),
        }
        self.gauge.update_metric();
    }
}

struct MonitoredStream {
    answer: ModelStream,
    watch: MonitoredRequest,
    /// Whether the last poll returned an event.
    is_receiving: bool,
}

impl MonitoredStream {
    fn succeeded(&mut self) {
        let change = self.watch.permit.succeeded();
        self.watch.report(change, None);
    }
}

/// Dropping an answer that is arriving records a success. Dropping a request without an answer records no result.
impl Drop for MonitoredStream {
    fn drop(&mut self) {
        if self.is_receiving {
            self.succeeded();
        }
    }
}

impl Stream for MonitoredStream {
    type Item = Result<ModelEvent, ModelError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let item = this.answer.as_mut().poll_next(cx);
        this.is_receiving = matches!(item, Poll::Ready(Some(Ok(_))));
        match &item {
            Poll::Ready(Some(Ok(ModelEvent::Finished(_)))) => this.succeeded(),
            Poll::Ready(Some(Err(error))) => this.watch.failed(error),
            Poll::Ready(Some(Ok(_))) => {
                let change = this.watch.permit.answering();
                this.watch.report(change, None);
            }
            Poll::Ready(None) | Poll::Pending => {}
        }
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::time::Duration;

    use crate::domain::model::ModelFinish;
    use futures_util::StreamExt as _;
    use std::collections::VecDeque;

    /// Answers from a list, and counts the requests.
    #[derive(Default)]
    struct Scripted(Mutex<(VecDeque<Option<ModelErrorKind>>, usize)>);

    #[async_trait]
    impl ModelClient for Scripted {
        async fn stream(&self, _request: ModelRequest) -> Result<ModelStream, ModelError> {
            let mut script = self.0.lock().unwrap();
            script.1 += 1;
            let end = match script.0.pop_front().flatten() {
                // Fails within the answer, like a provider that crashes.
                Some(kind) => Err(ModelError::new(kind, "scripted")),
                None => Ok(ModelEvent::Finished(ModelFinish::Stop)),
            };
            Ok(Box::pin(futures_util::stream::iter([Ok(ModelEvent::Text("x".to_owned())), end])))
        }
    }

    fn request() -> ModelRequest {
        ModelRequest { model: "m".to_owned(), ..ModelRequest::default() }
    }

    async fn ask(breaker: &BreakerClient) -> Result<(), ModelError> {
        let mut answer = breaker.stream(request()).await?;
        while let Some(event) = answer.next().await {
            event?;
        }
        Ok(())
    }

    fn breaker(script: &[Option<ModelErrorKind>]) -> (Arc<Scripted>, BreakerClient) {
        let inner = Arc::new(Scripted(Mutex::new((script.iter().copied().collect(), 0))));
        let limits = BreakerLimits { failures: 3, open: Duration::from_secs(30) };
        (Arc::clone(&inner), BreakerClient::new(&ProviderBreaker::new("acme", limits), inner))
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
        assert!(refused.request_not_sent, "nobody has failed: {refused}");
        tokio::time::advance(Duration::from_secs(31)).await;
        // A slow answer, which is normal.
        let mut slow = breaker.stream(request()).await.unwrap();
        assert!(ask(&breaker).await.unwrap_err().request_not_sent, "whether it is well is not known before the first word");
        assert_eq!(slow.next().await, Some(Ok(ModelEvent::Text("x".to_owned()))));
        ask(&breaker).await.unwrap();
        drop(slow);
        assert_eq!(inner.0.lock().unwrap().1, 5);
        // The complete answer has reset the failure count: one more failure does not open the breaker.
        assert_eq!(ask(&breaker).await.unwrap_err().message, "scripted");
        ask(&breaker).await.unwrap();
    }

    /// Sends a request, and drops the answer after its first event.
    async fn ask_and_leave(breaker: &BreakerClient) {
        let mut answer = breaker.stream(request()).await.unwrap();
        assert!(matches!(answer.next().await, Some(Ok(ModelEvent::Text(_)))));
    }

    #[tokio::test(start_paused = true)]
    async fn answer_left_while_it_comes_keeps_it_closed() {
        let (inner, breaker) = breaker(&[DOWN, DOWN, None, DOWN, DOWN, None]);
        for is_left in [false, false, true, false, false, true] {
            if is_left {
                ask_and_leave(&breaker).await;
            } else {
                assert_eq!(ask(&breaker).await.unwrap_err().message, "scripted");
            }
        }
        assert_eq!(inner.0.lock().unwrap().1, 6);
    }

    #[tokio::test(start_paused = true)]
    async fn answer_left_while_it_is_awaited_says_nothing() {
        struct Silent;

        #[async_trait]
        impl ModelClient for Silent {
            async fn stream(&self, _request: ModelRequest) -> Result<ModelStream, ModelError> {
                let word = futures_util::stream::iter([Ok(ModelEvent::Text("x".to_owned()))]);
                Ok(Box::pin(word.chain(futures_util::stream::pending())))
            }
        }

        let (_, breaker) = breaker(&[DOWN, DOWN, DOWN]);
        let silent = BreakerClient::new(&breaker.health, Arc::new(Silent));
        let _ = (ask(&breaker).await, ask(&breaker).await);
        let mut answer = silent.stream(request()).await.unwrap();
        assert!(answer.next().await.is_some());
        assert!(tokio::time::timeout(Duration::from_secs(1), answer.next()).await.is_err());
        drop(answer);
        let _ = ask(&breaker).await;
        assert!(ask(&breaker).await.unwrap_err().request_not_sent, "three failures in a row");
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
    async fn abandoned_probe_frees_the_half_open_breaker() {
        let (inner, breaker) = breaker(&[DOWN, DOWN, DOWN]);
        for _ in 0..3 {
            let _ = ask(&breaker).await;
        }
        tokio::time::advance(Duration::from_secs(31)).await;
        let given_up = breaker.health.enter().unwrap();
        assert!(breaker.health.enter().is_err(), "the one before finds out");
        drop(given_up);
        ask(&breaker).await.unwrap();
        assert_eq!(inner.0.lock().unwrap().1, 4);
    }
}
