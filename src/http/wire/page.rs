//! Lists: limits, opaque cursors, links.

use std::str::FromStr;

use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::header::LINK;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use crate::http::options::App;
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::query as query_of;
use crate::http::wire::problem::{HttpResult, Problem};
use crate::http::wire::types::{ListBody, NextCursor};
use crate::service::{Error, InvalidCursor, Page, PageRequest};

const DEFAULT_LIMIT: u32 = 50;
const MAX_LIMIT: u32 = 100;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageParams {
    /// Maximum number of rows.
    #[param(minimum = 1, maximum = 100, default = 50)]
    pub(crate) limit: Option<u32>,
    /// `next_cursor` of the previous page.
    pub(crate) cursor: Option<String>,
}

pub(crate) fn limit(limit: Option<u32>) -> HttpResult<u32> {
    match limit.unwrap_or(DEFAULT_LIMIT) {
        limit @ 1..=MAX_LIMIT => Ok(limit),
        other => Err(Error::invalid(format!("the query parameter limit is {other}; it must be 1 to {MAX_LIMIT}")).into()),
    }
}

impl PageParams {
    pub(crate) fn request<C: FromStr<Err = InvalidCursor>>(&self) -> HttpResult<PageRequest<C>> {
        let after = self.cursor.as_deref().map(decode).transpose();
        let invalid = |InvalidCursor| Error::InvalidCursor("send the next_cursor of the previous page, or none".to_owned());
        Ok(PageRequest { limit: limit(self.limit)?, after: after.map_err(invalid)? })
    }
}

pub(crate) struct Paging<C>(pub PageRequest<C>);

impl<C: FromStr<Err = InvalidCursor>> FromRequestParts<App> for Paging<C> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> HttpResult<Self> {
        query_of::<PageParams>(&parts.uri)?.request().map(Self)
    }
}

/// A request for a page of the caller's list, with the filter `F`.
pub(crate) struct ListRequest<F, C> {
    pub caller: Caller,
    pub filter: F,
    pub page: PageRequest<C>,
}

impl<F: DeserializeOwned + Send, C: FromStr<Err = InvalidCursor> + Send> FromRequestParts<App> for ListRequest<F, C> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> HttpResult<Self> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let filter = query_of(&parts.uri)?;
        let Paging(page) = Paging::from_request_parts(parts, app).await?;
        Ok(Self { caller, filter, page })
    }
}

pub(crate) fn encode(cursor: &str) -> String {
    URL_SAFE_NO_PAD.encode(cursor)
}

pub(crate) fn decode<C: FromStr<Err = InvalidCursor>>(cursor: &str) -> Result<C, InvalidCursor> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| InvalidCursor)?;
    std::str::from_utf8(&bytes).map_err(|_| InvalidCursor)?.parse()
}

/// Responds with a page of the list at `path`. `rest` is its [`query`] without limit and cursor.
pub(crate) fn answer<T: Serialize>(page: Page<T>, limit: u32, path: &str, rest: &str) -> Response {
    answer_as("cursor", page, limit, path, rest)
}

/// Responds with a page whose cursor is the parameter `name`.
pub(crate) fn answer_as<T: Serialize>(name: &str, page: Page<T>, limit: u32, path: &str, rest: &str) -> Response {
    let next_cursor = page.next.map(|next| encode(&next));
    let link = next_cursor.as_ref().map(|cursor| format!("{path}?limit={limit}&{name}={cursor}{rest}"));
    let body = Json(ListBody { data: page.items, next_cursor: NextCursor(next_cursor) });
    (next_link(link), body).into_response()
}

/// Characters of a query that are not encoded (RFC 3986, unreserved).
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Returns the present parameters, encoded, each with a leading `&`.
pub(crate) fn query<const N: usize>(params: [(&str, Option<&str>); N]) -> String {
    let present = params.into_iter().filter_map(|(name, value)| Some((name, value?)));
    present.map(|(name, value)| format!("&{name}={}", utf8_percent_encode(value, UNRESERVED))).collect()
}

pub(crate) fn next_link(target: Option<String>) -> HeaderMap {
    let value = target.and_then(|target| HeaderValue::from_str(&format!("<{target}>; rel=\"next\"")).ok());
    value.map(|value| (LINK, value)).into_iter().collect()
}
