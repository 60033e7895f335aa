//! The rows of conversations, for the transactions of several aggregates.
//!
//! Owns the statements that read and insert a conversation. Must not know what a use case does with it.

use crate::domain::conversation::{Conversation, ConversationStatus, LastRun};
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::domain::run::{RunStatus, WaitReason};
use crate::store::StoreResult;
use crate::store::rows::{
    decode, encode, encode_storable, parse_word, read_json, read_optional_json, read_optional_word, read_time, read_word,
};
use crate::store::sql::{Row, Transaction, statements, values};
use crate::support::clock::UnixMillis;

/// Joins the active run `r` and the newest run `n` of conversations `c`.
macro_rules! join_runs {
    (postgres) => {
        "JOIN conversation_heads h ON h.conversation_id = c.id LEFT JOIN runs r ON r.conversation_id = c.id AND r.active
         LEFT JOIN LATERAL (
             SELECT id, status, error FROM runs WHERE conversation_id = c.id ORDER BY first_seq DESC LIMIT 1
         ) n ON true"
    };
    (sqlite) => {
        "JOIN conversation_heads h ON h.conversation_id = c.id LEFT JOIN runs r ON r.conversation_id = c.id AND r.active = 1
         LEFT JOIN runs n ON n.id = (SELECT id FROM runs WHERE conversation_id = c.id ORDER BY first_seq DESC LIMIT 1)"
    };
}

/// Selects NULL in place of the texts of a conversation, which lists omit.
macro_rules! no_texts {
    ($dialect:ident) => {
        "CAST(NULL AS text) AS system_prompt, CAST(NULL AS text) AS instructions, CAST(NULL AS text) AS metadata, "
    };
}

/// Lists the columns of a conversation, except its texts.
macro_rules! columns {
    ($dialect:ident) => {
        "c.id, c.title, c.status, c.created_at, c.updated_at, c.pinned, c.archived_at, c.tags, c.forked_from, c.agent, c.model,
         h.last_seq, r.id AS active_run_id, r.reason, n.id AS last_run_id, n.status AS last_run_status, n.error AS last_run_error"
    };
}

statements! {
    BY_ID = ["SELECT c.system_prompt, c.instructions, c.metadata, ", columns, " FROM conversations c ", join_runs,
        " WHERE c.id = $1 AND c.owner_id = $2"];

    // The beginning of a list, without the texts. The parameters are the owner, and the cursor's time and id.
    LIST_BY_CREATION = ["SELECT ", no_texts, columns, " FROM conversations c ", join_runs,
        " WHERE c.owner_id = $1 AND NOT c.hidden AND (c.created_at, c.id) < ($2, $3)"];

    LIST_BY_CHANGE = ["SELECT ", no_texts, columns, " FROM conversations c ", join_runs,
        " WHERE c.owner_id = $1 AND NOT c.hidden AND (c.updated_at, c.id) < ($2, $3)"];

    // The same rows by id, of several owners.
    LIST_ITEMS = ["SELECT c.owner_id, ", no_texts, columns, " FROM conversations c ", join_runs,
        " WHERE c.owner_id ", (in_list "$1"), " AND c.id ", (in_list "$2"), " AND NOT c.hidden"];

    HAS_ALL = ["SELECT count(*) >= $2 FROM (
             SELECT 1 FROM conversations WHERE owner_id = $1 AND NOT hidden AND archived_at IS NULL LIMIT $2
         ) AS kept"];

    INSERT = ["INSERT INTO conversations
             (id, owner_id, title, status, created_at, updated_at, tags, system_prompt, instructions, forked_from, agent, model,
             metadata)
         VALUES ($1, $2, $3, $4, $5, $5, $6, $7, $8, $9, $10, $11, $12) ON CONFLICT (id) DO NOTHING"];

    INSERT_HEAD = ["INSERT INTO conversation_heads (conversation_id, owner_id) VALUES ($1, $2)"];
}

/// Reads a conversation, unless it is missing or belongs to another owner.
pub async fn find(tx: &mut Transaction, owner: &UserId, id: &ConversationId) -> StoreResult<Option<Conversation>> {
    let row = tx.fetch_optional(BY_ID, values![id.as_str(), owner.as_str()]).await?;
    row.as_ref().map(read_conversation).transpose()
}

/// Returns whether the owner has reached the limit of conversations that are not archived.
///
/// Concurrent requests may exceed the limit: there is no row to lock that all conversations of an owner share.
pub async fn has_all(tx: &mut Transaction, owner: &UserId, most: u32) -> StoreResult<bool> {
    if most == 0 {
        return Ok(false);
    }
    Ok(tx.fetch_one(HAS_ALL, values![owner.as_str(), most]).await?.only()?)
}

/// Inserts a conversation with an empty log. Returns false if its id exists.
pub async fn insert_conversation(
    tx: &mut Transaction,
    owner: &UserId,
    conversation: &Conversation,
    now: UnixMillis,
) -> StoreResult<bool> {
    let id = conversation.id.as_str();
    let metadata = Some(&conversation.metadata).filter(|metadata| !metadata.is_empty());
    let metadata = metadata.map(|metadata| encode_storable("conversations", "metadata", id, metadata)).transpose()?;
    let insert = values![
        id,
        owner.as_str(),
        &conversation.title,
        conversation.status.as_str(),
        now,
        encode_storable("conversations", "tags", id, &conversation.tags)?,
        conversation.system_prompt.as_deref(),
        conversation.instructions.as_deref(),
        conversation.forked_from.as_ref().map(|from| encode("conversations", "forked_from", id, from)).transpose()?,
        conversation.agent.as_deref(),
        conversation.model.as_deref(),
        metadata,
    ];
    let is_made = tx.execute(INSERT, insert).await? > 0;
    if is_made {
        tx.write(INSERT_HEAD, values![id, owner.as_str()]).await?;
    }
    Ok(is_made)
}

/// Reads a row of [`BY_ID`], of a list or of [`LIST_ITEMS`].
pub fn read_conversation(row: &Row) -> StoreResult<Conversation> {
    let (table, id) = ("conversations", row.get::<String>("id")?);
    let last_run = match (row.get::<Option<String>>("last_run_id")?, row.get::<Option<&str>>("last_run_status")?) {
        (Some(id), Some(status)) => Some(LastRun {
            status: parse_word("runs", "status", &id, status, RunStatus::from_name)?,
            error: row.get::<Option<&str>>("last_run_error")?.map(|text| decode("runs", "error", &id, text)).transpose()?,
            id: RunId::from_stored(id),
        }),
        (Some(_) | None, _) => None,
    };
    Ok(Conversation {
        title: row.get("title")?,
        status: read_word(row, table, "status", &id, ConversationStatus::from_name)?,
        reason: read_optional_word(row, "runs", "reason", &id, WaitReason::from_name)?,
        active_run_id: row.get::<Option<String>>("active_run_id")?.map(RunId::from_stored),
        pinned: row.get("pinned")?,
        archived_at: read_time(row, "archived_at")?,
        tags: read_json(row, table, "tags", &id)?,
        system_prompt: row.get("system_prompt")?,
        instructions: row.get("instructions")?,
        forked_from: read_optional_json(row, table, "forked_from", &id)?,
        metadata: read_optional_json(row, table, "metadata", &id)?.unwrap_or_default(),
        last_run,
        agent: row.get("agent")?,
        model: row.get("model")?,
        last_seq: row.get("last_seq")?,
        created_at: UnixMillis(row.get("created_at")?).to_rfc3339(),
        updated_at: UnixMillis(row.get("updated_at")?).to_rfc3339(),
        id: ConversationId::from_stored(id),
    })
}
