//! Usage of runs by day: the values.

use serde::{Deserialize, Serialize};

use crate::domain::ids::{RunId, UserId};
use crate::store::pages::cursor_text;
use crate::support::clock::UnixMillis;

pub const DAY_MS: i64 = 86_400_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageFilter {
    /// The owner of the runs; `None` for all owners, which only an administrator may request.
    pub owner: Option<UserId>,
    /// Runs accepted at this time or later.
    pub since: UnixMillis,
}

impl UsageFilter {
    /// Returns an id below those of all these runs. Ids begin with their time, so a range of days is a range of ids. One day is
    /// subtracted, because the clocks of processes may differ.
    pub(in crate::store) fn first_id(&self) -> String {
        let since = u64::try_from(self.since.0.saturating_sub(DAY_MS)).unwrap_or(0);
        format!("{}{since:012x}", RunId::PREFIX)
    }
}

cursor_text!(UsageCursor);

/// The cursor: the last row of a page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageCursor {
    /// The day, counted from 1970.
    pub day: i64,
    pub owner: UserId,
    pub model: String,
}
