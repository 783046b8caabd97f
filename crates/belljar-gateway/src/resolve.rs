//! Name resolution by the gateway itself, for connections to allowed names.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use belljar_model::DomainName;
use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::Instant;

/// Maximum number of the machine's resolvers that are queried, as in resolv.conf(5).
const MAX_SERVERS: usize = 3;

/// Number of attempts for each resolver, and the timeout of each attempt.
const ROUNDS: usize = 2;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum length of an answer over UDP, in bytes; a longer one comes over TCP, with at most 64 KiB.
const MAX_DATAGRAM: usize = 4096;

/// Maximum number of addresses used from one answer.
const MAX_ADDRESSES: usize = 16;

/// Maximum number of names in an answer that the queried one is another name for. Resolvers follow fewer.
const MAX_ALIASES: usize = 32;

/// Maximum time that an answer is cached, and maximum number of cached names.
const MAX_CACHE_TTL: Duration = Duration::from_secs(60);
const MAX_CACHED_NAMES: usize = 512;

/// Error when resolving a name.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResolveError {
    #[error("{name} does not exist, says the machine's resolver")]
    NoName { name: String },
    #[error("{name} has no IPv4 address")]
    NoAddress { name: String },
    #[error("{name} is another name for more than {MAX_ALIASES} names")]
    Aliases { name: String },
    #[error(
        "{name} cannot be looked up: the machine has no resolver with an IPv4 address in /etc/resolv.conf"
    )]
    Unconfigured { name: String },
    #[error("{name} cannot be looked up: the resolver {resolver}: {reason}")]
    Unanswered { name: String, resolver: SocketAddrV4, reason: String },
}

impl ResolveError {
    /// Returns the error without the resolver's address and the machine's configuration, for code in the sandbox.
    pub(crate) fn to_public(&self) -> String {
        match self {
            Self::Unanswered { name, reason, .. } => format!("{name} cannot be looked up: {reason}"),
            Self::Unconfigured { name } => format!("{name} cannot be looked up"),
            other => other.to_string(),
        }
    }
}

/// What a name resolves to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Resolved {
    /// The addresses, in the resolver's order. There is at least one.
    pub(crate) addresses: Vec<Ipv4Addr>,
    /// The names that it is another name for (CNAME).
    pub(crate) aliases: Vec<DomainName>,
}

/// Resolver with the machine's hosts file and a cache.
#[derive(Default)]
pub(crate) struct Resolver {
    servers: Vec<SocketAddrV4>,
    hosts: HashMap<DomainName, Vec<Ipv4Addr>>,
    cache: RefCell<HashMap<DomainName, (Instant, Resolved)>>,
}

impl Resolver {
    /// Creates a resolver that queries the given servers, or those of the machine if none are given. Reads files.
    pub(crate) fn of_this_machine(given: &[SocketAddr]) -> Self {
        let text = |path| std::fs::read_to_string(path).unwrap_or_default();
        let servers = match given {
            [] => servers(&text("/etc/resolv.conf")),
            given => given.iter().copied().filter_map(v4).collect(),
        };
        Self { servers, hosts: hosts(&text("/etc/hosts")), cache: RefCell::default() }
    }

    /// Returns what a name resolves to.
    pub(crate) async fn resolve(&self, name: &DomainName) -> Result<Resolved, ResolveError> {
        if let Some(addresses) = self.hosts.get(name) {
            return Ok(Resolved { addresses: addresses.clone(), aliases: Vec::new() });
        }
        if let Some((until, resolved)) = self.cache.borrow().get(name)
            && Instant::now() < *until
        {
            return Ok(resolved.clone());
        }
        let (resolved, ttl) = self.query_all(name).await?;
        self.insert(name, &resolved, ttl);
        Ok(resolved)
    }

    fn insert(&self, name: &DomainName, resolved: &Resolved, ttl: Duration) {
        let mut cache = self.cache.borrow_mut();
        let now = Instant::now();
        if cache.len() >= MAX_CACHED_NAMES {
            cache.retain(|_, (until, _)| now < *until);
        }
        if cache.len() < MAX_CACHED_NAMES {
            cache.insert(name.clone(), (now + ttl.min(MAX_CACHE_TTL), resolved.clone()));
        }
    }

    async fn query_all(&self, name: &DomainName) -> Result<(Resolved, Duration), ResolveError> {
        let mut last = None;
        for _ in 0..ROUNDS {
            for server in &self.servers {
                match query_server(*server, name).await {
                    Ok(answer) => return parse_answer(name, &answer),
                    Err(reason) => last = Some((*server, reason)),
                }
            }
        }
        let name = name.to_string();
        Err(match last {
            Some((resolver, reason)) => ResolveError::Unanswered { name, resolver, reason },
            None => ResolveError::Unconfigured { name },
        })
    }
}

/// Returns the addresses and other names in an answer, and their time to live.
fn parse_answer(name: &DomainName, answer: &Message) -> Result<(Resolved, Duration), ResolveError> {
    let aliases = answer.answers.iter().filter_map(|record| match &record.data {
        // A name that no rule can match is none of the policy's business.
        RData::CNAME(alias) => DomainName::lenient(&alias.0.to_ascii()),
        _ => None,
    });
    let aliases: Vec<DomainName> = aliases.take(MAX_ALIASES + 1).collect();
    if aliases.len() > MAX_ALIASES {
        return Err(ResolveError::Aliases { name: name.to_string() });
    }
    let addresses = answer.answers.iter().filter_map(|record| match &record.data {
        RData::A(address) => Some((address.0, record.ttl)),
        _ => None,
    });
    let addresses: Vec<(Ipv4Addr, u32)> = addresses.take(MAX_ADDRESSES).collect();
    let Some(ttl) = addresses.iter().map(|(_, ttl)| *ttl).min() else {
        let name = name.to_string();
        return Err(match answer.metadata.response_code {
            ResponseCode::NXDomain => ResolveError::NoName { name },
            _ => ResolveError::NoAddress { name },
        });
    };
    let ttl = Duration::from_secs(ttl.into());
    let addresses = addresses.into_iter().map(|(address, _)| address).collect();
    Ok((Resolved { addresses, aliases }, ttl))
}

/// Queries one resolver. An answer that the name does not exist counts as an answer.
async fn query_server(server: SocketAddrV4, name: &DomainName) -> Result<Message, String> {
    let query = query(name)?;
    let bytes = query.to_vec().map_err(|error| error.to_string())?;
    let answered = async {
        let answer = query_udp(server, &query, &bytes).await?;
        if !answer.metadata.truncation {
            return Ok(answer);
        }
        query_tcp(server, &query, &bytes).await
    };
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, answered).await;
    let answer = answer.map_err(|_| "no answer in time".to_owned())?.map_err(|error| error.to_string())?;
    match answer.metadata.response_code {
        ResponseCode::NoError | ResponseCode::NXDomain => Ok(answer),
        code => Err(code.to_string()),
    }
}

fn query(name: &DomainName) -> Result<Message, String> {
    let mut id = [0; 2];
    rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| errno.to_string())?;
    let name = Name::from_ascii(format!("{name}.")).map_err(|error| error.to_string())?;
    let mut query = Message::new(u16::from_ne_bytes(id), MessageType::Query, OpCode::Query);
    query.metadata.recursion_desired = true;
    query.add_query(Query::query(name, RecordType::A));
    Ok(query)
}

/// Reports whether a message answers this query.
fn is_answer(answer: &Message, query: &Message) -> bool {
    answer.metadata.message_type == MessageType::Response
        && answer.metadata.id == query.metadata.id
        && answer.queries == query.queries
}

async fn query_udp(server: SocketAddrV4, query: &Message, bytes: &[u8]) -> std::io::Result<Message> {
    // From a random port chosen by the kernel, and connected, so that only the resolver's datagrams are received.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
    rustix::net::connect(&socket, &server)?;
    let socket = UdpSocket::from_std(socket.into())?;
    socket.send(bytes).await?;
    let mut buffer = [0; MAX_DATAGRAM];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if let Ok(answer) = Message::from_vec(&buffer[..length])
            && is_answer(&answer, query)
        {
            return Ok(answer);
        }
    }
}

async fn query_tcp(server: SocketAddrV4, query: &Message, bytes: &[u8]) -> std::io::Result<Message> {
    let mut stream = TcpStream::connect(SocketAddr::V4(server)).await?;
    let length = u16::try_from(bytes.len()).map_err(std::io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), bytes].concat()).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    let answer = Message::from_vec(&answer).map_err(std::io::Error::other)?;
    is_answer(&answer, query).then_some(answer).ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

/// Parses the resolvers in the text of a resolv.conf(5).
fn servers(text: &str) -> Vec<SocketAddrV4> {
    let addresses = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        words.next().filter(|word| *word == "nameserver")?;
        words.next()?.parse::<IpAddr>().ok()
    });
    addresses.filter_map(|address| v4(SocketAddr::new(address, 53))).take(MAX_SERVERS).collect()
}

fn v4(address: SocketAddr) -> Option<SocketAddrV4> {
    match address {
        SocketAddr::V4(address) => Some(address),
        SocketAddr::V6(_) => None,
    }
}

/// Parses the names in the text of a hosts(5).
fn hosts(text: &str) -> HashMap<DomainName, Vec<Ipv4Addr>> {
    let mut hosts: HashMap<DomainName, Vec<Ipv4Addr>> = HashMap::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse::<Ipv4Addr>().ok()) else { continue };
        for name in words.filter_map(|word| word.parse::<DomainName>().ok()) {
            hosts.entry(name).or_default().push(address);
        }
    }
    hosts
}

#[cfg(test)]
mod tests {
    use belljar_model::DomainPattern;
    use hickory_proto::rr::Record;
    use hickory_proto::rr::rdata::{A, CNAME};

    use super::*;

    #[test]
    fn parses_resolv_conf_and_hosts() {
        let text = "# nameserver 9.9.9.9\nsearch corp.example\nnameserver 192.0.2.1\nnameserver ::1\n nameserver\t192.0.2.2 # x\n";
        let expected = ["192.0.2.1:53", "192.0.2.2:53"].map(|address| address.parse().unwrap());
        assert_eq!(servers(text), expected);
        let text = "127.0.0.1 localhost\n192.0.2.1\tA.example b.example # c.example\n::1 v6.example\n192.0.2.2 a.example\nnonsense";
        let hosts = hosts(text);
        let of = |name: &str| hosts.get(&name.parse().unwrap()).cloned().unwrap_or_default();
        assert_eq!(of("a.example"), [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)]);
        assert_eq!(of("b.example").len(), 1);
        assert!(of("c.example").is_empty() && of("v6.example").is_empty());
    }

    #[test]
    fn aliases_are_bounded() {
        let name: DomainName = "x.example".parse().unwrap();
        let answer = |aliases: usize| {
            let mut answer = query(&name).unwrap();
            for number in 0..aliases {
                let alias = Name::from_ascii(format!("a_{number}.b.example.")).unwrap();
                answer.add_answer(Record::from_rdata(alias.clone(), 5, RData::CNAME(CNAME(alias))));
            }
            answer.add_answer(Record::from_rdata(Name::root(), 7, RData::A(A(Ipv4Addr::LOCALHOST))));
            parse_answer(&name, &answer)
        };
        let (resolved, ttl) = answer(MAX_ALIASES).unwrap();
        assert_eq!((resolved.aliases.len(), ttl), (MAX_ALIASES, Duration::from_secs(7)));
        let below: DomainPattern = "*.b.example".parse().unwrap();
        assert!(resolved.aliases.iter().all(|alias| below.matches(alias)), "{resolved:?}");
        assert!(answer(MAX_ALIASES + 1).is_err());
    }

    #[test]
    fn names_without_addresses_are_told_apart() {
        let name: DomainName = "x.example".parse().unwrap();
        let mut answer = query(&name).unwrap();
        for (code, expected) in [
            (ResponseCode::NoError, "x.example has no IPv4 address"),
            (ResponseCode::NXDomain, "x.example does not exist, says the machine's resolver"),
        ] {
            answer.metadata.response_code = code;
            let error = parse_answer(&name, &answer).unwrap_err();
            assert_eq!((error.to_string().as_str(), error.to_public().as_str()), (expected, expected));
        }
    }

    #[test]
    fn answer_must_match_query() {
        let name: DomainName = "x.example".parse().unwrap();
        let query = query(&name).unwrap();
        let mut answer = query.clone();
        assert!(!is_answer(&answer, &query), "it is a query");
        answer.metadata.message_type = MessageType::Response;
        assert!(is_answer(&answer, &query));
        answer.metadata.id = answer.metadata.id.wrapping_add(1);
        assert!(!is_answer(&answer, &query));
        let other = super::query(&"y.example".parse().unwrap()).unwrap();
        let mut answer = other;
        answer.metadata.id = query.metadata.id;
        answer.metadata.message_type = MessageType::Response;
        assert!(!is_answer(&answer, &query));
    }
}
