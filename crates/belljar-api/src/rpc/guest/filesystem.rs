//! Files.

use std::sync::{Arc, Mutex, PoisonError};

use belljar_engine::v1;
use belljar_proto::{
    InboundStream, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream, StreamMessage,
};

use super::super::call::Inside;
use super::relay::{stream, upload, uploaded};
use crate::api::Shared;
use crate::refusal::About;

/// The service `Filesystem`, passed on.
pub(in super::super) struct Filesystem(pub(in super::super) Shared);

impl v1::Filesystem for Filesystem {
    async fn read(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ReadRequest>,
    ) -> ServiceResult<ServiceStream<StreamMessage<v1::ReadResponse>>> {
        let request = request.to_owned_message();
        let inside = Inside::of(&self.0, &context).await?;
        let guest = inside.streams(v1::FilesystemClient::new);
        let details = vec![("path", text(&request.path))];
        let opened = inside.opened(About::Content, guest.read(request)).await;
        let opened = inside.recorded("file.read", details, opened).await?;
        Response::ok(stream!(inside, About::Content, v1::ReadResponse, opened))
    }

    async fn write(
        &self,
        context: RequestContext,
        requests: InboundStream<v1::WriteRequest>,
    ) -> ServiceResult<v1::WriteResponse> {
        let inside = Inside::of(&self.0, &context).await?;
        let _slot = inside.call.slot()?;
        let seen = Seen::default();
        let look = seen.look(|request: &v1::WriteRequest| {
            (request.open.as_option().map(|open| text(&open.path)), request.data.len())
        });
        let (messages, broken) = upload(requests, look);
        let guest = inside.streams(v1::FilesystemClient::new);
        let answer = uploaded(broken, guest.write(Box::pin(messages))).await?;
        let answer = inside.answered(About::Content, async { answer }).await;
        Response::ok(inside.recorded("file.write", seen.details(), answer).await?.into_owned())
    }

    async fn stat(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::StatRequest>,
    ) -> ServiceResult<v1::StatResponse> {
        let request = request.to_owned_message();
        let inside = Inside::of(&self.0, &context).await?;
        let guest = inside.guest(v1::FilesystemClient::new);
        Response::ok(inside.answered(About::File, guest.stat(request)).await?.into_owned())
    }

    async fn list(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ListRequest>,
    ) -> ServiceResult<v1::ListResponse> {
        let request = request.to_owned_message();
        let inside = Inside::of(&self.0, &context).await?;
        let guest = inside.guest(v1::FilesystemClient::new);
        Response::ok(inside.answered(About::File, guest.list(request)).await?.into_owned())
    }

    async fn make_dir(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::MakeDirRequest>,
    ) -> ServiceResult<v1::MakeDirResponse> {
        let request = request.to_owned_message();
        let inside = Inside::of(&self.0, &context).await?;
        let guest = inside.guest(v1::FilesystemClient::new);
        let details = vec![("path", text(&request.path))];
        let answer = inside.answered(About::File, guest.make_dir(request)).await;
        Response::ok(inside.recorded("file.mkdir", details, answer).await?.into_owned())
    }

    async fn r#move(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::MoveRequest>,
    ) -> ServiceResult<v1::MoveResponse> {
        let request = request.to_owned_message();
        let inside = Inside::of(&self.0, &context).await?;
        let guest = inside.guest(v1::FilesystemClient::new);
        let details = vec![("from", text(&request.from)), ("to", text(&request.to))];
        let answer = inside.answered(About::File, guest.r#move(request)).await;
        Response::ok(inside.recorded("file.move", details, answer).await?.into_owned())
    }

    async fn remove(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::RemoveRequest>,
    ) -> ServiceResult<v1::RemoveResponse> {
        let request = request.to_owned_message();
        let inside = Inside::of(&self.0, &context).await?;
        let guest = inside.guest(v1::FilesystemClient::new);
        let details = vec![("path", text(&request.path))];
        let answer = inside.answered(About::File, guest.remove(request)).await;
        Response::ok(inside.recorded("file.remove", details, answer).await?.into_owned())
    }

    async fn watch(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::WatchRequest>,
    ) -> ServiceResult<ServiceStream<StreamMessage<v1::WatchEvent>>> {
        let request = request.to_owned_message();
        let inside = Inside::of(&self.0, &context).await?;
        let guest = inside.streams(v1::FilesystemClient::new);
        let opened = inside.opened(About::File, guest.watch(request)).await?;
        Response::ok(stream!(inside, About::File, v1::WatchEvent, opened))
    }

    async fn pack(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::PackRequest>,
    ) -> ServiceResult<ServiceStream<StreamMessage<v1::PackResponse>>> {
        let request = request.to_owned_message();
        let inside = Inside::of(&self.0, &context).await?;
        let guest = inside.streams(v1::FilesystemClient::new);
        let details = vec![("path", text(&request.base))];
        let opened = inside.opened(About::File, guest.pack(request)).await;
        let opened = inside.recorded("file.pack", details, opened).await?;
        Response::ok(stream!(inside, About::File, v1::PackResponse, opened))
    }

    async fn search(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::SearchRequest>,
    ) -> ServiceResult<ServiceStream<StreamMessage<v1::SearchMatch>>> {
        let request = request.to_owned_message();
        let inside = Inside::of(&self.0, &context).await?;
        let guest = inside.streams(v1::FilesystemClient::new);
        let opened = inside.opened(About::File, guest.search(request)).await?;
        Response::ok(stream!(inside, About::File, v1::SearchMatch, opened))
    }

    async fn set_mode(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::SetModeRequest>,
    ) -> ServiceResult<v1::SetModeResponse> {
        let request = request.to_owned_message();
        let inside = Inside::of(&self.0, &context).await?;
        let guest = inside.guest(v1::FilesystemClient::new);
        let details = vec![
            ("path", text(&request.path)),
            ("mode", format!("{:04o}", request.mode.unwrap_or_default())),
        ];
        let answer = inside.answered(About::File, guest.set_mode(request)).await;
        Response::ok(inside.recorded("file.chmod", details, answer).await?.into_owned())
    }

    async fn unpack(
        &self,
        context: RequestContext,
        requests: InboundStream<v1::UnpackRequest>,
    ) -> ServiceResult<v1::UnpackResponse> {
        let inside = Inside::of(&self.0, &context).await?;
        let _slot = inside.call.slot()?;
        let seen = Seen::default();
        let look = seen.look(|request: &v1::UnpackRequest| {
            (request.open.as_option().map(|open| text(&open.path)), request.data.len())
        });
        let (messages, broken) = upload(requests, look);
        let guest = inside.streams(v1::FilesystemClient::new);
        let answer = uploaded(broken, guest.unpack(Box::pin(messages))).await?;
        let answer = inside.answered(About::File, async { answer }).await;
        Response::ok(inside.recorded("file.unpack", seen.details(), answer).await?.into_owned())
    }
}

/// What was seen of an upload on its way, for the audit trail.
#[derive(Default)]
struct Seen(Arc<Mutex<(String, u64)>>);

impl Seen {
    /// Looks at each message: `part` tells its path, if it has one, and how many bytes it carries.
    fn look<Request>(
        &self,
        part: impl Fn(&Request) -> (Option<String>, usize) + Send + 'static,
    ) -> impl FnMut(&Request) + Send + 'static {
        let seen = self.0.clone();
        move |request| {
            let (path, bytes) = part(request);
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(path) = path {
                seen.0 = path;
            }
            seen.1 += bytes as u64;
        }
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        vec![("path", seen.0.clone()), ("bytes", seen.1.to_string())]
    }
}

/// A path for the audit trail.
fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
