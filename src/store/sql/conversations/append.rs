//! Appends existing messages to a conversation.
//!
//! Owns the statement that changes the conversation. Must not know how the rows of the messages are written.

use crate::store::conversations::append::{AppendMessages, AppendOutcome};
use crate::store::conversations::fork::write_turns;
use crate::store::runs::created_rows;
use crate::store::sql::conversations::conversation_rows::find;
use crate::store::sql::conversations::fork::insert_turns;
use crate::store::sql::runs::accept::count_files;
use crate::store::sql::runs::run_rows::unfinished_run;
use crate::store::sql::{Transaction, refuse, statements, values};
use crate::store::{IdempotencyKey, IdempotentResult};

statements! {
    EXTEND = ["UPDATE conversations SET status = $2, updated_at = $3, system_prompt = coalesce($4, system_prompt) WHERE id = $1"];
}

/// Appends messages within a transaction. The caller rolls the transaction back unless they were stored.
pub async fn append_in(
    tx: &mut Transaction,
    append: &AppendMessages,
    key: Option<&IdempotencyKey>,
) -> IdempotentResult<AppendOutcome> {
    let AppendMessages { owner, conversation_id: id, now, .. } = append;
    // A request with the same key waits here for the first one.
    let head = tx.lock_head(owner, id).await?;
    if let Some(recorded) = tx.recorded(key).await? {
        return Ok(recorded);
    }
    let Some((base, found)) = head.zip(find(tx, owner, id).await?) else { return refuse(AppendOutcome::NoConversation) };
    if let Some(run_id) = unfinished_run(tx, id).await? {
        return refuse(AppendOutcome::Active { run_id });
    }
    let prompt = append.prompt_after(found.system_prompt.as_deref());
    if let Some(chars) = prompt.as_ref().map(|text| text.chars().count()).filter(|chars| *chars > append.max_prompt_chars) {
        return refuse(AppendOutcome::LongPrompt { chars });
    }
    let mut written = write_turns(id, base, append.turns.clone(), append.ids.as_ref(), *now)?;
    let status = written.status().unwrap_or(found.status);
    written.events.push(created_rows::conversation_updated(&found.title, status, *now));
    tx.execute(EXTEND, values![id.as_str(), status.as_str(), *now, prompt]).await?;
    insert_turns(tx, owner, id, &written, *now).await?;
    if append.has_files() {
        let files = count_files(tx, id).await?;
        if files > append.max_files {
            return refuse(AppendOutcome::TooManyFiles { files });
        }
    }
    let events = tx.append(id, base, written.events).await?;
    let messages = written.runs.into_iter().flat_map(|run| run.turn.messages).map(|(_, message)| message).collect();
    tx.record(key, AppendOutcome::Appended { messages, events }).await
}
