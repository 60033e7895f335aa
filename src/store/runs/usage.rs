//! Usage of runs by period and group: the values.

use serde::{Deserialize, Serialize};

use crate::domain::ids::{RunId, UserId};
use crate::domain::run::{UsageGroup, UsagePeriod};
use crate::store::pages::cursor_text;
use crate::support::clock::UnixMillis;

pub const DAY_MS: i64 = 86_400_000;
pub(in crate::store) const HOUR_MS: i64 = 3_600_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageFilter {
    /// The owner of the runs; `None` for all owners, which only an administrator may request.
    pub owner: Option<UserId>,
    /// Runs accepted at this time or later.
    pub since: UnixMillis,
    pub period: UsagePeriod,
    pub group: UsageGroup,
}

impl UsageFilter {
    /// Selects the usage by day and model.
    pub fn by_day_and_model(owner: Option<UserId>, since: UnixMillis) -> Self {
        Self { owner, since, period: UsagePeriod::Day, group: UsageGroup::Model }
    }

    /// Returns an id below those of all these runs. Ids begin with their time, so a range of days is a range of ids. One day is
    /// subtracted, because the clocks of processes may differ.
    pub(in crate::store) fn first_id(&self) -> String {
        let since = u64::try_from(self.since.0.saturating_sub(DAY_MS)).unwrap_or(0);
        format!("{}{since:012x}", RunId::PREFIX)
    }

    pub(in crate::store) fn period_ms(&self) -> i64 {
        match self.period {
            UsagePeriod::Day => DAY_MS,
            UsagePeriod::Hour => HOUR_MS,
        }
    }
}

cursor_text!(UsageCursor);

/// The cursor: the last row of a page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageCursor {
    /// The day or hour, counted from 1970.
    pub period: i64,
    pub owner: UserId,
    /// The name of the model or agent, or the id of the conversation. Empty for usage without one.
    pub group: String,
}
