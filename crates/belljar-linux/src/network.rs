//! The network namespace of a sandbox with a network: every outgoing TCP connection ends at one listening socket, the
//! gateway's.
//!
//! ```text
//! connect(any address, any port) ─► local route on lo ─► prerouting: tproxy ─► listener at 198.18.0.1:53 ─► gateway
//! sendto(198.18.0.1:53) ─────────────────────────────────────────────────────► socket   at 198.18.0.1:53 ─► gateway
//! ```
//!
//! The namespace has no interface but loopback: nothing is forwarded and no address is translated, so without the gateway
//! there is no way out. A connection keeps the address that the program gave, and the gateway reads it from the socket. The
//! kernel needs `nf_tables` and `nft_tproxy`, which it loads automatically if they are modules. Formats: netlink(7),
//! rtnetlink(7), linux/netfilter/nf_tables.h, and tproxy.rst of the kernel's documentation.

// A panic between a clone and an exec would allocate and print: docs/fork-safety.md.
#![deny(clippy::indexing_slicing, clippy::panic, clippy::unreachable, clippy::string_slice)]

use std::ffi::{CStr, OsStr};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::network_unsafe::{loopback_up, set_transparent};
use crate::passing::send_with;

/// The address of every sandbox with a network, and of its resolver. The first of the range for benchmarks (RFC 2544), which
/// is not public.
pub const NETWORK_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);

/// The port of the listening socket and of the resolver.
const PORT: u16 = 53;

/// Byte that carries a gateway's listening socket and its resolver's socket.
pub const GATEWAY_SOCKETS: u8 = b'n';

/// Maximum number of connections waiting to be accepted; the kernel allows a few more half-open ones.
const MAX_BACKLOG: i32 = 64;

/// The index of the loopback interface, the first in every namespace (linux/net_namespace.h).
const LOOPBACK: u32 = 1;

/// The setup of a new network namespace, encoded beforehand as the kernel reads it.
#[derive(Debug)]
pub struct GatewayPlan {
    /// Over which the sockets are sent, once. The other end keeps them for each gateway of the sandbox.
    pub sockets: OwnedFd,
    routes: Batch,
    rules: Batch,
}

impl GatewayPlan {
    /// Makes a plan that sends the sockets to the other end of `sockets`.
    #[must_use]
    pub fn new(sockets: OwnedFd) -> Self {
        Self { sockets, routes: routes(), rules: rules() }
    }

    /// Redirects all TCP of this namespace to one listening socket. Returns that and the resolver's socket. Fork-safe.
    pub(crate) fn redirect(&self) -> Result<(OwnedFd, OwnedFd), Errno> {
        self.routes.send(None)?;
        self.rules.send(Some(rustix::net::netlink::NETFILTER))?;
        Self::open_sockets()
    }

    fn open_sockets() -> Result<(OwnedFd, OwnedFd), Errno> {
        let open = |kind| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            rustix::net::socket_with(AddressFamily::INET, kind, flags, None)
        };
        let at = std::net::SocketAddrV4::new(NETWORK_ADDRESS, PORT);
        let listener = open(SocketType::STREAM)?;
        set_transparent(&listener)?;
        // Connections to an earlier gateway may still be ending, which takes a minute.
        rustix::net::sockopt::set_socket_reuseaddr(&listener, true)?;
        rustix::net::bind(&listener, &at)?;
        rustix::net::listen(&listener, MAX_BACKLOG)?;
        let resolver = open(SocketType::DGRAM)?;
        rustix::net::bind(&resolver, &at)?;
        Ok((listener, resolver))
    }

    /// Makes a network namespace with the sockets, which are sent, and returns the result of `run` on a thread in it: what it starts is in
    /// the namespace, which goes with the last process in it.
    ///
    /// # Errors
    /// The kernel's reason, also if the machine lacks `nf_tables` or `nft_tproxy`.
    pub fn in_new_namespace<T: Send>(&self, run: impl FnOnce() -> T + Send) -> io::Result<T> {
        on_own_thread(|| {
            crate::kernel::unshare(libc::CLONE_NEWNET)?;
            loopback_up()?;
            crate::supervise::set_receive_buffers(None)?;
            self.send(&self.redirect()?)?;
            Ok(run())
        })
    }

    /// Opens the sockets in a network namespace that somebody else has made, with nothing but a loopback that is up, and sends them. Where
    /// that was done before, the earlier sockets must be closed.
    ///
    /// # Errors
    /// As [`Self::in_new_namespace`], and if the namespace is this process's own or leads anywhere.
    pub fn in_namespace(&self, namespace: BorrowedFd<'_>) -> io::Result<()> {
        let identity = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        let own = identity(rustix::fs::stat(c"/proc/self/ns/net")?);
        if identity(rustix::fs::fstat(namespace)?) == own {
            return Err(io::Error::other("it has no network namespace of its own"));
        }
        on_own_thread(|| {
            crate::kernel::enter_namespace(namespace, libc::CLONE_NEWNET)?;
            let table = |name| std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
            // The second is missing without IPv6.
            let (routes, addresses) = (table("route")?, table("if_inet6").unwrap_or_default());
            if let Some(interface) = other_interface(&routes, &addresses) {
                return Err(io::Error::other(format!("it has the interface {interface}, past the gateway")));
            }
            crate::supervise::set_receive_buffers(None)?;
            let sockets = match self.redirect() {
                // The addresses, routes and rules of an earlier server.
                Err(Errno::EXIST) => {
                    remove_rules().send(Some(rustix::net::netlink::NETFILTER))?;
                    self.rules.send(Some(rustix::net::netlink::NETFILTER))?;
                    Self::open_sockets()?
                }
                opened => opened?,
            };
            self.send(&sockets)
        })
    }

    fn send(&self, (listener, resolver): &(OwnedFd, OwnedFd)) -> io::Result<()> {
        send_with(self.sockets.as_fd(), &[GATEWAY_SOCKETS], &[listener.as_fd(), resolver.as_fd()])?;
        Ok(())
    }
}

/// Runs `run` on a thread of its own, which may enter other namespaces, as it ends then.
fn on_own_thread<T: Send>(run: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("belljar-netns".to_owned()).spawn_scoped(scope, run)?;
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread in the network namespace has failed")))
    })
}

/// Returns an interface besides the loopback that has a route or an address, by these files of a network namespace (`fib_route_seq_show` in
/// net/ipv4/fib_trie.c, `if6_seq_show` in net/ipv6/addrconf.c).
fn other_interface<'a>(routes: &'a str, addresses: &'a str) -> Option<&'a str> {
    let routes = routes.lines().skip(1).filter_map(|line| line.split_ascii_whitespace().next());
    let mut names = routes.chain(addresses.lines().filter_map(|line| line.split_ascii_whitespace().last()));
    names.find(|name| *name != "lo")
}

/// Netlink messages to the kernel, which acknowledges them one by one.
#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    acknowledged: u32,
}

// linux/netlink.h
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;
const ERROR: u16 = 2;
const HEADER: usize = 16;

impl Batch {
    fn push(&mut self, kind: u16, flags: u16, body: &[&[u8]]) {
        let length = HEADER + body.iter().map(|part| part.len()).sum::<usize>();
        self.acknowledged += u32::from(flags & ACKNOWLEDGE != 0);
        self.bytes.extend(u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((flags | REQUEST).to_ne_bytes());
        self.bytes.extend([0; 8]);
        self.bytes.extend(body.concat());
    }

    /// Sends all messages. The kernel has processed them, or refused one, when the call returns. Fork-safe.
    fn send(&self, protocol: Option<Protocol>) -> Result<(), Errno> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        rustix::net::send(&socket, &self.bytes, SendFlags::empty())?;
        let mut left = self.acknowledged;
        let mut buffer = [0u8; 4096];
        while left > 0 {
            let (length, _) = rustix::net::recv(&socket, &mut buffer, RecvFlags::DONTWAIT)?;
            let mut replies = buffer.get(..length).unwrap_or_default();
            while let Some((kind, body, rest)) = next_message(replies) {
                if kind == ERROR {
                    match body.first_chunk().map(|errno| i32::from_ne_bytes(*errno)) {
                        Some(0) => left = left.saturating_sub(1),
                        Some(errno) => return Err(Errno::from_raw_os_error(-errno)),
                        None => return Err(Errno::BADMSG),
                    }
                }
                replies = rest;
            }
        }
        Ok(())
    }
}

/// Returns the type of the first message, its body, and the rest of the bytes.
fn next_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let body = bytes.get(HEADER..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// Encodes an attribute (netlink(7)), padded to a multiple of four bytes.
fn attribute(kind: u16, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + data.len()).unwrap_or(u16::MAX);
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Encodes an attribute that contains others.
fn nested(kind: u16, parts: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | 0x8000, &parts.concat())
}

/// Encodes an attribute with a number in the byte order of nf_tables.
fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

fn text(kind: u16, value: &str) -> Vec<u8> {
    attribute(kind, &[value.as_bytes(), &[0]].concat())
}

// linux/rtnetlink.h
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const INET: u8 = 2;

/// Gives the loopback interface an address.
fn add_address(batch: &mut Batch, address: Ipv4Addr) {
    let (address, loopback) = (address.octets(), LOOPBACK.to_ne_bytes());
    // ifaddrmsg: family, length of the prefix, flags, scope, interface; IFA_LOCAL, IFA_ADDRESS.
    let attributes = [attribute(2, &address), attribute(1, &address)].concat();
    batch.push(NEW_ADDRESS, ACKNOWLEDGE | CREATE, &[&[INET, 32, 0, 0], &loopback, &attributes]);
}

/// Returns messages that add the namespace's own address, and a route that makes every other address local too.
fn routes() -> Batch {
    let (own, loopback) = (NETWORK_ADDRESS.octets(), LOOPBACK.to_ne_bytes());
    let mut batch = Batch::default();
    add_address(&mut batch, NETWORK_ADDRESS);
    // rtmsg: family, lengths of both prefixes, tos, table main, protocol static, scope host, type local, flags;
    // RTA_OIF, RTA_PREFSRC.
    batch.push(
        NEW_ROUTE,
        ACKNOWLEDGE | CREATE,
        &[&[INET, 0, 0, 0, 254, 4, 254, 2], &[0; 4], &attribute(4, &loopback), &attribute(7, &own)],
    );
    batch
}

// linux/netfilter/nf_tables.h
const NF_TABLES: u16 = 10;
const TABLE: &str = "belljar";
const CHAIN: &str = "in";
/// 32-bit registers 0 to 2.
const REGISTERS: [u32; 3] = [8, 9, 10];
const VERDICT: u32 = 0;
/// `NFPROTO_IPV4`, in headers and in tproxy's family.
const IPV4: u8 = 2;

/// nfgenmsg: family, version, subsystem.
fn generic(family: u8, subsystem: u16) -> [u8; 4] {
    let [high, low] = subsystem.to_be_bytes();
    [family, 0, high, low]
}

const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = 0;
const DELETE_TABLE: u16 = 2;

/// Returns the type of a message to nf_tables.
const fn message(kind: u16) -> u16 {
    NF_TABLES << 8 | kind
}

/// Returns messages that remove the table, whether it is there or not.
fn remove_rules() -> Batch {
    let family = generic(IPV4, 0);
    let mut batch = Batch::default();
    batch.push(BATCH_BEGIN, 0, &[&generic(0, NF_TABLES)]);
    batch.push(message(NEW_TABLE), ACKNOWLEDGE | CREATE, &[&family, &text(1, TABLE)]);
    batch.push(message(DELETE_TABLE), ACKNOWLEDGE, &[&family, &text(1, TABLE)]);
    batch.push(BATCH_END, 0, &[&generic(0, NF_TABLES)]);
    batch
}

/// Returns messages that add one prerouting chain: packets to this namespace's own addresses pass, all other TCP goes to the
/// listening socket.
fn rules() -> Batch {
    const NEW_CHAIN: u16 = 3;
    const NEW_RULE: u16 = 6;
    /// Offset of the destination address in the IPv4 header.
    const DESTINATION: u32 = 16;
    let family = generic(IPV4, 0);
    let [first, second, third] = REGISTERS;
    let mut batch = Batch::default();
    batch.push(BATCH_BEGIN, 0, &[&generic(0, NF_TABLES)]);
    batch.push(message(NEW_TABLE), ACKNOWLEDGE | CREATE, &[&family, &text(1, TABLE)]);
    // The prerouting hook, at the priority `mangle`; the policy is to accept.
    let hook = nested(4, &[number(1, 0), number(2, (-150i32).cast_unsigned())]);
    let chain = [text(1, TABLE), text(3, CHAIN), hook, number(5, 1), text(7, "filter")].concat();
    batch.push(message(NEW_CHAIN), ACKNOWLEDGE | CREATE, &[&family, &chain]);
    let mut rule = |expressions: &[Vec<u8>]| {
        let rule = [text(1, TABLE), text(2, CHAIN), nested(4, expressions)].concat();
        batch.push(message(NEW_RULE), ACKNOWLEDGE | CREATE | APPEND, &[&family, &rule]);
    };
    let to = |length| {
        expression("payload", &[number(1, first), number(2, 1), number(3, DESTINATION), number(4, length)])
    };
    let is = |value: &[u8]| expression("cmp", &[number(1, first), number(2, 0), value_of(3, value)]);
    let set = |register, value: &[u8]| expression("immediate", &[number(1, register), value_of(2, value)]);
    let accept = expression("immediate", &[number(1, VERDICT), nested(2, &[nested(2, &[number(1, 1)])])]);
    rule(&[to(1), is(&[127]), accept.clone()]);
    rule(&[to(4), is(&NETWORK_ADDRESS.octets()), accept.clone()]);
    // The key 16 is the protocol, 6 is TCP.
    let is_tcp = [expression("meta", &[number(1, first), number(2, 16)]), is(&[6])];
    let listener = [set(second, &NETWORK_ADDRESS.octets()), set(third, &PORT.to_be_bytes())];
    let steer = expression("tproxy", &[number(1, IPV4.into()), number(2, second), number(3, third)]);
    rule(&[&is_tcp[..], &listener, &[steer, accept]].concat());
    batch.push(BATCH_END, 0, &[&generic(0, NF_TABLES)]);
    batch
}

fn expression(name: &str, data: &[Vec<u8>]) -> Vec<u8> {
    nested(1, &[text(1, name), nested(2, data)])
}

fn value_of(kind: u16, value: &[u8]) -> Vec<u8> {
    nested(kind, &[attribute(1, value)])
}

/// File below `/proc` with the sizes of the receive buffers of TCP of a network namespace.
pub(crate) const TCP_RMEM: &CStr = c"sys/net/ipv4/tcp_rmem";

/// Smallest, first and largest size of the receive buffer of a connection of a sandbox, in bytes (tcp(7), `tcp_rmem`). A buffer grows only
/// while a program reads, so one that is not accepted keeps the first size. On the loopback, where round trips take microseconds, the
/// largest costs no throughput.
pub(crate) const RECEIVE_BUFFERS: &str = "4096 32768 1048576";

/// File below `/proc` with the number of connections in the state TIME_WAIT that a network namespace keeps (tcp(7), `tcp_max_tw_buckets`; of each
/// namespace since Linux 5.0).
pub(crate) const TCP_MAX_TW_BUCKETS: &CStr = c"sys/net/ipv4/tcp_max_tw_buckets";

/// Number of connections of a sandbox in the state TIME_WAIT, of 256 bytes each; the kernel forgets further ones at once. It charges them to
/// no control group, and has no lower bound for them than by the machine's memory.
pub(crate) const TIME_WAITS: &str = "4096";

/// Returns the bytes that a connection of a sandbox holds at most before it is accepted: its receive buffer and the kernel's own part.
#[must_use]
pub fn unaccepted_bytes() -> u64 {
    let first = |sizes: &str| sizes.split_ascii_whitespace().nth(1)?.parse::<u64>().ok();
    let machine = rustix::fs::statvfs(c"/proc/sys")
        .is_ok_and(|mount| mount.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
        .then(|| {
            std::fs::read_to_string(Path::new("/proc").join(OsStr::from_bytes(TCP_RMEM.to_bytes()))).ok()
        })
        .flatten();
    let buffer = machine.as_deref().and_then(first).or_else(|| first(RECEIVE_BUFFERS)).unwrap_or_default();
    buffer + UNACCEPTED_OVERHEAD
}

/// Bytes by which what a connection holds exceeds its receive buffer, as measured: the last packet, of which a part is within the
/// size, and the kernel's structures.
const UNACCEPTED_OVERHEAD: u64 = 16 << 10;

/// Moves this single-threaded process into a network namespace in which every address is local, so that a test can simulate
/// the whole network. `own` are the machine's own addresses.
///
/// # Errors
/// The kernel's reason.
#[cfg(feature = "mutation")]
pub fn enter_test_network(own: &[Ipv4Addr]) -> std::io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    if uid.is_root() {
        crate::kernel::unshare(libc::CLONE_NEWNET)?;
    } else {
        crate::kernel::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET)?;
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("{0} {0} 1", uid.as_raw()))?;
        std::fs::write("/proc/self/gid_map", format!("{0} {0} 1", gid.as_raw()))?;
    }
    loopback_up()?;
    let mut batch = routes();
    own.iter().for_each(|address| add_address(&mut batch, *address));
    Ok(batch.send(None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_complete_and_counted() {
        for (batch, messages) in [(routes(), 2), (rules(), 7), (remove_rules(), 4)] {
            let mut bytes = batch.bytes.as_slice();
            let mut count = 0;
            while let Some((_, _, rest)) = next_message(bytes) {
                count += 1;
                bytes = rest;
            }
            assert_eq!((count, bytes.len()), (messages, 0));
            assert!(batch.bytes.len() < 4096 && batch.bytes.len().is_multiple_of(4));
        }
        assert_eq!((routes().acknowledged, rules().acknowledged), (2, 5));
    }

    #[test]
    fn other_interfaces_are_found() {
        let routes = "Iface\tDestination\tGateway\nlo\t00000000\t00000000\n";
        let addresses = "00000000000000000000000000000001 01 80 10 80       lo\n";
        assert_eq!(other_interface(routes, addresses), None);
        assert_eq!(other_interface("Iface\tDestination\n", ""), None);
        assert_eq!(other_interface(&format!("{routes}eth0\t000011AC\t00000000\n"), addresses), Some("eth0"));
        let more = format!("{addresses}fe800000000000000042acfffe110002 02 40 20 80     eth1\n");
        assert_eq!(other_interface(routes, &more), Some("eth1"));
    }

    fn plan() -> (GatewayPlan, OwnedFd) {
        let kind = SocketType::SEQPACKET;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.unwrap();
        (GatewayPlan::new(theirs), ours)
    }

    fn own_namespace() -> OwnedFd {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        rustix::fs::open(c"/proc/thread-self/ns/net", flags, rustix::fs::Mode::empty()).unwrap()
    }

    /// Returns the gateway's sockets that a plan has sent.
    fn sent(socket: &OwnedFd) -> usize {
        let received = crate::passing::receive_with(socket.as_fd(), &mut [0; 1]).unwrap();
        received.descriptors.len()
    }

    #[test]
    fn sockets_are_opened_in_a_namespace_again() {
        let (first, other) = plan();
        let made = first.in_new_namespace(own_namespace);
        if !rustix::process::geteuid().is_root() {
            assert_eq!(made.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            return;
        }
        let namespace = made.unwrap();
        assert_eq!(sent(&other), 2);
        let (second, other) = plan();
        second.in_namespace(namespace.as_fd()).unwrap();
        assert_eq!(sent(&other), 2);
        let refused = second.in_namespace(own_namespace().as_fd()).unwrap_err();
        assert!(refused.to_string().contains("no network namespace of its own"), "{refused}");
    }

    #[test]
    fn truncated_replies_are_not_messages() {
        let batch = routes();
        for length in 0..HEADER {
            assert!(next_message(batch.bytes.get(..length).unwrap()).is_none());
        }
    }
}
