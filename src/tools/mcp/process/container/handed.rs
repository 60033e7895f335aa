//! Files with the variables of containers, which may be secrets, and notes of processes that have containers.
//!
//! A file is removed when the server in the container has answered. If this program is killed before that, the guard or the next
//! process removes it. The writer of a file holds its lock. A note is locked in the same way, and names the containers of its process.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// The prefix of the names of files and containers.
const PREFIX: &str = "capstan-";
/// The prefix of the names of notes, before the beginning of the names of containers.
const NOTE: &str = "has-";
/// The most attempts to write a file that another process takes for an orphaned one.
const TRIES: usize = 10;

/// Writes a private file below `folder`, or among temporary files without one. It is removed on drop.
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
        // Before it is locked, it looks like an orphaned file.
        if file.as_file().try_lock().is_ok() && file.path().exists() {
            file.write_all(text.as_bytes())?;
            file.flush()?;
            return Ok(file);
        }
    }
    Err(io::Error::other("somebody else removes the file each time"))
}

/// Removes the files below `folder` whose writers are gone, and returns how many there were.
pub fn sweep(folder: &Path) -> io::Result<usize> {
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

/// Notes below `folder` that a process has containers whose names begin with `word`, as long as the file is open.
pub fn note(folder: &Path, word: &str) -> io::Result<File> {
    // Locked before it gets its name, so that it never looks orphaned.
    Ok(written(Some(folder), "")?.persist_noclobber(folder.join(format!("{NOTE}{word}")))?)
}

/// The locked note of a process that is gone.
pub struct OrphanedNote {
    /// The beginning of the names of its containers.
    pub word: String,
    path: PathBuf,
    _lock: File,
}

impl OrphanedNote {
    /// Removes the note after its containers were removed.
    pub fn remove(self) {
        // If this fails, the next process searches again.
        let _ = fs::remove_file(&self.path);
    }
}

/// Returns the notes below `folder` whose processes are gone.
pub fn orphaned_notes(folder: &Path) -> io::Result<Vec<OrphanedNote>> {
    let mut left = Vec::new();
    for entry in entries(folder)? {
        let (name, path) = (entry.file_name(), entry.path());
        let Some(word) = name.to_str().and_then(|name| name.strip_prefix(NOTE)) else { continue };
        // A shorter beginning would match containers of other processes.
        let is_word = word.strip_prefix(PREFIX).is_some_and(|id| id.len() > 1 && id.ends_with('-'));
        let Some(lock) = File::open(&path).ok().filter(|file| is_word && file.try_lock().is_ok()) else { continue };
        left.push(OrphanedNote { word: word.to_owned(), path, _lock: lock });
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

    #[test]
    fn notes_of_those_that_are_gone_are_found_and_no_others() {
        let data = tempfile::tempdir().unwrap();
        let words = || -> Vec<String> { orphaned_notes(data.path()).unwrap().into_iter().map(|note| note.word).collect() };
        let (one, other) = (note(data.path(), "capstan-1-").unwrap(), note(data.path(), "capstan-2-").unwrap());
        for name in ["has-", "has-capstan-", "has-capstan--x", "has-other-1-"] {
            fs::write(data.path().join(name), "").unwrap();
        }
        assert_eq!(words(), Vec::<String>::new(), "both live");
        drop(other);
        assert_eq!(words(), ["capstan-2-"]);
        assert_eq!(sweep(data.path()).unwrap(), 0, "notes are nothing that was handed over");
        let found = orphaned_notes(data.path()).unwrap();
        assert!(orphaned_notes(data.path()).unwrap().is_empty(), "somebody looks after it");
        found.into_iter().for_each(OrphanedNote::remove);
        assert_eq!(words(), Vec::<String>::new());
        drop(one);
        assert_eq!(words(), ["capstan-1-"]);
    }
}
