//! The fields of requests that continued a run after a pause, so that its later responses repeat them.
//!
//! Owns the column `continued_requests`. Must not know what a request is: here it is a JSON value of a number within a run.

use serde_json::{Map, Value};

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
    pub async fn continued_requests(&self, owner: &UserId, run: &RunId) -> StoreResult<Map<String, Value>> {
        let row = self.database().fetch_optional(CONTINUED, values![run.as_str(), owner.as_str()]).await?;
        let stored = row.map(|row| row.only::<Option<String>>()).transpose()?.flatten();
        Ok(stored.and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default())
    }

    /// Stores the requests of a run. A run has one request for each pause, so that two never store theirs at the same time.
    pub async fn store_continued_requests(&self, owner: &UserId, run: &RunId, requests: &Map<String, Value>) -> StoreResult<()> {
        let json = Value::Object(requests.clone()).to_string();
        self.database().execute(CONTINUE, values![run.as_str(), owner.as_str(), json.as_str()]).await?;
        Ok(())
    }
}
