//! Files of messages, as a message is accepted.

use super::connection::Tx;
use crate::store::{AcceptRun, Accepted, StoreResult};

/// Whether a message that has just been stored must be taken back because of its files.
pub(super) async fn refused(tx: &mut Tx, accept: &AcceptRun) -> StoreResult<Option<Accepted>> {
    let files = accept.files();
    if files.is_empty() {
        return Ok(None);
    }
    for file in files {
        let is_used: bool = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM file_uses WHERE file_id = ? AND conversation_id = ?)")
            .bind(file)
            .bind(accept.conversation_id.as_str())
            .fetch_one(&mut **tx)
            .await?;
        if !is_used {
            return Ok(Some(Accepted::NoFile { file_id: file.to_owned() }));
        }
    }
    let files: i64 = sqlx::query_scalar(
        "SELECT count(DISTINCT f.id) FROM messages m, json_each(m.body, '$.parts') AS part
         JOIN files f ON f.id = part.value ->> '$.file_id'
         WHERE m.conversation_id = ? AND m.role = 'user' AND m.superseded_by IS NULL AND f.origin = 'upload' AND instr(m.body, '\"file_id\":\"file_') > 0",
    )
    .bind(accept.conversation_id.as_str())
    .fetch_one(&mut **tx)
    .await?;
    let files = u32::try_from(files).unwrap_or(u32::MAX);
    Ok((files > accept.max_files).then_some(Accepted::TooManyFiles { files }))
}
