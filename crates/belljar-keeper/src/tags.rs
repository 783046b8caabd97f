//! Tags of templates that were built step by step. Each tag is a template of its own, whose archive is a hard link to the same file.

use std::path::Path;

use belljar_store::{StoreError, TemplateKind, TemplateRow};
use jiff::Timestamp;

use crate::action::{TEMPLATE_GET, TEMPLATE_REMOVE, TEMPLATE_TAG, TEMPLATE_UNTAG};
use crate::built::built_record;
use crate::caller::Caller;
use crate::create::fill_random;
use crate::error::KeeperError;
use crate::keeper::{Keeper, Result};
use crate::plan::{DEFAULT_TAG, TaggedName, check_tag, stored_name, tag_of};
use crate::steps::run_detached;

/// A tag of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateTag {
    /// The tag.
    pub tag: String,
    /// Id of the tagged build.
    pub build: String,
    /// Time of creation.
    pub created_at: Timestamp,
}

/// Prefix of the ids of templates.
const ID_PREFIX: &str = "tpl_";

/// Generates the id of a template.
pub(crate) fn new_template_id() -> Result<String> {
    let mut random = [0u8; 10];
    fill_random(&mut random)?;
    Ok(format!("{ID_PREFIX}{}", hex::encode(random)))
}

/// Reports whether a text has the form of a template's id. No name has: ids take precedence.
pub(crate) fn is_template_id(text: &str) -> bool {
    text.strip_prefix(ID_PREFIX)
        .is_some_and(|hex| hex.len() == 20 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Returns the build of a template, if it was built step by step.
pub(crate) fn build_of(row: &TemplateRow) -> Option<String> {
    built_record(row).ok().flatten()?.build
}

impl Keeper {
    /// Finds the template with a tag. Fails if its name is taken by one that was not built step by step.
    pub(crate) async fn find_tag(
        &self,
        caller: &Caller,
        name: &str,
        tag: &str,
    ) -> Result<Option<TemplateRow>> {
        let stored = stored_name(name, tag);
        let found = self.inner.store.templates().get(&caller.tenant, &stored).await?;
        let found =
            found.filter(|row| row.tenant == caller.tenant && row.name.as_deref() == Some(stored.as_str()));
        match found {
            Some(row) if build_of(&row).is_none() => {
                let kind = match row.kind {
                    TemplateKind::Built => "template that an administrator has built",
                    _ => "snapshot",
                };
                Err(KeeperError::field("name", format!("{stored:?} is the name of a {kind}; give another")))
            }
            found => Ok(found),
        }
    }

    /// Lists the tags of a template, sorted; none if it does not exist.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub async fn template_tags(&self, caller: &Caller, name: &str) -> Result<Vec<TemplateTag>> {
        self.require(caller, TEMPLATE_GET)?;
        let rows = self.inner.store.templates().list(Some(&caller.tenant)).await?;
        let mut tags: Vec<TemplateTag> = rows
            .iter()
            .filter_map(|row| {
                let tag = tag_of(name, row.name.as_deref()?)?.to_owned();
                Some(TemplateTag { tag, build: build_of(row)?, created_at: row.created_at })
            })
            .collect();
        tags.sort_by(|one, other| one.tag.cmp(&other.tag));
        Ok(tags)
    }

    /// Adds tags to the template `target`, and removes them from other builds. Returns the build.
    ///
    /// # Errors
    /// Fails if the template does not exist or a tag is invalid. Tags before the failed one stay added.
    pub async fn tag_template(
        &self,
        caller: &Caller,
        target: &TaggedName,
        tags: &[String],
    ) -> Result<String> {
        let (keeper, caller) = (self.clone(), caller.clone());
        let (target, tags) = (target.clone(), tags.to_vec());
        run_detached(&self.inner.tasks, async move {
            keeper.require(&caller, TEMPLATE_TAG)?;
            check_tags(&tags)?;
            let tagged = keeper.add_tags(&caller, &target, &tags).await;
            let details = vec![("name", target.to_string()), ("tags", tags.join(" "))];
            keeper.audit(&caller, TEMPLATE_TAG, None, &tagged, details).await?;
            tagged
        })
        .await
    }

    async fn add_tags(&self, caller: &Caller, target: &TaggedName, tags: &[String]) -> Result<String> {
        let found = self.find_tag(caller, target.name(), target.tag()).await?;
        let found = found.ok_or_else(|| missing(&target.to_string()))?;
        let build = build_of(&found).ok_or_else(|| missing(&target.to_string()))?;
        for tag in tags {
            // The template has its own tag already.
            if tag != target.tag() {
                self.store_tagged(caller, target.name(), tag, &found).await?;
            }
        }
        Ok(build)
    }

    /// Removes tags. The tag `default` is removed only with the template.
    ///
    /// # Errors
    /// Fails if the template or a tag does not exist.
    pub async fn untag_template(&self, caller: &Caller, name: &TaggedName, tags: &[String]) -> Result<()> {
        let (keeper, caller) = (self.clone(), caller.clone());
        let (name, tags) = (name.clone(), tags.to_vec());
        run_detached(&self.inner.tasks, async move {
            keeper.require(&caller, TEMPLATE_UNTAG)?;
            check_tags(&tags)?;
            let removed = keeper.remove_tags(&caller, name.name(), &tags).await;
            let details = vec![("name", name.name().to_owned()), ("tags", tags.join(" "))];
            keeper.audit(&caller, TEMPLATE_UNTAG, None, &removed, details).await?;
            removed
        })
        .await
    }

    async fn remove_tags(&self, caller: &Caller, name: &str, tags: &[String]) -> Result<()> {
        if tags.iter().any(|tag| tag == DEFAULT_TAG) {
            let reason = "the tag default cannot be removed alone; remove the template";
            return Err(KeeperError::field("tags", reason));
        }
        let mut rows = Vec::new();
        for tag in tags {
            let found = self.find_tag(caller, name, tag).await?;
            rows.push(found.ok_or_else(|| missing(&stored_name(name, tag)))?);
        }
        for row in rows {
            self.remove_tag(caller, &row).await?;
        }
        Ok(())
    }

    /// Removes a template that was built step by step, with all its tags. Reports whether it existed.
    ///
    /// # Errors
    /// Fails if the store or the disk fails.
    pub async fn remove_tagged(&self, caller: &Caller, name: &TaggedName) -> Result<bool> {
        self.require(caller, TEMPLATE_REMOVE)?;
        let tags = match name.given_tag() {
            Some(tag) => {
                self.find_tag(caller, name.name(), tag).await?.map(|_| tag.to_owned()).into_iter().collect()
            }
            None => self.template_tags(caller, name.name()).await?.into_iter().map(|tag| tag.tag).collect(),
        };
        let tags: Vec<String> = tags;
        for tag in &tags {
            self.remove_template(caller, &stored_name(name.name(), tag)).await?;
        }
        Ok(!tags.is_empty())
    }

    /// Stores a copy of a template under another tag, with a hard link to its files. Replaces a template with that tag.
    pub(crate) async fn store_tagged(
        &self,
        caller: &Caller,
        name: &str,
        tag: &str,
        of: &TemplateRow,
    ) -> Result<TemplateRow> {
        let row = TemplateRow {
            id: new_template_id()?,
            key_id: caller.key.clone(),
            name: Some(stored_name(name, tag)),
            created_at: Timestamp::now(),
            ..of.clone()
        };
        let (from, path) = (self.archive_path(&of.id), self.archive_path(&row.id));
        let _in_use = self.inner.archives.begin(&path);
        link(&from, &path).await?;
        let stored = self.replace(caller, name, tag, &row).await;
        if stored.is_err() {
            let _ = tokio::fs::remove_file(&path).await;
        }
        stored.map(|()| row)
    }

    /// Stores a template in place of the one with its tag.
    pub(crate) async fn replace(
        &self,
        caller: &Caller,
        name: &str,
        tag: &str,
        row: &TemplateRow,
    ) -> Result<()> {
        if let Some(old) = self.replaced(caller, name, tag).await? {
            self.remove_tag(caller, &old).await?;
        }
        match self.inner.store.templates().insert(row).await {
            Err(StoreError::NameTaken { name, .. }) => Err(KeeperError::field(
                "name",
                format!("{name:?} was taken by another build; build it again"),
            )),
            stored => Ok(stored?),
        }
    }

    /// Returns the template that one with this tag takes the place of, if there is one.
    ///
    /// # Errors
    /// [`KeeperError::Policy`] if the caller may not replace it, or may not give a name that is free.
    pub(crate) async fn replaced(
        &self,
        caller: &Caller,
        name: &str,
        tag: &str,
    ) -> Result<Option<TemplateRow>> {
        let old = self.find_tag(caller, name, tag).await?;
        match &old {
            Some(row) => self.check_maker(caller, row).await?,
            None => self.check_unclaimed(caller, &stored_name(name, tag)).await?,
        }
        Ok(old)
    }

    async fn remove_tag(&self, caller: &Caller, row: &TemplateRow) -> Result<()> {
        self.check_maker(caller, row).await?;
        match self.inner.store.templates().remove(&row.id).await {
            Err(StoreError::NotFound { .. }) | Ok(()) => self.inner.pools.discard(&row.id),
            Err(error) => return Err(error.into()),
        }
        let path = self.archive_path(&row.id);
        match tokio::fs::remove_file(&path).await {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(KeeperError::File { action: "remove", path, source })
            }
            _ => Ok(()),
        }
    }
}

fn check_tags(tags: &[String]) -> Result<()> {
    if tags.is_empty() || tags.len() > 16 {
        return Err(KeeperError::field("tags", "give 1 to 16 tags"));
    }
    tags.iter().try_for_each(|tag| check_tag(tag))
}

fn missing(name: &str) -> KeeperError {
    KeeperError::NotFound { what: "template", id: name.chars().take(128).collect() }
}

async fn link(from: &Path, to: &Path) -> Result<()> {
    tokio::fs::hard_link(from, to).await.map_err(|source| KeeperError::File {
        action: "link",
        path: to.to_owned(),
        source,
    })
}
