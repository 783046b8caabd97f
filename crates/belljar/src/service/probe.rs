//! `belljar net probe`: a program inside a sandbox connects, and what it met is beside what the policy says and what the gateway decided.

use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_client::{ClientError, v1};
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::link::Link;
use super::network::forecast;
use super::show::Table;
use crate::cli::NetProbeArgs;
use crate::message::{Quit, one_line};
use crate::net::Verdict;

/// Exit status if something differs.
const DIFFERS: u8 = 1;

/// The program.
const PROGRAM: &str = include_str!("probe.py");

/// Address of cloud metadata, which a gateway denies under each policy without the operator's exception.
const METADATA: &str = "169.254.169.254:80";

/// A name that nobody has (RFC 6761): a policy that does not name it denies it, and nothing resolves it then.
const NOBODY: &str = "belljar-probe.invalid:443";

/// An address of the internet (RFC 5737) to which nothing is sent: the way there has this machine's own address.
const ELSEWHERE: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 9);

/// Maximum time of the program: each destination takes at most 5 s.
const SECONDS_EACH: usize = 6;

/// Maximum length of a printed reason, in characters.
const MAX_SHOWN_CHARS: usize = 120;

/// Time for a decision to be in the log after its connection has ended.
const LOG_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval at which the log is read again.
const LOG_INTERVAL: Duration = Duration::from_millis(50);

/// What the program met, in its words.
#[derive(Debug, Clone, Default, Deserialize)]
struct Met {
    host: String,
    resolved: Option<String>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct ExecResult {
    stdout: Stream,
    stderr: Stream,
}

#[derive(Deserialize)]
struct Stream {
    data: String,
    encoding: String,
}

impl Stream {
    fn text(&self) -> String {
        match self.encoding.as_str() {
            "base64" => {
                String::from_utf8_lossy(&STANDARD.decode(&self.data).unwrap_or_default()).into_owned()
            }
            _ => self.data.clone(),
        }
    }
}

/// What is known of one destination.
#[derive(Debug, Serialize)]
struct Probed {
    /// The destination, as `HOST:PORT`.
    host: String,
    /// Whether the policy allows it.
    allowed: bool,
    /// The address that its name has inside.
    resolved: Option<String>,
    /// Why the program could not connect, or was cut off.
    error: Option<String>,
    /// Whether the gateway allowed the connection; null if it saw none.
    decided: Option<bool>,
    /// Whether the connection arrived at a listener of this machine; null if there is none.
    arrived: Option<bool>,
    /// Whether all of it is as the policy says.
    agrees: bool,
    /// Why the policy decides as it does.
    reason: String,
    /// Why the gateway has denied it.
    gateway_reason: Option<String>,
}

/// What a gateway decided about a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Decision {
    Allowed,
    Denied(String),
}

impl Probed {
    /// Returns the reason of the gateway, if that has denied what the policy allows, or else that of the policy.
    fn why(&self) -> &str {
        self.gateway_reason.as_ref().filter(|_| self.allowed).unwrap_or(&self.reason)
    }
}

/// A listener of this machine, where no sandbox may get.
struct Trap {
    host: String,
    listener: TcpListener,
}

impl Trap {
    fn set(address: IpAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((address, 0))?;
        listener.set_nonblocking(true)?;
        Ok(Self { host: listener.local_addr()?.to_string(), listener })
    }

    fn was_reached(&self) -> bool {
        self.listener.accept().is_ok()
    }
}

/// Sets traps on this machine's loopback and on its own address, if it has one.
fn traps() -> io::Result<Vec<Trap>> {
    let own = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .and_then(|socket| socket.connect(ELSEWHERE).and_then(|()| socket.local_addr()));
    let own = own.ok().map(|address| address.ip()).filter(|address| !address.is_loopback());
    std::iter::once(Ipv4Addr::LOCALHOST.into()).chain(own).map(Trap::set).collect()
}

/// Runs `belljar net probe`. The exit status is 1 if something is not as the policy says.
pub(crate) async fn probe(link: &Link, args: &NetProbeArgs) -> Result<u8, Quit> {
    let request = v1::GetSandboxRequest { sandbox: args.sandbox.clone(), ..Default::default() };
    let info = link.client.get(request).await?;
    // Only on the machine of the server is what listens here something of the sandbox's host.
    let traps = if link.is_here() { traps().map_err(anyhow::Error::from)? } else { Vec::new() };
    let mode = info.network_policy.into_option().unwrap_or_default().mode;
    let mut hosts = args.hosts.clone();
    if mode != "open" {
        hosts.push(NOBODY.to_owned());
    }
    hosts.push(METADATA.to_owned());
    hosts.extend(traps.iter().map(|trap| trap.host.clone()));
    let forecast = forecast(link, &info.id, &hosts).await?;
    let last = read_log(link, &info.id, 0).await?.and_then(|log| log.last().map(|record| record.number));
    let met = run(link, &info.id, &forecast).await?;
    let log = decisions(link, &info.id, last.unwrap_or(0), &forecast).await?;
    let judge = |expected: Verdict| {
        let met = met.iter().find(|met| met.host == expected.host).cloned().unwrap_or_default();
        let arrived = traps.iter().find(|trap| trap.host == expected.host).map(Trap::was_reached);
        let decided = find(&log, &expected.host);
        judge(expected, met, decided, arrived)
    };
    let probed: Vec<Probed> = forecast.into_iter().map(judge).collect();
    show(link, &probed)?;
    Ok(if probed.iter().all(|one| one.agrees) { 0 } else { DIFFERS })
}

/// Compares what is known of a destination.
fn judge(expected: Verdict, met: Met, decision: Option<Decision>, arrived: Option<bool>) -> Probed {
    let Verdict { host, allowed, reason, .. } = expected;
    let decided = decision.as_ref().map(|decision| *decision == Decision::Allowed);
    let gateway_reason = match decision {
        Some(Decision::Denied(why)) => Some(why),
        _ => None,
    };
    let Met { resolved, error, .. } = met;
    // The program is the sandbox's.
    let resolved = resolved.filter(|address| address.parse::<IpAddr>().is_ok());
    let error = error.map(|error| one_line(&error, MAX_SHOWN_CHARS));
    let agrees = match allowed {
        // That a host does not answer is not the policy's doing.
        true => decided == Some(true),
        false => {
            decided != Some(true) && arrived != Some(true) && (decided == Some(false) || error.is_some())
        }
    };
    Probed { host, allowed, resolved, error, decided, arrived, agrees, reason, gateway_reason }
}

/// Runs the program in the sandbox.
async fn run(link: &Link, sandbox: &str, hosts: &[Verdict]) -> Result<Vec<Met>, Quit> {
    let mut argv = vec!["python3", "-c", PROGRAM];
    argv.extend(hosts.iter().map(|one| one.host.as_str()));
    let request = json!({ "argv": argv, "timeout": SECONDS_EACH * hosts.len() });
    let path = format!("/v1/sandboxes/{sandbox}/exec");
    let done: ExecResult = link.client.send(Method::POST, &path, &request).await?;
    let met: Vec<Met> =
        done.stdout.text().lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if met.len() != hosts.len() {
        let said = done.stderr.text();
        let said = said.lines().last().unwrap_or("it said nothing");
        return Err(
            anyhow::anyhow!("the program in the sandbox, which needs python3, has failed: {said}").into()
        );
    }
    Ok(met)
}

/// Reads the decisions after record `after`; `None` if the sandbox has no gateway.
async fn read_log(link: &Link, sandbox: &str, after: u64) -> Result<Option<Vec<v1::NetworkRecord>>, Quit> {
    let request = v1::NetworkLogRequest { sandbox: sandbox.to_owned(), after, ..Default::default() };
    let mut log = Vec::new();
    let read = async {
        let mut records = link.client.network_log(request).await?;
        while let Some(record) = records.next().await? {
            log.push(record);
        }
        Ok::<_, ClientError>(())
    };
    match read.await {
        Ok(()) => Ok(Some(log)),
        Err(error) if error.is("failed_precondition") => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Waits a moment for the decisions about these destinations, and returns those that there are.
async fn decisions(
    link: &Link,
    sandbox: &str,
    after: u64,
    hosts: &[Verdict],
) -> Result<Vec<v1::NetworkRecord>, Quit> {
    let begin = Instant::now();
    loop {
        let Some(log) = read_log(link, sandbox, after).await? else { return Ok(Vec::new()) };
        // The gateway sees nothing of the loopback.
        let seen = |one: &Verdict| one.host.starts_with("127.") || find(&log, &one.host).is_some();
        if hosts.iter().all(seen) || begin.elapsed() > LOG_TIMEOUT {
            return Ok(log);
        }
        tokio::time::sleep(LOG_INTERVAL).await;
    }
}

/// Returns what the gateway decided last about a destination. A name that was not resolved has no port.
fn find(log: &[v1::NetworkRecord], host: &str) -> Option<Decision> {
    let (name, _) = host.rsplit_once(':')?;
    let denied = |record: &v1::NetworkRecord| Decision::Denied(record.reason.clone());
    log.iter().rev().find_map(|record| match record.event.as_str() {
        "lookup" => (record.host == name).then(|| denied(record)),
        "connection" if format!("{}:{}", record.host, record.port) != host => None,
        "connection" if record.allowed == Some(true) => Some(Decision::Allowed),
        "connection" => Some(denied(record)),
        _ => None,
    })
}

fn show(link: &Link, probed: &[Probed]) -> Result<(), Quit> {
    let mut table = Table::new(&["DESTINATION", "POLICY", "GATEWAY", "INSIDE", "AGREE", "REASON"]);
    let verdict = |allowed: bool| if allowed { "allowed" } else { "denied" }.to_owned();
    for one in probed {
        if link.json(one)? {
            continue;
        }
        let inside = match (one.arrived, &one.error, &one.resolved) {
            (Some(true), ..) => "REACHED THIS MACHINE".to_owned(),
            (_, Some(error), _) => error.clone(),
            (_, None, Some(address)) => format!("connected at {address}"),
            (_, None, None) => "connected".to_owned(),
        };
        table.row(vec![
            one.host.clone(),
            verdict(one.allowed),
            one.decided.map_or_else(|| "-".to_owned(), verdict),
            inside,
            if one.agrees { "yes" } else { "NO" }.to_owned(),
            one_line(one.why(), MAX_SHOWN_CHARS),
        ]);
    }
    link.list(&table, 0)?;
    // The table may have no room for these.
    for one in probed.iter().filter(|one| !one.agrees) {
        link.remark(&format!("{}: {}", one.host, one_line(one.why(), MAX_SHOWN_CHARS)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(allowed: bool) -> Verdict {
        let [by, reason] = [String::new(), String::new()];
        Verdict { host: "x.example:443".to_owned(), allowed, by, reason }
    }

    fn decision(allowed: bool) -> Decision {
        if allowed { Decision::Allowed } else { Decision::Denied("not public".to_owned()) }
    }

    fn judged(allowed: bool, error: Option<&str>, decided: Option<bool>, arrived: Option<bool>) -> bool {
        let met = Met { error: error.map(str::to_owned), ..Met::default() };
        let probed = judge(verdict(allowed), met, decided.map(decision), arrived);
        assert_eq!(probed.why() == "not public", allowed && decided == Some(false));
        probed.agrees
    }

    #[test]
    fn policy_and_gateway_have_to_agree() {
        assert!(judged(true, None, Some(true), None));
        assert!(judged(true, Some("TimeoutError"), Some(true), None));
        assert!(judged(false, None, Some(false), None));
        assert!(judged(false, Some("ENETUNREACH"), None, Some(false)));
        assert!(!judged(true, None, Some(false), None));
        assert!(!judged(true, None, None, None), "the gateway has not seen it");
        assert!(!judged(false, None, Some(true), None));
        assert!(!judged(false, None, None, Some(true)), "it came past the gateway");
        assert!(!judged(false, None, None, None), "something answered inside");
    }

    #[test]
    fn what_the_program_says_is_one_short_line() {
        let row = "198.18.0.2\nx.example  denied  denied  -  yes";
        let met = Met { resolved: Some(row.to_owned()), error: Some(row.repeat(1000)), ..Met::default() };
        let probed = judge(verdict(true), met, Some(Decision::Allowed), None);
        assert_eq!(probed.resolved, None);
        assert!(probed.error.is_some_and(|error| error.lines().count() == 1 && error.len() < 1000));
    }

    #[test]
    fn last_decision_about_a_destination_counts() {
        let record = |event: &str, host: &str, port, allowed| v1::NetworkRecord {
            event: event.to_owned(),
            host: host.to_owned(),
            port,
            allowed,
            ..Default::default()
        };
        let log = [
            record("connection", "x.example", 443, Some(false)),
            record("connection", "x.example", 443, Some(true)),
            record("ended", "x.example", 443, None),
            record("lookup", "y.example", 0, None),
        ];
        assert_eq!(find(&log, "x.example:443"), Some(Decision::Allowed));
        let denied = Some(Decision::Denied(String::new()));
        assert_eq!((find(&log, "x.example:80"), find(&log, "y.example:80")), (None, denied));
    }
}
