//! Tool reviews: seen, accepted and changed tool definitions.
//!
//! Owns the table `tool_pins`. Must not know where definitions come from.

use std::collections::BTreeSet;

use async_trait::async_trait;

use crate::domain::ids::{ToolReviewId, UserId};
use crate::domain::tool::{ReviewedDefinition, ToolReview, ToolReviewStatus};
use crate::store::StoreResult;
use crate::store::records::tool_reviews::{
    ComparedDefinitions, ListedDefinition, MAX_REVIEWS, SHARED_OWNER, StoredDefinition, ToolReviewScope, ToolReviewStore, compare,
    servers,
};
use crate::store::rows::{decode, parse_word};
use crate::store::sql::{Backend, Row, Transaction, Value, statements, values};
use crate::support::clock::UnixMillis;
use crate::support::text::storable_json;

const TABLE: &str = "tool_pins";

/// The number of the lock that serializes writers of definitions. Two processes may see different first definitions of a tool. The
/// lock lets one process store the accepted definition; the other process then stores a changed one.
const LOCK: i64 = 0x0043_4150_5049_4e53;

/// Selects definitions (`p`, a row of `tool_pins`). Joins the newest accepted definition of the same tool to a changed one, as `b`
/// (before).
macro_rules! select_definitions {
    ($dialect:ident) => {
        "SELECT p.id, p.owner_id, p.server, p.tool, p.definition_hash, p.description, p.parameters, p.hints, p.status,
             p.seen_at, p.accepted_by, p.accepted_at, b.definition_hash AS before_hash, b.description AS before_description,
             b.parameters AS before_parameters, b.hints AS before_hints
         FROM tool_pins p LEFT JOIN tool_pins b ON p.status = 'changed' AND b.id = (
             SELECT n.id FROM tool_pins n WHERE n.owner_id = p.owner_id AND n.server = p.server AND n.tool = p.tool
                 AND n.status = 'accepted' ORDER BY coalesce(n.accepted_at, n.seen_at) DESC, n.id DESC LIMIT 1
         )"
    };
}

statements! {
    // `$1` is a JSON array of pairs of owner and server.
    OF_SERVERS = ["SELECT p.owner_id, p.server, p.tool, p.definition_hash, p.status FROM tool_pins p
         JOIN ", (elements "$1"), " ON p.owner_id = e.value ->> 0 AND p.server = e.value ->> 1"];

    DELETE_CHANGED = ["DELETE FROM tool_pins WHERE owner_id = $1 AND server = $2 AND tool = $3 AND status = 'changed'"];

    INSERT = ["INSERT INTO tool_pins (id, owner_id, server, tool, definition_hash, description, parameters, hints, status, seen_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, ", now, ") ON CONFLICT DO NOTHING"];

    LIST = [select_definitions, " WHERE p.owner_id IN ($1, $2) AND (CAST($3 AS text) IS NULL OR p.status = $3)
         ORDER BY p.seen_at DESC, p.id DESC LIMIT $4"];

    ACCEPT = ["UPDATE tool_pins SET status = 'accepted', accepted_by = $1, accepted_at = ", now, "
         WHERE id = $2 AND status = 'changed' AND (owner_id = $3 OR owner_id = '' AND $4)"];

    BY_ID = [select_definitions, " WHERE p.id = $1 AND (p.owner_id = $2 OR p.owner_id = '' AND $3)"];
}

#[async_trait]
impl<B: Backend> ToolReviewStore for B {
    async fn compare_tool_definitions(&self, listed: &[ListedDefinition]) -> StoreResult<ComparedDefinitions> {
        let owners_and_servers = serde_json::json!(servers(listed)).to_string();
        let rows = self.maintenance_database().fetch_all(OF_SERVERS, values![&owners_and_servers]).await?;
        let diff = compare(listed, &read_all(&rows)?);
        if diff.new.is_empty() {
            return Ok(ComparedDefinitions { changed: diff.changed, ..ComparedDefinitions::default() });
        }
        let store = async |tx: &mut Transaction| {
            tx.lock(SHARED_OWNER, LOCK).await?;
            let rows = tx.fetch_all(OF_SERVERS, values![&owners_and_servers]).await?;
            let diff = compare(listed, &read_all(&rows)?);
            let mut new_reviews_of = BTreeSet::new();
            for (tool, status) in diff.new {
                if status == ToolReviewStatus::Changed {
                    new_reviews_of.insert(tool.owner.clone());
                    tx.execute(DELETE_CHANGED, values![tool.owner(), &tool.server, &tool.tool]).await?;
                }
                tx.execute(INSERT, &definition(tool, status)).await?;
            }
            Ok(ComparedDefinitions { changed: diff.changed, new_reviews_of })
        };
        self.maintenance_database().transaction(store, |_| true).await
    }

    async fn tool_reviews(&self, viewer: &UserId, status: Option<ToolReviewStatus>) -> StoreResult<Vec<ToolReview>> {
        let values = values![viewer.as_str(), SHARED_OWNER, status.map(ToolReviewStatus::as_str), MAX_REVIEWS];
        self.database().read_all(LIST, values, read_definition).await
    }

    async fn accept_tool_review(&self, scope: &ToolReviewScope, id: &ToolReviewId, by: &UserId) -> StoreResult<Option<ToolReview>> {
        let (id, owner) = (id.as_str(), scope.owner.as_str());
        let accept = values![by.as_str(), id, owner, scope.includes_shared];
        let row = self.database().change(ACCEPT, accept, BY_ID, values![id, owner, scope.includes_shared]).await?;
        row.as_ref().map(read_definition).transpose()
    }
}

fn definition(tool: &ListedDefinition, status: ToolReviewStatus) -> [Value<'_>; 9] {
    [
        Value::from(tool.id.as_str()),
        tool.owner().into(),
        (&tool.server).into(),
        (&tool.tool).into(),
        (&tool.definition_hash).into(),
        (&tool.description).into(),
        storable_json(tool.parameters.clone()).into(),
        storable_json(tool.hints.clone()).into(),
        status.as_str().into(),
    ]
}

fn read_all(rows: &[Row]) -> StoreResult<Vec<StoredDefinition>> {
    let read = |row: &Row| -> StoreResult<StoredDefinition> {
        Ok(StoredDefinition {
            owner: row.get("owner_id")?,
            server: row.get("server")?,
            tool: row.get("tool")?,
            hash: row.get("definition_hash")?,
            is_accepted: parse_word(TABLE, "status", "", row.get("status")?, ToolReviewStatus::from_name)?
                == ToolReviewStatus::Accepted,
        })
    };
    rows.iter().map(read).collect()
}

fn read_definition(row: &Row) -> StoreResult<ToolReview> {
    let id: String = row.get("id")?;
    let owner: String = row.get("owner_id")?;
    let before = row.get::<Option<String>>("before_hash")?.zip(row.get::<Option<&str>>("before_parameters")?);
    let before = before.map(|(hash, parameters)| -> StoreResult<ReviewedDefinition> {
        Ok(ReviewedDefinition {
            definition_hash: hash,
            description: row.get::<Option<String>>("before_description")?.unwrap_or_default(),
            parameters: decode(TABLE, "parameters", &id, parameters)?,
            hints: decode(TABLE, "hints", &id, row.get::<Option<&str>>("before_hints")?.unwrap_or("null"))?,
        })
    });
    Ok(ToolReview {
        owner_id: (owner != SHARED_OWNER).then(|| UserId::from_stored(owner)),
        server: row.get("server")?,
        tool: row.get("tool")?,
        status: parse_word(TABLE, "status", &id, row.get("status")?, ToolReviewStatus::from_name)?,
        definition: ReviewedDefinition {
            definition_hash: row.get("definition_hash")?,
            description: row.get("description")?,
            parameters: decode(TABLE, "parameters", &id, row.get("parameters")?)?,
            hints: decode(TABLE, "hints", &id, row.get("hints")?)?,
        },
        before: before.transpose()?,
        seen_at: UnixMillis(row.get("seen_at")?).to_rfc3339(),
        accepted_by: row.get::<Option<String>>("accepted_by")?.map(UserId::from_stored),
        accepted_at: row.get::<Option<i64>>("accepted_at")?.map(|at| UnixMillis(at).to_rfc3339()),
        id: ToolReviewId::from_stored(id),
    })
}
