//! Usage of runs, by owner, period and group.

use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::enum_names::named_enum;
use crate::domain::ids::{ConversationId, UserId};
use crate::domain::model::Usage;

named_enum! {
    /// The length of the periods that a report of usage sums.
    pub enum UsagePeriod {
        Day = "day",
        Hour = "hour",
    }
}

named_enum! {
    /// The groups whose usage a report sums.
    pub enum UsageGroup {
        Model = "model",
        Agent = "agent",
        Conversation = "conversation",
    }
}

/// Usage of the runs of one owner and group that were accepted in one day or hour.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct PeriodUsage {
    /// The day in UTC, such as `2026-01-31`.
    pub day: String,
    /// The hour of the day, from 0 to 23. Present if the report is by hour.
    pub hour: Option<u32>,
    /// The owner of the runs.
    pub owner_id: UserId,
    /// The model for which the runs were accepted, as `provider/name`. Usage of its fallback models is included. Present if the report
    /// is by model.
    pub model: Option<String>,
    /// The agent of the runs. Present if the report is by agent, except for titles and embeddings.
    pub agent: Option<String>,
    /// The conversation of the runs. Present if the report is by conversation, except for embeddings.
    pub conversation_id: Option<ConversationId>,
    /// Number of runs, active runs included. 0 if the group only has titles or embeddings.
    pub runs: u64,
    /// Tokens, model calls, and the cost of the calls with known prices.
    pub usage: Usage,
}
