//! Usage of runs, by owner, day and model.

use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::ids::UserId;
use crate::domain::model::cost::Usage;

/// What the runs of an owner that were accepted on one day for one model have used.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct DayUsage {
    /// The day, in UTC, as `2026-01-31`.
    pub day: String,
    /// Whose runs.
    pub owner_id: UserId,
    /// The model that they were accepted for, as `provider/name`. Their fallbacks count here, too.
    pub model: String,
    /// How many runs, those that are not over among them; 0 where the model was only asked for titles of conversations.
    pub runs: u64,
    /// Tokens, model calls, and what those cost whose prices are known.
    pub usage: Usage,
}
