//! `capstan keys`: creates, lists and revokes API keys.

use std::process::ExitCode;

use anyhow::{Context as _, bail};

use crate::app::commands::output::print;
use crate::app::config::Loaded;
use crate::app::wiring::parts::{self, OpenPurpose};
use crate::domain::access::principal::{SHORT_NAME, UserRole, short_name};
use crate::domain::ids::KeyId;
use crate::service::new_key;
use crate::store::StoredKey;
use crate::support::clock::{Clock as _, SystemClock, UnixMillis};
use crate::support::ids::UuidIds;

/// Creates a key and prints it once; the database contains only its hash. A new user gets the `role`, by default member. Refuses
/// another role for an existing user, because it would apply to all their keys.
pub async fn create(loaded: &Loaded, user: &str, role: Option<UserRole>) -> anyhow::Result<ExitCode> {
    let Some(name) = short_name(user) else { bail!("a user's name {SHORT_NAME}") };
    let store = parts::open_store(&loaded.config, OpenPurpose::Command).await?;
    let existing_role = store.user_named(name).await.context("the user cannot be read")?.map(|user| user.role);
    if let (Some(existing), Some(role)) = (existing_role, role)
        && existing != role
    {
        let (existing, role) = (existing.as_str(), role.as_str());
        bail!(
            "the user {name} has the role {existing}, which applies to all their keys; `capstan users role {name} {role}` changes it"
        );
    }
    let user = parts::ensure_user(store.records(), name, existing_role.or(role).unwrap_or(UserRole::Member)).await?;
    let key = new_key().context("the operating system provides no random bytes")?;
    let id = KeyId::generate(&UuidIds);
    store.create_key(id, &user.id, &key.hash, &key.label, SystemClock.now()).await.context("the key cannot be stored")?;
    store.close().await;
    print(&format!(
        "key of {} ({}); it is shown only once. A running server that accepts requests without a key will require keys after its \
         next restart.\n{}\n",
        user.name,
        user.role.as_str(),
        key.key
    ))
}

pub async fn list(loaded: &Loaded) -> anyhow::Result<ExitCode> {
    let store = parts::open_store(&loaded.config, OpenPurpose::Command).await?;
    let keys = store.keys().await.context("the keys cannot be read")?;
    store.close().await;
    let mut out = format!("{:<36}  {:<10}  {:<6}  {:<24}  {:<24}  user\n", "id", "label", "role", "created", "revoked");
    for StoredKey { id, label, user, created_at, revoked_at, hash: _ } in keys {
        let revoked = revoked_at.map_or_else(|| "-".to_owned(), UnixMillis::to_rfc3339);
        let (role, created) = (user.role.as_str(), created_at.to_rfc3339());
        out.push_str(&format!("{:<36}  {label:<10}  {role:<6}  {created:<24}  {revoked:<24}  {}\n", id.as_str(), user.name));
    }
    print(&out)
}

/// Revokes a key by its id or label. Servers notice within 5 s.
pub async fn revoke(loaded: &Loaded, id_or_label: &str) -> anyhow::Result<ExitCode> {
    let store = parts::open_store(&loaded.config, OpenPurpose::Command).await?;
    let keys = store.keys().await.context("the keys cannot be read")?;
    let mut matching_keys = keys.iter().filter(|key| key.id.as_str() == id_or_label || key.label == id_or_label);
    let key = match (matching_keys.next(), matching_keys.next()) {
        (Some(key), None) => key,
        (Some(_), Some(_)) => {
            bail!("several keys have the label {id_or_label}; use the id of a key, as shown by `capstan keys list`")
        }
        // The error does not repeat the argument, which may be a complete key.
        (None, _) => bail!("the key does not exist; use an id or a label, as shown by `capstan keys list`"),
    };
    if let Some(at) = key.revoked_at {
        store.close().await;
        return print(&format!("the key {} of {} was already revoked at {}\n", key.label, key.user.name, at.to_rfc3339()));
    }
    store.revoke_key(&key.id, SystemClock.now()).await.context("the key cannot be revoked")?;
    let others = store.has_keys(None).await.context("the keys cannot be read")?;
    store.close().await;
    let last = if others {
        ""
    } else {
        "It was the last key in the database. Without configured keys, a new server requires no key. It refuses to start on a \
         public address.\n"
    };
    print(&format!(
        "the key {} of {} is revoked; within 5 s, every server refuses it and ends its open streams\n{last}",
        key.label, key.user.name
    ))
}
