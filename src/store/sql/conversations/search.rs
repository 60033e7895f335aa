//! Full-text search.
//!
//! Owns the statements that read the search index. Must not know how messages get into the index: triggers write it.

use crate::domain::conversation::{Term, Terms};
use crate::domain::ids::UserId;
use crate::store::pages::page_of;
use crate::store::rows::decode;
use crate::store::sql::{Database, Row, statements, values};
use crate::store::{IdCursor, Page, PageRequest, RecordStore, SearchCursor, SearchHit, StoreResult};

statements! {
    // A query in which the database finds no word matches nothing.
    SEARCH = [{
        postgres: "WITH wanted AS (SELECT to_tsquery('simple', lowercase($2)) AS words)
             SELECT m.id, m.body, c.title FROM wanted, message_words w JOIN messages m ON m.id = w.message_id
             JOIN conversations c ON c.id = m.conversation_id
             WHERE numnode(wanted.words) > 0
               AND w.words @@ (wanted.words && ('''' || replace(owner_word($1), '''', '''''') || '''')::tsquery)
               AND w.owner_id = $1 AND c.owner_id = $1",
        sqlite: "SELECT m.id, m.body, c.title FROM message_words w JOIN message_words_of o ON o.number = w.rowid
             JOIN messages m ON m.id = o.message_id JOIN conversations c ON c.id = m.conversation_id
             WHERE message_words MATCH $2 AND m.owner_id = $1 AND c.owner_id = $1"
    }, " AND m.superseded_by IS NULL AND NOT c.hidden
           AND (CAST($3 AS boolean) IS NULL OR (c.archived_at IS NOT NULL) = $3) AND (CAST($4 AS text) IS NULL OR m.id < $4)
         ORDER BY m.id DESC LIMIT $5"];
}

/// The search index of messages, always of one owner. Database triggers update it when messages are stored.
impl dyn RecordStore + '_ {
    /// Returns a page of messages that contain all terms, newest first. Omits superseded and internal messages. `archived` selects
    /// archived conversations, or all others; `None` selects both.
    pub async fn search(
        &self,
        owner: &UserId,
        terms: &Terms,
        archived: Option<bool>,
        page: &PageRequest<SearchCursor>,
    ) -> StoreResult<Page<SearchHit>> {
        let limit = page.limit.clamp(1, 100);
        let query = match self.database() {
            Database::Postgres(_) => postgres_query(terms),
            Database::Sqlite(_) => sqlite_query(owner, terms),
        };
        let after = page.after.as_ref().map(|after| after.0.as_str());
        let found = self.database().read_all(SEARCH, values![owner.as_str(), query, archived, after, limit + 1], read).await?;
        Ok(page_of(found, limit, |found| IdCursor(&found.message.id).to_string()))
    }
}

/// Formats the query for Postgres with every term in quotes, so that no character acts as an operator.
fn postgres_query(terms: &Terms) -> String {
    let term = |term: &Term| {
        let (words, is_prefix) = term.words();
        let quoted: Vec<String> = words.iter().map(|word| format!("'{}'", word.replace(['\'', '\\'], " "))).collect();
        let end = if is_prefix { ":*" } else { "" };
        format!("{}{end}", quoted.join(" <-> "))
    };
    terms.iter().map(term).collect::<Vec<_>>().join(" & ")
}

/// Formats the query for SQLite with every term in quotes.
fn sqlite_query(owner: &UserId, terms: &Terms) -> String {
    let quoted = |words: &str| format!("\"{}\"", words.replace('"', " "));
    let term = |term: &Term| {
        let (words, is_prefix) = term.words();
        format!("{}{}", quoted(&words.join(" ")), if is_prefix { " *" } else { "" })
    };
    let terms: Vec<String> = terms.iter().map(term).collect();
    format!("owner : {} AND words : ({})", quoted(owner.as_str()), terms.join(" AND "))
}

fn read(row: &Row) -> StoreResult<SearchHit> {
    let id: &str = row.get("id")?;
    Ok(SearchHit { message: decode("messages", "body", id, row.get("body")?)?, title: row.get("title")? })
}
