//! The cache of the default models of users.

use std::time::Duration;

use moka::sync::Cache;

use crate::domain::ids::UserId;

/// How long another process may use a default model that has changed.
const MODEL_LIFETIME: Duration = Duration::from_secs(2);
const MAX_CACHED: u64 = 10_000;

pub(in crate::service) type DefaultModels = Cache<UserId, Option<String>>;

pub(in crate::service) fn default_models() -> DefaultModels {
    Cache::builder().max_capacity(MAX_CACHED).time_to_live(MODEL_LIFETIME).build()
}
