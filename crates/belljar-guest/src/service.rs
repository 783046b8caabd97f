//! The `Process` and `Health` services.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use belljar_guest_config::GENERATION;
use belljar_proto::{
    ConnectError, InboundStream, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream, v1,
};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use crate::guest::Guest;
use crate::process::{NoProcess, Process, STREAMS, Stdin};

/// The `Process` and `Health` services of one guest.
pub(crate) struct Service {
    pub(crate) guest: Arc<Guest>,
}

impl Service {
    fn find(&self, id: u64) -> Result<Arc<Process>, ConnectError> {
        self.guest.table.get(id).map_err(|reason| {
            ConnectError::not_found(match reason {
                NoProcess::Never => format!("id: process {id} does not exist"),
                NoProcess::Evicted => format!(
                    "id: process {id} has ended and was evicted by later ones; attach sooner, \
                     or let it write to a file"
                ),
            })
        })
    }
}

impl v1::Process for Service {
    async fn start(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::StartRequest>,
    ) -> ServiceResult<ServiceStream<v1::ProcessEvent>> {
        let request = request.to_owned_message();
        let kills = request.on_disconnect == v1::OnDisconnect::ON_DISCONNECT_KILL;
        if kills && request.detach {
            return Err(ConnectError::invalid_argument(
                "on_disconnect: KILL cannot be combined with `detach`, whose stream ends immediately",
            ));
        }
        if request.on_disconnect.as_known().is_none() {
            return Err(ConnectError::invalid_argument("on_disconnect: give CONTINUE or KILL"));
        }
        let process = crate::start::start(&self.guest, &request)?;
        let pid = u32::try_from(process.pid).unwrap_or(0);
        let started = event(v1::Started { id: process.id, pid, ..Default::default() });
        let first = futures::stream::iter([Ok(started)]);
        if request.detach {
            return Ok(Response::from(Box::pin(first) as ServiceStream<_>));
        }
        let grace = crate::start::grace(&self.guest, request.grace_ms);
        let guard = kills.then(|| KillOnDrop {
            guest: Arc::clone(&self.guest),
            process: Arc::clone(&process),
            grace,
        });
        let rest = events(process, [0; 3]).map(move |event| {
            let _held = &guard;
            event
        });
        Ok(Response::from(Box::pin(first.chain(rest)) as ServiceStream<_>))
    }

    async fn attach(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::AttachRequest>,
    ) -> ServiceResult<ServiceStream<v1::ProcessEvent>> {
        let request = request.to_owned_message();
        let process = self.find(request.id)?;
        let offsets = [request.stdout_offset, request.stderr_offset, request.terminal_offset];
        Ok(Response::from(Box::pin(events(process, offsets)) as ServiceStream<_>))
    }

    async fn input(
        &self,
        _: RequestContext,
        mut requests: InboundStream<v1::InputRequest>,
    ) -> ServiceResult<v1::InputResponse> {
        let mut process: Option<Arc<Process>> = None;
        let mut bytes = 0u64;
        while let Some(message) = requests.next().await {
            let message = message?.to_owned_message();
            let process = match &process {
                Some(process) => process,
                None => process.insert(self.find(message.id)?),
            };
            if !feed(process, &message.data).await {
                break;
            }
            bytes += message.data.len() as u64;
            if message.close {
                close_input(process).await;
                break;
            }
        }
        Response::ok(v1::InputResponse { bytes, ..Default::default() })
    }

    async fn signal(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::SignalRequest>,
    ) -> ServiceResult<v1::SignalResponse> {
        let request = request.to_owned_message();
        if !(1..=64).contains(&request.signal) {
            let message = format!("signal: {} is not allowed; give 1 to 64", request.signal);
            return Err(ConnectError::invalid_argument(message));
        }
        let process = self.find(request.id)?;
        let signalled = if let Some(command) = &process.command {
            // Only the command is signalled, not its shell.
            let is_running = process.is_running();
            if is_running {
                self.guest.proc.signal_below(process.pid, &command.spared, request.signal)
            } else {
                0
            }
        } else if request.tree {
            self.guest.proc.signal_tree(process.pid, !process.is_running(), request.signal)
        } else {
            match process.signal(request.signal) {
                Ok(()) => 1,
                Err(Errno::SRCH) => 0,
                Err(errno) => {
                    return Err(ConnectError::failed_precondition(format!(
                        "cannot signal process {}: {errno}",
                        request.id
                    )));
                }
            }
        };
        Response::ok(v1::SignalResponse { signalled, ..Default::default() })
    }

    async fn resize(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::ResizeRequest>,
    ) -> ServiceResult<v1::ResizeResponse> {
        let request = request.to_owned_message();
        let process = self.find(request.id)?;
        let size = crate::start::window_size(&request.terminal.as_option().cloned().unwrap_or_default())
            .map_err(ConnectError::invalid_argument)?;
        let terminal = process.terminal.as_ref().ok_or_else(|| {
            ConnectError::failed_precondition(format!("process {} does not run on a terminal", request.id))
        })?;
        rustix::termios::tcsetwinsize(terminal, size)
            .map_err(|errno| ConnectError::internal(format!("cannot resize the terminal: {errno}")))?;
        Response::ok(v1::ResizeResponse::default())
    }

    async fn list(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::ListProcessesRequest>,
    ) -> ServiceResult<v1::ListProcessesResponse> {
        let id = request.to_owned_message().id;
        let processes = self.guest.table.all();
        let processes = processes.iter().filter(|process| id == 0 || process.id == id);
        let processes = processes.map(|process| info(process)).collect();
        Response::ok(v1::ListProcessesResponse { processes, ..Default::default() })
    }
}

fn info(process: &Process) -> v1::ProcessInfo {
    let totals = process.state().logs.each_ref().map(crate::output::OutputLog::total);
    v1::ProcessInfo {
        id: process.id,
        pid: u32::try_from(process.pid).unwrap_or(0),
        argv: process.argv.iter().map(|word| Bytes::copy_from_slice(word)).collect(),
        running: process.is_running(),
        exited: process.exit_status().map(Into::into).unwrap_or_default(),
        stdout_bytes: totals[0],
        stderr_bytes: totals[1],
        terminal_bytes: totals[2],
        ..Default::default()
    }
}

pub(crate) fn event(event: impl Into<v1::__buffa::oneof::process_event::Event>) -> v1::ProcessEvent {
    v1::ProcessEvent { event: Some(event.into()), ..Default::default() }
}

/// Terminates a process if its stream is dropped first.
struct KillOnDrop {
    guest: Arc<Guest>,
    process: Arc<Process>,
    grace: Duration,
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // Without a runtime, the guest itself is exiting and kills everything.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.process.is_running() {
            self.process.set_cause(v1::Cause::CAUSE_STOPPED);
            let (guest, process, grace) = (Arc::clone(&self.guest), Arc::clone(&self.process), self.grace);
            runtime.spawn(async move { crate::start::stop(&guest, &process, grace).await });
        }
    }
}

/// A reader of a process's streams. Dropping it stops throttling the process for this reader.
struct Reader {
    process: Arc<Process>,
    number: u64,
    offsets: [u64; 3],
    changed: tokio::sync::watch::Receiver<u64>,
    done: bool,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.process.change(|state| state.remove_reader(self.number));
    }
}

pub(crate) fn events(
    process: Arc<Process>,
    offsets: [u64; 3],
) -> impl Stream<Item = Result<v1::ProcessEvent, ConnectError>> {
    let changed = process.watch();
    let number = process.state().add_reader(offsets);
    let reader = Reader { process, number, offsets, changed, done: false };
    futures::stream::unfold(reader, |mut reader| async move {
        loop {
            if reader.done {
                return None;
            }
            reader.changed.mark_unchanged();
            if let Some(output) = reader.next_output() {
                return Some((Ok(event(output)), reader));
            }
            if let Some(exited) = reader.process.exit_status() {
                reader.done = true;
                return Some((Ok(event(exited)), reader));
            }
            if reader.changed.changed().await.is_err() {
                return None;
            }
        }
    })
}

impl Reader {
    fn next_output(&mut self) -> Option<v1::Output> {
        let mut state = self.process.state();
        for (index, stream) in STREAMS.into_iter().enumerate() {
            if let Some((offset, data)) = state.logs[index].read(self.offsets[index]) {
                self.offsets[index] = offset + data.len() as u64;
                let was_blocked = state.logs[index].must_wait();
                state.logs[index].set_reader(self.number, self.offsets[index]);
                let is_unblocked = was_blocked && !state.logs[index].must_wait();
                drop(state);
                if is_unblocked {
                    self.process.change(|_| {});
                }
                return Some(v1::Output { stream: stream.into(), offset, data, ..Default::default() });
            }
        }
        None
    }
}

/// Writes to the process's input. Returns false if the process accepts no more.
async fn feed(process: &Process, data: &[u8]) -> bool {
    let mut stdin = process.stdin.lock().await;
    let mut changed = process.watch();
    let mut rest = data;
    while !rest.is_empty() {
        if !process.is_running() {
            return false;
        }
        let written = match &mut *stdin {
            Stdin::Closed => return false,
            Stdin::Pipe(pipe) => {
                tokio::select! {
                    ready = pipe.writable() => match ready {
                        Ok(()) => pipe.try_write(rest),
                        Err(error) => Err(error),
                    },
                    _ = changed.changed() => continue,
                }
            }
            Stdin::Terminal(terminal) => write_terminal(terminal, rest).await,
        };
        match written {
            Ok(length) => rest = rest.get(length..).unwrap_or_default(),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => {
                *stdin = Stdin::Closed;
                return false;
            }
        }
    }
    true
}

async fn write_terminal(terminal: &AsyncFd<OwnedFd>, data: &[u8]) -> std::io::Result<usize> {
    let mut ready = terminal.writable().await?;
    match ready.try_io(|fd| rustix::io::write(fd.get_ref(), data).map_err(Into::into)) {
        Ok(result) => result,
        Err(_) => Err(std::io::ErrorKind::WouldBlock.into()),
    }
}

async fn close_input(process: &Process) {
    let mut stdin = process.stdin.lock().await;
    if let Stdin::Terminal(terminal) = &*stdin {
        // A terminal has no end of input; Ctrl-D is what a user would type for it.
        let _ = write_terminal(terminal, b"\x04").await;
        return;
    }
    *stdin = Stdin::Closed;
}

impl v1::Health for Service {
    async fn check(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, v1::CheckRequest>,
    ) -> ServiceResult<v1::CheckResponse> {
        Response::ok(v1::CheckResponse {
            generation: GENERATION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ms: u64::try_from(self.guest.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            layers: self.guest.layers(),
            ..Default::default()
        })
    }

    async fn metrics(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, v1::MetricsRequest>,
    ) -> ServiceResult<v1::MetricsResponse> {
        Response::ok(self.guest.metrics())
    }

    async fn set_deadline(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::SetDeadlineRequest>,
    ) -> ServiceResult<v1::SetDeadlineResponse> {
        let after = request.view().after_ms;
        self.guest.set_deadline((after > 0).then(|| Duration::from_millis(after)));
        Response::ok(v1::SetDeadlineResponse::default())
    }
}
