//! The protocol between host and guest: `proto/belljar/v1` over connectrpc, on one byte stream. The messages and
//! services are generated when it is built; this crate adds how they travel over a stream that is connected already.

mod transport;

/// Generated from `proto/belljar/v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated code")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/services.rs"));
}

pub use buffa::{EnumValue, Enumeration, HasMessageView, Message, MessageView};
pub use connectrpc::client::{CallOptions, ClientBody, ClientTransport, UnaryResponse};
pub use connectrpc::codec::JsonDeserialize;
pub use connectrpc::{
    CompressionRegistry, ConnectError, DeadlinePolicy, Encodable, ErrorCode, ErrorDetail, InboundStream,
    RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream, StreamMessage,
};
pub use generated::belljar::v1;
pub use transport::{
    BidiReceiver, BidiSender, BidiStream, ClientConfig, Connection, MAX_MESSAGE_BYTES, ServerStream,
    client_config, connect, connect_with, serve,
};

/// The well-known types that messages hold.
pub use buffa_types::google::protobuf as well_known;

/// All of `proto/belljar/v1` as a set of descriptors, with what it imports. Server reflection answers from it.
pub const DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// A message inside a message, which may be missing.
pub type MessageField<T> = buffa::MessageField<T, buffa::Inline<T>>;

/// The detail of a guest's error that is about what is no regular file ([`v1::NotRegular`]).
pub const NOT_REGULAR: &str = "belljar.v1.NotRegular";

/// What this build speaks. A running guest is never replaced, so a host adapts to the guest's generation; what that
/// guest cannot do fails alone, early and by name.
pub const GENERATION: u32 = 1;
