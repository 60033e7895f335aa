//! Delivers the answer to a request that starts a run, in the form that the client wants: accepted, finished, or as a stream.

use std::sync::Arc;

use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::header::{CONTENT_LOCATION, HeaderName, LOCATION};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};

use super::answer::accepted;
use super::extract::{PreferWait, Wants};
use super::idempotency::replayed;
use super::options::App;
use super::problem::{Answer, Problem};
use super::request::Trace;
use super::streams;
use super::types::AcceptedBody;
use crate::domain::principal::Principal;
use crate::domain::run::Run;
use crate::domain::trace::TraceId;
use crate::service::{Access, Replay, RequestKey, Service, StartRun, Waited};

const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// The caller of a request that starts a run, and the form of the answer.
pub(crate) struct Delivery {
    app: App,
    access: Access,
    trace: TraceId,
    wants: Wants,
    wait: Option<u64>,
}

impl FromRequestParts<App> for Delivery {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Answer<Self> {
        let access = Access::from_request_parts(parts, app).await?;
        let Ok(Trace(trace)) = Trace::from_request_parts(parts, app).await;
        let wants = Wants::from_request_parts(parts, app).await?;
        let Ok(PreferWait(wait)) = PreferWait::from_request_parts(parts, app).await;
        Ok(Self { app: app.clone(), access, trace, wants, wait })
    }
}

impl Delivery {
    pub(crate) fn service(&self) -> &Arc<Service> {
        &self.app.service
    }

    pub(crate) fn principal(&self) -> &Principal {
        self.access.principal()
    }

    /// Returns the trace that the run belongs to.
    pub(crate) fn trace(&self) -> TraceId {
        self.trace.clone()
    }

    /// Accepts a message and answers.
    pub(crate) async fn accept(self, request: StartRun, key: Option<RequestKey>) -> Answer<Response> {
        let started = self.service().start_run(self.principal(), request, key).await?;
        let mut headers = replayed(started.replay);
        let location = format!("/api/v1/runs/{}", started.run.id);
        let location = HeaderValue::from_str(&location).unwrap_or(HeaderValue::from_static("/api/v1/runs"));
        if let Wants::Stream(framing) = self.wants {
            headers.insert(CONTENT_LOCATION, location);
            let reader = self.service().stream_started(self.principal(), started);
            return Ok((headers, streams::stream(&self.app, self.access, reader, framing)).into_response());
        }
        headers.insert(LOCATION, location);
        let mut run = started.run;
        if let Some(seconds) = self.wait {
            applied(self.service(), &mut headers, seconds);
            run = match self.service().wait_for_run(self.principal(), &run.id, seconds).await? {
                Waited::Settled(run) => return Ok((StatusCode::OK, headers, Json(run)).into_response()),
                Waited::StillGoing(run) => run,
            };
        }
        let body = AcceptedBody { message: started.message, run };
        Ok((StatusCode::ACCEPTED, headers, Json(body)).into_response())
    }

    /// Answers with a run that has taken the place of another.
    ///
    /// A stream begins with the run's first event, also for a repeated request: its client has not seen any of it.
    pub(crate) async fn respond_with(self, run: Run, replay: Replay) -> Answer<Response> {
        if let Wants::Stream(framing) = self.wants {
            let start = self.service().stream_run(self.principal(), &run.id, None).await?;
            let mut headers = replayed(replay);
            if let Ok(location) = HeaderValue::from_str(&format!("/api/v1/runs/{}", run.id)) {
                headers.insert(CONTENT_LOCATION, location);
            }
            return Ok((headers, streams::respond(&self.app, self.access, start, framing)).into_response());
        }
        let Some(seconds) = self.wait else {
            return Ok(accepted(replay, run));
        };
        let (status, run) = match self.service().wait_for_run(self.principal(), &run.id, seconds).await? {
            Waited::Settled(run) => (StatusCode::OK, run),
            Waited::StillGoing(run) => (StatusCode::ACCEPTED, run),
        };
        let mut response = accepted(replay, run);
        *response.status_mut() = status;
        applied(self.service(), response.headers_mut(), seconds);
        Ok(response)
    }
}

/// Adds the header that says how long a request may wait.
pub(crate) fn applied(service: &Service, headers: &mut HeaderMap, seconds: u64) {
    if let Ok(value) = HeaderValue::from_str(&format!("wait={}", service.wait_seconds(seconds))) {
        headers.insert(PREFERENCE_APPLIED, value);
    }
}
