//! Uploaded files.

use async_trait::async_trait;
use serde_json::json;

use super::SqliteStore;
use super::connection::Tx;
use crate::domain::file::StoredFile;
use crate::domain::ids::{FileId, UserId};
use crate::store::files::{
    AttachedFile, FILES_PIECE, FileCursor, FileStore, NewFile, file_columns, read_attached, read_file, text_chars,
};
use crate::store::providers::page_of;
use crate::store::{AcceptRun, Accepted, Page, PageRequest, StoreResult};
use crate::support::text::storable;

/// Files `f` that no message has, from before `?1` milliseconds.
macro_rules! unused {
    () => {
        concat!("f.created_at <= ", now!(), " - ?1 AND NOT EXISTS (SELECT 1 FROM file_uses u WHERE u.file_id = f.id)")
    };
}

#[async_trait]
impl FileStore for SqliteStore {
    async fn begin_file(&self, new: &NewFile, most: u32) -> StoreResult<bool> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let begun = sqlx::query(concat!(
            "INSERT INTO files (id, owner_id, name, media_type, size, sha256, created_at, text_chars, text_cut, text, origin)
             SELECT ?1, ?2, ?3, ?4, ?5, ?6, ",
            now!(),
            ", ?7, ?8, ?9, ?11 WHERE (SELECT count(*) FROM files WHERE owner_id = ?2 AND origin = ?11) < ?10"
        ))
        .bind(new.id.as_str())
        .bind(new.owner.as_str())
        .bind(storable(&new.name))
        .bind(&new.media_type)
        .bind(i64::try_from(new.size).unwrap_or(i64::MAX))
        .bind(&new.sha256)
        .bind(text_chars(new))
        .bind(new.text.as_ref().is_some_and(|text| text.is_cut))
        .bind(new.text.as_ref().map(|text| storable(&text.words)))
        .bind(most)
        .bind(new.origin.as_str())
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(begun.rows_affected() > 0)
    }

    async fn add_file_chunk(&self, id: &FileId, number: u32, bytes: &[u8]) -> StoreResult<()> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        sqlx::query("INSERT INTO file_chunks (file_id, number, bytes) VALUES (?, ?, ?)")
            .bind(id.as_str())
            .bind(number)
            .bind(bytes)
            .execute(&mut *tx)
            .await?;
        Ok(tx.commit().await?)
    }

    async fn finish_file(&self, owner: &UserId, id: &FileId) -> StoreResult<Option<StoredFile>> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let row = sqlx::query(concat!("UPDATE files SET is_whole = 1 WHERE id = ? AND owner_id = ? RETURNING ", file_columns!()))
            .bind(id.as_str())
            .bind(owner.as_str())
            .fetch_optional(&mut *tx)
            .await?;
        tx.commit().await?;
        row.as_ref().map(read_file).transpose()
    }

    async fn file(&self, owner: &UserId, id: &FileId) -> StoreResult<Option<StoredFile>> {
        let row = sqlx::query(concat!("SELECT ", file_columns!(), " FROM files WHERE id = ? AND owner_id = ? AND is_whole"))
            .bind(id.as_str())
            .bind(owner.as_str())
            .fetch_optional(self.reader())
            .await?;
        row.as_ref().map(read_file).transpose()
    }

    async fn file_of(&self, owner: &UserId, sha256: &str, name: &str) -> StoreResult<Option<StoredFile>> {
        let row = sqlx::query(concat!(
            "SELECT ",
            file_columns!(),
            " FROM files WHERE owner_id = ? AND is_whole AND sha256 = ? AND name = ? ORDER BY id DESC LIMIT 1"
        ))
        .bind(owner.as_str())
        .bind(sha256)
        .bind(storable(name))
        .fetch_optional(self.reader())
        .await?;
        row.as_ref().map(read_file).transpose()
    }

    async fn files(&self, owner: &UserId, page: &PageRequest<FileCursor>) -> StoreResult<Page<StoredFile>> {
        let limit = page.limit.clamp(1, 100);
        let found = sqlx::query(concat!(
            "SELECT ",
            file_columns!(),
            " FROM files WHERE owner_id = ?1 AND is_whole AND (?2 IS NULL OR id < ?2) ORDER BY id DESC LIMIT ?3"
        ))
        .bind(owner.as_str())
        .bind(page.after.as_ref().map(|after| after.0.as_str()))
        .bind(i64::from(limit) + 1)
        .fetch_all(self.reader())
        .await?;
        let files = found.iter().map(read_file).collect::<StoreResult<_>>()?;
        Ok(page_of(files, limit, |file: &StoredFile| FileCursor(file.id.clone()).to_string()))
    }

    async fn file_chunk(&self, owner: &UserId, id: &FileId, number: u32) -> StoreResult<Option<Vec<u8>>> {
        let bytes = sqlx::query_scalar(
            "SELECT c.bytes FROM files f JOIN file_chunks c ON c.file_id = f.id
             WHERE f.id = ? AND f.owner_id = ? AND f.is_whole AND c.number = ?",
        )
        .bind(id.as_str())
        .bind(owner.as_str())
        .bind(number)
        .fetch_optional(self.reader())
        .await?;
        Ok(bytes)
    }

    async fn attached_files(&self, owner: &UserId, ids: &[FileId]) -> StoreResult<Vec<AttachedFile>> {
        let ids: Vec<&str> = ids.iter().map(FileId::as_str).collect();
        let found = sqlx::query(concat!(
            "SELECT ",
            file_columns!(),
            ", text FROM files WHERE id IN (SELECT value FROM json_each(?)) AND owner_id = ? AND is_whole"
        ))
        .bind(json!(ids).to_string())
        .bind(owner.as_str())
        .fetch_all(self.reader())
        .await?;
        found.iter().map(read_attached).collect()
    }

    async fn delete_file(&self, owner: &UserId, id: &FileId) -> StoreResult<bool> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let deleted = sqlx::query("DELETE FROM files WHERE id = ? AND owner_id = ? AND is_whole")
            .bind(id.as_str())
            .bind(owner.as_str())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(deleted.rows_affected() > 0)
    }

    async fn count_unused_files(&self, age_ms: u64) -> StoreResult<u64> {
        let count: i64 = sqlx::query_scalar(concat!("SELECT count(*) FROM files f WHERE ", unused!()))
            .bind(i64::try_from(age_ms).unwrap_or(i64::MAX))
            .fetch_one(self.reader())
            .await?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    async fn remove_unused_files(&self, age_ms: u64) -> StoreResult<u64> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let removed = sqlx::query(concat!(
            "DELETE FROM files WHERE id IN (SELECT f.id FROM files f WHERE ",
            unused!(),
            " ORDER BY f.created_at LIMIT ?2)"
        ))
        .bind(i64::try_from(age_ms).unwrap_or(i64::MAX))
        .bind(FILES_PIECE)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(removed.rows_affected())
    }

    async fn file_bytes(&self) -> StoreResult<u64> {
        let bytes: i64 = sqlx::query_scalar("SELECT coalesce(sum(size), 0) FROM files").fetch_one(self.reader()).await?;
        Ok(u64::try_from(bytes).unwrap_or(0))
    }
}

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
