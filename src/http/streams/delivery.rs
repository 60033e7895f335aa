//! Delivers the answer to a request that starts a run, in the form that the client wants: accepted, finished, or as a stream.

use std::sync::Arc;

use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::header::{CONTENT_LOCATION, HeaderName, LOCATION};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};

use crate::domain::access::principal::Principal;
use crate::domain::ids::RunId;
use crate::domain::run::Run;
use crate::domain::trace::TraceId;
use crate::http::options::App;
use crate::http::streams;
use crate::http::wire::extract::{PreferWait, Wants};
use crate::http::wire::idempotency::replayed;
use crate::http::wire::problem::{Answer, Problem};
use crate::http::wire::request::Trace;
use crate::http::wire::types::AcceptedBody;
use crate::service::{Access, ContinueRun, MAX_WAIT_SECONDS, Replay, RequestKey, Service, StartRun, Waited};

const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// The caller of a request that starts a run, and the form of the answer.
pub(crate) struct Delivery {
    app: App,
    access: Access,
    pub trace: TraceId,
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

    /// Returns the request to continue `run`.
    pub(crate) fn continuing<'a>(&'a self, run: &'a RunId, key: Option<RequestKey>) -> ContinueRun<'a> {
        ContinueRun { principal: self.principal(), run, key, trace: self.trace.clone() }
    }

    fn headers(&self, replay: Replay, run: &Run) -> HeaderMap {
        let mut headers = replayed(replay);
        let location = HeaderValue::from_str(&format!("/api/v1/runs/{}", run.id)).ok();
        match (self.wants, self.wait) {
            (Wants::Stream(_), _) => headers.extend(location.map(|location| (CONTENT_LOCATION, location))),
            (Wants::Json, wait) => {
                headers.extend(location.map(|location| (LOCATION, location)));
                if let Some(seconds) = wait {
                    applied(&mut headers, seconds);
                }
            }
        }
        headers
    }

    /// Waits for a run, if the client wants that. The status is 200 if the run is settled.
    async fn waited(&self, run: Run) -> Answer<(StatusCode, Run)> {
        let Some(seconds) = self.wait else { return Ok((StatusCode::ACCEPTED, run)) };
        Ok(match self.service().wait_for_run(self.principal(), &run.id, seconds).await? {
            Waited::Settled(run) => (StatusCode::OK, run),
            Waited::StillGoing(run) => (StatusCode::ACCEPTED, run),
        })
    }

    pub(crate) async fn accept(self, request: StartRun, key: Option<RequestKey>) -> Answer<Response> {
        let started = self.service().start_run(self.principal(), request, key).await?;
        let headers = self.headers(started.replay, &started.run);
        if let Wants::Stream(framing) = self.wants {
            let reader = self.service().stream_started(self.principal(), started);
            return Ok((headers, streams::stream(&self.app, self.access, reader, framing)).into_response());
        }
        let message = started.message;
        Ok(match self.waited(started.run).await? {
            (StatusCode::OK, run) => (headers, Json(run)).into_response(),
            (status, run) => (status, headers, Json(AcceptedBody { message, run })).into_response(),
        })
    }

    /// Answers with a run that has replaced another.
    ///
    /// A stream begins with the run's first event, also for a repeated request: its client has not seen any of it.
    pub(crate) async fn respond_with(self, run: Run, replay: Replay) -> Answer<Response> {
        let headers = self.headers(replay, &run);
        if let Wants::Stream(framing) = self.wants {
            let start = self.service().stream_run(self.principal(), &run.id, None).await?;
            return Ok((headers, streams::respond(&self.app, self.access, start, framing)).into_response());
        }
        let (status, run) = self.waited(run).await?;
        Ok((status, headers, Json(run)).into_response())
    }
}

pub(crate) fn applied(headers: &mut HeaderMap, seconds: u64) {
    if let Ok(value) = HeaderValue::from_str(&format!("wait={}", seconds.min(MAX_WAIT_SECONDS))) {
        headers.insert(PREFERENCE_APPLIED, value);
    }
}
