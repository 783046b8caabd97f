//! Complete runs in a sandbox whose guest answers arbitrarily.

use std::sync::LazyLock;
use std::time::Duration;

use belljar_engine::{EngineError, GuestClient, NetworkLog, RunRequest, Sandbox, Silent, Usage, Walls, run};
use belljar_model::{
    EngineName, Isolation, Language, LimitsChange, LimitsGrade, NetworkPolicy, Outcome, SandboxId,
    SandboxSpec, SpecFile,
};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};

use crate::answers::check_error;
use crate::data::{Input, check_text};
use crate::hostile::run_against;
use crate::result::check_result;

/// Maximum kept output of the runs here, in bytes.
const MAX_KEPT_BYTES: u64 = 4096;

/// Maximum duration of a run of one phase, whatever the guest does: 30 s to start, the timeout of 5 s, 2 s of grace, twice
/// 2 s of slack, and one more for the host to notice.
const RUN_TIMEOUT: Duration = Duration::from_secs(42);

/// Maximum number of changes in a result.
const MAX_CHANGES: usize = 10_000;

static SPEC: LazyLock<SandboxSpec> = LazyLock::new(|| {
    let limits = r#"{"limits": {"output": "4k", "log": "0", "timeout": "5s"}}"#;
    SpecFile::from_json(limits).and_then(SpecFile::resolve).expect("a specification")
});

/// Checks a run: a byte of switches, then answers.
pub(crate) fn guest_run(data: &[u8]) {
    let mut input = Input(data);
    let switches = input.byte();
    let language = language(switches & 1 != 0);
    let usage = Usage { oom_kills: u64::from(switches & 2 != 0), ..Usage::default() };
    let done = run_against(input, async |stream| {
        let isolation = Isolation {
            engine: EngineName::LOCAL,
            grade: LimitsGrade::Cgroup,
            tree: "host".to_owned(),
            layers: Vec::new(),
        };
        let sandbox = Sandbox::new(
            SandboxId::from_entropy([7; 20]),
            isolation,
            "/home/user".into(),
            GuestClient::new(stream),
            Box::new(StubWalls(usage)),
        );
        let track_files = switches & 8 != 0;
        let mut request = RunRequest::new(&language, "source")
            .source_name("main.x")
            .track_files(track_files)
            .last(switches & 16 != 0);
        if switches & 4 != 0 {
            request = request.stdin(&b"input"[..]);
        }
        // A run with an upload streams, and has no time limit here.
        let has_upload = language.compile.is_some() || track_files;
        let done = tokio::time::timeout(RUN_TIMEOUT, run(&sandbox, &SPEC, request, &mut Silent)).await;
        assert!(done.is_ok() || has_upload, "the run hangs");
        done
    });
    let result = match done {
        Ok(Ok(result)) => result,
        Ok(Err(EngineError::Guest(error))) => return check_error(&error),
        Ok(Err(error)) => panic!("{error}"),
        Err(_) => return,
    };
    check_result(&result);
    for stream in [&result.stdout, &result.stderr] {
        assert!(stream.kept_head_bytes + stream.kept_tail_bytes <= MAX_KEPT_BYTES, "{stream:?}");
    }
    match &result.outcome {
        Outcome::Exited { code } => assert!((0..=255).contains(code), "{code}"),
        Outcome::Signalled { signal, .. } => assert!((1..=64).contains(signal), "{signal}"),
        Outcome::Infrastructure { cause } => check_text(cause),
        _ => {}
    }
    assert_eq!(
        result.exit_status == 0,
        result.outcome.is_success() || is_limit_with_success(&result),
        "{result:?}"
    );
    assert!(result.exit_code.is_none_or(|code| (0..=255).contains(&code)));
    assert!(result.files.len() <= MAX_CHANGES);
    for words in result.hint.iter().chain(&result.signal) {
        check_text(words);
    }
}

/// Reports whether a run ended at a limit with the code's own status, which may be 0.
fn is_limit_with_success(result: &belljar_model::RunResult) -> bool {
    matches!(result.outcome, Outcome::Limit { .. }) && result.exit_code == Some(0)
}

fn language(is_compiled: bool) -> Language {
    let compile = if is_compiled { "compile = ['cc', '{file}']\n" } else { "" };
    let text = format!(
        "name = 'x'\nfile = 'main.x'\n{compile}run = ['x', '{{file}}', '{{args}}']\nversion = ['x']\nprogram = 'x'\n\
         package = 'x'"
    );
    Language::from_toml(&text).expect("a language")
}

/// Walls that do nothing.
struct StubWalls(Usage);

impl Walls for StubWalls {
    fn usage(&self) -> BoxFuture<'_, Usage> {
        async { self.0 }.boxed()
    }

    fn set_limits<'a>(&'a self, _: &'a LimitsChange) -> BoxFuture<'a, Result<(), EngineError>> {
        async { Ok(()) }.boxed()
    }

    fn set_network<'a>(&'a self, _: &'a NetworkPolicy) -> BoxFuture<'a, Result<(), EngineError>> {
        async { Ok(()) }.boxed()
    }

    fn network_log(&self, _: u64, _: bool) -> BoxFuture<'_, Result<NetworkLog, EngineError>> {
        async { Ok(futures::stream::empty().boxed()) }.boxed()
    }

    fn set_deadline(&self, _: Option<Duration>) -> BoxFuture<'_, Result<(), EngineError>> {
        async { Ok(()) }.boxed()
    }

    fn freeze(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        async { Ok(()) }.boxed()
    }

    fn thaw(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        async { Ok(()) }.boxed()
    }

    fn connect(&self) -> BoxFuture<'_, Result<GuestClient, EngineError>> {
        std::future::pending().boxed()
    }

    fn explain_end(&self) -> BoxFuture<'_, Option<EngineError>> {
        async { None }.boxed()
    }

    fn kill(&self) {}

    fn stop(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        async { Ok(()) }.boxed()
    }

    fn wait_ended(&self) -> BoxFuture<'_, String> {
        std::future::pending().boxed()
    }
}
