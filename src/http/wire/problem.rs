//! Errors as `application/problem+json` (RFC 9457).
//!
//! A handler answers with a [`Problem`]; the outermost layer renders it, because only there the request's id is known.

use std::error::Error as _;

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::domain::problem::{ProblemBody, ProblemCode};
use crate::service;

pub(crate) const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// An error that is to be an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem(pub Box<ProblemBody>);

pub(crate) type Answer<T> = Result<T, Problem>;

impl Problem {
    pub(crate) fn new(code: ProblemCode, detail: impl Into<String>) -> Self {
        Self(Box::new(code.body(detail)))
    }
}

impl From<ProblemBody> for Problem {
    fn from(body: ProblemBody) -> Self {
        Self(Box::new(body))
    }
}

impl From<service::Error> for Problem {
    fn from(error: service::Error) -> Self {
        // The one place where the cause of a 5xx is logged; the request's span names it.
        let what = match &error {
            service::Error::Store(_) => Some("the store failed"),
            service::Error::NoRandomness(_) => Some("a secret could not be made"),
            service::Error::NoReader(_) => Some("a file cannot be read"),
            service::Error::Sealing(_) => Some("a secret cannot be sealed or opened"),
            _ => None,
        };
        if let Some(what) = what {
            tracing::error!(error = &error as &dyn std::error::Error, cause = error.source(), "{what}");
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

/// Gives an error answer its body: that of the handler's [`Problem`], or one made from the status for answers of the router
/// and of libraries. Other answers stay as they are.
pub(crate) fn render(mut response: Response, request_id: &str) -> Response {
    let status = response.status();
    if !(status.is_client_error() || status.is_server_error()) {
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
    let json = serde_json::to_vec(&body).unwrap_or_default();
    *response.body_mut() = json.into();
    response
}

fn from_status(status: StatusCode) -> Problem {
    let (code, detail) = match status.as_u16() {
        401 => (ProblemCode::Unauthorized, "send a key as Authorization: Bearer"),
        403 => (ProblemCode::Forbidden, "this is not allowed"),
        404 => (ProblemCode::NotFound, "there is nothing at this path; /docs lists what there is"),
        405 => (ProblemCode::MethodNotAllowed, "the Allow header lists the methods of this path"),
        406 => (ProblemCode::NotAcceptable, "the wanted media type cannot be produced"),
        408 => (ProblemCode::RequestTimeout, "the request took too long to arrive"),
        413 => (ProblemCode::PayloadTooLarge, "the body is too large"),
        415 => (ProblemCode::UnsupportedMediaType, "send application/json"),
        429 => (ProblemCode::TooManyRequests, "try again later"),
        503 => (ProblemCode::Unavailable, "the server cannot do this at the moment"),
        500..=599 => (ProblemCode::Internal, "the server could not do this; its log has the cause under this request_id"),
        _ => (ProblemCode::InvalidRequest, "the request is not valid"),
    };
    Problem::new(code, detail)
}
