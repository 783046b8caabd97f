//! What tests of engines share whose sandboxes run outside the test's process: the set-up, their own tests, and those that each has.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belljar_model::{EngineName, NetworkFile, SandboxId, SandboxSpec};
use libtest_mimic::{Completion, Failed, Trial};

use super::{Case, Conforming, Context, Outcome};
use crate::client::ProcessEvent;
use crate::engine::{CreateRequest, Engine, Sandbox};
use crate::engine_error::EngineError;
use crate::v1;

/// Result of a test.
pub type Tested<T = ()> = Result<T, Failed>;

/// A test of an engine's own, by its name.
pub type OwnTest<S> = (&'static str, fn(&S) -> Tested);

/// Maximum time for a sandbox to be ended.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval at which a state is looked at again.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A machine on which an engine can be used.
pub trait Setup: Sized + 'static {
    /// Its name.
    const ENGINE: EngineName;

    /// Finds what the engine needs.
    ///
    /// # Errors
    /// The reason why it cannot be used, for which the tests are skipped.
    fn find() -> Result<Self, String>;

    /// Lists what is left of a sandbox.
    fn leftovers(&self, id: &str) -> Vec<String>;
}

/// Returns a specification for the engine.
#[must_use]
pub fn spec<S: Setup>() -> SandboxSpec {
    SandboxSpec { engine: S::ENGINE, ..SandboxSpec::default() }
}

/// Returns an id that no other test program has.
#[must_use]
pub fn id(byte: u8) -> SandboxId {
    let mut bytes = [byte; SandboxId::LEN];
    let (own, _) = bytes.split_at_mut(4);
    own.copy_from_slice(&std::process::id().to_ne_bytes());
    SandboxId::from_entropy(bytes)
}

/// Runs a future on a runtime of its own.
///
/// # Errors
/// Fails without a runtime.
pub fn block_on<T>(future: impl Future<Output = T>) -> Tested<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(future))
}

/// Returns the guest's program beside the tests, so that the test program itself, which is much larger, is not used.
#[must_use]
pub fn guest_program() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let path = own.parent()?.parent()?.join("belljar-guest");
    path.exists().then_some(path)
}

/// Runs a program, and returns its output and its exit status.
///
/// # Errors
/// Fails if it cannot be run.
pub async fn run(sandbox: &Sandbox, argv: &[&str]) -> Tested<(String, i32)> {
    run_to_end(sandbox, argv).await.map(|(output, exited)| (output, exited.code))
}

/// Runs a program, and returns its output and how it ended.
///
/// # Errors
/// Fails if it cannot be run.
pub async fn run_to_end(sandbox: &Sandbox, argv: &[&str]) -> Tested<(String, v1::Exited)> {
    let argv = argv.iter().map(|word| bytes::Bytes::copy_from_slice(word.as_bytes())).collect();
    let request = v1::StartRequest { argv, kill_rest: true, ..Default::default() };
    let mut execution = sandbox.guest().start(request).await?;
    let mut output = Vec::new();
    while let Some(event) = execution.next().await? {
        match event {
            ProcessEvent::Output { data, .. } => output.extend_from_slice(&data),
            ProcessEvent::Exited(exited) => {
                return Ok((String::from_utf8_lossy(&output).trim().to_owned(), exited));
            }
            _ => {}
        }
    }
    Err("the program has no end".into())
}

fn skipped(what: &str, reason: String) -> Tested<Completion> {
    writeln!(std::io::stdout(), "SKIPPED {what}: {reason}")?;
    Ok(Completion::ignored_with(reason))
}

fn with<S: Setup>(test: impl FnOnce(&S) -> Tested<Completion>) -> Tested<Completion> {
    match S::find() {
        Ok(setup) => test(&setup),
        Err(reason) => skipped(&format!("the engine {}", S::ENGINE), reason),
    }
}

/// Returns a case as a test, which is ignored if the engine lacks what the case needs, or if it is an exception there.
#[must_use]
pub fn case_trial<S: Setup>(
    name: String,
    case: Case,
    engine: &'static Conforming,
    open: impl FnOnce(&S) -> Arc<dyn Engine> + Send + 'static,
) -> Trial {
    let is_ignored = engine.is_exception(&case) || case.missing_capability(engine.capabilities).is_some();
    let test = move |setup: &S| {
        let dir = tempfile::tempdir()?;
        let scratch = dir.path().canonicalize()?.join("scratch");
        std::fs::create_dir(&scratch)?;
        let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs");
        let context = Context::new(open(setup), spec::<S>(), engine.capabilities, scratch, programs)
            .with_leftovers(|id| {
                S::find().map_or_else(|error| vec![error], |setup| setup.leftovers(id.as_str()))
            });
        match block_on(case.run(&context))? {
            Outcome::Passed => Ok(Completion::Completed),
            Outcome::Failed(text) => Err(text.into()),
            Outcome::Skipped(reason) => skipped(&case.name, reason),
        }
    };
    Trial::ignorable_test(name, move || with(test)).with_ignored_flag(is_ignored)
}

/// Returns an engine's own test.
#[must_use]
pub fn own_trial<S: Setup>((name, test): OwnTest<S>) -> Trial {
    let test = move |setup: &S| test(setup).map(|()| Completion::Completed);
    Trial::ignorable_test(format!("own::{name}"), move || with(test))
}

/// Waits until nothing is left of a sandbox.
pub async fn nothing_is_left<S: Setup>(setup: &S, id: &SandboxId) {
    while !setup.leftovers(id.as_str()).is_empty() {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Checks that so many sandboxes in a row, each ended in another way, leave nothing.
///
/// # Errors
/// Fails if one cannot be created or stopped.
pub fn in_a_row_leave_nothing<S: Setup>(setup: &S, engine: &dyn Engine, rounds: u8) -> Tested {
    block_on(async {
        for round in 0..rounds {
            let spec = spec::<S>();
            let sandbox = engine.create(CreateRequest::run(&spec)).await?;
            let id = sandbox.id.clone();
            match round % 3 {
                0 => sandbox.stop().await?,
                1 => {
                    sandbox.kill();
                    sandbox.stop().await?;
                }
                _ => drop(sandbox),
            }
            nothing_is_left(setup, &id).await;
        }
        Tested::Ok(())
    })?
}

/// Opens connections to its own listeners, sends, accepts none, and closes its ends: the kernel charges none of what they hold.
const LEAVES_WAITING: &str = "
import socket
held = []
while True:
    server = socket.socket()
    server.bind(('127.0.0.1', 0))
    server.listen(4096)
    held.append(server)
    for _ in range(256):
        with socket.socket() as client:
            client.settimeout(1)
            try:
                client.connect(server.getsockname())
                client.setblocking(False)
                while True: client.send(bytes(28000))
            except OSError: pass
";

/// Checks that connections in a sandbox with a network that no program accepts end it once they hold more than its limit of memory.
///
/// # Errors
/// Fails if the sandbox cannot be created, or goes on.
pub fn waiting_connections_end_the_sandbox<S: Setup>(engine: &dyn Engine) -> Tested {
    let network = NetworkFile { mode: Some("whitelist".to_owned()), ..NetworkFile::default() }.resolve()?;
    let mut spec = SandboxSpec { network, ..spec::<S>() };
    spec.limits.memory = "64m".parse()?;
    block_on(async {
        let sandbox = engine.create(CreateRequest::run(&spec)).await?;
        let ended = async {
            let _ = run(&sandbox, &["python3", "-c", LEAVES_WAITING]).await;
            sandbox.wait_ended().await
        };
        let how = tokio::time::timeout(END_TIMEOUT, ended).await;
        sandbox.stop().await?;
        let how = how.map_err(|_| "the sandbox goes on")?;
        if !how.contains("did not accept") {
            return Err(format!("it ended otherwise: {how}").into());
        }
        Tested::Ok(())
    })?
}

/// Checks that sandboxes outlive their server, whose engine is opened with its directory. `kill` kills one from outside.
///
/// # Errors
/// Fails if one of its steps does.
///
/// # Panics
/// If what is found is not what was left.
pub fn sandbox_outlives_its_server<S: Setup, E: Engine>(
    setup: &S,
    open: impl Fn(PathBuf) -> E,
    kill: impl FnOnce(&SandboxId) -> Tested,
) -> Tested {
    let dir = tempfile::tempdir()?;
    let (run_dir, spec) = (dir.path().join("own"), spec::<S>());
    let (running, paused) = (id(1), id(2));
    block_on(async {
        let engine = open(run_dir.clone());
        assert!(engine.survivors().await?.is_empty());
        for id in [&running, &paused] {
            let sandbox = engine.create(CreateRequest::long_lived(id, &spec, None)).await?;
            sandbox.write_file("file", id.to_string()).await?;
            let again = engine.create(CreateRequest::long_lived(id, &spec, None)).await;
            assert!(matches!(again, Err(EngineError::IdInUse { .. })), "{again:?}");
            sandbox.set_deadline(Some(Duration::from_secs(600))).await?;
            if *id == paused {
                sandbox.freeze().await?;
            }
        }
        Tested::Ok(())
    })??;
    block_on(async {
        // A server with other records has other sandboxes.
        assert!(open(dir.path().join("other")).survivors().await?.is_empty());
        let engine = open(run_dir.clone());
        let survivors = engine.survivors().await?;
        assert_eq!(survivors.len(), 2, "{survivors:?}");
        for survivor in survivors {
            assert_eq!(survivor.is_frozen, survivor.id == paused);
            assert!(
                survivor.ended.is_none() && survivor.deadline > Some(Duration::from_secs(500)),
                "{survivor:?}"
            );
            let sandbox = engine.adopt(&survivor.id).await?.ok_or("it is not there")?;
            if survivor.is_frozen {
                sandbox.thaw().await?;
            }
            assert_eq!(sandbox.read_file("file", 100).await?, survivor.id.as_str());
            if survivor.id == paused {
                sandbox.stop().await?;
            }
        }
        // Killed by somebody else while no server runs.
        kill(&running)?;
        let engine = open(run_dir.clone());
        let survivors = loop {
            let survivors = engine.survivors().await?;
            if survivors.iter().all(|survivor| survivor.ended.is_some()) {
                break survivors;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        };
        assert_eq!(survivors.len(), 1, "{survivors:?}");
        assert!(engine.adopt(&running).await?.is_none() && engine.survivors().await?.is_empty());
        Tested::Ok(())
    })??;
    for id in [running, paused] {
        let left = setup.leftovers(id.as_str());
        assert!(left.is_empty() && !run_dir.join(id.as_str()).exists(), "{left:?}");
    }
    Ok(())
}
