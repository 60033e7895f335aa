//! Stored files and their chunks.
//!
//! Owns the tables `files` and `file_chunks`. Must not know what a file is used for.

use crate::domain::conversation::{FileOrigin, FilePurpose, StoredFile};
use crate::domain::ids::{FileId, UserId};
use crate::store::conversations::files::{AttachedFile, FILES_PIECE, FileFilter, NewFile};
use crate::store::pages::page_of;
use crate::store::sql::{Row, Transaction, Value, statements, text, values};
use crate::store::{FileCursor, IdCursor, Page, PageRequest, RecordStore, StoreResult};
use crate::support::clock::UnixMillis;

macro_rules! columns {
    ($dialect:ident) => {
        "id, name, media_type, size, sha256, origin, purpose, created_at, text_chars, text_cut, CAST(octet_length(text) AS bigint) AS text_bytes"
    };
}

/// Tests whether no message uses file `f`, and it is older than `$1` milliseconds.
macro_rules! is_unused {
    ($dialect:ident) => {
        text!($dialect: "f.created_at <= " now
            " - $1 AND NOT EXISTS (SELECT 1 FROM file_uses u WHERE u.file_id = f.id)")
    };
}

statements! {
    // Concurrent uploads may exceed the limit a little. It only prevents accumulation.
    INSERT = ["INSERT INTO files (id, owner_id, name, media_type, size, sha256, created_at, text_chars, text_cut, text, origin, purpose)
         SELECT $1, $2, $3, $4, CAST($5 AS bigint), $6, ", now, ", CAST($7 AS bigint), CAST($8 AS boolean), $9, $11, $12
         WHERE (SELECT count(*) FROM files WHERE owner_id = $2 AND origin = $11) < $10"];

    INSERT_CHUNK = ["INSERT INTO file_chunks (file_id, number, bytes) VALUES ($1, $2, $3)"];

    FINISH = ["UPDATE files SET is_whole = true WHERE id = $1 AND owner_id = $2 RETURNING ", columns];

    BY_ID = ["SELECT ", columns, " FROM files WHERE id = $1 AND owner_id = $2 AND is_whole"];

    BY_CONTENT = ["SELECT ", columns, " FROM files WHERE owner_id = $1 AND is_whole AND sha256 = $2 AND name = $3
         ORDER BY id DESC LIMIT 1"];

    PAGE = ["SELECT ", columns, " FROM files WHERE owner_id = $1 AND is_whole AND (CAST($2 AS text) IS NULL OR id < $2)
           AND (CAST($4 AS text) IS NULL OR purpose = $4)
         ORDER BY id DESC LIMIT $3"];

    OLDEST_FIRST = ["SELECT ", columns, " FROM files WHERE owner_id = $1 AND is_whole AND (CAST($2 AS text) IS NULL OR id > $2)
           AND (CAST($4 AS text) IS NULL OR purpose = $4)
         ORDER BY id LIMIT $3"];

    CHUNK = ["SELECT c.bytes FROM files f JOIN file_chunks c ON c.file_id = f.id
         WHERE f.id = $1 AND f.owner_id = $2 AND f.is_whole AND c.number = $3"];

    ATTACHED = ["SELECT ", columns, ", text FROM files WHERE id ", (in_list "$1"), " AND owner_id = $2 AND is_whole"];

    DELETE = ["DELETE FROM files WHERE id = $1 AND owner_id = $2 AND is_whole"];

    COUNT_UNUSED = ["SELECT count(*) FROM files f WHERE ", is_unused];

    // Locks the files, so that no message can start to use them.
    UNUSED = ["SELECT f.id FROM files f WHERE ", is_unused, " ORDER BY f.created_at LIMIT $2",
        { postgres: " FOR UPDATE SKIP LOCKED", sqlite: "" }];

    // Checks again, now that no message can start to use the file.
    DELETE_UNUSED = ["DELETE FROM files AS f WHERE f.id ", (in_list "$2"), " AND ", is_unused];

    BYTES = ["SELECT CAST(coalesce(sum(size), 0) AS bigint) FROM files"];
}

/// Stored files of one owner. Database triggers record which conversations use a file.
impl dyn RecordStore + '_ {
    /// Starts to store a file. Returns false if its owner has `most` files of its origin already.
    pub async fn begin_file(&self, new: &NewFile, most: u32) -> StoreResult<bool> {
        let text_chars = new.text.as_ref().map(|text| text.words.chars().count() as u64);
        let insert = values![
            new.id.as_str(),
            new.owner.as_str(),
            &new.name,
            &new.media_type,
            new.size,
            &new.sha256,
            text_chars,
            new.text.as_ref().is_some_and(|text| text.is_cut),
            new.text.as_ref().map(|text| text.words.as_str()),
            most,
            new.origin.as_str(),
            new.purpose.as_str(),
        ];
        Ok(self.database().execute(INSERT, insert).await? > 0)
    }

    /// Stores a chunk. All chunks but the last have [`FILE_CHUNK`] bytes.
    pub async fn add_file_chunk(&self, id: &FileId, number: u32, bytes: &[u8]) -> StoreResult<()> {
        self.database().execute(INSERT_CHUNK, values![id.as_str(), number, bytes]).await?;
        Ok(())
    }

    /// Completes the file after its last chunk. `None` if the file was deleted meanwhile.
    pub async fn finish_file(&self, owner: &UserId, id: &FileId) -> StoreResult<Option<StoredFile>> {
        let row = self.database().returning(FINISH, values![id.as_str(), owner.as_str()]).await?;
        row.as_ref().map(read_file).transpose()
    }

    /// Returns the file, unless it is missing or belongs to another owner.
    pub async fn file(&self, owner: &UserId, id: &FileId) -> StoreResult<Option<StoredFile>> {
        self.database().read_optional(BY_ID, values![id.as_str(), owner.as_str()], read_file).await
    }

    /// Returns the newest file with this name and this SHA-256 in hex.
    pub async fn file_of(&self, owner: &UserId, sha256: &str, name: &str) -> StoreResult<Option<StoredFile>> {
        self.database().read_optional(BY_CONTENT, values![owner.as_str(), sha256, name], read_file).await
    }

    pub async fn files(&self, owner: &UserId, filter: FileFilter, page: &PageRequest<FileCursor>) -> StoreResult<Page<StoredFile>> {
        let limit = page.limit.clamp(1, 100);
        let after = page.after.as_ref().map(|after| after.0.as_str());
        let statement = if filter.is_oldest_first { OLDEST_FIRST } else { PAGE };
        let values = values![owner.as_str(), after, limit + 1, filter.purpose.map(FilePurpose::as_str)];
        let files = self.database().read_all(statement, values, read_file).await?;
        Ok(page_of(files, limit, |file| IdCursor(&file.id).to_string()))
    }

    /// Returns a chunk of a file, counted from 0. `None` after the last one, and for a file of another owner.
    pub async fn file_chunk(&self, owner: &UserId, id: &FileId, number: u32) -> StoreResult<Option<Vec<u8>>> {
        let row = self.database().fetch_optional(CHUNK, values![id.as_str(), owner.as_str(), number]).await?;
        Ok(row.map(|row| row.only()).transpose()?)
    }

    /// Returns those of the files that exist, with their texts.
    pub async fn attached_files(&self, owner: &UserId, ids: &[FileId]) -> StoreResult<Vec<AttachedFile>> {
        let ids: Value<'_> = ids.iter().map(FileId::as_str).collect();
        self.database()
            .read_all(ATTACHED, &[ids, Value::from(owner.as_str())], |row| {
                Ok(AttachedFile { file: read_file(row)?, text: row.get("text")? })
            })
            .await
    }

    /// Deletes a file. Returns false if there is none.
    pub async fn delete_file(&self, owner: &UserId, id: &FileId) -> StoreResult<bool> {
        Ok(self.database().execute(DELETE, values![id.as_str(), owner.as_str()]).await? > 0)
    }

    /// Counts files that no message uses and that are at least `age_ms` old by the database's clock.
    pub async fn count_unused_files(&self, age_ms: u64) -> StoreResult<u64> {
        count(&self.maintenance_database().fetch_one(COUNT_UNUSED, values![age_ms]).await?)
    }

    /// Removes the files that [`Self::count_unused_files`] counts, at most [`FILES_PIECE`]. Returns their number.
    pub async fn remove_unused_files(&self, age_ms: u64) -> StoreResult<u64> {
        let database = self.maintenance_database();
        database.retry(|| database.transaction(async |tx| remove_unused(tx, age_ms).await, |_| true)).await
    }

    pub async fn file_bytes(&self) -> StoreResult<u64> {
        count(&self.maintenance_database().fetch_one(BYTES, &[]).await?)
    }
}

async fn remove_unused(tx: &mut Transaction, age_ms: u64) -> StoreResult<u64> {
    let rows = tx.fetch_all(UNUSED, values![age_ms, FILES_PIECE]).await?;
    let ids = rows.iter().map(|row| row.get::<&str>("id")).collect::<Result<Vec<_>, _>>()?;
    tx.execute(DELETE_UNUSED, &[age_ms.into(), ids.into_iter().collect()]).await
}

fn count(row: &Row) -> StoreResult<u64> {
    Ok(u64::try_from(row.only::<i64>()?).unwrap_or(0))
}

fn read_file(row: &Row) -> StoreResult<StoredFile> {
    let size = |stored: i64| u64::try_from(stored).unwrap_or(0);
    Ok(StoredFile {
        id: FileId::from_stored(row.get("id")?),
        name: row.get("name")?,
        media_type: row.get("media_type")?,
        size: row.count("size")?,
        sha256: row.get("sha256")?,
        text_chars: row.get::<Option<i64>>("text_chars")?.map(size),
        text_bytes: row.get::<Option<i64>>("text_bytes")?.map(size),
        text_cut: row.get("text_cut")?,
        // An unknown origin, which a newer version has stored, counts as an upload.
        origin: FileOrigin::from_name(row.get("origin")?).unwrap_or_default(),
        purpose: FilePurpose::from_name(row.get("purpose")?).unwrap_or_default(),
        created_at: UnixMillis(row.get("created_at")?).to_rfc3339(),
    })
}
