//! Packing and unpacking archives inside the sandbox.

use std::io;

use belljar_proto::{ErrorCode, ServerStream, v1};
use bytes::Bytes;
use futures::Stream;
use tokio::io::AsyncRead;

use super::call::bytes_of;
use super::{GuestClient, GuestError, Result, Upload};

type PackStream = ServerStream<v1::__buffa::view::PackResponseView<'static>>;

/// Download of an archive.
pub struct Archive {
    stream: Box<PackStream>,
    first: Option<Bytes>,
    left: u64,
    max_bytes: u64,
    summary: Option<v1::PackSummary>,
}

impl GuestClient {
    /// Packs files and trees into an archive of at most `max_bytes`. User code controls what the guest sees and packs,
    /// so the archive is as untrusted as that code.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn pack(&self, request: v1::PackRequest, max_bytes: u64) -> Result<Archive> {
        let stream = self.files(None).pack(request).await?;
        let stream = Box::new(stream);
        let mut archive = Archive { stream, first: None, left: max_bytes, max_bytes, summary: None };
        // A refusal arrives in place of the first chunk.
        archive.first = archive.next().await?;
        Ok(archive)
    }

    /// Unpacks an archive from a stream of bytes, with the options in `open`. After an error nothing of it is left inside.
    ///
    /// # Errors
    /// See [`GuestError`]: `ResourceExhausted` for a limit, `InvalidArgument` for an invalid archive, `AlreadyExists`
    /// for an existing file.
    pub async fn unpack<R>(&self, open: v1::UnpackOpen, source: R) -> Result<v1::UnpackResponse>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        self.call(unpack_messages(open, bytes_of(source))).await
    }
}

/// Returns the messages that unpack an archive.
pub fn unpack_messages(
    open: v1::UnpackOpen,
    archive: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> Upload<v1::UnpackRequest> {
    let first = v1::UnpackRequest { open: open.into(), ..Default::default() };
    Upload::new(first, archive, |data| v1::UnpackRequest { data, ..Default::default() })
}

impl Archive {
    /// Returns the next bytes; `None` at the end of a complete archive.
    ///
    /// # Errors
    /// See [`GuestError`]; `OutOfRange` if the archive exceeds its maximum size.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        loop {
            let Some(message) = self.stream.message::<v1::PackResponse>().await? else {
                return match (self.stream.error(), &self.summary) {
                    (Some(error), _) => Err(error.clone().into()),
                    (None, Some(_)) => Ok(None),
                    (None, None) => {
                        Err(GuestError::Protocol { what: "an archive ended without its summary" })
                    }
                };
            };
            let message = message.to_owned_message();
            if self.summary.is_some() {
                return Err(GuestError::Protocol { what: "an archive continued after its summary" });
            }
            self.summary = message.summary.into_option();
            if self.summary.is_some() != message.data.is_empty() {
                return Err(GuestError::Protocol { what: "an archive has an empty chunk" });
            }
            if !message.data.is_empty() {
                let length = message.data.len() as u64;
                self.left = self.left.checked_sub(length).ok_or_else(|| self.too_long())?;
                return Ok(Some(message.data));
            }
        }
    }

    /// Returns the guest's summary of what was packed; `None` before the end.
    #[must_use]
    pub fn summary(&self) -> Option<&v1::PackSummary> {
        self.summary.as_ref()
    }

    fn too_long(&self) -> GuestError {
        let message = format!("the archive is longer than the {} bytes allowed here", self.max_bytes);
        GuestError::Refused { code: ErrorCode::OutOfRange, message, problem: None }
    }
}

impl std::fmt::Debug for Archive {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Archive").field("summary", &self.summary).finish_non_exhaustive()
    }
}
