//! `belljar image`, and `--image` of other commands. An image that was pulled is a template of the server, with a name that follows from
//! the image's.

use std::io::{BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::path::Path;

use anyhow::Context as _;
use belljar_client::{ClientError, Method, RestBody, v1};
use belljar_keeper::{ENGINE_IMAGE_PREFIX, IMAGE_PREFIX, Leftover, RegistryLogin, image_template};
use belljar_model::{ImageInfo, ImageReference};
use serde::Deserialize;
use serde_json::{Value, json};

use super::build::{self, in_path};
use super::build_display::ProgressStyle;
use super::dockerfile::{DockerBuild, DockerSource};
use super::link::Link;
use super::show::{Table, away, distance, print, show_leftovers};
use super::template_args::ImageCommand;
use crate::message::{Quit, chain};
use crate::net::{MAX_SECRET_BYTES, without_line_end};
use crate::stdin::Hidden;
use crate::units::bytes;

/// Size of the pieces in which a directory is packed, in bytes.
const PIECE_BYTES: usize = 256 << 10;

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
        ImageCommand::Info { image } => return info(link, image).await,
        ImageCommand::Import { file, name, progress } => {
            return import(link, file, name.as_ref(), *progress).await;
        }
        ImageCommand::Export { image, file } => return export(link, image, file).await,
        ImageCommand::Build(args) => {
            let build = DockerBuild::read(DockerSource {
                context: &args.context,
                file: args.file.as_deref(),
                name: args.name.as_deref(),
                build_args: &args.build_args,
                network: args.net.file()?,
            })?;
            ensure_pulled(link, build.base()).await?;
            let template: Value = link.client.fetch(&template_path(build.base())).await?;
            let (definition, files) = build.definition_on(&template)?;
            let body = build::to_body(&definition, None, None, None, args.fresh, files);
            let built = build::run(link, &body, args.progress).await?;
            let status = build::show(link, &built)?;
            if let Some(name) = built.get("name").and_then(Value::as_str) {
                link.remark(&format!("--template {name} starts from it"));
            }
            return Ok(status);
        }
        ImageCommand::Login { registry, user, password_stdin } => {
            let (user, password) = account(user.as_deref(), *password_stdin)?;
            let account = json!({ "user": user, "password": password });
            let stored: Value = link.client.send(Method::PUT, &registry_path(registry), &account).await?;
            if !link.json(&stored)? {
                print(&format!("{}\n", stored.get("registry").and_then(Value::as_str).unwrap_or(registry)))?;
            }
        }
        ImageCommand::Logout { registry } => {
            link.client.value::<()>(Method::DELETE, &registry_path(registry), RestBody::Empty).await?;
        }
        ImageCommand::Accounts => {
            let Accounts { registries } = link.client.fetch("/v1/registries").await?;
            let mut table = Table::new(&["REGISTRY", "USER", "STORED"]);
            for account in registries {
                if !link.json(&account)? {
                    table.row(vec![account.registry, account.user, away(account.created_at)]);
                }
            }
            link.list(&table, 0)?;
        }
        ImageCommand::Gc { dry_run } => {
            let request = json!({ "dry_run": dry_run });
            let request = link.client.send(Method::POST, "/v1/images/gc", &request);
            let swept: Leftovers = link.with_progress("looking for what is left over", request).await?;
            show_leftovers(link, *dry_run, &swept.leftovers)?;
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
    let mut table = Table::new(&["ID", "IMAGE", "TEMPLATE", "SIZE", "STORED"]);
    for template in found {
        if !link.json(&template)? {
            let pulled = distance(&template.created_at);
            table.row(vec![template.id, template.note, template.name, bytes(template.bytes), pulled]);
        }
    }
    link.list(&table, 0)
}

/// Accounts at registries.
#[derive(Deserialize)]
struct Accounts {
    registries: Vec<RegistryLogin>,
}

/// What is left over of images.
#[derive(Deserialize)]
struct Leftovers {
    leftovers: Vec<Leftover>,
}

/// What is shown of an image.
#[derive(Deserialize)]
struct Shown {
    id: String,
    name: Option<String>,
    bytes: u64,
    note: Option<String>,
    image: Option<ImageInfo>,
}

/// Shows an image in full: its settings, and which of them have an effect.
async fn info(link: &Link, image: &ImageReference) -> Result<u8, Quit> {
    let found: Value = link
        .client
        .fetch(&template_path(image))
        .await
        .map_err(|error| if is_missing(&error) { not_pulled(image) } else { error.into() })?;
    if link.json(&found)? {
        return Ok(0);
    }
    let Shown { id, name, bytes: size, note, image } = serde_json::from_value(found)?;
    if link.quiet {
        print(&format!("{id}\n"))?;
        return Ok(0);
    }
    let mut table = Table::new(&["id", &id]);
    let mut row = |name: &str, value: String, effect: &str| {
        if !value.is_empty() {
            table.row(vec![name.to_owned(), value, effect.to_owned()]);
        }
    };
    row("image", note.unwrap_or_default(), "");
    row("template", name.unwrap_or_default(), "");
    row("size", bytes(size), "packed, as it is stored");
    let Some(image) = image else {
        row("settings", "not recorded by the version that pulled it; pull it again".to_owned(), "");
        table.print()?;
        return Ok(0);
    };
    row("digest", image.digest.clone(), if image.imported { "imported from a file" } else { "" });
    for layer in &image.layers {
        let size = layer.bytes.map(|size| format!("{} in the image", bytes(size)));
        row("layer", layer.digest.clone(), &size.unwrap_or_default());
    }
    let effect = |name: &str, honoured: &'static str| {
        if image.ignored.iter().any(|ignored| ignored == name) { "ignored" } else { honoured }
    };
    for variable in &image.env {
        row("ENV", variable.clone(), "honoured: in all programs");
    }
    row("WORKDIR", image.workdir.clone().unwrap_or_default(), "honoured in templates based on it");
    let user = "in the variable USER alone: commands run as the sandbox's own user";
    row("USER", image.user.clone().unwrap_or_default(), user);
    let words = |words: &[String]| if words.is_empty() { String::new() } else { format!("{words:?}") };
    row("ENTRYPOINT", words(&image.entrypoint), effect("ENTRYPOINT", ""));
    row("CMD", words(&image.cmd), effect("CMD", ""));
    row("VOLUME", image.volumes.join(" "), effect("VOLUME", ""));
    row("EXPOSE", image.ports.join(" "), effect("EXPOSE", ""));
    row("STOPSIGNAL", image.stop_signal.clone().unwrap_or_default(), effect("STOPSIGNAL", ""));
    table.print()?;
    Ok(0)
}

fn template_path(image: &ImageReference) -> String {
    format!("/v1/templates/{}", image_template(image))
}

fn registry_path(registry: &str) -> String {
    format!("/v1/registries/{}", in_path(registry))
}

/// Imports an image from a file, or from a directory, which is packed on the way.
async fn import(
    link: &Link,
    file: &Path,
    name: Option<&ImageReference>,
    progress: ProgressStyle,
) -> Result<u8, Quit> {
    let body = match file.is_dir() {
        true => directory_body(file)?,
        false => build::file_body(file)?,
    };
    let query = name.map_or_else(String::new, |name| format!("?name={}", in_path(&name.to_string())));
    let path = format!("/v1/images/import{query}");
    let imported = build::send(link, &path, body, progress).await?;
    let status = build::show(link, &imported)?;
    if let Some(name) = imported.get("note").and_then(Value::as_str) {
        link.remark(&format!("--image {name} starts from it"));
    }
    Ok(status)
}

/// Writes an image, or else the template of that name, to a file.
async fn export(link: &Link, name: &str, file: &Path) -> Result<u8, Quit> {
    let pulled = match name.parse::<ImageReference>() {
        Ok(image) => {
            let request = v1::GetTemplateRequest { template: image_template(&image), ..Default::default() };
            match link.client.template(request).await {
                Err(error) if is_missing(&error) => None,
                found => Some(found?.id),
            }
        }
        Err(_) => None,
    };
    let path = format!("/v1/templates/{}/image", in_path(pulled.as_deref().unwrap_or(name)));
    let exported = link.with_progress("packing the image", build::download(link, &path, file)).await;
    exported.map_err(|quit| match &quit {
        Quit::Error(error) if error.downcast_ref::<ClientError>().is_some_and(is_missing) => {
            let text = format!(
                "{name} is neither an image that has been pulled nor a template; belljar image ls lists images, belljar template ls templates"
            );
            anyhow::anyhow!(text).into()
        }
        _ => quit,
    })
}

/// Returns an image layout as a tar.
fn directory_body(dir: &Path) -> Result<RestBody, Quit> {
    if !dir.join("index.json").is_file() {
        let reason = "has no index.json; give the directory of an OCI image layout, or a tar of docker save";
        return Err(Quit::Usage(format!("FILE: {} {reason}", dir.display())));
    }
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    let dir = dir.to_owned();
    // Ends with an error if the reader is gone.
    std::thread::spawn(move || {
        let mut tar = tar::Builder::new(std::io::BufWriter::with_capacity(PIECE_BYTES, writer));
        tar.follow_symlinks(false);
        let packed = tar.append_dir_all(".", &dir).and_then(|()| tar.into_inner()?.flush());
        if let Err(error) = packed {
            crate::message::say(&format!("cannot pack {}: {error}", dir.display()));
        }
    });
    Ok(build::pieces(Box::new(reader)))
}

/// Returns the name and the password of an account. A password is no argument, because other users can see those.
fn account(user: Option<&str>, password_stdin: bool) -> Result<(String, String), Quit> {
    if password_stdin {
        let missing = "user: missing; --password-stdin needs -u NAME, as standard input is the password";
        let user = user.ok_or_else(|| Quit::Usage(missing.to_owned()))?;
        let mut password = String::new();
        let read = std::io::stdin().take(MAX_SECRET_BYTES).read_to_string(&mut password);
        read.map_err(|error| Quit::Usage(format!("password: cannot read standard input: {error}")))?;
        return Ok((user.to_owned(), without_line_end(password)));
    }
    if !std::io::stdin().is_terminal() {
        return Err(Quit::Usage(
            "password: standard input is not a terminal; write the password to it, and give -u NAME --password-stdin".to_owned(),
        ));
    }
    let user = match user {
        Some(user) => user.to_owned(),
        None => ask("Username: ")?,
    };
    let hidden = Hidden::enter()?;
    let password = ask("Password: ")?;
    drop(hidden);
    Ok((user, password))
}

/// Asks for a line on the terminal.
fn ask(prompt: &str) -> Result<String, Quit> {
    let mut out = std::io::stderr();
    write!(out, "{prompt}")?;
    out.flush()?;
    let mut line = String::new();
    std::io::stdin().lock().take(MAX_SECRET_BYTES).read_line(&mut line)?;
    Ok(without_line_end(line))
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

/// Makes a request start from an image, if one is given: from one of the engine that the server takes, if it has images of its own, else
/// from one that the server has pulled, or pulls now.
pub(crate) async fn start_from(
    link: &Link,
    image: Option<&ImageReference>,
    request: &mut v1::CreateSandboxRequest,
) -> Result<(), Quit> {
    let Some(image) = image else { return Ok(()) };
    let engines = link.engines().await?;
    let taken = engines.iter().find(|engine| match &*request.engine {
        "" => engine.is_default,
        name => engine.name == name,
    });
    // The server refuses an engine that it does not have.
    if taken.is_none_or(|engine| engine.images) {
        request.template = format!("{ENGINE_IMAGE_PREFIX}{image}");
        return Ok(());
    }
    request.template = image_template(image);
    ensure_pulled(link, image).await.map_err(name_puller)
}

/// Says who pulls an image, to those who may not.
fn name_puller(quit: Quit) -> Quit {
    match &quit {
        Quit::Error(error)
            if error.downcast_ref::<ClientError>().is_some_and(|error| error.is("forbidden")) =>
        {
            let advice = "the image has to be there: an administrator pulls it with belljar image pull IMAGE";
            anyhow::anyhow!("{}; {advice}", chain(error.as_ref())).into()
        }
        _ => quit,
    }
}

/// Pulls an image if the server does not have it.
async fn ensure_pulled(link: &Link, image: &ImageReference) -> Result<(), Quit> {
    if has_template(link, image_template(image)).await? {
        return Ok(());
    }
    // A template that was built here is not to be taken for a stranger's image of its name.
    if let Some(name) = bare_name(image)
        && has_template(link, name.to_owned()).await?
    {
        let text = format!(
            "{name} is a template here, and {image} has not been pulled; --template {name} starts from the former, and \
             belljar image pull {name} pulls the latter"
        );
        return Err(Quit::Usage(text));
    }
    build::run(link, &definition(image, false), ProgressStyle::Auto).await.map(drop).map_err(name_image)
}

async fn has_template(link: &Link, template: String) -> Result<bool, Quit> {
    match link.client.template(v1::GetTemplateRequest { template, ..Default::default() }).await {
        Err(error) if is_missing(&error) => Ok(false),
        found => Ok(found.map(|_| true)?),
    }
}

/// Returns the name by which an image is meant if nothing but its last part is given.
fn bare_name(image: &ImageReference) -> Option<&str> {
    let name = image.repository().strip_prefix("library/")?;
    (image.to_string() == format!("docker.io/library/{name}:latest")).then_some(name)
}

async fn pull(link: &Link, image: &ImageReference, fresh: bool) -> Result<u8, Quit> {
    let pulled = build::run(link, &definition(image, fresh), ProgressStyle::Auto).await;
    build::show(link, &pulled.map_err(name_image).map_err(name_puller)?)
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
