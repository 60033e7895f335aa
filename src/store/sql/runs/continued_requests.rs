//! The fields of requests that continued a run after a pause, so that its later responses repeat them.
//!
//! Owns the column `continued_requests`. Must not know what a request is: here it is a JSON value of a number within a run.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::domain::ids::{RunId, UserId};
use crate::store::sql::statement::statements;
use crate::store::sql::value::values;
use crate::store::{RecordStore, StoreResult};

statements! {
    CONTINUED = ["SELECT continued_requests FROM runs WHERE id = $1 AND owner_id = $2"];

    CONTINUE = ["UPDATE runs SET continued_requests = $3 WHERE id = $1 AND owner_id = $2"];
}

impl dyn RecordStore + '_ {
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
