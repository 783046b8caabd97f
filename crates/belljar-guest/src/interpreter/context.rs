//! One context: its interpreter, its queue and its public state.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use belljar_proto::{ConnectError, v1};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::kernel::{Kernel, Language};
use super::shell::Shell;
use crate::guest::Guest;
use crate::process::Process;

/// Maximum number of executions queued in one context.
const MAX_QUEUED: usize = 32;

/// Capacity of the channel of control messages to an execution.
const CONTROL_CAPACITY: usize = 32;

/// A context.
pub(super) struct Context {
    pub(super) id: String,
    pub(super) number: u64,
    pub(super) language: Language,
    cwd: Bytes,
    env: Vec<v1::EnvVar>,
    /// Held by the running execution. Fair: first come, first served.
    turn: Arc<Semaphore>,
    /// Locked while the interpreter is used or replaced.
    slot: tokio::sync::Mutex<Option<Interpreter>>,
    state: Mutex<State>,
}

/// A running interpreter.
pub(super) enum Interpreter {
    Kernel(Box<Kernel>),
    Shell(Shell),
}

struct State {
    /// Number of queued executions, including the running one.
    queued: usize,
    process: Option<Arc<Process>>,
    version: String,
    /// Kind of the interpreter's start, and the reason why it is not pre-warmed if it should be.
    start: (v1::KernelStart, String),
    /// Number of interpreters started so far.
    generation: u32,
    executions: u64,
    idle_since: Instant,
    /// Reason why the previous interpreter was lost.
    lost: Option<String>,
    is_removed: bool,
    running: Option<Running>,
}

/// The running execution.
struct Running {
    execution: u64,
    controls: mpsc::Sender<Control>,
    /// True while it waits for input.
    awaits_input: bool,
    /// Calls that wait for their answers, with whether each is one of a stored tool.
    open_calls: HashMap<u64, bool>,
}

/// Control message to an execution.
pub(super) enum Control {
    Interrupt,
    /// Ends the interpreter, for this reason.
    End(&'static str),
    /// Input; `None` is an end of file.
    Answer(Option<String>),
    /// The answer to a call of a tool: its result, or the message of an error.
    ToolAnswer(u64, Result<Box<RawValue>, String>),
}

/// A position in the queue. Dropping it leaves the queue.
pub(super) struct QueueTicket {
    context: Arc<Context>,
}

impl Drop for QueueTicket {
    fn drop(&mut self) {
        self.context.state().queued -= 1;
    }
}

impl QueueTicket {
    /// Waits until the execution may run; it may do so until the permit is dropped.
    pub(super) async fn wait_turn(&self) -> Result<OwnedSemaphorePermit, ConnectError> {
        let permit = Arc::clone(&self.context.turn).acquire_owned().await;
        permit.map_err(|_| self.context.removed_error())
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Context").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Context {
    pub(super) fn new(
        id: String,
        number: u64,
        language: Language,
        request: &v1::CreateContextRequest,
    ) -> Self {
        let state = State {
            queued: 0,
            process: None,
            version: String::new(),
            start: (v1::KernelStart::KERNEL_START_PLAIN, String::new()),
            generation: 0,
            executions: 0,
            idle_since: Instant::now(),
            lost: None,
            is_removed: false,
            running: None,
        };
        Self {
            id,
            number,
            language,
            cwd: request.cwd.clone(),
            env: request.env.clone(),
            turn: Arc::new(Semaphore::new(1)),
            slot: tokio::sync::Mutex::new(None),
            state: Mutex::new(state),
        }
    }

    /// Removes environment and directory from the request where they equal those of the context.
    pub(super) fn strip_fixed_environment(&self, request: &mut v1::ExecuteCodeRequest) {
        if self.language.has_fixed_environment() {
            request.env.retain(|variable| !self.env.contains(variable));
            if request.cwd == self.cwd {
                request.cwd.clear();
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Creates the error for a context that was removed meanwhile.
    pub(super) fn removed_error(&self) -> ConnectError {
        ConnectError::not_found(format!("context: the context \"{}\" was removed", self.id))
    }

    /// Enters the queue.
    pub(super) fn enqueue(self: &Arc<Self>) -> Result<QueueTicket, ConnectError> {
        let mut state = self.state();
        // The running one is not queued.
        if state.queued > MAX_QUEUED {
            return Err(ConnectError::resource_exhausted(format!(
                "context \"{}\": queue limit of {MAX_QUEUED} executions reached; try again later",
                self.id
            )));
        }
        state.queued += 1;
        Ok(QueueTicket { context: Arc::clone(self) })
    }

    /// Locks the interpreter for use or replacement.
    pub(super) async fn slot(&self) -> tokio::sync::MutexGuard<'_, Option<Interpreter>> {
        self.slot.lock().await
    }

    /// Starts an interpreter in the slot unless one is running.
    pub(super) async fn ensure_started(
        &self,
        guest: &Arc<Guest>,
        slot: &mut Option<Interpreter>,
    ) -> Result<(), ConnectError> {
        if let Some(interpreter) = slot {
            if interpreter.process().is_running() {
                return Ok(());
            }
            let why = interpreter.describe_exit();
            self.set_lost(format!("between two executions {why}"));
            interpreter.end(guest).await;
            *slot = None;
        }
        if self.state().is_removed {
            return Err(self.removed_error());
        }
        let interpreter = match &self.language {
            Language::Bash => Interpreter::Shell(Shell::open(guest, &self.cwd, &self.env)?),
            language => {
                Interpreter::Kernel(Box::new(Kernel::start(guest, language, &self.cwd, &self.env).await?))
            }
        };
        let start = match &interpreter {
            Interpreter::Kernel(kernel) => kernel.start.clone(),
            Interpreter::Shell(_) => (v1::KernelStart::KERNEL_START_PLAIN, String::new()),
        };
        let mut state = self.state();
        state.process = Some(Arc::clone(interpreter.process()));
        state.version = match &interpreter {
            Interpreter::Kernel(kernel) => kernel.version.clone(),
            Interpreter::Shell(_) => String::new(),
        };
        state.start = start;
        state.generation += 1;
        state.executions = 0;
        state.idle_since = Instant::now();
        drop(state);
        *slot = Some(interpreter);
        Ok(())
    }

    /// Kills the interpreter and its running execution; returns the locked empty slot.
    pub(super) async fn stop(
        &self,
        guest: &Guest,
        why: &'static str,
    ) -> tokio::sync::MutexGuard<'_, Option<Interpreter>> {
        if let Some(running) = &self.state().running {
            // An execution with a full channel is already ending.
            let _ = running.controls.try_send(Control::End(why));
        }
        let mut slot = self.slot.lock().await;
        if let Some(interpreter) = slot.take() {
            interpreter.end(guest).await;
        }
        self.state().process = None;
        slot
    }

    /// Refuses further executions.
    pub(super) fn remove(&self) {
        self.state().is_removed = true;
        self.turn.close();
    }

    /// Records that the interpreter was lost.
    pub(super) fn set_lost(&self, why: String) {
        let mut state = self.state();
        state.process = None;
        state.lost = Some(why);
    }

    pub(super) fn clear_lost(&self) {
        self.state().lost = None;
    }

    /// Begins an execution. Returns its number in the interpreter, the reason why the previous interpreter was lost,
    /// and the receiver of control messages.
    pub(super) fn begin_execution(&self, execution: u64) -> (u64, String, mpsc::Receiver<Control>) {
        let (controls, receiver) = mpsc::channel(CONTROL_CAPACITY);
        let mut state = self.state();
        state.executions += 1;
        state.running =
            Some(Running { execution, controls, awaits_input: false, open_calls: HashMap::new() });
        (state.executions, state.lost.take().unwrap_or_default(), receiver)
    }

    pub(super) fn end_execution(&self) {
        let mut state = self.state();
        state.running = None;
        state.idle_since = Instant::now();
    }

    /// Records whether the running execution waits for input.
    pub(super) fn set_awaits_input(&self, awaits_input: bool) {
        if let Some(running) = &mut self.state().running {
            running.awaits_input = awaits_input;
        }
    }

    /// Records that the running execution waits for the answer to a call, which may be one of a stored tool.
    pub(super) fn add_call(&self, call: u64, of_tool: bool) {
        if let Some(running) = &mut self.state().running {
            running.open_calls.insert(call, of_tool);
        }
    }

    /// Checks that code in this context can call the tools that a request names.
    pub(super) fn check_tools(&self, request: &v1::ExecuteCodeRequest) -> Result<(), ConnectError> {
        if request.tools.is_empty() && request.functions.is_empty() || self.language.has_tools() {
            return Ok(());
        }
        let reason = format!(
            "tools: code in contexts of {} cannot call any; Python, JavaScript and TypeScript can",
            self.language.name()
        );
        Err(ConnectError::invalid_argument(reason))
    }

    /// Interrupts the running execution; returns false if there is none.
    pub(super) fn interrupt(&self) -> bool {
        // An execution with a full channel is already being interrupted.
        self.state().running.as_ref().is_some_and(|running| {
            let _ = running.controls.try_send(Control::Interrupt);
            true
        })
    }

    /// Sends input to the execution that waits for it.
    pub(super) fn answer(&self, execution: u64, value: Option<String>) -> Result<(), ConnectError> {
        let mut state = self.state();
        match &mut state.running {
            Some(running) if running.execution == execution => {
                if !running.awaits_input {
                    return Err(ConnectError::failed_precondition(format!(
                        "execution: {execution} does not wait for input"
                    )));
                }
                running.awaits_input = false;
                running.controls.try_send(Control::Answer(value)).map_err(|_| {
                    ConnectError::failed_precondition(format!("execution: {execution} is ending"))
                })
            }
            _ => Err(ConnectError::failed_precondition(format!(
                "execution: {execution} is not running in the context \"{}\"",
                self.id
            ))),
        }
    }

    /// Sends the answer to a call to the execution that waits for it. Calls of stored tools are answered as such alone: nobody else's
    /// answer takes the place of a tool's.
    pub(super) fn answer_call(
        &self,
        execution: u64,
        (call, of_tool): (u64, bool),
        answer: Result<Box<RawValue>, String>,
    ) -> Result<(), ConnectError> {
        let mut state = self.state();
        let running = state.running.as_mut().filter(|running| running.execution == execution);
        let waiting = running.and_then(|running| Some((*running.open_calls.get(&call)?, running)));
        let Some((is_of_tool, running)) = waiting else {
            return Err(ConnectError::failed_precondition(format!(
                "call: {call} of execution {execution} does not wait for an answer"
            )));
        };
        if is_of_tool && !of_tool {
            return Err(ConnectError::failed_precondition(format!(
                "call: {call} of execution {execution} is one of a stored tool, which the server answers"
            )));
        }
        running.open_calls.remove(&call);
        running
            .controls
            .try_send(Control::ToolAnswer(call, answer))
            .map_err(|_| ConnectError::failed_precondition(format!("execution: {execution} is ending")))
    }

    pub(super) fn info(&self) -> v1::ContextInfo {
        let state = self.state();
        let process = state.process.as_ref().filter(|process| process.is_running());
        let (busy, is_running) = (state.running.is_some(), process.is_some());
        let context_state = match (busy, is_running) {
            (true, _) => v1::ContextState::CONTEXT_STATE_BUSY,
            (false, true) => v1::ContextState::CONTEXT_STATE_IDLE,
            // An interpreter that was never started is idle, too.
            (false, false) if state.generation == 0 => v1::ContextState::CONTEXT_STATE_IDLE,
            (false, false) => v1::ContextState::CONTEXT_STATE_LOST,
        };
        let idle =
            if busy { 0 } else { u64::try_from(state.idle_since.elapsed().as_millis()).unwrap_or(u64::MAX) };
        v1::ContextInfo {
            id: self.id.clone(),
            language: self.language.name().to_owned(),
            cwd: self.cwd.clone(),
            state: context_state.into(),
            pid: process.and_then(|process| u32::try_from(process.pid).ok()).unwrap_or(0),
            executions: state.executions,
            idle_ms: idle,
            version: state.version.clone(),
            start: state.start.0.into(),
            start_note: state.start.1.clone(),
            generation: state.generation,
            ..Default::default()
        }
    }
}

impl Interpreter {
    pub(super) fn process(&self) -> &Arc<Process> {
        match self {
            Self::Kernel(kernel) => &kernel.process,
            Self::Shell(shell) => shell.process(),
        }
    }

    fn describe_exit(&self) -> String {
        match self {
            Self::Kernel(kernel) => kernel.describe_exit(),
            Self::Shell(_) => "the shell ended".to_owned(),
        }
    }

    /// Kills the interpreter with all its descendants, and waits for its end.
    pub(super) async fn end(&self, guest: &Guest) {
        match self {
            Self::Kernel(kernel) => kernel.end(guest).await,
            Self::Shell(shell) => shell.end(guest).await,
        }
    }
}
