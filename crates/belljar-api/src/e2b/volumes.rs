//! Volumes and their files over E2B's interface.

use axum::extract::State;
use axum::response::Response;
use belljar_engine::v1;
use belljar_keeper::operation::{Operation, Write};
use belljar_keeper::{Caller, Entered, KeeperError, NewVolume};
use belljar_model::VolumeMount;
use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderMap, Method, StatusCode};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::entry::name;
use super::error::json_answer;
use super::filesystem::{MAX_DEPTH, MAX_ENTRIES};
use crate::api::Shared;
use crate::extract::{Auth, Id, Json, Query, RawBody};
use crate::problem::{Code, Problem};
use crate::rest;

/// The extended attribute with the owner that a caller gave a file, as `UID:GID`. It has no effect on permissions.
const OWNER: &str = "belljar.owner";

/// The uid and gid of the sandbox's user.
const USER_ID: u32 = 1000;

/// A volume of a sandbox.
#[derive(Serialize, Deserialize)]
pub(super) struct MountBody {
    pub(super) name: String,
    pub(super) path: String,
}

impl From<&VolumeMount> for MountBody {
    fn from(volume: &VolumeMount) -> Self {
        Self { name: volume.name.clone(), path: volume.path.to_string_lossy().into_owned() }
    }
}

#[derive(Deserialize)]
pub(super) struct NewVolumeBody {
    name: String,
}

pub(super) async fn create(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Json(body): Json<NewVolumeBody>,
) -> Result<Response, Problem> {
    let request = NewVolume { name: body.name, bytes: None };
    let made = shared.keeper.create_volume(&caller, request).await.map_err(|error| match error {
        KeeperError::NameTaken { .. } => Problem::from(error).with_status(StatusCode::BAD_REQUEST),
        error => error.into(),
    })?;
    answer_with_token(&shared, &caller, StatusCode::CREATED, made.id.as_str(), &made.name).await
}

pub(super) async fn get(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<Response, Problem> {
    let found = shared.keeper.volume(&caller, &id).await?;
    answer_with_token(&shared, &caller, StatusCode::OK, found.id.as_str(), &found.name).await
}

/// Answers with a volume and a token for its files.
async fn answer_with_token(
    shared: &Shared,
    caller: &Caller,
    status: StatusCode,
    id: &str,
    name: &str,
) -> Result<Response, Problem> {
    let token = shared.keeper.volume_token(caller, id).await?;
    Ok(json_answer(status, &json!({"volumeID": id, "name": name, "token": token})))
}

/// Lists the volumes of the caller's own tenant, the only ones that it can open.
pub(super) async fn list(State(shared): State<Shared>, Auth(caller): Auth) -> Result<Response, Problem> {
    let all = shared.keeper.volumes(&caller).await?;
    let own = all.iter().filter(|volume| volume.tenant == caller.tenant);
    let listed: Vec<Value> =
        own.map(|volume| json!({"volumeID": volume.id.as_str(), "name": volume.name})).collect();
    Ok(json_answer(StatusCode::OK, &listed))
}

pub(super) async fn remove(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<StatusCode, Problem> {
    shared.keeper.remove_volume(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The files of a volume, for one request.
struct Files<'a> {
    shared: &'a Shared,
    caller: &'a Caller,
    entered: Entered,
}

impl<'a> Files<'a> {
    async fn open(shared: &'a Shared, caller: &'a Caller, id: &str) -> Result<Self, Problem> {
        Ok(Self { shared, caller, entered: shared.keeper.enter_volume(caller, id).await? })
    }

    async fn perform<O: Operation>(&self, operation: O) -> Result<O::Response, Problem> {
        let done = self.shared.keeper.perform_in(self.caller, &self.entered, operation).await;
        done.map_err(|error| match Problem::from(error) {
            // The volume is full.
            problem if problem.code() == Code::ResourceExhausted => {
                problem.with_status(StatusCode::INSUFFICIENT_STORAGE)
            }
            problem => problem,
        })
    }

    async fn stat(&self, path: &Bytes) -> Result<v1::Entry, Problem> {
        let request =
            v1::StatRequest { path: path.clone(), attributes: OWNER.to_owned(), ..Default::default() };
        self.perform(request).await
    }

    /// Sets the owner and the mode, as far as they are given, and returns the entry.
    async fn change(&self, path: &Bytes, owner: &OwnerBody, mode: Option<u32>) -> Result<v1::Entry, Problem> {
        let mut request = v1::SetModeRequest { path: path.clone(), mode, ..Default::default() };
        if owner.is_given() {
            let before = self.stat(path).await?;
            request.attributes.insert(OWNER.to_owned(), owner.text(&before));
            // Setting attributes needs write permission.
            let may_write = before.mode | 0o200;
            if may_write != before.mode {
                request.mode = Some(mode.unwrap_or(before.mode));
                self.perform(v1::SetModeRequest {
                    path: path.clone(),
                    mode: Some(may_write),
                    ..Default::default()
                })
                .await?;
            }
        }
        if owner.is_given() || mode.is_some() {
            self.perform(request).await?;
        }
        self.stat(path).await
    }
}

/// The owner in a request.
#[derive(Deserialize)]
pub(super) struct OwnerBody {
    uid: Option<u32>,
    gid: Option<u32>,
}

impl OwnerBody {
    fn is_given(&self) -> bool {
        self.uid.is_some() || self.gid.is_some()
    }

    /// Returns the attribute's value, with the present ids where none are given.
    fn text(&self, before: &v1::Entry) -> Bytes {
        let (uid, gid) = owner(before);
        format!("{}:{}", self.uid.unwrap_or(uid), self.gid.unwrap_or(gid)).into()
    }
}

/// Returns the owner of an entry. Programs in a sandbox can set the attribute as well, so anything else is ignored.
fn owner(entry: &v1::Entry) -> (u32, u32) {
    let given = entry.attributes.get(OWNER).and_then(|value| {
        let (uid, gid) = std::str::from_utf8(value).ok()?.split_once(':')?;
        Some((uid.parse().ok()?, gid.parse().ok()?))
    });
    given.unwrap_or((USER_ID, USER_ID))
}

/// Formats an entry at an absolute path of a volume.
fn to_body(path: &str, entry: &v1::Entry) -> Value {
    let kind = match entry.kind.as_known().unwrap_or_default() {
        v1::FileKind::FILE_KIND_FILE => "file",
        v1::FileKind::FILE_KIND_DIRECTORY => "directory",
        v1::FileKind::FILE_KIND_SYMLINK => "symlink",
        _ => "unknown",
    };
    let time = |ns: i64| Timestamp::from_nanosecond(i128::from(ns)).unwrap_or_default();
    let (uid, gid) = owner(entry);
    let mut body = json!({
        "name": name(path), "type": kind, "path": path, "size": entry.size, "mode": entry.mode & 0o7777,
        "uid": uid, "gid": gid,
        "atime": time(entry.accessed_ns), "mtime": time(entry.modified_ns), "ctime": time(entry.changed_ns),
    });
    if kind == "symlink" {
        body["target"] = json!(String::from_utf8_lossy(&entry.symlink_target));
    }
    body
}

/// Makes a path absolute and removes empty and `.` parts. The keeper refuses `..`.
fn to_absolute(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    format!("/{}", parts.join("/"))
}

fn bytes(path: &str) -> Bytes {
    Bytes::copy_from_slice(path.as_bytes())
}

/// Checks the mode of a new file or directory; 0 stands for the default in the guest's protocol.
fn check_new_mode(mode: Option<u32>) -> Result<u32, Problem> {
    match mode {
        Some(0) => Err(Problem::field("mode", "0 is not allowed for something new; give 1 to 4095 (0o7777)")),
        mode => Ok(check_mode(mode)?.unwrap_or(0)),
    }
}

fn check_mode(mode: Option<u32>) -> Result<Option<u32>, Problem> {
    match mode {
        Some(mode) if mode > 0o7777 => {
            Err(Problem::field("mode", format!("{mode} is not allowed; give 0 to 4095 (0o7777)")))
        }
        mode => Ok(mode),
    }
}

#[derive(Deserialize)]
pub(super) struct PathQuery {
    path: String,
}

pub(super) async fn stat(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<PathQuery>,
) -> Result<Response, Problem> {
    let path = to_absolute(&query.path);
    let files = Files::open(&shared, &caller, &id).await?;
    let entry = files.stat(&bytes(&path)).await?;
    Ok(json_answer(StatusCode::OK, &to_body(&path, &entry)))
}

#[derive(Deserialize)]
pub(super) struct ChangeBody {
    #[serde(flatten)]
    owner: OwnerBody,
    mode: Option<u32>,
}

pub(super) async fn change(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<PathQuery>,
    Json(body): Json<ChangeBody>,
) -> Result<Response, Problem> {
    let path = to_absolute(&query.path);
    let mode = check_mode(body.mode)?;
    let files = Files::open(&shared, &caller, &id).await?;
    let entry = files.change(&bytes(&path), &body.owner, mode).await?;
    Ok(json_answer(StatusCode::OK, &to_body(&path, &entry)))
}

/// Removes a file, or a directory with its contents.
pub(super) async fn remove_path(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<PathQuery>,
) -> Result<StatusCode, Problem> {
    let files = Files::open(&shared, &caller, &id).await?;
    let request = v1::RemoveRequest { path: bytes(&query.path), recursive: true, ..Default::default() };
    files.perform(request).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
pub(super) struct ListQuery {
    path: String,
    depth: Option<u32>,
}

pub(super) async fn list_files(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<ListQuery>,
) -> Result<Response, Problem> {
    let path = to_absolute(&query.path);
    let files = Files::open(&shared, &caller, &id).await?;
    let depth = query.depth.unwrap_or(1).clamp(1, MAX_DEPTH);
    let mut request =
        v1::ListRequest { path: bytes(&path), depth, attributes: OWNER.to_owned(), ..Default::default() };
    let mut all = Vec::new();
    loop {
        let page = files.perform(request.clone()).await?;
        if all.len() + page.entries.len() > MAX_ENTRIES {
            let detail = format!("{path}: too many entries: more than {MAX_ENTRIES}; list less of it");
            return Err(Problem::new(Code::TooLarge, detail));
        }
        all.extend(page.entries.iter().map(|entry| {
            let at = format!("{}/{}", path.trim_end_matches('/'), String::from_utf8_lossy(&entry.path));
            to_body(&at, entry)
        }));
        if page.next.is_empty() {
            return Ok(json_answer(StatusCode::OK, &all));
        }
        request.after = page.next;
    }
}

#[derive(Deserialize)]
pub(super) struct NewQuery {
    path: String,
    uid: Option<u32>,
    gid: Option<u32>,
    mode: Option<u32>,
    force: Option<bool>,
}

impl NewQuery {
    fn owner(&self) -> OwnerBody {
        OwnerBody { uid: self.uid, gid: self.gid }
    }
}

/// Creates a directory. With `force` an existing one is no error, and missing parents are created.
pub(super) async fn make_dir(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<NewQuery>,
) -> Result<Response, Problem> {
    let path = to_absolute(&query.path);
    let (at, mode, parents) = (bytes(&path), check_new_mode(query.mode)?, query.force.unwrap_or(false));
    let files = Files::open(&shared, &caller, &id).await?;
    files.perform(v1::MakeDirRequest { path: at.clone(), parents, mode, ..Default::default() }).await?;
    // An existing directory may have another mode.
    let entry = files.change(&at, &query.owner(), query.mode.filter(|_| parents)).await?;
    Ok(json_answer(StatusCode::CREATED, &to_body(&path, &entry)))
}

pub(super) async fn read(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<PathQuery>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let slot = shared.streams.take(&caller)?;
    let entered = shared.keeper.enter_volume(&caller, &id).await?;
    rest::send_file(&shared, &caller, slot, &entered, bytes(&query.path), &method, &headers).await
}

/// Writes a file, which appears when the upload is complete. An existing one is replaced, except with `force=false`.
pub(super) async fn write(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<NewQuery>,
    body: RawBody,
) -> Result<Response, Problem> {
    let path = to_absolute(&query.path);
    let (at, owner) = (bytes(&path), query.owner());
    let mut open = v1::WriteOpen {
        path: at.clone(),
        mode: check_new_mode(query.mode)?,
        make_parents: true,
        exclusive: query.force == Some(false),
        ..Default::default()
    };
    if owner.is_given() {
        open.attributes.insert(OWNER.to_owned(), owner.text(&v1::Entry::default()));
    }
    let _slot = shared.streams.take(&caller)?;
    let files = Files::open(&shared, &caller, &id).await?;
    let content = rest::check_length(body.length, body.stream().boxed());
    files.perform(Write::new(open, content)).await?;
    let entry = files.stat(&at).await?;
    Ok(json_answer(StatusCode::CREATED, &to_body(&path, &entry)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_falls_back_to_the_user_for_invalid_attributes() {
        let entry = |value: &'static str| v1::Entry {
            attributes: [(OWNER.to_owned(), Bytes::from_static(value.as_bytes()))].into_iter().collect(),
            ..Default::default()
        };
        for (value, expected) in [
            ("7:8", (7, 8)),
            ("0:4294967295", (0, u32::MAX)),
            ("", (USER_ID, USER_ID)),
            ("7", (USER_ID, USER_ID)),
            ("-1:5", (USER_ID, USER_ID)),
            ("7:8:9", (USER_ID, USER_ID)),
        ] {
            assert_eq!(owner(&entry(value)), expected, "{value}");
        }
        let only_gid = OwnerBody { uid: None, gid: Some(3) };
        assert_eq!(only_gid.text(&entry("7:8")), "7:3");
    }

    #[test]
    fn modes_are_validated() {
        assert_eq!(check_new_mode(None).unwrap(), 0);
        assert_eq!(check_new_mode(Some(0o640)).unwrap(), 0o640);
        assert!(check_new_mode(Some(0)).is_err() && check_new_mode(Some(0o10000)).is_err());
        assert_eq!(check_mode(Some(0)).unwrap(), Some(0));
    }
}
