//! Full-text search.

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection, Row as _};

use super::PostgresStore;
use super::errors::retried;
use crate::domain::ids::UserId;
use crate::domain::search::{Term, Terms};
use crate::store::pages::page_of;
use crate::store::rows::decode;
use crate::store::{Found, Page, PageRequest, SearchCursor, SearchStore, StoreResult};

/// Everything in quotes, so that no sign of a query means anything.
fn query_text(terms: &Terms) -> String {
    let term = |term: &Term| {
        let (words, is_prefix) = term.words();
        let quoted: Vec<String> = words.iter().map(|word| format!("'{}'", word.replace(['\'', '\\'], " "))).collect();
        let end = if is_prefix { ":*" } else { "" };
        format!("{}{end}", quoted.join(" <-> "))
    };
    terms.iter().map(term).collect::<Vec<_>>().join(" & ")
}

#[async_trait]
impl SearchStore for PostgresStore {
    async fn search(
        &self,
        owner: &UserId,
        terms: &Terms,
        archived: Option<bool>,
        page: &PageRequest<SearchCursor>,
    ) -> StoreResult<Page<Found>> {
        let limit = page.limit.clamp(1, 100);
        // A query of which nothing is a word to the database asks for nothing, not for everything.
        let found = sqlx::query(
            "WITH wanted AS (SELECT to_tsquery('simple', $2) AS words)
             SELECT m.id, m.body, c.title FROM wanted, message_words w JOIN messages m ON m.id = w.message_id
             JOIN conversations c ON c.id = m.conversation_id
             WHERE numnode(wanted.words) > 0
               AND w.words @@ (wanted.words && ('''' || replace(owner_word($1), '''', '''''') || '''')::tsquery)
               AND w.owner_id = $1 AND c.owner_id = $1 AND m.superseded_by IS NULL
               AND ($3::boolean IS NULL OR (c.archived_at IS NOT NULL) = $3) AND ($4::text IS NULL OR m.id < $4)
             ORDER BY m.id DESC LIMIT $5",
        )
        .bind(owner.as_str())
        .bind(query_text(terms))
        .bind(archived)
        .bind(page.after.as_ref().map(|after| after.0.as_str()))
        .bind(i64::from(limit) + 1)
        .fetch_all(&self.api)
        .await?;
        let read = |row: &sqlx::postgres::PgRow| -> StoreResult<Found> {
            let (id, body): (String, String) = (row.try_get("id")?, row.try_get("body")?);
            Ok(Found { message: decode("messages", "body", &id, &body)?, title: row.try_get("title")? })
        };
        let found = found.iter().map(read).collect::<StoreResult<_>>()?;
        Ok(page_of(found, limit, |found: &Found| SearchCursor(found.message.id.clone()).to_string()))
    }

    async fn index_messages(&self, limit: u32) -> StoreResult<u64> {
        retried(|| self.chores.ask(async |connection| index_piece(connection, limit).await)).await
    }
}

async fn index_piece(connection: &mut PgConnection, limit: u32) -> StoreResult<u64> {
    let mut tx = connection.begin().await?;
    let below: Option<String> =
        sqlx::query_scalar("SELECT below FROM message_words_left FOR UPDATE SKIP LOCKED").fetch_optional(&mut *tx).await?;
    let Some(below) = below else {
        tx.rollback().await?;
        return Ok(0);
    };
    // Locked, so that no deletion comes between a message and its words.
    let piece: Vec<String> = sqlx::query_scalar("SELECT id FROM messages WHERE id < $1 ORDER BY id DESC LIMIT $2 FOR KEY SHARE")
        .bind(&below)
        .bind(i64::from(limit))
        .fetch_all(&mut *tx)
        .await?;
    // Those that have their words already are left alone: finding that out costs a hundredth of making them again.
    sqlx::query(
        "INSERT INTO message_words (message_id, owner_id, words)
         SELECT m.id, m.owner_id, words FROM messages m, words_of_message(m.owner_id, m.body) AS words
         WHERE m.id = ANY($1::text[]) AND m.role <> 'tool' AND NOT is_hidden(m.body) AND words IS NOT NULL
           AND NOT EXISTS (SELECT FROM message_words w WHERE w.message_id = m.id)
         ON CONFLICT DO NOTHING",
    )
    .bind(&piece)
    .execute(&mut *tx)
    .await?;
    match piece.last() {
        Some(last) => sqlx::query("UPDATE message_words_left SET below = $1").bind(last).execute(&mut *tx).await?,
        None => sqlx::query("DELETE FROM message_words_left").execute(&mut *tx).await?,
    };
    tx.commit().await?;
    Ok(piece.len() as u64)
}
