//! All master keys of a server, from its settings and from a file.

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret as _, SecretString};
use zeroize::Zeroizing;

use super::master::NONCE_BYTES;
use super::{MasterKey, Place, SealError, Sealed, keyfile};
use crate::support::random::SharedRandomness;

#[derive(Debug, Clone, Default)]
pub struct MasterKeys {
    /// The key that encrypts; by default the first one of the file.
    pub current: Option<MasterKey>,
    /// Keys that only decrypt.
    pub previous: Vec<MasterKey>,
    /// A file with more keys, which is created for the first secret if there is no other key.
    pub file: Option<PathBuf>,
}

/// Encrypts and decrypts secrets.
pub struct Vault {
    given: MasterKeys,
    of_file: RwLock<Vec<MasterKey>>,
    randomness: SharedRandomness,
}

impl Vault {
    pub fn new(given: MasterKeys, randomness: SharedRandomness) -> Result<Self, SealError> {
        let vault = Self { given, of_file: RwLock::default(), randomness };
        vault.refresh()?;
        Ok(vault)
    }

    /// Reads the file again: a command may have changed it while the server runs.
    fn refresh(&self) -> Result<(), SealError> {
        if let Some(path) = &self.given.file {
            *self.of_file.write().unwrap_or_else(PoisonError::into_inner) = keyfile::read(path)?;
        }
        Ok(())
    }

    fn keys(&self) -> Vec<MasterKey> {
        let of_file = self.of_file.read().unwrap_or_else(PoisonError::into_inner);
        self.given.current.iter().chain(of_file.iter()).chain(&self.given.previous).cloned().collect()
    }

    fn sealing_key(&self) -> Option<MasterKey> {
        let of_file = self.of_file.read().unwrap_or_else(PoisonError::into_inner);
        self.given.current.as_ref().or_else(|| of_file.first()).cloned()
    }

    pub fn sealing_key_id(&self) -> Option<String> {
        self.sealing_key().map(|key| key.id().to_owned())
    }

    pub fn has_key(&self, id: &str) -> bool {
        self.keys().iter().any(|key| key.id() == id)
    }

    pub fn file(&self) -> Option<&Path> {
        self.given.file.as_deref()
    }

    pub fn is_file_open_to_others(&self) -> bool {
        self.file().is_some_and(keyfile::is_open_to_others)
    }

    /// Adds a new key to the file, which encrypts from now on. Fails with [`SealError::NoKey`] if the settings have the encrypting key.
    pub fn make_key(&self) -> Result<String, SealError> {
        let Some(path) = self.file().filter(|_| self.given.current.is_none()) else {
            return Err(SealError::NoKey("the key that seals is CAPSTAN_SECRET_KEY: change it there".to_owned()));
        };
        let _lock = keyfile::lock(path)?;
        self.make_key_alone(path)
    }

    /// Creates the first key, unless another thread or process was faster.
    pub fn make_first_key(&self) -> Result<String, SealError> {
        let Some(path) = self.file() else { return Err(SealError::NoKey(self.way_out())) };
        let _lock = keyfile::lock(path)?;
        self.refresh()?;
        match self.sealing_key_id() {
            Some(id) => Ok(id),
            None => self.make_key_alone(path),
        }
    }

    /// The caller holds the file's lock.
    fn make_key_alone(&self, path: &Path) -> Result<String, SealError> {
        let mut bytes = Zeroizing::new([0_u8; 32]);
        self.randomness.fill(bytes.as_mut_slice())?;
        let key = MasterKey::new(bytes);
        self.refresh()?;
        let before = self.of_file.read().unwrap_or_else(PoisonError::into_inner).clone();
        keyfile::prepend(path, &key, &before)?;
        self.refresh()?;
        Ok(key.id().to_owned())
    }

    /// Encrypts a secret for a place. Fails with [`SealError::NoKey`] before [`Vault::make_first_key`].
    pub fn seal(&self, place: &Place<'_>, secret: &SecretString) -> Result<Sealed, SealError> {
        self.refresh()?;
        let key = self.sealing_key().ok_or_else(|| SealError::NoKey(self.way_out()))?;
        let mut nonce = [0_u8; NONCE_BYTES];
        self.randomness.fill(&mut nonce)?;
        let sealed = key.seal(place, secret.expose_secret().as_bytes(), nonce);
        let sealed = sealed.ok_or_else(|| SealError::Damaged { key_id: key.id().to_owned() })?;
        Ok(Sealed { key_id: key.id().to_owned(), data: STANDARD.encode(sealed) })
    }

    /// Decrypts a secret that was encrypted for this place.
    pub fn open(&self, place: &Place<'_>, sealed: &Sealed) -> Result<SecretString, SealError> {
        let key_id = sealed.key_id.clone();
        let known = || self.keys().into_iter().find(|key| key.id() == key_id);
        let mut key = known();
        if key.is_none() {
            self.refresh()?;
            key = known();
        }
        let Some(key) = key else { return Err(SealError::UnknownKey { key_id, way_out: self.way_out() }) };
        let opened = STANDARD.decode(&sealed.data).ok().and_then(|data| key.open(place, &data));
        let text = opened.as_deref().and_then(|opened| std::str::from_utf8(opened).ok());
        text.map(SecretString::from).ok_or(SealError::Damaged { key_id })
    }

    /// Returns the sources of keys, for error messages.
    pub fn way_out(&self) -> String {
        let file = self.file().map(|path| format!(", or in {}", path.display())).unwrap_or_default();
        format!("give it as CAPSTAN_SECRET_KEY or in CAPSTAN_SECRET_KEY_PREVIOUS{file}")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::support::random::CountingBytes;

    const PLACE: Place<'static> = Place { purpose: "test", owner: None, record: "row" };

    fn key(text: &str) -> MasterKey {
        MasterKey::from_text(&format!("a master key called {text}")).unwrap()
    }

    fn vault(given: MasterKeys) -> Vault {
        Vault::new(given, Arc::new(CountingBytes::default())).unwrap()
    }

    fn opened(vault: &Vault, sealed: &Sealed) -> String {
        vault.open(&PLACE, sealed).unwrap().expose_secret().to_owned()
    }

    #[test]
    fn keys_can_be_changed_one_after_the_other() {
        let old = vault(MasterKeys { current: Some(key("old")), ..MasterKeys::default() });
        let sealed = old.seal(&PLACE, &"secret".into()).unwrap();
        assert_eq!(opened(&old, &sealed), "secret");
        assert_ne!(old.seal(&PLACE, &"secret".into()).unwrap(), sealed, "each time with another nonce");
        let both = vault(MasterKeys { current: Some(key("new")), previous: vec![key("old")], ..MasterKeys::default() });
        assert_eq!(opened(&both, &sealed), "secret");
        let anew = both.seal(&PLACE, &"secret".into()).unwrap();
        let new = vault(MasterKeys { current: Some(key("new")), ..MasterKeys::default() });
        assert_eq!(opened(&new, &anew), "secret");
        let lost = new.open(&PLACE, &sealed).unwrap_err().to_string();
        assert!(lost.contains(&sealed.key_id) && lost.contains("CAPSTAN_SECRET_KEY_PREVIOUS"), "{lost}");
        let damaged = new.open(&Place { record: "other", ..PLACE }, &anew).unwrap_err();
        assert!(matches!(damaged, SealError::Damaged { .. }), "{damaged}");
        assert!(new.make_key().is_err(), "the environment is not ours to change");
    }

    #[test]
    fn the_first_key_is_made_when_it_is_needed_and_kept_in_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret.key");
        let given = MasterKeys { file: Some(path.clone()), ..MasterKeys::default() };
        let (one, other) = (vault(given.clone()), vault(given.clone()));
        assert!(matches!(one.seal(&PLACE, &"secret".into()), Err(SealError::NoKey(_))));
        assert!(!path.exists());
        let id = one.make_key().unwrap();
        let sealed = one.seal(&PLACE, &"secret".into()).unwrap();
        assert_eq!(sealed.key_id, id);
        assert!(!one.is_file_open_to_others());
        // A process that was there before sees the file, and one that comes later.
        assert_eq!(opened(&other, &sealed), "secret");
        assert_eq!(opened(&vault(given.clone()), &sealed), "secret");
        // The next key stands before the first one, which still opens what it has sealed.
        let next = one.make_key().unwrap();
        assert_ne!(next, id);
        assert_eq!(other.seal(&PLACE, &"secret".into()).unwrap().key_id, next);
        assert_eq!(opened(&vault(given.clone()), &sealed), "secret");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "only the file and its lock are left");

        // With a key of the environment, the file's keys open only.
        let moved = vault(MasterKeys { current: Some(key("new")), ..given.clone() });
        assert_eq!(opened(&moved, &sealed), "secret");
        assert_eq!(moved.seal(&PLACE, &"secret".into()).unwrap().key_id, key("new").id());

        for (content, words) in [("# nothing\n", "holds no key"), ("short\n", "line 1")] {
            std::fs::write(&path, content).unwrap();
            let refused = Vault::new(given.clone(), Arc::new(CountingBytes::default())).err().unwrap().to_string();
            assert!(refused.contains(words) && refused.contains("secret.key"), "{refused}");
        }
    }

    #[test]
    fn those_that_make_the_first_key_at_once_have_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret.key");
        let given = MasterKeys { file: Some(path.clone()), ..MasterKeys::default() };
        // Two processes, and in each of them many requests.
        let random = || Arc::new(crate::support::random::SystemRandomness);
        let vaults: Vec<_> = (0..2).map(|_| Vault::new(given.clone(), random()).unwrap()).collect();
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
        // None of the keys that are made at once is lost either.
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
        assert_eq!(keyfile::read(&path).unwrap().len(), 17);
        assert!(ids.iter().all(|id| vault(given.clone()).has_key(id)));
    }
}
