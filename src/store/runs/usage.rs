//! Usage of runs by day: the trait and its values.

use std::fmt;
use std::str::FromStr;

use async_trait::async_trait;

use crate::domain::ids::{RunId, UserId};
use crate::domain::run::usage::DayUsage;
use crate::store::{InvalidCursor, Page, PageRequest, StoreResult};
use crate::support::clock::UnixMillis;

/// Milliseconds of a day.
pub const DAY_MS: i64 = 86_400_000;

#[async_trait]
pub trait UsageStore: Send + Sync {
    /// Returns the usage of runs by day, owner and model, the newest day first, as long as the runs are kept.
    async fn usage(&self, filter: &UsageFilter, page: &PageRequest<UsageCursor>) -> StoreResult<Page<DayUsage>>;
}

/// Which runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageFilter {
    /// Those of this owner; of all if `None`, which only an administrator asks for.
    pub owner: Option<UserId>,
    /// Runs that were accepted at this time or later.
    pub since: UnixMillis,
}

impl UsageFilter {
    /// An id that all of these runs are above: ids begin with their time, so that a range of them is a range of days. Clocks of
    /// processes may differ by a day.
    pub(in crate::store) fn first_id(&self) -> String {
        let since = u64::try_from(self.since.0.saturating_sub(DAY_MS)).unwrap_or(0);
        format!("{}{since:012x}", RunId::PREFIX)
    }
}

/// The last row of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageCursor {
    /// The day, counted from 1970.
    pub day: i64,
    /// The owner.
    pub owner: UserId,
    /// The model.
    pub model: String,
}

impl fmt::Display for UsageCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.day, self.owner, self.model)
    }
}

impl FromStr for UsageCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let (day, rest) = text.split_once(':').ok_or(InvalidCursor)?;
        let (owner, model) = rest.split_once(':').ok_or(InvalidCursor)?;
        let (day, owner) = (day.parse().map_err(|_| InvalidCursor)?, UserId::parse(owner).map_err(|_| InvalidCursor)?);
        Ok(Self { day, owner, model: model.to_owned() })
    }
}
