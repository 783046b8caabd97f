//! The service `Commands`: commands that run to completion.

use std::collections::BTreeMap;

use belljar_engine::v1;
use belljar_keeper::{Command, ExecEvent, ExecRequest, KeeperError, MAX_KEPT_BYTES, RunEvent};
use belljar_model::OutputSize;
use belljar_proto::{RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream};

use super::call::Call;
use super::convert;
use crate::api::Shared;
use crate::problem::Problem;

/// Maximum length of the standard input in a request, in bytes.
const MAX_STDIN_BYTES: usize = 1 << 20;

/// The service `Commands`.
pub(super) struct Commands(pub(super) Shared);

impl v1::Commands for Commands {
    async fn exec(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ExecRequest>,
    ) -> ServiceResult<ServiceStream<v1::ExecEvent>> {
        let call = Call::new(&self.0, &context)?;
        let slot = call.slot()?;
        let idempotency = call.idempotency(&context, request.bytes())?;
        let mut request = request.to_owned_message();
        if request.stdin_open {
            return Err(
                call.field("stdin_open", "it is for Start only; a command that is waited for gets stdin")
            );
        }
        let id = std::mem::take(&mut request.sandbox);
        let result_only = request.result_only;
        let mut parsed = parse_request(request, MAX_KEPT_BYTES).map_err(|problem| call.problem(&problem))?;
        parsed.idempotency = idempotency;

        // Dropping it ends the command, so it lives in the stream.
        let mut run = self.0.keeper.stream_exec(&call.caller, &id, parsed);
        // Failures before the command runs are reported as the response itself.
        run.begun().await.map_err(|error| call.keeper_error(error))?;
        let failed_in = call.clone();
        let events = async_stream::stream! {
            while let Some(next) = run.next().await {
                match next {
                    RunEvent::Waiting(waiting) => {
                        let event = convert::waiting(waiting).into();
                        yield Ok(v1::ExecEvent { event, ..Default::default() });
                    }
                    RunEvent::Queued => {}
                    RunEvent::Progress(event) => if !result_only || matches!(event, ExecEvent::Started { .. }) {
                        yield Ok(to_event(event));
                    },
                    RunEvent::Ended(Ok(result)) => {
                        yield Ok(v1::ExecEvent { event: convert::exec_result(result).into(), ..Default::default() });
                    }
                    RunEvent::Ended(Err(error)) => yield Err(failed_in.keeper_error(error)),
                }
            }
        };
        Response::ok(call.until_stopped(slot, events))
    }

    async fn start(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ExecRequest>,
    ) -> ServiceResult<v1::StartedCommand> {
        let call = Call::new(&self.0, &context)?;
        let mut request = request.to_owned_message();
        let id = std::mem::take(&mut request.sandbox);
        let parsed =
            parse_request(request, OutputSize::MAX.bytes()).map_err(|problem| call.problem(&problem))?;
        let started =
            self.0.keeper.start(&call.caller, &id, parsed).await.map_err(|error| call.keeper_error(error))?;
        Response::ok(v1::StartedCommand { process: started.process, pid: started.pid, ..Default::default() })
    }
}

fn to_event(event: ExecEvent) -> v1::ExecEvent {
    let event = match event {
        ExecEvent::Started { process, pid } => {
            v1::StartedCommand { process, pid, ..Default::default() }.into()
        }
        ExecEvent::Output { stream, offset, data } => {
            v1::Output { stream: stream.into(), offset, data, ..Default::default() }.into()
        }
    };
    v1::ExecEvent { event, ..Default::default() }
}

fn parse_request(request: v1::ExecRequest, max: u64) -> Result<ExecRequest, Problem> {
    if request.output_bytes > max {
        let reason = format!("{} bytes are too many; at most {max} are allowed", request.output_bytes);
        return Err(Problem::field("output_bytes", reason));
    }
    let command = match (request.command.is_empty(), request.argv.is_empty()) {
        (false, true) => Command::Shell(request.command),
        (true, false) => Command::Argv(request.argv),
        (true, true) => return Err(Problem::field("command", "it is missing; give command or argv")),
        (false, false) => return Err(Problem::field("argv", "give either command or argv")),
    };
    if request.stdin.len() > MAX_STDIN_BYTES {
        let reason =
            format!("{} bytes are too many; at most {MAX_STDIN_BYTES} are allowed", request.stdin.len());
        return Err(Problem::field("stdin", reason));
    }
    let terminal = request.terminal.into_option().map(parse_size).transpose()?;
    let env: BTreeMap<_, _> = request.env.into_iter().collect();
    for (name, value) in &env {
        belljar_model::EnvVar::new(name, value).map_err(KeeperError::from)?;
    }
    if !request.cwd.is_empty() {
        convert::path("cwd", &request.cwd)?;
    }
    Ok(ExecRequest {
        command,
        cwd: Some(request.cwd).filter(|cwd| !cwd.is_empty()),
        user: Some(request.user).filter(|user| !user.is_empty()),
        env,
        stdin: request.stdin,
        stdin_open: request.stdin_open,
        terminal,
        timeout: convert::span("timeout", &request.timeout)?,
        keep_bytes: Some(request.output_bytes).filter(|bytes| *bytes != 0),
        session: Some(request.session).filter(|session| *session != 0),
        ..ExecRequest::default()
    })
}

fn parse_size(terminal: v1::Terminal) -> Result<(u16, u16), Problem> {
    let side = |field: &str, value: u32| {
        let fits = u16::try_from(value).ok().filter(|value| *value != 0);
        fits.ok_or_else(|| {
            Problem::field(format!("terminal.{field}"), format!("{value} is not allowed; give 1 to 65535"))
        })
    };
    Ok((side("rows", terminal.rows)?, side("columns", terminal.columns)?))
}
