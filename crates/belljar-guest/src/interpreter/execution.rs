//! One execution: from the order to its end, whatever code does meanwhile.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use belljar_proto::{ConnectError, v1};
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::context::{Context, Live, Order, Place};
use super::frame::{self, Said, Shown};
use super::kernel::{Heard, Kernel};
use super::outlet::{Delivered, Events, Outlet, sleep_until};
use crate::guest::Guest;
use crate::tree::{Proc, SIGINT};

/// Time between an interrupt and the next, until the code has ended.
const AGAIN: Duration = Duration::from_secs(1);

/// Time between an interrupt and the kill, where the request does not say.
const DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// How long an interpreter that has said that it exits may take to do so.
const EXITS_WITHIN: Duration = Duration::from_secs(5);

/// Time between the end of a process's sockets and its own.
const SETTLE: Duration = Duration::from_secs(1);

/// The largest piece of a result's value in one message, in bytes: a message has 4 MiB at most.
const PART_BYTES: usize = 1 << 20;

/// What was asked for, checked.
pub(super) struct Asked {
    pub(super) code: String,
    pub(super) request: v1::ExecuteCodeRequest,
    /// Whether it ends with its stream.
    pub(super) kills: bool,
}

impl Asked {
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

/// Waits for the execution's turn, and carries it out. The stream gets an error if it cannot begin.
pub(super) async fn run(
    guest: Arc<Guest>,
    context: Arc<Context>,
    place: Place,
    asked: Asked,
    events: Events,
) {
    let turn = tokio::select! {
        turn = place.turn() => turn,
        // Nobody wants it any more.
        () = events.closed(), if asked.kills => return,
    };
    let last = carry_out(&guest, &context, turn, &asked, &events).await;
    // Whoever comes next does not wait for this one's reader.
    drop(place);
    let _ = events.send(last.map(event)).await;
}

async fn carry_out(
    guest: &Arc<Guest>,
    context: &Arc<Context>,
    turn: Result<tokio::sync::OwnedSemaphorePermit, ConnectError>,
    asked: &Asked,
    events: &Events,
) -> Result<v1::CodeEnded, ConnectError> {
    let _turn = turn?;
    let mut slot = context.slot().await;
    context.fill(guest, &mut slot).await?;
    let id = guest.table.contexts.next_execution();
    let (count, rebuilt, orders) = context.begins(id);
    let started = v1::CodeStarted {
        execution: id,
        context: Some(context.info()).into(),
        count,
        rebuilt,
        ..Default::default()
    };
    let _ = events.send(Ok(event(started))).await;
    let mut outlet = Outlet::new(events.clone());
    let ended = match slot.as_mut() {
        Some(Live::Kernel(kernel)) => {
            Execution::new(guest, context, kernel, asked, &mut outlet, id).run(orders).await
        }
        Some(Live::Shell(shell)) => shell.run(guest, asked, &mut outlet, orders).await,
        // It has just been filled.
        None => v1::CodeEnded::default(),
    };
    if ended.state == v1::Survival::SURVIVAL_LOST {
        if let Some(live) = slot.take() {
            live.end(guest).await;
        }
        context.lost(ended.reason.clone());
    }
    context.ends();
    if outlet.has_missed() {
        let reason = &ended.reason;
        return Err(ConnectError::aborted(format!("what the code did last was not read in time: {reason}")));
    }
    Ok(ended)
}

/// Why an execution is being ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Interrupt,
    TimedOut,
    Abandoned,
}

/// An end that is on its way.
struct Ending {
    why: Why,
    again: Instant,
    kill: Option<Instant>,
}

/// An execution that runs in a kernel.
struct Execution<'a> {
    guest: &'a Arc<Guest>,
    context: &'a Arc<Context>,
    kernel: &'a mut Kernel,
    asked: &'a Asked,
    outlet: &'a mut Outlet,
    /// Its name between guest and kernel: code that runs cannot guess that of a later execution, and answer in its place.
    id: u64,
    /// Bytes of each stream so far.
    offsets: [u64; 2],
    shown: Shown,
    begun: Instant,
    /// The kernel's clock ticks at its begin: processes that were started before are not interrupted.
    begun_ticks: u64,
    cpu_before: u64,
    deadline: Option<Instant>,
    ending: Option<Ending>,
    /// Until when an interpreter may live that has closed its control socket.
    deaf_until: Option<Instant>,
    has_failed: bool,
    /// Why it was killed.
    killed: Option<(Why, String)>,
}

impl<'a> Execution<'a> {
    fn new(
        guest: &'a Arc<Guest>,
        context: &'a Arc<Context>,
        kernel: &'a mut Kernel,
        asked: &'a Asked,
        outlet: &'a mut Outlet,
        execution: u64,
    ) -> Self {
        let begun = Instant::now();
        let limit = asked.request.timeout_ms;
        let deadline = (limit > 0 && !guest.config.is_without("timeout"))
            .then(|| begun.checked_add(Duration::from_millis(limit)))
            .flatten();
        let pid = kernel.process.pid;
        Self {
            guest,
            context,
            kernel,
            asked,
            outlet,
            id: name_between(guest, execution),
            offsets: [0; 2],
            shown: Shown::default(),
            begun,
            begun_ticks: Proc::ticks_now(),
            cpu_before: guest.proc.cpu_us(pid),
            deadline,
            ending: None,
            deaf_until: None,
            has_failed: false,
            killed: None,
        }
    }

    async fn run(mut self, mut orders: mpsc::Receiver<Order>) -> v1::CodeEnded {
        let frame = frame::execute(self.id, &self.asked.code, &self.asked.request);
        if let Err(why) = self.kernel.tell(&frame).await {
            self.give_up(why);
        }
        let mut buffers = [Vec::new(), Vec::new()];
        loop {
            match self.take_frames() {
                Ok(Some((status, exiting))) => return self.done(status, exiting, &mut orders).await,
                Ok(None) => {}
                Err(why) => self.give_up(format!("it broke the protocol: {why}")),
            }
            if self.kernel.is_deaf() && self.deaf_until.is_none() {
                // A process that ends closes it, too, and is seen to have ended somewhat later.
                self.deaf_until = Instant::now().checked_add(SETTLE);
            }
            let heard = self.next(&mut buffers, &mut orders).await;
            match heard {
                Some(Heard::Output(index, data)) => self.output(index, data),
                Some(Heard::Ended) => return self.died(&mut orders).await,
                Some(Heard::Frames | Heard::Nothing) | None => {}
            }
            // Code that writes without end must not keep the guest from its other work.
            tokio::task::yield_now().await;
        }
    }

    /// Waits for one thing; what the interpreter says is handed back.
    async fn next(
        &mut self,
        buffers: &mut [Vec<u8>; 2],
        orders: &mut mpsc::Receiver<Order>,
    ) -> Option<Heard> {
        let waits = !self.outlet.is_empty();
        let until = self.next_time();
        tokio::select! {
            delivered = self.outlet.deliver() => {
                if delivered == Delivered::Gone && self.asked.kills {
                    self.interrupt(Why::Abandoned);
                }
                None
            }
            // What has been heard is passed on first: a slow reader slows the code down.
            heard = self.kernel.next(buffers), if !waits => Some(heard),
            Some(order) = orders.recv() => { self.take(order).await; None }
            () = sleep_until(until), if until.is_some() => { self.time(); None }
        }
    }

    fn next_time(&self) -> Option<Instant> {
        let ending = self.ending.as_ref().filter(|_| self.killed.is_none());
        let ending = ending.map(|ending| ending.kill.map_or(ending.again, |kill| kill.min(ending.again)));
        let deadline = self.deadline.filter(|_| self.killed.is_none());
        let deaf_until = self.deaf_until.filter(|_| self.killed.is_none());
        [ending, deadline, deaf_until].into_iter().flatten().min()
    }

    fn time(&mut self) {
        let now = Instant::now();
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.deadline = None;
            self.interrupt(Why::TimedOut);
            return;
        }
        if self.deaf_until.is_some_and(|until| until <= now) {
            return self.give_up("it has closed its control socket".to_owned());
        }
        let Some(ending) = &mut self.ending else { return };
        if ending.kill.is_some_and(|kill| kill <= now) {
            let why = ending.why;
            let reason = match why {
                Why::TimedOut => "the code timed out and did not end when it was interrupted",
                _ => "the code did not end when it was interrupted after its caller had gone",
            };
            self.kill(why, reason.to_owned());
        } else if ending.again <= now {
            ending.again = now + AGAIN;
            self.signal();
        }
    }

    async fn take(&mut self, order: Order) {
        match order {
            Order::Interrupt => self.interrupt(Why::Interrupt),
            Order::End(why) => self.end(why),
            Order::Answer(value) => {
                let frame = frame::answer(self.id, value.as_deref());
                if let Err(why) = self.kernel.tell(&frame).await {
                    self.give_up(why);
                }
            }
        }
    }

    /// The context is being ended.
    fn end(&mut self, why: &str) {
        self.kill(Why::Interrupt, why.to_owned());
        self.outlet.hurry();
    }

    /// Interrupts it now, and each second until it ends. Only an end for which there is a reason ends in a kill.
    fn interrupt(&mut self, why: Why) {
        let now = Instant::now();
        let kill = (why != Why::Interrupt).then(|| now.checked_add(self.asked.grace())).flatten();
        match &mut self.ending {
            Some(ending) => {
                if ending.why == Why::Interrupt {
                    ending.why = why;
                }
                ending.kill = ending.kill.or(kill);
            }
            None => self.ending = Some(Ending { why, again: now + AGAIN, kill }),
        }
        self.signal();
    }

    /// SIGINT as a terminal would send it: to the interpreter, and to what this execution has started in its session.
    fn signal(&self) {
        let pid = self.kernel.process.pid;
        let older: HashSet<_> = self.guest.proc.below(pid);
        let older = older.into_iter().filter(|(_, started)| *started < self.begun_ticks).collect();
        let _ = self.kernel.process.signal(SIGINT);
        self.guest.proc.signal_below(pid, &older, SIGINT);
    }

    /// What it says or does not say makes no sense.
    fn give_up(&mut self, why: String) {
        if self.killed.is_none() {
            self.kernel.kill(self.guest);
            self.killed = Some((Why::Interrupt, format!("the interpreter was ended, as {why}")));
            self.has_failed = true;
        }
    }

    fn kill(&mut self, why: Why, reason: String) {
        if self.killed.is_none() {
            let cause = match why {
                Why::TimedOut => v1::Cause::CAUSE_TIMED_OUT,
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

    fn drain(&mut self) {
        for (index, data) in self.kernel.drain() {
            self.output(index, data);
        }
    }

    /// Takes the next frame if nothing waits for the reader: whether the execution is done.
    fn take_frames(&mut self) -> Result<Option<(v1::CodeStatus, bool)>, String> {
        while self.outlet.is_empty() {
            let Some(said) = self.kernel.said()? else { return Ok(None) };
            match said {
                Said::Result { id, result } if id == self.id => {
                    self.drain();
                    if let Some(result) = self.shown.take(*result) {
                        self.result(result);
                    }
                }
                Said::Error { id, error } if id == self.id => {
                    self.drain();
                    self.outlet.push(event(error));
                }
                Said::Input { id, asked } if id == self.id && self.asked.request.allow_input => {
                    self.drain();
                    self.context.asks(true);
                    self.outlet.push(event(asked));
                }
                Said::Done { id, status, exiting } if id == self.id => {
                    self.drain();
                    return Ok(Some((status, exiting)));
                }
                // What belongs to an execution before, or is no news.
                _ => {}
            }
        }
        Ok(None)
    }

    /// Passes a result on, in messages that are not too large.
    fn result(&mut self, mut result: v1::CodeResult) {
        let mut parts: VecDeque<v1::MimeData> = VecDeque::new();
        for form in std::mem::take(&mut result.data) {
            let mut rest = form.data;
            loop {
                let data = rest.split_to(rest.len().min(PART_BYTES));
                parts.push_back(v1::MimeData { mime: form.mime.clone(), data, ..Default::default() });
                if rest.is_empty() {
                    break;
                }
            }
        }
        let mut bytes = 0;
        while let Some(part) = parts.front()
            && (bytes == 0 || bytes + part.data.len() <= PART_BYTES)
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

    /// Hands over what still waits.
    async fn flush(&mut self, orders: &mut mpsc::Receiver<Order>) {
        while !self.outlet.is_empty() {
            tokio::select! {
                _ = self.outlet.deliver() => {}
                Some(order) = orders.recv() => {
                    if let Order::End(why) = order {
                        self.end(why);
                    }
                }
            }
        }
    }

    async fn done(
        mut self,
        status: v1::CodeStatus,
        exiting: bool,
        orders: &mut mpsc::Receiver<Order>,
    ) -> v1::CodeEnded {
        self.context.asks(false);
        self.flush(orders).await;
        if exiting {
            let process = Arc::clone(&self.kernel.process);
            let mut changed = process.watch();
            let exit = async { while process.is_running() && changed.changed().await.is_ok() {} };
            let _ = tokio::time::timeout(EXITS_WITHIN, exit).await;
        }
        let ended_early =
            matches!(status, v1::CodeStatus::CODE_STATUS_INTERRUPTED | v1::CodeStatus::CODE_STATUS_ERROR);
        let status = match &self.ending {
            Some(Ending { why: Why::TimedOut, .. }) if ended_early => v1::CodeStatus::CODE_STATUS_TIMED_OUT,
            _ => status,
        };
        if exiting || !self.kernel.process.is_running() || self.killed.is_some() {
            let reason = match &self.killed {
                Some((_, reason)) => reason.clone(),
                None => format!("the code ended the interpreter: {}", self.kernel.how_it_ended()),
            };
            return self.ended(status, v1::Survival::SURVIVAL_LOST, reason);
        }
        self.ended(status, v1::Survival::SURVIVAL_PRESERVED, String::new())
    }

    /// The interpreter has ended before the code has.
    async fn died(mut self, orders: &mut mpsc::Receiver<Order>) -> v1::CodeEnded {
        self.context.asks(false);
        self.kernel.take_what_is_there();
        let mut done = None;
        // What it said last is worth as much as what it said before.
        loop {
            self.flush(orders).await;
            match self.take_frames() {
                Ok(Some(found)) => {
                    done = Some(found);
                    break;
                }
                Ok(None) if self.outlet.is_empty() => break,
                Ok(None) => {}
                Err(_) => break,
            }
        }
        self.drain();
        self.flush(orders).await;
        if let (Some((status, exiting)), None) = (done, &self.killed) {
            return self.done(status, exiting, orders).await;
        }
        let (status, reason) = match self.killed.take() {
            Some((Why::TimedOut, reason)) => (v1::CodeStatus::CODE_STATUS_TIMED_OUT, reason),
            Some((_, reason)) if self.has_failed => (v1::CodeStatus::CODE_STATUS_DIED, reason),
            Some((_, reason)) => (v1::CodeStatus::CODE_STATUS_INTERRUPTED, reason),
            None => {
                let how = self.kernel.how_it_ended();
                (v1::CodeStatus::CODE_STATUS_DIED, format!("the interpreter ended in the middle: {how}"))
            }
        };
        self.ended(status, v1::Survival::SURVIVAL_LOST, reason)
    }

    fn ended(self, status: v1::CodeStatus, survival: v1::Survival, reason: String) -> v1::CodeEnded {
        let pid = self.kernel.process.pid;
        let state = self.kernel.process.state();
        let exit = state.ended.clone().unwrap_or_default();
        let cpu = match &state.ended {
            Some(exit) => exit.user_us.saturating_add(exit.system_us),
            None => self.guest.proc.cpu_us(pid),
        };
        v1::CodeEnded {
            status: status.into(),
            state: survival.into(),
            reason,
            cause: state.cause.into(),
            exit_code: exit.code,
            signal: exit.signal,
            wall_us: u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX),
            cpu_us: cpu.saturating_sub(self.cpu_before),
            stdout_bytes: self.offsets[0],
            stderr_bytes: self.offsets[1],
            ..Default::default()
        }
    }
}

/// What an execution is called between guest and kernel: a random number.
fn name_between(guest: &Guest, execution: u64) -> u64 {
    match guest.config.is_without("execution-ids") {
        true => execution,
        false => unguessable(),
    }
}

/// A random number that JSON holds exactly.
fn unguessable() -> u64 {
    let mut bytes = [0; 8];
    // It has been asked before, at the latest for this process's own memory layout; what it does not fill stays 0.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes) >> 11
}
