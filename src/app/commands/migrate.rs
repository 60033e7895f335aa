//! `capstan migrate`: migrates the database's schema and exits.

use std::process::ExitCode;

use crate::app::commands::output::print;
use crate::app::config::Loaded;
use crate::app::wiring::parts::{self, OpenPurpose};

pub async fn run(loaded: &Loaded, opener: OpenPurpose) -> anyhow::Result<ExitCode> {
    let store = parts::open_store(&loaded.config, opener).await?;
    store.close().await;
    print(match opener {
        OpenPurpose::Command => "the database's schema is up to date\n",
        OpenPurpose::Server(_) => "the database's schema is up to date, and the copy is accepted as the database\n",
    })
}
