//! `belljar image`, and `--image` of other commands. An image that was pulled is a template of the server, with a name that follows from
//! the image's.

use belljar_client::{ClientError, v1};
use belljar_keeper::{IMAGE_PREFIX, image_template};
use belljar_model::ImageReference;
use serde_json::json;

use super::build;
use super::build_display::ProgressStyle;
use super::link::Link;
use super::server_args::ImageCommand;
use super::show::{Table, distance};
use crate::message::{Quit, chain};
use crate::units::bytes;

/// Runs `belljar image`.
pub(crate) async fn images(link: &Link, command: &ImageCommand) -> Result<u8, Quit> {
    match command {
        ImageCommand::Pull { image, fresh } => return pull(link, image, *fresh).await,
        ImageCommand::Rm { images } => {
            for image in images {
                let template = image_template(image);
                let request = v1::RemoveTemplateRequest { template, ..Default::default() };
                link.client
                    .remove_template(request)
                    .await
                    .map_err(|error| if is_missing(&error) { not_pulled(image) } else { error.into() })?;
            }
            return Ok(0);
        }
        ImageCommand::Info { image } => {
            let template = image_template(image);
            let request = v1::GetTemplateRequest { template, ..Default::default() };
            let found = link
                .client
                .template(request)
                .await
                .map_err(|error| if is_missing(&error) { not_pulled(image) } else { error.into() })?;
            show(link, vec![found])?;
        }
        ImageCommand::Ls => {
            let mut all = link.client.templates(v1::ListTemplatesRequest::default()).await?.templates;
            all.retain(|template| {
                template.name.starts_with(IMAGE_PREFIX) && template.note.parse::<ImageReference>().is_ok()
            });
            show(link, all)?;
        }
    }
    Ok(0)
}

fn show(link: &Link, found: Vec<v1::TemplateInfo>) -> Result<(), Quit> {
    let mut table = Table::new(&["ID", "IMAGE", "TEMPLATE", "SIZE", "PULLED"]);
    for template in found {
        if !link.json(&template)? {
            let pulled = distance(&template.created_at);
            table.row(vec![template.id, template.note, template.name, bytes(template.bytes), pulled]);
        }
    }
    link.list(&table, 0)
}

fn is_missing(error: &ClientError) -> bool {
    error.is("template_not_found")
}

fn not_pulled(image: &ImageReference) -> Quit {
    Quit::Error(anyhow::anyhow!("{image} has not been pulled; belljar image ls lists those that have"))
}

/// Returns the name of the template that a new sandbox starts from, if one is given, or an image.
pub(crate) fn origin(template: Option<&str>, image: Option<&ImageReference>) -> Option<String> {
    template.map(str::to_owned).or_else(|| image.map(image_template))
}

/// Pulls an image, if one is given and the server does not have it.
pub(crate) async fn ensure(link: &Link, image: Option<&ImageReference>) -> Result<(), Quit> {
    let Some(image) = image else { return Ok(()) };
    let request = v1::GetTemplateRequest { template: image_template(image), ..Default::default() };
    match link.client.template(request).await {
        Err(error) if is_missing(&error) => build::run(link, &definition(image, false), ProgressStyle::Auto)
            .await
            .map(drop)
            .map_err(name_image),
        found => Ok(found.map(drop)?),
    }
}

async fn pull(link: &Link, image: &ImageReference, fresh: bool) -> Result<u8, Quit> {
    let pulled =
        build::run(link, &definition(image, fresh), ProgressStyle::Auto).await.map_err(name_image)?;
    build::show(link, &pulled)
}

/// Names the image in an error about the base of its template, which nobody has written.
fn name_image(quit: Quit) -> Quit {
    let Quit::Error(error) = &quit else { return quit };
    let text = chain(error.as_ref());
    let Some(reason) = text.strip_prefix("base: ") else { return quit };
    let advice = match reason.starts_with("cannot look up ") {
        true => "; the server's machine has to reach the registry itself, and uses no proxy",
        false => "",
    };
    let text = format!("image: {reason}{advice}");
    match error.downcast_ref::<ClientError>().is_some_and(|error| error.is("invalid_field")) {
        true => Quit::Usage(text),
        false => anyhow::anyhow!(text).into(),
    }
}

/// Returns the request for a template that is the image.
fn definition(image: &ImageReference, fresh: bool) -> serde_json::Value {
    let name = image_template(image);
    let definition = format!("name = \"{name}\"\ndescription = \"{image}\"\nbase = \"image:{image}\"\n");
    json!({ "definition": definition, "fresh": fresh, "files": [] })
}
