//! Streams: server-sent events and WebSockets.

mod sse;
mod text;
mod websocket;

pub(crate) use sse::{event, events, problem_event};
pub(crate) use text::{KeptOutput, Piece, Pieces};
pub(crate) use websocket::{Attachment, MAX_MESSAGE_BYTES, attach, upgrade_required};
