//! Errors as `application/problem+json` (RFC 9457).
//!
//! A handler returns a [`Problem`]. The outermost layer renders it, because only that layer knows the request's id.

use std::error::Error as _;

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::domain::problem::{ProblemBody, ProblemCode};
use crate::http::options::ErrorForm;
use crate::service;

pub(crate) const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem(pub Box<ProblemBody>);

/// The result of a handler or of a part of it.
pub(crate) type HttpResult<T> = Result<T, Problem>;

impl Problem {
    pub(crate) fn new(code: ProblemCode, detail: impl Into<String>) -> Self {
        Self(Box::new(code.body(detail)))
    }
}

/// Returns `None` instead of the error of a missing resource.
pub(crate) fn found<T>(result: service::Result<T>) -> HttpResult<Option<T>> {
    match result {
        Err(service::Error::NotFound(_)) => Ok(None),
        result => Ok(Some(result?)),
    }
}

impl From<ProblemBody> for Problem {
    fn from(body: ProblemBody) -> Self {
        Self(Box::new(body))
    }
}

impl From<service::Error> for Problem {
    fn from(error: service::Error) -> Self {
        // This is the only place that logs the cause of a 5xx problem. The span of the request has its id.
        let log_text = match &error {
            service::Error::Store(_) => Some("the store failed"),
            service::Error::NoRandomness(_) => Some("a secret could not be generated"),
            service::Error::NoReader(_) => Some("a file cannot be read"),
            service::Error::Encryption(_) => Some("a secret cannot be encrypted or decrypted"),
            _ => None,
        };
        if let Some(log_text) = log_text {
            tracing::error!(error = &error as &dyn std::error::Error, cause = error.source(), "{log_text}");
        }
        error.problem().into()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Marks an error response whose body is complete already, in the form of its protocol.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RenderedError;

/// Sets the body of an error response: the handler's [`Problem`], or one for the status of a response from the router or a library.
/// Other responses do not change.
pub(crate) fn render(mut response: Response, request_id: &str, form: Option<ErrorForm>) -> Response {
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    if !is_error || response.extensions().get::<RenderedError>().is_some() {
        return response;
    }
    let Problem(mut body) = match response.extensions_mut().remove::<Problem>() {
        Some(problem) => problem,
        None => from_status(status),
    };
    request_id.clone_into(&mut body.request_id);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, PROBLEM_JSON);
    headers.remove(axum::http::header::CONTENT_LENGTH);
    if matches!(body.status, 429 | 503) {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("2"));
    }
    if body.status == 401 {
        headers.insert(axum::http::header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Ok(status) = StatusCode::from_u16(body.status) {
        *response.status_mut() = status;
    }
    let text = match form {
        None => serde_json::to_string(&body).unwrap_or_default(),
        Some(form) => {
            let (headers, text) = form(&body);
            response.headers_mut().extend(headers);
            text
        }
    };
    *response.body_mut() = text.into();
    response
}

fn from_status(status: StatusCode) -> Problem {
    let (code, detail) = match status.as_u16() {
        401 => (ProblemCode::Unauthorized, "send a key as Authorization: Bearer"),
        403 => (ProblemCode::Forbidden, "this is not allowed"),
        404 => (ProblemCode::NotFound, "no resource has this path; /docs lists all paths"),
        405 => (ProblemCode::MethodNotAllowed, "the Allow header lists the methods of this path"),
        406 => (ProblemCode::NotAcceptable, "the requested media type is not available"),
        408 => (ProblemCode::RequestTimeout, "the request took too long to arrive"),
        413 => (ProblemCode::PayloadTooLarge, "the body is too large"),
        415 => (ProblemCode::UnsupportedMediaType, "send application/json"),
        429 => (ProblemCode::TooManyRequests, "try again later"),
        503 => (ProblemCode::Unavailable, "the server cannot do this at the moment"),
        500..=599 => (ProblemCode::Internal, "internal error; the server's log contains the cause under this request_id"),
        _ => (ProblemCode::InvalidRequest, "the request is not valid"),
    };
    Problem::new(code, detail)
}
