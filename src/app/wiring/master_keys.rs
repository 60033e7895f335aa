//! Opens the vault with the master keys, and checks that no key is missing. Must not know which secrets the keys encrypt.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use secrecy::ExposeSecret as _;

use crate::app::config::Config;
use crate::store::Store;
use crate::support::encryption::{MasterKey, MasterKeys, Vault};
use crate::support::random::SystemRandomness;

const FILE: &str = "secret.key";

/// Builds the vault with the master keys of the settings and of the file in the data folder.
pub fn open_vault(config: &Config) -> anyhow::Result<Arc<Vault>> {
    let auth = &config.auth;
    let key = |text: &str, name: &str| MasterKey::from_text(text).with_context(|| name.to_owned());
    let current = auth.secret_key.as_ref();
    let current = current.map(|text| key(text.expose_secret(), "auth.secret_key (CAPSTAN_SECRET_KEY)")).transpose()?;
    let previous = auth.secret_key_previous.as_ref().map_or("", |text| text.expose_secret());
    let previous = previous.split([',', '\n']).map(str::trim).filter(|text| !text.is_empty());
    let previous = previous.map(|text| key(text, "auth.secret_key_previous (CAPSTAN_SECRET_KEY_PREVIOUS)"));
    let keys = MasterKeys { current, previous: previous.collect::<Result<_, _>>()?, file: Some(config.server.data_dir.join(FILE)) };
    Ok(Arc::new(Vault::new(keys, Arc::new(SystemRandomness))?))
}

/// Fails if a master key that encrypts secrets in the database is missing.
pub async fn require_keys(store: &dyn Store, vault: &Vault) -> anyhow::Result<()> {
    let in_use = store.master_keys_in_use().await.context("the secrets in the database cannot be read")?;
    let lost: Vec<_> = in_use.iter().filter(|(id, _)| !vault.has_key(id)).collect();
    if lost.is_empty() {
        return Ok(());
    }
    let (ids, count): (Vec<_>, i64) = (lost.iter().map(|(id, _)| id.as_str()).collect(), lost.iter().map(|(_, count)| count).sum());
    bail!(
        "{count} secrets in the database need missing master keys ({}). To supply a key, {}. If a key is permanently lost, \
         `capstan secrets rotate --forget-lost` removes its secrets",
        ids.join(", "),
        vault.key_sources_hint()
    )
}
