//! Connections that a policy allows.

use crate::Case;
use crate::fixture::Fixture;

macro_rules! cases {
    ($($case:ident,)*) => { pub(crate) const CASES: &[Case] = &[$((stringify!($case), $case as fn(&Fixture)),)*]; };
}
pub(crate) use cases;

cases![
    allowed_name_is_reached,
    any_tcp_protocol_is_allowed_by_name,
    tls_connects_to_the_requested_name,
    git_and_curl_work,
    mode_open_reaches_public_addresses,
    range_allows_its_addresses,
    operator_exception_allows_private_addresses,
    denied_addresses_are_explained_after_a_run,
    failed_connections_are_explained_after_a_run,
    connections_transfer_much_data,
    keep_alive_and_protocol_upgrade_work,
    truncated_dns_answer_is_retried_over_tcp,
    next_address_is_tried_after_a_failure,
    mode_disabled_has_no_network,
    connections_use_the_operators_proxy,
    proxy_can_resolve_names,
    proxy_refusal_is_reported,
    documented_commands_work,
];

fn allowed_name_is_reached(fixture: &Fixture) {
    let done = fixture.run("--allow good.example", "print(get('good.example', '/a?b'))");
    assert!(
        done.stdout.contains("hello from 93.184.216.34 to good.example for /a?b with 0 bytes"),
        "{done:?}"
    );
    assert!(done.stdout.contains("X-Case-Kept: yes"), "{done:?}");
    let done = fixture.run("--allow *.good.example:80", "print(get('sub.good.example'))");
    assert!(done.stdout.contains("hello from 93.184.216.36"), "{done:?}");
}

fn any_tcp_protocol_is_allowed_by_name(fixture: &Fixture) {
    let done = fixture.run("--allow good.example:5432", "print(talk('good.example'))");
    assert_eq!(done.stdout, "banner\nhellothe end\n\n");
}

fn tls_connects_to_the_requested_name(fixture: &Fixture) {
    let done = fixture.run("--allow good.example:443", "print(tls('good.example'))");
    assert!(done.stdout.contains("hello from 93.184.216.34 as good.example"), "{done:?}");
}

fn git_and_curl_work(fixture: &Fixture) {
    let code = "git -c http.sslCAInfo=$PWD/ca.pem ls-remote https://good.example/tiny.git main
curl -s --cacert ca.pem https://good.example/a
curl -sS --cacert ca.pem https://other.example/ 2>&1 | grep -c 'access denied'; exit 0";
    let done =
        fixture.run_bash("--allow good.example --deny other.example:443 --allow other.example:80", code);
    let lines: Vec<&str> = done.stdout.lines().collect();
    let expected = [
        format!("{}\trefs/heads/main", "1".repeat(40)),
        "hello from 93.184.216.34 as good.example".to_owned(),
        "1".to_owned(),
    ];
    assert_eq!(lines, expected, "{done:?}");
}

fn mode_open_reaches_public_addresses(fixture: &Fixture) {
    let code = "print(get('good.example')); print(talk('93.184.216.77')); print(get('93.184.216.34'))";
    let done = fixture.run("--net open", code);
    for expected in
        ["from 93.184.216.34 to good.example", "banner\nhello", "from 93.184.216.34 to 93.184.216.34"]
    {
        assert!(done.stdout.contains(expected), "{expected}: {done:?}");
    }
}

fn range_allows_its_addresses(fixture: &Fixture) {
    let done =
        fixture.run("--allow 93.184.216.0/24:5432", "print(talk('93.184.216.34'), talk('93.184.217.34'))");
    assert_eq!(done.stdout, "banner\nhellothe end\n ConnectionResetError\n");
    assert!(!fixture.was_reached("93.184.217.34"));
}

fn operator_exception_allows_private_addresses(fixture: &Fixture) {
    let (flags, code) = ("--allow private.example", "print(get('private.example'))");
    let done = fixture.run(flags, code);
    let reason =
        "private.example resolves to an address that is not public; only the operator's configuration";
    assert!(done.stdout.contains(reason) && done.stdout.contains("502"), "{done:?}");
    assert!(!done.stdout.contains("10.1.2"), "{done:?}");
    assert!(!fixture.was_reached("10.1.2.3"));
    fixture.policy("exceptions = [\"10.1.2.0/24\"]");
    let done = fixture.run(flags, code);
    assert!(done.stdout.contains("hello from 10.1.2.3"), "{done:?}");
    // In mode open too, by the name or by its range.
    for flags in ["--net open --allow private.example", "--net open --allow 10.1.2.3/32:80"] {
        let done = fixture.run(flags, code);
        assert!(done.stdout.contains("hello from 10.1.2.3"), "{flags}: {done:?}");
    }
    let done = fixture.run("--net open", code);
    let reason = "private.example resolves to an address that is not public; ask whoever created the sandbox to allow \
                  private.example:80";
    assert!(done.stdout.contains(reason), "{done:?}");
    // An exception is not a rule: what no policy allows stays unreachable.
    let done = fixture.run("--allow good.example", "print(talk('10.1.2.3'))");
    assert_eq!(done.stdout, "ConnectionResetError\n");
}

/// On port 443 the program learns nothing but an alert, so the reason is printed after the run.
fn denied_addresses_are_explained_after_a_run(fixture: &Fixture) {
    let begin = "belljar: hint: The network policy denied connections: ";
    let always = "as 10.0.0.0/8 is not public (private, RFC 1918); only the operator's configuration can make an exception \
                  (sandboxes.network.exceptions of a server, network.exceptions of a policy file)";
    let fails = |exceptions: &str, flags: &str, host: &str| {
        fixture.policy(exceptions);
        let output = fixture.command(flags, &format!("print(tls('{host}')); sys.exit(1)")).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stdout).contains("ACCESS_DENIED"), "{output:?}");
        let stderr = text(&output.stderr);
        stderr.split_once(begin).unwrap_or_else(|| panic!("{stderr}")).1.trim_end().to_owned()
    };
    let excepted = "exceptions = [\"10.1.2.0/24\"]";
    let lacks = "10.1.2.3:443 is not allowed by the network policy, which allows public hosts; allow it with --allow ";
    let denied = "10.1.2.3:443 is denied in every mode, ";
    for (exceptions, flags, host, hint) in [
        (
            "",
            "--net open",
            "10.1.2.3",
            format!("{denied}{always}, after which the policy has to allow 10.1.2.3/32:443."),
        ),
        ("", "--allow private.example", "private.example", format!("{denied}{always}.")),
        (excepted, "--net open", "10.1.2.3", format!("{lacks}10.1.2.3/32:443.")),
        (excepted, "--net open", "private.example", format!("{lacks}private.example:443.")),
    ] {
        assert_eq!(fails(exceptions, flags, host), hint, "{exceptions} {flags} {host}");
    }
}

/// A program that cannot reach a host over TLS sees a reset alone.
fn failed_connections_are_explained_after_a_run(fixture: &Fixture) {
    let code = "print(tls('nothing.example')); sys.exit(1)";
    let output = fixture.command("--allow nothing.example", code).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b"ConnectionResetError\n"[..]));
    let stderr = String::from_utf8_lossy(&output.stderr);
    let hint = "hint: Connections failed: nothing.example does not exist, says the machine's resolver.\n";
    assert!(stderr.ends_with(hint), "{stderr}");
}

fn connections_transfer_much_data(fixture: &Fixture) {
    let code = r"
import hashlib
data = os.urandom(1 << 20) * 24
with socket.create_connection(('good.example', 5432)) as s:
    assert s.recv(7) == b'banner\n'
    def send():
        s.sendall(data); s.shutdown(socket.SHUT_WR)
    threading.Thread(target=send).start()
    got = bytearray()
    while (some := s.recv(1 << 20)): got += some
print(bytes(got) == data + b'the end\n')
";
    assert_eq!(fixture.run("--allow good.example:5432", code).stdout, "True\n");
}

fn keep_alive_and_protocol_upgrade_work(fixture: &Fixture) {
    let code = r"
import http.client
c = http.client.HTTPConnection('good.example', timeout=20)
for path, body in [('/a', b''), ('/b', b'x' * 300000), ('/c', b'')]:
    c.request('POST', path, body)
    print(c.getresponse().read().decode().strip())
with socket.create_connection(('good.example', 80), timeout=20) as s:
    s.sendall(b'GET /switch HTTP/1.1\r\nHost: good.example\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n')
    head = b''
    while b'\r\n\r\n' not in head: head += s.recv(1000)
    print(head.split(b'\r\n')[0].decode())
    s.sendall(b'over and over')
    print(s.recv(100).decode())
";
    let done = fixture.run("--allow good.example:80", code);
    let expected = "hello from 93.184.216.34 to good.example for /a with 0 bytes\n\
                    hello from 93.184.216.34 to good.example for /b with 300000 bytes\n\
                    hello from 93.184.216.34 to good.example for /c with 0 bytes\n\
                    HTTP/1.1 101 Switching Protocols\nover and over\n";
    assert_eq!(done.stdout, expected);
    let connected = fixture.said().iter().filter(|said| said["connected"].is_string()).count();
    assert_eq!(connected, 2, "requests of one connection go over one");
}

fn truncated_dns_answer_is_retried_over_tcp(fixture: &Fixture) {
    let done = fixture.run("--allow long.example", "print(get('long.example'))");
    assert!(done.stdout.contains("to long.example"), "{done:?}");
    let queries = fixture.said().iter().filter(|said| said["query"] == "long.example").count();
    assert_eq!(queries, 2);
}

fn next_address_is_tried_after_a_failure(fixture: &Fixture) {
    let done = fixture.run("--allow mixed.example", "print(get('mixed.example'))");
    assert!(done.stdout.contains("hello from 93.184.216.34 to mixed.example"), "{done:?}");
    assert!(!fixture.was_reached("10.1.2.3"));
    let done = fixture.run("--allow good.example:7", "print(talk('good.example', 7))");
    assert_eq!(done.stdout, "ConnectionResetError\n", "nobody listens there");
}

fn mode_disabled_has_no_network(fixture: &Fixture) {
    let code = "print(get('good.example'), talk('93.184.216.34'), open('/etc/resolv.conf').read())";
    let done = fixture.run("", code);
    assert_eq!(done.stdout, "gaierror OSError # The network of this sandbox is disabled.\n\n");
}

/// Returns the targets that were requested from the proxies.
fn proxied(fixture: &Fixture) -> Vec<String> {
    let said = fixture.said().into_iter().filter_map(|said| said["proxied"].as_str().map(str::to_owned));
    said.collect()
}

const BOTH: [&str; 2] = ["http://me:hu%40sh@proxy.corp:3128", "socks5://me:hu%40sh@10.9.9.9:1080"];

fn connections_use_the_operators_proxy(fixture: &Fixture) {
    for proxy in BOTH {
        fixture.policy(&format!("proxy = \"{proxy}\""));
        let code = "
print(get('good.example')[:15], talk('good.example'), tls('good.example').split('\\n')[0].strip())
print(talk('10.9.9.9', 3128), talk('93.184.216.77'))
print(get('metadata.example')[:12])
";
        let flags = "--allow good.example:* --allow metadata.example --allow 93.184.216.77/32:5432";
        let done = fixture.run(flags, code);
        let expected = "HTTP/1.1 200 OK banner\nhellothe end\n HTTP/1.1 200 OK\n\
                        ConnectionResetError banner\nhellothe end\n\nHTTP/1.1 502\n";
        assert_eq!(done.stdout, expected, "{proxy}");
    }
    // The gateway checked the addresses; denied ones were never requested from a proxy.
    let once = ["93.184.216.34:80", "93.184.216.34:5432", "93.184.216.34:443", "93.184.216.77:5432"];
    assert_eq!(proxied(fixture), [once, once].concat());
    assert!(fixture.was_asked("good.example") && !fixture.was_reached("169.254.169.254"));
}

fn proxy_can_resolve_names(fixture: &Fixture) {
    for proxy in BOTH {
        fixture.policy(&format!("proxy = \"{proxy}\"\nproxy_resolves = true"));
        let code = "print(talk('good.example'), talk('other.example'), talk('93.184.216.77'))";
        let done =
            fixture.run("--allow *.example:5432 --deny other.example --allow 93.184.216.77/32:5432", code);
        assert_eq!(done.stdout, "banner\nhellothe end\n gaierror banner\nhellothe end\n\n", "{proxy}");
    }
    assert_eq!(proxied(fixture), ["good.example:5432", "93.184.216.77:5432"].repeat(2));
    assert!(!fixture.was_asked("good.example"));
}

fn proxy_refusal_is_reported(fixture: &Fixture) {
    let code = "print(get('good.example')); print(talk('good.example'))";
    for (proxy, expected) in [
        ("http://me:wrong@10.9.9.9:3128", "the operator's proxy: it wants a user name and a password"),
        ("socks5://me:wrong@10.9.9.9:1080", "the operator's proxy: it wants a user name and a password"),
        ("http://10.9.9.9:3129", "the operator's proxy: the connection to it broke"),
        ("http://nowhere.corp:3128", "the operator's proxy cannot be found\n"),
        ("socks5://10.9.9.9:5432", "the operator's proxy: it does not speak its protocol"),
    ] {
        fixture.policy(&format!("proxy = \"{proxy}\""));
        let done = fixture.run("--allow good.example:*", code);
        assert!(done.stdout.contains(expected) && done.stdout.contains("HTTP/1.1 502"), "{proxy}: {done:?}");
        assert!(
            done.stdout.ends_with("ConnectionResetError\n") && !done.stdout.contains("wrong"),
            "{done:?}"
        );
    }
    assert!(!fixture.was_reached("93.184.216.34"), "there is no way around it");
}

fn documented_commands_work(fixture: &Fixture) {
    let page = include_str!("../../../../docs/network.md");
    let commands: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("$ belljar run ")).collect();
    let outputs: Vec<String> = commands
        .iter()
        .map(|command| {
            let (words, code) = command.split_once("-l bash -c '").expect("a command in Bash");
            let code = code.split_once('\'').expect("its end").0;
            // The test's certificate, which readers of the page do not need.
            fixture.run_bash(words, &code.replace("curl ", "curl --cacert ca.pem ")).stdout
        })
        .collect();
    assert_eq!(outputs, ["", "HTTP/1.1 200 OK\r\n"]);
    assert!(fixture.was_reached("93.184.216.34"));
}
