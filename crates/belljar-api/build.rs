//! Compresses the built files of the console, `console/dist`, for the program.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::{env, fs};

use flate2::Compression;
use flate2::write::GzEncoder;

fn main() -> io::Result<()> {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../console/dist");
    println!("cargo:rerun-if-changed={}", dist.display());
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    let mut files = Vec::new();
    list(&dist, &mut files)?;
    files.sort();
    let mut table = "&[\n".to_owned();
    for (number, file) in files.iter().enumerate() {
        let name = file.strip_prefix(&dist).map_err(io::Error::other)?.display().to_string();
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&fs::read(file)?)?;
        let place = out.join(format!("{number}.gz"));
        fs::write(&place, packed.finish()?)?;
        let _ = writeln!(table, "    ({name:?}, include_bytes!({:?})),", place.display().to_string());
    }
    fs::write(out.join("console.rs"), table + "]\n")
}

fn list(directory: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() { list(&path, files)? } else { files.push(path) }
    }
    Ok(())
}
