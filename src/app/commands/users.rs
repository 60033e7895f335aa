//! `capstan users`: changes the role and the groups of a user, and deletes users.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use indicatif::ProgressBar;

use crate::app::commands::output::print;
use crate::app::config::Loaded;
use crate::app::wiring::parts::{self, OpenPurpose};
use crate::domain::access::principal::{User, UserRole, check_groups};
use crate::service::{KEY_CACHE_TTL, repeat_demotion_after_key_cache};
use crate::store::{ConversationFilter, OwnedCounts, PageRequest, Store};
use crate::support::clock::{Clock as _, SystemClock};

/// Number of conversations in one read.
const PAGE: u32 = 100;

const NOT_REPEATED: &str = "the role is stored, but providers and MCP servers that the user changed meanwhile may still reach \
                            private addresses; repeat the command";

pub async fn set_role(loaded: &Loaded, name: &str, role: UserRole) -> anyhow::Result<ExitCode> {
    let store = parts::open_store(&loaded.config, OpenPurpose::Command).await?;
    let user = find_user(store.as_ref(), name).await?;
    store.set_role(&user.id, role).await.context("the role cannot be stored")?;
    if (user.role, role) == (UserRole::Admin, UserRole::Member) {
        // Until the key caches expire, other processes accept the old role.
        repeat_demotion_after_key_cache(store.records(), &user.id).await.context(NOT_REPEATED)?;
    }
    store.close().await;
    print(&format!("{name} has the role {}, which applies to all their keys\n", role.as_str()))
}

/// Replaces the groups of a user. Capstan reads a member's groups for each request about a restricted agent, so the change applies
/// at once.
pub async fn set_groups(loaded: &Loaded, name: &str, groups: BTreeSet<String>) -> anyhow::Result<ExitCode> {
    check_groups(&groups).context("nothing was changed")?;
    let store = parts::open_store(&loaded.config, OpenPurpose::Command).await?;
    let user = find_user(store.as_ref(), name).await?;
    let groups: Vec<String> = groups.into_iter().collect();
    store.set_groups(&user.id, &groups).await.context("the groups cannot be stored")?;
    store.close().await;
    print(&match groups.is_empty() {
        true => format!("{name} belongs to no group\n"),
        false => format!("{name} belongs to these groups: {}\n", groups.join(", ")),
    })
}

async fn find_user(store: &dyn Store, name: &str) -> anyhow::Result<User> {
    match store.user_named(name).await.context("the users cannot be read")? {
        Some(user) => Ok(user),
        None => bail!("the user {name:?} does not exist; `capstan keys list` shows users with keys"),
    }
}

/// Deletes a user and all records of the user if `confirmed`. Otherwise only prints the number of records.
pub async fn delete(loaded: &Loaded, name: &str, confirmed: bool) -> anyhow::Result<ExitCode> {
    let store = parts::open_store(&loaded.config, OpenPurpose::Command).await?;
    let user = find_user(store.as_ref(), name).await?;
    let OwnedCounts { conversations, records } = store.owned_by(&user.id).await.context("the user's records cannot be counted")?;
    let contents = format!("{conversations} conversations and {records} files, agents, providers, MCP servers and other records");
    if !confirmed {
        store.close().await;
        return print(&format!("{name} has {contents}. Nothing was deleted; --yes deletes all of it permanently\n"));
    }
    revoke_keys(store.as_ref(), &user).await?;
    let bar = ProgressBar::new(conversations);
    loop {
        delete_conversations(store.as_ref(), &user, &bar).await?;
        // A request that began before the keys were revoked may have created another conversation.
        if store.remove_user(&user.id).await.context("the user cannot be deleted; the command can be repeated")? {
            break;
        }
    }
    bar.finish_and_clear();
    store.close().await;
    print(&format!("{name} was deleted, with {contents}\n"))
}

/// Revokes the user's stored keys. If one was live, waits until no process accepts it for a new request. Running servers still
/// accept keys of the configuration.
async fn revoke_keys(store: &dyn Store, user: &User) -> anyhow::Result<()> {
    let keys = store.keys().await.context("the keys cannot be read")?;
    let mut live = keys.iter().filter(|key| key.user.id == user.id && key.revoked_at.is_none()).peekable();
    if live.peek().is_none() {
        return Ok(());
    }
    for key in live {
        store.revoke_key(&key.id, SystemClock.now()).await.context("a key cannot be revoked")?;
    }
    tokio::time::sleep(KEY_CACHE_TTL).await;
    Ok(())
}

async fn delete_conversations(store: &dyn Store, user: &User, bar: &ProgressBar) -> anyhow::Result<()> {
    let (filter, first) = (ConversationFilter::default(), PageRequest { after: None, limit: PAGE });
    loop {
        let page = store.conversations(&user.id, &filter, &first).await.context("the conversations cannot be listed")?;
        if page.items.is_empty() {
            return Ok(());
        }
        for conversation in page.items {
            let deleted = store.delete_conversation(&user.id, &conversation.id).await;
            deleted.context("a conversation cannot be deleted; the command can be repeated")?;
            bar.inc(1);
        }
    }
}
