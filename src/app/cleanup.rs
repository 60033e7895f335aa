//! `capstan cleanup`: what the server does about old rows and stuck runs by and by, now and to the end.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};

use super::config::Loaded;
use super::output::print;
use super::parts::{self, Opener};
use super::upkeep;
use crate::service::{FoldMode, FoldStep, Folder, Tidied, Tidier, TidyAges};
use crate::store::{Expired, FileStore, QueueStore, Store};

/// Removes what has expired and folds what is old; or only says what it would do.
pub async fn run(loaded: &Loaded, mode: FoldMode) -> anyhow::Result<ExitCode> {
    let store = parts::open_store(&loaded.config, Opener::Command).await?;
    remove_expired(store.as_ref(), loaded.config.retention.audit_ms(), mode).await?;
    take_over(store.as_ref(), mode).await?;
    remove_files(store.records(), loaded.config.retention.unused_files_ms(), mode).await?;
    tidy(&store, loaded.config.retention.tidy_ages(), mode).await?;
    let Some(age_ms) = loaded.config.retention.deltas_ms() else {
        store.close().await;
        return print("nothing is folded: retention.deltas_days is 0\n");
    };
    let mut folder = Folder::new(store.clone(), age_ms, mode);
    let bar = bar();
    if !bar.is_hidden() {
        bar.set_length(folder.left().await.context("runs to fold cannot be counted")?);
    }
    let last = loop {
        let step =
            folder.step().await.context("old deltas cannot be folded; what was done stays, and the command may be repeated")?;
        if step != FoldStep::Went {
            break step;
        }
        bar.set_position(folder.runs());
        bar.set_message(format!("runs folded, {} events", folder.events()));
    };
    bar.finish_and_clear();
    store.close().await;
    let (runs, events, days) = (folder.runs(), folder.events(), loaded.config.retention.deltas_days);
    let what = match mode {
        FoldMode::Fold => {
            format!("runs older than {days} days that were folded: {runs}; events that are part of others now: {events}\n")
        }
        FoldMode::Count => {
            format!("runs older than {days} days to fold: {runs}; events that would become part of others: {events}\n")
        }
    };
    let rest = if last == FoldStep::Taken { "another process is folding at this moment and does the rest\n" } else { "" };
    print(&format!("{what}{rest}"))
}

/// Removes rows that have expired; or only says how many there are.
async fn remove_expired(store: &dyn Store, audit_ms: Option<u64>, mode: FoldMode) -> anyhow::Result<()> {
    let (what, gone) = match mode {
        FoldMode::Count => {
            let counted = upkeep::count_expired(store, audit_ms).await.context("expired rows cannot be counted")?;
            ("to remove", counted)
        }
        FoldMode::Fold => {
            let (tickets, records) = upkeep::remove_expired(store).await;
            let tickets = tickets.context("expired tickets cannot be removed")?;
            let records = records.context("old idempotency records cannot be removed")?;
            let audit =
                upkeep::remove_old_audit(store.records(), audit_ms).await.context("old rows of the audit cannot be removed")?;
            let spending = upkeep::remove_old_spending(store).await;
            let spending = spending.context("what budgets of days gone by have counted cannot be removed")?;
            let tool_sets = upkeep::remove_unused_tool_sets(store.records()).await;
            let tool_sets = tool_sets.context("sets of tools that no run names cannot be removed")?;
            ("removed", Expired { tickets, records, audit, spending, tool_sets })
        }
    };
    let Expired { tickets, records, audit, spending, tool_sets } = gone;
    print(&format!(
        "expired rows {what}: {tickets} tickets, {records} idempotency records, {audit} of the audit, {spending} of budgets, \
         {tool_sets} sets of tools\n"
    ))
    .map(|_| ())
}

/// Puts runs back into the queue whose worker is gone; or only says how many there are. Most of them at once look like an outage of
/// the database, after which their workers may yet be alive: that is left to the servers, who know how long they were in touch.
async fn take_over(store: &dyn QueueStore, mode: FoldMode) -> anyhow::Result<()> {
    const AT_A_TIME: u32 = 50;
    let most = if mode == FoldMode::Fold { AT_A_TIME } else { 0 };
    let mut taken = 0;
    let last = loop {
        let sweep = store.sweep(most, false).await.context("runs whose worker is gone cannot be looked for")?;
        taken += sweep.taken.len();
        if sweep.taken.is_empty() {
            break sweep;
        }
    };
    let line = match mode {
        FoldMode::Count => format!("runs without a worker to put back into the queue: {}\n", last.expired),
        FoldMode::Fold if last.outage_suspected => {
            format!(
                "runs without a worker put back into the queue: {taken}; {} are left to the servers, it may be an outage\n",
                last.expired
            )
        }
        FoldMode::Fold => format!("runs without a worker put back into the queue: {taken}\n"),
    };
    print(&line).map(|_| ())
}

/// Removes files that no message has; or only says how many there are.
async fn remove_files(store: &dyn FileStore, age_ms: Option<u64>, mode: FoldMode) -> anyhow::Result<()> {
    let line = match (mode, age_ms) {
        (FoldMode::Fold, _) => {
            let removed = upkeep::remove_unused_files(store, age_ms).await.context("unused files cannot be removed")?;
            format!("files without a message removed: {removed}\n")
        }
        (FoldMode::Count, Some(age_ms)) => {
            let count = store.count_unused_files(age_ms).await.context("unused files cannot be counted")?;
            format!("files without a message to remove: {count}\n")
        }
        (FoldMode::Count, None) => "files without a message or a result are kept: retention.unused_files_days is 0\n".to_owned(),
    };
    print(&line).map(|_| ())
}

/// Puts old conversations away and deletes those that were put away long ago; or only says how many there are.
async fn tidy(store: &Arc<dyn Store>, ages: TidyAges, mode: FoldMode) -> anyhow::Result<()> {
    const CANNOT: &str = "old conversations cannot be tidied; what was done stays, and the command may be repeated";
    let bar = bar();
    if mode == FoldMode::Fold && !bar.is_hidden() {
        let mut counting = Tidier::new(store.clone(), None, ages, FoldMode::Count);
        while counting.step().await.context("old conversations cannot be counted")? {}
        let Tidied { archived, deleted } = counting.tidied();
        bar.set_length(archived + deleted);
    }
    let mut tidier = Tidier::new(store.clone(), None, ages, mode);
    while tidier.step().await.context(CANNOT)? {
        let Tidied { archived, deleted } = tidier.tidied();
        bar.set_position(archived + deleted);
        bar.set_message(format!("conversations: {archived} archived, {deleted} deleted"));
    }
    bar.finish_and_clear();
    let Tidied { archived, deleted } = tidier.tidied();
    let line = match mode {
        FoldMode::Fold => format!("conversations archived: {archived}; deleted: {deleted}\n"),
        FoldMode::Count => format!("conversations to archive: {archived}; to delete: {deleted}\n"),
    };
    print(&line).map(|_| ())
}

/// Says how far it is, on a terminal and nowhere else. How much there is to do is worth counting only where somebody sees it, since
/// what is done does not depend on it.
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
