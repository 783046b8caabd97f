//! Calls to the services of the whole server.

use belljar_proto::{CallOptions, ConnectError, UnaryResponse, v1};
use http::HeaderValue;

use crate::client::Client;
use crate::error::ClientError;
use crate::retry::{Safe, idempotency_key, retried};
use crate::stream::Messages;

const IDEMPOTENCY_KEY: &str = "idempotency-key";

type Result<T> = std::result::Result<T, ClientError>;

/// Calls with one message and one answer.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident: $client:ident.$method:ident($request:ident) -> $answer:ident, $safe:ident;)*) => {
        impl Client {
            $($(#[$doc])*
            ///
            /// # Errors
            /// See [`ClientError`].
            pub async fn $name(&self, request: v1::$request) -> Result<v1::$answer> {
                let client = v1::$client::new(self.connection.clone(), self.config.clone());
                let answer = retried(self.attempts, Safe::$safe, || self.of_call(client.$method(request.clone()))).await;
                answer.map(UnaryResponse::into_owned)
            })*
        }
    };
}

/// Calls with one message and a stream of answers, of which the first may be long in coming: what is wrong with the
/// request comes in its place.
macro_rules! streams {
    ($($(#[$doc:meta])* $name:ident: $client:ident.$method:ident($request:ident) -> $answer:ident;)*) => {
        impl Client {
            $($(#[$doc])*
            ///
            /// # Errors
            /// See [`ClientError`].
            pub async fn $name(&self, request: v1::$request) -> Result<Messages<v1::$answer>> {
                let client = v1::$client::new(self.connection.clone(), self.config.clone());
                let stream =
                    retried(self.attempts, Safe::NotBegun, || self.of_call(client.$method(request.clone())));
                Ok(Messages::new(stream.await?, self.target.clone()))
            })*
        }
    };
}

calls! {
    /// Shows a sandbox's details. This does not count as a use of it: nothing is resumed.
    get: SandboxesClient.get(GetSandboxRequest) -> SandboxInfo, Always;
    /// One page of the caller's sandboxes.
    list: SandboxesClient.list(ListSandboxesRequest) -> ListSandboxesResponse, Always;
    /// Changes labels, limits and what happens when the time is over.
    update: SandboxesClient.update(UpdateSandboxRequest) -> SandboxInfo, Always;
    /// Ends a sandbox, with all that is in it.
    kill: SandboxesClient.kill(KillSandboxRequest) -> KillSandboxResponse, Always;
    /// Sets the time that a sandbox lives from now on.
    set_timeout: SandboxesClient.set_timeout(SetTimeoutRequest) -> SandboxInfo, Always;
    /// Pauses a sandbox.
    pause: SandboxesClient.pause(PauseSandboxRequest) -> SandboxInfo, NotBegun;
    /// Resumes a sandbox.
    resume: SandboxesClient.resume(ResumeSandboxRequest) -> SandboxInfo, Always;
    /// Keeps a sandbox's files as a template.
    snapshot: SandboxesClient.snapshot(SnapshotSandboxRequest) -> TemplateInfo, NotBegun;
    /// What a sandbox uses now.
    metrics: SandboxesClient.metrics(SandboxMetricsRequest) -> SandboxMetrics, Always;
    /// Makes a token that opens one sandbox only.
    issue_token: SandboxesClient.issue_token(IssueTokenRequest) -> IssuedToken, Always;
    /// Lets a port be reached from outside.
    publish_port: SandboxesClient.publish_port(PublishPortRequest) -> PublishedPort, Always;
    /// Takes that back.
    unpublish_port: SandboxesClient.unpublish_port(UnpublishPortRequest) -> UnpublishPortResponse, NotBegun;
    /// The published ports, and what programs inside listen on.
    list_ports: SandboxesClient.list_ports(ListPublishedPortsRequest) -> ListPublishedPortsResponse, Always;
    /// Makes a token that opens one published port only.
    issue_port_token: SandboxesClient.issue_port_token(IssuePortTokenRequest) -> IssuedToken, Always;
    /// Makes an address with which one file can be read or written without a key.
    sign_file: SandboxesClient.sign_file(SignFileRequest) -> SignFileResponse, Always;
    /// Starts a command in the background.
    start: CommandsClient.start(ExecRequest) -> StartedCommand, NotBegun;
    /// The templates.
    templates: TemplatesClient.list(ListTemplatesRequest) -> ListTemplatesResponse, Always;
    /// One template.
    template: TemplatesClient.get(GetTemplateRequest) -> TemplateInfo, Always;
    /// Removes a snapshot.
    remove_template: TemplatesClient.remove(RemoveTemplateRequest) -> RemoveTemplateResponse, NotBegun;
}

streams! {
    /// What happened to a sandbox, and if asked for what happens to it.
    logs: SandboxesClient.logs(SandboxLogsRequest) -> SandboxLogEntry;
    /// What was and is decided about the connections of a running sandbox.
    network_log: SandboxesClient.network_log(NetworkLogRequest) -> NetworkRecord;
    /// What happened in the service, and if asked for what happens.
    events: SandboxesClient.events(EventsRequest) -> Event;
    /// Builds a template, and tells how it goes on. For administrators.
    build_template: TemplatesClient.build(BuildTemplateRequest) -> BuildTemplateEvent;
    /// A built template as one file.
    export_template: TemplatesClient.export(ExportTemplateRequest) -> ExportTemplateResponse;
}

impl Client {
    /// What came of a call, in this client's words.
    async fn of_call<T>(
        &self,
        call: impl Future<Output = std::result::Result<T, ConnectError>>,
    ) -> Result<T> {
        call.await.map_err(|error| ClientError::new(&self.target, error))
    }

    /// Makes a sandbox. The same `key` and the same request get the same sandbox; without a key one is made up, so that
    /// a connection that breaks never leaves a second sandbox.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn create(
        &self,
        request: v1::CreateSandboxRequest,
        key: Option<&str>,
    ) -> Result<v1::CreateSandboxResponse> {
        let client = v1::SandboxesClient::new(self.connection.clone(), self.config.clone());
        let options = keyed(key.map_or_else(idempotency_key, str::to_owned))?;
        let answer = retried(self.attempts, Safe::Always, || {
            self.of_call(client.create_with_options(request.clone(), options.clone()))
        });
        Ok(answer.await?.into_owned())
    }

    /// Runs a command: one `started`, outputs, and one `result`. When the stream is dropped, the command ends. With a
    /// `key` the same key and the same request run once: who asks again gets the result alone.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn exec(&self, request: v1::ExecRequest, key: Option<&str>) -> Result<Messages<v1::ExecEvent>> {
        let client = v1::CommandsClient::new(self.connection.clone(), self.config.clone());
        let (options, safe) = match key {
            Some(key) => (keyed(key.to_owned())?, Safe::Always),
            None => (CallOptions::default(), Safe::NotBegun),
        };
        retried(self.attempts, safe, || {
            self.of_call(async {
                let stream = client.exec_with_options(request.clone(), options.clone()).await?;
                Messages::new(stream, self.target.clone()).begun().await
            })
        })
        .await
    }

    /// Copies a sandbox's files into new sandboxes: one message for each.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn fork(&self, request: v1::ForkSandboxRequest) -> Result<Messages<v1::ForkSandboxResponse>> {
        let client = v1::SandboxesClient::new(self.connection.clone(), self.config.clone());
        retried(self.attempts, Safe::NotBegun, || {
            self.of_call(async {
                Messages::new(client.fork(request.clone()).await?, self.target.clone()).begun().await
            })
        })
        .await
    }
}

fn keyed(key: String) -> Result<CallOptions> {
    let value =
        HeaderValue::try_from(key).map_err(|_| ClientError::Unsendable { field: "idempotency key" })?;
    Ok(CallOptions::default().with_header(IDEMPOTENCY_KEY, value))
}
