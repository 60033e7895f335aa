//! What runs have used: the trait, and how rows become its values.

use std::fmt;
use std::str::FromStr;

use async_trait::async_trait;
use sqlx::{ColumnIndex, Decode, Row, Type};

use super::{InvalidCursor, Page, PageRequest, StoreResult};
use crate::domain::cost::Cost;
use crate::domain::ids::{RunId, UserId};
use crate::domain::model::Usage;
use crate::domain::usage::DayUsage;
use crate::support::clock::UnixMillis;

/// Milliseconds of a day.
pub const DAY_MS: i64 = 86_400_000;

/// What runs have used, as long as they are kept.
#[async_trait]
pub trait UsageStore: Send + Sync {
    /// What runs have used, by day, owner and model, the newest day first.
    async fn usage(&self, filter: &UsageFilter, page: &PageRequest<UsageCursor>) -> StoreResult<Page<DayUsage>>;
}

/// Which runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageFilter {
    /// Those of this owner; of all if `None`, which only an administrator asks for.
    pub owner: Option<UserId>,
    /// Those that were accepted since.
    pub since: UnixMillis,
}

impl UsageFilter {
    /// An id that all of these runs are above: ids begin with their time, so that a range of them is a range of days. Clocks of
    /// processes may differ by a day.
    pub(super) fn first_id(&self) -> String {
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

/// A page of rows; one more than `limit` shows that there is another.
pub(super) fn page<'r, R>(found: &'r [R], limit: u32) -> StoreResult<Page<DayUsage>>
where
    R: Row,
    &'static str: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    let limit = limit.clamp(1, 100) as usize;
    let mut items = Vec::with_capacity(found.len().min(limit));
    let mut last = None;
    for row in found.iter().take(limit) {
        let number = |name: &'static str| -> StoreResult<u64> {
            let number: Option<i64> = row.try_get(name)?;
            Ok(number.and_then(|number| u64::try_from(number).ok()).unwrap_or(0))
        };
        let day: i64 = row.try_get("day")?;
        let cost: Option<i64> = row.try_get("cost")?;
        let usage = Usage {
            input_tokens: number("input_tokens")?,
            output_tokens: number("output_tokens")?,
            cached_input_tokens: number("cached_input_tokens")?,
            reasoning_tokens: number("reasoning_tokens")?,
            model_calls: number("model_calls")?,
            abandoned_calls: u32::try_from(number("abandoned_calls")?).unwrap_or(u32::MAX),
            estimated: number("estimated")? > 0,
            cost: cost.and_then(|cost| u64::try_from(cost).ok()).map(Cost::trillionths),
            ..Usage::default()
        };
        let (owner_id, model): (String, String) = (row.try_get("owner_id")?, row.try_get("model")?);
        let owner_id = UserId::from_stored(owner_id);
        last = Some(UsageCursor { day, owner: owner_id.clone(), model: model.clone() });
        let shown = UnixMillis(day * DAY_MS).to_rfc3339().chars().take(10).collect();
        items.push(DayUsage { day: shown, owner_id, model, runs: number("runs")?, usage });
    }
    let next = last.filter(|_| found.len() > limit).map(|last| last.to_string());
    Ok(Page { items, next })
}
