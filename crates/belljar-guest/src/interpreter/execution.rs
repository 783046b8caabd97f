//! One execution, from the request to its end, whatever the code does meanwhile.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use belljar_proto::{ConnectError, v1};
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::calls::ToolCalls;
use super::context::{Context, Control, Interpreter, QueueTicket};
use super::frame::{self, KernelMessage, ResultBudget};
use super::kernel::{Kernel, KernelEvent};
use super::marks::Until;
use super::outlet::{Delivered, Events, Outlet};
use crate::clock;
use crate::guest::Guest;
use crate::tree::{Proc, SIGINT};

/// Interval between interrupts, until the code has ended.
const INTERRUPT_INTERVAL: Duration = Duration::from_secs(1);

/// Default time between an interrupt and SIGKILL.
const DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// Time for an interpreter to exit after announcing it.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for a process to exit after its sockets were closed.
const SOCKET_CLOSE_GRACE: Duration = Duration::from_secs(1);

/// Maximum part of a result's value in one message, in bytes: a message has at most 4 MiB.
const MAX_PART_BYTES: usize = 1 << 20;

/// A validated request.
pub(super) struct Job {
    pub(super) code: String,
    pub(super) request: v1::ExecuteCodeRequest,
    /// Kill the execution when its stream ends.
    pub(super) kill_on_disconnect: bool,
}

impl Job {
    pub(super) fn grace(&self) -> Duration {
        match self.request.grace_ms {
            0 => DEFAULT_GRACE,
            grace => Duration::from_millis(grace),
        }
    }
}

pub(super) fn event(event: impl Into<v1::__buffa::oneof::code_event::Event>) -> v1::CodeEvent {
    v1::CodeEvent { event: Some(event.into()), ..Default::default() }
}

/// Waits for the execution's turn and runs it. If it cannot start, the stream gets an error.
pub(super) async fn run(
    guest: Arc<Guest>,
    context: Arc<Context>,
    ticket: QueueTicket,
    job: Job,
    events: Events,
) {
    let turn = tokio::select! {
        biased;
        // The caller has disconnected, or withdrawn what has not begun.
        () = events.closed() => return,
        turn = ticket.wait_turn() => turn,
    };
    let last = execute(&guest, &context, turn, &job, &events).await;
    // The next execution does not wait for the reader of this one.
    drop(ticket);
    let _ = events.send(last.map(event)).await;
}

async fn execute(
    guest: &Arc<Guest>,
    context: &Arc<Context>,
    turn: Result<tokio::sync::OwnedSemaphorePermit, ConnectError>,
    job: &Job,
    events: &Events,
) -> Result<v1::CodeEnded, ConnectError> {
    let _turn = turn?;
    let mut slot = context.slot().await;
    context.ensure_started(guest, &mut slot).await?;
    // An interpreter may take half a minute to start, and what was withdrawn meanwhile does not begin.
    let Ok(place) = events.reserve().await else {
        return Err(ConnectError::aborted("the code was withdrawn before it began"));
    };
    let id = guest.table.contexts.next_execution();
    let (count, rebuilt, controls) = context.begin_execution(id);
    let started = v1::CodeStarted {
        execution: id,
        context: Some(context.info()).into(),
        count,
        rebuilt,
        ..Default::default()
    };
    place.send(Ok(event(started)));
    let mut outlet = Outlet::new(events.clone());
    let ended = match slot.as_mut() {
        Some(Interpreter::Kernel(kernel)) => {
            Execution::new(guest, context, kernel, job, &mut outlet, id).run(controls).await
        }
        Some(Interpreter::Shell(shell)) => shell.run(guest, job, &mut outlet, controls).await,
        // The interpreter was just started.
        None => v1::CodeEnded::default(),
    };
    if ended.state == v1::Survival::SURVIVAL_LOST {
        if let Some(interpreter) = slot.take() {
            interpreter.end(guest).await;
        }
        context.set_lost(ended.reason.clone());
    }
    context.end_execution();
    if outlet.has_missed() {
        let reason = &ended.reason;
        return Err(ConnectError::aborted(format!(
            "the last events of the code were not read in time: {reason}"
        )));
    }
    Ok(ended)
}

/// Reason for stopping an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopReason {
    Interrupt,
    TimedOut,
    Abandoned,
}

/// A stop in progress.
struct Stop {
    why: StopReason,
    next_interrupt: Instant,
    kill_at: Option<Instant>,
}

/// An execution running in a kernel.
struct Execution<'a> {
    guest: &'a Arc<Guest>,
    context: &'a Arc<Context>,
    kernel: &'a mut Kernel,
    job: &'a Job,
    outlet: &'a mut Outlet,
    /// Id between guest and kernel. Running code cannot guess that of a later execution to forge its results.
    id: u64,
    /// Number of bytes of each stream so far.
    offsets: [u64; 2],
    budget: ResultBudget,
    calls: ToolCalls,
    started_at: Instant,
    /// Start time in clock ticks: processes that were started before are not interrupted.
    started_ticks: u64,
    cpu_before: u64,
    deadline: Option<Instant>,
    stop: Option<Stop>,
    /// Deadline for the exit of an interpreter that has closed its control socket.
    exit_deadline: Option<Instant>,
    has_failed: bool,
    /// Reason why it was killed.
    killed: Option<(StopReason, String)>,
}

impl<'a> Execution<'a> {
    fn new(
        guest: &'a Arc<Guest>,
        context: &'a Arc<Context>,
        kernel: &'a mut Kernel,
        job: &'a Job,
        outlet: &'a mut Outlet,
        execution: u64,
    ) -> Self {
        let started_at = Instant::now();
        let limit = job.request.timeout_ms;
        let deadline = (limit > 0 && !guest.config.is_without("timeout"))
            .then(|| started_at.checked_add(Duration::from_millis(limit)))
            .flatten();
        let cpu_before = kernel.cpu_us.unwrap_or_else(|| guest.proc.cpu_us(kernel.process.pid));
        Self {
            guest,
            context,
            kernel,
            job,
            outlet,
            id: wire_id(guest, execution),
            offsets: [0; 2],
            budget: ResultBudget::default(),
            calls: ToolCalls::new(&job.request, guest.config.is_without("code-calls")),
            started_at,
            started_ticks: Proc::ticks_now(),
            cpu_before,
            deadline,
            stop: None,
            exit_deadline: None,
            has_failed: false,
            killed: None,
        }
    }

    async fn run(mut self, mut controls: mpsc::Receiver<Control>) -> v1::CodeEnded {
        let frame = frame::execute(self.id, &self.job.code, self.kernel.token(), &self.job.request);
        self.send(frame);
        loop {
            match self.process_messages() {
                Ok(Some((status, exiting))) => return self.finish(status, exiting, &mut controls).await,
                Ok(None) => {}
                Err(why) => self.fail(format!("it broke the protocol: {why}")),
            }
            if self.kernel.is_control_closed() && self.exit_deadline.is_none() {
                // An exiting process closes it, too, and its exit is noticed somewhat later.
                self.exit_deadline = Instant::now().checked_add(SOCKET_CLOSE_GRACE);
            }
            let kernel_event = self.next(&mut controls).await;
            match kernel_event {
                Some(KernelEvent::Output(index, data)) => self.output(index, data),
                Some(KernelEvent::Ended) => return self.handle_exit(&mut controls).await,
                Some(KernelEvent::Frames | KernelEvent::Nothing) | None => {}
            }
            // Lets other tasks of the guest run while code writes without end.
            tokio::task::consume_budget().await;
        }
    }

    /// Waits for one event; returns it if it is from the interpreter.
    async fn next(&mut self, controls: &mut mpsc::Receiver<Control>) -> Option<KernelEvent> {
        let waits = !self.outlet.is_empty();
        let timer = self.next_timer();
        let began = Instant::now();
        let event = tokio::select! {
            delivered = self.outlet.deliver() => {
                if delivered == Delivered::Gone {
                    self.close_calls();
                    if self.job.kill_on_disconnect {
                        self.interrupt(StopReason::Abandoned);
                    }
                }
                None
            }
            // Received output is delivered first: a slow reader throttles the code.
            event = self.kernel.next(!waits) => Some(event),
            Some(control) = controls.recv() => { self.handle_control(control); None }
            () = clock::sleep_until(timer.unwrap_or(began)), if timer.is_some() => None,
        };
        if timer.is_some() {
            self.move_timers(clock::frozen_since(began));
            self.handle_timers();
        }
        event
    }

    /// Moves all deadlines by the time in which the sandbox was frozen.
    fn move_timers(&mut self, frozen: Duration) {
        let stop =
            self.stop.iter_mut().flat_map(|stop| [Some(&mut stop.next_interrupt), stop.kill_at.as_mut()]);
        let own = [self.deadline.as_mut(), self.exit_deadline.as_mut()];
        stop.chain(own).flatten().for_each(|deadline| *deadline += frozen);
    }

    fn next_timer(&self) -> Option<Instant> {
        let stop = self.stop.as_ref().filter(|_| self.killed.is_none());
        let stop = stop
            .map(|stop| stop.kill_at.map_or(stop.next_interrupt, |kill_at| kill_at.min(stop.next_interrupt)));
        let deadline = self.deadline.filter(|_| self.killed.is_none());
        let exit_deadline = self.exit_deadline.filter(|_| self.killed.is_none());
        [stop, deadline, exit_deadline].into_iter().flatten().min()
    }

    fn handle_timers(&mut self) {
        let now = Instant::now();
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.deadline = None;
            self.interrupt(StopReason::TimedOut);
            return;
        }
        if self.exit_deadline.is_some_and(|until| until <= now) {
            return self.fail("it has closed its control socket".to_owned());
        }
        let Some(stop) = &mut self.stop else { return };
        if stop.kill_at.is_some_and(|kill_at| kill_at <= now) {
            let why = stop.why;
            let reason = match why {
                StopReason::TimedOut => "the code timed out and did not end when it was interrupted",
                _ => "the code did not end when it was interrupted after its caller had gone",
            };
            self.kill(why, reason.to_owned());
        } else if stop.next_interrupt <= now {
            stop.next_interrupt = now + INTERRUPT_INTERVAL;
            // The code may be blocked by its own output, behind a mark that it has forged.
            self.kernel.stop_waiting();
            self.signal();
        }
    }

    fn handle_control(&mut self, control: Control) {
        match control {
            Control::Interrupt => self.interrupt(StopReason::Interrupt),
            Control::End(why) => self.end_context(why),
            Control::Answer(value) => {
                self.send(frame::answer(self.id, value.as_deref()));
            }
            Control::ToolAnswer(number, answer) => {
                if let Some(call) = self.calls.end(number) {
                    let answer = answer.as_ref().map(AsRef::as_ref).map_err(String::as_str);
                    self.send(frame::tool_answer(self.id, call, answer));
                }
            }
        }
    }

    /// Refuses the calls that wait, and further ones: whoever answers them has read them from the stream that has broken.
    fn close_calls(&mut self) {
        const REASON: &str = "the connection of the execution's caller broke; nobody answers its calls";
        for call in self.calls.close(REASON) {
            self.send(frame::tool_answer(self.id, call, Err(REASON)));
        }
    }

    fn send(&mut self, frame: Vec<u8>) {
        if let Err(why) = self.kernel.send(frame) {
            self.fail(why);
        }
    }

    /// Kills the interpreter because the context is being ended.
    fn end_context(&mut self, why: &str) {
        self.kill(StopReason::Interrupt, why.to_owned());
        self.outlet.start_flush_timeout();
    }

    /// Interrupts the code now, and every second until it ends. A plain interrupt never leads to a kill.
    fn interrupt(&mut self, why: StopReason) {
        let now = Instant::now();
        let kill_at = (why != StopReason::Interrupt).then(|| now.checked_add(self.job.grace())).flatten();
        match &mut self.stop {
            Some(stop) => {
                if stop.why == StopReason::Interrupt {
                    stop.why = why;
                }
                stop.kill_at = stop.kill_at.or(kill_at);
            }
            None => self.stop = Some(Stop { why, next_interrupt: now + INTERRUPT_INTERVAL, kill_at }),
        }
        self.signal();
    }

    /// Sends SIGINT as a terminal would: to the interpreter, and to the processes of its session that this execution
    /// has started.
    fn signal(&self) {
        let pid = self.kernel.process.pid;
        let older: HashSet<_> = self.guest.proc.below(pid);
        let older = older.into_iter().filter(|(_, started)| *started < self.started_ticks).collect();
        let _ = self.kernel.process.signal(SIGINT);
        self.guest.proc.signal_below(pid, &older, SIGINT);
    }

    /// Kills an interpreter that violates the protocol.
    fn fail(&mut self, why: String) {
        if self.killed.is_none() {
            self.kernel.kill(self.guest);
            self.killed = Some((StopReason::Interrupt, format!("the interpreter was killed because {why}")));
            self.has_failed = true;
        }
    }

    fn kill(&mut self, why: StopReason, reason: String) {
        if self.killed.is_none() {
            let cause = match why {
                StopReason::TimedOut => v1::Cause::CAUSE_TIMED_OUT,
                _ => v1::Cause::CAUSE_STOPPED,
            };
            self.kernel.process.set_cause(cause);
            self.kernel.kill(self.guest);
            self.killed = Some((why, reason));
        }
    }

    fn output(&mut self, index: usize, data: Bytes) {
        let offset = self.offsets[index];
        self.offsets[index] += data.len() as u64;
        let stream = [v1::Stream::STREAM_STDOUT, v1::Stream::STREAM_STDERR][index];
        self.outlet.push(event(v1::Output { stream: stream.into(), offset, data, ..Default::default() }));
    }

    fn drain(&mut self, until: Until) {
        for (index, data) in self.kernel.drain(until) {
            self.output(index, data);
        }
    }

    /// Processes messages while no event waits for the reader; returns the status once the execution is done.
    fn process_messages(&mut self) -> Result<Option<(v1::CodeStatus, bool)>, String> {
        // One that has violated the protocol is not listened to any more.
        while self.outlet.is_empty() && !self.has_failed {
            let Some(message) = self.kernel.next_message()? else { return Ok(None) };
            match message {
                KernelMessage::Result { id, mark, result } => {
                    if id == self.id {
                        self.drain(Until::Mark);
                        if let Some(result) = self.budget.apply(*result) {
                            self.push_result(result);
                        }
                    }
                    self.kernel.release(mark);
                }
                KernelMessage::Error { id, error } if id == self.id => {
                    self.drain(Until::Mark);
                    self.outlet.push(event(error));
                }
                KernelMessage::Input { id, request } if id == self.id && self.job.request.allow_input => {
                    self.drain(Until::Mark);
                    self.context.set_awaits_input(true);
                    self.outlet.push(event(request));
                }
                KernelMessage::Tool { id, call, name, arguments, more } if id == self.id => {
                    self.drain(Until::Mark);
                    match arguments.and_then(|arguments| self.calls.begin(call, name, arguments)) {
                        Ok(called) => {
                            let of_tool = self.job.request.tools.contains(&called.name);
                            self.context.add_call(called.call, of_tool);
                            self.outlet.push(event(v1::ToolCalled { more, ..called }));
                        }
                        Err(why) => self.send(frame::tool_answer(self.id, call, Err(&why))),
                    }
                }
                KernelMessage::Done { id, status, exiting } if id == self.id => {
                    self.drain(Until::End);
                    return Ok(Some((status, exiting)));
                }
                // Messages of an earlier execution, or without effect.
                _ => {}
            }
        }
        Ok(None)
    }

    /// Passes a result on, split into messages of limited size.
    fn push_result(&mut self, mut result: v1::CodeResult) {
        let mut parts: VecDeque<v1::MimeData> = VecDeque::new();
        for form in std::mem::take(&mut result.data) {
            let mut rest = form.data;
            loop {
                let data = rest.split_to(rest.len().min(MAX_PART_BYTES));
                parts.push_back(v1::MimeData { mime: form.mime.clone(), data, ..Default::default() });
                if rest.is_empty() {
                    break;
                }
            }
        }
        let mut bytes = 0;
        while let Some(part) = parts.front()
            && (bytes == 0 || bytes + part.data.len() <= MAX_PART_BYTES)
        {
            bytes += part.data.len();
            result.data.extend(parts.pop_front());
        }
        if let Some(last) = result.data.last_mut() {
            last.more = !parts.is_empty();
        }
        self.outlet.push(event(result));
        while let Some(mut part) = parts.pop_front() {
            part.more = !parts.is_empty();
            let part = v1::__buffa::oneof::code_event::Event::ResultPart(part.into());
            self.outlet.push(v1::CodeEvent { event: Some(part), ..Default::default() });
        }
    }

    /// Delivers the pending events.
    async fn flush(&mut self, controls: &mut mpsc::Receiver<Control>) {
        while !self.outlet.is_empty() {
            tokio::select! {
                _ = self.outlet.deliver() => {}
                Some(control) = controls.recv() => {
                    if let Control::End(why) = control {
                        self.end_context(why);
                    }
                }
            }
        }
    }

    async fn finish(
        mut self,
        status: v1::CodeStatus,
        exiting: bool,
        controls: &mut mpsc::Receiver<Control>,
    ) -> v1::CodeEnded {
        self.context.set_awaits_input(false);
        self.kernel.forget_unread();
        self.flush(controls).await;
        if exiting {
            let process = Arc::clone(&self.kernel.process);
            let mut changed = process.watch();
            let exit = async { while process.is_running() && changed.changed().await.is_ok() {} };
            let _ = tokio::time::timeout(EXIT_TIMEOUT, exit).await;
        }
        let ended_early =
            matches!(status, v1::CodeStatus::CODE_STATUS_INTERRUPTED | v1::CodeStatus::CODE_STATUS_ERROR);
        let status = match &self.stop {
            Some(Stop { why: StopReason::TimedOut, .. }) if ended_early => {
                v1::CodeStatus::CODE_STATUS_TIMED_OUT
            }
            _ => status,
        };
        if exiting || !self.kernel.process.is_running() || self.killed.is_some() {
            let reason = match &self.killed {
                Some((_, reason)) => reason.clone(),
                None => format!("the code ended the interpreter: {}", self.kernel.describe_exit()),
            };
            return self.build_ended(status, v1::Survival::SURVIVAL_LOST, reason);
        }
        self.build_ended(status, v1::Survival::SURVIVAL_PRESERVED, String::new())
    }

    /// Handles the exit of the interpreter before the end of the code.
    async fn handle_exit(mut self, controls: &mut mpsc::Receiver<Control>) -> v1::CodeEnded {
        self.context.set_awaits_input(false);
        self.kernel.read_available();
        let mut done = None;
        // Its last messages count like earlier ones.
        loop {
            self.flush(controls).await;
            match self.process_messages() {
                Ok(Some(found)) => {
                    done = Some(found);
                    break;
                }
                Ok(None) if self.outlet.is_empty() => break,
                Ok(None) => {}
                Err(_) => break,
            }
        }
        self.drain(Until::End);
        self.flush(controls).await;
        if let (Some((status, exiting)), None) = (done, &self.killed) {
            return self.finish(status, exiting, controls).await;
        }
        let (status, reason) = match self.killed.take() {
            Some((StopReason::TimedOut, reason)) => (v1::CodeStatus::CODE_STATUS_TIMED_OUT, reason),
            Some((_, reason)) if self.has_failed => (v1::CodeStatus::CODE_STATUS_DIED, reason),
            Some((_, reason)) => (v1::CodeStatus::CODE_STATUS_INTERRUPTED, reason),
            None => {
                let how = self.kernel.describe_exit();
                (
                    v1::CodeStatus::CODE_STATUS_DIED,
                    format!("the interpreter exited during the execution: {how}"),
                )
            }
        };
        self.build_ended(status, v1::Survival::SURVIVAL_LOST, reason)
    }

    fn build_ended(self, status: v1::CodeStatus, survival: v1::Survival, reason: String) -> v1::CodeEnded {
        let pid = self.kernel.process.pid;
        let state = self.kernel.process.state();
        let exit = state.ended.clone().unwrap_or_default();
        let cpu = match &state.ended {
            Some(exit) => exit.user_us.saturating_add(exit.system_us),
            None => self.guest.proc.cpu_us(pid),
        };
        self.kernel.cpu_us = Some(cpu);
        v1::CodeEnded {
            status: status.into(),
            state: survival.into(),
            reason,
            cause: state.cause.into(),
            exit_code: exit.code,
            signal: exit.signal,
            wall_us: u64::try_from(self.started_at.elapsed().as_micros()).unwrap_or(u64::MAX),
            cpu_us: cpu.saturating_sub(self.cpu_before),
            stdout_bytes: self.offsets[0],
            stderr_bytes: self.offsets[1],
            ..Default::default()
        }
    }
}

/// Returns the id of an execution between guest and kernel: a random number.
fn wire_id(guest: &Guest, execution: u64) -> u64 {
    match guest.config.is_without("execution-ids") {
        true => execution,
        false => random_id(),
    }
}

/// Returns a random number that JSON represents exactly.
fn random_id() -> u64 {
    let mut bytes = [0; 8];
    // Cannot fail: the kernel's generator was already initialized for this process's memory layout. Unfilled bytes stay 0.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes) >> 11
}
