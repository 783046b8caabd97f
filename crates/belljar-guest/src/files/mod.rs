//! The `Filesystem` service: files inside the sandbox, with the rights of its user. The kernel resolves every path.
//! Calls run inline on the guest's only thread, so nothing here may block on `open`, and long work yields.

pub(crate) mod archive;
#[cfg(test)]
mod archive_tests;
mod attributes;
mod change;
mod entry;
mod list;
pub(crate) mod path;
mod read;
mod search;
#[cfg(test)]
mod tests;
mod write;

use std::path::PathBuf;

use belljar_proto::{
    InboundStream, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream, v1,
};
use rustix::fs::CWD;

pub(crate) use path::failure;

use entry::{Link, entry_at};
use path::resolve;

/// The `Filesystem` service of one sandbox.
pub(crate) struct Files {
    /// Base of relative paths.
    pub(crate) home: PathBuf,
}

impl v1::Filesystem for Files {
    async fn read(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::ReadRequest>,
    ) -> ServiceResult<ServiceStream<v1::ReadResponse>> {
        let stream = read::open(&self.home, &request.to_owned_message())?;
        Ok(Response::from(Box::pin(stream) as ServiceStream<_>))
    }

    async fn write(
        &self,
        _: RequestContext,
        requests: InboundStream<v1::WriteRequest>,
    ) -> ServiceResult<v1::WriteResponse> {
        let entry = write::write(&self.home, requests).await?;
        Response::ok(v1::WriteResponse { entry: entry.into(), ..Default::default() })
    }

    async fn stat(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::StatRequest>,
    ) -> ServiceResult<v1::StatResponse> {
        let request = request.to_owned_message();
        let path = resolve(&self.home, "path", &request.path)?;
        let link = if request.follow { Link::Follow } else { Link::NoFollow };
        let fail = |errno| failure("open", &request.path, errno);
        let mut entry = entry_at(CWD, &path, &request.path, link).map_err(fail)?;
        attributes::add_to_entry(CWD, &path, link, &request.attributes, &mut entry).map_err(fail)?;
        Response::ok(v1::StatResponse { entry: entry.into(), ..Default::default() })
    }

    async fn list(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::ListRequest>,
    ) -> ServiceResult<v1::ListResponse> {
        Response::ok(list::list(&self.home, &request.to_owned_message()).await?)
    }

    async fn make_dir(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::MakeDirRequest>,
    ) -> ServiceResult<v1::MakeDirResponse> {
        let entry = change::make_dir(&self.home, &request.to_owned_message())?;
        Response::ok(v1::MakeDirResponse { entry: entry.into(), ..Default::default() })
    }

    async fn r#move(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::MoveRequest>,
    ) -> ServiceResult<v1::MoveResponse> {
        let entry = change::rename(&self.home, &request.to_owned_message())?;
        Response::ok(v1::MoveResponse { entry: entry.into(), ..Default::default() })
    }

    async fn remove(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::RemoveRequest>,
    ) -> ServiceResult<v1::RemoveResponse> {
        change::remove(&self.home, &request.to_owned_message()).await?;
        Response::ok(v1::RemoveResponse::default())
    }

    async fn watch(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::WatchRequest>,
    ) -> ServiceResult<ServiceStream<v1::WatchEvent>> {
        let request = request.to_owned_message();
        let path = resolve(&self.home, "path", &request.path)?;
        let stream = crate::watch::watch(&path, &request.path, request.recursive).await?;
        Ok(Response::from(Box::pin(stream) as ServiceStream<_>))
    }

    async fn pack(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::PackRequest>,
    ) -> ServiceResult<ServiceStream<v1::PackResponse>> {
        let stream = archive::pack(&self.home, &request.to_owned_message())?;
        Ok(Response::from(Box::pin(stream) as ServiceStream<_>))
    }

    async fn search(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::SearchRequest>,
    ) -> ServiceResult<ServiceStream<v1::SearchMatch>> {
        let stream = search::search(&self.home, &request.to_owned_message())?;
        Ok(Response::from(Box::pin(stream) as ServiceStream<_>))
    }

    async fn set_mode(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::SetModeRequest>,
    ) -> ServiceResult<v1::SetModeResponse> {
        let entry = change::set_mode(&self.home, &request.to_owned_message())?;
        Response::ok(v1::SetModeResponse { entry: entry.into(), ..Default::default() })
    }

    async fn unpack(
        &self,
        _: RequestContext,
        requests: InboundStream<v1::UnpackRequest>,
    ) -> ServiceResult<v1::UnpackResponse> {
        Response::ok(archive::unpack(&self.home, requests).await?)
    }
}
