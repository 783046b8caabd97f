//! Calls to the server's services.

use belljar_proto::{CallOptions, ConnectError, UnaryResponse, v1};
use http::HeaderValue;

use crate::client::Client;
use crate::error::ClientError;
use crate::retry::{RetryWhen, idempotency_key, retry};
use crate::stream::Messages;

const IDEMPOTENCY_KEY: &str = "idempotency-key";

type Result<T> = std::result::Result<T, ClientError>;

/// Defines calls with one message and one answer.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident: $client:ident.$method:ident($request:ident) -> $answer:ident, $when:ident;)*) => {
        impl Client {
            $($(#[$doc])*
            ///
            /// # Errors
            /// See [`ClientError`].
            pub async fn $name(&self, request: v1::$request) -> Result<v1::$answer> {
                let client = v1::$client::new(self.connection.clone(), self.config.clone());
                let answer = retry(self.attempts, RetryWhen::$when, || self.map_error(client.$method(request.clone()))).await;
                answer.map(UnaryResponse::into_owned)
            })*
        }
    };
}

/// Defines calls with one message and a stream of answers, of which the first may take long: an error of the request arrives
/// in its place.
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
                    retry(self.attempts, RetryWhen::NotStarted, || self.map_error(client.$method(request.clone())));
                Ok(Messages::new(stream.await?, self.target.clone()))
            })*
        }
    };
}

calls! {
    /// Shows a sandbox's details. This does not count as a use of it: nothing is resumed.
    get: SandboxesClient.get(GetSandboxRequest) -> SandboxInfo, Always;
    /// Returns one page of the caller's sandboxes.
    list: SandboxesClient.list(ListSandboxesRequest) -> ListSandboxesResponse, Always;
    /// Changes labels, limits and the behaviour at the timeout.
    update: SandboxesClient.update(UpdateSandboxRequest) -> SandboxInfo, Always;
    /// Ends a sandbox, with everything in it.
    kill: SandboxesClient.kill(KillSandboxRequest) -> KillSandboxResponse, Always;
    /// Sets the remaining lifetime of a sandbox.
    set_timeout: SandboxesClient.set_timeout(SetTimeoutRequest) -> SandboxInfo, Always;
    /// Pauses a sandbox.
    pause: SandboxesClient.pause(PauseSandboxRequest) -> SandboxInfo, NotStarted;
    /// Resumes a sandbox.
    resume: SandboxesClient.resume(ResumeSandboxRequest) -> SandboxInfo, Always;
    /// Saves a sandbox's files as a template.
    snapshot: SandboxesClient.snapshot(SnapshotSandboxRequest) -> TemplateInfo, NotStarted;
    /// Returns the current resource usage of a sandbox.
    metrics: SandboxesClient.metrics(SandboxMetricsRequest) -> SandboxMetrics, Always;
    /// Issues a token for one sandbox only.
    issue_token: SandboxesClient.issue_token(IssueTokenRequest) -> IssuedToken, Always;
    /// Publishes a port, so that it can be reached from outside.
    publish_port: SandboxesClient.publish_port(PublishPortRequest) -> PublishedPort, Always;
    /// Unpublishes a port.
    unpublish_port: SandboxesClient.unpublish_port(UnpublishPortRequest) -> UnpublishPortResponse, NotStarted;
    /// Lists the published ports, and the ports on which programs in the sandbox listen.
    list_ports: SandboxesClient.list_ports(ListPublishedPortsRequest) -> ListPublishedPortsResponse, Always;
    /// Issues a token for one published port only.
    issue_port_token: SandboxesClient.issue_port_token(IssuePortTokenRequest) -> IssuedToken, Always;
    /// Signs a URL with which one file can be read or written without a key.
    sign_file: SandboxesClient.sign_file(SignFileRequest) -> SignFileResponse, Always;
    /// Starts a command in the background.
    start: CommandsClient.start(ExecRequest) -> StartedCommand, NotStarted;
    /// Lists the templates.
    templates: TemplatesClient.list(ListTemplatesRequest) -> ListTemplatesResponse, Always;
    /// Returns one template.
    template: TemplatesClient.get(GetTemplateRequest) -> TemplateInfo, Always;
    /// Removes a snapshot.
    remove_template: TemplatesClient.remove(RemoveTemplateRequest) -> RemoveTemplateResponse, NotStarted;
}

streams! {
    /// Streams the past events of a sandbox, and on request also new ones.
    logs: SandboxesClient.logs(SandboxLogsRequest) -> SandboxLogEntry;
    /// Streams past and new decisions about the connections of a running sandbox.
    network_log: SandboxesClient.network_log(NetworkLogRequest) -> NetworkRecord;
    /// Streams the past events of the service, and on request also new ones.
    events: SandboxesClient.events(EventsRequest) -> Event;
    /// Builds a template, and streams its progress. For administrators.
    build_template: TemplatesClient.build(BuildTemplateRequest) -> BuildTemplateEvent;
    /// Streams a built template as one file.
    export_template: TemplatesClient.export(ExportTemplateRequest) -> ExportTemplateResponse;
}

impl Client {
    /// Awaits a call and converts its error.
    async fn map_error<T>(
        &self,
        call: impl Future<Output = std::result::Result<T, ConnectError>>,
    ) -> Result<T> {
        call.await.map_err(|error| ClientError::new(&self.target, error))
    }

    /// Creates a sandbox. The same `key` and the same request return the same sandbox; without a key a random one is used, so
    /// that a broken connection never leads to a second sandbox.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn create(
        &self,
        request: v1::CreateSandboxRequest,
        key: Option<&str>,
    ) -> Result<v1::CreateSandboxResponse> {
        let client = v1::SandboxesClient::new(self.connection.clone(), self.config.clone());
        let options = with_idempotency_key(key.map_or_else(idempotency_key, str::to_owned))?;
        let answer = retry(self.attempts, RetryWhen::Always, || {
            self.map_error(client.create_with_options(request.clone(), options.clone()))
        });
        Ok(answer.await?.into_owned())
    }

    /// Runs a command: one `started`, outputs, and one `result`. Dropping the stream ends the command. With a `key` the same
    /// request runs once: a repeated request returns only the result.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn exec(&self, request: v1::ExecRequest, key: Option<&str>) -> Result<Messages<v1::ExecEvent>> {
        let client = v1::CommandsClient::new(self.connection.clone(), self.config.clone());
        let (options, when) = match key {
            Some(key) => (with_idempotency_key(key.to_owned())?, RetryWhen::Always),
            None => (CallOptions::default(), RetryWhen::NotStarted),
        };
        retry(self.attempts, when, || {
            self.map_error(async {
                let stream = client.exec_with_options(request.clone(), options.clone()).await?;
                Messages::new(stream, self.target.clone()).wait_for_first().await
            })
        })
        .await
    }

    /// Copies a sandbox's files into new sandboxes, with one message for each.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn fork(&self, request: v1::ForkSandboxRequest) -> Result<Messages<v1::ForkSandboxResponse>> {
        let client = v1::SandboxesClient::new(self.connection.clone(), self.config.clone());
        retry(self.attempts, RetryWhen::NotStarted, || {
            self.map_error(async {
                Messages::new(client.fork(request.clone()).await?, self.target.clone()).wait_for_first().await
            })
        })
        .await
    }
}

fn with_idempotency_key(key: String) -> Result<CallOptions> {
    let value =
        HeaderValue::try_from(key).map_err(|_| ClientError::Unsendable { field: "idempotency key" })?;
    Ok(CallOptions::default().with_header(IDEMPOTENCY_KEY, value))
}
