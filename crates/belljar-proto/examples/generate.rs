//! Writes `src/generated/` anew from `proto/`. Needs `protoc`; run as `make proto`.

use std::path::Path;

use buffa_codegen::{BytesRepr, CodeGenConfig};

/// First what the guest speaks, then what the service adds to it.
const FILES: [&str; 12] = [
    "guest",
    "filesystem",
    "process",
    "session",
    "interpreter",
    "problem",
    "sandboxes",
    "commands",
    "templates",
    "keys",
    "audit",
    "server",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let proto = root.join("../../proto");
    let out = root.join("src/generated");
    std::fs::create_dir_all(&out)?;
    connectrpc_build::Config::new()
        .files(&FILES.map(|name| proto.join(format!("belljar/v1/{name}.proto"))))
        .includes(&[proto])
        .out_dir(out)
        .buffa_config(buffa())
        .emit_rerun_directives(false)
        .include_file("mod.rs")
        .emit_descriptor_set("descriptors.bin")
        .compile()?;
    Ok(())
}

fn buffa() -> CodeGenConfig {
    let mut config = CodeGenConfig::default();
    config.generate_json = true;
    // `bytes::Bytes` is shared, not copied, on the way from a pipe to the wire.
    config.bytes_fields = vec![(".".into(), BytesRepr::Bytes)];
    config
}
