//! The file of master keys: one key a line. The first one encrypts, and only the file's owner can read it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::{MasterKey, SealError};
use crate::support::files;

const HEADING: &str = "# Master keys of Capstan: the first one seals the secrets in the database, all of them open some.\n\
                       # Without this file those secrets are lost. Keep a copy of it where the database's copies are not.\n";

fn error(path: &Path, reason: impl std::fmt::Display) -> SealError {
    SealError::File { path: path.display().to_string(), reason: reason.to_string() }
}

/// Reads the keys of the file; none if there is no file.
pub(super) fn read(path: &Path) -> Result<Vec<MasterKey>, SealError> {
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
        // The content of an empty file was lost: a new key would hide that.
        return Err(error(path, "it holds no key; put it back from its copy, or remove it if the database holds no secrets"));
    }
    Ok(keys)
}

/// Locks the file for other threads and processes until the lock is dropped. The lock is a file of its own, because each change
/// replaces the file of keys.
pub(super) fn lock(path: &Path) -> Result<fs::File, SealError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let locked = files::private(&name).and_then(|file| file.lock().map(|()| file));
    locked.map_err(|why| unwritable(&name, &why))
}

/// Writes the file with a new key before all others. The caller holds the [`lock`].
pub(super) fn prepend(path: &Path, new: &MasterKey, before: &[MasterKey]) -> Result<(), SealError> {
    let mut text = Zeroizing::new(HEADING.to_owned());
    for key in std::iter::once(new).chain(before) {
        text.push_str(&key.to_hex());
        text.push('\n');
    }
    // The file must survive a power cut: without the key its secrets are lost.
    files::replace(path, &text).map_err(|why| unwritable(path, &why))
}

fn unwritable(path: &Path, why: &std::io::Error) -> SealError {
    error(path, format!("{why}; set CAPSTAN_SECRET_KEY instead if the data folder cannot be written"))
}

/// Returns whether other users of this machine may read the file.
pub(super) fn is_open_to_others(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|about| about.permissions().mode() & 0o077 != 0)
}
