//! Commands that go on by themselves: in the background, and processes that callers follow as they do the guest's own.

use std::sync::Arc;
use std::time::Duration;

use belljar_engine::{Execution, GuestError, ProcessEvent, Sandbox, v1};
use belljar_model::OutputSize;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::action::EXEC_START;
use crate::audit::CODE_DIGEST;
use crate::caller::Caller;
use crate::entry::Entry;
use crate::error::KeeperError;
use crate::exec::{Running, command_digest};
use crate::keeper::{Entered, Keeper, Result};
use crate::operation::{Opened, Operation as _};
use crate::request::ExecRequest;
use crate::run::{Reporter, Run};

/// A command in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    /// Its number in the sandbox, which is never reused.
    pub process: u64,
    /// Its process id in the sandbox.
    pub pid: u32,
}

/// Time for reading the last output of background commands before a sandbox is stopped.
const FINAL_OUTPUT_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum number of background commands asked about.
const FINAL_OUTPUT_PROCESSES: usize = 16;

/// Number of bytes read of each stream of the last one.
const FINAL_OUTPUT_BYTES: u64 = 2048;

impl Keeper {
    /// Starts a command in the background, once it is approved if it needs that. The guest keeps its output, which can be read by offset. When
    /// the future is dropped before it is done, the command is killed: nobody knows its number.
    ///
    /// # Errors
    /// Fails if it cannot be started.
    pub async fn start(&self, caller: &Caller, id: &str, request: ExecRequest) -> Result<Started> {
        self.run_call(caller, id, move |keeper, caller, id, mut gone| async move {
            keeper.start_until_gone(&caller, &id, request, &mut gone).await
        })
        .await
    }

    async fn start_until_gone(
        &self,
        caller: &Caller,
        id: &str,
        request: ExecRequest,
        gone: &mut oneshot::Receiver<()>,
    ) -> Result<Started> {
        if let Some(asked) = request.keep_bytes.filter(|asked| *asked > OutputSize::MAX.bytes()) {
            let reason = format!(
                "{asked} bytes are too many; at most {} are kept of each stream",
                OutputSize::MAX.bytes()
            );
            return Err(KeeperError::field("output", reason));
        }
        self.check_reserve("run a command").await?;
        // It waits itself, unlike the operation of the same name.
        let entered = self.enter_for(&caller.approved(), id, EXEC_START).await?;
        let clearance = self.approve_command(caller, &entered, EXEC_START, &request, |_| (), gone).await?;
        let mut details = vec![(CODE_DIGEST, command_digest(&request))];
        let timeout = request.timeout.filter(|timeout| !timeout.is_zero());
        let started = Running::start(&entered, &request, timeout, true).await;
        details.extend(clearance.details());
        let finished = match &started {
            Ok(running) => {
                clearance.keep_until_exit(&entered, running.id);
                Ok(())
            }
            Err(_) => clearance.finish(&started, |_| String::new()).await,
        };
        self.audit(caller, EXEC_START, Some(entered.id()), &started, details).await?;
        let mut running = started?;
        finished?;
        // Else it is killed with this.
        running.is_over = gone.try_recv() == Err(TryRecvError::Empty);
        entered.entry.note("exec", Some(running.id), "in the background");
        entered.entry.live().has_background = true;
        entered.entry.watch_exit(entered.sandbox(), running.id);
        Ok(Started { process: running.id, pid: running.execution.pid })
    }

    /// Starts a process, as the operation of the same request does, but once it is approved if it needs that. Dropping the future before it
    /// has started cancels it.
    ///
    /// # Errors
    /// Fails if it cannot be started, or is not approved.
    pub async fn start_process(
        &self,
        caller: &Caller,
        entered: &Entered,
        request: v1::StartRequest,
    ) -> Result<Opened<Execution>> {
        self.start_process_to(caller, entered, request, Reporter::none()).await
    }

    /// Starts a process, as [`Self::start_process`] does. The result has the events of the process.
    pub fn stream_start(
        &self,
        caller: &Caller,
        entered: &Entered,
        request: v1::StartRequest,
    ) -> Run<(), Opened<Execution>> {
        let (keeper, caller, entered) = (self.clone(), caller.clone(), entered.clone());
        Run::new(|report| async move { keeper.start_process_to(&caller, &entered, request, report).await })
    }

    async fn start_process_to(
        &self,
        caller: &Caller,
        entered: &Entered,
        request: v1::StartRequest,
        report: Reporter<()>,
    ) -> Result<Opened<Execution>> {
        let (id, entered) = (entered.id().to_string(), entered.clone());
        self.run_call(caller, &id, move |keeper, caller, _, mut gone| async move {
            keeper.start_process_until_gone(&caller, &entered, request, report, &mut gone).await
        })
        .await
    }

    async fn start_process_until_gone(
        &self,
        caller: &Caller,
        entered: &Entered,
        request: v1::StartRequest,
        report: Reporter<()>,
        gone: &mut oneshot::Receiver<()>,
    ) -> Result<Opened<Execution>> {
        if entered.volume().is_some() {
            return self.begin_in(caller, entered, request).await;
        }
        let approved = caller.approved();
        self.check(&approved, v1::StartRequest::KIND.action)?;
        let waiting = |waiting| report.waiting(waiting);
        let clearance = self.approve_start(caller, entered, &request, waiting, gone).await?;
        let opened = self.begin_checked(&approved, entered, request, clearance.details()).await;
        let finished = match &opened {
            Ok(opened) => {
                clearance.keep_until_exit(entered, opened.get().id);
                Ok(())
            }
            Err(_) => clearance.finish(&opened, |_| String::new()).await,
        };
        let opened = opened?;
        finished?;
        Ok(opened)
    }

    /// Reads the last output of background commands, and logs their ends, before their sandbox is stopped.
    pub(crate) async fn collect_last_output(&self, entry: &Arc<Entry>, sandbox: &Sandbox) {
        let reading = async {
            let processes = sandbox.guest().list_processes().await?;
            let mut last = None;
            // The guest's answer is not trusted.
            for process in processes.into_iter().rev().take(FINAL_OUTPUT_PROCESSES).rev() {
                if let Some(exited) = process.exited.as_option() {
                    entry.note_exit(process.id, exited);
                } else {
                    entry.note("running", Some(process.id), "when the sandbox ended");
                }
                if process.stdout_bytes.max(process.stderr_bytes) > 0 {
                    last = Some(process);
                }
            }
            let Some(last) = last else { return Ok(()) };
            let from = |bytes: u64| bytes.saturating_sub(FINAL_OUTPUT_BYTES);
            let (stdout, stderr) = (from(last.stdout_bytes), from(last.stderr_bytes));
            let mut left = last.stdout_bytes - stdout + last.stderr_bytes - stderr;
            let mut execution = sandbox.guest().attach(last.id, [stdout, stderr, 0]).await?;
            while left > 0
                && let Some(event) = execution.next().await?
            {
                match event {
                    ProcessEvent::Output { data, .. } => {
                        left = left.saturating_sub(data.len() as u64);
                        entry.record_output(&data);
                    }
                    ProcessEvent::Started { .. } => {}
                    ProcessEvent::Exited(_) => break,
                }
            }
            Ok::<_, GuestError>(())
        };
        // An unresponsive guest must not delay the stop.
        let _ = tokio::time::timeout(FINAL_OUTPUT_TIMEOUT, reading).await;
    }
}
