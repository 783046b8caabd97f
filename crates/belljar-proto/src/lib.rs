//! The protocol between host and guest: `proto/belljar/v1` over connectrpc, on one byte stream. The messages and
//! services are generated (`make proto`); this crate adds how they travel over a stream that is connected already.

mod transport;

/// Generated from `proto/belljar/v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated code")]
#[rustfmt::skip]
mod generated;

pub use connectrpc::{
    ConnectError, Encodable, ErrorCode, InboundStream, RequestContext, Response, ServiceRequest,
    ServiceResult, ServiceStream, StreamMessage,
};
pub use generated::belljar::v1;
pub use transport::{
    BidiReceiver, BidiSender, BidiStream, Connection, MAX_MESSAGE_BYTES, ServerStream, client_config,
    connect, serve,
};

/// A message inside a message, which may be missing.
pub type MessageField<T> = buffa::MessageField<T, buffa::Inline<T>>;

/// What this build speaks. A running guest is never replaced, so a host adapts to the guest's generation; what that
/// guest cannot do fails alone, early and by name.
pub const GENERATION: u32 = 1;
