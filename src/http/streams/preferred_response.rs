//! Responds to a request that starts or continues a run as the client prefers: at once, after a wait for the run, or with a stream
//! of its events.

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
use crate::http::wire::problem::{HttpResult, Problem};
use crate::http::wire::request::Trace;
use crate::http::wire::types::AcceptedBody;
use crate::service::{Access, ContinueRun, MAX_WAIT_SECONDS, Replay, RequestKey, Service, StartRun, WaitOutcome};

const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// Responds to one request that starts or continues a run. Holds the caller and the response that the client prefers.
pub(crate) struct RunResponder {
    app: App,
    access: Access,
    pub trace: TraceId,
    format: ResponseFormat,
    /// The seconds of `Prefer: wait=N`.
    wait: Option<u64>,
}

impl IntoParams for RunResponder {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let trace = "The trace id for log lines of the request and the run";
        vec![header("Prefer", "`wait=N` waits up to N seconds (at most 60)"), header("traceparent", trace)]
    }
}

/// Describes the responses of a [`RunResponder`]: 202 with the body `T`, or 200 with the run or its events.
pub(crate) struct RunResponses<T>(PhantomData<T>);

impl<T: ToSchema> IntoResponses for RunResponses<T> {
    fn responses() -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
        let body = ContentBuilder::new().schema(Some(Ref::from_schema_name(T::name())));
        let location = HeaderBuilder::new().schema(Some(String::schema())).build();
        let accepted = ResponseBuilder::new()
            .description("The run is accepted and stored")
            .header("Location", location)
            .content("application/json", body.build());
        let run_or_stream: RefOr<_> = RefOr::Ref(Ref::from_response_name(run_or_stream_name(&T::name())));
        ResponsesBuilder::new().response("200", run_or_stream).response("202", accepted).build().responses
    }
}

/// The prefix of the names of the components that [`run_or_stream_response`] describes. Generated clients contain these names, so
/// the prefix must not change.
pub(in crate::http) const RUN_OR_STREAM_PREFIX: &str = "Settled";

/// Returns the name of the response component whose JSON is the schema `body`.
fn run_or_stream_name(body: &str) -> String {
    format!("{RUN_OR_STREAM_PREFIX}{body}")
}

/// Describes the response with the status 200, and returns it with its name. Its JSON is the schema `body`, and its other content
/// types are streams of the run's events.
pub(in crate::http) fn run_or_stream_response(body: &str) -> (String, utoipa::openapi::Response) {
    let content = |name: &str| ContentBuilder::new().schema(Some(Ref::from_schema_name(name))).build();
    let response = ResponseBuilder::new()
        .description("The run, if it has ended or waits for a human; or its event stream")
        .content("application/json", content(body))
        .content("text/event-stream", content(&StreamEvent::name()))
        .content("application/x-ndjson", content(&StreamEvent::name()))
        .build();
    (run_or_stream_name(body), response)
}

impl FromRequestParts<App> for RunResponder {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> HttpResult<Self> {
        let access = Access::from_request_parts(parts, app).await?;
        let Ok(Trace(trace)) = Trace::from_request_parts(parts, app).await;
        let format = ResponseFormat::from_request_parts(parts, app).await?;
        let Ok(PreferWait(wait)) = PreferWait::from_request_parts(parts, app).await;
        Ok(Self { app: app.clone(), access, trace, format, wait })
    }
}

impl RunResponder {
    pub(crate) fn service(&self) -> &Arc<Service> {
        &self.app.service
    }

    pub(crate) fn principal(&self) -> &Principal {
        self.access.principal()
    }

    /// Returns the service request that continues `run`.
    pub(crate) fn continue_request<'a>(&'a self, run: &'a RunId, key: Option<RequestKey>) -> ContinueRun<'a> {
        ContinueRun { principal: self.principal(), run, key, trace: self.trace.clone() }
    }

    /// Returns the headers of the response: the location of the run, the mark of a replayed response, and the applied preference.
    fn headers(&self, replay: Replay, run: &Run) -> HeaderMap {
        let mut headers = replayed(replay);
        let location = HeaderValue::from_str(&format!("/api/v1/runs/{}", run.id)).ok();
        match (self.format, self.wait) {
            (ResponseFormat::Stream(_), _) => headers.extend(location.map(|location| (CONTENT_LOCATION, location))),
            (ResponseFormat::Json, wait) => {
                headers.extend(location.map(|location| (LOCATION, location)));
                if let Some(seconds) = wait {
                    add_preference_applied(&mut headers, seconds);
                }
            }
        }
        headers
    }

    /// Waits for a run, if the client prefers that. Returns the status 200 if the run has ended, or waits for a human or its
    /// client. Returns 202 otherwise.
    async fn wait_for_run(&self, run: Run) -> HttpResult<(StatusCode, Run)> {
        let Some(seconds) = self.wait else { return Ok((StatusCode::ACCEPTED, run)) };
        Ok(match self.service().wait_for_run(self.principal(), &run.id, seconds).await? {
            WaitOutcome::EndedOrWaiting(run) => (StatusCode::OK, run),
            WaitOutcome::TimedOut(run) => (StatusCode::ACCEPTED, run),
        })
    }

    /// Starts the run of a request, and responds with its message and the run, or with a stream.
    pub(crate) async fn start_run(self, request: StartRun, key: Option<RequestKey>) -> HttpResult<Response> {
        let started = self.service().start_run(self.principal(), request, key).await?;
        let headers = self.headers(started.replay, &started.run);
        if let ResponseFormat::Stream(framing) = self.format {
            let reader = self.service().stream_started(self.principal(), started);
            return Ok((headers, streams::stream(&self.app, self.access, reader, framing)).into_response());
        }
        let (status, run) = self.wait_for_run(started.run).await?;
        Ok((status, headers, Json(AcceptedBody { message: started.message, run })).into_response())
    }

    /// Responds with a resumed run, or with a run that retries or undoes earlier work.
    ///
    /// A stream begins with the run's first event, even for a repeated request, because the client may have received none.
    pub(crate) async fn respond_with(self, run: Run, replay: Replay) -> HttpResult<Response> {
        let headers = self.headers(replay, &run);
        if let ResponseFormat::Stream(framing) = self.format {
            let start = self.service().stream_run(self.principal(), &run.id, None).await?;
            return Ok((headers, streams::respond(&self.app, self.access, start, framing)).into_response());
        }
        let (status, run) = self.wait_for_run(run).await?;
        Ok((status, headers, Json(run)).into_response())
    }
}

/// Adds the header `Preference-Applied` with the seconds that the server waits at most.
pub(crate) fn add_preference_applied(headers: &mut HeaderMap, seconds: u64) {
    if let Ok(value) = HeaderValue::from_str(&format!("wait={}", seconds.min(MAX_WAIT_SECONDS))) {
        headers.insert(PREFERENCE_APPLIED, value);
    }
}
