//! Uploaded files.

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection};

use super::PostgresStore;
use super::errors::retried;
use crate::domain::file::StoredFile;
use crate::domain::ids::{FileId, UserId};
use crate::store::files::{
    AttachedFile, FILES_PIECE, FileCursor, FileStore, NewFile, file_columns, read_attached, read_file, text_chars,
};
use crate::store::providers::page_of;
use crate::store::{AcceptRun, Accepted, Page, PageRequest, StoreResult};
use crate::support::text::storable;

/// Files `f` that no message has, from before `$1` milliseconds.
macro_rules! unused {
    () => {
        "f.created_at <= (SELECT now_ms()) - $1 AND NOT EXISTS (SELECT FROM file_uses u WHERE u.file_id = f.id)"
    };
}

#[async_trait]
impl FileStore for PostgresStore {
    async fn begin_file(&self, new: &NewFile, most: u32) -> StoreResult<bool> {
        // Of two uploads at once each may be the last that there is room for: the limit is against piling up, not exact.
        let begun = sqlx::query(
            "INSERT INTO files (id, owner_id, name, media_type, size, sha256, created_at, text_chars, text_cut, text, origin)
             SELECT $1, $2, $3, $4, $5, $6, now_ms(), $7, $8, $9, $11
             WHERE (SELECT count(*) FROM files WHERE owner_id = $2 AND origin = $11) < $10",
        )
        .bind(new.id.as_str())
        .bind(new.owner.as_str())
        .bind(storable(&new.name))
        .bind(&new.media_type)
        .bind(i64::try_from(new.size).unwrap_or(i64::MAX))
        .bind(&new.sha256)
        .bind(text_chars(new))
        .bind(new.text.as_ref().is_some_and(|text| text.is_cut))
        .bind(new.text.as_ref().map(|text| storable(&text.words)))
        .bind(i64::from(most))
        .bind(new.origin.as_str())
        .execute(&self.api)
        .await?;
        Ok(begun.rows_affected() > 0)
    }

    async fn add_file_chunk(&self, id: &FileId, number: u32, bytes: &[u8]) -> StoreResult<()> {
        sqlx::query("INSERT INTO file_chunks (file_id, number, bytes) VALUES ($1, $2, $3)")
            .bind(id.as_str())
            .bind(i64::from(number))
            .bind(bytes)
            .execute(&self.api)
            .await?;
        Ok(())
    }

    async fn finish_file(&self, owner: &UserId, id: &FileId) -> StoreResult<Option<StoredFile>> {
        let row =
            sqlx::query(concat!("UPDATE files SET is_whole = true WHERE id = $1 AND owner_id = $2 RETURNING ", file_columns!()))
                .bind(id.as_str())
                .bind(owner.as_str())
                .fetch_optional(&self.api)
                .await?;
        row.as_ref().map(read_file).transpose()
    }

    async fn file(&self, owner: &UserId, id: &FileId) -> StoreResult<Option<StoredFile>> {
        let row = sqlx::query(concat!("SELECT ", file_columns!(), " FROM files WHERE id = $1 AND owner_id = $2 AND is_whole"))
            .bind(id.as_str())
            .bind(owner.as_str())
            .fetch_optional(&self.api)
            .await?;
        row.as_ref().map(read_file).transpose()
    }

    async fn file_of(&self, owner: &UserId, sha256: &str, name: &str) -> StoreResult<Option<StoredFile>> {
        let row = sqlx::query(concat!(
            "SELECT ",
            file_columns!(),
            " FROM files WHERE owner_id = $1 AND is_whole AND sha256 = $2 AND name = $3 ORDER BY id DESC LIMIT 1"
        ))
        .bind(owner.as_str())
        .bind(sha256)
        .bind(storable(name))
        .fetch_optional(&self.api)
        .await?;
        row.as_ref().map(read_file).transpose()
    }

    async fn files(&self, owner: &UserId, page: &PageRequest<FileCursor>) -> StoreResult<Page<StoredFile>> {
        let limit = page.limit.clamp(1, 100);
        let found = sqlx::query(concat!(
            "SELECT ",
            file_columns!(),
            " FROM files WHERE owner_id = $1 AND is_whole AND ($2::text IS NULL OR id < $2) ORDER BY id DESC LIMIT $3"
        ))
        .bind(owner.as_str())
        .bind(page.after.as_ref().map(|after| after.0.as_str()))
        .bind(i64::from(limit) + 1)
        .fetch_all(&self.api)
        .await?;
        let files = found.iter().map(read_file).collect::<StoreResult<_>>()?;
        Ok(page_of(files, limit, |file: &StoredFile| FileCursor(file.id.clone()).to_string()))
    }

    async fn file_chunk(&self, owner: &UserId, id: &FileId, number: u32) -> StoreResult<Option<Vec<u8>>> {
        let bytes = sqlx::query_scalar(
            "SELECT c.bytes FROM files f JOIN file_chunks c ON c.file_id = f.id
             WHERE f.id = $1 AND f.owner_id = $2 AND f.is_whole AND c.number = $3",
        )
        .bind(id.as_str())
        .bind(owner.as_str())
        .bind(i64::from(number))
        .fetch_optional(&self.api)
        .await?;
        Ok(bytes)
    }

    async fn attached_files(&self, owner: &UserId, ids: &[FileId]) -> StoreResult<Vec<AttachedFile>> {
        let ids: Vec<&str> = ids.iter().map(FileId::as_str).collect();
        let found = sqlx::query(concat!(
            "SELECT ",
            file_columns!(),
            ", text FROM files WHERE id = ANY($1::text[]) AND owner_id = $2 AND is_whole"
        ))
        .bind(ids)
        .bind(owner.as_str())
        .fetch_all(&self.api)
        .await?;
        found.iter().map(read_attached).collect()
    }

    async fn delete_file(&self, owner: &UserId, id: &FileId) -> StoreResult<bool> {
        let deleted = sqlx::query("DELETE FROM files WHERE id = $1 AND owner_id = $2 AND is_whole")
            .bind(id.as_str())
            .bind(owner.as_str())
            .execute(&self.api)
            .await?;
        Ok(deleted.rows_affected() > 0)
    }

    async fn count_unused_files(&self, age_ms: u64) -> StoreResult<u64> {
        let count: i64 = sqlx::query_scalar(concat!("SELECT count(*) FROM files f WHERE ", unused!()))
            .bind(i64::try_from(age_ms).unwrap_or(i64::MAX))
            .fetch_one(&self.chores)
            .await?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    async fn remove_unused_files(&self, age_ms: u64) -> StoreResult<u64> {
        retried(|| self.chores.ask(async |connection| remove_unused(connection, age_ms).await)).await
    }

    async fn file_bytes(&self) -> StoreResult<u64> {
        let bytes: i64 = sqlx::query_scalar("SELECT coalesce(sum(size), 0)::bigint FROM files").fetch_one(&self.chores).await?;
        Ok(u64::try_from(bytes).unwrap_or(0))
    }
}

async fn remove_unused(connection: &mut PgConnection, age_ms: u64) -> StoreResult<u64> {
    let age_ms = i64::try_from(age_ms).unwrap_or(i64::MAX);
    let mut tx = connection.begin().await?;
    // Those that a message is about to have are locked. Whether one has them by now is seen when nobody can take them any more.
    let ids: Vec<String> = sqlx::query_scalar(concat!(
        "SELECT f.id FROM files f WHERE ",
        unused!(),
        " ORDER BY f.created_at LIMIT $2 FOR UPDATE SKIP LOCKED"
    ))
    .bind(age_ms)
    .bind(FILES_PIECE)
    .fetch_all(&mut *tx)
    .await?;
    let removed = sqlx::query(concat!("DELETE FROM files f WHERE f.id = ANY($2::text[]) AND ", unused!()))
        .bind(age_ms)
        .bind(&ids)
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(removed.rows_affected())
}

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
