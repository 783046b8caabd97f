//! Template builds: from a name to steps, and their status.
//!
//! ```text
//!   POST /v3/templates ─► GET …/files/{hash} ─► PUT /uploads/{token} ─► POST /v2/…/builds/{id} ─► GET …/status
//! ```
//!
//! Steps that this server does not support are refused before anything starts. Clients get the refusal as the failure
//! of the step in question, so that they point at its line.

use axum::Json as Answer;
use axum::extract::State;
use axum::response::Response;
use belljar_keeper::{
    BASE_STEP, BuildLine, BuildPlan, BuildStatus, Caller, CopyFiles, FINAL_STEP, FilesHash, KeeperError,
    LogLevel, MAX_PLAN_STEPS, NewBuild, PlanStep, RequestedBuild, StepFailure, TaggedName, image_template,
};
use belljar_model::{Cpus, EnvVar, LimitsFile, Memory};
use futures::StreamExt as _;
use http::{Extensions, HeaderMap, StatusCode};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::access::USER;
use super::error::{json_answer, not_offered};
use super::templates;
use crate::api::Shared;
use crate::extract::{Auth, BuildId, Hash, Id, Json, Query, RawBody, Token};
use crate::guard::{Client, RequestId, denied, refuse};
use crate::problem::{Code, Problem};
use crate::rest::base_url;

/// Images for which this server has templates, without their tags.
const IMAGES: [(&str, &str); 2] =
    [("e2bdev/base", templates::BASE), ("e2bdev/code-interpreter", templates::CODE_INTERPRETER)];

/// Maximum number of log entries in one response.
const MAX_ENTRIES: usize = 100;

/// Maximum length of the name of a user, in bytes, as Linux has it (useradd(8)).
const MAX_USER_BYTES: usize = 32;

/// Maximum length of a command, in bytes.
const MAX_COMMAND_BYTES: usize = 64 << 10;

/// A request for a build, of both generations of the API: the first uses `alias`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NewTemplate {
    name: Option<String>,
    alias: Option<String>,
    tags: Option<Vec<String>>,
    cpu_count: Option<u32>,
    #[serde(rename = "memoryMB")]
    memory_mb: Option<u32>,
    #[serde(rename = "minFreeDiskMB")]
    min_free_disk_mb: Option<u32>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RequestedBody {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "buildID")]
    build_id: String,
    public: bool,
    names: [String; 1],
    aliases: [String; 1],
    tags: Vec<String>,
}

impl From<RequestedBuild> for RequestedBody {
    fn from(build: RequestedBuild) -> Self {
        Self {
            // A name belongs to its tenant, and stays the same from build to build.
            template_id: build.name.clone(),
            build_id: build.id,
            public: false,
            names: [build.name.clone()],
            aliases: [build.name],
            tags: build.tags,
        }
    }
}

/// Requests a build.
pub(super) async fn request(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Json(body): Json<NewTemplate>,
) -> Result<Response, Problem> {
    if body.min_free_disk_mb.is_some_and(|room| room > 0) {
        return Err(not_offered("minFreeDiskMB (a sandbox has the disk of its limits)"));
    }
    let name = body.name.or(body.alias).ok_or_else(|| Problem::field("name", "it is missing"))?;
    let limits = LimitsFile {
        memory: body.memory_mb.map(|memory| Memory::new(u64::from(memory) << 20)).transpose()?,
        cpus: body.cpu_count.map(|count| Cpus::new(count.saturating_mul(1000))).transpose()?,
        ..LimitsFile::default()
    };
    let new = NewBuild { name: name.parse()?, tags: body.tags.unwrap_or_default(), limits };
    let requested = shared.keeper.request_build(&caller, new).await?;
    Ok(json_answer(StatusCode::ACCEPTED, &RequestedBody::from(requested)))
}

/// Reports whether files are already uploaded, and where to upload them.
pub(super) async fn files(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Hash(hash): Hash,
    headers: HeaderMap,
    extensions: Extensions,
) -> Result<Response, Problem> {
    let hash: FilesHash = hash.parse()?;
    let link = shared.keeper.upload_link(&caller, &name_of(&id)?, &hash)?;
    let url = format!("{}/uploads/{}", base_url(&shared, &headers, &extensions), link.token);
    Ok(json_answer(StatusCode::CREATED, &json!({"present": link.present, "url": url})))
}

/// Uploads files by a link, which is the only credential needed.
pub(super) async fn upload(
    State(shared): State<Shared>,
    Token(token): Token,
    headers: HeaderMap,
    extensions: Extensions,
    body: RawBody,
) -> Result<StatusCode, Problem> {
    let client = Client::from_request(&shared.config, &headers, &extensions);
    let opened =
        shared.keeper.open_upload(&token, &client.text, &RequestId::from_extensions(&extensions)).await;
    let opened = opened.map_err(|why| refuse(&shared, &client, why, denied()))?;
    let _slot = shared.streams.take(&opened.caller)?;
    let length = body.length;
    let body = body.bound(&shared.streams, &opened.caller);
    shared.keeper.receive_upload(&opened, length, body.stream().boxed()).await?;
    Ok(StatusCode::OK)
}

/// The definition of a template to build.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StartBody {
    from_image: Option<String>,
    from_template: Option<String>,
    from_image_registry: Option<Value>,
    #[serde(default)]
    steps: Vec<StepBody>,
    start_cmd: Option<String>,
    ready_cmd: Option<String>,
}

/// One step. The flag that forces a step is ignored: every step of every build is run.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StepBody {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    args: Vec<String>,
    files_hash: Option<String>,
}

/// Starts a build.
pub(super) async fn start(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    BuildId(build): BuildId,
    Json(body): Json<StartBody>,
) -> Result<StatusCode, Problem> {
    let plan = make_plan(&shared, &caller, body).await?;
    shared.keeper.start_build(&caller, &name_of(&id)?, &build, plan)?;
    Ok(StatusCode::ACCEPTED)
}

/// Parses the name that a client gives as a template's id. An invalid name is the id of no build.
fn name_of(id: &str) -> Result<TaggedName, Problem> {
    let missing = || KeeperError::NotFound { what: "template", id: id.chars().take(64).collect() };
    id.parse().map_err(|_| missing().into())
}

fn failure(step: impl ToString, message: impl Into<String>) -> StepFailure {
    StepFailure { step: step.to_string(), message: message.into() }
}

/// Plans the build. The inner error is the step that is not supported.
async fn make_plan(
    shared: &Shared,
    caller: &Caller,
    body: StartBody,
) -> Result<Result<BuildPlan, StepFailure>, Problem> {
    let name = match base_name(&body) {
        Ok(name) => name,
        Err(message) => return Ok(Err(failure(BASE_STEP, message))),
    };
    let (base, machine) = match templates::find(shared, caller, &name).await {
        Ok(found) => (found.name.unwrap_or(found.id), (found.machine, found.base == "own")),
        Err(problem) if problem.code() == Code::TemplateNotFound => {
            let message = match body.from_image {
                Some(image) => format!(
                    "the image {image:?} is not on this server; its operator can pull it with belljar image pull {image}"
                ),
                None => format!("template {name:?} not found; build it first"),
            };
            return Ok(Err(failure(BASE_STEP, message)));
        }
        Err(problem) => return Err(problem),
    };
    if body.steps.len() > MAX_PLAN_STEPS {
        let detail = format!("{} are too many; at most {MAX_PLAN_STEPS} are allowed", body.steps.len());
        return Err(Problem::field("steps", detail));
    }
    let (is_machine, has_own_tree) = machine;
    let may_be_machine = is_machine || (has_own_tree && shared.keeper.may_make_machines(caller));
    let mut steps = Vec::with_capacity(body.steps.len());
    for (index, step) in body.steps.into_iter().enumerate() {
        match step.read(may_be_machine) {
            Ok(step) => steps.push(step),
            Err(message) => return Ok(Err(failure(index + 1, message))),
        }
    }
    let command = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
    let (start, ready) = (command(body.start_cmd), command(body.ready_cmd));
    for (what, text) in [("startCmd", &start), ("readyCmd", &ready)] {
        if let Some(Err(message)) = text.as_deref().map(|text| check_command(what, text)) {
            return Ok(Err(failure(FINAL_STEP, message)));
        }
    }
    let network = shared.config.e2b_internet.then(|| "open".into());
    Ok(Ok(BuildPlan { base, steps, start, ready, network }))
}

/// Returns the name of the base template.
fn base_name(body: &StartBody) -> Result<String, String> {
    match (&body.from_template, &body.from_image) {
        (Some(_), Some(_)) => Err("give fromTemplate or fromImage, not both".to_owned()),
        (Some(template), None) if body.from_image_registry.is_none() => Ok(template.clone()),
        (None, Some(image)) if body.from_image_registry.is_none() => {
            let (repository, tag) = image.rsplit_once(':').unwrap_or((image, "latest"));
            let found = IMAGES.iter().find(|(image, _)| *image == repository && tag == "latest");
            match found {
                Some((_, template)) => Ok((*template).to_owned()),
                None => image.parse().map(|image| image_template(&image)).map_err(|error| format!("fromImage: {error}")),
            }
        }
        (None, None) => Err("no base; give fromTemplate".to_owned()),
        _ => Err("fromImageRegistry: credentials of registries are the operator's; it can pull the image with belljar image pull".to_owned()),
    }
}

fn check_command(what: &str, text: &str) -> Result<(), String> {
    if text.is_empty() || text.len() > MAX_COMMAND_BYTES || text.contains('\0') {
        return Err(format!("{what}: give a command of 1 to {MAX_COMMAND_BYTES} bytes without NUL"));
    }
    Ok(())
}

/// Checks the user of a step, and returns it if it is not the sandbox's own. Others are in machines alone.
fn read_user(what: &str, name: &str, may_be_machine: bool) -> Result<Option<String>, String> {
    if name.is_empty() || name == USER {
        return Ok(None);
    }
    if !may_be_machine {
        return Err(format!(
            "{what}: user {name:?} is not offered; the only user of a sandbox is '{USER}', without privileges \
             (pip_install, npm_install and bun_install ask for root unless g is false; users are in machines alone: of templates with \
             machine = true, or with a tree of their own if the operator allows it by sandboxes.machines = true)"
        ));
    }
    let is_name = name.len() <= MAX_USER_BYTES
        && !name.starts_with('-')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
    is_name.then(|| Some(name.to_owned())).ok_or_else(|| {
        format!("{what}: user {name:?} is not allowed; give a name of letters, digits, _, . and -")
    })
}

impl StepBody {
    /// Parses the step, or returns why it is not supported.
    fn read(self, may_be_machine: bool) -> Result<PlanStep, String> {
        let argument = |index: usize| self.args.get(index).map_or("", String::as_str);
        let kind = self.kind.as_str();
        let at_most = |max: usize| match self.args.len() {
            0 => Err(format!("{kind}: its arguments are missing")),
            count if count > max => {
                Err(format!("{kind}: {count} arguments are too many; give at most {max}"))
            }
            _ => Ok(()),
        };
        match kind {
            "RUN" => {
                at_most(2)?;
                check_command(kind, argument(0))?;
                let user = read_user(kind, argument(1), may_be_machine)?;
                Ok(PlanStep::Run { line: argument(0).to_owned(), user })
            }
            "ENV" => {
                let (pairs, []) = self.args.as_chunks::<2>() else {
                    return Err("ENV: give each variable with its value".to_owned());
                };
                let pair = |[name, value]: &[String; 2]| match EnvVar::new(name.clone(), value.clone()) {
                    Ok(_) => Ok((name.clone(), value.clone())),
                    Err(error) => Err(format!("ENV: {error}")),
                };
                let pairs = pairs.iter().map(pair).collect::<Result<Vec<_>, _>>()?;
                if pairs.is_empty() {
                    return Err("ENV: its arguments are missing".to_owned());
                }
                Ok(PlanStep::Env(pairs))
            }
            "WORKDIR" => {
                at_most(1)?;
                check_path(kind, argument(0))?;
                Ok(PlanStep::Workdir(argument(0).to_owned()))
            }
            "USER" => {
                at_most(1).map_err(|error| format!("{error}; privileges cannot be raised here"))?;
                Ok(PlanStep::User(read_user(kind, argument(0), may_be_machine)?))
            }
            "COPY" => {
                at_most(4)?;
                check_path("COPY: target", argument(1))?;
                let owners = argument(2).splitn(2, ':').map(|owner| read_user(kind, owner, may_be_machine));
                let owners = owners.collect::<Result<Vec<_>, _>>()?;
                // Of both is kept what was given, unless both are the sandbox's own.
                let owner = owners.iter().any(Option::is_some).then(|| argument(2).to_owned());
                let mode = match argument(3) {
                    "" => None,
                    text => {
                        let bits = u32::from_str_radix(text, 8).ok().filter(|bits| *bits <= 0o777);
                        let refused = || {
                            format!(
                                "COPY: mode {text:?} is not allowed; give permission bits as 0755, at most 0777"
                            )
                        };
                        Some(bits.ok_or_else(refused)?)
                    }
                };
                let hash = self.files_hash.as_deref().ok_or("COPY: filesHash is missing")?;
                let refused = |error: KeeperError| format!("COPY: {error}");
                Ok(PlanStep::Copy(CopyFiles {
                    hash: hash.parse().map_err(refused)?,
                    source: argument(0).parse().map_err(refused)?,
                    target: argument(1).to_owned(),
                    mode,
                    owner,
                }))
            }
            other => {
                let shown: String = other.chars().take(32).collect();
                Err(format!("invalid step {shown:?}; give RUN, ENV, WORKDIR, USER or COPY"))
            }
        }
    }
}

fn check_path(what: &str, path: &str) -> Result<(), String> {
    if path.is_empty() || path.len() > 4096 || path.contains(['\0', '\n']) {
        return Err(format!("{what}: give a path of 1 to 4096 bytes without NUL and line ends"));
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StatusQuery {
    logs_offset: Option<usize>,
    limit: Option<usize>,
    level: Option<Level>,
}

#[derive(Clone, Copy, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

impl From<Level> for LogLevel {
    fn from(level: Level) -> Self {
        match level {
            Level::Debug => Self::Debug,
            Level::Info => Self::Info,
            Level::Warn => Self::Warning,
            Level::Error => Self::Error,
        }
    }
}

impl From<LogLevel> for Level {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Debug => Self::Debug,
            LogLevel::Info => Self::Info,
            LogLevel::Warning => Self::Warn,
            LogLevel::Error => Self::Error,
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StatusBody {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "buildID")]
    build_id: String,
    status: &'static str,
    /// A field of the first generation: always empty now.
    logs: [String; 0],
    log_entries: Vec<LineBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<ReasonBody>,
}

#[derive(Serialize)]
struct LineBody {
    timestamp: Timestamp,
    message: String,
    level: Level,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<String>,
}

impl From<BuildLine> for LineBody {
    fn from(line: BuildLine) -> Self {
        Self { timestamp: line.at, message: line.text, level: line.level.into(), step: line.step }
    }
}

#[derive(Serialize)]
struct ReasonBody {
    message: String,
    step: String,
}

/// Returns the status of a build.
pub(super) async fn status(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    BuildId(build): BuildId,
    Query(query): Query<StatusQuery>,
) -> Result<Answer<StatusBody>, Problem> {
    let limit = query.limit.unwrap_or(MAX_ENTRIES);
    if limit > MAX_ENTRIES {
        return Err(Problem::field("limit", format!("{limit} is not allowed; give at most {MAX_ENTRIES}")));
    }
    let name = name_of(&id)?;
    let part = (query.logs_offset.unwrap_or(0), limit, query.level.map_or(LogLevel::Debug, Into::into));
    let report = shared.keeper.build_report(&caller, &name, &build, part).await?;
    Ok(Answer(StatusBody {
        template_id: name.name().to_owned(),
        build_id: build,
        status: match report.status {
            BuildStatus::Waiting => "waiting",
            BuildStatus::Building => "building",
            BuildStatus::Ready => "ready",
            BuildStatus::Failed => "error",
        },
        logs: [],
        log_entries: report.lines.into_iter().map(Into::into).collect(),
        reason: report.failure.map(|StepFailure { step, message }| ReasonBody { message, step }),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(json: Value) -> Result<PlanStep, String> {
        serde_json::from_value::<StepBody>(json).unwrap().read(false)
    }

    #[test]
    fn steps_are_parsed_or_refused_with_their_kind() {
        let run = |args: Value| step(json!({"type": "RUN", "args": args, "force": false}));
        let ls = |user: Option<&str>| PlanStep::Run { line: "ls".to_owned(), user: user.map(str::to_owned) };
        assert_eq!(run(json!(["ls"])), Ok(ls(None)));
        assert_eq!(run(json!(["ls", "user"])), Ok(ls(None)));
        // Others are in machines alone.
        let in_machine = |json: Value| serde_json::from_value::<StepBody>(json).unwrap().read(true);
        let run_there = |user: &str| in_machine(json!({"type": "RUN", "args": ["ls", user]}));
        assert_eq!((run_there("root"), run_there("user")), (Ok(ls(Some("root"))), Ok(ls(None))));
        for name in ["-x", "a b", "a:b", "a/b", "\n", &"x".repeat(33)] {
            assert!(run_there(name).unwrap_err().contains("is not allowed"), "{name:?}");
        }
        let user = in_machine(json!({"type": "USER", "args": ["www-data"]}));
        assert_eq!(user, Ok(PlanStep::User(Some("www-data".to_owned()))));
        for (owner, expected) in [
            ("root:root", Some("root:root")),
            ("user:www", Some("user:www")),
            ("user:user", None),
            ("", None),
        ] {
            let json = json!({"type": "COPY", "args": ["a", "b", owner], "filesHash": "a".repeat(64)});
            let Ok(PlanStep::Copy(copy)) = in_machine(json) else { panic!("{owner}") };
            assert_eq!(copy.owner.as_deref(), expected);
        }
        assert!(run(json!(["ls", "root"])).unwrap_err().contains("\"root\" is not offered"));
        assert!(run(json!([])).is_err() && run(json!([""])).is_err());
        let env = step(json!({"type": "ENV", "args": ["A", "1", "B", "$A"]})).unwrap();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(env, PlanStep::Env(vec![pair("A", "1"), pair("B", "$A")]));
        for args in [json!([]), json!(["A"]), json!(["A=", "1"])] {
            assert!(step(json!({"type": "ENV", "args": args})).unwrap_err().starts_with("ENV: "), "{args}");
        }
        let copy = |args: Value| step(json!({"type": "COPY", "args": args, "filesHash": "a".repeat(64)}));
        let PlanStep::Copy(read) = copy(json!(["a/*", "b/", "user:user", "0755"])).unwrap() else { panic!() };
        assert_eq!((read.source.as_str(), read.target.as_str(), read.mode), ("a", "b/", Some(0o755)));
        for args in [
            json!(["../a", "b"]),
            json!(["a"]),
            json!(["a", "b", "root"]),
            json!(["a", "b", "", "4755"]),
            json!(["a", "b", "", "x"]),
        ] {
            assert!(copy(args.clone()).unwrap_err().starts_with("COPY"), "{args}");
        }
        assert!(step(json!({"type": "COPY", "args": ["a", "b"]})).unwrap_err().contains("filesHash"));
        assert!(step(json!({"type": "USER", "args": ["user", "true"]})).is_err());
        assert!(step(json!({"type": "VOLUME", "args": ["/x"]})).unwrap_err().contains("invalid step"));
    }

    #[test]
    fn images_map_to_templates() {
        let of = |json: Value| base_name(&serde_json::from_value(json).unwrap());
        assert_eq!(of(json!({"fromImage": "e2bdev/base"})).unwrap(), "base");
        assert_eq!(of(json!({"fromImage": "e2bdev/base:latest"})).unwrap(), "base");
        assert_eq!(of(json!({"fromTemplate": "mine:v1"})).unwrap(), "mine:v1");
        assert!(of(json!({"fromImage": "python:3"})).unwrap().starts_with("image-python-3-"));
        assert!(of(json!({"fromImage": "e2bdev/base:old"})).unwrap().starts_with("image-base-old-"));
        for refused in [
            json!({"fromImage": "Not A Name"}),
            json!({"fromImage": "e2bdev/base", "fromImageRegistry": {"type": "registry"}}),
            json!({"fromImage": "e2bdev/base", "fromTemplate": "base"}),
            json!({}),
        ] {
            assert!(of(refused.clone()).is_err(), "{refused}");
        }
    }
}
