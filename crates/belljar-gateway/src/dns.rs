//! DNS resolver for code in a sandbox: assigns a synthetic address to each name that may be reached, and sends no queries of
//! its own, so that no data leaves the sandbox in a name.

use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use belljar_model::{DomainName, NetworkEvent};
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};

use crate::gateway::Gateway;

/// Maximum length of a query in bytes. Programs send queries of less than 300 bytes.
const MAX_QUERY: usize = 1232;

/// Time to live of an answer, in seconds. It is short because a repeated query costs nothing.
const TTL: u32 = 1;

/// Idle timeout of a TCP connection between two queries (RFC 7766, 6.2.3).
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Delay after a failed read of the socket.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// EDNS option for an extended error, and the error code "prohibited" (RFC 8914, 2 and 4.19).
const EXTENDED_ERROR: u16 = 15;
const PROHIBITED: u16 = 18;

/// Answers queries on the socket, forever.
pub(crate) async fn serve(gateway: Rc<Gateway>, socket: UdpSocket) {
    let mut buffer = [0; MAX_QUERY];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((length, from)) => {
                if let Some(answer) = answer(&gateway, &buffer[..length]) {
                    // A client without room for an answer retries.
                    let _ = socket.try_send_to(&answer, from);
                }
            }
            Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
        }
    }
}

/// Answers length-prefixed queries over TCP. Connections above [`crate::budget::MAX_STREAMS`] are closed at once.
pub(crate) async fn serve_stream(gateway: &Gateway, mut stream: TcpStream) {
    let Ok(_room) = gateway.streams.try_acquire() else { return };
    let mut buffer = [0; MAX_QUERY];
    let query = async |stream: &mut TcpStream, buffer: &mut [u8]| {
        let length = usize::from(stream.read_u16().await.ok()?);
        let buffer = buffer.get_mut(..length)?;
        stream.read_exact(buffer).await.ok()?;
        answer(gateway, buffer)
    };
    while let Ok(Some(answer)) = tokio::time::timeout(IDLE_TIMEOUT, query(&mut stream, &mut buffer)).await {
        let length = u16::try_from(answer.len()).unwrap_or(u16::MAX);
        if stream.write_all(&[&length.to_be_bytes(), answer.as_slice()].concat()).await.is_err() {
            return;
        }
    }
}

/// Returns the answer to a query; `None` if the message is no query or the rate limit is exceeded.
pub(crate) fn answer(gateway: &Gateway, bytes: &[u8]) -> Option<Vec<u8>> {
    if gateway.budget.queries.check().is_err() {
        return None;
    }
    let request = Message::from_vec(bytes).ok()?;
    if request.metadata.message_type != MessageType::Query {
        return None;
    }
    let mut answer = Message::response(request.metadata.id, request.metadata.op_code);
    answer.metadata.recursion_desired = request.metadata.recursion_desired;
    answer.metadata.recursion_available = true;
    answer.metadata.response_code = match request.queries.as_slice() {
        _ if request.metadata.op_code != OpCode::Query => ResponseCode::NotImp,
        [query] => {
            answer.add_query(query.clone());
            resolve(gateway, query, &mut answer, request.edns.is_some())
        }
        _ => ResponseCode::FormErr,
    };
    answer.to_vec().ok()
}

fn resolve(gateway: &Gateway, query: &Query, answer: &mut Message, takes_options: bool) -> ResponseCode {
    if query.query_class() != DNSClass::IN {
        return ResponseCode::Refused;
    }
    let text = query.name().to_ascii();
    let Ok(name) = text.strip_suffix('.').unwrap_or(&text).parse::<DomainName>() else {
        return ResponseCode::NXDomain;
    };
    let kind = query.query_type();
    if !gateway.matcher().may_resolve(&name) {
        let decision = gateway.matcher().name(&name, 443);
        if takes_options {
            let text = [&PROHIBITED.to_be_bytes(), decision.reason.as_bytes()].concat();
            let mut edns = Edns::new();
            edns.options_mut().insert(EdnsOption::Unknown(EXTENDED_ERROR, text));
            answer.set_edns(edns);
        }
        // Programs query several record types at once; one log record is enough for them.
        if !matches!(kind, RecordType::AAAA | RecordType::HTTPS) {
            let (rule, reason) = (decision.by.to_string(), decision.reason);
            gateway.log.write(NetworkEvent::Lookup { host: name.to_string(), rule, reason });
        }
        return ResponseCode::NXDomain;
    }
    if kind != RecordType::A {
        return ResponseCode::NoError;
    }
    match gateway.names.borrow_mut().address(&name) {
        Some(address) => {
            answer.add_answer(record(query, address));
            ResponseCode::NoError
        }
        None => ResponseCode::ServFail,
    }
}

fn record(query: &Query, address: Ipv4Addr) -> Record {
    Record::from_rdata(query.name().clone(), TTL, RData::A(A(address)))
}
