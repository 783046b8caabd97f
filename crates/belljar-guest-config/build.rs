//! Computes the guest's build id from all its inputs. The host and the guest's program are linked with the same id, so the host
//! recognises the program without having seen it at build time.

use std::collections::BTreeSet;
use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

/// The guest's crate. Crates of the workspace that it depends on are found in its manifest.
const GUEST: &str = "belljar-guest";

/// Other inputs of the program, below the top of the repository.
const OTHER_INPUTS: &[&str] = &[
    "Cargo.lock",
    "Cargo.toml",
    "kernels/javascript/kernel.mjs",
    "kernels/jupyter/bridge.py",
    "kernels/python/kernel.py",
    "proto",
];

/// Length of a build id, in bytes: that of SHA-1, which linkers use.
const ID_BYTES: usize = 20;

fn main() -> Result<(), Box<dyn Error>> {
    let top = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../..");
    let mut crates = BTreeSet::new();
    add_crate(&top, GUEST, &mut crates)?;
    let mut files = BTreeSet::new();
    let of_crates = crates.iter().map(|name| PathBuf::from("crates").join(name));
    for path in OTHER_INPUTS.iter().map(PathBuf::from).chain(of_crates) {
        println!("cargo::rerun-if-changed={}", top.join(&path).display());
        add_files(&top, &path, &mut files)?;
    }
    let mut hash = Sha256::new();
    let mut add = |part: &[u8]| {
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
        hash.update(part);
    };
    add(env::var("TARGET")?.as_bytes());
    add(env::var("CARGO_FEATURE_MUTATION").unwrap_or_default().as_bytes());
    for file in &files {
        add(file.as_os_str().as_encoded_bytes());
        add(&fs::read(top.join(file))?);
    }
    let id = hex::encode(hash.finalize().get(..ID_BYTES).unwrap_or_default());
    println!("cargo::rustc-env=BELLJAR_GUEST_BUILD_ID={id}");
    println!("cargo::metadata=build_id={id}");
    Ok(())
}

/// Adds a crate and its dependencies in the workspace.
fn add_crate(top: &Path, name: &str, crates: &mut BTreeSet<String>) -> Result<(), Box<dyn Error>> {
    if !crates.insert(name.to_owned()) {
        return Ok(());
    }
    let manifest = fs::read_to_string(top.join("crates").join(name).join("Cargo.toml"))?;
    let mut section = "";
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        } else if matches!(section, "[dependencies]" | "[build-dependencies]") && line.starts_with("belljar-")
        {
            add_crate(top, line.split(['.', ' ', '=']).next().unwrap_or_default(), crates)?;
        }
    }
    Ok(())
}

/// Adds a file, or all files of a directory except tests and examples.
fn add_files(top: &Path, path: &Path, files: &mut BTreeSet<PathBuf>) -> Result<(), Box<dyn Error>> {
    if !top.join(path).is_dir() {
        files.insert(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(top.join(path))? {
        let name = entry?.file_name();
        if name != "tests" && name != "examples" {
            add_files(top, &path.join(name), files)?;
        }
    }
    Ok(())
}
