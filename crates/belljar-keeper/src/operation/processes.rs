//! Processes, ports, and health and metrics of the guest.

use std::io;

use belljar_engine::{GuestCall, GuestClient, GuestError, Tunnel, Upload, v1};
use futures::stream::BoxStream;
use sha2::{Digest as _, Sha256};

use super::{Kind, number, operations, with_own_env};
use crate::audit::CODE_DIGEST;
use crate::error::GuestResource::{File, Port, Process, Program};
use crate::operation::Detail;

/// Feeds the input of a process. The first message names it.
pub struct Feed(pub BoxStream<'static, io::Result<v1::InputRequest>>);

impl GuestCall for Feed {
    type Response = u64;

    async fn call(self, guest: &GuestClient) -> Result<u64, GuestError> {
        guest.call(Upload(self.0)).await
    }
}

/// Connects to a port on which a program in the sandbox listens.
#[derive(Debug)]
pub struct Connect(pub u16);

impl GuestCall for Connect {
    type Response = Tunnel;

    async fn call(self, guest: &GuestClient) -> Result<Tunnel, GuestError> {
        guest.tunnel(self.0).await
    }
}

/// Returns the SHA-256 over the parts of a command, each preceded by its length, in hexadecimal.
pub(super) fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> (&'static str, Detail) {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    (CODE_DIGEST, Detail::Text(hex::encode(hash.finalize())))
}

/// Returns the digest of a command and its input, computed as for the keeper's own commands.
fn command_digest(request: &v1::StartRequest) -> (&'static str, Detail) {
    let (kind, parts) = match request.shell.is_empty() {
        true => (b"argv".as_slice(), request.argv.as_slice()),
        false => (b"shell".as_slice(), std::slice::from_ref(&request.shell)),
    };
    let parts = parts.iter().map(|part| part.as_ref());
    digest(std::iter::once(kind).chain(parts).chain(std::iter::once(request.stdin.as_ref())))
}

operations! {
    v1::StartRequest = Kind::new("exec.start", Program).audited().executes(), |request| vec![command_digest(request)],
        for |request, entered| with_own_env(entered, &mut request.env),
        as |started, entered| entered.note_started(started.id);
    v1::AttachRequest = Kind::new("process.attach", Process);
    v1::ListProcessesRequest = Kind::new("process.list", Process);
    v1::SignalRequest = Kind::new("process.signal", Process).audited(), |request| vec![
        number("process", request.id), number("signal", request.signal),
    ];
    v1::ResizeRequest = Kind::new("process.resize", Process);
    Feed = Kind::new("process.input", Process).with_caller();
    v1::CheckRequest = Kind::new("guest.check", File);
    v1::MetricsRequest = Kind::new("guest.metrics", File);
    Connect = Kind::new("port.connect", Port);
    v1::ListPortsRequest = Kind::new("port.list", Port);
}
