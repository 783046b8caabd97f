//! The service `Templates`.

use std::path::PathBuf;

use belljar_engine::v1;
use belljar_keeper::{
    BuildEvent, BuildProgress, BuildTemplate, Exported, KeeperError, Part, SandboxName, TemplateBuild,
};
use belljar_proto::{
    ConnectError, InboundStream, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream,
};
use bytes::Bytes;
use futures::StreamExt as _;
use tokio::io::AsyncReadExt as _;
use tokio_util::io::{ReaderStream, StreamReader};

use super::call::Call;
use super::convert;
use crate::api::Shared;
use crate::problem::Problem;
use crate::rest::types::{DEFAULT_MODE, check_build_files, check_definition};

/// Maximum number of bytes of a file in one message.
const PIECE_BYTES: usize = 256 << 10;

/// The service `Templates`.
pub(super) struct Templates(pub(super) Shared);

impl v1::Templates for Templates {
    async fn list(
        &self,
        context: RequestContext,
        _: ServiceRequest<'_, v1::ListTemplatesRequest>,
    ) -> ServiceResult<v1::ListTemplatesResponse> {
        let call = Call::new(&self.0, &context)?;
        let templates = self
            .0
            .keeper
            .templates(&call.caller, &Part::default())
            .await
            .map_err(|error| call.keeper_error(error))?;
        let templates = templates.items.into_iter().map(convert::template).collect();
        Response::ok(v1::ListTemplatesResponse { templates, ..Default::default() })
    }

    async fn get(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::GetTemplateRequest>,
    ) -> ServiceResult<v1::TemplateInfo> {
        let call = Call::new(&self.0, &context)?;
        let template = self.0.keeper.template(&call.caller, request.template).await;
        Response::ok(convert::template(template.map_err(|error| call.keeper_error(error))?))
    }

    async fn remove(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::RemoveTemplateRequest>,
    ) -> ServiceResult<v1::RemoveTemplateResponse> {
        let call = Call::new(&self.0, &context)?;
        let removed = self.0.keeper.remove_template(&call.caller, request.template).await;
        removed.map_err(|error| call.keeper_error(error))?;
        Response::ok(v1::RemoveTemplateResponse::default())
    }

    async fn build(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::BuildTemplateRequest>,
    ) -> ServiceResult<ServiceStream<v1::BuildTemplateEvent>> {
        let call = Call::new(&self.0, &context)?;
        let slot = call.slot()?;
        let parsed = parse_request(request.to_owned_message()).map_err(|problem| call.problem(&problem))?;
        let building = self.0.keeper.build_template(&call.caller, parsed).await;
        let building = building.map_err(|error| call.keeper_error(error))?;
        Response::ok(call.until_stopped(slot, events(call.clone(), building)))
    }

    async fn export(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ExportTemplateRequest>,
    ) -> ServiceResult<ServiceStream<v1::ExportTemplateResponse>> {
        let call = Call::new(&self.0, &context)?;
        let slot = call.slot()?;
        let exported = self.0.keeper.export_template(&call.caller, request.template).await;
        let Exported { head, layers, .. } = exported.map_err(|error| call.keeper_error(error))?;
        let rest = layers.into_iter().map(|(file, length)| {
            ReaderStream::with_capacity(tokio::fs::File::from_std(file).take(length), PIECE_BYTES)
        });
        let broken = call.clone();
        let pieces = futures::stream::iter([Ok(Bytes::from(head))])
            .chain(futures::stream::iter(rest).flatten())
            .map(move |piece| match piece {
                Ok(data) => Ok(v1::ExportTemplateResponse { data, ..Default::default() }),
                Err(source) => Err(broken.keeper_error(KeeperError::File {
                    action: "read",
                    path: PathBuf::from("the template's layer"),
                    source,
                })),
            });
        Response::ok(call.until_stopped(slot, pieces))
    }

    async fn import(
        &self,
        context: RequestContext,
        mut requests: InboundStream<v1::ImportTemplateRequest>,
    ) -> ServiceResult<v1::TemplateInfo> {
        let call = Call::new(&self.0, &context)?;
        let _slot = call.slot()?;
        let Some(first) = requests.next().await else {
            return Err(call.field("data", "it is missing; give the file's bytes"));
        };
        let first = first?.to_owned_message();
        let name = convert::non_empty(first.name).map(|name| name.parse::<SandboxName>()).transpose();
        let name = name.map_err(|error| call.problem(&Problem::from(error)))?;
        let rest = requests.map(|message| match message {
            Ok(message) => Ok(message.to_owned_message().data),
            Err(error) => Err(std::io::Error::other(error)),
        });
        let file = futures::stream::iter([Ok(first.data)]).chain(rest);
        let imported = self.0.keeper.import_template(&call.caller, name, StreamReader::new(Box::pin(file)));
        Response::ok(convert::template(imported.await.map_err(|error| call.keeper_error(error))?))
    }
}

fn parse_request(request: v1::BuildTemplateRequest) -> Result<BuildTemplate, Problem> {
    let mode = |mode: u32| if mode == 0 { DEFAULT_MODE } else { mode };
    let files = request.files.into_iter().map(|file| (file.path, mode(file.mode), file.content)).collect();
    Ok(BuildTemplate {
        definition: check_definition(request.definition)?,
        name: convert::non_empty(request.name).map(|name| name.parse()).transpose()?,
        mirror: convert::non_empty(request.mirror).map(PathBuf::from),
        image: convert::non_empty(request.image).map(PathBuf::from),
        files: check_build_files(files)?,
        fresh: request.fresh,
    })
}

/// Returns the events of a build, and its result.
fn events(
    call: Call,
    mut building: TemplateBuild,
) -> impl futures::Stream<Item = Result<v1::BuildTemplateEvent, ConnectError>> + Send + 'static {
    async_stream::stream! {
        while let Some(progress) = building.next().await {
            let event = match progress {
                BuildProgress::Queued { ahead } => {
                    let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
                    v1::BuildQueued { ahead, ..Default::default() }.into()
                }
                BuildProgress::Event(event) => to_event(event),
                BuildProgress::Done(result) => match result.as_ref() {
                    Ok(info) => convert::template(info.clone()).into(),
                    Err(error) => {
                        yield Err(call.keeper_error_ref(error));
                        return;
                    }
                },
            };
            yield Ok(v1::BuildTemplateEvent { event, ..Default::default() });
        }
    }
}

fn to_event(event: BuildEvent) -> Option<v1::build_template_event::Event> {
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    match event {
        BuildEvent::Step { number, total, kind, summary, cached } => v1::BuildStep {
            number: count(number),
            total: count(total),
            kind: kind.to_owned(),
            summary,
            cached,
            ..Default::default()
        }
        .into(),
        BuildEvent::Log { number, line } => {
            v1::BuildLog { number: count(number), line, ..Default::default() }.into()
        }
        BuildEvent::Packing { number, bytes } => {
            v1::BuildPacking { number: count(number), bytes, ..Default::default() }.into()
        }
        BuildEvent::Layer { number, digest, bytes } => {
            v1::BuildLayer { number: count(number), digest, bytes, ..Default::default() }.into()
        }
    }
}
