//! Answers in JSON of which parts are in files: they are read and sent piece by piece.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse as _, Response};
use belljar_engine::{StoredFile, StoredOutput};
use belljar_model::StreamOutput;
use futures::Stream;
use http::header;
use serde::Serialize;

/// A body as text. Only types of this crate come here, and each can be written.
pub(super) fn json(body: &impl Serialize) -> String {
    serde_json::to_string(body).unwrap_or_default()
}

/// The parts of an answer that are in files.
#[derive(Default)]
pub(crate) struct Later {
    files: Vec<(String, Arc<StoredFile>)>,
}

impl Later {
    /// What is kept, as it goes into the answer: of a file all but the bytes, for which a mark stands.
    pub(super) fn put(&mut self, kept: StoredOutput) -> StreamOutput {
        let file = match kept {
            StoredOutput::InMemory(output) => return output,
            StoredOutput::InFile(file) => file,
        };
        // Nothing that a program wrote can be the same: this is drawn when it has ended.
        let drawn = || std::hash::RandomState::new().hash_one(self.files.len());
        let mark = format!("{:016x}{:016x}", drawn(), drawn());
        let mut frame = file.frame();
        let text = if frame.base64.is_some() { &mut frame.base64 } else { &mut frame.text };
        *text = Some(mark.clone());
        self.files.push((mark, file));
        frame
    }

    /// A text that holds what was put, with the bytes of files in their places.
    pub(crate) fn pieces(self, mut text: String) -> impl Stream<Item = std::io::Result<Bytes>> + Send {
        async_stream::try_stream! {
            for (mark, file) in self.files {
                let Some(at) = text.find(&mark) else { continue };
                let rest = text.split_off(at + mark.len());
                text.truncate(at);
                yield Bytes::from(std::mem::replace(&mut text, rest));
                let mut at = 0;
                while let Some((piece, next)) = file.piece(at)? {
                    let quoted = serde_json::to_string(&piece)?;
                    yield Bytes::copy_from_slice(quoted.get(1..quoted.len() - 1).unwrap_or_default().as_bytes());
                    at = next;
                }
            }
            yield Bytes::from(text);
        }
    }

    /// Whether all is in memory.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Answers with `body`.
    pub(crate) fn answer(self, body: &impl Serialize) -> Response {
        if self.files.is_empty() {
            return axum::Json(body).into_response();
        }
        let body = Body::from_stream(self.pieces(json(body)));
        ([(header::CONTENT_TYPE, "application/json")], body).into_response()
    }
}
