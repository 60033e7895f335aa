//! `/api/v1/files`: uploaded files.

use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, HeaderName};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::stream;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use crate::domain::conversation::file::{FilePurpose, StoredFile};
use crate::domain::ids::FileId;
use crate::domain::problem::ProblemCode;
use crate::http::wire::auth::{Caller, is_own_origin};
use crate::http::wire::extract::{Id, collect, query};
use crate::http::wire::page::{self, PageParams, Paging};
use crate::http::wire::problem::{HttpResult, Problem};
use crate::http::wire::responses::created;
use crate::http::wire::types::ListBody;
use crate::service::{Error, FileCursor, FileFilter, Replay};

const ARRIVAL: Duration = Duration::from_secs(120);

/// Limit of a form without its file, in bytes.
const FORM_BYTES: usize = 64 * 1024;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct UploadParams {
    /// The name of the file, if the body is the file itself. A form contains the name of its file.
    #[param(max_length = 255)]
    name: Option<String>,
}

/// A form with a file.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is read piece by piece; this is its description")]
pub(crate) struct UploadForm {
    /// The file.
    #[schema(value_type = String, format = Binary)]
    file: Vec<u8>,
}

/// Uploads a file
///
/// The body is a form with the field `file`, or the bytes of the file with `?name=`. The server detects the type from the bytes. It
/// accepts pictures (PNG, JPEG, GIF, WebP), PDF, docx, xlsx, and text in UTF-8. Messages refer to the file by
/// `{"type": "file", "file_id": ...}`. A file without a referring message is removed after one day. Each request stores a file,
/// regardless of its `Idempotency-Key`.
#[utoipa::path(
    post, path = "/api/v1/files", tag = "files", operation_id = "upload_file", params(UploadParams),
    request_body(content((UploadForm = "multipart/form-data"), (String = "application/octet-stream"))),
    responses(
        (status = 201, description = "The file", body = StoredFile, headers(("Location" = String, description = "The path of the file"))),
        (status = 408, description = "The upload took too long"),
        (status = 409, description = "The owner has too many files"),
        (status = 413, description = "The file is too large"),
        (status = 422, description = "The file's type is not accepted, or the file is empty, encrypted or damaged"),
        (status = 429, description = "Too many concurrent uploads"),
    ),
)]
pub(crate) async fn upload(caller: Caller, request: Request) -> HttpResult<Response> {
    let file = receive(caller, request, |_| Ok(FilePurpose::default())).await?;
    Ok(created(Replay::Fresh, None, &format!("/api/v1/files/{}", file.id), file))
}

/// Stores the file in the body of a request. `purpose` reads the field `purpose` of a form.
pub(in crate::http) async fn receive(
    Caller { app, principal }: Caller,
    request: Request,
    purpose: fn(Option<&str>) -> HttpResult<FilePurpose>,
) -> HttpResult<StoredFile> {
    // A browser sends a form from any page without a preflight request.
    if !is_own_origin(&app, request.uri(), request.headers()) {
        return Err(Problem::new(ProblemCode::Forbidden, "pages of another origin are refused"));
    }
    let UploadParams { name } = query(request.uri())?;
    let most = app.service.file_limits().max_bytes;
    let content_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let is_form = content_type.get(..10).is_some_and(|start| start.eq_ignore_ascii_case("multipart/"));
    let permit = app.service.begin_upload(&principal.user_id).await?;
    let room = if is_form { most + FORM_BYTES } else { most };
    let body = match tokio::time::timeout(ARRIVAL, collect(request, room)).await {
        Ok(Ok(Some(body))) => body,
        Ok(Ok(None)) => return Err(Error::FileTooLarge(most).into()),
        Ok(Err(_)) => return Err(Problem::new(ProblemCode::InvalidRequest, "the body is incomplete")),
        Err(_elapsed) => return Err(Problem::new(ProblemCode::RequestTimeout, "the file took too long to arrive")),
    };
    let form = if is_form { read_form(&content_type, body).await? } else { SentFile { name: None, purpose: None, bytes: body } };
    let name = form.name.or(name).unwrap_or_default();
    let purpose = purpose(form.purpose.as_deref())?;
    Ok(app.service.store_file(&principal, permit, &name, purpose, form.bytes).await?)
}

struct SentFile {
    name: Option<String>,
    purpose: Option<String>,
    bytes: Bytes,
}

async fn read_form(content_type: &str, body: Bytes) -> HttpResult<SentFile> {
    let invalid = |why: &str| Problem::from(Error::invalid(format!("the form cannot be read: {why}")));
    let boundary = multer::parse_boundary(content_type).map_err(|_| invalid("its content-type names no boundary"))?;
    let whole = stream::once(async move { Ok::<_, std::convert::Infallible>(body) });
    let mut form = multer::Multipart::new(whole, boundary);
    let damaged = || invalid("it is malformed or incomplete");
    let (mut file, mut purpose) = (None, None);
    while let Some(field) = form.next_field().await.map_err(|_| damaged())? {
        match field.name() {
            Some("file") if file.is_none() => {
                let name = field.file_name().map(str::to_owned);
                file = Some((name, field.bytes().await.map_err(|_| damaged())?));
            }
            Some("purpose") => purpose = Some(field.text().await.map_err(|_| damaged())?),
            Some(_) | None => {}
        }
    }
    let missing = || Error::field("/file", "the form has no field of that name; `curl -F file=@report.pdf` sends one");
    let (name, bytes) = file.ok_or_else(missing)?;
    Ok(SentFile { name, purpose, bytes })
}

/// Lists files, newest first
#[utoipa::path(
    get, path = "/api/v1/files", tag = "files", operation_id = "list_files", params(PageParams),
    responses((status = 200, description = "A page of files", body = ListBody<StoredFile>)),
)]
pub(crate) async fn list(caller: Caller, Paging(page): Paging<FileCursor>) -> HttpResult<Response> {
    let found = caller.app.service.files(&caller.principal, FileFilter::default(), &page).await?;
    Ok(page::answer(found, page.limit, "/api/v1/files", ""))
}

/// Returns the metadata of a file
#[utoipa::path(
    get, path = "/api/v1/files/{id}", tag = "files", operation_id = "get_file", params(("id" = FileId, Path)),
    responses((status = 200, description = "The file", body = StoredFile)),
)]
pub(crate) async fn get(caller: Caller, Id(id): Id<FileId>) -> HttpResult<Json<StoredFile>> {
    Ok(Json(caller.app.service.file(&caller.principal, &id).await?))
}

/// Returns the bytes of a file
///
/// The response is always an attachment, so that no browser displays the file under this server's origin.
#[utoipa::path(
    get, path = "/api/v1/files/{id}/content", tag = "files", operation_id = "get_file_content", params(("id" = FileId, Path)),
    responses((status = 200, description = "The bytes, with their media type", body = String, content_type = "*/*")),
)]
pub(crate) async fn content(Caller { app, principal }: Caller, Id(id): Id<FileId>) -> HttpResult<Response> {
    let file = app.service.file(&principal, &id).await?;
    let headers = content_headers(&file);
    let (service, owner) = (app.service, principal.user_id);
    // The chunks are read as the client reads. A file that is deleted meanwhile ends before its announced length.
    let pieces = stream::try_unfold(0_u32, move |number| {
        let (service, owner, id) = (service.clone(), owner.clone(), file.id.clone());
        async move {
            match service.file_piece(&owner, &id, number).await {
                Ok(Some(piece)) => Ok(Some((piece, number + 1))),
                Ok(None) => Ok(None),
                Err(error) => Err(std::io::Error::other(error.to_string())),
            }
        }
    });
    Ok((headers, Body::from_stream(pieces)).into_response())
}

fn content_headers(file: &StoredFile) -> HeaderMap {
    let encoded = utf8_percent_encode(&file.name, NON_ALPHANUMERIC);
    let text = |value: String| HeaderValue::from_str(&value).unwrap_or(HeaderValue::from_static("attachment"));
    // A browser must not interpret the content, so every kind of text is sent as plain text.
    let media_type =
        if file.media_type.starts_with("text/") { "text/plain; charset=utf-8".to_owned() } else { file.media_type.clone() };
    HeaderMap::from_iter([
        (CONTENT_TYPE, text(media_type)),
        (CONTENT_LENGTH, HeaderValue::from(file.size)),
        (CONTENT_DISPOSITION, text(format!("attachment; filename*=UTF-8''{encoded}"))),
        (HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff")),
        (HeaderName::from_static("content-security-policy"), HeaderValue::from_static("sandbox; default-src 'none'")),
        (CACHE_CONTROL, HeaderValue::from_static("private, no-cache")),
    ])
}

/// Deletes a file
///
/// Messages keep their references to the file. Models read a note that the file was deleted.
#[utoipa::path(
    delete, path = "/api/v1/files/{id}", tag = "files", operation_id = "delete_file", params(("id" = FileId, Path)),
    responses((status = 204, description = "The file was deleted")),
)]
pub(crate) async fn delete(caller: Caller, Id(id): Id<FileId>) -> HttpResult<StatusCode> {
    caller.app.service.delete_file(&caller.principal, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
