//! N28 to N30: names within connections, TLS that the gateway terminates, and connections that a changed policy no longer allows.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use serde_json::{Value, json};

use crate::Case;
use crate::clients::cases;
use crate::fixture::{Done, Fixture};
use crate::headers::home;
use crate::home::Home;
use crate::secrets::{PRELUDE, requests};

cases![
    n28_denied_names_are_not_reached_by_address,
    n28_denied_names_are_not_reached_by_another_name,
    n28_denied_names_are_not_reached_by_what_servers_accept,
    other_protocols_work_by_address,
    connections_that_were_not_read_end_when_names_are_denied,
    n29_terminated_tls_serves_its_host_only,
    n29_hosts_of_presets_are_terminated,
    terminated_hosts_have_to_be_known_at_the_start,
    n30_tunnels_and_responses_end_with_their_rule,
    n30_without_the_wall_a_tunnel_goes_on,
    n30_connections_end_with_their_secret,
];

/// Requests for a denied name by the address of an allowed one, and for others.
const BY_ADDRESS: &str = r"
A = '93.184.216.35'
print(tls(A, 'other.example').split('\r')[0], get(A, asked='other.example')[:12], get(A, asked='OTHER.example.:80')[:12])
two = b'GET /one HTTP/1.1\r\nHost: good.example\r\n\r\nGET /two HTTP/1.1\r\nHost: other.example\r\nConnection: close\r\n\r\n'
print(*[line for line in ask(two, A).splitlines() if line.startswith('HTTP')])
print(get(A, asked='a_b.below.example')[:12], ask(b'GET http://other.example/ HTTP/1.1\r\nHost: x.example\r\nConnection: close\r\n\r\n', A)[:12])
print(ask(b'CONNECT other.example:443 HTTP/1.1\r\nHost: x.example\r\n\r\n', A)[:12], ask(b'\r\nget / http/1.1\nHost: other.example\n\n', A)[:12])
";
/// Requests that are allowed, and those that name no host.
const ALLOWED: &str = r"
print(get(A, asked='good.example')[:12], get('good.example')[:12], tls(A, 'good.example').split('\r')[0])
context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
try:
    with context.wrap_socket(socket.create_connection((A, 443), timeout=20)) as s: version = s.version()
except ssl.SSLError as error: version = error.reason
print(get(A)[:12], ask(b'GET / HTTP/1.0\r\n\r\n', A)[9:12], version)
";

/// Requests for a denied name that some servers understand, and parsers of HTTP and TLS do not.
const LOOSE: &[&[u8]] = &[
    b"GET / RTSP/1.0\r\nHost: other.example\r\n\r\n",
    b"SOURCE / ICE/1.0\r\nHost: other.example\r\n\r\n",
    b"GET ws://other.example/\r\n",
    b"GET http://other.example/",
    b"GET\x0b/ HTTP/1.0\r\nHost: other.example\r\n\r\n",
    b"GET\x85/ HTTP/1.0\r\nHost: other.example\r\n\r\n",
    b"\x0bGET / HTTP/1.0\r\nHost: other.example\r\n\r\n",
    b"\xa0GET / HTTP/1.0\r\nHost: other.example\r\n\r\n",
    b"GET / HTTP/1.0\x0cHost: other.example\r\n\r\n",
    b"GET\r/\rHTTP/1.0\rHost: other.example\r\r",
    b"\x15\x03\x01\0\x02\x01\x70\x16\x03\x01\x02",
    b"\x80\x2e\x01\x03\x01\0\x15\0\0\0\x10",
    b"SSH- / HTTP/1.1\r\nHost: other.example\r\n\r\n",
    b"SSH-2.0-x / HTTP/1.0\r\nHost: other.example\r\n\r\n",
];

/// Returns the hosts that requests on port 80 and in TLS named.
fn asked(fixture: &Fixture) -> Vec<String> {
    let said = fixture.said();
    let names = said.iter().filter_map(|one| one["host"].as_str().or(one["asked"].as_str()));
    names.map(str::to_owned).collect()
}

fn n28_denied_names_are_not_reached_by_address(fixture: &Fixture) {
    let range = "--allow 93.184.216.0/24:80 --allow 93.184.216.0/24:443 --allow good.example";
    let (no_host, host) = ("HTTP/1.1 403 403 TLSV1_ALERT_ACCESS_DENIED\n", "HTTP/1.1 200 200 TLSv1.3\n");
    for (mode, unnamed) in [("--net open", no_host), (range, host)] {
        let flags = format!("{mode} --deny other.example --deny *.below.example");
        let done = fixture.run(&flags, &format!("{BY_ADDRESS}{ALLOWED}"));
        let expected = "TLSV1_ALERT_ACCESS_DENIED HTTP/1.1 403 HTTP/1.1 403\nHTTP/1.1 200 OK HTTP/1.1 403 Forbidden\n\
                        HTTP/1.1 403 HTTP/1.1 403\nHTTP/1.1 403 HTTP/1.1 400\n";
        let allowed = "HTTP/1.1 200 HTTP/1.1 200 HTTP/1.1 200 OK\n";
        assert_eq!(done.stdout, format!("{expected}{allowed}{unnamed}"), "{mode}");
    }
    let asked = asked(fixture);
    assert!(!asked.iter().any(|name| name.contains("other") || name.contains("below")), "{asked:?}");
    let done = fixture.run_without("gateway-denied-names", "--net open --deny other.example", BY_ADDRESS);
    assert!(done.stdout.starts_with("HTTP/1.1 200 OK HTTP/1.1 200 HTTP/1.1 200\n"), "{done:?}");
    // The reason names the rule.
    let done = fixture.run(
        "--net open --deny other.example",
        "print(get('93.184.216.35', asked='other.example').splitlines()[-1])",
    );
    assert!(done.stdout.starts_with("other.example:80 is denied by the rule other.example:*"), "{done:?}");
    // Hosts whose requests are restricted are reached by their names, also where a range contains their addresses.
    let spec = "[network]\nallow = ['good.example', '93.184.216.0/24:80']\nrequests = { 'good.example' = ['GET /a'] }\n";
    std::fs::write(fixture.dir().join("spec.toml"), spec).unwrap();
    let code =
        "print(get('93.184.216.34', '/b', asked='good.example')[:12], get('93.184.216.34', '/b')[:12])";
    assert_eq!(fixture.run("--spec spec.toml", code).stdout, "HTTP/1.1 403 HTTP/1.1 200\n");
}

fn n28_denied_names_are_not_reached_by_another_name(fixture: &Fixture) {
    let code = "print(get('alias.example').splitlines()[-1]); print(talk('alias.example'), tls('alias.example', 'alias.example'))";
    let flags = "--net open --deny *.below.example";
    let done = fixture.run(flags, code);
    let expected = "the gateway cannot reach it: alias.example is another name for one that the network policy denies\n\
                    ConnectionResetError ";
    assert!(done.stdout.starts_with(expected) && !done.stdout.contains("below"), "{done:?}");
    // One of the names in between, and in mode whitelist too; other names are not affected.
    let done = fixture.run("--allow alias.example:* --deny middle.example", code);
    assert!(done.stdout.starts_with(expected), "{done:?}");
    assert!(!fixture.was_reached("93.184.216.35"));
    let done = fixture.run("--net open --deny below.example --deny x.example", code);
    assert!(done.stdout.contains("hello from 93.184.216.35 to alias.example"), "{done:?}");
    let done = fixture.run_without("gateway-denied-names", flags, code);
    assert!(done.stdout.contains("hello from 93.184.216.35 to alias.example"), "{done:?}");
}

/// What is neither TLS, HTTP/1 nor SSH is not sent to a host by its address; without the wall it arrives.
fn n28_denied_names_are_not_reached_by_what_servers_accept(fixture: &Fixture) {
    let code = |words: &[u8]| {
        format!(
            r"
with socket.create_connection(('93.184.216.81', 80), timeout=20) as s:
    got = b''
    # Once it has been reset, shutdown fails as well.
    try:
        s.sendall(bytes({words:?})); s.shutdown(socket.SHUT_WR)
        while (some := s.recv(65536)): got += some
    except OSError: pass
    print(bytes({words:?}) in got)
"
        )
    };
    let all = LOOSE.iter().map(|words| code(words)).collect::<String>();
    let done = fixture.run("--net open --deny other.example", &all);
    assert_eq!(done.stdout, "False\n".repeat(LOOSE.len()), "{done:?}");
    let done = fixture.run_without("gateway-denied-names", "--net open --deny other.example", &all);
    assert_eq!(done.stdout, "True\n".repeat(LOOSE.len()), "{done:?}");
}

/// With denied names connections to addresses are read; programs of SSH, and those whose host speaks first, do not notice.
fn other_protocols_work_by_address(fixture: &Fixture) {
    let code = r"
def first(words, port):
    with socket.create_connection(('93.184.216.80', port), timeout=20) as s:
        if words: s.sendall(words); s.shutdown(socket.SHUT_WR)
        got = b''
        while (some := s.recv(65536)):
            got += some
            if not words: s.shutdown(socket.SHUT_WR); words = b'-'
        return got
for port in [80, 443]:
    print(first(b'SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n', port), first(b'', port))
# The host speaks first, and what comes then is read nevertheless.
with socket.create_connection(('93.184.216.80', 80), timeout=20) as s:
    s.recv(7); s.sendall(b'GET / HTTP/1.1\r\nHost: other.example\r\n\r\n')
    try: print(s.recv(100))
    except OSError as error: print(type(error).__name__)
";
    let done = fixture.run("--net open --deny other.example", code);
    let line = "b'banner\\nSSH-2.0-OpenSSH_9.2p1 Debian-2\\r\\nthe end\\n' b'banner\\nthe end\\n'\n";
    assert_eq!(done.stdout, format!("{line}{line}ConnectionResetError\n"));
    // As a proxy that a program knows by its address.
    let code = "print(ask(b'GET http://good.example/a HTTP/1.1\\r\\nHost: good.example\\r\\nConnection: close\\r\\n\\r\\n', '93.184.216.35')[9:12])";
    assert_eq!(fixture.run("--net open --deny other.example", code).stdout, "200\n");
    assert!(fixture.said().iter().any(|said| said["request"] == "http://good.example/a"));
}

/// A program in a sandbox that is running, and prints lines.
struct Running(Child, std::io::Lines<BufReader<ChildStdout>>);

impl Running {
    fn start(home: &Home, sandbox: &str, code: &str) -> Self {
        let code = format!("{}\n{PRELUDE}\n{code}", crate::fixture::PRELUDE);
        let mut command = home.belljar(&["sandbox", "exec", sandbox, "--", "python3", "-u", "-c", &code]);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut running = Self(process, lines);
        assert_eq!(running.line(), "ready");
        running
    }

    fn line(&mut self) -> String {
        self.1.next().expect("a line").unwrap()
    }

    fn is_open(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    fn end(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Returns the rest of the lines, and waits for the end.
    fn rest(mut self) -> Vec<String> {
        let lines = self.1.by_ref().map(Result::unwrap).collect();
        assert!(self.0.wait().unwrap().success());
        lines
    }
}

/// Waits for the end of a connection, and prints how it ended.
const UNTIL_CUT: &str = "
def until_cut(s):
    print('ready')
    try:
        while s.recv(100): pass
        print('ended')
    except OSError as error: print(type(error).__name__)
";

fn connections_that_were_not_read_end_when_names_are_denied(fixture: &Fixture) {
    let home = home(fixture, "");
    let id = home.create("--net open");
    let code = format!("{UNTIL_CUT}\nuntil_cut(socket.create_connection(('93.184.216.35', 80)))");
    let running = Running::start(&home, &id, &code);
    home.good(&format!("sandbox net {id} set --net open --deny other.example"));
    assert_eq!(running.rest(), ["ConnectionResetError"]);
    assert!(
        home.good(&format!("sandbox net {id} log")).contains("before the network policy had names checked")
    );
    home.good("sandbox kill --all");
}

/// Runs a program under a policy, with the simulated hosts' authority.
fn run(fixture: &Fixture, wall: &str, spec: &str, code: &str) -> Done {
    fixture.policy(&format!("ca_file = \"{}\"", fixture.dir().join("ca.pem").display()));
    std::fs::write(fixture.dir().join("spec.toml"), spec).unwrap();
    fixture.run_without(wall, "--spec spec.toml", &format!("{PRELUDE}\n{code}"))
}

/// A request for another host than the connection's, over HTTP/1.1 and HTTP/2, and one for its own.
const FRONTED: &str = r"
import subprocess
def curl(host, asked):
    words = ['curl', '-s', '-k', '--http2', '-o', '/dev/null', '-w', '%{http_version} %{http_code}', '-H', f'Host: {asked}', f'https://{host}/']
    print(subprocess.run(words, capture_output=True, text=True).stdout)
curl('good.example', 'evil.example')
curl('http2.example', 'evil.example')
curl('good.example', 'good.example')
";

fn n29_terminated_tls_serves_its_host_only(fixture: &Fixture) {
    let spec = "[network]\nallow = ['*.example']\ntls = { 'good.example' = 'terminate', '*.example' = 'terminate' }\n";
    let hosts = || -> Vec<Value> {
        let host = |one: &Value| {
            if one["version"] == 2 { one["asked"].clone() } else { one["headers"]["host"].clone() }
        };
        requests(fixture).iter().map(host).collect()
    };
    assert_eq!(run(fixture, "", spec, FRONTED).stdout, "1.1 403\n2 403\n1.1 200\n");
    assert_eq!(hosts(), ["good.example"]);
    // Certificates are verified by the gateway, and programs trust its own.
    let code = "print(https('good.example'), https('impostor.example'))";
    assert_eq!(run(fixture, "", spec, code).stdout, "(200, '') (502, None)\n");
    // By address the name is refused: nothing would be read there.
    let open = "[network]\nmode = 'open'\ntls = { 'good.example' = 'terminate' }\n";
    let code = "print(tls('93.184.216.34', 'good.example'), tls('93.184.216.34', 'other.example')[9:12])";
    assert_eq!(run(fixture, "", open, code).stdout, "TLSV1_ALERT_ACCESS_DENIED 200\n");
    // Without termination the host within may be another one.
    let before = hosts().len();
    assert_eq!(run(fixture, "gateway-terminate", spec, FRONTED).stdout, "1.1 200\n2 200\n1.1 200\n");
    assert_eq!(hosts()[before..], ["evil.example", "evil.example", "good.example"]);
    let passed = "[network]\nallow = ['*.example']\n";
    assert_eq!(run(fixture, "", passed, FRONTED).stdout, "1.1 200\n2 200\n1.1 200\n");
}

fn n29_hosts_of_presets_are_terminated(fixture: &Fixture) {
    let code = "
curl('pypi.org', 'evil.example')
print(https('pypi.org', '/simple/tiny/')[0])
subprocess.run(['python3', '-m', 'venv', 'v'], check=True)
words = ['v/bin/pip', 'download', '-q', '--no-cache-dir', '--disable-pip-version-check', '-d', 'got', 'tiny']
print(subprocess.run(words, capture_output=True, text=True).returncode, os.listdir('got'))
";
    let fronted = FRONTED.split("curl('good").next().unwrap();
    let code = format!("{fronted}\n{code}");
    let preset = "[network]\npresets = ['pip']\n";
    let done = run(fixture, "", preset, &code);
    assert_eq!(done.stdout, "1.1 403\n200\n0 ['tiny-1.0-py3-none-any.whl']\n", "{done:?}");
    // A policy can have it passed on; then the program verifies the host.
    let code = format!("{fronted}\ncurl('pypi.org', 'evil.example'); print(tls('pypi.org').split()[1])");
    let passed = format!("{preset}tls = {{ 'pypi.org' = 'pass' }}\n");
    assert_eq!(run(fixture, "", &passed, &code).stdout, "1.1 200\n200\n");
}

fn terminated_hosts_have_to_be_known_at_the_start(fixture: &Fixture) {
    let home = home(fixture, "");
    let id = home.create("--allow *.example --tls good.example=terminate");
    let policy = home.json(&format!("sandbox net {id} get"));
    assert_eq!(policy["tls"], json!({"good.example": "terminate"}));
    assert!(home.good(&format!("sandbox net {id} get")).contains("good.example=terminate"));
    home.run(&format!("sandbox net {id} set --allow *.example --tls other.example=terminate"))
        .refused(2, &["network.tls", "other.example"]);
    // A preset can be added; TLS to its hosts is passed on then.
    home.good(&format!("sandbox net {id} set --preset pip"));
    let code = format!("{}\nprint(tls('pypi.org').split()[1])", crate::fixture::PRELUDE);
    home.write("ca.pem", &fixture.certificate());
    home.good(&format!("sandbox cp ca.pem {id}:ca.pem"));
    assert_eq!(home.run_args(&["sandbox", "exec", &id, "--", "python3", "-c", &code]).good(), "200\n");
    home.good("sandbox kill --all");
}

/// What a program sees of TLS that is cut: no end that the protocol has.
const CUT: &str = "SSLEOFError";

/// Opens a connection on which a request is not complete.
const IN_FLIGHT: &str = r"
def begin(host, path, more=''):
    s = socket.create_connection((host, 443), timeout=20)
    s = ssl.create_default_context().wrap_socket(s, server_hostname=host, suppress_ragged_eofs=False)
    s.sendall(f'GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n'.encode())
    head = b''
    while b'\r\n\r\n' not in head: head += s.recv(1000)
    return s
upgrade = 'Connection: upgrade\r\nUpgrade: websocket\r\n'
";

fn n30_tunnels_and_responses_end_with_their_rule(fixture: &Fixture) {
    let with = |home: &Home, words: &[&str], rule: &str| {
        let rule = format!("good.example={rule}");
        home.run_args(&[words, &["--allow", "good.example", "--request", &rule]].concat()).good()
    };
    let home = home(fixture, "");
    let id = with(&home, &["sandbox", "create"], "GET /*");
    let id = id.trim();
    let set = |rule: &str| with(&home, &["sandbox", "net", id, "set"], rule);
    let until = |begin: &str| format!("{IN_FLIGHT}{UNTIL_CUT}\nuntil_cut({begin})");
    let cut = ["begin('good.example', '/ws', upgrade)", "begin('good.example', '/endless')"];
    for (number, begin) in cut.into_iter().enumerate() {
        set("GET /*");
        let mut kept = Running::start(&home, id, &until("begin('good.example', '/v1/endless')"));
        let running = Running::start(&home, id, &until(begin));
        set("GET /v1/*");
        assert_eq!(running.rest(), [CUT], "{begin}");
        let log = home.good(&format!("sandbox net {id} log"));
        // What the new rules allow goes on.
        assert_eq!(log.matches("is not allowed at good.example").count(), number + 1, "{log}");
        assert!(kept.is_open());
        kept.end();
    }
    home.good("sandbox kill --all");
}

fn n30_without_the_wall_a_tunnel_goes_on(fixture: &Fixture) {
    let home = home(fixture, "");
    let mut create =
        home.belljar(&["sandbox", "create", "--allow", "good.example", "--request", "good.example=GET /*"]);
    create.env("BELLJAR_TEST_WITHOUT", "gateway-recheck");
    let id = home.feed_command(create, b"").good();
    let id = id.trim();
    let code = format!(
        "{IN_FLIGHT}
s = begin('good.example', '/ws', upgrade); print('ready')
while not os.path.exists('/tmp/go'): __import__('time').sleep(0.01)
s.sendall(b'more'); print(s.recv(4))"
    );
    let running = Running::start(&home, id, &code);
    let words =
        ["sandbox", "net", id, "set", "--allow", "good.example", "--request", "good.example=GET /v1/*"];
    home.run_args(&words).good();
    home.inside(id, "touch /tmp/go");
    assert_eq!(running.rest(), ["b'more'"]);
    home.good("sandbox kill --all");
}

fn n30_connections_end_with_their_secret(fixture: &Fixture) {
    let home = home(fixture, "");
    home.feed("secret create openai --host *.example", b"s3cret-value").good();
    let flags = "--allow good.example --allow other.example --secret KEY=good.example:authorization:secret=openai \
                 --header other.example:x-key:secret=openai";
    let id = home.create(flags);
    let used = [
        "begin('good.example', '/endless', 'Authorization: ' + os.environ['KEY'] + '\\r\\n')",
        "begin('other.example', '/ws', upgrade)",
    ];
    let code = |begin: &str| format!("{IN_FLIGHT}{UNTIL_CUT}\nuntil_cut({begin})");
    let start = || used.map(|begin| Running::start(&home, &id, &code(begin)));
    // Another value is for the next requests; these go on.
    let mut running = start();
    let mut unused = Running::start(&home, &id, &code("begin('good.example', '/endless')"));
    home.feed("secret set openai", b"s3cret-later").good();
    let log = || home.good(&format!("sandbox net {id} log"));
    assert!(running.iter_mut().all(Running::is_open) && !log().contains("no longer has"), "{}", log());
    home.good("secret rm openai");
    assert_eq!(running.map(Running::rest), [[CUT], [CUT]]);
    let log = log();
    for what in ["the secret KEY in authorization", "the header x-key for other.example"] {
        assert!(log.contains(&format!("no longer has {what}, which this connection used")), "{log}");
    }
    // A connection that did not use it goes on.
    assert!(unused.is_open());
    unused.end();
    home.good("sandbox kill --all");
}
