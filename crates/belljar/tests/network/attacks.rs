//! Attempts of programs to get around a network policy.

use std::time::Instant;

use crate::Case;
use crate::clients::cases;
use crate::fixture::Fixture;

cases![
    denied_name_is_not_resolved,
    names_do_not_leave_the_sandbox_before_a_connection,
    denied_port_is_refused,
    address_does_not_bypass_name_rules,
    tls_for_another_name_is_refused,
    request_for_another_name_is_refused,
    n15_ports_443_and_80_carry_their_own_protocols,
    private_addresses_are_unreachable,
    own_addresses_of_the_machine_are_unreachable,
    deny_overrides_allow,
    only_tcp_leaves_the_sandbox,
    loopback_of_the_machine_is_unreachable,
    killed_gateway_is_replaced_by_one_with_the_same_policy,
    failed_gateway_start_fails_the_sandbox,
    number_of_connections_is_bounded,
    resolver_answers_only_address_queries,
    number_of_streams_to_the_resolver_is_bounded,
    gateway_is_jailed,
    invalid_input_does_not_end_the_gateway,
    lying_or_hanging_resolver_gives_an_error,
    truncated_answer_is_detected,
    nothing_is_left_after_the_sandbox_ends,
];

fn denied_name_is_not_resolved(fixture: &Fixture) {
    let done = fixture.run("--allow good.example", "print(get('other.example'), get('sub.good.example'))");
    assert_eq!(done.stdout, "gaierror gaierror\n");
    let done = fixture.run("--allow *.good.example", "print(get('good.example'), get('xgood.example'))");
    assert_eq!(done.stdout, "gaierror gaierror\n", "a wildcard is for names below it");
    let done = fixture.run("--net whitelist", "print(get('good.example'))");
    assert_eq!(done.stdout, "gaierror\n");
}

fn names_do_not_leave_the_sandbox_before_a_connection(fixture: &Fixture) {
    let code = "
for name in ['secret-data.good.example', 'more.good.example', 'other.example']:
    try: print(socket.gethostbyname(name).startswith('198.1'))
    except OSError as error: print(type(error).__name__)
";
    let done = fixture.run("--allow *.good.example:5432", code);
    assert_eq!(done.stdout, "True\nTrue\ngaierror\n");
    assert!(fixture.said().iter().all(|said| said["query"].is_null()), "{:?}", fixture.said());
}

fn denied_port_is_refused(fixture: &Fixture) {
    let code = "print(talk('good.example', 5432)); print(get('good.example'))";
    let done = fixture.run("--allow good.example:443", code);
    assert!(done.stdout.starts_with("ConnectionResetError\nHTTP/1.1 403 Forbidden"), "{done:?}");
    assert!(done.stdout.contains("good.example:80 is not allowed by the network policy"), "{done:?}");
    let done = fixture.run("--allow good.example:80", "print(tls('good.example'))");
    assert!(done.stdout.contains("ACCESS_DENIED"), "{done:?}");
    assert!(!fixture.was_reached("93.184.216.34"));
}

fn address_does_not_bypass_name_rules(fixture: &Fixture) {
    let code = "
print(talk('93.184.216.34'), get('93.184.216.34')[:12], tls('93.184.216.34', 'good.example'))
first = socket.gethostbyname('good.example')
base = struct.unpack('>I', socket.inet_aton(first))[0]
print([talk(socket.inet_ntoa(struct.pack('>I', base + more))) for more in [1, 2, 255]])
";
    let done = fixture.run("--allow good.example:5432", code);
    let expected = "ConnectionResetError HTTP/1.1 403 TLSV1_ALERT_ACCESS_DENIED\n['ConnectionResetError', \
                    'ConnectionResetError', 'ConnectionResetError']\n";
    assert_eq!(done.stdout, expected);
    assert!(!fixture.was_reached("93.184.216.34"));
}

fn tls_for_another_name_is_refused(fixture: &Fixture) {
    let (flags, code) = ("--allow good.example:443", "print(tls('good.example', 'other.example'))");
    let done = fixture.run(flags, code);
    assert!(done.stdout.contains("ACCESS_DENIED"), "{done:?}");
    assert!(!fixture.was_reached("93.184.216.34"));
    let plain = "print(ask(b'GET / HTTP/1.1\\r\\n\\r\\n', 'good.example', 443) in ('', 'ConnectionResetError', '\\x15\\x03\\x03\\0\\2\\2\\x31'))";
    assert_eq!(fixture.run(flags, plain).stdout, "True\n");
    assert!(!fixture.was_reached("93.184.216.34"));
    let done = fixture.run_without("gateway-names", flags, code);
    assert!(done.stdout.contains("hello from 93.184.216.34 as other.example"), "{done:?}");
}

fn request_for_another_name_is_refused(fixture: &Fixture) {
    let flags = "--allow good.example:80";
    let code = "print(get('good.example', asked='other.example'))";
    let done = fixture.run(flags, code);
    assert!(done.stdout.starts_with("HTTP/1.1 403"), "{done:?}");
    assert!(done.stdout.contains("the request asks for other.example"), "{done:?}");
    // Also the second of two requests, and one that is smuggled in the first.
    let code = r"
first = b'GET /first HTTP/1.1\r\nHost: good.example\r\n'
second = b'GET /second HTTP/1.1\r\nHost: other.example\r\nConnection: close\r\n\r\n'
for hidden in [
    first + b'\r\n' + second,
    first + b'Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n' + second,
    first + b'Content-Length: %d\r\nContent-Length: 0\r\n\r\n' % len(second) + second,
    first + b'Host: other.example\r\n\r\n',
    b'GET http://other.example/second HTTP/1.1\r\nHost: good.example\r\n\r\n',
    b'CONNECT other.example:80 HTTP/1.1\r\nHost: good.example\r\n\r\n',
    b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
    b'GET /first HTTP/1.1\nHost: good.example\n\n' + second,
    first + b'Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n' + second,
]:
    print('/second' in ask(hidden, 'good.example'))
";
    let done = fixture.run(flags, code);
    assert_eq!(done.stdout, "False\n".repeat(9));
    let others = fixture.said().iter().filter(|said| said["host"] == "other.example").count();
    assert_eq!(others, 0);
    let done = fixture.run_without("gateway-names", flags, code);
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert_eq!((lines[0], lines[8]), ("True", "True"), "{done:?}");
}

fn n15_ports_443_and_80_carry_their_own_protocols(fixture: &Fixture) {
    let code = r"
for words in [b'SSH-2.0-OpenSSH_9.2\r\n', b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', b'\x80\x2e\x01\3\0\0\x15\0\0\0\x10']:
    for port in [443, 80]: ask(words, 'good.example', port)
";
    fixture.run("--allow good.example", code);
    assert!(!fixture.was_reached("93.184.216.34"));
    fixture.run_without("gateway-names", "--allow good.example", code);
    assert!(fixture.was_reached("93.184.216.34"));
}

/// Names that resolve to addresses that no policy can allow, and such addresses themselves.
const PRIVATE: &str = "
for name in ['private.example', 'metadata.example', 'loopback.example']:
    print(talk(name))
for address in ['10.1.2.3', '169.254.169.254', '192.168.0.1', '172.16.0.1', '100.64.0.1', '0.0.0.1', '224.0.0.1', '255.255.255.255']:
    print(talk(address))
";

fn private_addresses_are_unreachable(fixture: &Fixture) {
    let flags = "--net open";
    let done = fixture.run(flags, PRIVATE);
    assert_eq!(done.stdout.lines().count(), 11, "{done:?}");
    assert!(done.stdout.lines().all(|line| line.ends_with("Error")), "{done:?}");
    let done = fixture.run("--allow private.example:5432", "print(talk('private.example'))");
    assert_eq!(done.stdout, "ConnectionResetError\n");
    for address in ["10.1.2.3", "169.254.169.254", "127.0.0.1", "192.168.0.1"] {
        assert!(!fixture.was_reached(address), "{address}");
    }
    let flags = "--allow 0.0.0.0/0:5432 --allow private.example:5432 --allow metadata.example:5432";
    assert!(!fixture.run(flags, PRIVATE).stdout.contains("banner"));
    let done = fixture.run_without("gateway-ranges", flags, PRIVATE);
    assert!(done.stdout.matches("banner").count() >= 6, "{done:?}");
}

fn own_addresses_of_the_machine_are_unreachable(fixture: &Fixture) {
    let (flags, code) = ("--net open", "print(talk('93.184.200.1'), talk('machine.example'))");
    assert_eq!(fixture.run(flags, code).stdout, "ConnectionResetError ConnectionResetError\n");
    assert!(!fixture.was_reached("93.184.200.1"));
    let done = fixture.run_without("gateway-own", flags, code);
    assert_eq!(done.stdout.matches("banner").count(), 2, "{done:?}");
}

fn deny_overrides_allow(fixture: &Fixture) {
    // Sockets of IPv6 reach IPv4 addresses, too, through the same policy.
    let code = "
print(get('good.example')[:12], talk('good.example'), talk('93.184.216.34'))
try: print(socket.create_connection(('::ffff:93.184.216.34', 80)).recv(10))
except OSError as error: print(type(error).__name__)
";
    let done = fixture.run("--net open --deny good.example --deny 93.184.216.34/32", code);
    assert!(done.stdout.ends_with("ConnectionResetError\nConnectionResetError\n"), "{done:?}");
    assert!(!fixture.was_reached("93.184.216.34"), "{done:?}");
}

fn only_tcp_leaves_the_sandbox(fixture: &Fixture) {
    let code = "
def tried(what):
    try: return what()
    except OSError as error: return type(error).__name__
def datagram(address, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5); s.connect((address, port))
    s.send(b'x'); return s.recv(100)
print(tried(lambda: datagram('9.9.9.9', 53)), tried(lambda: datagram('93.184.216.34', 443)))
print(tried(lambda: socket.create_connection(('2606:2800:21f::1', 80))), tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1)))
def datagram6(address, port):
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.settimeout(5); s.connect((address, port))
    s.send(b'x'); return s.recv(100)
print(tried(lambda: datagram6('2606:2800:21f::1', 53)), tried(lambda: datagram6('fe80::1%lo', 53)), tried(lambda: datagram6('ff02::1%lo', 53)))
print(tried(lambda: datagram6('::ffff:93.184.216.34', 443)), tried(lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM, 58)))
print(tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)), tried(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)))
print(sorted(line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line))
";
    let done = fixture.run("--net open", code);
    assert_eq!(done.stdout.lines().next(), Some("ConnectionRefusedError ConnectionRefusedError"), "{done:?}");
    assert_eq!(done.stdout.lines().last(), Some("['lo']"), "{done:?}");
    let errors = done.stdout.lines().skip(1).take(4).flat_map(str::split_whitespace);
    assert!(errors.clone().all(|word| word.ends_with("Error")) && errors.count() == 9, "{done:?}");
    assert!(fixture.said().iter().all(|said| said["query"].is_null()));
}

fn loopback_of_the_machine_is_unreachable(fixture: &Fixture) {
    // The sandbox has a loopback of its own, on every port, including the allowed ones.
    let code = "
server = socket.create_server(('127.0.0.1', 5432))
def serve():
    peer, _ = server.accept(); peer.sendall(b'mine'); peer.close()
threading.Thread(target=serve).start()
print(socket.create_connection(('127.0.0.1', 5432)).recv(10), talk('127.0.0.1', 80), talk('good.example')[:6])
";
    let done = fixture.run("--allow good.example:5432", code);
    assert_eq!(done.stdout, "b'mine' ConnectionRefusedError banner\n");
    assert!(!fixture.was_reached("127.0.0.1"));
}

fn killed_gateway_is_replaced_by_one_with_the_same_policy(fixture: &Fixture) {
    let code = "
s = socket.create_connection(('good.example', 5432)); s.recv(10)
print('ready', flush=True)
try: print(repr(s.recv(10)))
except OSError as error: print(type(error).__name__)
print(talk('good.example')[:6], talk('93.184.216.34'), talk('other.example'), get('good.example')[:4])
";
    let mut child = fixture.command("--allow good.example --allow good.example:5432", code);
    let mut child = child.arg("--timeout").arg("60").stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    // Only then has the gateway passed the banner on.
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    assert_eq!(line, "ready\n");
    let gateway = crate::fixture::gateways()[0];
    let _ = rustix::process::kill_process(gateway, rustix::process::Signal::KILL);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut output, &mut text).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
    assert_eq!(text, "ConnectionResetError\nbanner ConnectionResetError gaierror HTTP\n");
}

fn failed_gateway_start_fails_the_sandbox(fixture: &Fixture) {
    let ca = fixture.dir().join("broken.pem");
    std::fs::write(&ca, "-----BEGIN CERTIFICATE-----\nbroken\n-----END CERTIFICATE-----\n").unwrap();
    let why = format!(
        "cannot start the network's gateway: cannot end TLS: cannot read the certificates in {}",
        ca.display()
    );
    fixture.policy(&format!("ca_file = \"{}\"", ca.display()));
    std::fs::write(
        fixture.dir().join("spec.toml"),
        "[network]\nallow = ['good.example']\nrequests = { 'good.example' = ['GET /*'] }\n",
    )
    .unwrap();
    // Code may have started by then, and ends with its sandbox.
    let mut command = fixture.command("--spec spec.toml --timeout 100", "import time; time.sleep(1000)");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(125) && said.contains(&why), "{output:?}");
    let home = crate::home::Home::configured(&format!(
        "[server]\nlinger = '1s'\n[sandboxes.network]\nca_file = '{}'\n",
        ca.display()
    ));
    let secret = ["--secret", "KEY=good.example:authorization:file=key"];
    home.write("key", "value");
    let create = ["sandbox", "create", "--allow", "good.example"];
    home.run_args(&[&create[..], &secret].concat()).refused(125, &[&why]);
    assert!(home.good("sandbox ls --format json").is_empty());
    assert!(crate::fixture::gateways().is_empty());
}

fn number_of_connections_is_bounded(fixture: &Fixture) {
    let code = "
held, refused = [], 0
for _ in range(300):
    try:
        s = socket.create_connection(('good.example', 5432), timeout=20); s.recv(7); held.append(s)
    except OSError: refused += 1
    if len(held) % 50 == 0: import time; time.sleep(1)
print(len(held), refused)
for s in held: s.close()
print(any(talk('good.example').startswith('banner') for _ in range(50) if not time.sleep(0.1)))
";
    let done = fixture.run("--allow good.example:5432 --timeout 100", code);
    let words: Vec<&str> = done.stdout.split_whitespace().collect();
    let [held, refused, after] = words.as_slice() else { panic!("{done:?}") };
    let (held, refused): (u32, u32) = (held.parse().unwrap(), refused.parse().unwrap());
    assert!((200..=256).contains(&held) && held + refused == 300, "{done:?}");
    assert_eq!(*after, "True");
}

fn number_of_streams_to_the_resolver_is_bounded(fixture: &Fixture) {
    let code = "
import time
held = [socket.create_connection(('198.18.0.1', 53), timeout=20) for _ in range(40)]
def closed(s):
    s.settimeout(0.2)
    try: return s.recv(1) == b''
    except TimeoutError: return False
    except OSError: return True
print(sum(not closed(s) for s in held))
for s in held: s.close()
while True:
    try: print(query('good.example', 1, stream=True)[:2]); break
    except (OSError, struct.error, IndexError): time.sleep(0.1)
";
    let done = fixture.run("--allow good.example --timeout 60", &format!("{ASK}{code}"));
    assert_eq!(done.stdout, "16\n(0, 1)\n", "{done:?}");
}

/// Inspects the gateway's jail as root: it also holds for an attacker who runs code in the gateway.
fn gateway_is_jailed(fixture: &Fixture) {
    let code = "s = socket.create_connection(('good.example', 5432)); s.recv(10); sys.stdin.read()";
    let mut child = fixture.command("--allow good.example:5432", code);
    let mut child = child.stdin(std::process::Stdio::piped()).spawn().unwrap();
    fixture.until(|said| said["connected"] == "93.184.216.34");
    let gateway = crate::fixture::gateways()[0].as_raw_nonzero();
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{gateway}/{name}")).unwrap();
    let (status, limits) = (read("status"), read("limits"));
    drop(child.stdin.take());
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for (name, expected) in [("Seccomp", "2"), ("NoNewPrivs", "1"), ("Threads", "1")] {
        assert_eq!(field(name), expected, "{name}: {status}");
    }
    for name in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(field(name), "0000000000000000", "{name}: {status}");
    }
    let is_administrator = std::fs::read_to_string("/proc/self/uid_map").unwrap().contains("4294967295")
        && rustix::process::geteuid().is_root();
    if is_administrator {
        assert_eq!(field("CapBnd"), "0000000000000000", "{status}");
        assert_eq!(field("Groups"), "", "{status}");
        let ids = field("Uid");
        let ids: Vec<u32> = ids.split(' ').map(|id| id.parse().unwrap()).collect();
        assert!(ids.iter().all(|&id| id == ids[0] && id >= 65_536), "{status}");
    }
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
    };
    for (name, expected) in [
        ("Max open files", "1024 1024"),
        ("Max processes", "0 0"),
        ("Max file size", "0 0"),
        ("Max core file size", "1 1"),
        ("Max data size", "134217728 134217728"),
    ] {
        assert_eq!(limit(name), expected, "{limits}");
    }
    // Its Landlock domain cannot be inspected, and the filter forbids opening files as well.
    assert!(child.wait().unwrap().success());
}

/// Queries the sandbox's resolver for several record types, and prints the answers.
const ASK: &str = "
def query(name, kind, extra=b'', count=1, stream=False):
    question = b''.join(bytes([len(label)]) + label.encode() for label in name.split('.')) + b'\\0' + struct.pack('>HH', kind, 1)
    message = struct.pack('>HHHHHH', 7, 0x0100, count, 0, 0, 1 if extra else 0) + question + extra
    if stream:
        with socket.create_connection(('198.18.0.1', 53), timeout=20) as s:
            s.sendall(struct.pack('>H', len(message)) + message)
            got = s.recv(2000)[2:]
    else:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.settimeout(20); s.connect(('198.18.0.1', 53)); s.send(message); got = s.recv(2000)
    return got[3] & 15, struct.unpack_from('>H', got, 6)[0], got
";

fn resolver_answers_only_address_queries(fixture: &Fixture) {
    let code = r"
for kind in [1, 28, 65, 16, 255, 5, 33]: print(kind, query('good.example', kind)[:2])
print(query('other.example', 1)[:2], query('GOOD.example', 1)[:2], query('good.example', 1, stream=True)[:2])
code, answers, said = query('other.example', 1, extra=b'\0\0\x29\x04\xd0\0\0\0\0\0\0')
print(code, answers, b'not allowed by the network policy' in said)
";
    let done = fixture.run("--allow good.example", &format!("{ASK}{code}"));
    let expected = "1 (0, 1)\n28 (0, 0)\n65 (0, 0)\n16 (0, 0)\n255 (0, 0)\n5 (0, 0)\n33 (0, 0)\n(3, 0) (0, 1) (0, 1)\n3 0 True\n";
    assert_eq!(done.stdout, expected);
    assert!(fixture.said().iter().all(|said| said["query"].is_null()));
}

fn invalid_input_does_not_end_the_gateway(fixture: &Fixture) {
    let code = r"
import random
random.seed(1)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.connect(('198.18.0.1', 53))
    for length in [0, 1, 11, 12, 13, 100, 1232, 4000]:
        for fill in [b'\0', b'\xff', b'\xc0', None]:
            try: s.send(random.randbytes(length) if fill is None else fill * length)
            except OSError: pass
for port in [80, 443, 53]:
    for some in [b'', b'\0' * 100, b'\x16\x03\x01\xff\xff', b'\x16\x03\x01\0\5\1\0\xff\xff\xff' * 4000, random.randbytes(100000), b'GET / HTTP/1.1\r\n' + b'A: b\r\n' * 20000]:
        ask(some, '198.18.0.1' if port == 53 else 'good.example', port)
print(get('good.example')[:15])
";
    let done = fixture.run("--allow good.example", &format!("{ASK}{code}"));
    assert_eq!(done.stdout, "HTTP/1.1 200 OK\n");
}

fn lying_or_hanging_resolver_gives_an_error(fixture: &Fixture) {
    let begin = Instant::now();
    let code = "print(get('silent.example')); print(get('liar.example')); print(get('nothing.example'))";
    let done = fixture.run("--allow silent.example --allow liar.example --allow nothing.example", code);
    assert_eq!(done.stdout.matches("HTTP/1.1 502").count(), 3, "{done:?}");
    assert!(done.stdout.contains("silent.example cannot be looked up: no answer in time"), "{done:?}");
    assert!(!done.stdout.contains("9.9.9.9"), "{done:?}");
    assert!(done.stdout.contains("nothing.example does not exist, says the machine's resolver"), "{done:?}");
    assert!(begin.elapsed().as_secs() < 25, "{:?}", begin.elapsed());
    assert!(!fixture.was_reached("93.184.216.34"));
    assert!(fixture.was_asked("silent.example"));
}

fn truncated_answer_is_detected(fixture: &Fixture) {
    let code = "
import http.client
c = http.client.HTTPConnection('good.example', timeout=20)
c.request('GET', '/cut')
try: print(len(c.getresponse().read()))
except (OSError, http.client.IncompleteRead) as error: print(type(error).__name__)
";
    let done = fixture.run("--allow good.example", code);
    assert!(["IncompleteRead\n", "ConnectionResetError\n"].contains(&done.stdout.as_str()), "{done:?}");
}

fn nothing_is_left_after_the_sandbox_ends(fixture: &Fixture) {
    fixture.run("--allow good.example", "print(get('good.example'))");
    assert_eq!(crate::fixture::gateways(), []);
}
