//! Full-text search.

use async_trait::async_trait;
use sqlx::Row as _;

use super::SqliteStore;
use crate::domain::ids::UserId;
use crate::domain::search::{Term, Terms};
use crate::store::providers::page_of;
use crate::store::rows::decode;
use crate::store::{Found, Page, PageRequest, SearchCursor, SearchStore, StoreResult};

/// Everything in quotes, so that no sign of a query means anything.
fn query_text(owner: &UserId, terms: &Terms) -> String {
    let quoted = |words: &str| format!("\"{}\"", words.replace('"', " "));
    let term = |term: &Term| {
        let (words, is_prefix) = term.words();
        format!("{}{}", quoted(&words.join(" ")), if is_prefix { " *" } else { "" })
    };
    let terms: Vec<String> = terms.iter().map(term).collect();
    format!("owner : {} AND words : ({})", quoted(owner.as_str()), terms.join(" AND "))
}

#[async_trait]
impl SearchStore for SqliteStore {
    async fn search(
        &self,
        owner: &UserId,
        terms: &Terms,
        archived: Option<bool>,
        page: &PageRequest<SearchCursor>,
    ) -> StoreResult<Page<Found>> {
        let limit = page.limit.clamp(1, 100);
        let found = sqlx::query(
            "SELECT m.id, m.body, c.title FROM message_words w JOIN message_words_of o ON o.number = w.rowid
             JOIN messages m ON m.id = o.message_id JOIN conversations c ON c.id = m.conversation_id
             WHERE message_words MATCH ?1 AND m.owner_id = ?2 AND c.owner_id = ?2 AND m.superseded_by IS NULL
               AND (?3 IS NULL OR (c.archived_at IS NOT NULL) = ?3) AND (?4 IS NULL OR m.id < ?4)
             ORDER BY m.id DESC LIMIT ?5",
        )
        .bind(query_text(owner, terms))
        .bind(owner.as_str())
        .bind(archived)
        .bind(page.after.as_ref().map(|after| after.0.as_str()))
        .bind(i64::from(limit) + 1)
        .fetch_all(self.reader())
        .await?;
        let read = |row: &sqlx::sqlite::SqliteRow| -> StoreResult<Found> {
            let (id, body): (String, String) = (row.try_get("id")?, row.try_get("body")?);
            Ok(Found { message: decode("messages", "body", &id, &body)?, title: row.try_get("title")? })
        };
        let found = found.iter().map(read).collect::<StoreResult<_>>()?;
        Ok(page_of(found, limit, |found: &Found| SearchCursor(found.message.id.clone()).to_string()))
    }
}
