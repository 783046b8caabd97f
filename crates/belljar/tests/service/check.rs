//! Invariants after a crash: each sandbox is whole or gone, everything acknowledged exists, and nothing else does.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::client::{Answer, Client};
use crate::load::{Content, Expected, Forked, Worker};
use crate::server::{Home, Server, group_file, groups, scratch};

/// Maximum time from readiness until every sandbox is whole or gone.
pub(crate) const SETTLED_WITHIN: Duration = Duration::from_secs(5);

/// Size of the pool of pre-warmed sandboxes, which no list shows.
pub(crate) const POOL: usize = 2;

/// Violated invariants, reported all at once.
pub(crate) type Faults = Vec<String>;

/// Sandboxes that a launcher held when it was killed.
#[derive(Debug, Default)]
pub(crate) struct Doomed {
    /// Whether a launcher was killed: sandboxes that it got in the meantime are gone as well.
    pub(crate) launcher: bool,
    /// Sandboxes that it held a moment before.
    pub(crate) ids: BTreeSet<String>,
}

/// End of the reason of sandboxes whose launcher has died.
const LAUNCHER_DIED: &str = "the launcher that held it is gone";

/// Reconciles a worker's expectations with the actual state, and returns the faults.
pub(crate) async fn settle(worker: &mut Worker, server: &Server, doomed: &Doomed) -> Faults {
    let mut faults = std::mem::take(&mut worker.failures);
    worker.client = server.admin();
    let expected = std::mem::take(&mut worker.sandboxes);
    let checks = expected.into_iter().map(|expected| whole_or_gone(&worker.client, expected, doomed));
    for (found, mut wrong) in futures::future::join_all(checks).await {
        faults.append(&mut wrong);
        match found {
            Found::Lives(expected) => worker.sandboxes.push(expected),
            Found::Gone(id) => drop(worker.gone.insert(id)),
        }
    }
    faults.append(&mut retry_creates(worker).await);
    faults.append(&mut forks(worker).await);
    let mut sandboxes = std::mem::take(&mut worker.sandboxes);
    for expected in &mut sandboxes {
        faults.append(&mut acknowledged(worker, expected).await);
    }
    worker.sandboxes = sandboxes;
    faults.append(&mut templates(worker).await);
    faults.append(&mut keys(worker, server).await);
    faults
}

enum Found {
    Lives(Expected),
    Gone(String),
}

/// Checks that a sandbox works as reported, or is gone for a plausible reason.
async fn whole_or_gone(client: &Client, mut expected: Expected, doomed: &Doomed) -> (Found, Faults) {
    let client = client.apart();
    let path = format!("/v1/sandboxes/{}", expected.id);
    let info = client.get(&path).await;
    if info.code() == "sandbox_gone" {
        let problem = info.json();
        let mut faults = Vec::new();
        let why = problem["detail"].as_str().unwrap_or_default();
        // A server that was not running at the time cannot know why.
        let by_launcher =
            doomed.launcher && (why.ends_with(LAUNCHER_DIED) || why.ends_with("while no server was running"));
        if why.is_empty() || !(expected.gone.contains(&true) || by_launcher) {
            faults.push(format!("{} is gone: {problem}", expected.id));
        }
        return (Found::Gone(expected.id), faults);
    }
    let mut faults = Vec::new();
    if info.status != 200 || !expected.gone.contains(&false) || doomed.ids.contains(&expected.id) {
        faults.push(format!(
            "{}: {} {}; expected to be gone: {:?}",
            expected.id,
            info.status,
            info.text(),
            expected.gone
        ));
        return (Found::Gone(expected.id), faults);
    }
    expected.gone = vec![false];
    let info = info.json();
    let is_paused = info["state"] == "paused";
    if !(is_paused || info["state"] == "running") || !expected.paused.contains(&is_paused) {
        faults.push(format!("{}: it is {}, paused may be {:?}", expected.id, info["state"], expected.paused));
    }
    expected.paused = vec![is_paused];
    if let Some(state) = group_file(&expected.id, &["cgroup.freeze", "freezer.state"]) {
        let is_frozen = state == "1" || state == "FROZEN";
        if is_frozen != is_paused {
            faults.push(format!("{}: it is {} and its freezer says {state}", expected.id, info["state"]));
        }
    }
    // Using a paused sandbox resumes it. Half of the paused ones stay paused.
    if !is_paused || expected.id.as_bytes().last().is_some_and(|last| last % 2 == 0) {
        let answer = client.post(&format!("{path}/exec"), &json!({ "command": "echo whole" })).await;
        if answer.status != 200 || answer.json()["stdout"]["data"] != "whole\n" {
            faults.push(format!(
                "{} ({}): it does not answer: {}",
                expected.id,
                info["state"],
                answer.text()
            ));
        }
        expected.paused = vec![false];
    }
    check_settings(&info, &mut expected, is_paused, &mut faults);
    // Listing the ports would resume a paused sandbox.
    if expected.paused == [false] {
        let ports = client.get(&format!("{path}/ports")).await.json();
        let ports: BTreeSet<u16> = ports["ports"].as_array().into_iter().flatten().filter_map(port).collect();
        one_of("ports", &expected.id, &mut expected.ports, ports, &mut faults);
    }
    (Found::Lives(expected), faults)
}

fn port(one: &Value) -> Option<u16> {
    u16::try_from(one["port"].as_u64()?).ok()
}

/// Checks that labels, expiry and limits are as set.
fn check_settings(info: &Value, expected: &mut Expected, was_paused: bool, faults: &mut Faults) {
    let id = expected.id.clone();
    let mark = info["labels"]["mark"].as_str().unwrap_or_default().to_owned();
    one_of("label", &id, &mut expected.mark, mark, faults);
    if !was_paused && !expected.expires.is_empty() {
        one_of("expires_at", &id, &mut expected.expires, info["expires_at"].to_string(), faults);
    }
    if was_paused {
        expected.expires.clear();
    }
    let memory = info["limits"]["memory_bytes"].as_u64().unwrap_or(0) >> 20;
    one_of("memory", &id, &mut expected.memory_mib, memory, faults);
    if let Some(held) = group_file(&id, &["memory.max", "memory.limit_in_bytes"])
        && held.parse::<u64>().ok().map(|bytes| bytes >> 20) != Some(memory)
    {
        faults.push(format!("{id}: its limit is reported as {memory} MiB and is {held} bytes"));
    }
}

/// Checks that the found value is one of the possible ones, and makes it the only one.
fn one_of<T: PartialEq + std::fmt::Debug>(
    what: &str,
    id: &str,
    may_be: &mut Vec<T>,
    found: T,
    faults: &mut Faults,
) {
    if !may_be.contains(&found) {
        faults.push(format!("{id}: {what} is {found:?}, expected one of {may_be:?}"));
    }
    *may_be = vec![found];
}

/// Checks that acknowledged files have their content, and that idempotent commands have run at most once.
async fn acknowledged(worker: &Worker, expected: &mut Expected) -> Faults {
    let mut faults = Vec::new();
    if expected.paused != [false] {
        return faults;
    }
    let client = &worker.client;
    let id = expected.id.clone();
    for (name, may_be) in &mut expected.files {
        let answer = client.get(&format!("/v1/sandboxes/{id}/files/content?path={name}")).await;
        let found = content(&answer, may_be);
        match found {
            Some(found) => *may_be = vec![found],
            None => {
                let (status, bytes) = (answer.status, answer.body.len());
                faults.push(format!("{id}: {name}: {status} with {bytes} bytes is none of {may_be:?}"));
            }
        }
    }
    expected.files.retain(|_, may_be| may_be != &[None]);
    for (key, answered) in &mut expected.once {
        if !*answered {
            match worker.run_once(&id, key).await {
                Ok(answer) if answer.status == 200 => *answered = true,
                Ok(answer) if answer.code() == "execution_interrupted" => {}
                other => faults.push(format!("{id}: once {key}: {other:?}")),
            }
        }
    }
    if !expected.once.is_empty() {
        let notes = client.sh(&id, "cat .once 2>/dev/null || true").await;
        for (key, answered) in &expected.once {
            let times = notes.lines().filter(|line| line == key).count();
            if times > 1 || (*answered && times == 0) {
                faults.push(format!("{id}: {key} ran {times} times, answered: {answered}"));
            }
        }
    }
    // The outcome of interrupted commands stays unknown.
    expected.once.retain(|_, answered| *answered);
    faults
}

/// Returns which of the possible contents a response shows.
fn content(answer: &Answer, may_be: &[Option<Content>]) -> Option<Option<Content>> {
    let is_it = |content: &&Option<Content>| match content {
        None => answer.code() == "path_not_found",
        Some(content) => answer.status == 200 && answer.body == content.make(),
    };
    may_be.iter().find(is_it).copied()
}

/// Retries interrupted create requests, and checks that each results in one sandbox.
async fn retry_creates(worker: &mut Worker) -> Faults {
    let mut faults = Vec::new();
    for pending in std::mem::take(&mut worker.pending) {
        let before = marked(&worker.client, &pending.key).await;
        let mut ids = BTreeSet::new();
        let mut has_ended = false;
        for _ in 0..2 {
            match worker.send_create(&pending).await {
                // It was created, and has ended since with its launcher: that is reported, and no other is created.
                Ok(answer) if answer.code() == "sandbox_gone" => has_ended = true,
                Ok(answer) if answer.status.is_success() => {
                    ids.insert(answer.json()["id"].as_str().unwrap_or_default().to_owned());
                }
                // Its template may have been removed, but only if no sandbox was created from it.
                other => faults.push(format!("create {} again: {other:?}", pending.key)),
            }
        }
        let after = marked(&worker.client, &pending.key).await;
        if has_ended && ids.is_empty() && after.is_empty() {
            continue;
        }
        if ids.len() != 1 || after != ids || !before.is_subset(&ids) {
            faults.push(format!(
                "create {} again: returned {ids:?}, existing before {before:?}, after {after:?}",
                pending.key
            ));
        }
        for id in ids {
            let mut expected = Expected::new(&id, &pending.key);
            let template = worker.templates.iter().find(|one| pending.body["template"] == one.name.as_str());
            if let Some(template) = template {
                expected.files.clone_from(&template.files);
                expected.memory_mib.clone_from(&template.memory_mib);
            }
            worker.sandboxes.push(expected);
        }
    }
    faults
}

/// Checks interrupted forks: each existing copy is whole.
async fn forks(worker: &mut Worker) -> Faults {
    let mut faults = Vec::new();
    for forked in std::mem::take(&mut worker.forked) {
        for id in marked(&worker.client, &forked.mark).await {
            let (found, mut wrong) =
                whole_or_gone(&worker.client, Forked::expected(&forked, &id), &Doomed::default()).await;
            faults.append(&mut wrong);
            if let Found::Lives(expected) = found {
                worker.sandboxes.push(expected);
            }
        }
    }
    faults
}

/// Returns the ids of sandboxes with this mark that are not gone.
async fn marked(client: &Client, mark: &str) -> BTreeSet<String> {
    let list = client.get(&format!("/v1/sandboxes?label=mark={mark}")).await.json();
    list["sandboxes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|one| one["id"].as_str().map(str::to_owned))
        .collect()
}

/// Checks that acknowledged templates work and have their digest, and that removed ones do not exist.
async fn templates(worker: &mut Worker) -> Faults {
    let mut faults = Vec::new();
    for template in &mut worker.templates {
        let answer = worker.client.get(&format!("/v1/templates/{}", template.name)).await;
        let is_there = match (answer.status.as_u16(), answer.code().as_str()) {
            (200, _) => true,
            (404, "template_not_found") => false,
            other => {
                faults.push(format!("template {}: {other:?}", template.name));
                continue;
            }
        };
        let name = template.name.clone();
        one_of("it exists", &name, &mut template.there, is_there, &mut faults);
        if is_there {
            let digest = answer.json()["digest"].as_str().unwrap_or_default().to_owned();
            if template.digest.get_or_insert_with(|| digest.clone()) != &digest {
                faults.push(format!(
                    "template {}: its digest is {digest}, not {:?}",
                    template.name, template.digest
                ));
            }
        }
    }
    worker.templates.retain(|template| template.there == [true]);
    faults.append(&mut use_template(worker).await);
    faults
}

/// Creates a sandbox from one of the templates, and checks its files.
async fn use_template(worker: &mut Worker) -> Faults {
    let mut faults = Vec::new();
    let Some(template) = worker.templates.first() else { return faults };
    let made =
        worker.client.post("/v1/sandboxes", &json!({ "template": template.name, "timeout": 60 })).await;
    if made.status != 201 {
        return vec![format!("template {} cannot be used: {}", template.name, made.text())];
    }
    let id = made.json()["id"].as_str().unwrap_or_default().to_owned();
    let mut files: BTreeMap<_, _> = template.files.clone();
    for (name, may_be) in &mut files {
        let answer = worker.client.get(&format!("/v1/sandboxes/{id}/files/content?path={name}")).await;
        if content(&answer, may_be).is_none() {
            faults.push(format!(
                "template {}: {name} has {} bytes, none of {may_be:?}",
                template.name,
                answer.body.len()
            ));
        }
    }
    let ended = worker.client.call("DELETE", &format!("/v1/sandboxes/{id}")).await;
    if ended.status != 204 {
        faults.push(format!("{id}: {}", ended.text()));
    }
    worker.gone.insert(id);
    faults
}

/// Checks that keys still work, and revoked ones do not.
async fn keys(worker: &mut Worker, server: &Server) -> Faults {
    let mut faults = Vec::new();
    for key in &mut worker.keys {
        let answer = Client::new(server.address, Some(&key.secret)).get("/v1/me").await;
        let opens = answer.status == 200;
        if !opens && answer.status != 401 {
            faults.push(format!("key {}: {}", key.id, answer.text()));
        }
        let id = key.id.clone();
        one_of("it opens", &id, &mut key.opens, opens, &mut faults);
    }
    worker.keys.retain(|key| key.opens == [true]);
    faults
}

/// Checks the whole service: nothing exists that was not acknowledged, and the audit log is valid.
pub(crate) async fn whole_service(home: &Home, server: &Server, workers: &[Worker]) -> Faults {
    let mut faults = Vec::new();
    let client = server.admin();
    let listed = all_sandboxes(&client).await;
    let known: BTreeSet<String> =
        workers.iter().flat_map(|worker| worker.sandboxes.iter().map(|one| one.id.clone())).collect();
    for id in listed.symmetric_difference(&known) {
        faults.push(format!(
            "{id} is in the list: {}, is known: {}",
            listed.contains(id),
            known.contains(id)
        ));
    }
    let gone: BTreeSet<String> = workers.iter().flat_map(|worker| worker.gone.iter().cloned()).collect();
    faults.append(&mut eventually(|| machine(home, &listed, &gone)));
    faults.append(&mut archives(home, &client).await);
    let verified = client.call("POST", "/v1/audit/verify").await;
    if verified.status != 200 || verified.json()["ok"] != true {
        faults.push(format!("the audit trail: {}", verified.text()));
    }
    faults
}

/// Checks the machine: it has the listed and the pre-warmed sandboxes, and nothing of gone ones.
fn machine(home: &Home, listed: &BTreeSet<String>, gone: &BTreeSet<String>) -> Faults {
    let mut faults = Vec::new();
    let (alive, groups, scratch) = (home.alive(), groups(), scratch(home));
    for id in listed.difference(&alive) {
        faults.push(format!("{id} is listed and has no process"));
    }
    let ahead = alive.difference(listed).count();
    if ahead > POOL {
        faults.push(format!("{ahead} unknown sandboxes run: {:?}", alive.difference(listed)));
    }
    for id in gone.iter().filter(|id| groups.contains(*id) || alive.contains(*id)) {
        faults.push(format!("{id} is gone and has control groups or processes"));
    }
    for id in scratch.difference(&alive) {
        faults.push(format!("{id} has scratch and no process"));
    }
    faults
}

/// Repeats a check until it finds no faults, or times out.
fn eventually(check: impl Fn() -> Faults) -> Faults {
    let begin = Instant::now();
    loop {
        let faults = check();
        if faults.is_empty() || begin.elapsed() > SETTLED_WITHIN {
            return faults;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Checks that the archives are exactly those of the templates.
async fn archives(home: &Home, client: &Client) -> Faults {
    let mut faults = Vec::new();
    let list = client.get("/v1/templates").await.json();
    let rows = list["templates"].as_array().cloned().unwrap_or_default();
    let snapshots = rows.iter().filter(|row| row["kind"] == "snapshot");
    let mut named: BTreeMap<String, String> = snapshots
        .filter_map(|row| Some((format!("{}.tar", row["id"].as_str()?), row["digest"].as_str()?.to_owned())))
        .collect();
    for entry in std::fs::read_dir(home.path().join("templates")).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(digest) = named.remove(&name) else {
            faults.push(format!("{name} belongs to no template"));
            continue;
        };
        let hash = Sha256::digest(std::fs::read(entry.path()).unwrap_or_default());
        let found: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        if found != digest {
            faults.push(format!("{name} has the digest {found}, not {digest}"));
        }
    }
    faults.extend(named.keys().map(|name| format!("{name} is missing")));
    faults
}

/// Returns the ids of all sandboxes that are not gone.
pub(crate) async fn all_sandboxes(client: &Client) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut cursor = String::new();
    loop {
        let page = client.get(&format!("/v1/sandboxes?limit=100{cursor}")).await.json();
        let ids = page["sandboxes"].as_array().into_iter().flatten();
        found.extend(ids.filter_map(|one| one["id"].as_str().map(str::to_owned)));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return found,
        }
    }
}
