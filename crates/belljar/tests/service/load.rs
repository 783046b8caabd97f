//! A client that uses the service, and records the expected state. Each observable value is a list of possibilities: one entry
//! once a response has confirmed it, more while a request is in flight or was interrupted. A check after a crash uses them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::client::{Answer, Client, Cut};

/// Maximum number of sandboxes of one worker.
const MAX_SANDBOXES: usize = 4;

/// Timeout of its sandboxes, in seconds: longer than any test.
const LIFE_S: u64 = 7200;

/// Reproducible random numbers: splitmix64.
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[usize::try_from(self.below(from.len() as u64)).expect("it is below a length")]
    }
}

/// Seed and length of a file's content, from which it can be generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Content {
    seed: u64,
    bytes: usize,
}

impl Content {
    pub(crate) fn make(self) -> Bytes {
        let mut random = Random(self.seed);
        let mut content = Vec::with_capacity(self.bytes + 8);
        while content.len() < self.bytes {
            content.extend_from_slice(&random.next().to_le_bytes());
        }
        content.truncate(self.bytes);
        content.into()
    }
}

/// Possible states of a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    pub(crate) id: String,
    pub(crate) gone: Vec<bool>,
    pub(crate) paused: Vec<bool>,
    /// By name; `None` is a missing file.
    pub(crate) files: BTreeMap<String, Vec<Option<Content>>>,
    pub(crate) mark: Vec<String>,
    /// As reported by the service; empty accepts any value.
    pub(crate) expires: Vec<String>,
    pub(crate) ports: Vec<BTreeSet<u16>>,
    pub(crate) memory_mib: Vec<u64>,
    /// Idempotent executions by key, and whether each was answered.
    pub(crate) once: BTreeMap<String, bool>,
}

impl Expected {
    pub(crate) fn new(id: &str, mark: &str) -> Self {
        Self {
            id: id.to_owned(),
            gone: vec![false],
            paused: vec![false],
            files: BTreeMap::new(),
            mark: vec![mark.to_owned()],
            expires: Vec::new(),
            ports: vec![BTreeSet::new()],
            memory_mib: vec![512],
            once: BTreeMap::new(),
        }
    }
}

/// A template that may exist.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    pub(crate) name: String,
    pub(crate) there: Vec<bool>,
    /// As reported by the service, if it was.
    pub(crate) digest: Option<String>,
    pub(crate) files: BTreeMap<String, Vec<Option<Content>>>,
    /// Memory limit of the sandbox that it was created from.
    pub(crate) memory_mib: Vec<u64>,
}

/// A key that may be valid.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    pub(crate) id: String,
    pub(crate) secret: String,
    pub(crate) opens: Vec<bool>,
}

/// A create request that has not been answered.
#[derive(Debug, Clone)]
pub(crate) struct PendingCreate {
    pub(crate) key: String,
    pub(crate) body: Value,
}

/// A fork that has not been answered: the label of its sandboxes, and their content.
#[derive(Debug, Clone)]
pub(crate) struct Forked {
    pub(crate) mark: String,
    pub(crate) files: BTreeMap<String, Vec<Option<Content>>>,
    pub(crate) once: BTreeMap<String, bool>,
}

/// One client.
pub(crate) struct Worker {
    pub(crate) name: String,
    pub(crate) client: Client,
    pub(crate) random: Random,
    pub(crate) sandboxes: Vec<Expected>,
    pub(crate) templates: Vec<Template>,
    pub(crate) keys: Vec<Key>,
    pub(crate) pending: Vec<PendingCreate>,
    pub(crate) forked: Vec<Forked>,
    /// Sandboxes that were reported as gone.
    pub(crate) gone: BTreeSet<String>,
    /// Number of successful responses by operation.
    pub(crate) done: BTreeMap<&'static str, u64>,
    pub(crate) failures: Vec<String>,
    /// Whether a process of the service was killed: refusals are no failures now.
    pub(crate) disturbed: Arc<AtomicBool>,
    names: u64,
}

/// The worker has to stop.
pub(crate) struct Stop;

type Step = Result<(), Stop>;

impl Worker {
    pub(crate) fn new(number: usize, client: Client, seed: u64, disturbed: &Arc<AtomicBool>) -> Self {
        Self {
            name: format!("w{number}"),
            client,
            random: Random(seed.wrapping_mul(1000).wrapping_add(number as u64)),
            sandboxes: Vec::new(),
            templates: Vec::new(),
            keys: Vec::new(),
            pending: Vec::new(),
            forked: Vec::new(),
            gone: BTreeSet::new(),
            done: BTreeMap::new(),
            failures: Vec::new(),
            disturbed: Arc::clone(disturbed),
            names: 0,
        }
    }

    /// Works until `stop` is set or a request fails.
    pub(crate) async fn work(mut self, stop: Arc<AtomicBool>) -> Self {
        while !stop.load(Ordering::Relaxed) && self.step().await.is_ok() {}
        self
    }

    /// Returns a name that this worker has not used.
    pub(crate) fn fresh_name(&mut self) -> String {
        self.names += 1;
        format!("{}-{}", self.name, self.names)
    }

    async fn step(&mut self) -> Step {
        if self.sandboxes.is_empty() {
            return self.create(None).await;
        }
        let at = usize::try_from(self.random.below(self.sandboxes.len() as u64)).unwrap_or(0);
        match self.random.below(100) {
            0..8 => self.create(None).await,
            8..11 => self.create_from_template().await,
            11..27 => self.exec(at).await,
            27..37 => self.exec_once(at).await,
            37..52 => self.upload(at).await,
            52..62 => self.download(at).await,
            62..69 => self.pause(at).await,
            69..74 => self.resume(at).await,
            74..79 => self.snapshot(at).await,
            79..81 => self.remove_template().await,
            81..84 => self.fork(at).await,
            84..88 => self.kill(at).await,
            88..91 => self.set_timeout(at).await,
            91..94 => self.publish(at).await,
            94..97 => self.relabel(at).await,
            97..99 => self.limit(at).await,
            _ => self.key().await,
        }
    }

    /// Records the outcome of a request: success, refusal or interruption, which are failures unless `disturbed` is set.
    fn record(&mut self, what: &'static str, answered: Result<Answer, Cut>) -> Result<Answer, Stop> {
        match answered {
            Ok(answer) if answer.status.is_success() => {
                *self.done.entry(what).or_default() += 1;
                Ok(answer)
            }
            Ok(_) if self.disturbed.load(Ordering::Relaxed) => Err(Stop),
            Ok(answer) => {
                self.failures.push(format!("{}: {what}: {} {}", self.name, answer.status, answer.text()));
                Err(Stop)
            }
            Err(_) if self.disturbed.load(Ordering::Relaxed) => Err(Stop),
            Err(cut) => {
                self.failures.push(format!("{}: {what}: {cut:?}", self.name));
                Err(Stop)
            }
        }
    }

    fn path(&self, at: usize, rest: &str) -> String {
        format!("/v1/sandboxes/{}{rest}", self.sandboxes[at].id)
    }

    async fn create(&mut self, template: Option<&str>) -> Step {
        if self.sandboxes.len() >= MAX_SANDBOXES {
            return Ok(());
        }
        let mark = self.fresh_name();
        let mut body = json!({ "timeout": LIFE_S, "labels": { "mark": mark, "worker": self.name } });
        if let Some(template) = template {
            body["template"] = template.into();
        } else if self.random.below(4) == 0 {
            body["files"] = json!([{ "path": "first", "content": "first" }]);
            // Limits that differ from those of the pool.
            body["limits"] = json!({ "tmp": "50m" });
        }
        let pending = PendingCreate { key: mark.clone(), body };
        self.pending.push(pending.clone());
        let answered = self.send_create(&pending).await;
        let made = self.record("create", answered)?.json();
        self.pending.pop();
        let mut expected = Expected::new(made["id"].as_str().unwrap_or_default(), &mark);
        expected.expires = vec![made["expires_at"].to_string()];
        if let Some(template) = self.templates.iter().find(|one| Some(one.name.as_str()) == template) {
            expected.files.clone_from(&template.files);
            expected.memory_mib.clone_from(&template.memory_mib);
        }
        self.sandboxes.push(expected);
        Ok(())
    }

    /// Sends a create request with its idempotency key.
    pub(crate) async fn send_create(&self, pending: &PendingCreate) -> Result<Answer, Cut> {
        let request = self.client.request("POST", "/v1/sandboxes").header("content-type", "application/json");
        self.client.try_send(request.header("idempotency-key", &pending.key), pending.body.to_string()).await
    }

    async fn create_from_template(&mut self) -> Step {
        let there = self.templates.iter().filter(|template| template.there == [true]);
        let names: Vec<String> = there.map(|template| template.name.clone()).collect();
        if names.is_empty() {
            return Ok(());
        }
        let name = self.random.pick(&names).clone();
        self.create(Some(&name)).await
    }

    async fn exec(&mut self, at: usize) -> Step {
        let path = self.path(at, "/exec");
        self.will_resume(at);
        let answered =
            self.client.try_json("POST", &path, &json!({ "command": "echo here; echo $((6*7))" })).await;
        let done = self.record("exec", answered)?.json();
        self.has_resumed(at);
        if done["outcome"]["kind"] == "infrastructure" && self.disturbed.load(Ordering::Relaxed) {
            return Err(Stop);
        }
        if done["stdout"]["data"] != "here\n42\n" || done["exit_code"] != 0 {
            self.failures.push(format!("exec: {done}"));
        }
        Ok(())
    }

    async fn exec_once(&mut self, at: usize) -> Step {
        let key = self.fresh_name();
        self.will_resume(at);
        self.sandboxes[at].once.insert(key.clone(), false);
        let answered = self.run_once(&self.sandboxes[at].id, &key).await;
        let done = self.record("exec once", answered)?.json();
        if done["outcome"]["kind"] == "infrastructure" && self.disturbed.load(Ordering::Relaxed) {
            return Err(Stop);
        }
        self.has_resumed(at);
        self.sandboxes[at].once.insert(key, true);
        Ok(())
    }

    /// Runs a command that records its execution, with an idempotency key.
    pub(crate) async fn run_once(&self, id: &str, key: &str) -> Result<Answer, Cut> {
        let request = self.client.request("POST", &format!("/v1/sandboxes/{id}/exec"));
        let request = request.header("content-type", "application/json").header("idempotency-key", key);
        self.client.try_send(request, json!({ "command": format!("echo {key} >> .once") }).to_string()).await
    }

    async fn upload(&mut self, at: usize) -> Step {
        let name = format!("file{}", self.random.below(4));
        let bytes = match self.random.below(10) {
            0 => 1 << 20,
            1 => 0,
            _ => self.random.below(40_000),
        };
        let content = Content { seed: self.random.next(), bytes: usize::try_from(bytes).unwrap_or(0) };
        let path = self.path(at, &format!("/files/content?path={name}"));
        self.will_resume(at);
        self.sandboxes[at].files.entry(name.clone()).or_insert_with(|| vec![None]).push(Some(content));
        let answered = self.client.try_send(self.client.request("PUT", &path), content.make()).await;
        self.record("upload", answered)?;
        self.has_resumed(at);
        self.sandboxes[at].files.insert(name, vec![Some(content)]);
        Ok(())
    }

    async fn download(&mut self, at: usize) -> Step {
        let files = &self.sandboxes[at].files;
        let known = files.iter().filter_map(|(name, may_be)| match may_be.as_slice() {
            [Some(content)] => Some((name.clone(), *content)),
            _ => None,
        });
        let known: Vec<_> = known.collect();
        if known.is_empty() {
            return Ok(());
        }
        let (name, content) = self.random.pick(&known).clone();
        let path = self.path(at, &format!("/files/content?path={name}"));
        self.will_resume(at);
        let answered = self.client.try_call("GET", &path).await;
        let answer = self.record("download", answered)?;
        self.has_resumed(at);
        if answer.body != content.make() {
            self.failures
                .push(format!("{path}: {} bytes, which differ from the uploaded ones", answer.body.len()));
        }
        Ok(())
    }

    /// Expects that a request will resume the sandbox at some moment if it is paused.
    fn will_resume(&mut self, at: usize) {
        let expected = &mut self.sandboxes[at];
        if expected.paused != [false] {
            expected.paused = vec![true, false];
            expected.expires.clear();
        }
    }

    fn has_resumed(&mut self, at: usize) {
        self.sandboxes[at].paused = vec![false];
    }

    async fn pause(&mut self, at: usize) -> Step {
        if self.sandboxes[at].paused != [false] {
            return Ok(());
        }
        self.sandboxes[at].paused = vec![false, true];
        self.sandboxes[at].expires.clear();
        let answered = self.client.try_call("POST", &self.path(at, "/pause")).await;
        self.record("pause", answered)?;
        self.sandboxes[at].paused = vec![true];
        Ok(())
    }

    async fn resume(&mut self, at: usize) -> Step {
        self.will_resume(at);
        let answered = self.client.try_json("POST", &self.path(at, "/resume"), &json!({})).await;
        let info = self.record("resume", answered)?.json();
        self.has_resumed(at);
        self.sandboxes[at].expires = vec![info["expires_at"].to_string()];
        Ok(())
    }

    async fn snapshot(&mut self, at: usize) -> Step {
        if self.templates.iter().filter(|template| template.there != [false]).count() >= 3 {
            return self.remove_template().await;
        }
        let name = self.fresh_name();
        self.will_resume(at);
        let Expected { files, memory_mib, .. } = self.sandboxes[at].clone();
        self.templates.push(Template {
            name: name.clone(),
            there: vec![false, true],
            digest: None,
            files,
            memory_mib,
        });
        let answered =
            self.client.try_json("POST", &self.path(at, "/snapshot"), &json!({ "name": name })).await;
        let info = self.record("snapshot", answered)?.json();
        self.has_resumed(at);
        if let Some(template) = self.templates.last_mut() {
            template.there = vec![true];
            template.digest = info["digest"].as_str().map(str::to_owned);
        }
        Ok(())
    }

    async fn remove_template(&mut self) -> Step {
        let Some(at) = self.templates.iter().position(|template| template.there == [true]) else {
            return Ok(());
        };
        self.templates[at].there = vec![true, false];
        let path = format!("/v1/templates/{}", self.templates[at].name);
        let answered = self.client.try_call("DELETE", &path).await;
        self.record("remove template", answered)?;
        self.templates[at].there = vec![false];
        Ok(())
    }

    async fn fork(&mut self, at: usize) -> Step {
        if self.sandboxes.len() + 1 >= MAX_SANDBOXES {
            return Ok(());
        }
        let mark = self.fresh_name();
        self.will_resume(at);
        let expected = &self.sandboxes[at];
        self.forked.push(Forked {
            mark: mark.clone(),
            files: expected.files.clone(),
            once: expected.once.clone(),
        });
        let body =
            json!({ "count": 1 + self.random.below(2), "timeout": LIFE_S, "labels": { "mark": mark } });
        let answered = self.client.try_json("POST", &self.path(at, "/fork"), &body).await;
        let forks = self.record("fork", answered)?.json();
        self.has_resumed(at);
        let Some(forked) = self.forked.pop() else { return Ok(()) };
        let memory_mib = self.sandboxes[at].memory_mib.clone();
        for fork in forks["sandboxes"].as_array().into_iter().flatten() {
            match fork["sandbox"]["id"].as_str() {
                Some(id) => {
                    let mut expected = forked.expected(id);
                    expected.memory_mib.clone_from(&memory_mib);
                    self.sandboxes.push(expected);
                }
                None if self.disturbed.load(Ordering::Relaxed) => {}
                None => self.failures.push(format!("fork: {fork}")),
            }
        }
        Ok(())
    }

    async fn kill(&mut self, at: usize) -> Step {
        if self.sandboxes.len() < 2 {
            return Ok(());
        }
        self.sandboxes[at].gone = vec![false, true];
        let answered = self.client.try_call("DELETE", &self.path(at, "")).await;
        self.record("kill", answered)?;
        let expected = self.sandboxes.swap_remove(at);
        self.gone.insert(expected.id);
        Ok(())
    }

    async fn set_timeout(&mut self, at: usize) -> Step {
        let timeout = LIFE_S + self.random.below(1000);
        self.sandboxes[at].expires.clear();
        let answered =
            self.client.try_json("POST", &self.path(at, "/timeout"), &json!({ "timeout": timeout })).await;
        let info = self.record("timeout", answered)?.json();
        if self.sandboxes[at].paused == [false] {
            self.sandboxes[at].expires = vec![info["expires_at"].to_string()];
        }
        Ok(())
    }

    async fn publish(&mut self, at: usize) -> Step {
        let now = self.sandboxes[at].ports.last().cloned().unwrap_or_default();
        let port = 8000 + u16::try_from(self.random.below(3)).unwrap_or(0);
        let mut then = now.clone();
        let is_new = then.insert(port);
        if !is_new {
            then.remove(&port);
        }
        self.sandboxes[at].ports = vec![now, then.clone()];
        let answered = if is_new {
            self.client.try_json("POST", &self.path(at, "/ports"), &json!({ "port": port })).await
        } else {
            self.client.try_call("DELETE", &self.path(at, &format!("/ports/{port}"))).await
        };
        self.record("port", answered)?;
        self.sandboxes[at].ports = vec![then];
        Ok(())
    }

    async fn relabel(&mut self, at: usize) -> Step {
        let mark = self.fresh_name();
        self.sandboxes[at].mark.push(mark.clone());
        let body = json!({ "labels": { "mark": mark } });
        let answered = self.client.try_json("PATCH", &self.path(at, ""), &body).await;
        self.record("label", answered)?;
        self.sandboxes[at].mark = vec![mark];
        Ok(())
    }

    async fn limit(&mut self, at: usize) -> Step {
        if self.sandboxes[at].paused != [false] {
            return Ok(());
        }
        let memory = *self.random.pick(&[256, 384, 512, 640]);
        self.sandboxes[at].memory_mib.push(memory);
        let body = json!({ "limits": { "memory": format!("{memory}m") } });
        let answered = self.client.try_json("PATCH", &self.path(at, ""), &body).await;
        self.record("limits", answered)?;
        self.sandboxes[at].memory_mib = vec![memory];
        Ok(())
    }

    async fn key(&mut self) -> Step {
        if let Some(at) = self.keys.iter().position(|key| key.opens == [true]).filter(|_| self.keys.len() > 1)
        {
            self.keys[at].opens = vec![true, false];
            let path = format!("/v1/keys/{}", self.keys[at].id);
            let answered = self.client.try_call("DELETE", &path).await;
            self.record("revoke key", answered)?;
            self.keys[at].opens = vec![false];
            return Ok(());
        }
        let body = json!({ "name": self.fresh_name(), "role": "read" });
        let answered = self.client.try_json("POST", "/v1/keys", &body).await;
        let made = self.record("create key", answered)?.json();
        let text = |name: &str| made[name].as_str().unwrap_or_default().to_owned();
        self.keys.push(Key { id: text("id"), secret: text("key"), opens: vec![true] });
        Ok(())
    }
}

impl Forked {
    pub(crate) fn expected(&self, id: &str) -> Expected {
        let mut expected = Expected::new(id, &self.mark);
        expected.files.clone_from(&self.files);
        expected.once.clone_from(&self.once);
        // A fork has the limits that the original has at that moment.
        expected.memory_mib = vec![256, 384, 512, 640];
        expected
    }
}
