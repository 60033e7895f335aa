//! Files of messages, as a message is accepted.

use sqlx::PgConnection;

use crate::store::{AcceptRun, Accepted, StoreResult};

/// Whether a message that has just been stored must be taken back because of its files.
pub(super) async fn refused(connection: &mut PgConnection, accept: &AcceptRun) -> StoreResult<Option<Accepted>> {
    let files: Vec<&str> = accept.files().into_iter().collect();
    if files.is_empty() {
        return Ok(None);
    }
    let gone: Option<String> = sqlx::query_scalar(
        "SELECT id FROM unnest($1::text[]) AS id
         WHERE NOT EXISTS (SELECT FROM file_uses u WHERE u.file_id = id AND u.conversation_id = $2) LIMIT 1",
    )
    .bind(files)
    .bind(accept.conversation_id.as_str())
    .fetch_optional(&mut *connection)
    .await?;
    if let Some(file_id) = gone {
        return Ok(Some(Accepted::NoFile { file_id }));
    }
    let files: i64 = sqlx::query_scalar(
        "SELECT count(DISTINCT f.id) FROM messages m, jsonb_array_elements(m.body::jsonb -> 'parts') AS part
         JOIN files f ON f.id = part ->> 'file_id'
         WHERE m.conversation_id = $1 AND m.role = 'user' AND m.superseded_by IS NULL AND f.origin = 'upload' AND strpos(m.body, '\"file_id\":\"file_') > 0",
    )
    .bind(accept.conversation_id.as_str())
    .fetch_one(connection)
    .await?;
    let files = u32::try_from(files).unwrap_or(u32::MAX);
    Ok((files > accept.max_files).then_some(Accepted::TooManyFiles { files }))
}
