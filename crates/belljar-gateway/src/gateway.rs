//! State shared by the tasks of a gateway: the policy, the names, the open connections.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use belljar_model::{
    Cidr, Decision, DomainName, Matcher, NetworkEvent, NetworkPolicy, NetworkRecord, NetworkTotals,
    UpstreamProxy,
};
use http::Method;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::budget::{Budget, MAX_FLOWS, MAX_HTTP2, MAX_STREAMS, MAX_TERMINATED};
use crate::config::GatewayConfig;
use crate::log::Log;
use crate::names::Names;
use crate::opening;
use crate::resolve::Resolver;
use crate::secrets::Secrets;
use crate::terminate::Termination;

/// Time that the host has to read the last log records.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Destination of a connection, as the program requested it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Name(DomainName),
    Address(Ipv4Addr),
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// A connection of the sandbox.
pub(crate) struct Flow {
    pub(crate) number: u64,
    pub(crate) target: Target,
    pub(crate) port: u16,
    /// Address that it goes to, once known.
    pub(crate) address: Cell<Option<Ipv4Addr>>,
    pub(crate) counts: Arc<Counts>,
    /// Set if the connection was allowed and is being relayed.
    pub(crate) is_carried: Cell<bool>,
    /// The last reason why a request was not answered by the host. Code gets less of it.
    pub(crate) failure: RefCell<Option<String>>,
    /// Names that the target is another name for (CNAME).
    pub(crate) aliases: RefCell<Vec<DomainName>>,
    /// The host that a connection to an address asks for in TLS.
    pub(crate) asked: RefCell<Option<DomainName>>,
    /// Set if the connection is relayed without a look at the requests in it, or at the names of hosts if it is to an address.
    pub(crate) is_unread: Cell<bool>,
    /// Requests whose responses are not complete, and those that switched to another protocol.
    requests: RefCell<Vec<Weak<InFlight>>>,
    /// The secrets and headers that were added to requests.
    pub(crate) secrets: RefCell<BTreeSet<Rc<str>>>,
    /// Cancelled when a new policy does not allow the connection.
    pub(crate) cut: CancellationToken,
}

/// A request that was allowed and is not complete.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) method: Method,
    pub(crate) path: String,
    /// The texts that name its host.
    pub(crate) hosts: Vec<String>,
}

impl Flow {
    /// Remembers a request for as long as the result is kept.
    pub(crate) fn hold(&self, request: InFlight) -> Rc<InFlight> {
        let request = Rc::new(request);
        let mut requests = self.requests.borrow_mut();
        requests.retain(|one| one.strong_count() > 0);
        requests.push(Rc::downgrade(&request));
        request
    }
}

/// Bytes transferred through a connection.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// From the sandbox.
    pub(crate) sent: Count,
    /// To the sandbox.
    pub(crate) received: Count,
}

/// Monotonic counter. Atomic because hyper requires `Send`, although there is only one thread.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Shared state of a gateway.
pub(crate) struct Gateway {
    matcher: RefCell<Rc<Matcher>>,
    exceptions: Vec<Cidr>,
    /// Walls that tests can disable.
    pub(crate) looks_at_names: bool,
    pub(crate) looks_at_requests: bool,
    pub(crate) prepares: bool,
    reads_denied_names: bool,
    terminates: bool,
    decides_again: bool,
    checks_own: bool,
    /// Walls around secrets that tests can disable.
    binds_hosts: bool,
    pub(crate) redacts: bool,
    /// Bounds on memory that tests can disable.
    pub(crate) bounds_sockets: bool,
    pub(crate) bounds_http2: bool,
    /// Secrets of the policy, and the TLS termination for the hosts that they had when the sandbox was created.
    secrets: RefCell<Rc<Secrets>>,
    pub(crate) termination: Option<Rc<Termination>>,
    pub(crate) names: RefCell<Names>,
    pub(crate) resolver: Resolver,
    /// The operator's proxy, and whether it resolves names.
    pub(crate) proxy: Option<UpstreamProxy>,
    pub(crate) proxy_resolves: bool,
    pub(crate) budget: Budget,
    /// Limits concurrent TCP connections to the resolver.
    pub(crate) streams: Semaphore,
    /// Limit concurrent connections on which TLS is terminated, and those of them with HTTP/2.
    pub(crate) terminated: Semaphore,
    pub(crate) http2: Semaphore,
    pub(crate) log: Log,
    /// Tasks that serve connections of the host.
    pub(crate) hosts: TaskTracker,
    flows: RefCell<BTreeMap<u64, Rc<Flow>>>,
    /// Totals of the connections that have ended.
    ended: Cell<NetworkTotals>,
    last_flow: Cell<u64>,
}

impl Gateway {
    pub(crate) fn new(config: &GatewayConfig, resolver: Resolver, termination: Option<Termination>) -> Self {
        let mut exceptions = config.setup.exceptions.clone();
        if config.is_without("gateway-ranges") {
            exceptions.push(Cidr::containing(Ipv4Addr::UNSPECIFIED, 0));
        }
        let bounds_http2 = !config.is_without("gateway-http2");
        let binds_hosts = !config.is_without("gateway-secret-host");
        Self {
            matcher: RefCell::new(Rc::new(Matcher::new(&config.policy, &exceptions))),
            exceptions,
            looks_at_names: !config.is_without("gateway-names"),
            looks_at_requests: !config.is_without("gateway-requests"),
            prepares: !config.is_without("gateway-hop"),
            reads_denied_names: !config.is_without("gateway-denied-names"),
            terminates: !config.is_without("gateway-terminate"),
            decides_again: !config.is_without("gateway-recheck"),
            checks_own: !config.is_without("gateway-own"),
            binds_hosts,
            redacts: !config.is_without("gateway-redact"),
            bounds_sockets: config.fixed_buffers && !config.is_without("gateway-buffers"),
            bounds_http2,
            secrets: RefCell::new(Rc::new(Secrets::from_policy(&config.policy, binds_hosts))),
            termination: termination.map(Rc::new),
            names: RefCell::new(Names::of_generation(config.generation)),
            resolver,
            proxy: config.setup.proxy.clone(),
            proxy_resolves: config.setup.proxy_resolves,
            budget: Budget::new(),
            streams: Semaphore::new(MAX_STREAMS),
            terminated: Semaphore::new(if bounds_http2 { MAX_TERMINATED } else { MAX_FLOWS }),
            http2: Semaphore::new(if bounds_http2 { MAX_HTTP2 } else { MAX_FLOWS }),
            log: Log::of_generation(config.generation),
            hosts: TaskTracker::new(),
            flows: RefCell::default(),
            ended: Cell::new(NetworkTotals {
                generation: config.generation.into(),
                ..NetworkTotals::default()
            }),
            last_flow: Cell::new(NetworkRecord::first_of(config.generation)),
        }
    }

    pub(crate) fn matcher(&self) -> Rc<Matcher> {
        Rc::clone(&self.matcher.borrow())
    }

    pub(crate) fn secrets(&self) -> Rc<Secrets> {
        Rc::clone(&self.secrets.borrow())
    }

    /// Reports whether `address` must be refused if it is the machine's own: the operator can make exceptions.
    pub(crate) fn protects_own(&self, address: Ipv4Addr) -> bool {
        self.checks_own && !self.exceptions.iter().any(|range| range.contains(address))
    }

    /// Decides about a connection before its name is resolved.
    pub(crate) fn decide(&self, target: &Target, port: u16) -> Decision {
        match target {
            Target::Name(name) => self.matcher().name(name, port),
            Target::Address(address) => self.matcher().address(*address, port),
        }
    }

    /// Decides about a connection to `address`, to which its target resolved.
    pub(crate) fn decide_address(&self, target: &Target, address: Ipv4Addr, port: u16) -> Decision {
        match target {
            Target::Name(name) => self.matcher().resolved(name, address, port),
            Target::Address(address) => self.matcher().address(*address, port),
        }
    }

    /// Reports whether connections to addresses have to be read for the names of hosts in them.
    pub(crate) fn must_read_names(&self) -> bool {
        self.reads_denied_names && self.matcher().must_read_names()
    }

    /// Decides about a connection by the names that its target is another name for; `None` if nothing is against it.
    pub(crate) fn refuse_alias(&self, flow: &Flow) -> Option<Decision> {
        let Target::Name(name) = &flow.target else { return None };
        let (aliases, matcher) = (flow.aliases.borrow(), self.matcher());
        let mut refused = aliases.iter().filter_map(|alias| matcher.alias(name, alias, flow.port));
        refused.next().filter(|_| self.reads_denied_names)
    }

    /// Decides about a connection that is relayed unread; `None` if nothing is against it.
    pub(crate) fn refuse_unread(&self, flow: &Flow) -> Option<Decision> {
        match &flow.target {
            _ if !flow.is_unread.get() => None,
            Target::Name(name) => (self.terminates && self.matcher().must_read(name)).then(|| {
                Decision::deny_request(format!(
                    "requests to {name} have to be read by a rule that was added after the sandbox's start"
                ))
            }),
            Target::Address(address) => self.must_read_names().then(|| {
                Decision::deny_other_name(format!(
                    "the connection to {address}:{} was opened before the network policy had names checked, so \
                     that those in it are unknown",
                    flow.port
                ))
            }),
        }
    }

    /// Decides about a request. `headers` are the names of its headers.
    pub(crate) fn check_request<'a>(
        &self,
        flow: &Flow,
        request: &InFlight,
        headers: impl Iterator<Item = &'a str>,
    ) -> Option<Decision> {
        match &flow.target {
            Target::Name(name) if self.looks_at_requests => {
                self.matcher().request(name, request.method.as_str(), &request.path, headers)
            }
            Target::Name(_) => None,
            target => {
                let check = |host: &str| opening::check_host(self, target, flow.port, host).err();
                match &*request.hosts {
                    [] => check(""),
                    hosts => hosts.iter().find_map(|host| check(host)),
                }
            }
        }
    }

    /// Decides again about an open connection, by everything that it is known for.
    fn decide_again(&self, flow: &Flow) -> Decision {
        let decision = match flow.address.get() {
            Some(address) => self.decide_address(&flow.target, address, flow.port),
            None => self.decide(&flow.target, flow.port),
        };
        if !decision.allowed || !self.decides_again {
            return decision;
        }
        let asked = || flow.asked.borrow().as_ref().and_then(|name| self.matcher().named(name, flow.port));
        let request = || {
            let requests = flow.requests.borrow();
            requests.iter().find_map(|one| self.check_request(flow, &*one.upgrade()?, std::iter::empty()))
        };
        let secret = || {
            let (Target::Name(name), secrets) = (&flow.target, self.secrets()) else { return None };
            let has = |secret: &str| secrets.of_host(name).is_some_and(|host| host.has(secret));
            let used = flow.secrets.borrow();
            used.iter().find(|secret| !has(secret)).map(|secret| Decision::deny_secret(secret))
        };
        let refused = self.refuse_alias(flow).or_else(|| self.refuse_unread(flow)).or_else(asked);
        refused.or_else(request).or_else(secret).unwrap_or(decision)
    }

    /// Registers a new connection, unless there are too many.
    pub(crate) fn begin(&self, target: Target, port: u16) -> Option<Rc<Flow>> {
        let mut flows = self.flows.borrow_mut();
        if flows.len() >= MAX_FLOWS || self.budget.flows.check().is_err() {
            return None;
        }
        let number = self.last_flow.get() + 1;
        self.last_flow.set(number);
        if let Target::Name(name) = &target {
            self.names.borrow_mut().hold(name);
        }
        let flow = Rc::new(Flow {
            number,
            target,
            port,
            address: Cell::new(None),
            counts: Arc::default(),
            is_carried: Cell::new(false),
            failure: RefCell::default(),
            aliases: RefCell::default(),
            asked: RefCell::default(),
            is_unread: Cell::new(false),
            requests: RefCell::default(),
            secrets: RefCell::default(),
            cut: CancellationToken::new(),
        });
        flows.insert(number, Rc::clone(&flow));
        Some(flow)
    }

    /// Unregisters a connection. If it was allowed, `carried` is given, and its end is logged with its error, if any.
    pub(crate) fn end(&self, flow: &Flow, carried: Option<Option<String>>) {
        if self.flows.borrow_mut().remove(&flow.number).is_none() {
            return;
        }
        if let Target::Name(name) = &flow.target {
            self.names.borrow_mut().release(name);
        }
        let mut ended = self.ended.get();
        ended.sent += flow.counts.sent.get();
        ended.received += flow.counts.received.get();
        self.ended.set(ended);
        if let Some(error) = carried {
            self.log.write(NetworkEvent::Ended {
                flow: flow.number,
                host: flow.target.to_string(),
                port: flow.port,
                sent: flow.counts.sent.get(),
                received: flow.counts.received.get(),
                error,
            });
        }
    }

    /// Returns what has been transferred since the start, and the number of connections that are being relayed.
    pub(crate) fn totals(&self) -> NetworkTotals {
        let flows = self.flows.borrow();
        flows.values().filter(|flow| flow.is_carried.get()).fold(self.ended.get(), |totals, flow| {
            NetworkTotals {
                open: totals.open + 1,
                sent: totals.sent + flow.counts.sent.get(),
                received: totals.received + flow.counts.received.get(),
                ..totals
            }
        })
    }

    /// Ends all connections, as their sandbox has ended, and waits until followers of the log have read its last records.
    pub(crate) async fn close(&self) {
        let flows: Vec<_> = self.flows.borrow().values().map(Rc::clone).collect();
        for flow in flows {
            let carried = flow.is_carried.get().then(|| Some("the sandbox has ended".to_owned()));
            self.end(&flow, carried);
        }
        self.log.close();
        self.hosts.close();
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.hosts.wait()).await;
    }

    /// Logs the decision about a connection.
    pub(crate) fn note(&self, flow: &Flow, decision: &Decision) {
        self.log.write(NetworkEvent::Connection {
            flow: flow.number,
            host: flow.target.to_string(),
            port: flow.port,
            allowed: decision.allowed,
            address: flow.address.get(),
            rule: decision.by.to_string(),
            reason: decision.reason.clone(),
        });
    }

    /// Replaces the policy and cuts connections that the new one does not allow, with what is in flight on them.
    pub(crate) fn set_policy(&self, policy: &NetworkPolicy) {
        self.matcher.replace(Rc::new(Matcher::new(policy, &self.exceptions)));
        self.secrets.replace(Rc::new(Secrets::from_policy(policy, self.binds_hosts)));
        for flow in self.flows.borrow().values() {
            let decision = self.decide_again(flow);
            if !decision.allowed {
                self.note(flow, &decision);
                flow.cut.cancel();
            }
        }
    }
}
