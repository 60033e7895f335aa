//! `list_directory` and `read_file`, inside one folder.
//!
//! All access uses a handle of the root folder (`cap-std`): neither `..` nor a symbolic link leaves it, even if files change between a
//! check and an open.

use std::io::{ErrorKind, Read as _};
use std::path::{Component, Path};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt as _};
use rustix::fs::OFlags;

use crate::support::text;

const MAX_ENTRIES: usize = 50;
/// The longest text of a file, in bytes.
const MAX_TEXT: usize = 256 * 1024;

pub fn list_directory(root: &Path, path: &str) -> Result<String, String> {
    let root = open_root(root)?;
    let path = relative(path)?;
    let entries = root.read_dir(path).map_err(|error| failure(path, &error))?;
    let mut lines = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| failure(path, &error))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        lines.push(match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => format!("{name}/"),
            Ok(metadata) if metadata.is_symlink() => format!("{name} (link)"),
            Ok(metadata) => format!("{name} ({} bytes)", metadata.len()),
            Err(_) => format!("{name} (unreadable)"),
        });
    }
    if lines.is_empty() {
        return Ok("the folder is empty".to_owned());
    }
    lines.sort();
    let more = lines.len().saturating_sub(MAX_ENTRIES);
    lines.truncate(MAX_ENTRIES);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    Ok(lines.join("\n"))
}

pub fn read_file(root: &Path, path: &str) -> Result<String, String> {
    let root = open_root(root)?;
    let path = relative(path)?;
    // Opening a pipe would block, and a check before the open could be outdated.
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let file = root.open_with(path, &options).map_err(|error| failure(path, &error))?;
    let metadata = file.metadata().map_err(|error| failure(path, &error))?;
    if metadata.is_dir() {
        return Err(format!("{} is a folder: list it with list_directory", path.display()));
    }
    if !metadata.is_file() {
        return Err(format!("{} is not a regular file", path.display()));
    }
    let size = metadata.len();
    let mut bytes = Vec::new();
    // Reads three more bytes, because a character that begins before the limit may end after it.
    file.take(MAX_TEXT as u64 + 3).read_to_end(&mut bytes).map_err(|error| failure(path, &error))?;
    let cut = bytes.len() > MAX_TEXT;
    let valid = match std::str::from_utf8(&bytes) {
        Ok(valid) => valid,
        // Only the cut may have broken a character.
        Err(error) if cut && error.error_len().is_none() => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
        Err(_) => return Err(binary(path, size)),
    };
    if valid.contains('\0') {
        return Err(binary(path, size));
    }
    if !cut {
        return Ok(valid.to_owned());
    }
    let excerpt = text::prefix(valid, MAX_TEXT);
    Ok(format!("{excerpt}\n[cut: the file has {size} bytes, the first {} are shown]", excerpt.len()))
}

fn binary(path: &Path, size: u64) -> String {
    format!("{} is a binary file of {size} bytes: only text can be read", path.display())
}

fn open_root(root: &Path) -> Result<Dir, String> {
    Dir::open_ambient_dir(root, ambient_authority()).map_err(|error| match error.kind() {
        ErrorKind::NotFound => "the shared folder does not exist: ask the operator to create it".to_owned(),
        _ => format!("the shared folder cannot be opened: {error}"),
    })
}

fn relative(path: &str) -> Result<&Path, String> {
    if path.contains('\0') {
        return Err("the path contains a NUL character".to_owned());
    }
    let path = Path::new(if path.is_empty() { "." } else { path });
    for component in path.components() {
        match component {
            Component::Prefix(_) | Component::RootDir => {
                return Err(format!("{} is absolute: use a path relative to the shared folder", path.display()));
            }
            Component::ParentDir => return Err(format!("{} leads out of the shared folder with ..", path.display())),
            Component::CurDir | Component::Normal(_) => {}
        }
    }
    Ok(path)
}

fn failure(path: &Path, error: &std::io::Error) -> String {
    let path = path.display();
    match error.kind() {
        ErrorKind::NotFound => format!("{path} does not exist"),
        ErrorKind::NotADirectory => format!("{path} is not a folder"),
        // `cap-std` also reports an attempt to leave the root with this error.
        ErrorKind::PermissionDenied => format!("{path} may not be read: it is protected or leads out of the shared folder"),
        _ => format!("{path} cannot be read: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::fs;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn folder() -> tempfile::TempDir {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("root");
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::write(outer.path().join("secret.txt"), "secret").unwrap();
        fs::write(root.join("a.txt"), "hello\n").unwrap();
        fs::write(root.join("sub/b.bin"), [0u8, 159, 146, 150]).unwrap();
        std::os::unix::fs::symlink(outer.path().join("secret.txt"), root.join("out")).unwrap();
        std::os::unix::fs::symlink("../secret.txt", root.join("out2")).unwrap();
        std::os::unix::fs::symlink("a.txt", root.join("in")).unwrap();
        outer
    }

    #[test]
    fn lists_and_reads() {
        let outer = folder();
        let root = outer.path().join("root");
        assert_eq!(list_directory(&root, "").unwrap(), "a.txt (6 bytes)\nin (link)\nout (link)\nout2 (link)\nsub/");
        assert_eq!(list_directory(&root, "./sub").unwrap(), "b.bin (4 bytes)");
        assert_eq!(read_file(&root, "a.txt").unwrap(), "hello\n");
        assert_eq!(read_file(&root, "in").unwrap(), "hello\n");
    }

    #[rstest]
    #[case("../secret.txt", "..")]
    #[case("sub/../../secret.txt", "..")]
    #[case("/etc/passwd", "absolute")]
    #[case("out", "leads out")]
    #[case("out2", "leads out")]
    #[case("missing", "does not exist")]
    #[case("sub", "list_directory")]
    #[case("sub/b.bin", "binary file of 4 bytes")]
    #[case("a\0b", "NUL")]
    fn nothing_else_is_read(#[case] path: &str, #[case] reason: &str) {
        let outer = folder();
        let error = read_file(&outer.path().join("root"), path).unwrap_err();
        assert!(error.contains(reason), "{error}");
        assert!(!error.contains("secret\n"));
    }

    struct Over<'a>(&'a AtomicBool);

    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// S-23: a file that is replaced at any moment causes neither a read outside of the folder nor a wait for a pipe.
    #[test]
    fn swapped_symlink_leads_nowhere() {
        let outer = folder();
        let root = outer.path().join("root");
        fs::create_dir(outer.path().join("private")).unwrap();
        fs::write(outer.path().join("private/file.txt"), "secret").unwrap();
        fs::create_dir(root.join("real")).unwrap();
        fs::write(root.join("real/file.txt"), "hello").unwrap();
        let made = std::process::Command::new("mkfifo").arg(root.join("pipe")).status().unwrap();
        assert!(made.success());
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Also stops the threads if a test fails, because the scope waits for them.
            let _over = Over(&is_over);
            scope.spawn(|| {
                // Each link replaces the other atomically, as an attacker would do it.
                let put = |target: &Path, name: &str| {
                    let new = root.join(format!("{name}.new"));
                    std::os::unix::fs::symlink(target, &new).unwrap();
                    fs::rename(&new, root.join(name)).unwrap();
                };
                while !is_over.load(Ordering::Relaxed) {
                    for (folder, file) in [("real", "a.txt"), ("../private", "../secret.txt"), ("real", "pipe")] {
                        put(Path::new(folder), "folder");
                        put(Path::new(file), "file");
                    }
                }
            });
            let mut read = [0_usize; 2];
            for _ in 0..3_000 {
                for (path, count) in ["folder/file.txt", "file"].into_iter().zip(&mut read) {
                    match read_file(&root, path) {
                        Ok(text) => {
                            assert!(text.starts_with("hello"), "{path}: {text}");
                            *count += 1;
                        }
                        Err(error) => assert!(!error.contains("secret"), "{path}: {error}"),
                    }
                }
                if let Ok(listed) = list_directory(&root, "folder") {
                    assert_eq!(listed, "file.txt (5 bytes)");
                }
            }
            assert!(read.iter().all(|count| *count > 0), "what is inside is read now and then: {read:?}");
        });
    }

    #[test]
    fn long_answers_are_cut() {
        let outer = folder();
        let root = outer.path().join("root");
        fs::create_dir(root.join("many")).unwrap();
        for n in 0..57 {
            fs::write(root.join(format!("many/{n:02}")), "").unwrap();
        }
        let listed = list_directory(&root, "many").unwrap();
        assert!(listed.ends_with("49 (0 bytes)\nand 7 more"), "{listed}");
        // An odd prefix puts the limit into the middle of a two-byte character.
        fs::write(root.join("long"), format!("x{}", "é".repeat(MAX_TEXT))).unwrap();
        let read = read_file(&root, "long").unwrap();
        let notice = format!("[cut: the file has {} bytes, the first {} are shown]", 2 * MAX_TEXT + 1, MAX_TEXT - 1);
        assert!(read.ends_with(&notice), "{}", &read[read.len() - 100..]);
    }
}
