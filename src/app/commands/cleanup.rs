//! `capstan cleanup`: does all that the server's background tasks do about old rows and stuck runs.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};

use crate::app::commands::output::print;
use crate::app::config::{Loaded, days_ms};
use crate::app::process::upkeep;
use crate::app::wiring::parts::{self, Opener};
use crate::service::{FoldMode, FoldStep, Folder, Tidied, Tidier, TidyAges};
use crate::store::{Expired, FileStore, QueueStore, Store};

/// Removes expired rows and compacts old deltas, or only says what it would do.
pub async fn run(loaded: &Loaded, mode: FoldMode) -> anyhow::Result<ExitCode> {
    let store = parts::open_store(&loaded.config, Opener::Command).await?;
    let retention = &loaded.config.retention;
    print(&remove_expired(store.as_ref(), days_ms(retention.audit_days), mode).await?)?;
    print(&take_over(store.as_ref(), mode).await?)?;
    print(&remove_files(store.records(), days_ms(retention.unused_files_days), mode).await?)?;
    print(&tidy(&store, retention.tidy_ages(), mode).await?)?;
    let Some(age_ms) = days_ms(retention.deltas_days) else {
        store.close().await;
        return print("no deltas are compacted: retention.deltas_days is 0\n");
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
        bar.set_position(folder.runs);
        bar.set_message(format!("runs folded, {} events", folder.events));
    };
    bar.finish_and_clear();
    store.close().await;
    let (runs, events, days) = (folder.runs, folder.events, retention.deltas_days);
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

/// Removes expired rows, or only counts them.
async fn remove_expired(store: &dyn Store, audit_ms: Option<u64>, mode: FoldMode) -> anyhow::Result<String> {
    let (what, gone) = match mode {
        FoldMode::Count => {
            let counted = upkeep::count_expired(store, audit_ms).await.context("expired rows cannot be counted")?;
            let Expired { tickets, records, audit, spending, tool_sets } = counted;
            ("to remove", [tickets, records, audit, spending, tool_sets])
        }
        FoldMode::Fold => {
            let mut gone = [0; 5];
            for (count, (what, removed)) in gone.iter_mut().zip(upkeep::remove_expired(store, audit_ms).await) {
                *count = removed.with_context(|| format!("{what} cannot be removed"))?;
            }
            ("removed", gone)
        }
    };
    let [tickets, records, audit, spending, tool_sets] = gone;
    Ok(format!(
        "expired rows {what}: {tickets} tickets, {records} idempotency records, {audit} of the audit, {spending} of budgets, \
         {tool_sets} sets of tools\n"
    ))
}

/// Puts runs with an expired lease back into the queue, or only counts them. Many at once look like an outage of the database, after
/// which their workers may still be alive. The servers decide that: they know how long they had no connection.
async fn take_over(store: &dyn QueueStore, mode: FoldMode) -> anyhow::Result<String> {
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
    Ok(match mode {
        FoldMode::Count => format!("runs without a worker to put back into the queue: {}\n", last.expired),
        FoldMode::Fold if last.outage_suspected => {
            format!(
                "runs without a worker put back into the queue: {taken}; {} are left to the servers, it may be an outage\n",
                last.expired
            )
        }
        FoldMode::Fold => format!("runs without a worker put back into the queue: {taken}\n"),
    })
}

/// Removes files that no message has, or only counts them.
async fn remove_files(store: &dyn FileStore, age_ms: Option<u64>, mode: FoldMode) -> anyhow::Result<String> {
    Ok(match (mode, age_ms) {
        (FoldMode::Fold, _) => {
            let removed = upkeep::remove_unused_files(store, age_ms).await.context("unused files cannot be removed")?;
            format!("files without a message removed: {removed}\n")
        }
        (FoldMode::Count, Some(age_ms)) => {
            let count = store.count_unused_files(age_ms).await.context("unused files cannot be counted")?;
            format!("files without a message to remove: {count}\n")
        }
        (FoldMode::Count, None) => "files without a message or a result are kept: retention.unused_files_days is 0\n".to_owned(),
    })
}

/// Archives and deletes old conversations, or only counts them.
async fn tidy(store: &Arc<dyn Store>, ages: TidyAges, mode: FoldMode) -> anyhow::Result<String> {
    const CANNOT: &str = "old conversations cannot be tidied; what was done stays, and the command may be repeated";
    let bar = bar();
    if mode == FoldMode::Fold && !bar.is_hidden() {
        let mut counting = Tidier::new(store.clone(), None, ages, FoldMode::Count);
        while counting.step().await.context("old conversations cannot be counted")? {}
        let Tidied { archived, deleted } = counting.tidied;
        bar.set_length(archived + deleted);
    }
    let mut tidier = Tidier::new(store.clone(), None, ages, mode);
    while tidier.step().await.context(CANNOT)? {
        let Tidied { archived, deleted } = tidier.tidied;
        bar.set_position(archived + deleted);
        bar.set_message(format!("conversations: {archived} archived, {deleted} deleted"));
    }
    bar.finish_and_clear();
    let Tidied { archived, deleted } = tidier.tidied;
    Ok(match mode {
        FoldMode::Fold => format!("conversations archived: {archived}; deleted: {deleted}\n"),
        FoldMode::Count => format!("conversations to archive: {archived}; to delete: {deleted}\n"),
    })
}

/// Returns a progress bar, which is hidden without a terminal. The total is worth counting only if the bar is shown.
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
