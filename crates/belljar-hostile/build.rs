//! Embeds the cases of `tests/hostile` that `belljar doctor --self-test` runs, so that adding one needs no Rust.

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let corpus = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../tests/hostile").canonicalize()?;
    println!("cargo::rerun-if-changed={}", corpus.display());
    let mut list = String::from("&[\n");
    for group in dirs(&corpus)? {
        for case in dirs(&group)? {
            let file = case.join("case.toml");
            // The library parses the file properly, and a test compares the results.
            let in_self_test = fs::read_to_string(&file)
                .is_ok_and(|text| text.lines().any(|line| line.trim() == "self-test = true"));
            if !in_self_test {
                continue;
            }
            writeln!(
                list,
                "    (\n        {:?},\n        &[",
                case.strip_prefix(&corpus)?.display().to_string()
            )?;
            for path in entries(&case)?.into_iter().filter(|path| path.is_file()) {
                let name = path.file_name().ok_or("a file has no name")?;
                writeln!(
                    list,
                    "            ({:?}, include_bytes!({:?})),",
                    Path::new(name).display().to_string(),
                    path
                )?;
            }
            list.push_str("        ],\n    ),\n");
        }
    }
    list.push_str("]\n");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("cases.rs"), list)?;
    fs::write(out.join("probe.rs"), format!("include_bytes!({:?})\n", corpus.join("lib/probe.py")))?;
    Ok(())
}

/// Returns the directories in `dir`, sorted.
fn dirs(dir: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    Ok(entries(dir)?.into_iter().filter(|path| path.is_dir()).collect())
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let entries = fs::read_dir(dir).map_err(|error| format!("cannot list {}: {error}", dir.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, std::io::Error>>()?;
    paths.retain(|path| path.file_name().is_some_and(|name| name != "__pycache__"));
    paths.sort();
    Ok(paths)
}
