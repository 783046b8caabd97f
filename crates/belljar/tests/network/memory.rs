//! N31 to N33: memory that connections take on the machine, bytes of gateways that end, and noise in the audit log.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Instant;

use rustix::process::Pid;
use serde_json::{Value, json};

use crate::Case;
use crate::clients::cases;
use crate::fixture::{DEADLINE, Fixture, PRELUDE, gateways};
use crate::headers::home;
use crate::home::Home;
use crate::service::{address, kill_gateway, python, send_request};

cases![
    n31_unread_downloads_do_not_fill_the_memory_of_tcp,
    n31_fixed_buffers_bound_each_connection,
    n31_without_both_unread_downloads_fill_the_memory_of_tcp,
    n32_unread_downloads_over_http2_do_not_end_the_gateway,
    n32_without_the_bounds_unread_downloads_end_the_gateway,
    connections_over_http2_are_bounded,
    n33_bytes_of_a_gateway_that_ends_are_recorded,
    n33_many_ports_have_one_record,
];

const MIB: u64 = 1 << 20;

/// Opens downloads that never end and reads one byte of each, until its input ends.
const UNREAD: &str = "
import time
held = []
while len(held) < COUNT:
    # A connection above the gateway's rate is reset.
    try:
        s = socket.create_connection(('93.184.216.90', 5432), timeout=60)
        s.recv(1)
        held.append(s)
    except OSError: time.sleep(0.1)
print('open', flush=True)
sys.stdin.read()
";

/// Returns the memory of all TCP of the machine, in bytes.
fn tcp_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/net/sockstat").unwrap();
    let line = text.lines().find(|line| line.starts_with("TCP:")).unwrap();
    let pages = line.split_whitespace().last().unwrap().parse::<u64>().unwrap();
    pages * rustix::param::page_size() as u64
}

/// A program in a sandbox that ends when its input does.
struct Program {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(fixture: &Fixture, wall: &str, flags: &str, code: &str) -> Self {
        let mut command = fixture.command(&format!("{flags} --timeout 300"), code);
        command.env("BELLJAR_TEST_WITHOUT", wall).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("the program says more").unwrap()
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// Returns by how much the memory of TCP has grown when this many downloads, of which nothing is read, accept nothing more.
fn growth(fixture: &Fixture, wall: &str, flags: &str, count: u64) -> u64 {
    let before = tcp_bytes();
    let code = UNREAD.replace("COUNT", &count.to_string());
    let mut program = Program::start(fixture, wall, &format!("--net open {flags}"), &code);
    assert_eq!(program.line(), "open");
    fixture.until(|said| said["stuck"] == count);
    let growth = tcp_bytes().saturating_sub(before);
    program.end();
    growth
}

const ALL: u64 = 256;
const SMALL: &str = "--memory 64m";

fn n31_unread_downloads_do_not_fill_the_memory_of_tcp(fixture: &Fixture) {
    let growth = growth(fixture, "", SMALL, ALL);
    // What the group of the gateway and that of the sandbox have together.
    assert!(growth < (128 + 64) * MIB, "{growth}");
}

fn n31_fixed_buffers_bound_each_connection(fixture: &Fixture) {
    let growth = growth(fixture, "gateway-group", SMALL, ALL);
    assert!(growth < ALL * 3 * MIB / 2, "{growth}");
}

fn n31_without_both_unread_downloads_fill_the_memory_of_tcp(fixture: &Fixture) {
    let count = 100;
    let growth = growth(fixture, "gateway-group,gateway-buffers", SMALL, count);
    assert!(growth > count * 3 * MIB, "{growth}");
}

/// The policy under which the gateway reads HTTP/2.
const HTTP_2: &str = "[network]\nallow = ['http2.example']\ntls = { 'http2.example' = 'terminate' }\n";

/// Opens sessions of HTTP/2 with three downloads each, of which nothing is read, until its input ends.
const UNREAD_HTTP_2: &str = r"
import subprocess
script = '''
const http2 = require('http2');
for (let number = 0; number < 40; number++) {
    const session = http2.connect('https://http2.example', {rejectUnauthorized: false});
    session.on('error', () => {}).on('connect', () => {
        for (let stream = 0; stream < 3; stream++) session.request({':path': '/big'}).on('error', () => {});
    });
}
process.stdin.resume().on('end', () => process.exit(0));
'''
print('begin', flush=True)
os.read(0, 1)
sys.exit(subprocess.run(['node', '-e', script]).returncode)
";

/// Runs [`UNREAD_HTTP_2`], and `then` with the gateway that is the first.
fn unread_http2(fixture: &Fixture, wall: &str, then: impl FnOnce(Pid)) {
    let dir = fixture.dir();
    fixture.policy(&format!("ca_file = \"{}\"", dir.join("ca.pem").display()));
    std::fs::write(dir.join("spec.toml"), HTTP_2).unwrap();
    let mut program = Program::start(fixture, wall, "--spec spec.toml", UNREAD_HTTP_2);
    assert_eq!(program.line(), "begin");
    let [gateway] = gateways()[..] else { panic!("{:?}", gateways()) };
    program.child.stdin.as_ref().unwrap().write_all(b".").unwrap();
    then(gateway);
    program.end();
}

fn n32_unread_downloads_over_http2_do_not_end_the_gateway(fixture: &Fixture) {
    unread_http2(fixture, "", |gateway| {
        // Eight sessions, with three downloads each.
        fixture.until(|said| said["blocked"] == 24);
        assert_eq!(gateways(), [gateway]);
        let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.as_raw_nonzero())).unwrap();
        let data = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
        let data: u64 = data.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(data < 64 << 10, "{data}");
    });
}

fn n32_without_the_bounds_unread_downloads_end_the_gateway(fixture: &Fixture) {
    unread_http2(fixture, "gateway-http2", |gateway| {
        let begin = Instant::now();
        while gateways().contains(&gateway) {
            assert!(begin.elapsed() < DEADLINE, "the gateway goes on");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    });
}

fn connections_over_http2_are_bounded(fixture: &Fixture) {
    let home = home(fixture, "");
    let id = home.create("--allow http2.example --tls http2.example=terminate");
    let code = "
context = ssl.create_default_context()
def connect(*protocols):
    context.set_alpn_protocols(protocols)
    s = socket.create_connection(('http2.example', 443), timeout=20)
    return context.wrap_socket(s, server_hostname='http2.example')
held = [connect('h2', 'http/1.1') for _ in range(10)]
print([s.selected_alpn_protocol() for s in held].count('h2'))
try: connect('h2')
except ssl.SSLError as error: print(error.reason)
held.pop(0).close()
while True:
    try: print(connect('h2').selected_alpn_protocol()); break
    except ssl.SSLError: pass
";
    assert_eq!(python(&home, &id, code), "8\nTLSV1_ALERT_ACCESS_DENIED\nh2\n");
    let log = home.good(&format!("sandbox net {id} log"));
    assert!(log.contains("8 with HTTP/2"), "{log}");
    home.good("sandbox kill --all");
}

/// Returns the audit records of the only sandbox, which has ended.
fn records(home: &Home) -> Vec<Value> {
    crate::home::eventually(|| {
        let text = home.good("audit tail -n 100 --format json");
        let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        if records.iter().any(|record| record["action"] == "network.end") { Ok(records) } else { Err(text) }
    })
}

fn n33_bytes_of_a_gateway_that_ends_are_recorded(_: &Fixture) {
    let home = crate::service::home();
    let (server, said) = home.serve(&["--set", "metrics.open=true"]);
    let id = home.create("--net open");
    let code = format!(
        "{PRELUDE}
s = socket.create_connection(('93.184.216.90', 5432))
got = 0
while got < 8 << 20: got += len(s.recv(65536))
print('got', flush=True)
try:
    while s.recv(65536): pass
except OSError as error: print(type(error).__name__)
"
    );
    let mut open = home.belljar(&["sandbox", "exec", &id, "--", "python3", "-c", &code]);
    let mut open = open.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(open.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "got\n");
    // The connection is open, and its bytes are counted.
    crate::home::eventually(|| {
        let counted = send_request(address(&said), "GET /metrics HTTP/1.1\r\n", "");
        let name = "belljar_network_bytes_total{direction=\"received\"} ";
        let received = counted.lines().find_map(|line| line.strip_prefix(name)?.parse::<u64>().ok());
        received.filter(|received| *received >= 8 * MIB).ok_or(counted)
    });
    kill_gateway();
    line.clear();
    output.read_to_string(&mut line).unwrap();
    assert!(["", "ConnectionResetError\n"].contains(&line.as_str()), "{line}");
    open.wait().unwrap();
    python(&home, &id, "print(talk('93.184.216.34'))");
    home.good(&format!("sandbox kill {id}"));
    let records = records(&home);
    let details =
        |action: &str| &records.iter().find(|record| record["action"] == action).unwrap()["details"];
    assert_eq!(details("network.restart")["lost_connections"], 1);
    let end = details("network.end");
    assert!(end["received_bytes"].as_u64() >= Some(8 * MIB), "{end}");
    assert_eq!((&end["lost_connections"], &end["lost"]), (&json!(1), &json!(0)));
    crate::home::stop(server);
}

fn n33_many_ports_have_one_record(_: &Fixture) {
    let home = crate::service::home();
    let id = home.create("--net open");
    python(&home, &id, "[talk('93.184.216.34', 20000 + n) for n in range(100)]; talk('93.184.216.36')");
    home.good(&format!("sandbox kill {id}"));
    let records = records(&home);
    let ports_of = |host: &str| -> Vec<&Value> {
        let of_host = records.iter().filter(|record| record["details"]["host"] == host);
        of_host.map(|record| &record["details"]["port"]).collect()
    };
    let ports = ports_of("93.184.216.34");
    // The further ones have one record when the first of them is reached, and one with their number at the end.
    assert_eq!((ports.len(), ports[8], ports[9]), (10, &Value::Null, &Value::Null), "{ports:?}");
    assert_eq!(ports_of("93.184.216.36"), [5432]);
    let end = &records.iter().find(|record| record["action"] == "network.end").unwrap()["details"];
    assert_eq!((&end["allowed"], &end["unrecorded"]), (&json!(101), &json!(0)));
}
