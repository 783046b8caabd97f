//! N23: secrets that code in a sandbox uses and never has.

use std::io::{Read as _, Write as _};

use serde_json::{Value, json};

use crate::Case;
use crate::clients::cases;
use crate::fixture::{Done, Fixture};
use crate::home::Home;
use crate::service::address;

cases![
    n23_secret_reaches_only_its_host_and_header,
    n12_request_for_another_host_is_refused,
    n23_secret_is_bound_to_one_host,
    n23_impostor_gets_no_secret,
    n23_echoed_secret_is_redacted,
    n23_secret_is_nowhere_in_the_sandbox,
    requests_are_restricted_by_rules,
    clients_trust_the_gateway,
    http_2_stays_http_2,
    protocol_upgrades_work_within_tls,
    n23_server_does_not_reveal_secrets,
    flags_set_request_rules_and_secrets,
    service_flags_set_request_rules_and_secrets,
];

pub(crate) const PRELUDE: &str = r#"
import http.client
def https(host, path='/', body=None, **headers):
    """The status of an answer and what it echoes, or the error's name."""
    connection = http.client.HTTPSConnection(host, timeout=20)
    try:
        connection.request('POST' if body else 'GET', path, body, {name.replace('_', '-'): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.getheader('X-Echo')
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
"#;

const VARIABLES: &str = "KEY, OTHER = os.environ['KEY'], os.environ['OTHER']";

/// Runs a program with two secrets for two hosts.
fn run(fixture: &Fixture, wall: &str, code: &str) -> Done {
    let dir = fixture.dir();
    std::fs::write(dir.join("other.secret"), "0ther-value\n").unwrap();
    let spec = format!(
        r#"[network]
allow = ["good.example", "other.example", "impostor.example", "http2.example"]
[network.secrets]
KEY = {{ host = "good.example", header = "Authorization", value = "s3cret-value" }}
OTHER = {{ host = "other.example", header = "authorization", file = "{}" }}
HTTP_2 = {{ host = "http2.example", header = "authorization", value = "s3cret-of-2" }}
IMPOSTOR = {{ host = "impostor.example", header = "authorization", value = "1mpostor-value" }}
"#,
        dir.join("other.secret").display()
    );
    run_under(fixture, wall, &spec, &format!("{VARIABLES}\n{code}"))
}

/// Runs a program under a policy that has requests read.
fn run_under(fixture: &Fixture, wall: &str, spec: &str, code: &str) -> Done {
    let dir = fixture.dir();
    fixture.policy(&format!("ca_file = \"{}\"", dir.join("ca.pem").display()));
    std::fs::write(dir.join("spec.toml"), spec).unwrap();
    fixture.run_without(wall, "--spec spec.toml", &format!("{PRELUDE}\n{code}"))
}

/// Returns the requests that the simulated hosts received over TLS.
pub(crate) fn requests(fixture: &Fixture) -> Vec<Value> {
    fixture.said().into_iter().filter(|said| said["asked"].is_string()).collect()
}

fn n23_secret_reaches_only_its_host_and_header(fixture: &Fixture) {
    let code = "
print(KEY, OTHER)
print(https('good.example', Authorization='Bearer ' + KEY))
print(https('good.example', '/?' + KEY, body=KEY, X_Other=KEY, Cookie=KEY)[0])
import base64
print(https('good.example', Authorization='Basic ' + base64.b64encode(('me:' + KEY).encode()).decode())[0])
";
    let done = run(fixture, "", code);
    let expected = "belljar-secret-KEY belljar-secret-OTHER\n(200, 'Bearer belljar-secret-KEY')\n200\n200\n";
    assert_eq!(done.stdout, expected, "{done:?}");
    let requests = requests(fixture);
    assert_eq!(requests[0]["headers"]["authorization"], "Bearer s3cret-value");
    let elsewhere = requests[1].to_string();
    assert!(elsewhere.contains("belljar-secret-KEY") && !elsewhere.contains("s3cret"), "{elsewhere}");
    assert_eq!(requests[2]["headers"]["authorization"], "Basic bWU6czNjcmV0LXZhbHVl");
}

fn n12_request_for_another_host_is_refused(fixture: &Fixture) {
    let code = "
print(https('good.example', Host='other.example')[0], https('good.example', 'https://other.example/')[0])
print(https('good.example', Host='good.example:443')[0])
";
    assert_eq!(run(fixture, "", code).stdout, "403 403\n200\n");
    assert_eq!(requests(fixture).len(), 1);
}

fn n23_secret_is_bound_to_one_host(fixture: &Fixture) {
    // Like a redirect that a client follows with all its headers.
    let code =
        "print([https(host, Authorization=KEY + ' ' + OTHER) for host in ['other.example', 'good.example']])";
    let echo = "(200, 'belljar-secret-KEY belljar-secret-OTHER')";
    assert_eq!(run(fixture, "", code).stdout, format!("[{echo}, {echo}]\n"));
    let values: Vec<Value> =
        requests(fixture).iter().map(|one| one["headers"]["authorization"].clone()).collect();
    assert_eq!(values, ["belljar-secret-KEY 0ther-value", "s3cret-value belljar-secret-OTHER"]);
    run(fixture, "gateway-secret-host", code);
    assert_eq!(requests(fixture)[2]["headers"]["authorization"], "s3cret-value 0ther-value");
}

fn n23_impostor_gets_no_secret(fixture: &Fixture) {
    let code = "print(https('impostor.example', Authorization=os.environ['IMPOSTOR']))";
    assert_eq!(run(fixture, "", code).stdout, "(502, None)\n");
    // The program gets the reason.
    let done = run(
        fixture,
        "",
        "import subprocess; print(subprocess.run(['curl', '-s', 'https://impostor.example'], capture_output=True, text=True).stdout)",
    );
    assert!(done.stdout.contains("impostor.example is not trusted over TLS: "), "{done:?}");
    assert!(requests(fixture).is_empty(), "{:?}", requests(fixture));
    run(fixture, "gateway-verify", code);
    assert_eq!(requests(fixture)[0]["headers"]["authorization"], "1mpostor-value");
}

fn n23_echoed_secret_is_redacted(fixture: &Fixture) {
    let code = "print(https('good.example', Authorization=KEY))";
    assert_eq!(run(fixture, "", code).stdout, "(200, 'belljar-secret-KEY')\n");
    assert_eq!(run(fixture, "gateway-redact", code).stdout, "(200, 's3cret-value')\n");
}

fn n23_secret_is_nowhere_in_the_sandbox(fixture: &Fixture) {
    let code = r#"
https('good.example', Authorization=KEY)
import glob, subprocess
found = []
for path in glob.glob('/proc/*/environ') + glob.glob('/proc/*/cmdline') + glob.glob('/dev/belljar/*') + glob.glob('/etc/*'):
    try: text = open(path, 'rb').read()
    except OSError: continue
    found += [path for word in [b's3cret-value', b'0ther-value', b'PRIVATE KEY'] if word in text]
print(found)
print(subprocess.run(['openssl', 'x509', '-noout', '-ext', 'nameConstraints,basicConstraints', '-in', '/dev/belljar/ca.pem'], capture_output=True, text=True).stdout)
"#;
    let done = run(fixture, "", code);
    assert!(done.stdout.starts_with("[]\n"), "{done:?}");
    for text in ["DNS:good.example", "DNS:other.example", "DNS:impostor.example", "CA:TRUE, pathlen:0"] {
        assert!(done.stdout.contains(text), "{text}: {done:?}");
    }
}

fn requests_are_restricted_by_rules(fixture: &Fixture) {
    let spec = r#"[network]
allow = ["good.example:*", "other.example"]
requests = { "good.example" = ["GET /v1/*"] }
"#;
    let code = r"
paths = '/v1/a', '/v2', '/v1/../v2', '/v1/%2e%2e/v2'
print([https('good.example', path)[0] for path in paths], https('good.example', '/v1/a', 'body')[0])
print([get('good.example', path)[:12] for path in paths[:2]], talk('good.example'), get('other.example', '/v2')[:12])
print(get('good.example', '/v2').splitlines()[-1])
";
    let done = run_under(fixture, "", spec, code);
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert_eq!(lines[0], "[200, 403, 403, 403] 403", "{done:?}");
    assert_eq!(lines[1], "['HTTP/1.1 200', 'HTTP/1.1 403'] ConnectionResetError HTTP/1.1 200", "{done:?}");
    assert_eq!(
        lines[2],
        "GET /v2 is not allowed at good.example: allowed are GET /v1/*; ask whoever created the sandbox to allow it"
    );
    let done = run_under(fixture, "gateway-requests", spec, code);
    assert!(done.stdout.starts_with("[200, 200, 200, 200] 200\n"), "{done:?}");
}

fn clients_trust_the_gateway(fixture: &Fixture) {
    let code = r#"
import subprocess
def said(*words): return subprocess.run(words, capture_output=True, text=True).stdout
print(said('curl', '-s', '-H', 'Authorization: ' + KEY, 'https://good.example/'))
print(said('node', '-e', "fetch('https://good.example/', {headers: {authorization: process.env.KEY}}).then(r => r.text()).then(console.log)"))
"#;
    let done = run(fixture, "", code);
    assert_eq!(done.stdout.matches("hello from 93.184.216.34 as good.example").count(), 2, "{done:?}");
    assert!(requests(fixture).iter().all(|one| one["headers"]["authorization"] == "s3cret-value"));
    // Programs that read no variable, but the system's stores.
    let code = r#"
import subprocess
def said(*words): return subprocess.run(words, capture_output=True, text=True)
own = open('/dev/belljar/ca.pem', 'rb').read()
for store, part in (('/etc/ssl/certs/ca-certificates.crt', own), ('/etc/ssl/certs/java/cacerts', b'Belljar')):
    print(os.path.exists(store) and part in open(store, 'rb').read())
print(said('env', '-u', 'SSL_CERT_FILE', '-u', 'CURL_CA_BUNDLE', 'curl', '-s', '-H', 'Authorization: ' + KEY, 'https://good.example/').stdout)
open('Get.java', 'w').write("""
import java.net.URI;
import java.net.http.*;
public class Get {
    public static void main(String[] a) throws Exception {
        var request = HttpRequest.newBuilder(URI.create("https://good.example/")).header("authorization", System.getenv("KEY")).build();
        System.out.println(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body());
    }
}
""")
print(said('java', 'Get.java') if os.path.exists('/usr/bin/java') else 'no java')
"#;
    let done = run(fixture, "", code);
    let has = |file: &str| std::path::Path::new(file).is_file();
    let (bundle, java) = (has("/etc/ssl/certs/ca-certificates.crt"), has("/etc/ssl/certs/java/cacerts"));
    let shown = |is_there| if is_there { "True" } else { "False" };
    assert!(done.stdout.starts_with(&format!("{}\n{}\n", shown(bundle), shown(java))), "{done:?}");
    let expected = usize::from(bundle) + usize::from(java && has("/usr/bin/java"));
    assert_eq!(done.stdout.matches("hello from 93.184.216.34 as good.example").count(), expected, "{done:?}");
}

fn http_2_stays_http_2(fixture: &Fixture) {
    let code = r#"
import subprocess
def curl(*words):
    words = ['curl', '-s', '--http2', '-w', '%{http_version} %{http_code} %header{x-echo}\\n', '-H', 'Authorization: ' + os.environ['HTTP_2'], *words]
    print(subprocess.run(words, capture_output=True, text=True).stdout, end='')
curl('https://http2.example/a', 'https://http2.example/b')
curl('-H', 'Host: good.example', '-o', '/dev/null', 'https://http2.example/c')
"#;
    let done = run(fixture, "", code);
    let good = "hello over 2\n2 200 belljar-secret-HTTP_2\n";
    assert_eq!(done.stdout, format!("{good}{good}2 403 \n"), "{done:?}");
    let values: Vec<Value> =
        requests(fixture).iter().map(|one| one["headers"]["authorization"].clone()).collect();
    assert_eq!(values, ["s3cret-of-2", "s3cret-of-2"]);
    let connections = fixture.said().iter().filter(|said| said["connected"] == "93.184.216.60").count();
    assert_eq!(connections, 2, "one for each run of curl");
}

fn protocol_upgrades_work_within_tls(fixture: &Fixture) {
    let code = r"
context = ssl.create_default_context()
with context.wrap_socket(socket.create_connection(('good.example', 443), timeout=20), server_hostname='good.example') as s:
    s.sendall(b'GET / HTTP/1.1\r\nHost: good.example\r\nConnection: upgrade\r\nUpgrade: websocket\r\nAuthorization: ' + KEY.encode() + b'\r\n\r\n')
    head = b''
    while b'\r\n\r\n' not in head: head += s.recv(1000)
    print(head.split(b'\r\n')[0].decode())
    s.sendall(b'over and over')
    print(s.recv(100).decode())
";
    assert_eq!(run(fixture, "", code).stdout, "HTTP/1.1 101 Switching Protocols\nover and over\n");
    assert_eq!(requests(fixture)[0]["headers"]["authorization"], "s3cret-value");
}

/// Sends a request with a key to a server, and returns the response's status and body.
pub(crate) fn rest(said: &str, key: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let address = address(said);
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let body = body.to_string();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
}

fn n23_server_does_not_reveal_secrets(fixture: &Fixture) {
    let home = Home::configured(&format!(
        "[server]\nlinger = '1s'\n[sandboxes.network]\nresolvers = ['9.9.9.9:53']\nca_file = '{}'\n",
        fixture.dir().join("ca.pem").display()
    ));
    let (server, said) = home.serve(&[]);
    let key = home.json("key create")["key"].as_str().unwrap().to_owned();
    let policy = |value: Value, host: &str| {
        let secret = json!({"host": host, "header": "authorization", "value": value});
        json!({"network": {"allow": ["good.example", "other.example"], "secrets": {"KEY": secret}}})
    };
    let create = |body: &Value| rest(&said, &key, "POST", "/v1/sandboxes", body);
    let (status, made) = create(&policy(json!("s3cret-value"), "good.example"));
    assert_eq!(status, 201, "{made}");
    let shown = json!({"KEY": {"host": "good.example", "header": "authorization"}});
    assert_eq!(made["network"]["secrets"], shown);
    let id = made["id"].as_str().unwrap();
    let used = || {
        let code = format!("{}\n{PRELUDE}\nKEY = os.environ['KEY']", crate::fixture::PRELUDE);
        let code = format!("{code}\nprint(https('good.example', Authorization=KEY))");
        home.run_args(&["sandbox", "exec", id, "--", "python3", "-c", &code]).good()
    };
    assert_eq!(used(), "(200, 'belljar-secret-KEY')\n");
    assert_eq!(requests(fixture)[0]["headers"]["authorization"], "s3cret-value");
    // Interpreter contexts have the same variables, even in pre-warmed interpreters.
    let in_context = "import os; print(os.environ['KEY'], os.environ['SSL_CERT_FILE'])";
    let shown = home.feed(&format!("code --sandbox {id}"), in_context.as_bytes()).good();
    assert!(shown.contains("belljar-secret-KEY /dev/belljar/ca-bundle.pem"), "{shown}");
    // Its value can be changed, and its host cannot.
    let path = format!("/v1/sandboxes/{id}");
    let change = |body: &Value| rest(&said, &key, "PATCH", &path, body);
    assert_eq!(change(&policy(json!("s3cret-later"), "good.example")).0, 200);
    used();
    assert_eq!(requests(fixture)[1]["headers"]["authorization"], "s3cret-later");
    // As it is shown, without its value, it keeps that, for its own host alone.
    assert_eq!(change(&policy(json!(null), "good.example")).0, 200);
    used();
    assert_eq!(requests(fixture)[2]["headers"]["authorization"], "s3cret-later");
    for bad in [policy(json!("s3cret-value"), "other.example"), policy(json!(null), "other.example")] {
        let (status, problem) = change(&bad);
        assert!(status == 400 && problem["detail"].to_string().contains("KEY"), "{problem}");
    }
    // The secret is in no response, file or log.
    let texts =
        [&format!("sandbox info {id} --format json"), &format!("sandbox net {id} log"), "audit tail -n 100"];
    let texts: Vec<String> = texts.iter().map(|line| home.good(line)).collect();
    assert!(texts.iter().all(|text| !text.contains("s3cret")), "{texts:?}");
    let mut left = vec![home.dir.path().to_owned()];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.is_file() {
            let content = std::fs::read(&path).unwrap();
            assert!(!content.windows(6).any(|part| part == b"s3cret"), "{}", path.display());
        }
    }
    home.good("sandbox kill --all");
    crate::home::stop(server);
}

/// Invalid flags, some with a value given by mistake.
const INVALID: [&str; 6] = [
    "KEY=s3cret",
    "KEY=good.example:s3cret-header:s3cret",
    "KEY=good.example:authorization:value=s3cret",
    "s3cret",
    "=good.example:authorization:file=s3cret",
    "KEY=good.example:authorization:env=",
];

fn flags_set_request_rules_and_secrets(fixture: &Fixture) {
    fixture.policy(&format!("ca_file = \"{}\"", fixture.dir().join("ca.pem").display()));
    std::fs::write(fixture.dir().join("key:1"), "s3cret-value\n").unwrap();
    let run = |flags: &[&str], code: &str| {
        let code = format!("{}\n{PRELUDE}\n{code}", crate::fixture::PRELUDE);
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_belljar"));
        command.args(["run", "--policy", "policy.toml", "--allow", "*.example", "--secret"]).args(flags);
        command.args(["-c", &code]).current_dir(fixture.dir()).env("OTHER", "0ther-value").env_remove("KEY");
        command.output().unwrap()
    };
    let flags = ["KEY=good.example:Authorization:file=key:1", "--secret", "OTHER=other.example:x-key"];
    let rules = ["--request", "good.example=GET /v1/*", "--request", "good.example=* /status"];
    let code = "
KEY, OTHER = os.environ['KEY'], os.environ['OTHER']
print([https('good.example', path, Authorization=KEY)[0] for path in ['/v1/a', '/status', '/v2']])
print(https('other.example', '/v2', X_Key=OTHER)[0])
";
    let done = run(&[&flags[..], &rules].concat(), code);
    assert_eq!(String::from_utf8_lossy(&done.stdout), "[200, 200, 403]\n200\n", "{done:?}");
    let requests = requests(fixture);
    assert_eq!(requests[0]["headers"]["authorization"], "s3cret-value");
    assert_eq!(requests[2]["headers"]["x-key"], "0ther-value");
    for wrong in INVALID {
        let done = run(&[wrong], "");
        let text = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.code() == Some(2) && text.contains("network.secrets"), "{wrong}: {done:?}");
        assert!(!text.contains("s3cret"), "{text}");
    }
    let done = run(&["KEY=good.example:authorization"], "");
    assert!(String::from_utf8_lossy(&done.stderr).contains("the variable KEY is not set"), "{done:?}");
}

fn service_flags_set_request_rules_and_secrets(fixture: &Fixture) {
    let home = Home::configured(&format!(
        "[server]\nlinger = '1s'\n[sandboxes.network]\nresolvers = ['9.9.9.9:53']\nca_file = '{}'\n",
        fixture.dir().join("ca.pem").display()
    ));
    home.write("key", "s3cret-value\n");
    let create = ["sandbox", "create", "-q", "--allow", "good.example"];
    let flags =
        ["--secret", "KEY=good.example:authorization:file=key", "--request", "good.example=GET /v1/*"];
    let id = home.run_args(&[&create[..], &flags].concat()).good();
    let id = id.trim();
    let code = format!("{}\n{PRELUDE}", crate::fixture::PRELUDE);
    let code = format!(
        "{code}\nprint([https('good.example', path, Authorization=os.environ['KEY'])[0] for path in ['/v1/a', '/v2']])"
    );
    let ask = || home.run_args(&["sandbox", "exec", id, "--", "python3", "-c", &code]).good();
    assert_eq!(ask(), "[200, 403]\n");
    let shown = home.good(&format!("sandbox net {id} get"));
    for text in ["request  good.example=GET /v1/*", "secret   KEY=good.example:authorization"] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    // Another policy: without the secret, and with other rules.
    let set = ["sandbox", "net", id, "set", "--allow", "good.example", "--request", "good.example=* /v2"];
    home.run_args(&set).good();
    assert_eq!(ask(), "[403, 200]\n");
    let policy = json!({"mode": "whitelist", "allow": ["good.example"], "requests": {"good.example": {"rules": ["* /v2"]}}});
    assert_eq!(home.json(&format!("sandbox net {id} get")), policy);
    let values: Vec<Value> =
        requests(fixture).iter().map(|one| one["headers"]["authorization"].clone()).collect();
    assert_eq!(values, ["s3cret-value", "belljar-secret-KEY"]);
    for wrong in INVALID {
        let done = home.run_args(&[&create[..], &["--secret", wrong]].concat());
        assert!(!done.stderr.contains("s3cret"), "{wrong}: {}", done.stderr);
        done.refused(2, &["network.secrets"]);
    }
}
