//! Measures the cost of a sandbox with and without the launcher: the time of a launch, and the memory of an idle one.
//!
//! `cargo run --release -p belljar-local --example launcher_cost [LAUNCHES] [IDLE] [RESIDENT_MIB]`, as root.
#![allow(clippy::print_stdout, reason = "it is a program for people")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_engine::{Engine, Sandbox};
use belljar_local::{CreateRequest, LauncherConfig, LauncherEngine, LocalConfig, LocalEngine, LocalKind};
use belljar_model::{LimitsGrade, SandboxId, SandboxSpec};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    belljar_guest::enter();
    belljar_local::enter_launcher();
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<usize>());
    let mut number = |default: usize| numbers.next().transpose().map(|given| given.unwrap_or(default));
    let (launches, idle, resident_mib) = (number(200)?, number(50)?, number(256)?);
    let dir = std::env::temp_dir().join(format!("belljar-launcher-cost-{}", std::process::id()));
    let config = LauncherConfig::new(dir.clone(), LocalConfig::new(LocalKind::Local));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let measured = runtime.block_on(async {
        let launcher = LauncherEngine::new(config.clone());
        let measured = measure(&launcher, launches, idle, resident_mib).await;
        launcher.shut_down().await?;
        measured
    });
    std::fs::remove_dir_all(dir)?;
    measured
}

async fn measure(launcher: &LauncherEngine, launches: usize, idle: usize, resident_mib: usize) -> Result<()> {
    let direct = LocalEngine::new(LocalConfig::new(LocalKind::Local));
    compare("from a small process", &direct, launcher, launches).await?;
    let held = vec![1u8; resident_mib << 20];
    compare(&format!("from one of {resident_mib} MiB"), &direct, launcher, launches).await?;
    drop(held);
    let mut sandboxes = Vec::new();
    for _ in 0..idle {
        let sandbox = launch(launcher).await?;
        sandbox.guest().check().await?;
        sandboxes.push(sandbox);
    }
    // By then the start-up work of the sandboxes and the launcher is over.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let launcher_pid =
        children_of(std::process::id()).into_iter().find(|pid| process_name(*pid) == "belljar-launch");
    let launcher_pid = launcher_pid.ok_or("no launcher")?;
    let supervisors = children_of(launcher_pid);
    // The process that creates a network namespace stays as a zombie, without memory, until its supervisor ends.
    let has_memory = |pid: &u32| pss_kib(*pid).is_ok();
    let guests: Vec<u32> = supervisors.iter().flat_map(|pid| children_of(*pid)).filter(has_memory).collect();
    let (supervisor, guest) = (average(&supervisors)?, average(&guests)?);
    println!("idle sandboxes: {}", guests.len());
    println!("  launcher   PSS {:>8.0} KiB in all", pss_kib(launcher_pid)?);
    println!("  supervisor PSS {supervisor:>8.0} KiB each");
    println!("  guest      PSS {guest:>8.0} KiB each");
    let mut charged = 0;
    for sandbox in &sandboxes {
        charged += sandbox.usage().await.memory_bytes.unwrap_or(0) >> 10;
    }
    println!("  charged to its control group {:>8} KiB each", charged / sandboxes.len().max(1) as u64);
    for sandbox in sandboxes {
        sandbox.stop().await?;
    }
    Ok(())
}

async fn launch(engine: &dyn Engine) -> Result<Sandbox> {
    let mut bytes = [0u8; 20];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    let grade = if rustix::process::geteuid().is_root() { LimitsGrade::Cgroup } else { LimitsGrade::Watched };
    let spec = SandboxSpec { grade, ..SandboxSpec::default() };
    Ok(engine.create(CreateRequest::long_lived(&SandboxId::from_entropy(bytes), &spec, None)).await?)
}

/// Launches with each engine in turn, so that other load on the machine affects both.
async fn compare(what: &str, direct: &LocalEngine, launcher: &LauncherEngine, launches: usize) -> Result<()> {
    let engines: [(&str, &dyn Engine); 2] = [("direct", direct), ("launcher", launcher)];
    let mut times: [Vec<(Duration, Duration)>; 2] = Default::default();
    for _ in 0..launches {
        for ((_, engine), times) in engines.iter().zip(&mut times) {
            let begin = Instant::now();
            let sandbox = launch(*engine).await?;
            let launched = begin.elapsed();
            sandbox.stop().await?;
            times.push((launched, begin.elapsed()));
        }
    }
    println!("{what}, {launches} launches, until the guest serves (and until it is gone again)");
    for ((name, _), times) in engines.iter().zip(&mut times) {
        times.sort_unstable();
        let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default();
        let (half, most) = (at(50), at(95));
        println!("  {name:<9} p50 {:>8.2?} ({:.2?})  p95 {:>8.2?} ({:.2?})", half.0, half.1, most.0, most.1);
    }
    Ok(())
}

fn average(pids: &[u32]) -> Result<f64> {
    let sum: f64 = pids.iter().map(|pid| pss_kib(*pid)).sum::<Result<f64>>()?;
    Ok(sum / f64::from(u32::try_from(pids.len().max(1))?))
}

fn pss_kib(pid: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).ok_or("no PSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

fn process_name(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim().to_owned()
}

fn children_of(pid: u32) -> Vec<u32> {
    let path: PathBuf = Path::new("/proc").join(pid.to_string()).join(format!("task/{pid}/children"));
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}
