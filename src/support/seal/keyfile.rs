//! The file of master keys: one key a line, the first one seals. For its owner only.

use std::fs;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::{MasterKey, SealError};
use crate::support::files;

/// What stands above the keys of a file that was made here.
const HEADING: &str = "# Master keys of Capstan: the first one seals the secrets in the database, all of them open some.\n\
                       # Without this file those secrets are lost. Keep a copy of it where the database's copies are not.\n";

fn error(path: &Path, reason: impl std::fmt::Display) -> SealError {
    SealError::File { path: path.display().to_string(), reason: reason.to_string() }
}

/// The keys of the file, none if there is no file.
///
/// # Errors
/// [`SealError::File`] for a file that cannot be read, or that holds something else.
pub(super) fn read(path: &Path) -> Result<Vec<MasterKey>, SealError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => Zeroizing::new(text),
        Err(missing) if missing.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(unreadable) => return Err(error(path, unreadable)),
    };
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
    let keys = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let keys: Result<Vec<_>, _> =
        keys.map(|(number, line)| MasterKey::from_text(line).map_err(|why| error(path, format!("line {number}: {why}")))).collect();
    let keys = keys?;
    if keys.is_empty() {
        // An empty file is one that was lost: making a new key would look as if all were well.
        return Err(error(path, "it holds no key; put it back from its copy, or remove it if the database holds no secrets"));
    }
    Ok(keys)
}

/// Keeps everybody else from changing the file, until it is dropped: other threads and other processes. Is a file of its own, which
/// stays: the one that it guards is replaced at each change.
///
/// # Errors
/// [`SealError::File`] if it cannot be made or locked.
pub(super) fn lock(path: &Path) -> Result<fs::File, SealError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let locked = files::private(&name).and_then(|file| file.lock().map(|()| file));
    locked.map_err(|why| unwritable(&name, &why))
}

/// Puts a key before all others of the file, which is made if it is missing. To be called under its [`lock`]. Whoever reads it
/// meanwhile sees the old file or the new one.
///
/// # Errors
/// [`SealError::File`] if the file cannot be written.
pub(super) fn prepend(path: &Path, new: &MasterKey, before: &[MasterKey]) -> Result<(), SealError> {
    let mut text = Zeroizing::new(HEADING.to_owned());
    for key in std::iter::once(new).chain(before) {
        text.push_str(&key.to_hex());
        text.push('\n');
    }
    // A key that a power cut takes, after secrets were sealed with it, would take them along.
    files::replace(path, &text).map_err(|why| unwritable(path, &why))
}

fn unwritable(path: &Path, why: &std::io::Error) -> SealError {
    error(path, format!("{why}; set CAPSTAN_SECRET_KEY instead if the data folder cannot be written"))
}

/// Whether others of this machine may read the file.
pub(super) fn is_open_to_others(path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        fs::metadata(path).is_ok_and(|about| about.permissions().mode() & 0o077 != 0)
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        false
    }
}
