//! Clone detection on SQLite, by a marker file beside the database. See [`crate::store::clone_detection`].
//!
//! Owns that file. Must not know when it is written.
//!
//! The database and the file contain a random id and a counter. The counter increases while the server works, first in the
//! database, then in the file. So a database with a lower counter than the file is older than the database that was served here.
//! The file also contains its creation time: a copied file was created later.

use std::path::{Path, PathBuf};

use sqlx::sqlite::{SqliteConnection, SqlitePool};
use tokio::sync::Mutex;

use crate::store::clone_detection::{LEAST_JUMP, NUMBERS_PER_MS, clone_error, log_accepted};
use crate::store::{Durability, OnClone, StoreError, StoreResult};
use crate::support::{failpoint, files};

#[derive(Debug, Clone, PartialEq, Eq)]
struct CloneMarker {
    database_id: String,
    /// Raised before each write of the file, so that an older database is recognised.
    counter: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct MarkerFile {
    marker: CloneMarker,
    /// Whether the file was created at another time than its content says.
    is_copy: bool,
}

impl CloneMarker {
    /// Returns the content of a file with this creation time.
    fn line(&self, born: Option<u128>) -> String {
        let born = born.map_or_else(String::new, |born| format!(" {born}"));
        format!("{}{born}\n", self.key())
    }

    /// Returns the identity of a replaced file, which the database stores.
    fn key(&self) -> String {
        format!("{} {}", self.database_id, self.counter)
    }
}

pub(super) struct MarkerWriter {
    path: PathBuf,
    durability: Durability,
    /// The connection's count of changes after the last write of the file. Locked during a write.
    changes: Mutex<Option<i64>>,
}

impl MarkerWriter {
    /// Checks whether the database is a copy, and writes the marker file. Returns `None` without the check for
    /// [`OnClone::SkipCheck`].
    pub(super) async fn check(
        writer: &SqlitePool,
        database: &Path,
        durability: Durability,
        on_clone: OnClone,
    ) -> StoreResult<Option<Self>> {
        if on_clone == OnClone::SkipCheck {
            return Ok(None);
        }
        let mut path = database.as_os_str().to_owned();
        path.push(".mark");
        let path = PathBuf::from(path);
        let in_file = read(&path)?;
        let mut tx = writer.begin_with("BEGIN IMMEDIATE").await?;
        let in_database: Option<(String, i64, Option<String>)> =
            sqlx::query_as("SELECT word, mark, accepted FROM clone_detection").fetch_optional(&mut *tx).await?;
        let is_accepted =
            |in_file: &MarkerFile| in_database.as_ref().is_some_and(|(.., accepted)| *accepted == Some(in_file.marker.key()));
        // A process that accepted the copy crashed before it updated the file.
        let in_file = in_file.filter(|in_file| !is_accepted(in_file));
        let in_database = in_database.map(|(database_id, counter, _)| CloneMarker { database_id, counter });
        // An empty database has no run that could continue.
        let is_empty: bool = sqlx::query_scalar("SELECT NOT EXISTS (SELECT 1 FROM conversation_heads)").fetch_one(&mut *tx).await?;
        let reason = clone_reason(in_database.as_ref(), in_file.as_ref());
        let accepts = match (reason, on_clone) {
            (Some(evidence), OnClone::Refuse) if !is_empty => {
                return Err(clone_error(&format!("{} {evidence}", database.display())));
            }
            (Some(_), _) | (None, OnClone::AcceptUndetected) => true,
            (None, OnClone::SkipCheck | OnClone::Refuse | OnClone::Accept) => false,
        };
        if accepts && !is_empty {
            advance_sequences(&mut tx).await?;
        }
        if accepts || in_database.is_none() {
            sqlx::query("REPLACE INTO clone_detection (only_row, word, mark, accepted) VALUES (1, hex(randomblob(8)), 0, ?)")
                .bind(in_file.as_ref().map(|in_file| in_file.marker.key()))
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        failpoint::hit("accepted");
        let found = Self { path, durability, changes: Mutex::default() };
        if accepts || in_database.is_none() || in_file.is_none() {
            // The counter is 0 until the file exists: later, a database without a file is a copy.
            let (database_id, counter) = sqlx::query_as("SELECT word, mark FROM clone_detection").fetch_one(writer).await?;
            found.write(CloneMarker { database_id, counter }).await?;
        }
        found.write_marker(writer).await?;
        Ok(Some(found))
    }

    /// Writes the marker file if anything has changed since the last write, so that an older backup is recognised.
    pub(super) async fn write_marker(&self, writer: &SqlitePool) -> StoreResult<()> {
        let mut last = self.changes.lock().await;
        let changes: i64 = sqlx::query_scalar("SELECT total_changes()").fetch_one(writer).await?;
        if *last == Some(changes) {
            return Ok(());
        }
        // After a loss of power, the database must contain what the file says.
        self.synchronous(writer, Durability::Full).await?;
        let mut tx = writer.begin_with("BEGIN IMMEDIATE").await?;
        let (database_id, counter) =
            sqlx::query_as("UPDATE clone_detection SET mark = mark + 1, accepted = NULL RETURNING word, mark")
                .fetch_one(&mut *tx)
                .await?;
        let changes: i64 = sqlx::query_scalar("SELECT total_changes()").fetch_one(&mut *tx).await?;
        tx.commit().await?;
        self.synchronous(writer, self.durability).await?;
        self.write(CloneMarker { database_id, counter }).await?;
        *last = Some(changes);
        Ok(())
    }

    /// Sets the durability of the next commits of the writer.
    async fn synchronous(&self, writer: &SqlitePool, durability: Durability) -> StoreResult<()> {
        let pragma = match (self.durability, durability) {
            (Durability::Full, _) => return Ok(()),
            (Durability::Normal, Durability::Full) => "PRAGMA synchronous = FULL",
            (Durability::Normal, Durability::Normal) => "PRAGMA synchronous = NORMAL",
        };
        sqlx::query(pragma).execute(writer).await?;
        Ok(())
    }

    async fn write(&self, marker: CloneMarker) -> StoreResult<()> {
        let path = self.path.clone();
        let written = tokio::task::spawn_blocking(move || write(&path, &marker)).await.map_err(std::io::Error::other).flatten();
        written.map_err(|error| unusable(&self.path, &error.to_string()))
    }
}

fn write(path: &Path, marker: &CloneMarker) -> std::io::Result<()> {
    let mut created_ns = None;
    files::replace_by(path, |file| {
        created_ns = file.metadata().ok().as_ref().and_then(files::created_ns);
        marker.line(created_ns)
    })?;
    // A file system that changes the creation time at a rename cannot detect copies.
    match created_ns.is_some() && files::created_ns(&std::fs::metadata(path)?) != created_ns {
        true => files::replace(path, &marker.line(None)),
        false => Ok(()),
    }
}

/// Returns why the database counts as a copy.
fn clone_reason(in_database: Option<&CloneMarker>, in_file: Option<&MarkerFile>) -> Option<&'static str> {
    match (in_database, in_file) {
        (None, None) => None,
        (None, Some(_)) => Some("is older than the database that was served here"),
        // A process crashed before it wrote the file for the first time.
        (Some(CloneMarker { counter: 0, .. }), None) => None,
        (Some(_), None) => Some("is a copy of a database: its marker file, which has the same name with .mark, is missing here"),
        (Some(in_database), Some(MarkerFile { marker, .. })) if in_database.database_id != marker.database_id => {
            Some("is not the database that was served here, but a copy of another one")
        }
        (Some(_), Some(MarkerFile { is_copy: true, .. })) => {
            Some("is a copy of a database: its marker file, which has the same name with .mark, was copied too")
        }
        (Some(in_database), Some(MarkerFile { marker, .. })) if in_database.counter < marker.counter => {
            Some("is older than the database that was served here")
        }
        (Some(_), Some(_)) => None,
    }
}

/// Reads the file; `None` if there is none.
fn read(path: &Path) -> StoreResult<Option<MarkerFile>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(path, &error.to_string())),
    };
    let born = std::fs::metadata(path).ok().as_ref().and_then(files::created_ns);
    let parsed = parse(&text, born);
    let broken = "its content is invalid; delete it, and start once with --accept-restore";
    Ok(Some(parsed.ok_or_else(|| unusable(path, broken))?))
}

/// Parses the content of a file that was created at the time `born`.
fn parse(line: &str, born: Option<u128>) -> Option<MarkerFile> {
    let mut words = line.split_whitespace();
    let marker = CloneMarker { database_id: words.next()?.to_owned(), counter: words.next()?.parse().ok()? };
    let created_ns: Option<u128> = words.next().map(str::parse).transpose().ok()?;
    let is_copy = created_ns.is_some() && born.is_some() && created_ns != born;
    words.next().is_none().then_some(MarkerFile { marker, is_copy })
}

fn unusable(path: &Path, why: &str) -> StoreError {
    StoreError::Copied(format!("{}, the marker file that detects copies of the database, cannot be used: {why}", path.display()))
}

/// Raises every log to numbers that were never assigned. The epochs are raised too, as on Postgres.
async fn advance_sequences(tx: &mut SqliteConnection) -> StoreResult<()> {
    let lifted = sqlx::query(sql!("UPDATE conversation_heads SET last_seq = max(last_seq + ?2, " now
        " * ?1), epoch = max(epoch + ?2, " now " * ?1)"))
    .bind(NUMBERS_PER_MS)
    .bind(LEAST_JUMP)
    .execute(&mut *tx)
    .await?;
    log_accepted(lifted.rows_affected());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_made_at_another_time_is_a_copy() {
        let marker = CloneMarker { database_id: "A1".to_owned(), counter: 7 };
        let read = |born: Option<u128>, at: Option<u128>| parse(&marker.line(born), at).unwrap();
        let ours = MarkerFile { marker: marker.clone(), is_copy: false };
        assert_eq!(read(Some(5), Some(6)), MarkerFile { is_copy: true, ..ours.clone() });
        for (born, at) in [(Some(5), Some(5)), (None, Some(5)), (Some(5), None), (None, None)] {
            assert_eq!(read(born, at), ours, "{born:?} {at:?}");
        }
        for broken in ["", "A1", "A1 x", "A1 7 x", "A1 7 5 5"] {
            assert_eq!(parse(broken, None), None, "{broken:?}");
        }
    }
}
