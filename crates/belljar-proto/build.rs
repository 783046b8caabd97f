//! Generates the messages and services of `proto/belljar/v1` into `$OUT_DIR`, without `protoc`.

use std::path::{Path, PathBuf};
use std::{env, fs};

use buffa_codegen::{BytesRepr, CodeGenConfig};

/// First the guest's files, then those that the service adds.
const FILES: [&str; 9] = [
    "guest",
    "filesystem",
    "process",
    "session",
    "interpreter",
    "problem",
    "sandboxes",
    "commands",
    "templates",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let proto = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let names = FILES.map(|name| format!("belljar/v1/{name}.proto"));
    println!("cargo::rerun-if-changed=build.rs");
    for name in &names {
        println!("cargo::rerun-if-changed={}", proto.join(name).display());
    }
    // Comments become those of the Rust items. The set that the server embeds for reflection has none.
    let commented = out.join("commented.bin");
    fs::write(&commented, descriptors(&proto, &names, true)?)?;
    fs::write(out.join("descriptors.bin"), descriptors(&proto, &names, false)?)?;
    connectrpc_build::Config::new()
        .descriptor_set(&commented)
        .files(&names)
        .buffa_config(buffa())
        .emit_rerun_directives(false)
        .include_file("services.rs")
        .compile()?;
    Ok(())
}

/// Compiles the files and all their imports to a `FileDescriptorSet`.
fn descriptors(proto: &Path, names: &[String], comments: bool) -> Result<Vec<u8>, protox::Error> {
    let mut compiler = protox::Compiler::new([proto])?;
    compiler.include_imports(true).include_source_info(comments).open_files(names)?;
    Ok(compiler.encode_file_descriptor_set())
}

fn buffa() -> CodeGenConfig {
    let mut config = CodeGenConfig::default();
    config.generate_json = true;
    // `bytes::Bytes` is shared, not copied, between a pipe and the connection.
    config.bytes_fields = vec![(".".into(), BytesRepr::Bytes)];
    config
}
