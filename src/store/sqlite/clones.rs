//! Clone detection of SQLite, by a file beside the database. See [`crate::store::clones`].
//!
//! Owns that file. Must not know when marks are left.
//!
//! A word and a mark stand in the database and in the file. The mark rises while the server is at work, first in the database: a
//! database whose mark is below that of the file is older than what was served here. The file also says when it was made: a file that
//! was copied together with the database was made later.

use std::path::{Path, PathBuf};

use sqlx::sqlite::{SqliteConnection, SqlitePool};
use tokio::sync::Mutex;

use crate::store::clones::{LEAST_JUMP, NUMBERS_PER_MS, log_accepted, refused};
use crate::store::{Durability, OnCopy, StoreError, StoreResult};
use crate::support::{failpoint, files};

#[derive(Debug, Clone, PartialEq, Eq)]
struct Mark {
    word: String,
    mark: i64,
}

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Beside {
    mark: Mark,
    /// Whether it was made at another time than it says.
    is_copy: bool,
}

impl Mark {
    /// Returns the line of a file that was made then.
    fn line(&self, born: Option<u128>) -> String {
        let born = born.map_or_else(String::new, |born| format!(" {born}"));
        format!("{} {}{born}\n", self.word, self.mark)
    }

    /// Returns what the database keeps of a file that is replaced.
    fn key(&self) -> String {
        format!("{} {}", self.word, self.mark)
    }
}

/// The mark of the one server of a data folder.
pub(super) struct CloneMark {
    path: PathBuf,
    durability: Durability,
    /// The connection's count of changes after the last mark. Held while one is left.
    changes: Mutex<Option<i64>>,
}

impl CloneMark {
    /// Checks whether the database is a copy, and leaves a mark. Returns `None` if copies are overlooked.
    pub(super) async fn check(
        writer: &SqlitePool,
        database: &Path,
        durability: Durability,
        on_copy: OnCopy,
    ) -> StoreResult<Option<Self>> {
        if on_copy == OnCopy::Overlook {
            return Ok(None);
        }
        let mut path = database.as_os_str().to_owned();
        path.push(".mark");
        let path = PathBuf::from(path);
        let beside = read(&path)?;
        let mut tx = writer.begin_with("BEGIN IMMEDIATE").await?;
        let within: Option<(String, i64, Option<String>)> =
            sqlx::query_as("SELECT word, mark, accepted FROM clone_detection").fetch_optional(&mut *tx).await?;
        let is_accepted = |beside: &Beside| within.as_ref().is_some_and(|(.., accepted)| *accepted == Some(beside.mark.key()));
        // A process that accepted the copy has died before the file said so.
        let beside = beside.filter(|beside| !is_accepted(beside));
        let within = within.map(|(word, mark, _)| Mark { word, mark });
        // In an empty database no run could go on.
        let is_empty: bool = sqlx::query_scalar("SELECT NOT EXISTS (SELECT 1 FROM conversation_heads)").fetch_one(&mut *tx).await?;
        let noticed = noticed(within.as_ref(), beside.as_ref());
        let accepts = match (noticed, on_copy) {
            (Some(what), OnCopy::Refuse) if !is_empty => return Err(refused(&format!("{} {what}", database.display()))),
            (Some(_), _) | (None, OnCopy::AcceptUnseen) => true,
            (None, OnCopy::Overlook | OnCopy::Refuse | OnCopy::Accept) => false,
        };
        if accepts && !is_empty {
            jump(&mut tx).await?;
        }
        if accepts || within.is_none() {
            sqlx::query("REPLACE INTO clone_detection (only_row, word, mark, accepted) VALUES (1, hex(randomblob(8)), 0, ?)")
                .bind(beside.as_ref().map(|beside| beside.mark.key()))
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        failpoint::reached("accepted");
        let found = Self { path, durability, changes: Mutex::default() };
        if accepts || within.is_none() || beside.is_none() {
            // Before the mark is above zero: one that has none beside it is a copy then.
            let (word, mark) = sqlx::query_as("SELECT word, mark FROM clone_detection").fetch_one(writer).await?;
            found.write(Mark { word, mark }).await?;
        }
        found.leave(writer).await?;
        Ok(Some(found))
    }

    /// Leaves a mark if anything has changed since the last one: a database that is restored from before is older now.
    pub(super) async fn leave(&self, writer: &SqlitePool) -> StoreResult<()> {
        let mut last = self.changes.lock().await;
        let changes: i64 = sqlx::query_scalar("SELECT total_changes()").fetch_one(writer).await?;
        if *last == Some(changes) {
            return Ok(());
        }
        // After a loss of power the database must have what the file says.
        self.synchronous(writer, Durability::Full).await?;
        let mut tx = writer.begin_with("BEGIN IMMEDIATE").await?;
        let (word, mark) = sqlx::query_as("UPDATE clone_detection SET mark = mark + 1, accepted = NULL RETURNING word, mark")
            .fetch_one(&mut *tx)
            .await?;
        let changes: i64 = sqlx::query_scalar("SELECT total_changes()").fetch_one(&mut *tx).await?;
        tx.commit().await?;
        self.synchronous(writer, self.durability).await?;
        self.write(Mark { word, mark }).await?;
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

    async fn write(&self, mark: Mark) -> StoreResult<()> {
        let path = self.path.clone();
        let written = tokio::task::spawn_blocking(move || write(&path, &mark)).await.map_err(std::io::Error::other).flatten();
        written.map_err(|error| unusable(&self.path, &error.to_string()))
    }
}

fn write(path: &Path, mark: &Mark) -> std::io::Result<()> {
    let mut said = None;
    files::replace_by(path, |file| {
        said = file.metadata().ok().as_ref().and_then(files::born);
        mark.line(said)
    })?;
    // A file system that changes the time with the name says nothing of copies.
    match said.is_some() && files::born(&std::fs::metadata(path)?) != said {
        true => files::replace(path, &mark.line(None)),
        false => Ok(()),
    }
}

/// Returns why the database `within` counts as a copy.
fn noticed(within: Option<&Mark>, beside: Option<&Beside>) -> Option<&'static str> {
    match (within, beside) {
        (None, None) => None,
        (None, Some(_)) => Some("is older than the database that was served here"),
        // A process has died before it could write the file for the first time.
        (Some(Mark { mark: 0, .. }), None) => None,
        (Some(_), None) => {
            Some("is a copy of a database: the file with .mark behind its name stays where that was served, and is not here")
        }
        (Some(within), Some(Beside { mark, .. })) if within.word != mark.word => {
            Some("is not the database that was served here, but a copy of another one")
        }
        (Some(_), Some(Beside { is_copy: true, .. })) => {
            Some("is a copy of a database: the file with .mark behind its name was copied with it, and not written here")
        }
        (Some(within), Some(Beside { mark, .. })) if within.mark < mark.mark => {
            Some("is older than the database that was served here")
        }
        (Some(_), Some(_)) => None,
    }
}

/// Reads the file; `None` if there is none.
fn read(path: &Path) -> StoreResult<Option<Beside>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(path, &error.to_string())),
    };
    let born = std::fs::metadata(path).ok().as_ref().and_then(files::born);
    let parsed = parse(&text, born);
    let broken = "it is not as this program has written it; delete it, and start once with --accept-restore";
    Ok(Some(parsed.ok_or_else(|| unusable(path, broken))?))
}

/// Reads the line of a file that was made at the time `born`.
fn parse(line: &str, born: Option<u128>) -> Option<Beside> {
    let mut words = line.split_whitespace();
    let mark = Mark { word: words.next()?.to_owned(), mark: words.next()?.parse().ok()? };
    let said: Option<u128> = words.next().map(str::parse).transpose().ok()?;
    let is_copy = said.is_some() && born.is_some() && said != born;
    words.next().is_none().then_some(Beside { mark, is_copy })
}

fn unusable(path: &Path, why: &str) -> StoreError {
    StoreError::Copied(format!("{}, by which a copy of the database is told from it, cannot be used: {why}", path.display()))
}

/// Makes every log go on at numbers that were never given out. The epochs jump with them, as on Postgres.
async fn jump(tx: &mut SqliteConnection) -> StoreResult<()> {
    let lifted = sqlx::query(concat!(
        "UPDATE conversation_heads SET last_seq = max(last_seq + ?2, ",
        now!(),
        " * ?1), epoch = max(epoch + ?2, ",
        now!(),
        " * ?1)"
    ))
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
        let mark = Mark { word: "A1".to_owned(), mark: 7 };
        let read = |born: Option<u128>, at: Option<u128>| parse(&mark.line(born), at).unwrap();
        let ours = Beside { mark: mark.clone(), is_copy: false };
        assert_eq!(read(Some(5), Some(6)), Beside { is_copy: true, ..ours.clone() });
        for (born, at) in [(Some(5), Some(5)), (None, Some(5)), (Some(5), None), (None, None)] {
            assert_eq!(read(born, at), ours, "{born:?} {at:?}");
        }
        for broken in ["", "A1", "A1 x", "A1 7 x", "A1 7 5 5"] {
            assert_eq!(parse(broken, None), None, "{broken:?}");
        }
    }
}
