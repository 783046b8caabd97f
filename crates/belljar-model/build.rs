//! Generates the list of `languages/*.toml`, so that adding a language needs no Rust.

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let crate_dir = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let languages_dir = crate_dir.join("../../languages");
    println!("cargo::rerun-if-changed={}", languages_dir.display());

    let mut files = Vec::new();
    let entries = fs::read_dir(&languages_dir)
        .map_err(|error| format!("cannot list {}: {error}", languages_dir.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            println!("cargo::rerun-if-changed={}", path.display());
            files.push(path.canonicalize()?);
        }
    }
    files.sort();

    let mut list = String::from("&[\n");
    for path in &files {
        let name = path.file_name().ok_or("a language file has no name")?;
        writeln!(list, "    ({:?}, include_str!({:?})),", Path::new(name).display().to_string(), path)?;
    }
    list.push_str("]\n");
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("languages.rs"), list)?;
    Ok(())
}
