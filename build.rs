//! Embeds the chat page of `web/dist`, if it was built before. The generated list is empty otherwise.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("web/dist");
    // Cargo would run this script each time if the folder was missing. An error is ignored, because a read-only source tree has no
    // later build.
    let _ = fs::create_dir_all(&folder);
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut files = Vec::new();
    list(&folder, "", &mut files)?;
    files.sort();
    let mut code = "[\n".to_owned();
    for (name, path) in files.iter().filter(|(name, _)| !name.ends_with(".gz")) {
        let packed = files.iter().find(|(other, _)| *other == format!("{name}.gz"));
        let packed = packed.map_or_else(|| "None".to_owned(), |(_, path)| format!("Some(include_bytes!({path:?}))"));
        let _ = writeln!(code, "    Embedded {{ name: {name:?}, body: include_bytes!({path:?}), packed: {packed} }},");
    }
    code.push_str("]\n");
    #[expect(clippy::disallowed_methods, reason = "cargo tells build scripts their folder in this variable")]
    let out = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("OUT_DIR is not set"))?;
    fs::write(PathBuf::from(out).join("page.rs"), code)
}

/// Lists the files of a folder with their names relative to the page.
fn list(folder: &Path, prefix: &str, found: &mut Vec<(String, PathBuf)>) -> io::Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            list(&entry.path(), &format!("{name}/"), found)?;
        } else {
            found.push((name, entry.path()));
        }
    }
    Ok(())
}
