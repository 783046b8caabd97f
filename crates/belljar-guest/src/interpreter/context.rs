//! One context: its interpreter, its queue, and what is known of it from outside.

use std::sync::Arc;
use std::time::Instant;

use belljar_proto::{ConnectError, v1};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::kernel::{Kernel, Language};
use super::shell::Shell;
use crate::guest::Guest;
use crate::process::Process;

/// Executions that may wait for their turn in one context.
const MAX_WAITING: usize = 32;

/// Orders to an execution that it has not taken yet.
const ORDERS: usize = 8;

/// A context.
pub(super) struct Context {
    pub(super) id: String,
    pub(super) number: u64,
    pub(super) language: Language,
    cwd: Bytes,
    env: Vec<v1::EnvVar>,
    /// Held by the execution whose turn it is. Fair: the first that came is the first that goes.
    turn: Arc<Semaphore>,
    /// Held by whoever uses or changes the interpreter.
    slot: tokio::sync::Mutex<Option<Live>>,
    state: Mutex<State>,
}

/// An interpreter that lives.
pub(super) enum Live {
    Kernel(Box<Kernel>),
    Shell(Shell),
}

struct State {
    /// Executions in the queue, the one that runs included.
    queued: usize,
    process: Option<Arc<Process>>,
    version: String,
    /// How the interpreter came to be, and why it is not warm if it was to be.
    start: (v1::KernelStart, String),
    /// How often an interpreter was started.
    generation: u32,
    executions: u64,
    idle_since: Instant,
    /// Why the interpreter before was lost.
    lost: Option<String>,
    is_removed: bool,
    running: Option<Running>,
}

/// The execution that runs.
struct Running {
    execution: u64,
    orders: mpsc::Sender<Order>,
    /// Whether it waits for an answer.
    asks: bool,
}

/// What an execution is told from outside.
pub(super) enum Order {
    Interrupt,
    /// The interpreter is to end, for this reason.
    End(&'static str),
    /// An answer; `None` is an end of file.
    Answer(Option<String>),
}

/// A place in the queue. It is left when this is dropped.
pub(super) struct Place {
    context: Arc<Context>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.context.state().queued -= 1;
    }
}

impl Place {
    /// Waits for its turn, which lasts until the permit is dropped.
    pub(super) async fn turn(&self) -> Result<OwnedSemaphorePermit, ConnectError> {
        let permit = Arc::clone(&self.context.turn).acquire_owned().await;
        permit.map_err(|_| self.context.gone())
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

    /// Leaves out of the request what an execution of this context has anyway.
    pub(super) fn without_own_place(&self, request: &mut v1::ExecuteCodeRequest) {
        if self.language.has_fixed_place() {
            request.env.retain(|variable| !self.env.contains(variable));
            if request.cwd == self.cwd {
                request.cwd.clear();
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// What is told when it was removed meanwhile.
    pub(super) fn gone(&self) -> ConnectError {
        ConnectError::not_found(format!("context: the context \"{}\" was removed", self.id))
    }

    /// Takes a place in the queue.
    pub(super) fn queue(self: &Arc<Self>) -> Result<Place, ConnectError> {
        let mut state = self.state();
        // One that runs does not wait.
        if state.queued > MAX_WAITING {
            return Err(ConnectError::resource_exhausted(format!(
                "{MAX_WAITING} executions wait in the context \"{}\", which is the most; try again later",
                self.id
            )));
        }
        state.queued += 1;
        Ok(Place { context: Arc::clone(self) })
    }

    /// The interpreter's place, for whoever is to use it.
    pub(super) async fn slot(&self) -> tokio::sync::MutexGuard<'_, Option<Live>> {
        self.slot.lock().await
    }

    /// Puts an interpreter into the place if there is none that lives.
    pub(super) async fn fill(&self, guest: &Arc<Guest>, slot: &mut Option<Live>) -> Result<(), ConnectError> {
        if let Some(live) = slot {
            if live.process().is_running() {
                return Ok(());
            }
            let why = live.how_it_ended();
            self.lost(format!("between two executions {why}"));
            live.end(guest).await;
            *slot = None;
        }
        if self.state().is_removed {
            return Err(self.gone());
        }
        let live = match &self.language {
            Language::Bash => Live::Shell(Shell::open(guest, &self.cwd, &self.env)?),
            language => Live::Kernel(Box::new(Kernel::start(guest, language, &self.cwd, &self.env).await?)),
        };
        let start = match &live {
            Live::Kernel(kernel) => kernel.start.clone(),
            Live::Shell(_) => (v1::KernelStart::KERNEL_START_PLAIN, String::new()),
        };
        let mut state = self.state();
        state.process = Some(Arc::clone(live.process()));
        state.version = match &live {
            Live::Kernel(kernel) => kernel.version.clone(),
            Live::Shell(_) => String::new(),
        };
        state.start = start;
        state.generation += 1;
        state.executions = 0;
        state.idle_since = Instant::now();
        drop(state);
        *slot = Some(live);
        Ok(())
    }

    /// Ends the interpreter, and the execution that runs in it; hands back the empty place, which is held.
    pub(super) async fn stopped(
        &self,
        guest: &Guest,
        why: &'static str,
    ) -> tokio::sync::MutexGuard<'_, Option<Live>> {
        if let Some(running) = &self.state().running {
            // An execution that has no room for an order is at its end.
            let _ = running.orders.try_send(Order::End(why));
        }
        let mut slot = self.slot.lock().await;
        if let Some(live) = slot.take() {
            live.end(guest).await;
        }
        self.state().process = None;
        slot
    }

    /// No more executions begin in it.
    pub(super) fn remove(&self) {
        self.state().is_removed = true;
        self.turn.close();
    }

    /// Takes note that the interpreter was lost.
    pub(super) fn lost(&self, why: String) {
        let mut state = self.state();
        state.process = None;
        state.lost = Some(why);
    }

    pub(super) fn forget_the_loss(&self) {
        self.state().lost = None;
    }

    /// An execution begins: its number in the interpreter, and why the interpreter before was lost.
    pub(super) fn begins(&self, execution: u64) -> (u64, String, mpsc::Receiver<Order>) {
        let (orders, receiver) = mpsc::channel(ORDERS);
        let mut state = self.state();
        state.executions += 1;
        state.running = Some(Running { execution, orders, asks: false });
        (state.executions, state.lost.take().unwrap_or_default(), receiver)
    }

    pub(super) fn ends(&self) {
        let mut state = self.state();
        state.running = None;
        state.idle_since = Instant::now();
    }

    /// Takes note of whether the execution that runs waits for an answer.
    pub(super) fn asks(&self, asks: bool) {
        if let Some(running) = &mut self.state().running {
            running.asks = asks;
        }
    }

    /// Interrupts what runs; false if nothing does.
    pub(super) fn interrupt(&self) -> bool {
        // One that has no room for an order is being interrupted already.
        self.state().running.as_ref().is_some_and(|running| {
            let _ = running.orders.try_send(Order::Interrupt);
            true
        })
    }

    /// Answers the question of an execution.
    pub(super) fn answer(&self, execution: u64, value: Option<String>) -> Result<(), ConnectError> {
        let mut state = self.state();
        match &mut state.running {
            Some(running) if running.execution == execution => {
                if !running.asks {
                    return Err(ConnectError::failed_precondition(format!(
                        "execution: {execution} does not wait for an answer"
                    )));
                }
                running.asks = false;
                running.orders.try_send(Order::Answer(value)).map_err(|_| {
                    ConnectError::failed_precondition(format!("execution: {execution} is at its end"))
                })
            }
            _ => Err(ConnectError::failed_precondition(format!(
                "execution: {execution} does not run in the context \"{}\"",
                self.id
            ))),
        }
    }

    pub(super) fn info(&self) -> v1::ContextInfo {
        let state = self.state();
        let process = state.process.as_ref().filter(|process| process.is_running());
        let (busy, lives) = (state.running.is_some(), process.is_some());
        let context_state = match (busy, lives) {
            (true, _) => v1::ContextState::CONTEXT_STATE_BUSY,
            (false, true) => v1::ContextState::CONTEXT_STATE_IDLE,
            // One that has not been started yet waits for code, too.
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

impl Live {
    pub(super) fn process(&self) -> &Arc<Process> {
        match self {
            Self::Kernel(kernel) => &kernel.process,
            Self::Shell(shell) => shell.process(),
        }
    }

    fn how_it_ended(&self) -> String {
        match self {
            Self::Kernel(kernel) => kernel.how_it_ended(),
            Self::Shell(_) => "the shell ended".to_owned(),
        }
    }

    /// Kills it with all that it has started, and waits for its end.
    pub(super) async fn end(&self, guest: &Guest) {
        match self {
            Self::Kernel(kernel) => kernel.end(guest).await,
            Self::Shell(shell) => shell.end(guest).await,
        }
    }
}
