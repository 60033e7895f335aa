//! All master keys of a server: from its settings and from a file.

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret as _, SecretString};
use zeroize::Zeroizing;

use super::master_key::NONCE_BYTES;
use super::{AssociatedData, EncryptedSecret, EncryptionError, MasterKey, key_file};
use crate::support::random::SharedRandomness;

#[derive(Debug, Clone, Default)]
pub struct MasterKeys {
    /// The key that encrypts; if unset, the first key of the file.
    pub current: Option<MasterKey>,
    /// Keys that only decrypt.
    pub previous: Vec<MasterKey>,
    /// A file with more keys. It is created for the first secret if no other key is configured.
    pub file: Option<PathBuf>,
}

/// Encrypts and decrypts secrets.
pub struct Vault {
    configured: MasterKeys,
    of_file: RwLock<Vec<MasterKey>>,
    randomness: SharedRandomness,
}

impl Vault {
    pub fn new(configured: MasterKeys, randomness: SharedRandomness) -> Result<Self, EncryptionError> {
        let vault = Self { configured, of_file: RwLock::default(), randomness };
        vault.refresh()?;
        Ok(vault)
    }

    /// Reloads the file, which a command may have changed while the server runs.
    fn refresh(&self) -> Result<(), EncryptionError> {
        if let Some(path) = &self.configured.file {
            *self.of_file.write().unwrap_or_else(PoisonError::into_inner) = key_file::read(path)?;
        }
        Ok(())
    }

    fn keys(&self) -> Vec<MasterKey> {
        let of_file = self.of_file.read().unwrap_or_else(PoisonError::into_inner);
        self.configured.current.iter().chain(of_file.iter()).chain(&self.configured.previous).cloned().collect()
    }

    fn encrypting_key(&self) -> Option<MasterKey> {
        let of_file = self.of_file.read().unwrap_or_else(PoisonError::into_inner);
        self.configured.current.as_ref().or_else(|| of_file.first()).cloned()
    }

    pub fn encrypting_key_id(&self) -> Option<String> {
        self.encrypting_key().map(|key| key.id().to_owned())
    }

    pub fn has_key(&self, id: &str) -> bool {
        self.keys().iter().any(|key| key.id() == id)
    }

    pub fn file(&self) -> Option<&Path> {
        self.configured.file.as_deref()
    }

    pub fn is_file_open_to_others(&self) -> bool {
        self.file().is_some_and(key_file::is_open_to_others)
    }

    /// Adds a new encrypting key to the file. Fails with [`EncryptionError::NoKey`] if the settings contain the encrypting key, or
    /// no file.
    pub fn make_key(&self) -> Result<String, EncryptionError> {
        let Some(path) = self.file().filter(|_| self.configured.current.is_none()) else {
            return Err(EncryptionError::NoKey("CAPSTAN_SECRET_KEY is the encrypting key: change it there".to_owned()));
        };
        let _lock = key_file::lock(path)?;
        self.make_key_in_locked_file(path)
    }

    /// Creates the first key, unless another thread or process has created it.
    pub fn make_first_key(&self) -> Result<String, EncryptionError> {
        let Some(path) = self.file() else { return Err(EncryptionError::NoKey(self.key_sources_hint())) };
        let _lock = key_file::lock(path)?;
        self.refresh()?;
        match self.encrypting_key_id() {
            Some(id) => Ok(id),
            None => self.make_key_in_locked_file(path),
        }
    }

    /// Adds a key. The caller holds the file's lock.
    fn make_key_in_locked_file(&self, path: &Path) -> Result<String, EncryptionError> {
        let mut bytes = Zeroizing::new([0_u8; 32]);
        self.randomness.fill(bytes.as_mut_slice())?;
        let key = MasterKey::new(bytes);
        self.refresh()?;
        let before = self.of_file.read().unwrap_or_else(PoisonError::into_inner).clone();
        key_file::prepend(path, &key, &before)?;
        self.refresh()?;
        Ok(key.id().to_owned())
    }

    /// Encrypts a secret. Fails with [`EncryptionError::NoKey`] before [`Vault::make_first_key`].
    pub fn encrypt(&self, associated_data: &AssociatedData<'_>, secret: &SecretString) -> Result<EncryptedSecret, EncryptionError> {
        self.refresh()?;
        let key = self.encrypting_key().ok_or_else(|| EncryptionError::NoKey(self.key_sources_hint()))?;
        let mut nonce = [0_u8; NONCE_BYTES];
        self.randomness.fill(&mut nonce)?;
        let encrypted = key.encrypt(associated_data, secret.expose_secret().as_bytes(), nonce);
        let encrypted = encrypted.ok_or_else(|| EncryptionError::Damaged { key_id: key.id().to_owned() })?;
        Ok(EncryptedSecret { key_id: key.id().to_owned(), data: STANDARD.encode(encrypted) })
    }

    /// Decrypts a secret that was encrypted with the same associated data.
    pub fn decrypt(
        &self,
        associated_data: &AssociatedData<'_>,
        encrypted: &EncryptedSecret,
    ) -> Result<SecretString, EncryptionError> {
        let key_id = encrypted.key_id.clone();
        let known = || self.keys().into_iter().find(|key| key.id() == key_id);
        let mut key = known();
        if key.is_none() {
            self.refresh()?;
            key = known();
        }
        let Some(key) = key else { return Err(EncryptionError::UnknownKey { key_id, way_out: self.key_sources_hint() }) };
        let decrypted = STANDARD.decode(&encrypted.data).ok().and_then(|data| key.decrypt(associated_data, &data));
        let text = decrypted.as_deref().and_then(|decrypted| std::str::from_utf8(decrypted).ok());
        text.map(SecretString::from).ok_or(EncryptionError::Damaged { key_id })
    }

    /// Describes how to provide keys, for error messages.
    pub fn key_sources_hint(&self) -> String {
        let file = self.file().map(|path| format!(", or in {}", path.display())).unwrap_or_default();
        format!("set it as CAPSTAN_SECRET_KEY or in CAPSTAN_SECRET_KEY_PREVIOUS{file}")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::support::random::CountingBytes;

    const PLACE: AssociatedData<'static> = AssociatedData { purpose: "test", owner: None, record: "row" };

    fn key(text: &str) -> MasterKey {
        MasterKey::from_text(&format!("a master key called {text}")).unwrap()
    }

    fn vault(configured: MasterKeys) -> Vault {
        Vault::new(configured, Arc::new(CountingBytes::default())).unwrap()
    }

    fn decrypted(vault: &Vault, encrypted: &EncryptedSecret) -> String {
        vault.decrypt(&PLACE, encrypted).unwrap().expose_secret().to_owned()
    }

    #[test]
    fn keys_can_be_changed_one_after_the_other() {
        let old = vault(MasterKeys { current: Some(key("old")), ..MasterKeys::default() });
        let encrypted = old.encrypt(&PLACE, &"secret".into()).unwrap();
        assert_eq!(decrypted(&old, &encrypted), "secret");
        assert_ne!(old.encrypt(&PLACE, &"secret".into()).unwrap(), encrypted, "each time with another nonce");
        let both = vault(MasterKeys { current: Some(key("new")), previous: vec![key("old")], ..MasterKeys::default() });
        assert_eq!(decrypted(&both, &encrypted), "secret");
        let anew = both.encrypt(&PLACE, &"secret".into()).unwrap();
        let new = vault(MasterKeys { current: Some(key("new")), ..MasterKeys::default() });
        assert_eq!(decrypted(&new, &anew), "secret");
        let lost = new.decrypt(&PLACE, &encrypted).unwrap_err().to_string();
        assert!(lost.contains(&encrypted.key_id) && lost.contains("CAPSTAN_SECRET_KEY_PREVIOUS"), "{lost}");
        let damaged = new.decrypt(&AssociatedData { record: "other", ..PLACE }, &anew).unwrap_err();
        assert!(matches!(damaged, EncryptionError::Damaged { .. }), "{damaged}");
        assert!(new.make_key().is_err(), "the environment is not ours to change");
    }

    #[test]
    fn the_first_key_is_made_when_it_is_needed_and_kept_in_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret.key");
        let configured = MasterKeys { file: Some(path.clone()), ..MasterKeys::default() };
        let (one, other) = (vault(configured.clone()), vault(configured.clone()));
        assert!(matches!(one.encrypt(&PLACE, &"secret".into()), Err(EncryptionError::NoKey(_))));
        assert!(!path.exists());
        let id = one.make_key().unwrap();
        let encrypted = one.encrypt(&PLACE, &"secret".into()).unwrap();
        assert_eq!(encrypted.key_id, id);
        assert!(!one.is_file_open_to_others());
        // Processes that started before and after the file was created both read it.
        assert_eq!(decrypted(&other, &encrypted), "secret");
        assert_eq!(decrypted(&vault(configured.clone()), &encrypted), "secret");
        // The new key is in the first line; the older key still decrypts its secrets.
        let next = one.make_key().unwrap();
        assert_ne!(next, id);
        assert_eq!(other.encrypt(&PLACE, &"secret".into()).unwrap().key_id, next);
        assert_eq!(decrypted(&vault(configured.clone()), &encrypted), "secret");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "only the file and its lock are left");

        // With a key in the environment, the file's keys only decrypt.
        let moved = vault(MasterKeys { current: Some(key("new")), ..configured.clone() });
        assert_eq!(decrypted(&moved, &encrypted), "secret");
        assert_eq!(moved.encrypt(&PLACE, &"secret".into()).unwrap().key_id, key("new").id());

        for (content, words) in [("# nothing\n", "contains no key"), ("short\n", "line 1")] {
            std::fs::write(&path, content).unwrap();
            let refused = Vault::new(configured.clone(), Arc::new(CountingBytes::default())).err().unwrap().to_string();
            assert!(refused.contains(words) && refused.contains("secret.key"), "{refused}");
        }
    }

    #[test]
    fn concurrent_first_starts_share_one_master_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret.key");
        let configured = MasterKeys { file: Some(path.clone()), ..MasterKeys::default() };
        // Two processes, each with many concurrent requests.
        let random = || Arc::new(crate::support::random::SystemRandomness);
        let vaults: Vec<_> = (0..2).map(|_| Vault::new(configured.clone(), random()).unwrap()).collect();
        let start = std::sync::Barrier::new(16);
        let ids: std::collections::BTreeSet<String> = std::thread::scope(|scope| {
            let make = |at: usize| {
                let (vaults, start) = (&vaults, &start);
                scope.spawn(move || {
                    start.wait();
                    vaults[at % 2].make_first_key().unwrap()
                })
            };
            let made: Vec<_> = (0..16).map(make).collect();
            made.into_iter().map(|made| made.join().unwrap()).collect()
        });
        assert_eq!(ids.len(), 1, "{ids:?}");
        // No key of concurrent additions is lost.
        let ids: std::collections::BTreeSet<String> = std::thread::scope(|scope| {
            let made: Vec<_> = (0..16)
                .map(|at| {
                    scope.spawn({
                        let vaults = &vaults;
                        move || vaults[at % 2].make_key().unwrap()
                    })
                })
                .collect();
            made.into_iter().map(|made| made.join().unwrap()).collect()
        });
        assert_eq!(key_file::read(&path).unwrap().len(), 17);
        assert!(ids.iter().all(|id| vault(configured.clone()).has_key(id)));
    }
}
