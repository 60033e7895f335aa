//! `capstan keys create` and `capstan migrate`: commands that open the database, do one thing, and end.

use std::process::ExitCode;

use anyhow::{Context as _, bail};

use super::cli::print;
use super::config::Loaded;
use super::parts::{self, Opener, Sources};
use crate::domain::ids::KeyId;
use crate::domain::principal::UserRole;
use crate::service::new_key;

/// Makes a key and prints it: the one time that it is shown. The database keeps its hash.
pub async fn create(loaded: &Loaded, user: &str, role: UserRole) -> anyhow::Result<ExitCode> {
    let name = user.trim();
    if name.is_empty() || name.chars().count() > 100 || name.chars().any(char::is_control) {
        bail!("a user's name has 1 to 100 characters, none of them a control character");
    }
    let sources = Sources::real();
    let store = parts::open_store(&loaded.config, Opener::Command).await?;
    let user = parts::ensure_user(store.as_ref(), name, role, &sources).await?;
    let key = new_key().context("the operating system gives no random bytes")?;
    let id = KeyId::generate(sources.ids.as_ref());
    store.create_key(id, &user.id, &key.hash, &key.label, sources.clock.now()).await.context("the key cannot be stored")?;
    store.close().await;
    print(&format!(
        "key of {} ({}); it is shown only now. A server that was started without keys asks for them after its next start.\n{}\n",
        user.name,
        user.role.as_str(),
        key.key
    ))
}

/// Brings the schema up to date.
pub async fn migrate(loaded: &Loaded) -> anyhow::Result<ExitCode> {
    let store = parts::open_store(&loaded.config, Opener::Command).await?;
    store.close().await;
    print("the database's schema is up to date\n")
}
