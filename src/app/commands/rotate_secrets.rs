//! `capstan secrets rotate`: encrypts the secrets in the database with the newest master key.
//!
//! Owns the pass over all secrets, which `doctor` uses to count them. Must not know where master keys come from.

use std::process::ExitCode;

use anyhow::Context as _;
use indicatif::ProgressBar;

use crate::app::commands::output::print;
use crate::app::config::Loaded;
use crate::app::wiring::master_keys;
use crate::app::wiring::parts::{self, OpenPurpose};
use crate::domain::model::provider::key_place;
use crate::domain::tool::mcp_server::{secrets_place, tokens_place};
use crate::store::{SecretKind, Store, StoreResult};
use crate::support::encryption::{EncryptionError, Vault};
use crate::support::failpoint;

/// Number of secrets in one read.
const PAGE: u32 = 100;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::Args)]
pub struct RotateArgs {
    /// First create a new master key in the key file. Not with CAPSTAN_SECRET_KEY, which you change yourself.
    #[arg(long)]
    pub new_key: bool,
    /// Remove secrets that no available master key can decrypt.
    #[arg(long)]
    pub forget_lost: bool,
    /// Only print what would be done.
    #[arg(long)]
    pub dry_run: bool,
}

/// The secrets, counted by their master key.
#[derive(Debug, Default)]
pub struct RotationCounts {
    /// Encrypted with the newest key.
    pub new: usize,
    /// Encrypted with an older available key.
    pub old: usize,
    /// Changed by another process at the same time.
    pub moved: usize,
    /// The secrets that cannot be decrypted, with the reasons.
    pub unreadable: Vec<(String, EncryptionError)>,
}

pub async fn run(loaded: &Loaded, args: RotateArgs) -> anyhow::Result<ExitCode> {
    let vault = master_keys::open_vault(&loaded.config)?;
    let store = parts::open_store(&loaded.config, OpenPurpose::Command).await?;
    if args.new_key && !args.dry_run {
        let id = vault.make_key().context("the new master key cannot be created")?;
        print(&format!("created the master key {id}; running servers use it from now on\n"))?;
    }
    let counts = count_or_rotate(store.as_ref(), &vault, Some(args)).await?;
    store.close().await;
    let RotationCounts { new, old, moved, unreadable } = &counts;
    let (did, removed) = if args.dry_run { ("to encrypt again", "to remove") } else { ("encrypted again", "removed") };
    let mut out = format!("{did}: {old}; already encrypted with the newest master key: {new}\n");
    if *moved > 0 {
        out.push_str(&format!("changed by another process meanwhile: {moved}; repeat the command\n"));
    }
    for (secret, error) in unreadable {
        let prefix = if args.forget_lost { format!("{removed}: ") } else { String::new() };
        out.push_str(&format!("{prefix}{secret}: {error}\n"));
    }
    print(&out)?;
    Ok(if *moved > 0 || !(unreadable.is_empty() || args.forget_lost) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Decrypts every secret. If `args` are given, encrypts those of older keys with the newest one, and removes lost ones if
/// requested.
pub async fn count_or_rotate(store: &dyn Store, vault: &Vault, args: Option<RotateArgs>) -> anyhow::Result<RotationCounts> {
    let all: i64 = store.master_keys_in_use().await?.iter().map(|(_, count)| count).sum();
    let bar = if all > i64::from(PAGE) { ProgressBar::new(all.unsigned_abs()) } else { ProgressBar::hidden() };
    let newest = vault.encrypting_key_id();
    let writes = args.filter(|args| !args.dry_run);
    let (mut counts, mut after) = (RotationCounts::default(), None::<String>);
    loop {
        let rows = store.encrypted_rows(after.as_deref(), PAGE).await.context("the secrets in the database cannot be read")?;
        let Some(last) = rows.last() else { break };
        after = Some(last.id.clone());
        for row in rows {
            bar.inc(1);
            let associated_data = match row.of {
                SecretKind::Provider => key_place(row.owner.as_ref(), &row.id),
                SecretKind::McpServer => secrets_place(row.owner.as_ref(), &row.id),
                SecretKind::McpTokens => tokens_place(row.owner.as_ref(), &row.id),
            };
            match vault.decrypt(&associated_data, &row.encrypted) {
                Ok(_) if newest.as_ref() == Some(&row.encrypted.key_id) => counts.new += 1,
                Ok(secret) => {
                    counts.old += 1;
                    if writes.is_some() {
                        failpoint::hit("C31");
                    }
                    if writes.is_some()
                        && !stored_or_moved(store.reencrypt(&row, Some(&vault.encrypt(&associated_data, &secret)?)).await)?
                    {
                        counts.old -= 1;
                        counts.moved += 1;
                    }
                }
                // These errors may be temporary, so the secret is not lost.
                Err(error @ (EncryptionError::File { .. } | EncryptionError::NoKey(_) | EncryptionError::NoRandomness(_))) => {
                    return Err(error.into());
                }
                Err(error @ (EncryptionError::UnknownKey { .. } | EncryptionError::Damaged { .. })) => {
                    if writes.is_some_and(|args| args.forget_lost) {
                        stored_or_moved(store.reencrypt(&row, None).await)?;
                    }
                    let secret = match row.of {
                        SecretKind::Provider => format!("the key of provider {}", row.id),
                        SecretKind::McpServer => format!("the secrets of MCP server {}", row.id),
                        SecretKind::McpTokens => format!("the login at an MCP server {}", row.id),
                    };
                    counts.unreadable.push((secret, error));
                }
            }
        }
    }
    bar.finish_and_clear();
    Ok(counts)
}

fn stored_or_moved(outcome: StoreResult<bool>) -> anyhow::Result<bool> {
    outcome.context("a secret cannot be stored; completed work stays, and the command can be repeated")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::ids::ProviderId;
    use crate::domain::model::provider::{ProviderKind, ProviderRecord, StoredSecret};
    use crate::store::{StoreOptions, open};
    use crate::support::clock::UnixMillis;
    use crate::support::encryption::MasterKeys;
    use crate::support::ids::UuidIds;
    use crate::support::random::SystemRandomness;

    const FILE: &str = "secret.key";

    /// Returns a database with one secret, encrypted with a key in a file.
    async fn with_secret(folder: &std::path::Path) -> (Arc<dyn Store>, Vault) {
        let url = format!("sqlite:{}", folder.join("test.db").display());
        let store = open(&url, &StoreOptions::default()).await.unwrap();
        let keys = MasterKeys { file: Some(folder.join(FILE)), ..MasterKeys::default() };
        let vault = Vault::new(keys, Arc::new(SystemRandomness)).unwrap();
        vault.make_first_key().unwrap();
        let id = ProviderId::generate(&UuidIds);
        let mut record = ProviderRecord::new(id, None, "mine".to_owned(), ProviderKind::Openai, UnixMillis(0));
        record.base_url = "https://api.example/v1".to_owned();
        let encrypted = vault.encrypt(&record.key_place(), &"sk-0123456789".into()).unwrap();
        record.key = Some(StoredSecret { encrypted, hint: None });
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
        let refused = count_or_rotate(store.as_ref(), &without, Some(forget)).await.unwrap_err().to_string();
        assert!(refused.contains("secret.key"), "{refused}");
        assert_eq!(count_or_rotate(store.as_ref(), &vault, None).await.unwrap().new, 1);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(count_or_rotate(store.as_ref(), &without, Some(forget)).await.unwrap().unreadable.len(), 1);
        assert!(store.master_keys_in_use().await.unwrap().is_empty());
        store.close().await;
    }
}
