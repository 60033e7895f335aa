//! `capstan cleanup`: removes expired rows, old files, conversations and deltas, and requeues runs with expired leases, as the
//! server's background tasks do.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};

use crate::app::commands::output::print;
use crate::app::config::{Loaded, days_ms};
use crate::app::process::background_tasks;
use crate::app::wiring::parts::{self, OpenPurpose};
use crate::service::{CleanupCounts, CompactionMode, CompactionStep, DeltaCompactor, IdleAges, IdleCleanup};
use crate::store::{ExpiredRowCounts, QueueStore, RecordStore, Store};

/// Removes expired rows and compacts old deltas, or only prints what it would do.
pub async fn run(loaded: &Loaded, mode: CompactionMode) -> anyhow::Result<ExitCode> {
    let store = parts::open_store(&loaded.config, OpenPurpose::Command).await?;
    let retention = &loaded.config.retention;
    print(&remove_expired(store.as_ref(), days_ms(retention.audit_days), mode).await?)?;
    print(&requeue_expired_runs(store.as_ref(), mode).await?)?;
    print(&remove_files(store.records(), days_ms(retention.unused_files_days), mode).await?)?;
    print(&apply_retention(&store, retention.idle_ages(), mode).await?)?;
    let Some(age_ms) = days_ms(retention.deltas_days) else {
        store.close().await;
        return print("no deltas are compacted: retention.deltas_days is 0\n");
    };
    let mut compactor = DeltaCompactor::new(store.clone(), age_ms, mode);
    let bar = bar();
    if !bar.is_hidden() {
        bar.set_length(compactor.runs_left().await.context("runs with old deltas cannot be counted")?);
    }
    let last = loop {
        let step = compactor
            .step()
            .await
            .context("old deltas cannot be compacted; completed work stays, and the command can be repeated")?;
        if step != CompactionStep::Compacted {
            break step;
        }
        bar.set_position(compactor.runs);
        bar.set_message(format!("runs compacted, {} events removed", compactor.events));
    };
    bar.finish_and_clear();
    store.close().await;
    let (runs, events, days) = (compactor.runs, compactor.events, retention.deltas_days);
    let title = match mode {
        CompactionMode::Write => {
            format!("runs older than {days} days that were compacted: {runs}; events merged into others: {events}\n")
        }
        CompactionMode::Count => {
            format!("runs older than {days} days to compact: {runs}; events to merge into others: {events}\n")
        }
    };
    let rest =
        if last == CompactionStep::LockedElsewhere { "another process is compacting deltas and will do the rest\n" } else { "" };
    print(&format!("{title}{rest}"))
}

async fn remove_expired(store: &dyn Store, audit_ms: Option<u64>, mode: CompactionMode) -> anyhow::Result<String> {
    let (title, counts) = match mode {
        CompactionMode::Count => {
            let counted = background_tasks::count_expired(store, audit_ms).await.context("expired rows cannot be counted")?;
            let ExpiredRowCounts { tickets, records, audit, spending, tool_sets, limitations } = counted;
            ("to remove", [tickets, records, audit, spending, tool_sets, limitations])
        }
        CompactionMode::Write => {
            let mut counts = [0; 6];
            for (count, (title, removed)) in counts.iter_mut().zip(background_tasks::remove_expired(store, audit_ms).await) {
                *count = removed.with_context(|| format!("{title} cannot be removed"))?;
            }
            ("removed", counts)
        }
    };
    let [tickets, records, audit, spending, tool_sets, limitations] = counts;
    Ok(format!(
        "expired rows {title}: {tickets} tickets, sessions and shares, {records} idempotency records, {audit} audit records, {spending} spending \
         rows, {tool_sets} tool sets, {limitations} limitations of models\n"
    ))
}

/// Puts runs with an expired lease back into the queue, or only counts them. Many at once look like an outage of the database,
/// after which their workers may still be alive. Then the servers decide, because they know how long they had no connection.
async fn requeue_expired_runs(store: &dyn QueueStore, mode: CompactionMode) -> anyhow::Result<String> {
    const AT_A_TIME: u32 = 50;
    let most = if mode == CompactionMode::Write { AT_A_TIME } else { 0 };
    let mut requeued = 0;
    let last = loop {
        let sweep = store.sweep_expired_leases(most, false).await.context("expired leases cannot be read")?;
        requeued += sweep.requeued.len();
        if sweep.requeued.is_empty() {
            break sweep;
        }
    };
    Ok(match mode {
        CompactionMode::Count => format!("runs with an expired lease to put back into the queue: {}\n", last.expired),
        CompactionMode::Write if last.outage_suspected => {
            format!(
                "runs with an expired lease put back into the queue: {requeued}; {} are left to the servers because of a possible outage\n",
                last.expired
            )
        }
        CompactionMode::Write => format!("runs with an expired lease put back into the queue: {requeued}\n"),
    })
}

async fn remove_files(store: &dyn RecordStore, age_ms: Option<u64>, mode: CompactionMode) -> anyhow::Result<String> {
    Ok(match (mode, age_ms) {
        (CompactionMode::Write, _) => {
            let removed = background_tasks::remove_unused_files(store, age_ms).await.context("unused files cannot be removed")?;
            format!("unused files removed: {removed}\n")
        }
        (CompactionMode::Count, Some(age_ms)) => {
            let count = store.count_unused_files(age_ms).await.context("unused files cannot be counted")?;
            format!("unused files to remove: {count}\n")
        }
        (CompactionMode::Count, None) => "unused files are kept: retention.unused_files_days is 0\n".to_owned(),
    })
}

async fn apply_retention(store: &Arc<dyn Store>, ages: IdleAges, mode: CompactionMode) -> anyhow::Result<String> {
    const CANNOT: &str = "old conversations cannot be archived or deleted; completed work stays, and the command can be repeated";
    let bar = bar();
    if mode == CompactionMode::Write && !bar.is_hidden() {
        let mut counting = IdleCleanup::new(store.clone(), None, ages, CompactionMode::Count);
        while counting.step().await.context("old conversations cannot be counted")? {}
        let CleanupCounts { archived, deleted } = counting.counts;
        bar.set_length(archived + deleted);
    }
    let mut cleanup = IdleCleanup::new(store.clone(), None, ages, mode);
    while cleanup.step().await.context(CANNOT)? {
        let CleanupCounts { archived, deleted } = cleanup.counts;
        bar.set_position(archived + deleted);
        bar.set_message(format!("conversations: {archived} archived, {deleted} deleted"));
    }
    bar.finish_and_clear();
    let CleanupCounts { archived, deleted } = cleanup.counts;
    Ok(match mode {
        CompactionMode::Write => format!("conversations archived: {archived}; deleted: {deleted}\n"),
        CompactionMode::Count => format!("conversations to archive: {archived}; to delete: {deleted}\n"),
    })
}

/// Returns a progress bar, which is hidden without a terminal. The total is only counted if the bar is visible.
fn bar() -> ProgressBar {
    let bar = ProgressBar::no_length();
    match ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use indicatif::ProgressDrawTarget;

    use super::bar;

    #[test]
    fn a_bar_knows_its_end_when_it_was_counted() {
        let bar = bar();
        bar.set_draw_target(ProgressDrawTarget::hidden());
        assert_eq!((bar.is_hidden(), bar.length()), (true, None));
        bar.set_length(3);
        bar.set_position(2);
        assert_eq!((bar.position(), bar.length()), (2, Some(3)));
    }
}
