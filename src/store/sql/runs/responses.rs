//! Facts about the responses of `/v1/responses`, which are numbers within a run: those that their client has deleted, and the fields
//! of the requests that continued the run after a pause, so that its later responses repeat them.
//!
//! The run of a deleted response stays, because later responses continue it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::store::sql::{statements, values};
use crate::store::{RecordStore, StoreResult};

statements! {
    DELETED = ["SELECT deleted_responses FROM runs WHERE id = $1 AND owner_id = $2"];

    DELETE = ["UPDATE runs SET deleted_responses = coalesce(deleted_responses || ',', '') || CAST($3 AS text)
         WHERE id = $1 AND owner_id = $2"];

    WHOLE_RUN = ["SELECT EXISTS (SELECT 1 FROM runs
         WHERE conversation_id = $1 AND owner_id = $2 AND id <> $3 AND deleted_responses IS NULL AND is_copy = ",
        { postgres: "false", sqlite: "0" }, ")"];

    COPIES = ["SELECT id FROM runs WHERE conversation_id = $1 AND owner_id = $2 AND is_copy = ", { postgres: "true", sqlite: "1" }];

    CONTINUED = ["SELECT continued_requests FROM runs WHERE id = $1 AND owner_id = $2"];

    CONTINUE = ["UPDATE runs SET continued_requests = $3 WHERE id = $1 AND owner_id = $2"];
}

impl dyn RecordStore + '_ {
    /// Returns the numbers of the deleted responses of a run: none if the run is missing or belongs to another owner.
    pub async fn deleted_responses(&self, owner: &UserId, run: &RunId) -> StoreResult<BTreeSet<u32>> {
        let row = self.database().fetch_optional(DELETED, values![run.as_str(), owner.as_str()]).await?;
        let Some(row) = row else { return Ok(BTreeSet::new()) };
        let numbers = row.only::<Option<&str>>()?.unwrap_or_default();
        Ok(numbers.split(',').filter_map(|number| number.parse().ok()).collect())
    }

    /// Returns whether the conversation has another run that is no copy, and of which no response was deleted.
    pub async fn has_other_whole_run(&self, owner: &UserId, (conversation, run): (&ConversationId, &RunId)) -> StoreResult<bool> {
        let values = values![conversation.as_str(), owner.as_str(), run.as_str()];
        Ok(self.database().fetch_one(WHOLE_RUN, values).await?.only()?)
    }

    /// Returns the runs that came with a copied conversation.
    pub async fn copied_runs(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<BTreeSet<RunId>> {
        let values = values![conversation.as_str(), owner.as_str()];
        let runs = self.database().read_all(COPIES, values, |row| Ok(RunId::from_stored(row.only()?))).await?;
        Ok(runs.into_iter().collect())
    }

    /// Marks a response of a run as deleted.
    pub async fn delete_response(&self, owner: &UserId, run: &RunId, number: u32) -> StoreResult<()> {
        let number = number.to_string();
        self.database().execute(DELETE, values![run.as_str(), owner.as_str(), number.as_str()]).await?;
        Ok(())
    }

    /// Returns the stored requests of a run by their numbers: none if the run is missing or belongs to another owner.
    pub async fn continued_requests(&self, owner: &UserId, run: &RunId) -> StoreResult<BTreeMap<u32, Value>> {
        let row = self.database().fetch_optional(CONTINUED, values![run.as_str(), owner.as_str()]).await?;
        let stored = row.map(|row| row.only::<Option<String>>()).transpose()?.flatten();
        Ok(stored.and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default())
    }

    /// Stores the requests of a run. The answers to its newest pause are stored before them, once, so that one request is stored at a
    /// time.
    pub async fn store_continued_requests(&self, owner: &UserId, run: &RunId, requests: &BTreeMap<u32, Value>) -> StoreResult<()> {
        let json = json!(requests).to_string();
        self.database().execute(CONTINUE, values![run.as_str(), owner.as_str(), json.as_str()]).await?;
        Ok(())
    }
}
