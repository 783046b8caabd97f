//! Signed URLs: access to one file, for one operation, for a limited time, without a key.

use axum::extract::State;
use axum::response::Response;
use belljar_engine::v1;
use belljar_keeper::{FileOperation, KeeperError, SignedFile};
use http::{Extensions, HeaderMap, Method, StatusCode};
use serde::Deserialize;
use utoipa::ToSchema;

use super::archive::{PackFormat, send_archive};
use super::content::{receive_file, send_file};
use super::ports::base_url;
use super::sandboxes::DEFAULT_TOKEN_VALIDITY;
use super::types::{FileEntry, Span, TokenBody, check_path, time};
use crate::api::Shared;
use crate::extract::{Auth, Id, Json, RawBody, Token};
use crate::guard::{Client, RequestId, denied};
use crate::problem::Problem;

/// A file to sign.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SignFile, example = json!({"path": "out/data.csv", "operation": "read", "expires": 3600}))]
pub(super) struct SignBody {
    /// The file, or for `archive` the directory: absolute, or below the home directory.
    path: String,
    /// The operation that the URL allows.
    operation: Operation,
    /// Validity period of the URL. An hour, if not given.
    #[serde(default)]
    expires: Option<Span>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = FileOperation)]
enum Operation {
    Read,
    Write,
    /// Reads a directory with everything in it, as tar.gz.
    Archive,
}

/// Creates a URL at which this file can be read or written, or this directory read as an archive, without a key.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/sign", tag = "files", request_body = SignBody,
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 201, description = "The signed URL.", body = TokenBody)))]
pub(super) async fn sign(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    headers: HeaderMap,
    extensions: Extensions,
    Json(body): Json<SignBody>,
) -> Result<(StatusCode, axum::Json<TokenBody>), Problem> {
    check_path("path", body.path.as_bytes())?;
    let operation = match body.operation {
        Operation::Read => FileOperation::Read,
        Operation::Write => FileOperation::Write,
        Operation::Archive => FileOperation::Archive,
    };
    let expires = body.expires.map_or(DEFAULT_TOKEN_VALIDITY, |expires| expires.0);
    let issued = shared.keeper.sign_file(&caller, &id, body.path.into(), operation, expires).await?;
    let base = base_url(&shared, &headers, &extensions);
    let url = Some(format!("{base}/v1/signed/{}", issued.token));
    Ok((StatusCode::CREATED, axum::Json(TokenBody { token: None, url, expires_at: time(issued.expires_at) })))
}

/// Returns the file of a URL, if it is signed for one of these operations. All refusals look alike.
async fn open_signed_file(
    shared: &Shared,
    token: &str,
    headers: &HeaderMap,
    extensions: &Extensions,
    operations: &[FileOperation],
) -> Result<SignedFile, Problem> {
    let client = Client::from_request(&shared.config, headers, extensions);
    let signed =
        shared.keeper.open_signed(token, &client.text, &RequestId::from_extensions(extensions)).await;
    match signed {
        Ok(signed) if operations.contains(&signed.operation) => Ok(signed),
        Ok(_) => Err(denied()),
        // Not counted as a wrong key: a browser opens a link of any page by itself.
        Err(KeeperError::NotFound { what: "signed file", .. }) => Err(denied()),
        Err(error) => Err(error.into()),
    }
}

/// Reads the file of a signed URL, or the directory as tar.gz.
#[utoipa::path(get, path = "/v1/signed/{token}", tag = "files", operation_id = "download_signed", security(()),
    params(("token" = String, Path, description = "The token in the URL.")),
    responses(
        (status = 200, description = "The file, or the archive.", content(
            (Vec<u8> = "application/octet-stream"),
            (Vec<u8> = "application/gzip"))),
        (status = 206, description = "A part of the file.", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 304, description = "Not modified.")))]
pub(super) async fn download(
    State(shared): State<Shared>,
    Token(token): Token,
    method: Method,
    headers: HeaderMap,
    extensions: Extensions,
) -> Result<Response, Problem> {
    let readable = [FileOperation::Read, FileOperation::Archive];
    let signed = open_signed_file(&shared, &token, &headers, &extensions, &readable).await?;
    let slot = shared.streams.take(&signed.caller)?;
    if signed.operation == FileOperation::Archive {
        let SignedFile { caller, entered, path, .. } = &signed;
        return send_archive(&shared, caller, slot, entered, path.clone(), PackFormat::TarGzip).await;
    }
    send_file(&shared, &signed.caller, slot, &signed.entered, signed.path, &method, &headers).await
}

/// Writes the file of a signed URL.
#[utoipa::path(put, path = "/v1/signed/{token}", tag = "files", operation_id = "upload_signed", security(()),
    params(("token" = String, Path, description = "The token in the URL.")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream", description = "The bytes.", example = json!("hello\n")),
    responses((status = 200, description = "The written file.", body = FileEntry)))]
pub(super) async fn upload(
    State(shared): State<Shared>,
    Token(token): Token,
    headers: HeaderMap,
    extensions: Extensions,
    body: RawBody,
) -> Result<axum::Json<FileEntry>, Problem> {
    let signed = open_signed_file(&shared, &token, &headers, &extensions, &[FileOperation::Write]).await?;
    let slot = shared.streams.take(&signed.caller)?;
    let open = v1::WriteOpen { path: signed.path, make_parents: true, ..Default::default() };
    let body = body.bound(&shared.streams, &signed.caller);
    receive_file(&shared, &signed.caller, slot, &signed.entered, open, &headers, body).await
}
