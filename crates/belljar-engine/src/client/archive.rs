//! Archives, packed and unpacked inside.

use std::io;

use belljar_proto::{ErrorCode, ServerStream, v1};
use bytes::Bytes;
use futures::Stream;
use tokio::io::AsyncRead;

use super::ask::bytes_of;
use super::{GuestClient, GuestError, Result, Upload};

type PackStream = ServerStream<v1::__buffa::view::PackResponseView<'static>>;

/// An archive on its way out.
pub struct Archive {
    stream: Box<PackStream>,
    first: Option<Bytes>,
    left: u64,
    most: u64,
    summary: Option<v1::PackSummary>,
}

impl GuestClient {
    /// Packs files and trees into an archive of at most `max_bytes`. What the guest packs is what the sandbox's code lets
    /// it see, so the archive is as little to be trusted as that code.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn pack(&self, request: v1::PackRequest, max_bytes: u64) -> Result<Archive> {
        let stream = self.files(None).pack(request).await?;
        let stream = Box::new(stream);
        let mut archive = Archive { stream, first: None, left: max_bytes, most: max_bytes, summary: None };
        // What is refused is refused with the first piece.
        archive.first = archive.next().await?;
        Ok(archive)
    }

    /// Unpacks an archive from a stream of bytes, as `open` says. On an error nothing is left of it inside.
    ///
    /// # Errors
    /// See [`GuestError`]: a limit is `ResourceExhausted`, an archive that cannot be unpacked `InvalidArgument`, a file
    /// that is there already `AlreadyExists`.
    pub async fn unpack<R>(&self, open: v1::UnpackOpen, source: R) -> Result<v1::UnpackResponse>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        self.ask(unpacked(open, bytes_of(source))).await
    }
}

/// The messages that unpack an archive.
pub fn unpacked(
    open: v1::UnpackOpen,
    archive: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> Upload<v1::UnpackRequest> {
    let first = v1::UnpackRequest { open: open.into(), ..Default::default() };
    Upload::new(first, archive, |data| v1::UnpackRequest { data, ..Default::default() })
}

impl Archive {
    /// The next bytes; `None` at the end of a whole archive.
    ///
    /// # Errors
    /// See [`GuestError`]; a longer archive than asked for is `OutOfRange`.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        loop {
            let Some(message) = self.stream.message::<v1::PackResponse>().await? else {
                return match (self.stream.error(), &self.summary) {
                    (Some(error), _) => Err(error.clone().into()),
                    (None, Some(_)) => Ok(None),
                    (None, None) => Err(GuestError::Protocol { what: "an archive ended before its end" }),
                };
            };
            let message = message.to_owned_message();
            if self.summary.is_some() {
                return Err(GuestError::Protocol { what: "an archive went on after its end" });
            }
            self.summary = message.summary.into_option();
            if self.summary.is_some() != message.data.is_empty() {
                return Err(GuestError::Protocol { what: "an archive came with an empty piece" });
            }
            if !message.data.is_empty() {
                let length = message.data.len() as u64;
                self.left = self.left.checked_sub(length).ok_or_else(|| self.too_long())?;
                return Ok(Some(message.data));
            }
        }
    }

    /// What was packed, as the guest tells it; `None` before the end.
    #[must_use]
    pub fn summary(&self) -> Option<&v1::PackSummary> {
        self.summary.as_ref()
    }

    fn too_long(&self) -> GuestError {
        let message = format!("the archive is longer than the {} bytes allowed here", self.most);
        GuestError::Refused { code: ErrorCode::OutOfRange, message }
    }
}

impl std::fmt::Debug for Archive {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Archive").field("summary", &self.summary).finish_non_exhaustive()
    }
}
