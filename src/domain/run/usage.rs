//! Usage of runs, by owner, day and model.

use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::ids::UserId;
use crate::domain::model::cost::Usage;

/// Usage of the runs of one owner that were accepted on one day for one model.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct DayUsage {
    /// The day in UTC, such as `2026-01-31`.
    pub day: String,
    /// The owner of the runs.
    pub owner_id: UserId,
    /// The model for which the runs were accepted, as `provider/name`. Usage of its fallback models is included.
    pub model: String,
    /// Number of runs, active runs included. 0 if the model only generated titles or embeddings.
    pub runs: u64,
    /// Tokens, model calls, and the cost of the calls with known prices.
    pub usage: Usage,
}
