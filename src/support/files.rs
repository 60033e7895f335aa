//! Replaces small files atomically.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Replaces a file by one that only its owner can read. A concurrent reader, or one after a power cut, sees the old file or the new
/// one. After an error the old file is unchanged.
pub fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    replace_by(path, |_| text.to_owned())
}

/// Replaces a file by a text that may depend on the metadata of the new file.
pub fn replace_by(path: &Path, text: impl FnOnce(&fs::File) -> String) -> std::io::Result<()> {
    let mut new_file = path.as_os_str().to_owned();
    new_file.push(".new");
    let new_file = PathBuf::from(new_file);
    let written = write(&new_file, text).and_then(|()| fs::rename(&new_file, path));
    if written.is_err() {
        let _ = fs::remove_file(&new_file);
    }
    written?;
    sync_folder(path);
    Ok(())
}

/// Creates an empty file that only its owner can read. Empties an existing file, which keeps its permissions.
pub fn private(path: &Path) -> std::io::Result<fs::File> {
    fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// Creates a folder and its parents that only their owner can read. An existing folder keeps its permissions.
pub fn private_folder(path: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn write(path: &Path, text: impl FnOnce(&fs::File) -> String) -> std::io::Result<()> {
    let mut file = private(path)?;
    let text = text(&file);
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Returns the creation time in nanoseconds since 1970, which differs for every copy of a file. `None` if the file system has none.
pub fn created_ns(about: &fs::Metadata) -> Option<u128> {
    Some(about.created().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?.as_nanos())
}

/// Makes the new name of a file survive a power cut.
fn sync_folder(path: &Path) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let Ok(folder) = fs::File::open(folder) {
        let _ = folder.sync_all();
    }
}
