//! Files, directories and archives.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use belljar_engine::{GuestCall, GuestClient, GuestError, Pack, v1};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};

use super::{Detail, Details, Kind, number, operations, path};
use crate::error::GuestResource::{Content, File};

/// Writes a file.
pub struct Write {
    open: v1::WriteOpen,
    bytes: Arc<AtomicU64>,
    content: BoxStream<'static, io::Result<Bytes>>,
}

/// Unpacks an archive.
pub struct Unpack {
    open: v1::UnpackOpen,
    bytes: Arc<AtomicU64>,
    archive: BoxStream<'static, io::Result<Bytes>>,
}

/// Counts the bytes of a stream.
fn count_bytes(
    source: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> (Arc<AtomicU64>, BoxStream<'static, io::Result<Bytes>>) {
    let count = Arc::new(AtomicU64::new(0));
    let passed = Arc::clone(&count);
    let source = source.inspect(move |piece| {
        if let Ok(piece) = piece {
            passed.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
    });
    (count, source.boxed())
}

impl Write {
    /// Creates a request to write a file. If that fails, the file is unchanged.
    pub fn new(open: v1::WriteOpen, content: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Self {
        let (bytes, content) = count_bytes(content);
        Self { open, bytes, content }
    }
}

impl Unpack {
    /// Creates a request to unpack an archive. If that fails, nothing of it is left.
    pub fn new(
        open: v1::UnpackOpen,
        archive: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Self {
        let (bytes, archive) = count_bytes(archive);
        Self { open, bytes, archive }
    }
}

impl GuestCall for Write {
    type Response = v1::Entry;

    async fn call(self, guest: &GuestClient) -> Result<v1::Entry, GuestError> {
        guest.call(belljar_engine::write_messages(self.open, self.content)).await
    }
}

impl GuestCall for Unpack {
    type Response = v1::UnpackResponse;

    async fn call(self, guest: &GuestClient) -> Result<v1::UnpackResponse, GuestError> {
        guest.call(belljar_engine::unpack_messages(self.open, self.archive)).await
    }
}

fn transfer_details(at: &[u8], bytes: &Arc<AtomicU64>) -> Details {
    vec![path("path", at), ("bytes", Detail::Count(Arc::clone(bytes)))]
}

fn mode_details(request: &v1::SetModeRequest) -> Details {
    let mode = request.mode.map_or_else(|| "unchanged".to_owned(), |mode| format!("{mode:04o}"));
    vec![path("path", &request.path), number("mode", mode)]
}

operations! {
    v1::StatRequest = Kind::new("file.stat", File), at |request| [request.path];
    v1::ListRequest = Kind::new("file.list", File), at |request| [request.path];
    v1::SearchRequest = Kind::new("file.search", File), at |request| [request.path];
    v1::WatchRequest = Kind::new("file.watch", File), at |request| [request.path];
    v1::ReadRequest = Kind::new("file.read", Content).audited(), at |request| [request.path],
        |request| vec![path("path", &request.path)];
    Write = Kind::new("file.write", Content).audited().with_caller(), at |write| [write.open.path],
        |write| transfer_details(&write.open.path, &write.bytes);
    v1::MakeDirRequest = Kind::new("file.mkdir", File).audited(), at |request| [request.path],
        |request| vec![path("path", &request.path)];
    v1::SetModeRequest = Kind::new("file.chmod", File).audited(), at |request| [request.path],
        |request| mode_details(request);
    v1::MoveRequest = Kind::new("file.move", File).audited(), at |request| [request.from, request.to],
        |request| vec![path("from", &request.from), path("to", &request.to)];
    v1::RemoveRequest = Kind::new("file.remove", File).audited(), at |request| [request.path],
        |request| vec![path("path", &request.path)];
    // Its other paths are relative to this one.
    Pack = Kind::new("file.pack", File).audited(), at |pack| [pack.request.base],
        |pack| vec![path("path", &pack.request.base)];
    Unpack = Kind::new("file.unpack", File).audited().with_caller(), at |unpack| [unpack.open.path],
        |unpack| transfer_details(&unpack.open.path, &unpack.bytes);
}
