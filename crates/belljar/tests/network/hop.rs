//! N25 to N27: messages that the gateway passes on, where it adds something to them or checks them.

use belljar_http_hop::cases::{CASES as TABLE, Outcome};
use serde_json::{Value, json};

use crate::Case;
use crate::clients::cases;
use crate::fixture::{Done, Fixture};
use crate::home::Home;
use crate::secrets::{PRELUDE, requests};

cases![
    n27_requests_arrive_as_the_table_says,
    n25_reflecting_requests_are_refused,
    n25_rules_have_to_name_reflecting_methods,
    n26_secrets_are_redacted_in_every_part_of_an_answer,
    requests_of_other_forms_are_refused,
    reasons_for_failures_are_in_the_log_only,
];

/// Sends bytes to a host, and returns the answer to its end.
const RAW: &str = r"
import json
def raw(host, data):
    context = ssl.create_default_context()
    with context.wrap_socket(socket.create_connection((host, 443), timeout=20), server_hostname=host) as s:
        s.sendall(data)
        got = b''
        while (some := s.recv(65536)): got += some
        return got.decode()
";

const SPEC: &str = r#"[network]
allow = ["good.example", "http2.example"]
[network.secrets]
KEY = { host = "good.example", header = "Authorization", value = "s3cret+value" }
HTTP_2 = { host = "http2.example", header = "authorization", value = "s3cret+value" }
[[network.headers]]
host = "good.example"
header = "x-team"
value = "agents"
"#;

fn run(fixture: &Fixture, wall: &str, spec: &str, code: &str) -> Done {
    let dir = fixture.dir();
    fixture.policy(&format!("ca_file = \"{}\"", dir.join("ca.pem").display()));
    std::fs::write(dir.join("spec.toml"), spec).unwrap();
    fixture.run_without(wall, "--spec spec.toml", &format!("{PRELUDE}\n{RAW}\n{code}"))
}

/// Returns the headers of a request as they arrived, in order.
fn lines(request: &Value) -> Vec<String> {
    let lines = request["lines"].as_array().unwrap().iter().map(|line| {
        let (name, value) = line.as_str().unwrap().split_once(": ").unwrap();
        format!("{}: {value}", name.to_lowercase())
    });
    let mut lines: Vec<String> = lines.filter(|line| line != "host: good.example").collect();
    lines.sort();
    lines
}

fn n27_requests_arrive_as_the_table_says(fixture: &Fixture) {
    let texts = TABLE.iter().map(|case| {
        let head: String = case.headers.iter().map(|line| format!("{line}\r\n")).collect();
        let target = case.target;
        format!("{target} HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\n{head}\r\n{}", case.body)
    });
    let texts = Value::from(json!(texts.collect::<Vec<_>>()).to_string());
    let code = format!(
        "print([int(raw('good.example', text.encode()).split()[1]) for text in json.loads({texts})])"
    );
    let done = run(fixture, "", SPEC, &code);
    let statuses: Vec<u16> = serde_json::from_str(&done.stdout).unwrap();
    let mut arrived = requests(fixture).into_iter();
    for (case, status) in TABLE.iter().zip(statuses) {
        match case.gateway {
            Outcome::Refused => assert!([400, 403].contains(&status), "{}: {status}", case.name),
            Outcome::Arrives(expected) => {
                let mut expected = expected.to_vec();
                expected.sort_unstable();
                assert_eq!(status, 200, "{}", case.name);
                assert_eq!(lines(&arrived.next().unwrap()), expected, "{}", case.name);
            }
        }
    }
    assert_eq!(arrived.next(), None);
    // Without the rewriting the header that is set has a shadow, and can be removed at the next hop.
    let code = r"raw('good.example', b'GET / HTTP/1.1\r\nHost: good.example\r\nX_Team: admins\r\nConnection: close, X-Team\r\n\r\n')";
    run(fixture, "gateway-hop", SPEC, code);
    let without = lines(requests(fixture).last().unwrap());
    for line in ["x_team: admins", "connection: close, X-Team"] {
        assert!(without.iter().any(|arrived| arrived == line), "{line}: {without:?}");
    }
}

fn n25_reflecting_requests_are_refused(fixture: &Fixture) {
    let code = r"
import subprocess
for host in ['good.example', 'http2.example']:
    for words in [['-X', 'TRACE'], ['-X', 'TRACK'], ['-X', 'OPTIONS', '-H', 'Max-Forwards: 0']]:
        words = ['curl', '-s', '--http2', '-o', '/dev/null', '-w', '%{http_version} %{http_code}\n', *words, f'https://{host}/']
        print(subprocess.run(words, capture_output=True, text=True).stdout, end='')
";
    let done = run(fixture, "", SPEC, code);
    assert_eq!(done.stdout, format!("{}{}", "1.1 403\n".repeat(3), "2 403\n".repeat(3)));
    assert_eq!(requests(fixture), Vec::<Value>::new());
    let done = run(fixture, "gateway-hop", SPEC, code);
    assert_eq!(done.stdout, format!("{}{}", "1.1 200\n".repeat(3), "2 200\n".repeat(3)));
    let methods: Vec<Value> = requests(fixture).iter().map(|request| request["method"].clone()).collect();
    assert_eq!(methods, ["TRACE", "TRACK", "OPTIONS", "TRACE", "TRACK", "OPTIONS"]);
}

fn n25_rules_have_to_name_reflecting_methods(fixture: &Fixture) {
    let spec = |rules: &str| {
        format!("[network]\nallow = ['good.example']\nrequests = {{ 'good.example' = {rules} }}\n")
    };
    let code = r"
for method, more in [('TRACE', ''), ('TRACK', ''), ('OPTIONS', 'Max-Forwards: 0\r\n'), ('GET', 'X_HTTP_Method_Override: PUT\r\n'), ('OPTIONS', '')]:
    text = f'{method} /a HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\n{more}\r\n'.encode()
    print(raw('good.example', text).split()[1], ask(text, 'good.example').split()[1], end=' ')
";
    let done = run(fixture, "", &spec("['* /*']"), code);
    assert_eq!(done.stdout, "403 403 403 403 403 403 403 403 200 200 ");
    assert_eq!(requests(fixture).len(), 1);
    let done = run(fixture, "", &spec("['TRACE /a', 'OPTIONS /a']"), code);
    assert_eq!(done.stdout, "200 200 403 403 200 200 403 403 200 200 ");
}

fn n26_secrets_are_redacted_in_every_part_of_an_answer(fixture: &Fixture) {
    let code = r"
import subprocess
KEY, HTTP_2 = os.environ['KEY'], os.environ['HTTP_2']
head = f'GET /parts HTTP/1.1\r\nHost: good.example\r\nAuthorization: Bearer {KEY}\r\nTE: trailers\r\nConnection: close, TE\r\n\r\n'
print(raw('good.example', head.encode()))
words = ['curl', '-s', '-i', '--http2', '-H', 'TE: trailers', '-H', f'Authorization: Bearer {HTTP_2}', 'https://http2.example/parts']
print(subprocess.run(words, capture_output=True, text=True).stdout)
";
    let shown = |done: &Done| {
        // Parts of each form that no other value has.
        ["s3cret", "S3CRET", "%73%33", "czNjcmV0", "MzY3JldC", "czY3JldC", "in a name"]
            .map(|form| done.stdout.matches(form).count())
    };
    let done = run(fixture, "", SPEC, code);
    assert_eq!(shown(&done), [0; 7], "{done:?}");
    assert!(done.stdout.starts_with("HTTP/1.1 200 OK\r\n"), "{done:?}");
    // Six forms in headers and in trailers, and five over HTTP/2.
    let counts =
        ["belljar-secret-KEY", "belljar-secret-HTTP_2"].map(|shown| done.stdout.matches(shown).count());
    assert_eq!(counts, [12, 10], "{done:?}");
    assert_eq!(done.stdout.to_lowercase().matches("x-trailer: ").count(), 11, "{done:?}");
    let done = run(fixture, "gateway-redact", SPEC, code);
    let counts = shown(&done);
    assert!(counts[0] >= 7 && counts[2] >= 2 && counts[6] == 2, "{counts:?} {done:?}");
}

fn requests_of_other_forms_are_refused(fixture: &Fixture) {
    let code = r"
for text in ['GET / HTTP/1.0\r\n', 'GET http://good.example/ HTTP/1.0\r\n', 'GET / HTTP/1.1\r\nHost: good.example:+443\r\n',
        'GET / HTTP/1.1\r\nHost: good.example:0443\r\n', 'GET / HTTP/1.0\r\nHost: good.example:443\r\n']:
    print(raw('good.example', (text + 'Connection: close\r\n\r\n').encode()).split()[1], end=' ')
print(raw('good.example', b'GET /switch HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\n\r\n').split()[1])
print(ask(b'GET / HTTP/1.0\r\n\r\n', 'good.example').split()[1])
";
    let done = run(fixture, "", SPEC, code);
    assert_eq!(done.stdout, "403 403 403 403 200 502\n403\n");
    let paths: Vec<Value> = requests(fixture).iter().map(|request| request["path"].clone()).collect();
    assert_eq!(paths, ["/", "/switch"]);
    assert!(fixture.said().iter().all(|said| said["port"] != 80), "{:?}", fixture.said());
}

fn reasons_for_failures_are_in_the_log_only(fixture: &Fixture) {
    let home = Home::configured("[server]\nlinger = '1s'\n[sandboxes.network]\nresolvers = ['9.9.9.9:53']\n");
    let id = home.create("--net open");
    let code = "
for host in ['private.example', 'machine.example', 'silent.example', 'nobody.example']: print(get(host).splitlines()[-1])
";
    let code = format!("{}\n{code}", crate::fixture::PRELUDE);
    let shown = home.run_args(&["sandbox", "exec", &id, "--", "python3", "-c", &code]).good();
    let reasons: Vec<&str> = shown.lines().collect();
    let not_public =
        "resolves to an address that is not public; only the operator's configuration can make an exception";
    for (reason, expected) in reasons.iter().zip([
        format!("private.example {not_public}"),
        format!("machine.example {not_public}"),
        "silent.example cannot be looked up: no answer in time".to_owned(),
    ]) {
        assert_eq!(*reason, format!("the gateway cannot reach it: {expected}"));
    }
    let log = home.good(&format!("sandbox net {id} log"));
    for detail in ["10.1.2.3:80 is denied", "93.184.200.1 is denied", "the resolver 9.9.9.9:53"] {
        assert!(log.contains(detail) && !shown.contains(detail), "{detail}: {log}");
    }
    assert!(!fixture.was_reached("10.1.2.3") && !fixture.was_reached("93.184.200.1"));
    home.good("sandbox kill --all");
}
