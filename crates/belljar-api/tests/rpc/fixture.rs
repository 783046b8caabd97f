//! The server of a case, as RPC clients use it.

use std::time::Duration;

use belljar_client::{Client, ClientError, Credential, Target, v1};
use belljar_model::Role;

pub(crate) use crate::common::{Case, DOMAIN, Fixture, Named, ORIGIN, cases, config, engine, run};

impl Fixture {
    /// Creates a client with this credential.
    pub(crate) fn with_key(&self, credential: Credential) -> Client {
        Client::connect(Target::http(&self.address.to_string()).unwrap(), credential).unwrap()
    }

    /// Creates a client with a key of this tenant and role.
    pub(crate) async fn client(&self, tenant: &str, role: Role) -> Client {
        self.with_key(Credential::key(self.key(tenant, role).await))
    }

    /// Creates a client with a key for sandboxes.
    pub(crate) async fn user(&self) -> Client {
        self.client("default", Role::User).await
    }

    /// Creates a client with an administrator's key.
    pub(crate) async fn admin(&self) -> Client {
        self.client("default", Role::Admin).await
    }
}

/// Creates a sandbox, and returns its id.
pub(crate) async fn sandbox(client: &Client) -> String {
    client.create(v1::CreateSandboxRequest::default(), None).await.unwrap().sandbox.id.clone()
}

pub(crate) fn named(sandbox: &str) -> v1::GetSandboxRequest {
    v1::GetSandboxRequest { sandbox: sandbox.to_owned(), ..Default::default() }
}

pub(crate) fn span(duration: Duration) -> belljar_client::MessageField<belljar_client::well_known::Duration> {
    belljar_client::well_known::Duration::from(duration).into()
}

/// Returns a request to run a line.
pub(crate) fn line(sandbox: &str, line: &str) -> v1::ExecRequest {
    v1::ExecRequest { sandbox: sandbox.to_owned(), command: line.to_owned().into(), ..Default::default() }
}

/// Runs a line in a sandbox to its end.
pub(crate) async fn sh(client: &Client, sandbox: &str, text: &str) -> v1::ExecResult {
    let mut events = client.exec(line(sandbox, text), None).await.unwrap();
    while let Some(event) = events.next().await.unwrap() {
        if let Some(v1::__buffa::oneof::exec_event::Event::Result(result)) = event.event {
            return *result;
        }
    }
    panic!("a command ended without a result");
}

/// Returns the stable code of an error, or `ok`.
pub(crate) fn code<T>(result: Result<T, ClientError>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(error) => error.code().map_or_else(|| format!("{error:?}"), str::to_owned),
    }
}

/// Reads an answer to its end.
pub(crate) async fn text(mut answer: belljar_client::RestResponse) -> String {
    let mut text = Vec::new();
    while let Some(piece) = answer.next().await.unwrap() {
        text.extend_from_slice(&piece);
    }
    String::from_utf8(text).unwrap()
}

/// Returns the audit records about a sandbox, one line each.
pub(crate) async fn trail(admin: &Client, sandbox: &str) -> Vec<String> {
    let path = format!("/v1/audit/export?sandbox={sandbox}");
    let body = belljar_client::RestBody::Empty;
    let answer = admin.rest(belljar_client::Method::GET, &path, "application/x-ndjson", body).await.unwrap();
    text(answer).await.lines().map(str::to_owned).collect()
}
