//! The network of a long-lived sandbox: changed while it runs, and what was decided about it.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::Case;
use crate::clients::cases;
use crate::home::Home;
use crate::world::{PRELUDE, World};

cases![
    a_policy_changes_while_connections_are_open,
    every_decision_is_told,
    a_policy_outlives_its_server,
    the_services_commands_of_the_page_work,
];

pub(crate) fn home() -> Home {
    Home::configured("[server]\nlinger = '1s'\n[sandboxes.network]\nresolvers = ['9.9.9.9:53']\n")
}

fn python(home: &Home, sandbox: &str, code: &str) -> String {
    let code = format!("{PRELUDE}\n{code}");
    home.run_args(&["sandbox", "exec", sandbox, "--", "python3", "-c", &code]).good()
}

fn a_policy_changes_while_connections_are_open(world: &World) {
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
    home.good(&format!("sandbox net {id} set --allow other.example:5432"));
    assert_eq!(lines.next().as_deref(), Some("ConnectionResetError"));
    assert_eq!(lines.next().as_deref(), Some("gaierror banner"));
    assert!(open.wait().unwrap().success());
    assert_eq!(
        home.json(&format!("sandbox info {id}"))["network_policy"]["allow"],
        json!(["other.example:5432"])
    );
    // What is no policy changes nothing; no more does one that says nothing.
    home.run(&format!("sandbox net {id} set --allow a..b")).refused(2, &["network.allow", "a..b"]);
    home.run(&format!("sandbox net {id} set")).refused(2, &["nothing to change"]);
    home.good(&format!("sandbox net {id} set --net disabled"));
    assert_eq!(
        python(&home, &id, "print(talk('other.example'), talk('93.184.216.34'))"),
        "gaierror ConnectionResetError\n"
    );
    // One without a gateway gets none; that it has none is no change.
    let none = home.create("");
    home.good(&format!("sandbox net {none} set --net disabled"));
    home.run(&format!("sandbox net {none} set --net open")).refused(125, &["made without one", "whitelist"]);
    home.run(&format!("sandbox net {none} log")).refused(125, &["made without one"]);
    assert!(!world.was_reached("93.184.216.99"));
}

fn every_decision_is_told(_: &World) {
    let home = home();
    let id = home.create("--allow good.example:80");
    python(&home, &id, "get('good.example'); talk('good.example'); talk('other.example'); talk('10.1.2.3')");
    let text = home.good(&format!("sandbox net {id} log --format json"));
    let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<String> = records
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
        assert!(told.iter().any(|told| told == one), "{one}: {text}");
    }
    let of = |wanted: &str| records.iter().find(|record| record["event"] == wanted).unwrap();
    assert_eq!(
        (of("connection")["address"].as_str(), of("connection")["rule"].as_str()),
        (Some("93.184.216.34"), Some("allow: good.example:80"))
    );
    assert!(of("ended")["received"].as_u64() > Some(50) && of("ended")["sent"].as_u64() > Some(30), "{text}");
    assert!(of("lookup")["reason"].as_str().unwrap().contains("other.example"), "{text}");
    // In words, and until the sandbox is gone.
    let mut follow = home.belljar(&["sandbox", "net", &id, "log", "-f"]);
    let mut follow = follow.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    let mut until = |wanted: &str| lines.by_ref().find(|line| line.contains(wanted)).expect(wanted);
    until("allowed  good.example:80 at 93.184.216.34, by allow: good.example:80");
    until("denied   10.1.2.3:5432: ");
    python(&home, &id, "talk('good.example', 7)");
    until("denied   good.example:7: ");
    home.good(&format!("sandbox kill {id}"));
    assert_eq!(lines.next(), None);
    assert!(follow.wait().unwrap().success());
}

fn a_policy_outlives_its_server(_: &World) {
    let home = home();
    let (mut server, _) = home.serve(&[]);
    let id = home.create("--allow good.example:5432");
    home.good(&format!("sandbox net {id} set --allow other.example:5432"));
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

fn the_services_commands_of_the_page_work(_: &World) {
    let home = home();
    let page = include_str!("../../../../docs/network.md");
    let commands: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("$ belljar sandbox ")).collect();
    assert_eq!(commands.len(), 4);
    for command in commands {
        let command = command.split("  #").next().unwrap().trim_end();
        home.good(&format!("sandbox {command}"));
    }
    let policy = home.json("sandbox net web get");
    assert_eq!(policy, json!({"mode": "whitelist", "presets": ["pip"], "allow": ["api.example.com"]}));
}
