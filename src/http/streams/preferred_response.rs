//! Responds to a request that starts a run, as the client prefers: when it is accepted, when it has finished, or with a stream.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;

use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::header::{CONTENT_LOCATION, HeaderName, LOCATION};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder, ResponsesBuilder};
use utoipa::{IntoParams, IntoResponses, PartialSchema as _, ToSchema};

use crate::domain::access::principal::Principal;
use crate::domain::ids::RunId;
use crate::domain::run::Run;
use crate::domain::trace::TraceId;
use crate::http::options::App;
use crate::http::streams;
use crate::http::streams::render::StreamEvent;
use crate::http::wire::extract::{PreferWait, ResponseFormat, header};
use crate::http::wire::idempotency_header::replayed;
use crate::http::wire::problem::{Answer, Problem};
use crate::http::wire::request::Trace;
use crate::http::wire::types::AcceptedBody;
use crate::service::{Access, ContinueRun, MAX_WAIT_SECONDS, Replay, RequestKey, Service, StartRun, WaitOutcome};

const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// The caller of a request that starts a run, and the preferred response.
pub(crate) struct Delivery {
    app: App,
    access: Access,
    pub trace: TraceId,
    wants: ResponseFormat,
    wait: Option<u64>,
}

impl IntoParams for Delivery {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let trace = "The trace id for log lines of the request and the run";
        vec![header("Prefer", "`wait=N` waits up to N seconds (at most 60)"), header("traceparent", trace)]
    }
}

/// Describes the responses to a request that starts a run: 202 with the body `T`, or 200 with the run or its events.
pub(crate) struct Delivered<T>(PhantomData<T>);

impl<T: ToSchema> IntoResponses for Delivered<T> {
    fn responses() -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
        let body = ContentBuilder::new().schema(Some(Ref::from_schema_name(T::name())));
        let location = HeaderBuilder::new().schema(Some(String::schema())).build();
        let accepted = ResponseBuilder::new()
            .description("The run is accepted and stored")
            .header("Location", location)
            .content("application/json", body.build());
        let settled: RefOr<_> = RefOr::Ref(Ref::from_response_name(settled_name(&T::name())));
        ResponsesBuilder::new().response("200", settled).response("202", accepted).build().responses
    }
}

/// Prefixes the names of the responses of [`settled_response`] in the document.
pub(in crate::http) const SETTLED: &str = "Settled";

/// Returns the name of the response with the body called `body`.
fn settled_name(body: &str) -> String {
    format!("{SETTLED}{body}")
}

/// Describes the response to a request that waits for a run or follows it. Its JSON is the schema with the name `body`.
pub(in crate::http) fn settled_response(body: &str) -> (String, utoipa::openapi::Response) {
    let content = |name: &str| ContentBuilder::new().schema(Some(Ref::from_schema_name(name))).build();
    let response = ResponseBuilder::new()
        .description("The run, if it has ended or waits for a human; or its event stream")
        .content("application/json", content(body))
        .content("text/event-stream", content(&StreamEvent::name()))
        .content("application/x-ndjson", content(&StreamEvent::name()))
        .build();
    (settled_name(body), response)
}

impl FromRequestParts<App> for Delivery {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Answer<Self> {
        let access = Access::from_request_parts(parts, app).await?;
        let Ok(Trace(trace)) = Trace::from_request_parts(parts, app).await;
        let wants = ResponseFormat::from_request_parts(parts, app).await?;
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

    /// Returns the request that continues `run`.
    pub(crate) fn continuing<'a>(&'a self, run: &'a RunId, key: Option<RequestKey>) -> ContinueRun<'a> {
        ContinueRun { principal: self.principal(), run, key, trace: self.trace.clone() }
    }

    fn headers(&self, replay: Replay, run: &Run) -> HeaderMap {
        let mut headers = replayed(replay);
        let location = HeaderValue::from_str(&format!("/api/v1/runs/{}", run.id)).ok();
        match (self.wants, self.wait) {
            (ResponseFormat::Stream(_), _) => headers.extend(location.map(|location| (CONTENT_LOCATION, location))),
            (ResponseFormat::Json, wait) => {
                headers.extend(location.map(|location| (LOCATION, location)));
                if let Some(seconds) = wait {
                    applied(&mut headers, seconds);
                }
            }
        }
        headers
    }

    /// Waits for a run, if the client prefers that. The status is 200 if the run has ended, or waits for a human or its client.
    async fn wait_for_run(&self, run: Run) -> Answer<(StatusCode, Run)> {
        let Some(seconds) = self.wait else { return Ok((StatusCode::ACCEPTED, run)) };
        Ok(match self.service().wait_for_run(self.principal(), &run.id, seconds).await? {
            WaitOutcome::Settled(run) => (StatusCode::OK, run),
            WaitOutcome::StillGoing(run) => (StatusCode::ACCEPTED, run),
        })
    }

    pub(crate) async fn accept(self, request: StartRun, key: Option<RequestKey>) -> Answer<Response> {
        let started = self.service().start_run(self.principal(), request, key).await?;
        let headers = self.headers(started.replay, &started.run);
        if let ResponseFormat::Stream(framing) = self.wants {
            let reader = self.service().stream_started(self.principal(), started);
            return Ok((headers, streams::stream(&self.app, self.access, reader, framing)).into_response());
        }
        let (status, run) = self.wait_for_run(started.run).await?;
        Ok((status, headers, Json(AcceptedBody { message: started.message, run })).into_response())
    }

    /// Responds with a run that continues, or that replaces another one.
    ///
    /// A stream begins with the run's first event, even for a repeated request, because its client has received none of it.
    pub(crate) async fn respond_with(self, run: Run, replay: Replay) -> Answer<Response> {
        let headers = self.headers(replay, &run);
        if let ResponseFormat::Stream(framing) = self.wants {
            let start = self.service().stream_run(self.principal(), &run.id, None).await?;
            return Ok((headers, streams::respond(&self.app, self.access, start, framing)).into_response());
        }
        let (status, run) = self.wait_for_run(run).await?;
        Ok((status, headers, Json(run)).into_response())
    }
}

pub(crate) fn applied(headers: &mut HeaderMap, seconds: u64) {
    if let Ok(value) = HeaderValue::from_str(&format!("wait={}", seconds.min(MAX_WAIT_SECONDS))) {
        headers.insert(PREFERENCE_APPLIED, value);
    }
}
