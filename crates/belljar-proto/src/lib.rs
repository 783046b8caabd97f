//! The protocol between host and guest: `proto/belljar/v1` over connectrpc, on one byte stream. The messages and
//! services are generated at build time; this crate adds the transport over an already connected stream.

mod connection;
mod direct;
mod frame;
mod transport;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

/// Generated from `proto/belljar/v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated code")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/services.rs"));
}

pub use buffa::{EnumValue, Enumeration, HasMessageView, Message, MessageView};
pub use connection::{Connection, DialError};
pub use connectrpc::client::{CallOptions, ClientBody, ClientTransport, UnaryResponse};
pub use connectrpc::codec::JsonDeserialize;
pub use connectrpc::{
    CompressionRegistry, ConnectError, DeadlinePolicy, Encodable, ErrorCode, ErrorDetail, InboundStream,
    RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream, StreamMessage,
};
pub use direct::{
    HTTP2_FIRST, LENGTH_BYTES, MAX_ANSWER_BYTES, MAX_DIRECT_BYTES, direct_answer, direct_message,
    parse_direct_answer,
};
pub use frame::{read_frame, write_frame};
pub use generated::belljar::v1;
pub use transport::{
    BidiReceiver, BidiSender, BidiStream, ClientConfig, MAX_MESSAGE_BYTES, ServerStream, client_config,
    connect, connect_by, connect_with, serve,
};

/// The well-known types that messages use.
pub use buffa_types::google::protobuf as well_known;

/// All of `proto/belljar/v1` and its imports as a set of descriptors, for server reflection.
pub const DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// An optional message inside of a message.
pub type MessageField<T> = buffa::MessageField<T, buffa::Inline<T>>;

/// Type of the detail in a guest's error about a path that is not a regular file ([`v1::NotRegular`]).
pub const NOT_REGULAR: &str = "belljar.v1.NotRegular";

/// Type of the detail in each error of a server ([`v1::Problem`]), also of a guest's errors that it passes on.
pub const PROBLEM: &str = "belljar.v1.Problem";

/// Returns the server's details of an error, if it comes from one.
#[must_use]
pub fn problem(error: &ConnectError) -> Option<v1::Problem> {
    let detail = error.details.iter().find(|detail| detail.type_url.rsplit('/').next() == Some(PROBLEM))?;
    let value = detail.value.as_deref()?.trim_end_matches('=');
    let bytes = STANDARD_NO_PAD.decode(value).ok()?;
    v1::Problem::decode_from_slice(&bytes).ok()
}
