//! Feedback on answers. It is stored in the row of the message, so that both are deleted together, but not in the body, so that no
//! model reads it.
//!
//! Owns the columns for feedback in `messages`. Must not know what feedback is used for.

use crate::domain::conversation::{Feedback, FeedbackRecord, Rating, Review, Role};
use crate::domain::ids::{ConversationId, MessageId, RunId, UserId};
use crate::store::conversations::feedback::{FeedbackFilter, FeedbackOutcome, GiveFeedback};
use crate::store::conversations::messages::has_visible_role;
use crate::store::pages::page_by_time;
use crate::store::rows::{parse_word, unsigned_count};
use crate::store::sql::{Row, Transaction, if_fresh, refuse, statements, values};
use crate::store::{FeedbackCursor, IdempotencyKey, IdempotentResult, Page, PageRequest, RecordStore, StoreResult};
use crate::support::clock::UnixMillis;

/// Selects feedback of messages `m`. A deletion removes the runs of a conversation first, and so its feedback disappears with the
/// first step.
macro_rules! select_feedback {
    ($dialect:ident) => {
        "SELECT m.id, m.conversation_id, m.run_id, m.owner_id, m.rating, m.comment, m.rated_at, m.reviewed_at, m.reviewed_by, r.agent,
             r.agent_version, r.model
         FROM messages m JOIN runs r ON r.id = m.run_id WHERE m.rated_at IS NOT NULL"
    };
}

macro_rules! page_filter {
    ($dialect:ident) => {
        " AND (m.rated_at, m.id) < ($1, $2) AND (CAST($3 AS text) IS NULL OR m.rating = $3)
          AND (CAST($4 AS boolean) IS NULL OR (m.reviewed_at IS NOT NULL) = $4)"
    };
}

statements! {
    // A request with the same key waits here for the first one. A conversation that is being deleted has no owner, although its
    // messages still do.
    BODY = ["SELECT m.body FROM messages m JOIN conversations c ON c.id = m.conversation_id
         WHERE m.id = $1 AND m.conversation_id = $2 AND c.owner_id = $3 AND m.superseded_by IS NULL",
        { postgres: " FOR NO KEY UPDATE OF m", sqlite: "" }];

    GIVE = ["UPDATE messages SET rating = $1, comment = $2, rated_at = $3, reviewed_at = NULL, reviewed_by = NULL WHERE id = $4"];

    WITHDRAW = ["UPDATE messages SET rating = NULL, comment = NULL, rated_at = NULL, reviewed_at = NULL, reviewed_by = NULL
         WHERE id = $1 AND conversation_id = $2 AND rated_at IS NOT NULL
             AND EXISTS (SELECT 1 FROM conversations c WHERE c.id = $2 AND c.owner_id = $3)"];

    REVIEW = ["UPDATE messages SET reviewed_at = $2, reviewed_by = $3 WHERE id = $1 AND rated_at IS NOT NULL"];

    BY_MESSAGE = [select_feedback, " AND m.id = $1"];

    PAGE = [select_feedback, page_filter, " ORDER BY m.rated_at DESC, m.id DESC LIMIT $5"];

    PAGE_OF_OWNER = [select_feedback, page_filter, " AND m.owner_id = $6 ORDER BY m.rated_at DESC, m.id DESC LIMIT $5"];
}

impl dyn RecordStore + '_ {
    /// Stores feedback on an answer. It replaces earlier feedback.
    pub async fn give_feedback(&self, give: GiveFeedback, key: Option<IdempotencyKey>) -> IdempotentResult<FeedbackOutcome> {
        let (database, key) = (self.database(), key.as_ref());
        let is_stored = |given: &FeedbackOutcome| matches!(given, FeedbackOutcome::Kept(_));
        database.once(key, || database.transaction(async |tx| insert_feedback(tx, &give, key).await, if_fresh(is_stored))).await
    }

    /// Deletes feedback. Returns false if there is none.
    pub async fn withdraw_feedback(&self, owner: &UserId, conversation: &ConversationId, message: &MessageId) -> StoreResult<bool> {
        let values = values![message.as_str(), conversation.as_str(), owner.as_str()];
        Ok(self.database().execute(WITHDRAW, values).await? > 0)
    }

    /// Marks feedback as reviewed, or as not reviewed. `None` if the message has no feedback.
    pub async fn review_feedback(
        &self,
        message: &MessageId,
        by: Option<&UserId>,
        now: UnixMillis,
    ) -> StoreResult<Option<FeedbackRecord>> {
        let values = values![message.as_str(), by.map(|_| now.0), by.map(UserId::as_str)];
        let row = self.database().change(REVIEW, values, BY_MESSAGE, values![message.as_str()]).await?;
        Ok(row.as_ref().map(read_feedback).transpose()?.map(|(_, record)| record))
    }

    /// Returns a page of feedback, newest feedback first. It includes feedback on messages that a rewind removed.
    pub async fn feedback(&self, filter: &FeedbackFilter, page: &PageRequest<FeedbackCursor>) -> StoreResult<Page<FeedbackRecord>> {
        let limit = page.limit.clamp(1, 100);
        let (at, id) = page.after.as_ref().map_or((i64::MAX, "~"), |after| (after.at, after.id.as_str()));
        let rating = filter.rating.map(Rating::as_str);
        let records = match &filter.owner {
            None => self.database().read_all(PAGE, values![at, id, rating, filter.reviewed, limit + 1], read_feedback).await?,
            Some(owner) => {
                let values = values![at, id, rating, filter.reviewed, limit + 1, owner.as_str()];
                self.database().read_all(PAGE_OF_OWNER, values, read_feedback).await?
            }
        };
        Ok(page_by_time(records, limit, |record| &record.message_id))
    }
}

async fn insert_feedback(
    tx: &mut Transaction,
    give: &GiveFeedback,
    key: Option<&IdempotencyKey>,
) -> IdempotentResult<FeedbackOutcome> {
    let message = give.message_id.as_str();
    let row = tx.fetch_optional(BODY, values![message, give.conversation_id.as_str(), give.owner.as_str()]).await?;
    if let Some(recorded) = tx.recorded(key).await? {
        return Ok(recorded);
    }
    let Some(row) = row else { return refuse(FeedbackOutcome::NoMessage) };
    if !has_visible_role(Role::Assistant, &give.message_id, row.only()?)? {
        return refuse(FeedbackOutcome::NotAnAnswer);
    }
    tx.execute(GIVE, values![give.rating.as_str(), give.comment.as_deref(), give.now, message]).await?;
    let feedback = Feedback { rating: give.rating, comment: give.comment.clone(), at: give.now.to_rfc3339() };
    tx.record(key, FeedbackOutcome::Kept(feedback)).await
}

/// Reads feedback with the time that orders pages.
fn read_feedback(row: &Row) -> StoreResult<(i64, FeedbackRecord)> {
    let (id, at): (String, i64) = (row.get("id")?, row.get("rated_at")?);
    let review = match (row.get::<Option<i64>>("reviewed_at")?, row.get::<Option<String>>("reviewed_by")?) {
        (Some(at), Some(by)) => Some(Review { by: UserId::from_stored(by), at: UnixMillis(at).to_rfc3339() }),
        (None, _) | (_, None) => None,
    };
    let record = FeedbackRecord {
        conversation_id: ConversationId::from_stored(row.get("conversation_id")?),
        run_id: RunId::from_stored(row.get("run_id")?),
        owner_id: UserId::from_stored(row.get("owner_id")?),
        agent: row.get("agent")?,
        agent_version: unsigned_count(row.get("agent_version")?),
        model: row.get("model")?,
        rating: parse_word("messages", "rating", &id, row.get("rating")?, Rating::from_name)?,
        comment: row.get("comment")?,
        at: UnixMillis(at).to_rfc3339(),
        review,
        message_id: MessageId::from_stored(id),
    };
    Ok((at, record))
}
