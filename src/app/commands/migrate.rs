//! `capstan migrate`: brings the database's schema up to date and ends.

use std::process::ExitCode;

use crate::app::commands::output::print;
use crate::app::config::Loaded;
use crate::app::wiring::parts::{self, Opener};

pub async fn run(loaded: &Loaded, opener: Opener) -> anyhow::Result<ExitCode> {
    let store = parts::open_store(&loaded.config, opener).await?;
    store.close().await;
    print(match opener {
        Opener::Command => "the database's schema is up to date\n",
        Opener::Server(_) => "the database's schema is up to date, and it is the database from now on\n",
    })
}
