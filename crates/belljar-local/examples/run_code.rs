//! Runs untrusted Python from a Rust program, without the command line tool: `cargo run --example run_code`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use belljar_local::{
    CreateRequest, Engine as _, Languages, LocalConfig, LocalEngine, LocalKind, RunRequest, SandboxSpec,
    Silent,
};

const SOURCE: &str = "
import os, sys
print(2**64, 'in', os.getcwd(), 'as uid', os.getuid())
open('shout.txt', 'w').write(sys.stdin.read().upper() + sys.argv[1])
";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Without the separate guest program, a sandbox's first process is this program: this must be called before anything else.
    belljar_guest::enter();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run())
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let spec = SandboxSpec::default();
    let engine = LocalEngine::new(LocalConfig::new(LocalKind::Local));
    let sandbox = engine.create(CreateRequest::run(&spec)).await?;
    let python = Languages::builtin().by_name("python")?;
    let request = RunRequest::new(python, SOURCE).args(["!"]).stdin(&b"hello"[..]);
    let result = belljar_local::run(&sandbox, &spec, request, &mut Silent).await;
    let written = sandbox.read_file("shout.txt", 1024).await;
    sandbox.stop().await?;
    let result = result?;
    println!("{}", result.stdout.text.as_deref().unwrap_or_default().trim_end());
    println!("outcome: {:?}, {} ms", result.outcome, result.wall_ms);
    println!("{}", String::from_utf8_lossy(&written?));
    Ok(())
}
