//! Usage of runs, for their owners and for administrators.

use crate::domain::access::principal::Principal;
use crate::domain::run::usage::{PeriodUsage, UsageGroup, UsagePeriod};
use crate::service::reports::audit::owner_of;
use crate::service::{Result, Service};
use crate::store::{DAY_MS, Page, PageRequest, UsageCursor, UsageFilter};
use crate::support::clock::UnixMillis;

pub const MAX_USAGE_DAYS: u32 = 366;

impl Service {
    /// Returns a page of the usage of the last days, including today.
    pub async fn usage(
        &self,
        principal: &Principal,
        owner: Option<&str>,
        days: u32,
        (period, group): (UsagePeriod, UsageGroup),
        page: &PageRequest<UsageCursor>,
    ) -> Result<Page<PeriodUsage>> {
        let owner = owner_of(principal, owner, "only an administrator can see the usage of others")?;
        let today = self.clock.now().0.div_euclid(DAY_MS);
        let since = UnixMillis((today - i64::from(days.clamp(1, MAX_USAGE_DAYS)) + 1) * DAY_MS);
        Ok(self.store.usage(&UsageFilter { owner, since, period, group }, page).await?)
    }
}
