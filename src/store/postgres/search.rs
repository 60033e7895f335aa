//! Full-text search.

use async_trait::async_trait;
use sqlx::Row as _;

use super::PostgresStore;
use crate::domain::ids::UserId;
use crate::domain::search::{Term, Terms};
use crate::store::providers::page_of;
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
}
