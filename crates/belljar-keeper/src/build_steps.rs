//! Step-by-step builds: the steps run in a sandbox of the caller, whose home directory then becomes the template.
//!
//! The sandbox is like any other: it counts in the key's quotas, has the key's network policy and an unprivileged user, and its commands
//! are audited. So any caller that may create sandboxes may build, and the kernel mounts nothing of the result.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use belljar_engine::{EngineError, GuestError, ProcessEvent, v1};
use belljar_image::{BuildError, Lines};
use belljar_model::{EnvVar, SpecFile, TreeBase};
use belljar_store::{TemplateKind, TemplateRow};
use bytes::Bytes;
use jiff::Timestamp;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio_util::io::ReaderStream;

use crate::action::{SANDBOX_USE, TEMPLATE_BUILD};
use crate::builds::{BASE_STEP, Build, FINAL_STEP, LogLevel, StepFailure};
use crate::built::{BuiltRecord, Services, variables};
use crate::caller::Caller;
use crate::error::{KeeperError, chain};
use crate::keeper::{Entered, Keeper, Result};
use crate::operation::Unpack;
use crate::plan::{BuildPlan, CopyFiles, PlanStep, first_line};
use crate::request::{CreateSandbox, Labels, Lifetime, PortSettings, TimeoutAction};
use crate::snapshot::{record_of, spec_file};
use crate::tags::new_template_id;
use crate::templates::Origin;

/// Maximum duration of a build, if sandboxes may live as long.
const MAX_BUILD_TIME: Duration = Duration::from_secs(3600);

/// Maximum size in bytes of a value or path that is computed in the sandbox.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// The user of a machine that may do everything in it, and the one as whom commands run by default.
const ROOT: &str = "root";
/// See [`ROOT`].
const OWN_USER: &str = "user";

const COPY: &str = include_str!("scripts/copy.sh");

/// Error of a build, with its step.
struct Failed {
    step: String,
    error: KeeperError,
}

fn in_step(step: impl Into<String>) -> impl FnOnce(KeeperError) -> Failed {
    move |error| Failed { step: step.into(), error }
}

/// State of a running build.
struct BuildRun<'a> {
    keeper: &'a Keeper,
    caller: &'a Caller,
    build: &'a Build,
    entered: Entered,
    /// The home directory inside.
    home: String,
    env: BTreeMap<String, String>,
    workdir: Option<String>,
    /// The current user, if it is not the sandbox's own.
    user: Option<String>,
    /// Number of the current step, from 1.
    number: usize,
    total: usize,
}

/// Result of a command.
struct Ended {
    exited: v1::Exited,
    stdout: Vec<u8>,
    last_lines: Vec<String>,
}

impl Keeper {
    /// Runs a build to its end, and records its outcome.
    pub(crate) async fn run_build(
        &self,
        caller: &Caller,
        build: &Arc<Build>,
        plan: std::result::Result<BuildPlan, StepFailure>,
    ) {
        let mut details =
            vec![("name", build.name.clone()), ("tags", build.tags.join(" ")), ("build", build.id.clone())];
        let made = match plan {
            Ok(plan) => {
                details.extend([("base", plan.base.clone()), ("steps", plan.steps.len().to_string())]);
                self.make_template(caller, build, &plan).await
            }
            Err(StepFailure { step, message }) => {
                let error = BuildError::Input { field: "template".to_owned(), reason: message };
                Err(Failed { step, error: error.into() })
            }
        };
        let (outcome, step) = match made {
            Ok(row) => {
                details.extend([("template", row.id.clone()), ("sha256", row.digest)]);
                (Ok(()), FINAL_STEP.to_owned())
            }
            Err(Failed { step, error }) => (Err(error), step),
        };
        let outcome = match self.audit(caller, TEMPLATE_BUILD, None, &outcome, details).await {
            Ok(()) => outcome,
            Err(error) => Err(error),
        };
        build.end(outcome.err().map(|error| StepFailure { step, message: message_of(caller, &error) }));
    }

    async fn make_template(
        &self,
        caller: &Caller,
        build: &Build,
        plan: &BuildPlan,
    ) -> std::result::Result<TemplateRow, Failed> {
        let base = in_step(BASE_STEP);
        build.log(LogLevel::Info, Some(BASE_STEP), &format!("[base] FROM {}", plan.base));
        let (entered, home, workdir) = match self.open_build(caller, build, plan).await {
            Ok(opened) => opened,
            Err(error) => return Err(base(error)),
        };
        let id = entered.id().to_string();
        let mut run = BuildRun {
            keeper: self,
            caller,
            build,
            entered,
            home,
            env: BTreeMap::new(),
            workdir: None,
            user: None,
            number: 0,
            total: plan.steps.len(),
        };
        let made = match run.enter(workdir).await {
            Ok(()) => run.build(plan).await,
            Err(error) => Err(base(error)),
        };
        drop(run);
        let ended = match self.kill(caller, &id).await {
            // It has ended by itself, or by request of its owner.
            Err(KeeperError::Gone { .. }) => Ok(()),
            ended => ended,
        };
        let row = made?;
        ended.map_err(in_step(FINAL_STEP))?;
        Ok(row)
    }

    /// Creates the sandbox for the steps. Returns it with its home directory and the initial working directory.
    async fn open_build(
        &self,
        caller: &Caller,
        build: &Build,
        plan: &BuildPlan,
    ) -> Result<(Entered, String, Option<String>)> {
        let origin = self.origin(caller, &plan.base).await?;
        let timeout = MAX_BUILD_TIME.min(self.inner.config.now().max_lifetime);
        let request = CreateSandbox {
            template: Some(plan.base.clone()),
            name: None,
            return_existing: false,
            spec: SpecFile {
                limits: build.limits.clone(),
                network: plan.network.clone(),
                machine: plan.is_machine().then_some(true),
                ..SpecFile::default()
            },
            lifetime: Lifetime {
                timeout,
                idle_timeout: None,
                on_timeout: TimeoutAction::Kill,
                auto_resume: false,
            },
            labels: Labels::default(),
            files: Vec::new(),
            idempotency: None,
            ports: PortSettings::default(),
        };
        let created = self.create_for_build(caller, request).await?;
        let id = created.info.id.as_str();
        let entered = match self.enter_for(caller, id, SANDBOX_USE).await {
            Ok(entered) => entered,
            Err(error) => {
                self.kill(caller, id).await?;
                return Err(error);
            }
        };
        let home = created.info.home.clone();
        Ok((entered, home, origin.built.and_then(|built| built.workdir)))
    }
}

impl BuildRun<'_> {
    /// Makes the base's working directory that of the steps. As Docker does: no layer of an image may have its `WORKDIR`.
    async fn enter(&mut self, workdir: Option<String>) -> Result<()> {
        if let Some(path) = &workdir {
            let words = ["/bin/sh", "-c", "[ -d \"$1\" ] || mkdir -p -- \"$1\"", "sh", path.as_str()];
            // What cannot be made, the first command in it reports.
            self.run(words, false, self.root()).await?;
        }
        self.workdir = workdir;
        Ok(())
    }

    async fn build(&mut self, plan: &BuildPlan) -> std::result::Result<TemplateRow, Failed> {
        for step in &plan.steps {
            self.number += 1;
            let number = self.number.to_string();
            let text = format!("[{number}/{}] {} {}", self.total, step.kind(), step.summary());
            self.build.log(LogLevel::Info, Some(&number), &text);
            self.step(step).await.map_err(in_step(number))?;
        }
        self.store_template(plan).await.map_err(in_step(FINAL_STEP))
    }

    async fn step(&mut self, step: &PlanStep) -> Result<()> {
        match step {
            PlanStep::User(user) => {
                self.user.clone_from(user);
                Ok(())
            }
            PlanStep::Run { line, user } => {
                let user = user.clone().or_else(|| self.user.clone());
                let ended = self.run(["/bin/bash", "-l", "-c", line], true, user).await?;
                self.check(step, ended).await.map(drop)
            }
            PlanStep::Env(pairs) => {
                for (name, value) in pairs {
                    let value = self.expand(step, value).await?;
                    // Only valid variables are stored.
                    EnvVar::new(name.clone(), value.clone())?;
                    self.env.insert(name.clone(), value);
                }
                Ok(())
            }
            PlanStep::Workdir(path) => {
                let path = self.expand(step, path).await?;
                // Root can make it anywhere.
                let owner = self.owner(None);
                let script = "[ -d \"$1\" ] || mkdir -p -- \"$1\" && { [ -z \"$2\" ] || chown -- \"$2\" \"$1\"; } || exit; cd -- \"$1\" && pwd";
                let words = ["/bin/sh", "-c", script, "sh", &path, &owner];
                let ended = self.run(words, false, self.root()).await?;
                let output = self.check(step, ended).await?;
                self.workdir = Some(output.trim_end_matches('\n').to_owned());
                Ok(())
            }
            PlanStep::Copy(copy) => self.copy(step, copy).await,
        }
    }

    /// Expands variables in a text, but not commands.
    async fn expand(&mut self, step: &PlanStep, text: &str) -> Result<String> {
        if !text.contains('$') {
            return Ok(text.to_owned());
        }
        let script = format!("printf %s \"{}\"", escape(text));
        let ended = self.run(["/bin/bash", "-l", "-c", &script], false, self.user.clone()).await?;
        self.check(step, ended).await
    }

    /// Returns root, in a machine.
    fn root(&self) -> Option<String> {
        self.entered.spec().machine.then(|| ROOT.to_owned())
    }

    /// Returns the owner of what a step makes as root, with its group; empty where there is no root.
    fn owner(&self, named: Option<&String>) -> String {
        if !self.entered.spec().machine {
            return String::new();
        }
        let owner = named.or(self.user.as_ref()).map_or(OWN_USER, String::as_str);
        // The group of a user that is named alone is its own.
        if owner.contains(':') { owner.to_owned() } else { format!("{owner}:") }
    }

    async fn copy(&mut self, step: &PlanStep, copy: &CopyFiles) -> Result<()> {
        let path = self.keeper.upload_path(self.caller, &copy.hash);
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => KeeperError::from(BuildError::Input {
                field: "filesHash".to_owned(),
                reason: format!(
                    "the files {} did not come, or are gone; send them again",
                    copy.hash.as_str()
                ),
            }),
            _ => KeeperError::File { action: "read", path: path.clone(), source },
        };
        let mut archive = tokio::fs::File::open(&path).await.map_err(failed)?;
        let mut magic = [0u8; 2];
        let is_gzip = archive.read_exact(&mut magic).await.is_ok() && magic == [0x1f, 0x8b];
        archive.rewind().await.map_err(failed)?;
        let format = if is_gzip {
            v1::ArchiveFormat::ARCHIVE_FORMAT_TAR_GZIP
        } else {
            v1::ArchiveFormat::ARCHIVE_FORMAT_TAR
        };
        let place = format!("{}/.belljar-copy-{}", self.home, self.number);
        let open = v1::UnpackOpen {
            path: place.clone().into(),
            format: format.into(),
            links_may_lead_out: true,
            ..Default::default()
        };
        let unpack = Unpack::new(open, ReaderStream::new(archive));
        self.keeper.perform_in(self.caller, &self.entered, unpack).await?;
        let target = self.expand(step, &copy.target).await?;
        let mode = copy.mode.map(|mode| format!("{mode:04o}")).unwrap_or_default();
        let owner = self.owner(copy.owner.as_ref());
        let words = ["/bin/sh", "-c", COPY, "sh", &place, copy.source.as_str(), &target, &mode, &owner];
        let ended = self.run(words, true, self.root()).await?;
        self.check(step, ended).await.map(drop)
    }

    /// Runs a program to its end. If `logged`, its output goes into the build's log; else standard output is returned.
    async fn run<const N: usize>(
        &mut self,
        argv: [&str; N],
        logged: bool,
        user: Option<String>,
    ) -> Result<Ended> {
        // Paths of steps begin where commands of sandboxes do, whoever runs them.
        let cwd = self.workdir.clone().unwrap_or_else(|| self.home.clone());
        let request = v1::StartRequest {
            argv: argv.iter().map(|word| Bytes::copy_from_slice(word.as_bytes())).collect(),
            env: variables(&self.env),
            cwd: cwd.into_bytes().into(),
            user: user.unwrap_or_default(),
            kill_rest: true,
            on_disconnect: v1::OnDisconnect::ON_DISCONNECT_KILL.into(),
            ..Default::default()
        };
        let mut running = self.keeper.begin_in(self.caller, &self.entered, request).await?;
        let (mut lines, mut stdout) = (Lines::default(), Vec::new());
        let (build, step) = (self.build, self.number.to_string());
        let tell = |level| {
            let step = step.clone();
            move |line: &str| {
                if logged {
                    build.log(level, Some(&step), line);
                }
            }
        };
        while let Some(event) = running.next().await? {
            match event {
                ProcessEvent::Started { .. } => {}
                ProcessEvent::Output { stream, data, .. } => {
                    let is_error = stream == v1::Stream::STREAM_STDERR;
                    if !logged && !is_error {
                        let room = MAX_ANSWER_BYTES.saturating_sub(stdout.len());
                        stdout.extend_from_slice(data.get(..data.len().min(room)).unwrap_or_default());
                        continue;
                    }
                    let level = if is_error { LogLevel::Warning } else { LogLevel::Info };
                    lines.take(stream, &data, &mut tell(level));
                }
                ProcessEvent::Exited(exited) => {
                    lines.end(&mut tell(LogLevel::Info));
                    return Ok(Ended { exited, stdout, last_lines: lines.into_last() });
                }
            }
        }
        let lost = GuestError::Protocol { what: "a command has no end" };
        Err(self.entered.explain(lost).await)
    }

    /// Returns the output of a successful command, else an error.
    async fn check(&self, step: &PlanStep, ended: Ended) -> Result<String> {
        let Ended { exited, stdout, last_lines } = ended;
        if exited.signal == 0 && exited.code == 0 {
            return Ok(String::from_utf8_lossy(&stdout).into_owned());
        }
        let mut how = describe_exit(&exited);
        if self.entered.sandbox().usage().await.oom_kills > 0 {
            how.push_str("; memory ran out, and files count as memory: give the build more (memory_mb)");
        }
        Err(BuildError::Step {
            number: self.number,
            total: self.total,
            kind: step.kind(),
            command: step.summary(),
            how,
            code: (exited.signal == 0).then_some(exited.code),
            last_lines,
        }
        .into())
    }

    /// Creates the template from the sandbox, and stores it under all its tags.
    async fn store_template(&mut self, plan: &BuildPlan) -> Result<TemplateRow> {
        let tell = |text: &str| self.build.log(LogLevel::Info, Some(FINAL_STEP), text);
        tell("[finalize] keeping the files");
        let id = new_template_id()?;
        let mut archive = self.keeper.pack(&self.entered, self.keeper.archive_path(&id)).await?;
        let record = self.record(plan);
        self.start_services(plan, &record).await?;
        let mut spec = spec_file(&self.entered);
        spec.network = None;
        spec.env.get_or_insert_default().extend(self.env.clone());
        spec.clone().resolve()?;
        let json = |value: serde_json::Result<String>| {
            value.map_err(|error| KeeperError::field("template", error.to_string()))
        };
        let (first, others) = self
            .build
            .tags
            .split_first()
            .ok_or_else(|| KeeperError::field("tags", "a build has at least one"))?;
        let name = self.build.name.as_str();
        let row = TemplateRow {
            id,
            tenant: self.caller.tenant.clone(),
            key_id: self.caller.key.clone(),
            name: Some(crate::plan::stored_name(name, first)),
            kind: TemplateKind::Snapshot,
            source_sandbox: None,
            digest: archive.digest.clone(),
            bytes: i64::try_from(archive.bytes).unwrap_or(i64::MAX),
            spec: json(serde_json::to_string(&spec))?,
            created_at: Timestamp::now(),
            note: format!("built in {} steps from {}", plan.steps.len(), plan.base),
            built: json(serde_json::to_string(&record))?,
        };
        self.keeper.replace(self.caller, name, first, &row).await?;
        archive.kept = true;
        for tag in others {
            self.keeper.store_tagged(self.caller, name, tag, &row).await?;
        }
        tell("[finalize] the template is ready");
        Ok(row)
    }

    fn record(&self, plan: &BuildPlan) -> BuiltRecord {
        let base_record = record_of(&self.entered.spec().tree);
        let base = base_record.unwrap_or(BuiltRecord::unchanged(TreeBase::Host));
        // A template without its own services has those of its base.
        let (start, ready) = match &plan.start {
            Some(start) => (Some(start.clone()), plan.ready.clone()),
            None => (base.start.clone(), base.ready.clone()),
        };
        BuiltRecord {
            start,
            ready,
            workdir: self.workdir.clone(),
            build: Some(self.build.id.clone()),
            ..base
        }
    }

    /// Starts the template's services, and waits until they are ready.
    async fn start_services(&self, plan: &BuildPlan, record: &BuiltRecord) -> Result<()> {
        let log = |level, text: &str| self.build.log(level, Some(FINAL_STEP), text);
        let origin = Origin {
            id: String::new(),
            name: self.build.name.clone(),
            spec: SpecFile { env: Some(self.env.clone()), ..SpecFile::default() },
            archive: None,
            bytes: 0,
            built: Some(BuiltRecord {
                start: plan.start.clone(),
                ready: plan.ready.clone(),
                ..record.clone()
            }),
            image: None,
        };
        let sandbox = self.entered.sandbox();
        let services = Services::from_origin(&origin, sandbox);
        let Some(services) = services else { return Ok(()) };
        if let Some(start) = &plan.start {
            log(LogLevel::Info, &format!("[start] {}", first_line(start)));
        }
        let process = services.start().await?;
        if let Some(ready) = &plan.ready {
            log(LogLevel::Info, &format!("[ready] {}", first_line(ready)));
        }
        services.wait_until_ready().await?;
        let Some(process) = process else { return Ok(()) };
        let guest = |error| KeeperError::from(EngineError::Guest(error));
        let all = self.entered.guest().list_processes().await.map_err(guest)?;
        let found = all.into_iter().find(|one| one.id == process);
        let exited = found.and_then(|one| one.exited.into_option());
        let Some(exited) = exited.filter(|exited| exited.signal != 0 || exited.code != 0) else {
            return Ok(());
        };
        let mut lines = Lines::default();
        let mut output = self.entered.guest().attach(process, [0; 3]).await.map_err(guest)?;
        while let Some(event) = output.next().await.map_err(guest)? {
            match event {
                ProcessEvent::Output { stream, data, .. } => {
                    lines.take(stream, &data, &mut |line: &str| log(LogLevel::Warning, line));
                }
                ProcessEvent::Started { .. } => {}
                ProcessEvent::Exited(_) => break,
            }
        }
        lines.end(&mut |line: &str| log(LogLevel::Warning, line));
        Err(BuildError::Step {
            number: self.total,
            total: self.total,
            kind: "start",
            command: plan.start.as_deref().map(first_line).unwrap_or_default(),
            how: describe_exit(&exited),
            code: (exited.signal == 0).then_some(exited.code),
            last_lines: lines.into_last(),
        }
        .into())
    }
}

/// Describes the end of a command, for the build's author.
fn describe_exit(exited: &v1::Exited) -> String {
    match exited.signal {
        0 => format!("it ended with exit code {}", exited.code),
        signal => format!("it was ended by signal {signal}"),
    }
}

/// Escapes a text for a shell's double quotes, so that only variables are expanded.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let is_command = letter == '$' && letters.peek() == Some(&'(');
        if is_command || matches!(letter, '\\' | '"' | '`') {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}

/// Returns the message of an error for the caller; the server's internal errors go to its log instead.
fn message_of(caller: &Caller, error: &KeeperError) -> String {
    let is_own = matches!(
        error,
        KeeperError::Engine(_)
            | KeeperError::Store(_)
            | KeeperError::Audit(_)
            | KeeperError::File { .. }
            | KeeperError::Record { .. }
    );
    if !is_own {
        return chain(error);
    }
    tracing::error!(error = %chain(error), request_id = %caller.request_id, "a build failed");
    format!("the build failed; the server's log has the reason under {}", caller.request_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_variables_are_expanded() {
        let expand = |text: &str| {
            let script = format!("NAME=value; printf %s \"{}\"", escape(text));
            let output = std::process::Command::new("bash").arg("-c").arg(script).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        for (text, expected) in [
            ("a $NAME b", "a value b"),
            ("${NAME}s", "values"),
            ("$(id) `id` \"$NAME\"", "$(id) `id` \"value\""),
            (r"\$NAME", r"\value"),
            ("${NAME:-$(id)}", "value"),
            ("100%", "100%"),
        ] {
            assert_eq!(expand(text), expected, "{text}");
        }
    }
}
