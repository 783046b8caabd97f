//! `belljar run`: one run of code, from the command line to its exit status.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use belljar_engine::{CreateRequest, Engine as _, EngineError, Life, RunRequest, Sandbox};
use belljar_local::{LocalEngine, LocalKind, THIS_COMMAND};
use belljar_model::{Event, HintReader, Outcome, Phase, RunResult, SandboxSpec};

use crate::bring_out::bring_out;
use crate::cli::{Cleanup, RunArgs};
use crate::copy_out::{CopyError, Outputs};
use crate::files::{Inputs, Script};
use crate::input::Program;
use crate::message::{FAILED, Quit, chain, say};
use crate::output::{Form, Output, Watch, write_failed};
use crate::progress::{Progress, STARTING};
use crate::signals::{self, SIGINT, Signals};
use crate::spec::{UncheckedSpec, weaker_grade};
use crate::stdin::Stdin;
use crate::timings::{self, Timings};

/// The shell's exit status for a program that was not found.
const NOT_FOUND: i32 = 127;

/// Runs `belljar run`. Everything is checked before anything starts.
pub(crate) fn run(args: &RunArgs, begin: Instant) -> Result<u8, Quit> {
    if args.rich {
        return crate::code::rich(args);
    }
    let timings = Timings::new(begin);
    let unchecked = UncheckedSpec::from_args(&args.sandbox)?;
    let language = args.language.as_deref().or(unchecked.language());
    let Some(program) = Program::read(args.code.as_deref(), &args.words, language)? else {
        return Err(Quit::Usage(
            "give a script, -c CODE, or pipe a script in; belljar run --help says more".to_owned(),
        ));
    };
    let checked = unchecked.resolve(Some(program.language), args.sandbox.policy.as_deref())?;
    let script = args.words.first().filter(|word| args.code.is_none() && *word != "-").map(Path::new);
    let script = Script { place: &program.source_name, path: script };
    let inputs = Inputs::find(&args.files, Some(script))?;
    if checked.kind == LocalKind::Local {
        inputs.check_size(checked.spec.limits.memory.bytes())?;
    }
    let outputs = Outputs::find(&args.outs)?;
    if let Some(dir) = &args.log_dir {
        check_dir(dir)?;
    }
    let engine = checked.engine();
    let command = Command { args, spec: &checked.spec, outputs };
    let runtime = runtime()?;
    let done = runtime.block_on(command.execute(&engine, program, inputs, timings));
    // The process ends right away, which is faster than shutting the runtime down.
    std::mem::forget(runtime);
    done
}

/// Creates the single-threaded runtime of a command.
pub(crate) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

fn check_dir(dir: &Path) -> Result<(), Quit> {
    match std::fs::metadata(dir) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(anyhow::anyhow!("log-dir: {dir:?} is not a directory").into()),
        Err(error) => Err(anyhow::Error::new(error).context(format!("log-dir: cannot use {dir:?}")).into()),
    }
}

/// Waits for a sandbox that an engine creates, unless a signal comes first.
pub(crate) async fn wait_for_creation(
    creation: impl Future<Output = Result<Sandbox, EngineError>>,
    signals: &mut Signals,
    progress: &Progress,
) -> Result<Sandbox, Quit> {
    tokio::select! {
        sandbox = creation => Ok(sandbox.map_err(with_command)?),
        signal = signals.next() => Err(Quit::Status(signals::status(signal))),
        never = progress.keep_moving() => match never {},
    }
}

/// Puts this command line into an error's hint, so that it can be copied.
fn with_command(error: EngineError) -> EngineError {
    match error {
        EngineError::Layer { layer, reason, fix } => {
            let words: Vec<String> =
                std::env::args_os().map(|word| shell_quote(&word.to_string_lossy())).collect();
            EngineError::Layer { layer, reason, fix: fix.replace(THIS_COMMAND, &words.join(" ")) }
        }
        other => other,
    }
}

/// Quotes a word for a shell.
fn shell_quote(word: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "_@%+=:,./-".contains(character);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// One `belljar run` whose arguments have been checked.
struct Command<'a> {
    args: &'a RunArgs,
    spec: &'a SandboxSpec,
    outputs: Outputs,
}

/// Result of a run.
struct Done {
    result: RunResult,
    copied: Vec<CopyError>,
    /// Whether the last program, the code or its compiler, was found and started.
    has_started: bool,
}

impl Command<'_> {
    fn form(&self) -> Form {
        match (self.args.json, self.args.events) {
            (true, _) => Form::Json,
            (_, true) => Form::Events,
            _ => Form::Plain,
        }
    }

    async fn execute(
        &self,
        engine: &LocalEngine,
        program: Program,
        inputs: Inputs,
        mut timings: Timings,
    ) -> Result<u8, Quit> {
        let quiet = self.args.sandbox.quiet;
        let mut signals = Signals::catch()?;
        let progress = Arc::new(Progress::new(STARTING, quiet));
        let mut output = Output::new(self.form(), Arc::clone(&progress));
        timings.step("prepare");
        let creation = engine.create(CreateRequest { spec: self.spec, life: Life::Run { wait: false } });
        let sandbox =
            wait_for_creation(creation, &mut signals, &progress).await.inspect_err(|_| progress.clear())?;
        timings.step("create");
        let language = program.language;
        let done = self.in_sandbox(&sandbox, program, inputs, &mut output, &mut signals, &mut timings).await;
        progress.clear();
        let stopped = match self.args.cleanup {
            Cleanup::Wait => sandbox.stop().await,
            Cleanup::Background => {
                // The supervisor is asked to remove everything, and does so even after this process has exited.
                drop(sandbox);
                Ok(())
            }
        };
        timings.step("stop");
        let Done { mut result, copied, has_started } = done?;
        if !has_started && result.exit_code == Some(NOT_FOUND) {
            let install = format!(
                "The language {} is not installed here: apt-get install {}.",
                language.name, language.package
            );
            result.hint.get_or_insert(install);
        }
        let spent = timings.finish(result.timings.take());
        if self.args.timings {
            result.timings = Some(spent);
        }
        let status = self.finish(&mut output, result, copied, has_started).await?;
        stopped?;
        Ok(status)
    }

    /// Runs the program in the sandbox, and copies its outputs.
    async fn in_sandbox(
        &self,
        sandbox: &Sandbox,
        program: Program,
        inputs: Inputs,
        output: &mut Output,
        signals: &mut Signals,
        timings: &mut Timings,
    ) -> Result<Done, Quit> {
        let started = Event::Started { id: sandbox.id.clone(), engine: sandbox.isolation.engine };
        output.event(&started).await.map_err(write_failed)?;
        if let Some(warning) = weaker_grade(sandbox.isolation.grade) {
            if !self.args.sandbox.quiet {
                output.progress().hide();
                say(warning);
            }
            let event = Event::Warning { message: warning.to_owned() };
            output.event(&event).await.map_err(write_failed)?;
        }
        let (watch, progress) = (output.watch(), output.progress());
        let result = {
            let running = self.run_program(sandbox, program, inputs, output);
            supervise(running, sandbox, &watch, signals, &progress).await?
        };
        timings.skip();
        let copied = if self.outputs.is_empty() {
            Vec::new()
        } else {
            bring_out(&self.outputs, sandbox.guest(), self.spec, signals).await?
        };
        timings.step("bring_out");
        let is_compiled = result.compile.as_ref().is_none_or(|compile| compile.outcome.is_success());
        let last = if is_compiled { Phase::Run } else { Phase::Compile };
        Ok(Done { result, copied, has_started: output.last_phase() == Some(last) })
    }

    async fn run_program(
        &self,
        sandbox: &Sandbox,
        program: Program,
        mut inputs: Inputs,
        output: &mut Output,
    ) -> Result<RunResult, EngineError> {
        if let Err(error) = inputs.prepare(sandbox.guest()).await {
            return Err(sandbox.explain(error.into()).await);
        }
        let mut request = RunRequest::new(program.language, program.source)
            .source_name(program.source_name)
            .args(program.args)
            .files(inputs.into_files())
            // The list is not shown otherwise, and tracking takes time.
            .track_files(self.form() != Form::Plain)
            .last(self.outputs.is_empty() && self.form() == Form::Plain)
            .hint_reader(HintReader::CommandLine);
        if !program.took_stdin
            && let Some(stdin) = Stdin::open()
        {
            request = request.stdin(stdin);
        }
        if let Some(dir) = &self.args.log_dir {
            request = request.log_dir(dir.join(sandbox.id.as_str()));
        }
        belljar_engine::run(sandbox, self.spec, request, output).await
    }

    /// Prints the result, and returns the exit status.
    async fn finish(
        &self,
        output: &mut Output,
        result: RunResult,
        copied: Vec<CopyError>,
        has_started: bool,
    ) -> Result<u8, Quit> {
        let quiet = self.args.sandbox.quiet;
        let failed = !result.outcome.is_success();
        let mut status = result.exit_status;
        if let Outcome::Infrastructure { cause } = &result.outcome {
            say(cause);
        }
        if self.form() == Form::Plain {
            print_diagnostics(&result, has_started, quiet);
        }
        if self.args.timings
            && let Some(timings) = &result.timings
        {
            timings::report(timings);
        }
        match self.form() {
            Form::Plain => {}
            Form::Json => output.line(&result).await.map_err(write_failed)?,
            Form::Events => {
                output.end_of_phase().await.map_err(write_failed)?;
                output.line(&Event::Result(Box::new(result))).await.map_err(write_failed)?;
            }
        }
        for error in copied {
            if failed && error.may_follow_failure() {
                if !quiet {
                    say(&format!("warning: {}", chain(&error)));
                }
            } else {
                say(&chain(&error));
                status = FAILED;
            }
        }
        Ok(status)
    }
}

/// Prints messages that the program's own output does not contain.
fn print_diagnostics(result: &RunResult, has_started: bool, quiet: bool) {
    if !has_started {
        // It did not start, so nothing else has reported why.
        let streams = [result.compile.as_ref().map(|compile| &compile.stderr), Some(&result.stderr)];
        for text in streams.into_iter().flatten().filter_map(|stream| stream.text.as_deref()) {
            text.lines().for_each(say);
        }
    }
    if let Some(hint) = result.hint.as_ref().filter(|_| !quiet) {
        say(&format!("hint: {hint}"));
    }
}

/// Waits for the end of a run. The first Ctrl-C goes to the code; another one, and every other signal, ends the sandbox,
/// as does a closed standard output.
async fn supervise(
    running: impl Future<Output = Result<RunResult, EngineError>>,
    sandbox: &Sandbox,
    watch: &Watch,
    signals: &mut Signals,
    progress: &Progress,
) -> Result<RunResult, Quit> {
    tokio::pin!(running);
    let mut interrupted = false;
    loop {
        tokio::select! {
            result = &mut running => return Ok(result?),
            quit = watch.failed() => return Err(quit),
            never = progress.keep_moving() => match never {},
            signal = signals.next() => match watch.process() {
                Some(process) if signal == SIGINT && !interrupted => {
                    interrupted = true;
                    let guest = sandbox.guest().clone();
                    // If this one gets lost, the next Ctrl-C ends the sandbox.
                    tokio::spawn(async move { guest.signal(process, SIGINT, true).await });
                }
                _ => return Err(Quit::Status(signals::status(signal))),
            },
        }
    }
}
