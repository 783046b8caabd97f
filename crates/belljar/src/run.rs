//! `belljar run`: one run of code, from the command line to its exit status.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_client::v1::CreateSandboxRequest;
use belljar_client::{MessageField, well_known};
use belljar_engine::{CreateRequest, Engine, EngineError, First, Life, RunRequest, Sandbox, THIS_COMMAND};
use belljar_model::{
    ASK_TO_ALLOW, EngineName, Event, HintReader, ImageReference, Language, NetworkEvent, NetworkMode,
    NetworkPolicy, NetworkReport, Outcome, Phase, RunResult, SandboxSpec, Tree,
};
use bytes::Bytes;
use futures::StreamExt as _;

use crate::bring_out;
use crate::cli::{Cleanup, RunArgs, SandboxArgs, misplaced_option};
use crate::code::server_request;
use crate::copy_out::{CopyError, Outputs};
use crate::files::{Inputs, Script};
use crate::input::Program;
use crate::message::{Quit, chain, say, shell_quote};
use crate::net::policy_message;
use crate::output::{Form, Output, Watch, write_failed};
use crate::packages::Packages;
use crate::progress::{Progress, STARTING};
use crate::remote::{Created, RemoteRequest};
use crate::service::args::ServerArgs;
use crate::service::image::{origin, start_from};
use crate::service::link::Link;
use crate::signals::{self, SIGINT, Signals};
use crate::spec::{CheckedSpec, UncheckedSpec, weaker_grade};
use crate::stdin::Stdin;
use crate::timings::{self, Timings};

/// Minimum lifetime of a server's sandbox for one run.
const MIN_LIFE: Duration = Duration::from_secs(3600);

/// Maximum number of denied, and of failed connections in a hint.
const MAX_DENIALS: usize = 2;

/// The shell's exit status for a program that was not found.
const NOT_FOUND: i32 = 127;

/// Runs `belljar run`. Everything is checked before anything starts.
pub(crate) fn run(args: &RunArgs, begin: Instant) -> Result<u8, Quit> {
    if args.events && args.is_json() {
        return Err(Quit::Usage(
            "--format: --events prints JSON of its own; leave out one of them".to_owned(),
        ));
    }
    if args.rich || args.save.is_some() || crate::code::notebook_path(args).is_some() {
        return crate::code::rich(args);
    }
    if args.pictures.is_some() {
        return Err(Quit::Usage(
            "--pictures: only --rich and notebooks show pictures; add --rich".to_owned(),
        ));
    }
    if !args.tools.is_empty() {
        return Err(Quit::Usage("--tool: code calls tools in a context alone; add --rich".to_owned()));
    }
    Packages::check(&args.with)?;
    let timings = Timings::new(begin);
    let mut unchecked = UncheckedSpec::from_args(&args.sandbox)?;
    let language = args.language.as_deref().or(unchecked.language());
    let Some(program) = Program::read(args.code.as_deref(), &args.words, language)? else {
        return Err(Quit::Usage(
            "give a script, -c CODE, or pipe a script in; belljar run --help says more".to_owned(),
        ));
    };
    let packages = Packages::find(
        &args.with,
        program.language,
        std::str::from_utf8(&program.source).unwrap_or_default(),
    )?;
    packages.check_network(unchecked.network_mode())?;
    if !packages.is_empty() {
        unchecked.set_needs_network();
    }
    let image = server_image(&mut unchecked, &args.sandbox, args.image.as_ref())?;
    let template = origin(args.template.as_deref(), image.as_ref());
    let mut checked = match &template {
        // The template has limits of its own, which the language may raise.
        Some(_) => UncheckedSpec::limits_only(&args.sandbox)?.resolve(None, None)?,
        None => unchecked.resolve(Some(program.language), args.sandbox.policy.as_deref())?,
    };
    if template.is_some() {
        checked.spec.network = args.sandbox.net.policy()?;
    }
    let created_network = packages.widen(&checked.spec.network);
    let changed_network = Some(&created_network).filter(|network| **network != checked.spec.network);
    let remote = template
        .as_deref()
        .map(|template| remote(args, template, program.language, changed_network))
        .transpose()?;
    let Some(mut remote) = remote else {
        return run_here(args, &checked, created_network, program, packages, timings);
    };
    let (command, inputs) = Command::new(args, template, &checked.spec, packages, &program)?;
    let progress = Arc::new(Progress::new(STARTING, args.sandbox.quiet));
    let shown = Arc::clone(&progress);
    let creation = async {
        let link = Link::open(&ServerArgs::new(args.sandbox.quiet)).await?;
        start_from(&link, image.as_ref(), &mut remote.request).await?;
        remote.create(link, shown).await
    };
    finish(command.execute(creation, program, inputs, progress, timings))
}

/// Runs a program in a sandbox without a server, which has this network at its start.
pub(crate) fn run_here(
    args: &RunArgs,
    checked: &CheckedSpec,
    network: NetworkPolicy,
    program: Program,
    packages: Packages,
    timings: Timings,
) -> Result<u8, Quit> {
    let (command, inputs) = Command::new(args, None, &checked.spec, packages, &program)?;
    if checked.spec.engine == EngineName::LOCAL {
        inputs.check_size(checked.spec.limits.memory.bytes())?;
    }
    let progress = Arc::new(Progress::new(STARTING, args.sandbox.quiet));
    let engine = checked.engine();
    let spec = SandboxSpec { network, ..checked.spec.clone() };
    let first = match inputs.is_empty() && command.packages.is_empty() {
        true => belljar_engine::first(program.language, &program.source, command.form() != Form::Plain),
        false => First::Call,
    };
    let request = CreateRequest { spec: &spec, life: Life::Run { first } };
    let creation = async {
        let sandbox = create(&*engine, request).await?;
        Ok(Created { sandbox, memory: None, may_wait: false })
    };
    finish(command.execute(creation, program, inputs, progress, timings))
}

/// Runs a command to its end.
fn finish(command: impl Future<Output = Result<u8, Quit>>) -> Result<u8, Quit> {
    let runtime = runtime()?;
    let done = runtime.block_on(command);
    // The process ends right away, which is faster than shutting the runtime down.
    std::mem::forget(runtime);
    done
}

/// Returns the image that a server has to pull, if one is given that the engine has no store for.
pub(crate) fn server_image(
    unchecked: &mut UncheckedSpec,
    sandbox: &SandboxArgs,
    image: Option<&ImageReference>,
) -> Result<Option<ImageReference>, Quit> {
    let image = unchecked.take_image(image)?;
    match (&image, &sandbox.engine) {
        (Some(_), Some(engine)) => {
            let text = format!(
                "--image: the engine {engine} has no images of its own; leave out --engine, and the server pulls the image"
            );
            Err(Quit::Usage(text))
        }
        _ => Ok(image),
    }
}

/// Returns the request for a sandbox from a template. It lives at least as long as the run may take.
fn remote(
    args: &RunArgs,
    template: &str,
    language: &'static Language,
    network: Option<&NetworkPolicy>,
) -> Result<RemoteRequest, Quit> {
    let given = args.sandbox.resources.file()?;
    let life = given.timeout.map_or(MIN_LIFE, |timeout| timeout.duration().max(MIN_LIFE));
    let mut request = CreateSandboxRequest {
        template: template.to_owned(),
        timeout: MessageField::some(well_known::Duration::from(life)),
        ..server_request(&args.sandbox, "--template", &[])?
    };
    if let Some(network) = network {
        request.network_policy = policy_message(network.into()).into();
    }
    Ok(RemoteRequest { request, given, language })
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

/// Creates a sandbox without a server.
pub(crate) async fn create(engine: &dyn Engine, request: CreateRequest<'_>) -> Result<Sandbox, Quit> {
    Ok(engine.create(request).await.map_err(with_command)?)
}

/// Waits for a sandbox that is being created, unless a signal comes first.
pub(crate) async fn wait_for_creation<T>(
    creation: impl Future<Output = Result<T, Quit>>,
    signals: &mut Signals,
    progress: &Progress,
) -> Result<T, Quit> {
    tokio::select! {
        sandbox = creation => sandbox,
        signal = signals.next() => Err(Quit::Status(signals::status(signal))),
        never = progress.keep_moving() => match never {},
    }
}

/// Installs packages, and then closes the network to what `network` allows. Returns the directory that has to be added to Python's
/// path, if any.
async fn install(
    packages: &Packages,
    sandbox: &Sandbox,
    network: &NetworkPolicy,
) -> Result<Option<String>, Quit> {
    let path = packages.install(sandbox.guest()).await?;
    if packages.widen(network) != *network {
        sandbox.set_network(network).await?;
    }
    Ok(path)
}

/// Puts this command line into an error's hint, so that it can be copied.
fn with_command(error: EngineError) -> EngineError {
    match error {
        EngineError::Layer { layer, reason, fix } => {
            EngineError::Layer { layer, reason, fix: name_this_command(&fix) }
        }
        other => other,
    }
}

/// Puts this command line into advice, so that it can be copied.
pub(crate) fn name_this_command(advice: &str) -> String {
    let words = std::env::args_os().map(|word| shell_quote(&word.to_string_lossy())).collect::<Vec<_>>();
    advice.replace(THIS_COMMAND, &words.join(" "))
}

/// One `belljar run` whose arguments have been checked.
struct Command<'a> {
    args: &'a RunArgs,
    /// The server's template, if it runs in one.
    template: Option<String>,
    /// The specification under which the program runs.
    spec: SandboxSpec,
    outputs: Outputs,
    packages: Packages,
    /// Whether the run may have to wait for approval, which covers no later input.
    may_wait: bool,
}

/// Input of the program.
enum Input {
    /// Standard input as it comes; none if it is empty.
    Stream(Option<Stdin>),
    /// What is sent with the start.
    Sent(Bytes),
}

/// Result of a run.
struct Done {
    result: RunResult,
    copied: Vec<CopyError>,
    /// Whether the last program, the code or its compiler, was found and started.
    has_started: bool,
}

impl<'a> Command<'a> {
    /// Checks what is put in and brought out.
    fn new(
        args: &'a RunArgs,
        template: Option<String>,
        spec: &SandboxSpec,
        packages: Packages,
        program: &Program,
    ) -> Result<(Self, Inputs), Quit> {
        let script = args.words.first().filter(|word| args.code.is_none() && *word != "-").map(Path::new);
        let script = Script { place: &program.source_name, path: script };
        let inputs = Inputs::find(&args.files, Some(script))?;
        let outputs = Outputs::find(&args.outs)?;
        if let Some(dir) = &args.log_dir {
            check_dir(dir)?;
        }
        let command = Self { args, template, spec: spec.clone(), outputs, packages, may_wait: false };
        Ok((command, inputs))
    }

    fn form(&self) -> Form {
        match (self.args.is_json(), self.args.events) {
            (true, _) => Form::Json,
            (_, true) => Form::Events,
            _ => Form::Plain,
        }
    }

    async fn execute(
        mut self,
        creation: impl Future<Output = Result<Created, Quit>>,
        program: Program,
        inputs: Inputs,
        progress: Arc<Progress>,
        mut timings: Timings,
    ) -> Result<u8, Quit> {
        let mut signals = Signals::catch()?;
        let mut output = Output::new(self.form(), Arc::clone(&progress));
        timings.step("prepare");
        let Created { sandbox, memory, may_wait } =
            wait_for_creation(creation, &mut signals, &progress).await.inspect_err(|_| progress.clear())?;
        self.may_wait = may_wait;
        timings.step("create");
        if let Some(memory) = memory {
            self.spec.limits.memory = memory;
        }
        let language = program.language;
        let picture_hint = self.picture_hint(&program);
        let done = self.in_sandbox(&sandbox, program, inputs, &mut output, &mut signals, &mut timings).await;
        progress.clear();
        let stopped = match self.args.cleanup {
            // A server removes its own sandboxes.
            Cleanup::Background if self.template.is_none() => {
                // The supervisor is asked to remove everything, and does so even after this process has exited.
                drop(sandbox);
                Ok(())
            }
            _ => sandbox.stop().await,
        };
        timings.step("stop");
        let Done { mut result, copied, has_started } = done?;
        if !has_started && result.exit_code == Some(NOT_FOUND) {
            let Language { name, package, .. } = language;
            result.hint.get_or_insert_with(|| match &self.template {
                Some(template) => format!(
                    "The language {name} is not installed in the template {template}; a step apt = {:?} installs it.",
                    package.split(' ').collect::<Vec<_>>()
                ),
                None => match &self.spec.tree {
                    Tree::Image(image) => format!("The language {name} is not installed in the image {image}."),
                    _ => format!("The language {name} is not installed here: apt-get install {package}."),
                },
            });
        }
        let program_args = self.args.words.get(usize::from(self.args.code.is_none())..).unwrap_or_default();
        if !result.outcome.is_success()
            && result.hint.is_none()
            && let Some(option) = misplaced_option(program_args)
        {
            result.hint = Some(format!(
                "{option} was passed to the program; options of belljar run go before the script."
            ));
        }
        if result.hint.is_none() {
            result.hint = match result.outcome.is_success() {
                true => picture_hint,
                false => self.input_hint(&result, program_args),
            };
        }
        let spent = timings.finish(result.timings.take());
        if self.args.timings {
            result.timings = Some(spent);
        }
        let status = self.finish(&mut output, result, copied, has_started).await?;
        stopped?;
        Ok(status)
    }

    /// Returns the hint that an argument is a file here, which the program has not found.
    fn input_hint(&self, result: &RunResult, program_args: &[OsString]) -> Option<String> {
        let stderr = result.stderr.text.as_deref()?;
        let names = program_args.iter().filter_map(|word| word.to_str());
        let name = names.filter(|name| stderr.contains(*name)).find(|name| Path::new(name).is_file())?;
        let name = shell_quote(name);
        Some(format!("{name} is a file here, and not in the sandbox; put it in with -f {name}."))
    }

    /// Returns the hint for a program that shows pictures, which nobody sees unless it writes them to files.
    fn picture_hint(&self, program: &Program) -> Option<String> {
        let source = std::str::from_utf8(&program.source).ok().filter(|_| self.outputs.is_empty())?;
        let shows =
            program.language.name == "python" && source.contains("plt.show(") && !source.contains("savefig(");
        shows.then(|| {
            "plt.show() shows no picture here; --rich shows pictures, and -o brings out what plt.savefig has written.".to_owned()
        })
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
        let path = if self.packages.is_empty() {
            None
        } else {
            let network = &self.spec.network;
            if let Some(remark) = self.packages.remark(network).filter(|_| !self.args.sandbox.quiet) {
                progress.hide();
                say(&remark);
            }
            progress.message(self.packages.progress());
            let installing = install(&self.packages, sandbox, network);
            let path = match wait_for_creation(installing, signals, &progress).await {
                Err(Quit::Error(error)) => {
                    return Err(Quit::Error(match denials(sandbox).await {
                        Some(denial) => anyhow::anyhow!("{}. {denial}", chain(error.as_ref())),
                        None => error,
                    }));
                }
                path => path?,
            };
            progress.message(STARTING);
            timings.step("install");
            path
        };
        let stdin = if program.took_stdin { None } else { Stdin::open() };
        let input = match stdin {
            Some(stdin) if self.may_wait => Input::Sent(stdin.read_ahead().await?),
            stdin => Input::Stream(stdin),
        };
        let result = {
            let running = self.run_program(sandbox, program, inputs, input, path, output);
            supervise(running, sandbox, &watch, signals, &progress).await?
        };
        let mut result = result;
        if !result.outcome.is_success()
            && self.has_network()
            && let Some(denial) = denials(sandbox).await
        {
            result.hint = Some(match result.hint {
                Some(hint) => format!("{hint} {denial}"),
                None => denial,
            });
        }
        timings.skip();
        let copied = if self.outputs.is_empty() {
            Vec::new()
        } else {
            {
                let limits = &self.spec.limits;
                let most = limits.disk.bytes().max(limits.tmp.bytes());
                bring_out::bring_out(&self.outputs, sandbox.guest(), most, signals).await?
            }
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
        input: Input,
        path: Option<String>,
        output: &mut Output,
    ) -> Result<RunResult, EngineError> {
        if let Err(error) = inputs.prepare(sandbox.guest()).await {
            return Err(sandbox.explain(error.into()).await);
        }
        let mut request = RunRequest::new(program.language, program.source)
            .source_name(program.source_name)
            .args(program.args)
            .env(path.map(|path| ("PYTHONPATH".to_owned(), path)))
            .files(inputs.into_files())
            // The list is not shown otherwise, and tracking takes time.
            .track_files(self.form() != Form::Plain)
            // A network's log is read after the run.
            .last(self.outputs.is_empty() && self.form() == Form::Plain && !self.has_network())
            .hint_reader(HintReader::CommandLine);
        request = match input {
            Input::Stream(Some(stdin)) => request.stdin(stdin),
            Input::Stream(None) => request,
            Input::Sent(bytes) => request.input(bytes),
        };
        if let Some(dir) = &self.args.log_dir {
            request = request.log_dir(dir.join(sandbox.id.as_str()));
        }
        belljar_engine::run(sandbox, &self.spec, request, output).await
    }

    fn has_network(&self) -> bool {
        self.spec.network.mode() != NetworkMode::Disabled
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
        let status = result.exit_status;
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
        Ok(bring_out::report(&copied, failed, quiet, status))
    }
}

/// Returns why connections were denied or failed during the run, and how to allow them, if some were.
async fn denials(sandbox: &Sandbox) -> Option<String> {
    // A hint is no reason to fail: a server's sandbox has no log here.
    let mut records = sandbox.network_log(0, false).await.ok()?;
    let (mut denied, mut failed) = (Vec::new(), Vec::new());
    while let Some(report) = records.next().await {
        match report.ok().and_then(NetworkReport::record).map(|record| record.event) {
            Some(
                NetworkEvent::Connection { allowed: false, reason, .. } | NetworkEvent::Lookup { reason, .. },
            ) => denied.push(reason),
            Some(NetworkEvent::Ended { host, port, received: 0, error: Some(error), .. }) => {
                failed.push((host, port, error));
            }
            _ => {}
        }
    }
    // A connection that was denied once it had begun has both.
    failed.retain(|(.., error)| !denied.contains(error));
    let failed = failed.into_iter().map(|(host, port, error)| match error.contains(&host) {
        true => error,
        false => format!("{host}:{port}: {error}"),
    });
    let denied = denied.into_iter().map(|reason| reason.replace(ASK_TO_ALLOW, "allow it with --allow "));
    let texts = [
        list_first("The network policy denied connections", denied.collect()),
        list_first("Connections failed", failed.collect()),
    ];
    let texts: Vec<String> = texts.into_iter().flatten().collect();
    (!texts.is_empty()).then(|| texts.join(" "))
}

/// Returns a sentence with the first reasons, if there are some.
fn list_first(what: &str, mut reasons: Vec<String>) -> Option<String> {
    reasons.dedup();
    let more = match reasons.len().saturating_sub(MAX_DENIALS) {
        0 => String::new(),
        more => format!("; {more} more"),
    };
    reasons.truncate(MAX_DENIALS);
    (!reasons.is_empty()).then(|| format!("{what}: {}{more}.", reasons.join("; ")))
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
