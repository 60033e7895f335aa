//! `/v1/files`: the uploaded files of the native API in the form of OpenAI.

use axum::Json;
use axum::extract::Request;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::IntoParams;

use crate::domain::conversation::file::{FilePurpose, StoredFile};
use crate::domain::ids::FileId;
use crate::http::openai::ids::{self, Order, seconds};
use crate::http::v1;
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::{Id, Params};
use crate::http::wire::problem::HttpResult;
use crate::service::{Error, FileFilter, IdCursor, PageRequest};

fn file_object(file: &StoredFile) -> Value {
    json!({
        "id": file.id,
        "object": "file",
        "bytes": file.size,
        "created_at": seconds(&file.created_at),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
    })
}

fn purpose(sent: &str) -> HttpResult<FilePurpose> {
    let known = || FilePurpose::ALL.map(FilePurpose::as_str).join(", ");
    Ok(FilePurpose::from_name(sent).ok_or_else(|| Error::field("/purpose", format!("must be one of {}", known())))?)
}

/// Uploads a file
#[utoipa::path(
    post, path = "/v1/files", tag = "files", operation_id = "openai_create_file",
    request_body(content = v1::files::UploadForm, content_type = "multipart/form-data"),
    responses((status = 200, description = "The file", body = Object)),
)]
pub(super) async fn upload(caller: Caller, request: Request) -> HttpResult<Json<Value>> {
    Ok(Json(file_object(&v1::files::receive(caller, request, |sent| sent.map_or(Ok(FilePurpose::default()), purpose)).await?)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct FileParams {
    /// The id of the last file that the client has.
    after: Option<String>,
    /// Maximum number of files. The server returns at most 100; `has_more` tells whether others follow.
    #[param(minimum = 1, maximum = 10000, default = 10000)]
    limit: Option<u32>,
    #[serde(default)]
    #[param(inline)]
    order: Order,
    /// Only files with this purpose.
    purpose: Option<String>,
}

/// Lists files
#[utoipa::path(
    get, path = "/v1/files", tag = "files", operation_id = "openai_list_files", params(FileParams),
    responses((status = 200, description = "A page of files", body = Object)),
)]
pub(super) async fn list(caller: Caller, Params(params): Params<FileParams>) -> HttpResult<Json<Value>> {
    let after = params.after.map(|id| FileId::parse(&id)).transpose();
    let after = after.map_err(|_| Error::field("/after", "is not the id of a file"))?.map(IdCursor);
    let purpose = params.purpose.as_deref().map(purpose).transpose()?;
    let filter = FileFilter { purpose, is_oldest_first: params.order == Order::Asc };
    let page = PageRequest { limit: params.limit.unwrap_or(100).clamp(1, 100), after };
    let found = caller.app.service.files(&caller.principal, filter, &page).await?;
    Ok(Json(ids::list(found.items.iter().map(file_object).collect(), found.next.is_some())))
}

/// Returns a file
#[utoipa::path(
    get, path = "/v1/files/{id}", tag = "files", operation_id = "openai_get_file", params(("id" = FileId, Path)),
    responses((status = 200, description = "The file", body = Object)),
)]
pub(super) async fn get(caller: Caller, Id(id): Id<FileId>) -> HttpResult<Json<Value>> {
    Ok(Json(file_object(&caller.app.service.file(&caller.principal, &id).await?)))
}

/// Returns the bytes of a file
#[utoipa::path(
    get, path = "/v1/files/{id}/content", tag = "files", operation_id = "openai_get_file_content", params(("id" = FileId, Path)),
    responses((status = 200, description = "The bytes, with their media type", body = String, content_type = "*/*")),
)]
pub(super) async fn content(caller: Caller, id: Id<FileId>) -> HttpResult<Response> {
    v1::files::content(caller, id).await
}

/// Deletes a file
#[utoipa::path(
    delete, path = "/v1/files/{id}", tag = "files", operation_id = "openai_delete_file", params(("id" = FileId, Path)),
    responses((status = 200, description = "The file is deleted", body = Object)),
)]
pub(super) async fn delete(caller: Caller, Id(id): Id<FileId>) -> HttpResult<Json<Value>> {
    caller.app.service.delete_file(&caller.principal, &id).await?;
    Ok(Json(json!({ "id": id, "object": "file", "deleted": true })))
}
