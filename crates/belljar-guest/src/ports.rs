//! The `Ports` service: connections to servers inside the sandbox.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use belljar_proto::{
    ConnectError, InboundStream, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream, v1,
};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

/// Maximum number of open tunnels.
const MAX_TUNNELS: usize = 256;

/// Maximum size of one read from the server inside, in bytes.
const CHUNK_BYTES: usize = 64 * 1024;

/// Timeout for a server to accept a connection; one that has stopped accepting never answers.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of the kernel's socket table that is read, in bytes. User code can make it long by opening sockets.
const MAX_TABLE_BYTES: u64 = 64 << 20;

/// Hexadecimal state `LISTEN` in the kernel's table.
const LISTENING: &str = "0A";

/// The `Ports` service of one sandbox.
pub(crate) struct Ports {
    slots: Arc<Semaphore>,
}

impl Default for Ports {
    fn default() -> Self {
        Self { slots: Arc::new(Semaphore::new(MAX_TUNNELS)) }
    }
}

impl v1::Ports for Ports {
    async fn tunnel(
        &self,
        _: RequestContext,
        mut requests: InboundStream<v1::TunnelRequest>,
    ) -> ServiceResult<ServiceStream<v1::TunnelResponse>> {
        let first = requests.next().await.ok_or_else(|| {
            ConnectError::invalid_argument("port: missing; the first message must contain it")
        })??;
        let first = first.to_owned_message();
        let port = u16::try_from(first.port).ok().filter(|port| *port > 0).ok_or_else(|| {
            ConnectError::invalid_argument(format!("port: {} is not allowed; give 1 to 65535", first.port))
        })?;
        let slot = Arc::clone(&self.slots).try_acquire_owned().map_err(|_| {
            ConnectError::resource_exhausted(format!("tunnel limit of {MAX_TUNNELS} reached"))
        })?;
        let socket = connect(port).await?;
        let (reader, writer) = socket.into_split();
        let slot = Arc::new(slot);
        let upload = tokio::spawn(upload(first.data, requests, writer, Arc::clone(&slot)));
        let download = Download { port, reader, upload: Some(upload.abort_handle()), _slot: slot };
        Ok(Response::from(Box::pin(download.stream()) as ServiceStream<_>))
    }

    async fn list(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, v1::ListPortsRequest>,
    ) -> ServiceResult<v1::ListPortsResponse> {
        let mut ports = BTreeSet::new();
        for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
            match std::fs::File::open(table) {
                Ok(file) => read_table(BufReader::new(file.take(MAX_TABLE_BYTES)), &mut ports).await,
                // The table is missing if the kernel has no IPv6.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
            }
            .map_err(|error| ConnectError::internal(format!("cannot read {table}: {error}")))?;
        }
        Response::ok(v1::ListPortsResponse {
            tcp: ports.into_iter().map(u32::from).collect(),
            ..Default::default()
        })
    }
}

async fn connect(port: u16) -> Result<TcpStream, ConnectError> {
    // A server that binds "localhost" may have only the address of IPv6.
    let addresses = [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), (Ipv6Addr::LOCALHOST, port).into()];
    let connecting = async {
        match TcpStream::connect(addresses[0]).await {
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                TcpStream::connect(addresses[1]).await.map_err(|_| error)
            }
            connected => connected,
        }
    };
    let socket = match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(Ok(socket)) => socket,
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            return Err(ConnectError::unavailable(format!("nothing listens on port {port}")));
        }
        Ok(Err(error)) => {
            return Err(ConnectError::unavailable(format!("cannot connect to port {port}: {error}")));
        }
        Err(_) => {
            let seconds = CONNECT_TIMEOUT.as_secs();
            let message = format!("port {port} has not accepted the connection within {seconds} s");
            return Err(ConnectError::unavailable(message));
        }
    };
    // Best effort: only affects latency.
    let _ = socket.set_nodelay(true);
    Ok(socket)
}

/// Forwards the client's bytes to the server. The end of the client's stream closes the write side of the socket; an
/// error in the stream drops the socket.
async fn upload(
    first: Bytes,
    mut requests: InboundStream<v1::TunnelRequest>,
    mut writer: OwnedWriteHalf,
    _slot: Arc<OwnedSemaphorePermit>,
) {
    let mut data = first;
    loop {
        // The server accepts no more input; its remaining output is forwarded independently.
        if writer.write_all(&data).await.is_err() {
            return writer.forget();
        }
        match requests.next().await {
            Some(Ok(message)) => data = message.to_owned_message().data,
            Some(Err(_)) => return,
            None => break,
        }
    }
    // Fails if the other side has already closed.
    let _ = writer.shutdown().await;
}

/// Forwards the server's bytes to the client. If the client drops this early, the upload is aborted as well; after the
/// server's end of stream the client may still send.
struct Download {
    port: u16,
    reader: OwnedReadHalf,
    upload: Option<AbortHandle>,
    _slot: Arc<OwnedSemaphorePermit>,
}

impl Download {
    fn stream(self) -> impl Stream<Item = Result<v1::TunnelResponse, ConnectError>> {
        futures::stream::try_unfold(self, |mut download| async move {
            let mut data = Vec::with_capacity(CHUNK_BYTES);
            match download.reader.read_buf(&mut data).await {
                Ok(0) => {
                    // The upload continues on its own.
                    drop(download.upload.take());
                    Ok(None)
                }
                Ok(_) => Ok(Some((v1::TunnelResponse { data: data.into(), ..Default::default() }, download))),
                Err(error) => {
                    let message = format!("the connection to port {} broke: {error}", download.port);
                    Err(ConnectError::aborted(message))
                }
            }
        })
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        if let Some(upload) = self.upload.take() {
            upload.abort();
        }
    }
}

/// Adds the listening ports of one table.
async fn read_table(table: impl BufRead, ports: &mut BTreeSet<u16>) -> std::io::Result<()> {
    for (index, line) in table.lines().enumerate() {
        ports.extend(listening_port(&line?));
        if index % 256 == 255 {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// Returns the port of a line such as `0: 0100007F:1F90 00000000:0000 0A …`, if it is in state `LISTEN`.
pub(crate) fn listening_port(line: &str) -> Option<u16> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (_, port) = words.next()?.split_once(':')?;
    (words.nth(1)? == LISTENING).then(|| u16::from_str_radix(port, 16).ok())?
}

#[cfg(test)]
mod tests;
