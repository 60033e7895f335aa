//! A batch sends several statements of a transaction to the connection's thread in one message. One message takes longer than most
//! statements.
//!
//! A batch checks only the number of changed rows, and reads no results. Batches with the same statements have the same text. The
//! connection keeps the texts of the last batches prepared, so a batch should have one of few texts.

use futures_util::TryStreamExt as _;
use sqlx::error::BoxDynError;
use sqlx::sqlite::SqliteArguments;
use sqlx::{Arguments as _, AssertSqlSafe, Either, Encode, Executor as _, Sqlite, Type};

use super::connection::Tx;
use crate::store::StoreResult;

#[derive(Default)]
pub(in crate::store) struct Batch {
    text: String,
    arguments: SqliteArguments,
    /// For each statement: the reason for refusal if it changes no row.
    refusal_reasons: Vec<Option<&'static str>>,
    /// The first fault of a statement or value.
    error: Option<BoxDynError>,
}

impl Batch {
    /// Adds a statement. Its parameters have no numbers, because the arguments of all statements form one list.
    pub(super) fn add(&mut self, statement: &'static str) -> &mut Self {
        if has_numbers(statement) {
            self.fail(format!("a numbered parameter indexes the arguments of the whole batch: {statement}"));
        }
        self.push(statement);
        self
    }

    /// Adds a statement whose numbered parameters are replaced already.
    pub(in crate::store) fn push(&mut self, statement: &str) {
        self.text.push_str(statement);
        self.text.push(';');
        self.refusal_reasons.push(None);
    }

    /// Makes `run` return this fault, unless it has an earlier one.
    pub(in crate::store) fn fail(&mut self, fault: String) {
        self.error.get_or_insert_with(|| fault.into());
    }

    /// Returns the number of statements.
    pub(in crate::store) fn len(&self) -> usize {
        self.refusal_reasons.len()
    }

    /// Adds the next argument of the statement.
    pub(in crate::store) fn bind<'t, T: Encode<'t, Sqlite> + Type<Sqlite>>(&mut self, value: T) -> &mut Self {
        if let Err(error) = self.arguments.add(value) {
            self.error.get_or_insert(error);
        }
        self
    }

    /// Makes `run` refuse the batch with this reason if the last added statement changes no row.
    pub(super) fn require_change(&mut self, reason: &'static str) -> &mut Self {
        if let Some(last) = self.refusal_reasons.last_mut() {
            *last = Some(reason);
        }
        self
    }

    /// Executes all statements and clears the batch. Returns the first reason for refusal. All statements have run by then, so the
    /// caller must roll the transaction back.
    pub(in crate::store) async fn run(&mut self, tx: &mut Tx) -> StoreResult<Option<&'static str>> {
        let Self { text, arguments, refusal_reasons, error } = std::mem::take(self);
        if refusal_reasons.is_empty() {
            return Ok(None);
        }
        // SQLite takes NULL for a missing argument.
        let is_complete = text.matches('?').count() == arguments.len();
        if let Some(error) = error.or_else(|| (!is_complete).then(|| format!("an argument is missing: {text}").into())) {
            return Err(sqlx::Error::Encode(error).into());
        }
        let mut refusal_reasons = refusal_reasons.into_iter();
        let mut refused = None;
        let mut results = (&mut **tx).fetch_many(sqlx::query_with(AssertSqlSafe(text), arguments));
        while let Some(result) = results.try_next().await? {
            if let Either::Left(done) = result {
                refused = refused.or(refusal_reasons.next().flatten().filter(|_| done.rows_affected() == 0));
            }
        }
        Ok(refused)
    }
}

fn has_numbers(statement: &str) -> bool {
    statement.split('?').skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::SqliteStore;
    use crate::store::{Store as _, StoreOptions};

    #[tokio::test]
    async fn each_statement_has_its_own_arguments_and_reason() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("batch.db").display());
        let store = SqliteStore::connect(&url, &StoreOptions::default()).await.unwrap();
        let mut tx = store.begin_write().await.unwrap();
        let mut batch = Batch::default();
        assert_eq!(batch.run(&mut tx).await.unwrap(), None, "an empty batch has no reason for refusal");
        // The second round executes the prepared text of the first one.
        for round in 0_i64..2 {
            batch.add("CREATE TABLE IF NOT EXISTS t (n INTEGER, w TEXT)");
            batch.add("INSERT INTO t VALUES (?, ?)").bind(round).bind("one").require_change("nothing is inserted");
            batch.add("INSERT INTO t SELECT ? + 10, ? WHERE ?").bind(round).bind(None::<&str>).bind(true);
            batch.add("UPDATE t SET n = n WHERE w = ?").bind("nobody").require_change("nobody is there");
            batch.add("DELETE FROM t WHERE n = ?").bind(99).require_change("nothing is deleted");
            assert_eq!(batch.run(&mut tx).await.unwrap(), Some("nobody is there"));
        }
        let rows: Vec<(i64, Option<String>)> = sqlx::query_as("SELECT n, w FROM t").fetch_all(&mut *tx).await.unwrap();
        let one = || Some("one".to_owned());
        assert_eq!(rows, [(0, one()), (10, None), (1, one()), (11, None)]);
        batch.add("INSERT INTO t VALUES (5, 'kept')").add("INSERT INTO nowhere VALUES (1)");
        assert!(batch.run(&mut tx).await.is_err());
        assert_eq!(batch.run(&mut tx).await.unwrap(), None, "a failed batch is not repeated");
        let missing = batch.add("INSERT INTO t VALUES (?, ?)").bind(1).run(&mut tx).await.unwrap_err();
        assert!(format!("{missing:?}").contains("an argument is missing"), "{missing:?}");
        let numbered = batch.add("DELETE FROM t WHERE n = ?1").bind(1).run(&mut tx).await.unwrap_err();
        assert!(format!("{numbered:?}").contains("a numbered parameter"), "{numbered:?}");
        drop(tx);
        store.close().await;
    }

    #[test]
    fn numbers_are_seen() {
        assert!(has_numbers("SELECT ?, ?2"));
        assert!(!has_numbers("SELECT ?, ? WHERE '?'"));
    }
}
