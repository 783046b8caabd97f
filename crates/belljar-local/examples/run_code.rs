//! Runs untrusted Python from a Rust program, without the command line tool: `cargo run --example run_code`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use belljar_engine::{Engine as _, RunRequest, Silent};
use belljar_local::{LocalConfig, LocalEngine};
use belljar_model::{EngineKind, Languages, SandboxSpec};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The sandbox's first process is this very program: it must get its turn before anything else happens.
    belljar_local::enter_guest();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run())
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let spec = SandboxSpec::default();
    let engine = LocalEngine::new(LocalConfig::new(EngineKind::Local));
    let sandbox = engine.create(&spec).await?;
    let request = RunRequest {
        language: Languages::builtin().by_name("python")?,
        source_name: "main.py".into(),
        source: "import os\nprint(2**64, 'in', os.getcwd(), 'as uid', os.getuid())\n".into(),
        args: Vec::new(),
        stdin: None,
        files: Vec::new(),
        track_files: false,
        log_dir: None,
        last: true,
    };
    let result = belljar_engine::run(&sandbox, &spec, request, &mut Silent).await;
    sandbox.stop().await?;
    let result = result?;
    println!("{}", result.stdout.text.as_deref().unwrap_or_default().trim_end());
    println!("outcome: {:?}, {} ms", result.outcome, result.wall_ms);
    Ok(())
}
