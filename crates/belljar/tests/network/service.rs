//! The network of a long-lived sandbox: changes while it runs, and the log of decisions.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::Case;
use crate::clients::cases;
use crate::fixture::{DEADLINE, Fixture, PRELUDE, Tested, gateways};
use crate::home::Home;

cases![
    policy_changes_while_connections_are_open,
    failed_change_keeps_the_policy,
    every_decision_is_logged,
    policy_outlives_its_server,
    ceilings_bound_what_policies_reach,
    decisions_are_counted_and_recorded,
    dead_gateway_is_started_again,
    gateway_and_launcher_inherit_nothing,
    check_gateway_and_audit_agree,
    probe_compares_the_policy_with_what_programs_meet,
    documented_service_commands_work,
];

/// Kills the only gateway, and waits until it is gone.
pub(crate) fn kill_gateway() {
    let [gateway] = gateways()[..] else { panic!("{:?}", gateways()) };
    rustix::process::kill_process(gateway, rustix::process::Signal::KILL).unwrap();
    let begin = std::time::Instant::now();
    while gateways().contains(&gateway) {
        assert!(begin.elapsed() < DEADLINE, "it does not die");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Waits until there is a gateway, and returns it.
fn wait_for_gateway() -> rustix::process::Pid {
    let begin = std::time::Instant::now();
    loop {
        match gateways()[..] {
            [gateway] => return gateway,
            _ => assert!(begin.elapsed() < DEADLINE, "there is none"),
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn dead_gateway_is_started_again(fixture: &Fixture) {
    let home = home();
    let id = home.create("--allow good.example:5432");
    let both = "print(talk('good.example')[:6], talk('other.example')[:6])";
    assert_eq!(python(&home, &id, both), "banner gaierr\n");
    // Existing connections are lost; the next ones wait for the next gateway, which has the same policy.
    let code = "
s = socket.create_connection(('good.example', 5432)); s.recv(10)
print('ready', flush=True)
try: print(s.recv(10))
except OSError as error: print(type(error).__name__)
";
    let code = format!("{PRELUDE}\n{code}");
    let mut open = home.belljar(&["sandbox", "exec", &id, "--", "python3", "-c", &code]);
    let mut open = open.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(open.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    assert_eq!(lines.next().as_deref(), Some("ready"));
    kill_gateway();
    assert!(["ConnectionResetError", "b''"].contains(&lines.next().unwrap().as_str()));
    assert!(open.wait().unwrap().success());
    assert_eq!(python(&home, &id, both), "banner gaierr\n");
    // A change while there is none takes effect, and a gateway that dies during a pause is replaced too.
    kill_gateway();
    home.good(&format!("sandbox net {id} set --allow other.example:5432"));
    let other = "print(talk('other.example')[:6], talk('good.example')[:6])";
    assert_eq!(python(&home, &id, other), "banner gaierr\n");
    wait_for_gateway();
    home.good(&format!("sandbox pause {id}"));
    kill_gateway();
    home.good(&format!("sandbox resume {id}"));
    assert_eq!(python(&home, &id, other), "banner gaierr\n");
    // The log goes on with greater numbers, and says what happened.
    let log = home.good(&format!("sandbox net {id} log --format json"));
    let numbers: Vec<u64> = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["number"].as_u64().unwrap())
        .collect();
    assert!(numbers.is_sorted() && numbers[0] > 3 << 32, "{numbers:?}");
    assert!(home.good(&format!("sandbox logs {id}")).contains("gateway_restarted"));
    assert!(!fixture.was_reached("93.184.216.99"));
}

fn gateway_and_launcher_inherit_nothing(_: &Fixture) {
    let home = home();
    // As a shell's pipe would be: not closed when a program is started.
    let (inherited, _other) = rustix::pipe::pipe().unwrap();
    let inherited = std::fs::read_link(format!("/proc/self/fd/{}", inherited.as_raw_fd())).unwrap();
    let (server, _) = home.serve(&[]);
    let id = home.create("--allow good.example:5432");
    let descriptors = |pid: i32| -> Vec<std::path::PathBuf> {
        let all = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        all.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect()
    };
    assert!(descriptors(i32::try_from(server.id()).unwrap()).contains(&inherited), "the test shows nothing");
    let gateway = wait_for_gateway().as_raw_nonzero().get();
    let stat = std::fs::read_to_string(format!("/proc/{gateway}/stat")).unwrap();
    let launcher = stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(!descriptors(launcher).contains(&inherited), "{:?}", descriptors(launcher));
    for descriptor in descriptors(gateway) {
        let name = descriptor.to_string_lossy().into_owned();
        let is_own =
            name == "/dev/null" || ["socket:", "anon_inode:"].iter().any(|kind| name.starts_with(kind));
        assert!(is_own, "{name}");
    }
    home.good(&format!("sandbox kill {id}"));
    crate::home::stop(server);
}

pub(crate) fn home() -> Home {
    let engine = Tested::current().settings();
    Home::configured(&format!(
        "[server]\nlinger = '1s'\n{engine}[sandboxes.network]\nresolvers = ['9.9.9.9:53']\n"
    ))
}

pub(crate) fn python(home: &Home, sandbox: &str, code: &str) -> String {
    let code = format!("{PRELUDE}\n{code}");
    home.run_args(&["sandbox", "exec", sandbox, "--", "python3", "-c", &code]).good()
}

fn policy_changes_while_connections_are_open(fixture: &Fixture) {
    let home = home();
    let id = home.create("--allow good.example:5432");
    let policy = home.json(&format!("sandbox net {id} get"));
    assert_eq!(policy, json!({"mode": "whitelist", "allow": ["good.example:5432"]}));
    let code = "
s = socket.create_connection(('good.example', 5432)); s.recv(10)
print('ready', flush=True)
try: print(s.recv(10))
except OSError as error: print(type(error).__name__)
print(talk('good.example'), talk('other.example')[:6])
";
    let code = format!("{PRELUDE}\n{code}");
    let mut open = home.belljar(&["sandbox", "exec", &id, "--", "python3", "-c", &code]);
    let mut open = open.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(open.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    assert_eq!(lines.next().as_deref(), Some("ready"));
    let replaced = home.run(&format!("sandbox net {id} set --allow other.example:5432"));
    assert!(replaced.stderr.contains("no longer has allow good.example:5432;"), "{replaced:?}");
    assert_eq!(lines.next().as_deref(), Some("ConnectionResetError"));
    assert_eq!(lines.next().as_deref(), Some("gaierror banner"));
    assert!(open.wait().unwrap().success());
    assert_eq!(
        home.json(&format!("sandbox info {id}"))["network_policy"]["allow"],
        json!(["other.example:5432"])
    );
    // An invalid policy changes nothing, and neither does an empty one.
    for verb in ["set", "add"] {
        home.run(&format!("sandbox net {id} {verb} --allow a..b")).refused(2, &["network.allow", "a..b"]);
        home.run(&format!("sandbox net {id} {verb}")).refused(2, &["nothing to change"]);
    }
    // What is added joins what is there.
    let added = home.run(&format!("sandbox net {id} add --allow third.example:5432 --deny bad.example"));
    assert_eq!((added.status, added.stderr.as_str()), (Some(0), ""), "{added:?}");
    let policy = json!({
        "mode": "whitelist", "allow": ["other.example:5432", "third.example:5432"], "deny": ["bad.example:*"],
    });
    assert_eq!(home.json(&format!("sandbox net {id} get")), policy);
    let checked = home.run(&format!("net check --sandbox {id} third.example:5432 good.example:5432"));
    let lines: Vec<&str> = checked.stdout.lines().collect();
    assert_eq!(
        (checked.status, lines[0]),
        (Some(1), "allowed  third.example:5432  (allow: third.example:5432)")
    );
    assert!(lines[1].starts_with("denied   good.example:5432 is not allowed"), "{checked:?}");
    home.run(&format!("net check --sandbox {id} --allow a.example a.example")).refused(2, &["--allow"]);
    home.run("net check --sandbox none a.example").refused(125, &["sandbox \"none\" not found"]);
    home.run("net check --server http://127.0.0.1:1 a.example")
        .refused(2, &["--server: give --sandbox, too"]);
    home.good(&format!("sandbox net {id} set --net disabled"));
    assert_eq!(
        python(&home, &id, "print(talk('other.example'), talk('93.184.216.34'))"),
        "gaierror ConnectionResetError\n"
    );
    // A sandbox without a gateway cannot get one; disabling its network is no change.
    let none = home.create("");
    home.good(&format!("sandbox net {none} set --net disabled"));
    home.run(&format!("sandbox net {none} set --net open"))
        .refused(125, &["created without one", "whitelist"]);
    home.run(&format!("sandbox net {none} log")).refused(125, &["created without one"]);
    assert!(!fixture.was_reached("93.184.216.99"));
}

fn failed_change_keeps_the_policy(_: &Fixture) {
    let home = home();
    let (server, said) = home.serve(&[]);
    let id = home.create("--allow good.example:5432 --memory 256m");
    python(&home, &id, "open('/tmp/held', 'wb').write(bytes(64 << 20))");
    let key = home.json("key create --role admin")["key"].as_str().unwrap().to_owned();
    // The policy can be set; the limit, which is applied after it, cannot.
    let body = json!({"network": {"allow": ["other.example:5432"]}, "limits": {"memory": "32m"}}).to_string();
    let head = format!(
        "PATCH /v1/sandboxes/{id} HTTP/1.1\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n",
        body.len()
    );
    let answer = send_request(address(&said), &head, &body);
    assert!(answer.starts_with("HTTP/1.1 409 ") && answer.contains("failed_precondition"), "{answer}");
    assert_eq!(home.json(&format!("sandbox net {id} get"))["allow"], json!(["good.example:5432"]));
    assert_eq!(
        python(&home, &id, "print(talk('good.example')[:6], talk('other.example'))"),
        "banner gaierror\n"
    );
    home.good(&format!("sandbox kill {id}"));
    crate::home::stop(server);
}

fn every_decision_is_logged(_: &Fixture) {
    let home = home();
    let id = home.create("--allow good.example:80");
    python(&home, &id, "get('good.example'); talk('good.example'); talk('other.example'); talk('10.1.2.3')");
    let text = home.good(&format!("sandbox net {id} log --format json"));
    let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events: Vec<String> = records
        .iter()
        .map(|record| {
            let text = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
            format!("{} {}:{} {}", text("event"), text("host"), record["port"], record["allowed"])
        })
        .collect();
    let expected = [
        "connection good.example:80 true",
        "ended good.example:80 null",
        "connection good.example:5432 false",
        "lookup other.example:null null",
        "connection 10.1.2.3:5432 false",
    ];
    for one in expected {
        assert!(events.iter().any(|event| event == one), "{one}: {text}");
    }
    let of = |expected: &str| records.iter().find(|record| record["event"] == expected).unwrap();
    assert_eq!(
        (of("connection")["address"].as_str(), of("connection")["rule"].as_str()),
        (Some("93.184.216.34"), Some("allow: good.example:80"))
    );
    assert!(of("ended")["received"].as_u64() > Some(50) && of("ended")["sent"].as_u64() > Some(30), "{text}");
    assert!(of("lookup")["reason"].as_str().unwrap().contains("other.example"), "{text}");
    // As text, followed until the sandbox has ended.
    let mut follow = home.belljar(&["sandbox", "net", &id, "log", "-f"]);
    let mut follow = follow.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    let mut until = |expected: &str| lines.by_ref().find(|line| line.contains(expected)).expect(expected);
    until("allowed  good.example:80 at 93.184.216.34, by allow: good.example:80");
    until("denied   10.1.2.3:5432: ");
    python(&home, &id, "talk('good.example', 7)");
    until("denied   good.example:7: ");
    home.good(&format!("sandbox kill {id}"));
    assert_eq!(lines.next(), None);
    assert!(follow.wait().unwrap().success());
}

fn policy_outlives_its_server(_: &Fixture) {
    // The port of the resolver is the gateway's, also while there is none; connections to it are no hindrance to the next one.
    const HOLD: &str = "
import os, socket, time
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    try: socket.socket(socket.AF_INET, kind).bind(('127.0.0.1', 53)); print('bound')
    except PermissionError: pass
if os.fork() == 0:
    os.setsid(); os.closerange(0, 3)
    held = socket.create_connection(('198.18.0.1', 53))
    open('/tmp/held', 'w')
    time.sleep(1000)
while not os.path.exists('/tmp/held'): time.sleep(0.01)
print('held')
";
    let home = home();
    let (mut server, _) = home.serve(&[]);
    let id = home.create("--allow good.example:5432");
    home.good(&format!("sandbox net {id} set --allow other.example:5432"));
    assert_eq!(python(&home, &id, HOLD), "held\n");
    server.kill().unwrap();
    server.wait().unwrap();
    let (server, _) = home.serve(&[]);
    assert_eq!(home.json(&format!("sandbox net {id} get"))["allow"], json!(["other.example:5432"]));
    assert_eq!(
        python(&home, &id, "print(talk('good.example'), talk('other.example')[:6])"),
        "gaierror banner\n"
    );
    home.good(&format!("sandbox net {id} set --allow good.example:5432"));
    assert_eq!(
        python(&home, &id, "print(talk('good.example')[:6], talk('other.example'))"),
        "banner gaierror\n"
    );
    home.good(&format!("sandbox kill {id}"));
    crate::home::stop(server);
}

fn ceilings_bound_what_policies_reach(_: &Fixture) {
    let home = Home::configured(
        "[server]\nlinger = '1s'\n[sandboxes.network]\nresolvers = ['9.9.9.9:53']\nmost_presets = ['pip']\n\
         most_allow = ['*.example:*', '198.51.100.0/24:443']\n",
    );
    let (server, _) = home.serve(&[]);
    let key = |words: &str| home.json(&format!("key create {words}"))["key"].as_str().unwrap().to_owned();
    let (user, admin) = (key("--role user"), key("--role admin --max-preset npm --max-allow x.example"));
    let create = |key: &str, words: &str| home.run(&format!("sandbox create --api-key {key} {words}"));
    let of_server = "it reaches more than keys without the role admin may: ";
    let of_key = "it reaches more than this key may: ";
    for (key, words, beyond) in [
        (&user, "--net open", [of_server, "mode open; give at most whitelist"]),
        (
            &user,
            "--preset npm",
            [of_server, "preset npm (registry.npmjs.org:443); within are the preset pip"],
        ),
        (&user, "--preset pip --allow example.org", [of_server, "example.org; within are"]),
        (&user, "--allow 198.51.100.0/23:443", [of_server, "198.51.100.0/23:443; within"]),
        (&admin, "--net open", [of_key, "mode open; give at most whitelist"]),
        (&admin, "--allow y.example", [of_key, "y.example; within are the preset npm, x.example"]),
    ] {
        create(key, words).refused(125, &beyond);
    }
    create(&user, "--allow *.good.example:5432 --preset pip").good();
    create(&admin, "--allow x.example:443").good();
    // Changes and forks are bounded as well, even if another key has created the sandbox.
    let id = home.create("--net open");
    home.run(&format!("sandbox net {id} set --api-key {user} --allow example.org"))
        .refused(125, &[of_server]);
    home.run(&format!("sandbox fork --api-key {user} {id}")).refused(125, &[of_server]);
    // A key with a ceiling of its own does not get further through the sandbox of another key.
    home.run(&format!("sandbox exec --api-key {admin} {id} true"))
        .refused(125, &["the sandbox reaches more than this key may: mode open"]);
    home.good(&format!("sandbox exec --api-key {user} {id} true"));
    home.good(&format!("sandbox net {id} set --api-key {user} --allow a.example"));
    // A given ceiling replaces the previous one.
    let of_admin = home.good("key ls --format json");
    let of_admin = of_admin.lines().find(|line| line.contains("npm")).unwrap();
    let of_admin: Value = serde_json::from_str(of_admin).unwrap();
    let ceiling = json!({"presets": ["npm"], "allow": ["x.example"]});
    assert_eq!(of_admin["quotas"]["network"], ceiling);
    let id = of_admin["id"].as_str().unwrap();
    let replaced = home.run(&format!("key set {id} --max-preset npm --max-allow y.example"));
    assert!(replaced.stderr.contains("no longer has allow x.example"), "{replaced:?}");
    let widened = home.run(&format!("key set {id} --max-network whitelist"));
    assert_eq!((widened.status, widened.stderr.as_str()), (Some(0), ""), "{widened:?}");
    home.run(&format!("key set {id} --max-allow a..b")).refused(2, &["network.allow", "a..b"]);
    let changed = home.json(&format!("key set {id} --max-sandboxes 9"));
    assert_eq!(
        (&changed["quotas"]["network"], &changed["quotas"]["sandboxes"]),
        (&json!("whitelist"), &json!(9))
    );
    home.good("sandbox kill --all");
    crate::home::stop(server);
}

/// Extracts the address of a server from its output.
pub(crate) fn address(said: &str) -> &str {
    let address = said.split("http://").nth(1).and_then(|rest| rest.split_whitespace().next());
    address.expect(said).trim_end_matches('/')
}

/// Sends a request with the given start of the head and body, and returns the response.
pub(crate) fn send_request(address: &str, head: &str, body: &str) -> String {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "{head}Host: {address}\r\nConnection: close\r\n\r\n{body}").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn decisions_are_counted_and_recorded(_: &Fixture) {
    let home = home();
    let (server, said) = home.serve(&["--set", "metrics.open=true"]);
    let id = home.create("--allow good.example:80 --allow good.example:5432");
    python(&home, &id, "[get('good.example') for _ in range(3)]; talk('other.example'); talk('10.1.2.3')");
    // One connection is open when the sandbox ends.
    let code = "s = socket.create_connection(('good.example', 5432)); print(s.recv(7)); import time; time.sleep(1000)";
    let code = format!("{PRELUDE}\n{code}");
    let mut open = home.belljar(&["sandbox", "exec", &id, "--", "python3", "-u", "-c", &code]);
    let mut open = open.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(open.stdout.take().unwrap()).read_line(&mut line).unwrap();
    home.good(&format!("sandbox kill {id}"));
    open.wait().unwrap();
    let records = crate::home::eventually(|| {
        let text = home.good("audit tail -n 100 --format json");
        let records = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let of_network =
            |record: &Value| record["action"].as_str().is_some_and(|action| action.starts_with("network."));
        let records: Vec<Value> = records.filter(of_network).collect();
        if records.iter().any(|record| record["action"] == "network.end") { Ok(records) } else { Err(text) }
    });
    let actions: Vec<String> = records
        .iter()
        .map(|record| {
            assert_eq!((&record["sandbox"], &record["actor"]), (&json!(id), &json!("gateway")));
            let details = &record["details"];
            format!("{} {}:{}", record["action"].as_str().unwrap(), details["host"], details["port"])
        })
        .collect();
    let expected = [
        "network.allow \"good.example\":80",
        "network.deny \"other.example\":null",
        "network.deny \"10.1.2.3\":5432",
        "network.allow \"good.example\":5432",
        "network.end null:null",
    ];
    assert_eq!(actions, expected);
    assert_eq!(records[0]["details"]["address"], "93.184.216.34");
    let end = &records[4]["details"];
    assert_eq!((&end["allowed"], &end["denied"], &end["lost"]), (&json!(4), &json!(2), &json!(0)));
    let counted = send_request(address(&said), "GET /metrics HTTP/1.1\r\n", "");
    for line in [
        "belljar_network_verdicts_total{verdict=\"allowed\"} 4".to_owned(),
        "belljar_network_verdicts_total{verdict=\"denied\"} 2".to_owned(),
        format!("belljar_network_bytes_total{{direction=\"sent\"}} {}", end["sent_bytes"]),
        format!("belljar_network_bytes_total{{direction=\"received\"}} {}", end["received_bytes"]),
        "belljar_network_log_lost_total 0".to_owned(),
    ] {
        assert!(counted.lines().any(|counted| counted == line), "{line}: {counted}");
    }
    assert!(end["received_bytes"].as_u64() > Some(7), "{end}");
    crate::home::stop(server);
}

/// The offline check, the gateway, the log and the audit log agree on each decision.
fn check_gateway_and_audit_agree(_: &Fixture) {
    let home = home();
    let goals = [
        "good.example:80",
        "good.example:5432",
        "good.example:7",
        "other.example:80",
        "other.example:5432",
        "93.184.216.34:5432",
        "93.184.216.99:5432",
        "10.1.2.3:5432",
    ];
    let policies = [
        "--allow good.example --allow good.example:5432 --deny other.example",
        "--net open --deny good.example:7 --deny other.example:5432 --deny 93.184.216.99/32",
        "--allow *.example:5432 --allow 93.184.216.0/24:5432 --deny 93.184.216.99/32 --allow other.example:80",
    ];
    for policy in policies {
        let checked = home.run(&format!("net check --json {policy} {}", goals.join(" ")));
        let checked: Vec<Value> =
            checked.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let id = home.create(policy);
        let list = goals.join(" ");
        let code = format!(
            "for goal in '{list}'.split():\n  host, port = goal.rsplit(':')\n  said = get(host) if port == '80' else talk(host, \
             int(port))\n  print('denied' if 'error' in said.lower() or ' 403 ' in said else 'told')"
        );
        let done = python(&home, &id, &code);
        let log = home.good(&format!("sandbox net {id} log --format json"));
        let log: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let read_audit = || -> Vec<Value> {
            let audit = home.good("audit tail -n 100 --format json");
            audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        let mut audit = read_audit();
        for ((goal, checked), inside) in goals.iter().zip(&checked).zip(done.lines()) {
            let (host, port) = goal.rsplit_once(':').unwrap();
            let port: u16 = port.parse().unwrap();
            assert_eq!(checked["host"], *goal);
            let allowed = checked["allowed"].as_bool().unwrap();
            assert_eq!(inside, if allowed { "told" } else { "denied" }, "{policy}: {goal}: {checked}");
            // A denied name is decided at its lookup, without a port.
            let is_of = |record: &&Value, port_key: &Value| {
                record["host"] == host && (*port_key == json!(port) || record["event"] == "lookup")
            };
            let decided = |record: &&Value| record["event"] == "connection" || record["event"] == "lookup";
            let logged = log.iter().filter(decided).find(|record| is_of(record, &record["port"]));
            let logged = logged.unwrap_or_else(|| panic!("{policy}: {goal} is not in the log: {log:?}"));
            assert_eq!(logged["allowed"].as_bool().unwrap_or(false), allowed, "{policy}: {logged}");
            if logged["event"] == "connection" {
                assert_eq!(logged["rule"], checked["by"], "{policy}: {goal}");
            }
            let action = if allowed { "network.allow" } else { "network.deny" };
            let is_of_goal = |record: &Value| {
                let details = &record["details"];
                let is_port = details["port"] == json!(port) || details["port"].is_null();
                record["sandbox"] == json!(id)
                    && record["action"] == action
                    && details["host"] == host
                    && is_port
            };
            // The server takes decisions from the gateway's log, after the code has seen them.
            crate::home::eventually(|| {
                if audit.iter().any(is_of_goal) {
                    return Ok(());
                }
                audit = read_audit();
                Err(format!("{policy}: {goal} is not in the audit as {action}: {audit:?}"))
            });
        }
        home.good(&format!("sandbox kill {id}"));
    }
}

fn probe_compares_the_policy_with_what_programs_meet(_: &Fixture) {
    let home = home();
    let probe = |home: &Home, id: &str, hosts: &str, status| {
        let done = home.run(&format!("net probe {id}{hosts} --format json"));
        assert_eq!(done.status, Some(status), "{done:?}");
        let lines = done.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|one| (one["host"].as_str().unwrap().to_owned(), one)).collect::<BTreeMap<_, _>>()
    };
    let id = home.create("--allow good.example:80");
    let found = probe(&home, &id, " good.example:80 other.example:80 good.example:5432", 0);
    let of = |host: &str, key: &str| found[host][key].clone();
    assert_eq!(
        (of("good.example:80", "decided"), of("good.example:80", "error")),
        (true.into(), Value::Null)
    );
    for denied in ["other.example:80", "good.example:5432", "169.254.169.254:80", "belljar-probe.invalid:443"]
    {
        assert_eq!((of(denied, "allowed"), of(denied, "decided")), (false.into(), false.into()), "{denied}");
    }
    let trapped: Vec<&Value> = found.values().filter(|one| !one["arrived"].is_null()).collect();
    assert_eq!(trapped.len(), 2, "{found:?}");
    assert!(trapped.iter().all(|one| one["arrived"] == false && !one["error"].is_null()), "{trapped:?}");
    let text = home.good(&format!("net probe {id} good.example:80"));
    assert!(text.starts_with("DESTINATION") && text.contains("allowed") && !text.contains("NO"), "{text}");
    let none = home.create("");
    assert!(probe(&home, &none, " good.example:80", 0).values().all(|one| one["decided"].is_null()));
    home.good("sandbox kill --all");
    // Without the wall, a rule is enough for cloud metadata, and the probe says so.
    let home = crate::service::home();
    let mut create = home.belljar(&["sandbox", "create", "--allow", "0.0.0.0/0:80", "-q"]);
    create.env("BELLJAR_TEST_WITHOUT", "gateway-ranges");
    let open = home.feed_command(create, b"").good();
    let found = probe(&home, open.trim(), "", 1);
    assert_eq!(found["169.254.169.254:80"]["agrees"], false, "{found:?}");
    home.good("sandbox kill --all");
}

fn documented_service_commands_work(_: &Fixture) {
    let home = home();
    let page = include_str!("../../../../docs/network.md");
    let commands = page.lines().filter_map(|line| line.strip_prefix("$ belljar "));
    let of_service = |command: &&str| {
        ["sandbox ", "key ", "net probe ", "net check --sandbox "]
            .iter()
            .any(|begin| command.starts_with(begin))
    };
    let commands: Vec<&str> = commands.filter(of_service).collect();
    assert_eq!(commands.len(), 8);
    for command in commands {
        let command = command.split("  #").next().unwrap().trim_end();
        // No shell removes the quotes.
        home.good(&command.replace('\'', ""));
    }
    let policy = home.json("sandbox net web get");
    let allow = ["api.example.com", "files.example.com"];
    assert_eq!(policy, json!({"mode": "whitelist", "presets": ["pip"], "allow": allow}));
}
