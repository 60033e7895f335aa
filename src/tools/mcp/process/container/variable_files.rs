//! Files with the variables of containers, which may be secrets, and records of processes that have containers.
//!
//! A file is removed after the first answer of the server in the container. If this program is killed before that, the guard or the next
//! process removes it. The writer of a file holds its lock. A record is locked in the same way, and contains the name prefix of its
//! process's containers.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// The prefix of the names of files and containers.
const PREFIX: &str = "capstan-";
/// The prefix of a record's name. The name prefix of its containers follows.
const RECORD: &str = "has-";
/// The most attempts to write a file that another process mistakes for an orphaned one.
const MAX_ATTEMPTS: usize = 10;

/// Writes a private file below `folder`, or in the temporary folder without one. It is removed on drop.
pub fn written(folder: Option<&Path>, text: &str) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX);
    for _ in 0..MAX_ATTEMPTS {
        let mut file = match folder {
            Some(folder) => {
                DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
                builder.tempfile_in(folder)?
            }
            None => builder.tempfile()?,
        };
        // Before it is locked, it looks like an orphaned file.
        if file.as_file().try_lock().is_ok() && file.path().exists() {
            file.write_all(text.as_bytes())?;
            file.flush()?;
            return Ok(file);
        }
    }
    Err(io::Error::other("another process removes the file at each attempt"))
}

/// Removes the files below `folder` whose writers have exited, and returns their number.
pub fn remove_stale_files(folder: &Path) -> io::Result<usize> {
    let mut removed = 0;
    for entry in entries(folder)? {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) || !entry.file_type()?.is_file() {
            continue;
        }
        let path = entry.path();
        // Locked until it is removed, so that no writer begins to use it.
        let is_left = File::open(&path).is_ok_and(|file| file.try_lock().is_ok() && fs::remove_file(&path).is_ok());
        removed += usize::from(is_left);
    }
    Ok(removed)
}

/// Records below `folder` that a process has containers whose names begin with `marker`, as long as the file is open.
pub fn write_record(folder: &Path, marker: &str) -> io::Result<File> {
    // Locked before it gets its name, so that it never looks orphaned.
    Ok(written(Some(folder), "")?.persist_noclobber(folder.join(format!("{RECORD}{marker}")))?)
}

/// The locked record of a process that has exited.
pub struct OrphanedRecord {
    /// The name prefix of its containers.
    pub marker: String,
    path: PathBuf,
    _lock: File,
}

impl OrphanedRecord {
    /// Removes the record after its containers were removed.
    pub fn remove(self) {
        // If this fails, the next process repeats it.
        let _ = fs::remove_file(&self.path);
    }
}

/// Returns the records below `folder` whose processes have exited.
pub fn orphaned_records(folder: &Path) -> io::Result<Vec<OrphanedRecord>> {
    let mut left = Vec::new();
    for entry in entries(folder)? {
        let (name, path) = (entry.file_name(), entry.path());
        let Some(marker) = name.to_str().and_then(|name| name.strip_prefix(RECORD)) else { continue };
        // A shorter prefix would match containers of other processes.
        let is_word = marker.strip_prefix(PREFIX).is_some_and(|id| id.len() > 1 && id.ends_with('-'));
        let Some(lock) = File::open(&path).ok().filter(|file| is_word && file.try_lock().is_ok()) else { continue };
        left.push(OrphanedRecord { marker: marker.to_owned(), path, _lock: lock });
    }
    Ok(left)
}

/// Lists a folder; empty if it does not exist.
fn entries(folder: &Path) -> io::Result<Vec<fs::DirEntry>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries.collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_files_of_killed_processes_are_removed() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("containers");
        assert_eq!(remove_stale_files(&folder).unwrap(), 0, "there is no such folder yet");
        let used = written(Some(&folder), "TOKEN=used").unwrap();
        assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(used.path().metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let left = folder.join("capstan-left");
        fs::write(&left, "TOKEN=left").unwrap();
        fs::write(folder.join("note"), "somebody else's").unwrap();
        assert_eq!(remove_stale_files(&folder).unwrap(), 1);
        assert!(!left.exists() && folder.join("note").exists());
        assert_eq!(fs::read_to_string(used.path()).unwrap(), "TOKEN=used", "its writer lives");
        let path = used.path().to_owned();
        drop(used);
        assert!(!path.exists());
    }

    #[test]
    fn notes_of_those_that_are_gone_are_found_and_no_others() {
        let data = tempfile::tempdir().unwrap();
        let words = || -> Vec<String> { orphaned_records(data.path()).unwrap().into_iter().map(|note| note.marker).collect() };
        let (one, other) = (write_record(data.path(), "capstan-1-").unwrap(), write_record(data.path(), "capstan-2-").unwrap());
        for name in ["has-", "has-capstan-", "has-capstan--x", "has-other-1-"] {
            fs::write(data.path().join(name), "").unwrap();
        }
        assert_eq!(words(), Vec::<String>::new(), "both live");
        drop(other);
        assert_eq!(words(), ["capstan-2-"]);
        assert_eq!(remove_stale_files(data.path()).unwrap(), 0, "records are no files with variables");
        let found = orphaned_records(data.path()).unwrap();
        assert!(orphaned_records(data.path()).unwrap().is_empty(), "somebody looks after it");
        found.into_iter().for_each(OrphanedRecord::remove);
        assert_eq!(words(), Vec::<String>::new());
        drop(one);
        assert_eq!(words(), ["capstan-1-"]);
    }
}
