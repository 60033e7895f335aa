//! What containers are handed over in files: their variables, which may be secrets.
//!
//! A file is gone when the server in the container has answered. If this program is killed before that, the file stays: whoever starts
//! next removes it, and so does the process that ends what was left behind. Files whose writer lives are locked by it.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use tempfile::NamedTempFile;

/// What the names of the files begin with.
const PREFIX: &str = "capstan-";
/// How often a file is written anew that somebody who removes what was left behind has taken for that.
const TRIES: usize = 10;

/// Writes a file that only we can read, below `folder` or, without one, where temporary files lie. It is removed when it is dropped.
///
/// # Errors
/// Those of the file system.
pub fn written(folder: Option<&Path>, text: &str) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX);
    for _ in 0..TRIES {
        let mut file = match folder {
            Some(folder) => {
                DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
                builder.tempfile_in(folder)?
            }
            None => builder.tempfile()?,
        };
        // Between its making and its lock it looks like one that was left behind.
        if file.as_file().try_lock().is_ok() && file.path().exists() {
            file.write_all(text.as_bytes())?;
            file.flush()?;
            return Ok(file);
        }
    }
    Err(io::Error::other("somebody else removes the file each time"))
}

/// Removes the files below `folder` whose writers are gone, and tells how many there were.
///
/// # Errors
/// Those of the file system.
pub fn sweep(folder: &Path) -> io::Result<usize> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut removed = 0;
    for entry in entries {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) || !entry.file_type()?.is_file() {
            continue;
        }
        let path = entry.path();
        // Held until it is removed, so that nobody begins to use it meanwhile.
        let is_left = File::open(&path).is_ok_and(|file| file.try_lock().is_ok() && fs::remove_file(&path).is_ok());
        removed += usize::from(is_left);
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_a_killed_process_has_left_is_removed_and_nothing_else() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("containers");
        assert_eq!(sweep(&folder).unwrap(), 0, "there is no such folder yet");
        let used = written(Some(&folder), "TOKEN=used").unwrap();
        assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(used.path().metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let left = folder.join("capstan-left");
        fs::write(&left, "TOKEN=left").unwrap();
        fs::write(folder.join("note"), "somebody else's").unwrap();
        assert_eq!(sweep(&folder).unwrap(), 1);
        assert!(!left.exists() && folder.join("note").exists());
        assert_eq!(fs::read_to_string(used.path()).unwrap(), "TOKEN=used", "its writer lives");
        let path = used.path().to_owned();
        drop(used);
        assert!(!path.exists());
    }
}
