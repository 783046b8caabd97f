//! The resolver that code in a sandbox sees: it gives each name that may be reached an address of its own making, and asks
//! nobody, so nothing leaves the sandbox in a name.

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

/// The longest query. Those that programs send are below 300 bytes.
const MAX_QUERY: usize = 1232;

/// How long an address holds, in seconds: programs ask again, and the answer costs nothing.
const TTL: u32 = 1;

/// How long a stream may rest between two queries (RFC 7766, 6.2.3).
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// After the socket could not be read.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// The option for an extended error, and the code for one that is forbidden here (RFC 8914, 2 and 4.19).
const EXTENDED_ERROR: u16 = 15;
const PROHIBITED: u16 = 18;

/// Answers what comes over the socket, for as long as there is one.
pub(crate) async fn serve(gateway: Rc<Gateway>, socket: UdpSocket) {
    let mut buffer = [0; MAX_QUERY];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((length, from)) => {
                if let Some(answer) = answer(&gateway, &buffer[..length]) {
                    // One that has no room for an answer asks again.
                    let _ = socket.try_send_to(&answer, from);
                }
            }
            Err(_) => tokio::time::sleep(TRY_AGAIN).await,
        }
    }
}

/// Answers queries that come over a stream, each with its length before it. One too many is closed at once.
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

/// The answer to a query. What is none, and what comes too fast, gets none.
pub(crate) fn answer(gateway: &Gateway, bytes: &[u8]) -> Option<Vec<u8>> {
    if gateway.budget.queries.check().is_err() {
        return None;
    }
    let asked = Message::from_vec(bytes).ok()?;
    if asked.metadata.message_type != MessageType::Query {
        return None;
    }
    let mut answer = Message::response(asked.metadata.id, asked.metadata.op_code);
    answer.metadata.recursion_desired = asked.metadata.recursion_desired;
    answer.metadata.recursion_available = true;
    answer.metadata.response_code = match asked.queries.as_slice() {
        _ if asked.metadata.op_code != OpCode::Query => ResponseCode::NotImp,
        [query] => {
            answer.add_query(query.clone());
            resolve(gateway, query, &mut answer, asked.edns.is_some())
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
        // Programs ask for several kinds at once; one line of the log is enough for them.
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
