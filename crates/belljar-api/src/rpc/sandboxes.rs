//! The service `Sandboxes`.

use std::collections::BTreeMap;
use std::time::Duration;

use belljar_engine::v1;
use belljar_keeper::{
    CreateSandbox, EventFilter, FileOperation, ForkRequest, Labels, Lifetime, ListSandboxes, NewFile,
    PortSettings, SandboxUpdate, SnapshotRequest,
};
use belljar_model::{LimitScope, LimitsFile, NetworkFile, SecretFile, SpecFile};
use belljar_proto::{RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream};
use futures::StreamExt as _;

use super::call::Call;
use super::{convert, error};
use crate::api::Shared;
use crate::problem::Problem;

/// Default validity period of a token or a signed URL.
const DEFAULT_EXPIRY: Duration = Duration::from_secs(3600);

/// The service `Sandboxes`.
pub(super) struct Sandboxes(pub(super) Shared);

impl Sandboxes {
    fn info(&self, info: belljar_keeper::SandboxInfo) -> v1::SandboxInfo {
        convert::sandbox(info, self.0.config.domain.as_deref())
    }

    fn port(&self, id: &str, port: belljar_keeper::PublishedPort) -> v1::PublishedPort {
        let domain = self.0.config.domain.as_deref();
        let host = domain.map(|domain| format!("{}-{id}.{domain}", port.port));
        v1::PublishedPort {
            port: port.port.into(),
            public: port.public,
            host: host.unwrap_or_default(),
            path: format!("/v1/sandboxes/{id}/ports/{}/proxy/", port.port),
            ..Default::default()
        }
    }
}

impl v1::Sandboxes for Sandboxes {
    async fn create(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::CreateSandboxRequest>,
    ) -> ServiceResult<v1::CreateSandboxResponse> {
        let call = Call::new(&self.0, &context)?;
        let create = parse_create(request.to_owned_message(), self.0.keeper.default_lifetime());
        let mut create = create.map_err(|problem| call.problem(&problem))?;
        create.idempotency = call.idempotency(&context, request.bytes())?;
        let created =
            self.0.keeper.create(&call.caller, create).await.map_err(|error| call.keeper_error(error))?;
        Response::ok(v1::CreateSandboxResponse {
            sandbox: self.info(created.info).into(),
            existing: created.existing,
            ..Default::default()
        })
    }

    async fn get(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::GetSandboxRequest>,
    ) -> ServiceResult<v1::SandboxInfo> {
        let call = Call::new(&self.0, &context)?;
        let info = match request.ended {
            true => self.0.keeper.get_ended(&call.caller, request.sandbox).await,
            false => self.0.keeper.get(&call.caller, request.sandbox).await,
        };
        Response::ok(self.info(info.map_err(|error| call.keeper_error(error))?))
    }

    async fn list(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ListSandboxesRequest>,
    ) -> ServiceResult<v1::ListSandboxesResponse> {
        let call = Call::new(&self.0, &context)?;
        let query = parse_list(request.to_owned_message()).map_err(|problem| call.problem(&problem))?;
        let page = self.0.keeper.list(&call.caller, query).await.map_err(|error| call.keeper_error(error))?;
        Response::ok(v1::ListSandboxesResponse {
            sandboxes: page.items.into_iter().map(|info| self.info(info)).collect(),
            next_cursor: page.next_cursor.unwrap_or_default(),
            ..Default::default()
        })
    }

    async fn update(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::UpdateSandboxRequest>,
    ) -> ServiceResult<v1::SandboxInfo> {
        let call = Call::new(&self.0, &context)?;
        let mut request = request.to_owned_message();
        let id = std::mem::take(&mut request.sandbox);
        let update = parse_update(request).map_err(|problem| call.problem(&problem))?;
        let info = self
            .0
            .keeper
            .update(&call.caller, &id, update)
            .await
            .map_err(|error| call.keeper_error(error))?;
        Response::ok(self.info(info))
    }

    async fn kill(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::KillSandboxRequest>,
    ) -> ServiceResult<v1::KillSandboxResponse> {
        let call = Call::new(&self.0, &context)?;
        self.0.keeper.kill(&call.caller, request.sandbox).await.map_err(|error| call.keeper_error(error))?;
        Response::ok(v1::KillSandboxResponse::default())
    }

    async fn set_timeout(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::SetTimeoutRequest>,
    ) -> ServiceResult<v1::SandboxInfo> {
        let call = Call::new(&self.0, &context)?;
        let request = request.to_owned_message();
        let timeout = convert::span("timeout", &request.timeout).map_err(|problem| call.problem(&problem))?;
        let Some(timeout) = timeout else {
            return Err(call.field("timeout", "it is missing; give a time span, 0 s to end the sandbox now"));
        };
        let set = self.0.keeper.set_timeout(&call.caller, &request.sandbox, timeout).await;
        Response::ok(self.info(set.map_err(|error| call.keeper_error(error))?))
    }

    async fn pause(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::PauseSandboxRequest>,
    ) -> ServiceResult<v1::SandboxInfo> {
        let call = Call::new(&self.0, &context)?;
        let info = self
            .0
            .keeper
            .pause(&call.caller, request.sandbox)
            .await
            .map_err(|error| call.keeper_error(error))?;
        Response::ok(self.info(info))
    }

    async fn resume(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ResumeSandboxRequest>,
    ) -> ServiceResult<v1::SandboxInfo> {
        let call = Call::new(&self.0, &context)?;
        let request = request.to_owned_message();
        let timeout = convert::span("timeout", &request.timeout).map_err(|problem| call.problem(&problem))?;
        let resumed = self.0.keeper.resume(&call.caller, &request.sandbox, timeout).await;
        Response::ok(self.info(resumed.map_err(|error| call.keeper_error(error))?))
    }

    async fn snapshot(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::SnapshotSandboxRequest>,
    ) -> ServiceResult<v1::TemplateInfo> {
        let call = Call::new(&self.0, &context)?;
        let request = request.to_owned_message();
        let name = convert::non_empty(request.name).map(|name| name.parse()).transpose();
        let name = name.map_err(|error| call.keeper_error(error))?;
        let snapshot = SnapshotRequest { name, note: convert::non_empty(request.note) };
        let made = self.0.keeper.snapshot(&call.caller, &request.sandbox, snapshot).await;
        Response::ok(convert::template(made.map_err(|error| call.keeper_error(error))?))
    }

    async fn fork(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ForkSandboxRequest>,
    ) -> ServiceResult<ServiceStream<v1::ForkSandboxResponse>> {
        let call = Call::new(&self.0, &context)?;
        let slot = call.slot()?;
        let mut request = request.to_owned_message();
        let id = std::mem::take(&mut request.sandbox);
        let fork = parse_fork(request).map_err(|problem| call.problem(&problem))?;
        let mut forks =
            self.0.keeper.fork(&call.caller, &id, fork).await.map_err(|error| call.keeper_error(error))?;
        let (service, request_id) = (Self(self.0.clone()), call.caller.request_id.clone());
        let messages = async_stream::stream! {
            while let Some(fork) = forks.next().await {
                let result = match fork {
                    Ok(info) => service.info(info).into(),
                    Err(failed) => error::message(&failed.into(), &request_id).into(),
                };
                yield Ok(v1::ForkSandboxResponse { result, ..Default::default() });
            }
        };
        Response::ok(call.until_stopped(slot, messages))
    }

    async fn metrics(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::SandboxMetricsRequest>,
    ) -> ServiceResult<v1::SandboxMetrics> {
        let call = Call::new(&self.0, &context)?;
        let failed = |error| call.keeper_error(error);
        let info = self.0.keeper.get(&call.caller, request.sandbox).await.map_err(failed)?;
        let metrics = self.0.keeper.metrics(&call.caller, request.sandbox).await.map_err(failed)?;
        Response::ok(convert::metrics(metrics, &info.spec.limits))
    }

    async fn logs(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::SandboxLogsRequest>,
    ) -> ServiceResult<ServiceStream<v1::SandboxLogEntry>> {
        let call = Call::new(&self.0, &context)?;
        let slot = call.slot()?;
        let request = request.to_owned_message();
        // An invalid request is reported as the response, not at the end of a stream.
        let (id, after) = (&request.sandbox, request.after);
        let entries = self.0.keeper.follow_logs(&call.caller, id, after, request.follow).await;
        let entries = entries.map_err(|error| call.keeper_error(error))?;
        let max = if request.limit == 0 { usize::MAX } else { request.limit as usize };
        let failed = call.clone();
        let entries = entries.take(max).map(move |entry| match entry {
            Ok(entry) => Ok(convert::log_entry(entry)),
            Err(error) => Err(failed.keeper_error(error)),
        });
        Response::ok(call.until_stopped(slot, entries))
    }

    async fn network_log(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::NetworkLogRequest>,
    ) -> ServiceResult<ServiceStream<v1::NetworkRecord>> {
        let call = Call::new(&self.0, &context)?;
        let slot = call.slot()?;
        let request = request.to_owned_message();
        let records =
            self.0.keeper.network_log(&call.caller, &request.sandbox, request.after, request.follow).await;
        // The log ends with its gateway.
        let records = records
            .map_err(|error| call.keeper_error(error))?
            .take_while(|record| std::future::ready(record.is_ok()))
            .filter_map(async |record| record.ok().map(|record| Ok(convert::network_record(record))));
        Response::ok(call.until_stopped(slot, records))
    }

    async fn events(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::EventsRequest>,
    ) -> ServiceResult<ServiceStream<v1::Event>> {
        let call = Call::new(&self.0, &context)?;
        let slot = call.slot()?;
        let request = request.to_owned_message();
        let sandbox = Some(&request.sandbox).filter(|id| !id.is_empty()).map(|id| id.parse()).transpose();
        let sandbox = sandbox.map_err(|_| {
            call.problem(&Problem::field("sandbox", "invalid id; a sandbox's name is not accepted here"))
        })?;
        let filter =
            EventFilter { kinds: request.kinds, labels: request.labels.into_iter().collect(), sandbox };
        let after = Some(request.after.as_str()).filter(|id| !id.is_empty());
        let events = self.0.keeper.follow(&call.caller, filter, after, request.follow);
        let events = events.map_err(|error| call.keeper_error(error))?.map(|event| Ok(convert::event(event)));
        Response::ok(call.until_stopped(slot, events))
    }

    async fn issue_token(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::IssueTokenRequest>,
    ) -> ServiceResult<v1::IssuedToken> {
        let call = Call::new(&self.0, &context)?;
        let request = request.to_owned_message();
        let expires = convert::span("expires", &request.expires).map_err(|problem| call.problem(&problem))?;
        let expires = expires.unwrap_or(DEFAULT_EXPIRY);
        let issued = self.0.keeper.sandbox_token(&call.caller, &request.sandbox, expires).await;
        Response::ok(convert::token(issued.map_err(|error| call.keeper_error(error))?))
    }

    async fn publish_port(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::PublishPortRequest>,
    ) -> ServiceResult<v1::PublishedPort> {
        let call = Call::new(&self.0, &context)?;
        let failed = |error| call.keeper_error(error);
        let port = convert::port(request.port).map_err(|problem| call.problem(&problem))?;
        // The port's host name has the id, also when the request names the sandbox by its name.
        let id = self.0.keeper.get(&call.caller, request.sandbox).await.map_err(failed)?.id;
        let published = self.0.keeper.publish_port(&call.caller, request.sandbox, port, request.public).await;
        Response::ok(self.port(id.as_str(), published.map_err(failed)?))
    }

    async fn unpublish_port(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::UnpublishPortRequest>,
    ) -> ServiceResult<v1::UnpublishPortResponse> {
        let call = Call::new(&self.0, &context)?;
        let port = convert::port(request.port).map_err(|problem| call.problem(&problem))?;
        let unpublished = self.0.keeper.unpublish_port(&call.caller, request.sandbox, port).await;
        unpublished.map_err(|error| call.keeper_error(error))?;
        Response::ok(v1::UnpublishPortResponse::default())
    }

    async fn list_ports(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ListPublishedPortsRequest>,
    ) -> ServiceResult<v1::ListPublishedPortsResponse> {
        let call = Call::new(&self.0, &context)?;
        let failed = |error| call.keeper_error(error);
        let info = self.0.keeper.get(&call.caller, request.sandbox).await.map_err(failed)?;
        let ports = self.0.keeper.ports(&call.caller, request.sandbox).await.map_err(failed)?;
        let listening = self.0.keeper.listening_ports(&call.caller, request.sandbox).await.map_err(failed)?;
        Response::ok(v1::ListPublishedPortsResponse {
            ports: ports.into_iter().map(|port| self.port(info.id.as_str(), port)).collect(),
            listening: listening.into_iter().map(u32::from).collect(),
            ..Default::default()
        })
    }

    async fn issue_port_token(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::IssuePortTokenRequest>,
    ) -> ServiceResult<v1::IssuedToken> {
        let call = Call::new(&self.0, &context)?;
        let request = request.to_owned_message();
        let port = convert::port(request.port).map_err(|problem| call.problem(&problem))?;
        let expires = convert::span("expires", &request.expires).map_err(|problem| call.problem(&problem))?;
        let expires = expires.unwrap_or(DEFAULT_EXPIRY);
        let issued = self.0.keeper.port_token(&call.caller, &request.sandbox, port, expires).await;
        Response::ok(convert::token(issued.map_err(|error| call.keeper_error(error))?))
    }

    async fn sign_file(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::SignFileRequest>,
    ) -> ServiceResult<v1::SignFileResponse> {
        let call = Call::new(&self.0, &context)?;
        let problem = |problem: Problem| call.problem(&problem);
        let request = request.to_owned_message();
        convert::path("path", &request.path).map_err(problem)?;
        let operation = match convert::parse_enum("operation", request.operation).map_err(problem)? {
            v1::SignedOperation::SIGNED_OPERATION_READ => FileOperation::Read,
            v1::SignedOperation::SIGNED_OPERATION_WRITE => FileOperation::Write,
            v1::SignedOperation::SIGNED_OPERATION_ARCHIVE => FileOperation::Archive,
            v1::SignedOperation::SIGNED_OPERATION_UNSPECIFIED => {
                return Err(call.field("operation", "it is missing; give READ, WRITE or ARCHIVE"));
            }
        };
        let expires = convert::span("expires", &request.expires).map_err(problem)?.unwrap_or(DEFAULT_EXPIRY);
        let signed =
            self.0.keeper.sign_file(&call.caller, &request.sandbox, request.path, operation, expires).await;
        let signed = signed.map_err(|error| call.keeper_error(error))?;
        Response::ok(v1::SignFileResponse {
            path: format!("/v1/signed/{}", signed.token),
            expires_at: convert::time(signed.expires_at).into(),
            ..Default::default()
        })
    }
}

fn parse_network(
    mode: Option<String>,
    policy: Option<v1::NetworkPolicy>,
) -> Result<Option<NetworkFile>, Problem> {
    let Some(policy) = policy else { return Ok(mode.map(Into::into)) };
    if mode.is_some() {
        return Err(Problem::field("network", "given together with network_policy; give only one of them"));
    }
    let some = |texts: Vec<String>| Some(texts).filter(|texts| !texts.is_empty());
    let file = |secret: v1::NetworkSecret| {
        let [host, header, value] = [secret.host, secret.header, secret.value].map(convert::non_empty);
        SecretFile { host, header, value, ..SecretFile::default() }
    };
    let secret = |(name, secret)| (name, file(secret));
    Ok(Some(NetworkFile {
        mode: convert::non_empty(policy.mode),
        presets: some(policy.presets),
        allow: some(policy.allow),
        deny: some(policy.deny),
        requests: Some(policy.requests.into_iter().map(|(host, rules)| (host, rules.rules)).collect())
            .filter(|requests: &BTreeMap<_, _>| !requests.is_empty()),
        secrets: Some(policy.secrets.into_iter().map(secret).collect())
            .filter(|secrets: &BTreeMap<_, _>| !secrets.is_empty()),
        headers: Some(policy.headers.into_iter().map(file).collect())
            .filter(|headers: &Vec<_>| !headers.is_empty()),
        tls: Some(policy.tls.into_iter().collect()).filter(|tls: &BTreeMap<_, _>| !tls.is_empty()),
    }))
}

fn parse_create(request: v1::CreateSandboxRequest, timeout: Duration) -> Result<CreateSandbox, Problem> {
    let default = Lifetime { timeout, ..Lifetime::default() };
    let idle = convert::span("idle_timeout", &request.idle_timeout)?;
    let lifetime = Lifetime {
        timeout: convert::span("timeout", &request.timeout)?.unwrap_or(default.timeout),
        idle_timeout: idle.filter(|idle| !idle.is_zero()),
        on_timeout: convert::timeout_action(request.on_timeout)?.unwrap_or(default.on_timeout),
        auto_resume: request.auto_resume.unwrap_or(default.auto_resume),
    };
    let limits = request.limits.into_option().map(convert::limits_file).transpose()?;
    let env: BTreeMap<_, _> = request.env.into_iter().collect();
    let spec = SpecFile {
        engine: convert::non_empty(request.engine),
        limits: limits.unwrap_or_default(),
        grade: convert::non_empty(request.grade),
        machine: Some(request.machine).filter(|is_machine| *is_machine),
        user: convert::non_empty(request.user),
        network: parse_network(convert::non_empty(request.network), request.network_policy.into_option())?,
        mounts: Some(request.mounts).filter(|mounts| !mounts.is_empty()),
        volumes: Some(request.volumes.into_iter().map(convert::volume_file).collect::<Vec<_>>())
            .filter(|volumes| !volumes.is_empty()),
        env: Some(env).filter(|env| !env.is_empty()),
        hostname: convert::non_empty(request.hostname),
        ..SpecFile::default()
    };
    let files = request.files.into_iter().enumerate().map(|(index, file)| {
        convert::path(&format!("files[{index}].path"), &file.path)?;
        let mode = if file.mode == 0 { 0o644 } else { file.mode };
        if mode > 0o777 {
            let reason = "invalid mode; give permission bits up to 0777";
            return Err(Problem::field(format!("files[{index}].mode"), reason));
        }
        Ok(NewFile { path: file.path, mode, content: file.content })
    });
    Ok(CreateSandbox {
        template: convert::non_empty(request.template),
        name: convert::non_empty(request.name).map(|name| name.parse()).transpose()?,
        return_existing: request.return_existing,
        spec,
        lifetime,
        labels: Labels::new(request.labels.into_iter().collect())?,
        files: files.collect::<Result<_, _>>()?,
        idempotency: None,
        ports: PortSettings {
            host: convert::non_empty(request.port_host).map(|host| host.parse()).transpose()?,
            ..PortSettings::default()
        },
    })
}

fn parse_list(request: v1::ListSandboxesRequest) -> Result<ListSandboxes, Problem> {
    let states =
        request.states.into_iter().map(|state| convert::parse_state(convert::parse_enum("states", state)?));
    let limit = if request.limit == 0 { 50 } else { request.limit };
    if limit > 100 {
        return Err(Problem::field("limit", format!("{limit} is not allowed; give 1 to 100")));
    }
    Ok(ListSandboxes {
        states: states.collect::<Result<_, _>>()?,
        labels: request.labels.into_iter().collect(),
        name: convert::non_empty(request.name),
        ascending: request.ascending,
        limit,
        cursor: convert::non_empty(request.cursor),
    })
}

fn parse_update(request: v1::UpdateSandboxRequest) -> Result<SandboxUpdate, Problem> {
    let mut labels: BTreeMap<_, _> =
        request.set_labels.into_iter().map(|(key, value)| (key, Some(value))).collect();
    for key in request.remove_labels {
        if labels.insert(key.clone(), None).is_some() {
            return Err(Problem::field("remove_labels", format!("{key:?} is both set and removed")));
        }
    }
    let limits = request.limits.into_option().map(convert::limits_file).transpose()?.unwrap_or_default();
    if let Some(limit) = limits.given().find(|limit| limit.scope < LimitScope::Update) {
        let variable: Vec<_> = LimitsFile::table(LimitScope::Update).map(|limit| limit.name).collect();
        let reason = format!("it cannot change while the sandbox runs; these can: {}", variable.join(", "));
        return Err(Problem::field(format!("limits.{}", limit.name), reason));
    }
    let idle = convert::span("idle_timeout", &request.idle_timeout)?;
    Ok(SandboxUpdate {
        labels,
        memory: limits.memory,
        cpus: limits.cpus,
        pids: limits.pids,
        idle_timeout: idle.map(|idle| Some(idle).filter(|idle| !idle.is_zero())),
        on_timeout: convert::timeout_action(request.on_timeout)?,
        auto_resume: request.auto_resume,
        network: parse_network(None, request.network_policy.into_option())?,
    })
}

fn parse_fork(request: v1::ForkSandboxRequest) -> Result<ForkRequest, Problem> {
    let count = if request.count == 0 { 1 } else { request.count };
    if count > 20 {
        return Err(Problem::field("count", format!("{count} is not allowed; give 1 to 20")));
    }
    Ok(ForkRequest {
        count,
        timeout: convert::span("timeout", &request.timeout)?,
        labels: Labels::new(request.labels.into_iter().collect())?,
        env: request.env.into_iter().collect(),
    })
}
