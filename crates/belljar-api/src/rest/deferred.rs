//! JSON responses with output that is stored in files, which is read and sent in pieces.

use std::hash::BuildHasher as _;
use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock};

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse as _, Response};
use belljar_engine::{StoredFile, StoredOutput};
use belljar_model::StreamOutput;
use futures::Stream;
use http::header;
use serde::Serialize;
use tokio::sync::Semaphore;

/// Serializes a body. Only types of this crate are serialized here, and none of them can fail.
pub(super) fn json(body: &impl Serialize) -> String {
    serde_json::to_string(body).unwrap_or_default()
}

/// Limits how many pieces are encoded at the same time: as many as there are processors.
static ENCODERS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| {
    Arc::new(Semaphore::new(std::thread::available_parallelism().map_or(1, NonZeroUsize::get)))
});

/// Reads a piece of a file and encodes it as part of a JSON string; returns it and the offset of the next one, or `None` at the end.
/// Runs on a blocking thread: on this one, large responses of one key would delay the requests of all others.
async fn quoted_piece(file: Arc<StoredFile>, at: u64) -> std::io::Result<Option<(Bytes, u64)>> {
    // The semaphore is never closed.
    let turn = Arc::clone(&ENCODERS).acquire_owned().await;
    let encoding = tokio::task::spawn_blocking(move || {
        // Held here, as a client that disconnects does not end the thread's work.
        let _turn = turn;
        let Some((piece, next)) = file.piece(at)? else { return Ok(None) };
        let quoted = Bytes::from(serde_json::to_string(&piece)?);
        Ok(Some((quoted.slice(1..quoted.len() - 1), next)))
    });
    encoding.await.map_err(std::io::Error::other)?
}

/// Output in files, which is inserted into a response while it is sent.
#[derive(Default)]
pub(crate) struct DeferredOutput {
    files: Vec<(String, Arc<StoredFile>)>,
}

impl DeferredOutput {
    /// Returns the output for the response. The content of a file is replaced by a placeholder.
    pub(super) fn add(&mut self, kept: StoredOutput) -> StreamOutput {
        let file = match kept {
            StoredOutput::InMemory(output) => return output,
            StoredOutput::InFile(file) => file,
        };
        // Drawn after the program has ended, so that its output cannot contain the same placeholder.
        let random = || std::hash::RandomState::new().hash_one(self.files.len());
        let placeholder = format!("{:016x}{:016x}", random(), random());
        let mut frame = file.frame();
        let text = if frame.base64.is_some() { &mut frame.base64 } else { &mut frame.text };
        *text = Some(placeholder.clone());
        self.files.push((placeholder, file));
        frame
    }

    /// Streams a text, with each placeholder replaced by the content of its file.
    pub(crate) fn pieces(self, mut text: String) -> impl Stream<Item = std::io::Result<Bytes>> + Send {
        async_stream::try_stream! {
            for (placeholder, file) in self.files {
                let Some(at) = text.find(&placeholder) else { continue };
                let rest = text.split_off(at + placeholder.len());
                text.truncate(at);
                yield Bytes::from(std::mem::replace(&mut text, rest));
                let mut at = 0;
                while let Some((piece, next)) = quoted_piece(Arc::clone(&file), at).await? {
                    yield piece;
                    at = next;
                }
            }
            yield Bytes::from(text);
        }
    }

    /// Reports whether all output is in memory.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns the response with `body`.
    pub(crate) fn answer(self, body: &impl Serialize) -> Response {
        if self.files.is_empty() {
            return axum::Json(body).into_response();
        }
        let body = Body::from_stream(self.pieces(json(body)));
        ([(header::CONTENT_TYPE, "application/json")], body).into_response()
    }
}
