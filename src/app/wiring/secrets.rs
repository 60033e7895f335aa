//! Master keys: reads them, checks them against the database, and rotates them.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use indicatif::ProgressBar;
use secrecy::ExposeSecret as _;

use crate::app::commands::output::print;
use crate::app::config::{Config, Loaded};
use crate::app::wiring::parts::{self, Opener};
use crate::domain::model::provider::key_place;
use crate::domain::tool::mcp_server::{secrets_place, tokens_place};
use crate::store::{SecretOf, Store, StoreResult};
use crate::support::failpoint;
use crate::support::random::SystemRandomness;
use crate::support::seal::{MasterKey, MasterKeys, SealError, Vault};

/// The file of master keys in the data folder.
const FILE: &str = "secret.key";

/// Secrets that are read at a time.
const PAGE: u32 = 100;

/// Returns the master keys of the settings and of the file in the data folder.
pub fn vault(config: &Config) -> anyhow::Result<Arc<Vault>> {
    let auth = &config.auth;
    let key = |text: &str, name: &str| MasterKey::from_text(text).with_context(|| name.to_owned());
    let current = auth.secret_key.as_ref();
    let current = current.map(|text| key(text.expose_secret(), "auth.secret_key (CAPSTAN_SECRET_KEY)")).transpose()?;
    let previous = auth.secret_key_previous.as_ref().map_or("", |text| text.expose_secret());
    let previous = previous.split([',', '\n']).map(str::trim).filter(|text| !text.is_empty());
    let previous = previous.map(|text| key(text, "auth.secret_key_previous (CAPSTAN_SECRET_KEY_PREVIOUS)"));
    let given =
        MasterKeys { current, previous: previous.collect::<Result<_, _>>()?, file: Some(config.server.data_dir.join(FILE)) };
    Ok(Arc::new(Vault::new(given, Arc::new(SystemRandomness))?))
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
        "{count} secrets in the database are sealed with the master key {}, which is not here: {}; if the key is lost for good, \
         `capstan secrets rotate --forget-lost` removes them",
        ids.join(", "),
        vault.way_out()
    )
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::Args)]
pub struct RotateArgs {
    /// First make a new master key in the file of keys. Not with CAPSTAN_SECRET_KEY, which is yours to change.
    #[arg(long)]
    pub new_key: bool,
    /// Remove secrets that no master key here opens.
    #[arg(long)]
    pub forget_lost: bool,
    /// Only say what would be done.
    #[arg(long)]
    pub dry_run: bool,
}

/// The numbers of secrets by their master key.
#[derive(Debug, Default)]
pub struct Tally {
    /// Encrypted with the newest key.
    pub new: usize,
    /// Encrypted with an older key that is here.
    pub old: usize,
    /// Changed by another process at the same moment.
    pub moved: usize,
    /// The secrets that cannot be decrypted, in words, and why not.
    pub lost: Vec<(String, SealError)>,
}

/// Encrypts every secret with the newest key.
pub async fn rotate(loaded: &Loaded, args: RotateArgs) -> anyhow::Result<ExitCode> {
    let vault = vault(&loaded.config)?;
    let store = parts::open_store(&loaded.config, Opener::Command).await?;
    if args.new_key && !args.dry_run {
        let id = vault.make_key().context("there is no new master key")?;
        print(&format!("made the master key {id}; running servers use it from now on\n"))?;
    }
    let tally = pass(store.as_ref(), &vault, Some(args)).await?;
    store.close().await;
    let Tally { new, old, moved, lost } = &tally;
    let (did, removed) = if args.dry_run { ("would be sealed anew", "would be removed") } else { ("sealed anew", "removed") };
    let mut out = format!("{did}: {old}; sealed with the newest master key before: {new}\n");
    if *moved > 0 {
        out.push_str(&format!("changed by somebody else meanwhile: {moved}; run this again\n"));
    }
    for (secret, why) in lost {
        let what = if args.forget_lost { format!("{removed}: ") } else { String::new() };
        out.push_str(&format!("{what}{secret}: {why}\n"));
    }
    print(&out)?;
    Ok(if *moved > 0 || !(lost.is_empty() || args.forget_lost) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Decrypts every secret. Encrypts those of older keys with the newest, and removes lost ones, if `args` say so.
pub async fn pass(store: &dyn Store, vault: &Vault, args: Option<RotateArgs>) -> anyhow::Result<Tally> {
    let all: i64 = store.master_keys_in_use().await?.iter().map(|(_, count)| count).sum();
    let bar = if all > i64::from(PAGE) { ProgressBar::new(all.unsigned_abs()) } else { ProgressBar::hidden() };
    let newest = vault.sealing_key_id();
    let writes = args.filter(|args| !args.dry_run);
    let (mut tally, mut after) = (Tally::default(), None::<String>);
    loop {
        let rows = store.sealed_rows(after.as_deref(), PAGE).await.context("the secrets in the database cannot be read")?;
        let Some(last) = rows.last() else { break };
        after = Some(last.id.clone());
        for row in rows {
            bar.inc(1);
            let place = match row.of {
                SecretOf::Provider => key_place(row.owner.as_ref(), &row.id),
                SecretOf::McpServer => secrets_place(row.owner.as_ref(), &row.id),
                SecretOf::McpTokens => tokens_place(row.owner.as_ref(), &row.id),
            };
            match vault.open(&place, &row.sealed) {
                Ok(_) if newest.as_ref() == Some(&row.sealed.key_id) => tally.new += 1,
                Ok(secret) => {
                    tally.old += 1;
                    if writes.is_some() {
                        failpoint::reached("C31");
                    }
                    if writes.is_some() && !written(store.reseal(&row, Some(&vault.seal(&place, &secret)?)).await)? {
                        tally.old -= 1;
                        tally.moved += 1;
                    }
                }
                // These errors may be temporary: the secret is not lost.
                Err(why @ (SealError::File { .. } | SealError::NoKey(_) | SealError::NoRandomness(_))) => return Err(why.into()),
                Err(why @ (SealError::UnknownKey { .. } | SealError::Damaged { .. })) => {
                    if writes.is_some_and(|args| args.forget_lost) {
                        written(store.reseal(&row, None).await)?;
                    }
                    let what = match row.of {
                        SecretOf::Provider => format!("the key of provider {}", row.id),
                        SecretOf::McpServer => format!("the secrets of MCP server {}", row.id),
                        SecretOf::McpTokens => format!("the login at an MCP server {}", row.id),
                    };
                    tally.lost.push((what, why));
                }
            }
        }
    }
    bar.finish_and_clear();
    Ok(tally)
}

fn written(done: StoreResult<bool>) -> anyhow::Result<bool> {
    done.context("a secret cannot be written; what was done stays, and the command may be repeated")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::ProviderId;
    use crate::domain::model::provider::{ProviderKind, ProviderRecord, StoredSecret};
    use crate::store::{StoreOptions, open};
    use crate::support::clock::UnixMillis;
    use crate::support::ids::UuidIds;

    /// A database with one secret, sealed with a key of a file.
    async fn with_secret(folder: &std::path::Path) -> (Arc<dyn Store>, Vault) {
        let url = format!("sqlite:{}", folder.join("test.db").display());
        let store = open(&url, &StoreOptions::default()).await.unwrap();
        let keys = MasterKeys { file: Some(folder.join(FILE)), ..MasterKeys::default() };
        let vault = Vault::new(keys, Arc::new(SystemRandomness)).unwrap();
        vault.make_first_key().unwrap();
        let id = ProviderId::generate(&UuidIds);
        let mut record = ProviderRecord::new(id, None, "mine".to_owned(), ProviderKind::Openai, UnixMillis(0));
        record.base_url = "https://api.example/v1".to_owned();
        let sealed = vault.seal(&record.key_place(), &"sk-0123456789".into()).unwrap();
        record.key = Some(StoredSecret { sealed, hint: None });
        store.create_provider(&record, 9, None).await.unwrap();
        (store, vault)
    }

    #[tokio::test]
    async fn only_what_is_lost_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let (store, vault) = with_secret(folder.path()).await;
        let forget = RotateArgs { forget_lost: true, ..RotateArgs::default() };
        let other = tempfile::tempdir().unwrap();
        let file = other.path().join(FILE);
        let keys = MasterKeys { file: Some(file.clone()), ..MasterKeys::default() };
        let without = Vault::new(keys, Arc::new(SystemRandomness)).unwrap();
        // The key file exists but cannot be read, so its content is unknown.
        std::fs::write(&file, "not a key\n").unwrap();
        let refused = pass(store.as_ref(), &without, Some(forget)).await.unwrap_err().to_string();
        assert!(refused.contains("secret.key"), "{refused}");
        assert_eq!(pass(store.as_ref(), &vault, None).await.unwrap().new, 1);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(pass(store.as_ref(), &without, Some(forget)).await.unwrap().lost.len(), 1);
        assert!(store.master_keys_in_use().await.unwrap().is_empty());
        store.close().await;
    }
}
