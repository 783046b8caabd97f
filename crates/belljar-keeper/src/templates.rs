//! Templates: the built-in one, built ones and snapshots of sandboxes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use belljar_model::{ImageReference, ImageReferenceError, LimitsFile, Role, SpecFile};
use belljar_store::{ServiceWall, TemplateKind, TemplateRow};
use jiff::Timestamp;

use crate::action::{TEMPLATE_GET, TEMPLATE_LIST, TEMPLATE_REMOVE, TEMPLATE_REMOVE_BUILT};
use crate::built::{BuiltRecord, built_record};
use crate::caller::Caller;
use crate::config::KeeperConfig;
use crate::error::KeeperError;
use crate::images::{ENGINE_IMAGE_PREFIX, IMAGE_PREFIX, image_template};
use crate::info::TemplateInfo;
use crate::keeper::{Keeper, Result};
use crate::query::{Page, Part};
use crate::tools::ToolInfo;

/// Name of the built-in template: an empty home in the machine's own tree.
pub const DEFAULT_TEMPLATE: &str = "default";

/// Checks that a template may get this name: everybody in a tenant uses what stands under the names of images, which nobody may choose for
/// something else. `image` is the image from which alone it is made.
pub(crate) fn check_new_name(name: &str, image: Option<&ImageReference>) -> Result<()> {
    let reason = match name {
        DEFAULT_TEMPLATE => "default is the template that comes with Belljar; give another",
        _ if name.starts_with(IMAGE_PREFIX) && image.is_none_or(|image| image_template(image) != name) => {
            "names that begin with image- are those of pulled images; give another"
        }
        _ => return Ok(()),
    };
    Err(KeeperError::field("name", reason))
}

/// The template of a new sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    /// The template's id.
    pub(crate) id: String,
    /// The template's name, or its id if it has none.
    pub(crate) name: String,
    /// Its specification.
    pub(crate) spec: SpecFile,
    /// Archive of its files, or the disk of a machine.
    pub(crate) archive: Option<PathBuf>,
    /// Size of the archive, in bytes.
    pub(crate) bytes: u64,
    /// Record of its tree, if it has one of its own.
    pub(crate) built: Option<BuiltRecord>,
    /// The image of the engine's own store that it is.
    pub(crate) image: Option<ImageReference>,
}

impl Origin {
    /// Reports whether its archive is the disk of a machine.
    pub(crate) fn has_disk(&self) -> bool {
        self.archive.is_some() && self.spec.machine == Some(true)
    }
}

/// Returns the template `default`.
pub(crate) fn default_origin(config: &KeeperConfig) -> Origin {
    Origin {
        id: DEFAULT_TEMPLATE.to_owned(),
        name: DEFAULT_TEMPLATE.to_owned(),
        spec: config.template.clone(),
        archive: None,
        bytes: 0,
        built: None,
        image: None,
    }
}

impl Keeper {
    /// Looks up the template that a request names; `None` is the operator's default.
    pub(crate) async fn origin_of(&self, caller: &Caller, template: Option<&str>) -> Result<Origin> {
        if let Some(name) = template {
            if name.is_empty() {
                let reason = "it is empty; give the name or id of a template, or omit it";
                return Err(KeeperError::field("template", reason));
            }
            return self.origin(caller, name).await;
        }
        let default = self.inner.config.now().default_template.clone();
        match self.origin(caller, &default).await {
            Err(KeeperError::NotFound { .. }) => {
                let reason = format!(
                    "none is given, and {default:?}, which sandboxes.default_template names, is not found; give one, such as \
                     {DEFAULT_TEMPLATE:?}, or build it"
                );
                Err(KeeperError::field("template", reason))
            }
            found => found,
        }
    }

    /// Warns if no tenant has the template of requests that name none.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub async fn warn_of_missing_default(&self) -> Result<()> {
        let name = self.inner.config.now().default_template.clone();
        let is_it = |row: &TemplateRow| row.id == name || row.name.as_deref() == Some(&name);
        if name != DEFAULT_TEMPLATE && !self.inner.store.templates().list(None).await?.iter().any(is_it) {
            tracing::warn!(
                default_template = name,
                "not found: requests that name no template are refused; build it, or change sandboxes.default_template"
            );
        }
        Ok(())
    }

    /// Looks up a template by name or id.
    pub(crate) async fn origin(&self, caller: &Caller, name: &str) -> Result<Origin> {
        if name == DEFAULT_TEMPLATE {
            return Ok(default_origin(&self.inner.config.now()));
        }
        if let Some(image) = name.strip_prefix(ENGINE_IMAGE_PREFIX) {
            let image: ImageReference = image
                .parse()
                .map_err(|error: ImageReferenceError| KeeperError::field("template", error.to_string()))?;
            let name = format!("{ENGINE_IMAGE_PREFIX}{image}");
            let default = default_origin(&self.inner.config.now());
            return Ok(Origin { id: name.clone(), name, image: Some(image), ..default });
        }
        let row = self.template_row(caller, name).await?;
        let spec = SpecFile::from_json(&row.spec)?;
        let is_built = row.kind == TemplateKind::Built;
        Ok(Origin {
            // A layer is mounted and needs none of the sandbox's memory.
            archive: (!is_built).then(|| self.archive_path(&row.id)),
            bytes: if is_built { 0 } else { u64::try_from(row.bytes).unwrap_or(u64::MAX) },
            built: built_record(&row)?,
            image: None,
            name: row.name.unwrap_or_else(|| row.id.clone()),
            id: row.id,
            spec,
        })
    }

    /// Returns the template of the image that a request names, if it is one that has been pulled: if the engine, the one named or the
    /// default, has no images of its own.
    pub(crate) async fn pulled_origin(
        &self,
        caller: &Caller,
        origin: Origin,
        engine: Option<&str>,
    ) -> Result<Origin> {
        let Some(image) = &origin.image else { return Ok(origin) };
        let engines = &self.inner.engines;
        let engine = match engine.or(origin.spec.engine.as_deref()) {
            Some(name) => engines.get(name.parse()?),
            None => engines.default_engine(),
        };
        // An engine that is not there is refused later.
        if engine.is_none_or(|engine| engine.capabilities().images) {
            return Ok(origin);
        }
        match self.origin(caller, &image_template(image)).await {
            Err(KeeperError::NotFound { .. }) => Err(KeeperError::field(
                "template",
                format!(
                    "{image} has not been pulled: belljar image pull {image} does that; or give an engine that has images of its own, \
                     such as docker"
                ),
            )),
            found => found,
        }
    }

    pub(crate) async fn template_row(&self, caller: &Caller, name: &str) -> Result<TemplateRow> {
        let found = self.inner.store.templates().get(&caller.tenant, name).await?;
        found.ok_or_else(|| KeeperError::NotFound { what: "template", id: name.chars().take(64).collect() })
    }

    /// Returns the path of a template's archive.
    pub(crate) fn archive_path(&self, id: &str) -> PathBuf {
        self.inner.config.now().state_dir.join("templates").join(format!("{id}.tar"))
    }

    /// Lists the caller's templates: the default one, and those of the store, oldest first, of which a part may be asked for.
    ///
    /// # Errors
    /// Returns [`KeeperError::Field`] for an invalid cursor; fails if the store fails.
    pub async fn templates(&self, caller: &Caller, part: &Part) -> Result<Page<TemplateInfo>> {
        self.require(caller, TEMPLATE_LIST)?;
        let after = part.after()?;
        let rows = self.inner.store.templates().list_page(Some(&caller.tenant), after, part.rows()).await?;
        let (rows, next_cursor) = part.cut(rows, |row| (row.created_at, &row.id));
        let first = after.is_none().then(default_template);
        Ok(Page { items: first.into_iter().chain(rows.iter().map(template_info)).collect(), next_cursor })
    }

    /// Returns a template by id or name.
    ///
    /// # Errors
    /// [`KeeperError::NotFound`].
    pub async fn template(&self, caller: &Caller, id: &str) -> Result<TemplateInfo> {
        self.require(caller, TEMPLATE_GET)?;
        if id == DEFAULT_TEMPLATE {
            return Ok(default_template());
        }
        Ok(template_info(&self.template_row(caller, id).await?))
    }

    /// Removes a template. Sandboxes created from it keep running.
    ///
    /// # Errors
    /// Returns [`KeeperError::NotFound`]; fails for the built-in template, and for a built one or one that another key made unless the caller is
    /// an administrator.
    pub async fn remove_template(&self, caller: &Caller, id: &str) -> Result<()> {
        self.transact(TEMPLATE_REMOVE, caller, id, move |keeper, caller, id| async move {
            if id == DEFAULT_TEMPLATE {
                return Err(KeeperError::Policy {
                    field: "template",
                    reason: "the template default is built in and cannot be removed".to_owned(),
                });
            }
            let row = keeper.template_row(&caller, &id).await?;
            if row.kind == TemplateKind::Built {
                // Removal needs the same role as building.
                keeper.require(&caller, TEMPLATE_REMOVE_BUILT)?;
            }
            keeper.check_maker(&caller, &row).await?;
            let removed = keeper.inner.store.templates().remove(&row.id).await;
            let removed = removed.map_err(KeeperError::from);
            keeper
                .audit(&caller, TEMPLATE_REMOVE, None, &removed, vec![("template", row.id.clone())])
                .await?;
            removed?;
            keeper.inner.pools.discard(&row.id);
            if row.kind == TemplateKind::Built {
                return keeper.sweep_layers(false).await.map(drop);
            }
            let path = keeper.archive_path(&row.id);
            match tokio::fs::remove_file(&path).await {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    Err(KeeperError::File { action: "remove", path, source })
                }
                _ => Ok(()),
            }
        })
        .await
    }
}

impl Keeper {
    /// Checks that the caller may remove a template: tools, and others of the tenant, start from what has its name.
    ///
    /// # Errors
    /// [`KeeperError::Policy`] if another person made it and the caller is no administrator.
    pub(crate) async fn check_maker(&self, caller: &Caller, row: &TemplateRow) -> Result<()> {
        let mut may = caller.role == Role::Admin || row.key_id.is_empty() || row.key_id == caller.key;
        if !may && caller.owner.is_some() {
            // Another key of the same person, such as the one before.
            let maker = self.find_key(&row.key_id).await?.filter(|key| key.tenant == caller.tenant);
            may = maker.is_some_and(|key| key.owner == caller.owner);
        }
        if ServiceWall::TemplateMakers.allows(may) {
            return Ok(());
        }
        let name = row.name.as_deref().unwrap_or(&row.id);
        let reason = format!(
            "{name} was made by the key {}; that key removes or replaces it, another one of its owner, or an administrator does",
            row.key_id
        );
        Err(KeeperError::Policy { field: "template", reason })
    }

    /// Checks that the caller may give a template a name that is free: what a tool, or a sandbox without a template, starts from is an
    /// administrator's to name.
    ///
    /// # Errors
    /// [`KeeperError::Policy`] if there is such a tool, or the operator has named it, and the caller is no administrator.
    pub(crate) async fn check_unclaimed(&self, caller: &Caller, name: &str) -> Result<()> {
        if caller.role == Role::Admin {
            return Ok(());
        }
        let who = if self.inner.config.now().default_template == name {
            Some("sandboxes.default_template names it".to_owned())
        } else {
            let tools = self.all_tools(&caller.tenant).await?.into_iter();
            let named = |info: &ToolInfo| info.tool.template.as_deref() == Some(name);
            let mut tools = tools.filter(named);
            tools.next().map(|info| format!("the tool {}@{} starts from it", info.tool.name, info.version))
        };
        match who {
            None => Ok(()),
            Some(who) => {
                let reason = format!("{name:?} is for an administrator to give: {who}; give another");
                Err(KeeperError::Policy { field: "name", reason })
            }
        }
    }
}

fn default_template() -> TemplateInfo {
    TemplateInfo {
        machine: false,
        start: None,
        ready: None,
        workdir: None,
        id: DEFAULT_TEMPLATE.to_owned(),
        name: Some(DEFAULT_TEMPLATE.to_owned()),
        kind: TemplateKind::Builtin,
        base: "host",
        warm: Vec::new(),
        source: None,
        digest: String::new(),
        bytes: 0,
        created_at: Timestamp::UNIX_EPOCH,
        note: Some("an empty home in the machine's own tree".to_owned()),
        build: None,
        parent: None,
        steps: Vec::new(),
        limits: BTreeMap::new(),
        env: BTreeMap::new(),
        image: None,
    }
}

/// Returns limits by their names, as people write them.
fn limit_texts(limits: &LimitsFile) -> BTreeMap<String, String> {
    let value = serde_json::to_value(limits).unwrap_or_default();
    let fields = value.as_object().cloned().unwrap_or_default();
    let text = |value: serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    fields.into_iter().map(|(name, value)| (name, text(value))).collect()
}

pub(crate) fn template_info(row: &TemplateRow) -> TemplateInfo {
    let built = built_record(row).ok().flatten();
    // One of an earlier version may have what this one does not know.
    let spec = SpecFile::from_json(&row.spec).unwrap_or_default();
    TemplateInfo {
        parent: built.as_ref().and_then(|built| built.parent.clone()),
        steps: built.as_ref().map(|built| built.steps.clone()).unwrap_or_default(),
        limits: limit_texts(&spec.limits),
        machine: spec.machine == Some(true),
        start: built.as_ref().and_then(|built| built.start.clone()),
        ready: built.as_ref().and_then(|built| built.ready.clone()),
        workdir: built.as_ref().and_then(|built| built.workdir.clone()),
        env: spec.env.unwrap_or_default(),
        id: row.id.clone(),
        name: row.name.clone(),
        kind: row.kind,
        base: built.as_ref().map_or("host", |built| built.base.as_str()),
        build: built.as_ref().and_then(|built| built.build.clone()),
        image: built.as_ref().and_then(|built| built.image.clone()),
        warm: built.map(|built| built.warm).unwrap_or_default(),
        source: row.source_sandbox.as_ref().map(ToString::to_string),
        digest: row.digest.clone(),
        bytes: u64::try_from(row.bytes).unwrap_or(0),
        created_at: row.created_at,
        note: Some(row.note.clone()).filter(|note| !note.is_empty()),
    }
}
