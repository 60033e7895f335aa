//! The file of master keys, one per line. The first key encrypts. The file is created with permissions for its owner only.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::{EncryptionError, MasterKey};
use crate::support::files;

const HEADING: &str = "# Master keys of Capstan: the first one encrypts new secrets in the database, the others only decrypt.\n\
                       # Without this file those secrets are lost. Keep a copy of it where the database's copies are not.\n";

fn error(path: &Path, reason: impl std::fmt::Display) -> EncryptionError {
    EncryptionError::File { path: path.display().to_string(), reason: reason.to_string() }
}

/// Reads the keys of the file; returns none if the file does not exist.
pub(super) fn read(path: &Path) -> Result<Vec<MasterKey>, EncryptionError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => Zeroizing::new(text),
        Err(missing) if missing.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(unreadable) => return Err(error(path, unreadable)),
    };
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
    let keys = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let keys: Vec<_> = keys
        .map(|(number, line)| MasterKey::from_text(line).map_err(|why| error(path, format!("line {number}: {why}"))))
        .collect::<Result<_, _>>()?;
    if keys.is_empty() {
        // An empty file has lost its keys; a new key would hide that.
        return Err(error(path, "it contains no key; restore it from a backup, or remove it if the database contains no secrets"));
    }
    Ok(keys)
}

/// Locks the key file for other threads and processes until the lock is dropped. The lock is a separate file, because each change replaces
/// the key file.
pub(super) fn lock(path: &Path) -> Result<fs::File, EncryptionError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let locked = files::private(&name).and_then(|file| file.lock().map(|()| file));
    locked.map_err(|why| unwritable(&name, &why))
}

/// Writes the file with a new key in the first line. The caller holds the [`lock`].
pub(super) fn prepend(path: &Path, new: &MasterKey, before: &[MasterKey]) -> Result<(), EncryptionError> {
    let mut text = Zeroizing::new(HEADING.to_owned());
    for key in std::iter::once(new).chain(before) {
        text.push_str(&key.to_hex());
        text.push('\n');
    }
    // `replace` makes the file survive a power cut: without the key, secrets could not be decrypted.
    files::replace(path, &text).map_err(|why| unwritable(path, &why))
}

fn unwritable(path: &Path, why: &std::io::Error) -> EncryptionError {
    error(path, format!("{why}; set CAPSTAN_SECRET_KEY instead if the data folder is not writable"))
}

/// Returns whether other users of this machine may read the file.
pub(super) fn is_open_to_others(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|about| about.permissions().mode() & 0o077 != 0)
}
