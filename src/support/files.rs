//! Small files that are replaced as a whole.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Writes the file anew, for its owner alone. Whoever reads it meanwhile, or after a power cut, sees the old file or the new one.
///
/// # Errors
/// If it cannot be written; then it is as it was.
pub fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    replace_by(path, |_| text.to_owned())
}

/// The same with a text that may say something of the file that it stands in.
///
/// # Errors
/// If it cannot be written; then it is as it was.
pub fn replace_by(path: &Path, text: impl FnOnce(&fs::File) -> String) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let written = write(&beside, text).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written?;
    sync_folder(path);
    Ok(())
}

/// An empty file for its owner alone.
///
/// # Errors
/// If it cannot be made.
pub fn private(path: &Path) -> std::io::Result<fs::File> {
    let mut options = fs::File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn write(path: &Path, text: impl FnOnce(&fs::File) -> String) -> std::io::Result<()> {
    let mut file = private(path)?;
    let text = text(&file);
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// When a file was made, in nanoseconds since 1970: nobody can give a copy of it the same time. `None` where the file system does not know.
#[must_use]
pub fn born(about: &fs::Metadata) -> Option<u128> {
    Some(about.created().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?.as_nanos())
}

/// A power cut shall not take the new name of the file.
fn sync_folder(path: &Path) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let Ok(folder) = fs::File::open(folder) {
        let _ = folder.sync_all();
    }
}
