//! Tags of templates that were built step by step. A tag is a template of its own with the same files: their archive has one name
//! on the disk for each.

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
    /// The build that it names.
    pub build: String,
    /// When it was given.
    pub created_at: Timestamp,
}

/// An id for a template.
pub(crate) fn new_template_id() -> Result<String> {
    let mut random = [0u8; 10];
    fill_random(&mut random)?;
    Ok(format!("tpl_{}", hex::encode(random)))
}

/// The build that a template is of, if it was built step by step.
pub(crate) fn build_of(row: &TemplateRow) -> Option<String> {
    built_record(row).ok().flatten()?.build
}

impl Keeper {
    /// What is stored of a template under a tag. What has the name and was not built step by step is not replaced.
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

    /// The tags of a template, by their names; none if there is no such template.
    ///
    /// # Errors
    /// The store failed.
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

    /// Gives tags to what `target` names. Another build that had one of them loses it. Returns the build.
    ///
    /// # Errors
    /// There is no such template; a tag is not allowed. Tags before the one that failed are given.
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
            let tagged = keeper.give_tags(&caller, &target, &tags).await;
            let details = vec![("name", target.to_string()), ("tags", tags.join(" "))];
            keeper.audit(&caller, TEMPLATE_TAG, None, &tagged, details).await?;
            tagged
        })
        .await
    }

    async fn give_tags(&self, caller: &Caller, target: &TaggedName, tags: &[String]) -> Result<String> {
        let found = self.find_tag(caller, target.name(), target.tag()).await?;
        let found = found.ok_or_else(|| missing(&target.to_string()))?;
        let build = build_of(&found).ok_or_else(|| missing(&target.to_string()))?;
        for tag in tags {
            // A tag that is given to what has it already stays as it is.
            if tag != target.tag() {
                self.store_tagged(caller, target.name(), tag, &found).await?;
            }
        }
        Ok(build)
    }

    /// Takes tags away. The template's last one can only go with the template.
    ///
    /// # Errors
    /// There is no such template, or it has no such tag.
    pub async fn untag_template(&self, caller: &Caller, name: &TaggedName, tags: &[String]) -> Result<()> {
        let (keeper, caller) = (self.clone(), caller.clone());
        let (name, tags) = (name.clone(), tags.to_vec());
        run_detached(&self.inner.tasks, async move {
            keeper.require(&caller, TEMPLATE_UNTAG)?;
            check_tags(&tags)?;
            let taken = keeper.take_tags(&caller, name.name(), &tags).await;
            let details = vec![("name", name.name().to_owned()), ("tags", tags.join(" "))];
            keeper.audit(&caller, TEMPLATE_UNTAG, None, &taken, details).await?;
            taken
        })
        .await
    }

    async fn take_tags(&self, caller: &Caller, name: &str, tags: &[String]) -> Result<()> {
        if tags.iter().any(|tag| tag == DEFAULT_TAG) {
            let reason = "the tag default goes with the template only; remove the template";
            return Err(KeeperError::field("tags", reason));
        }
        let mut rows = Vec::new();
        for tag in tags {
            let found = self.find_tag(caller, name, tag).await?;
            rows.push(found.ok_or_else(|| missing(&stored_name(name, tag)))?);
        }
        for row in rows {
            self.remove_files_of(&row).await?;
        }
        Ok(())
    }

    /// Removes a template that was built step by step with all its tags. Returns whether there was one.
    ///
    /// # Errors
    /// The store or the disk failed.
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

    /// Stores a template under one tag more, and its files under one name more. What had the tag is replaced.
    pub(crate) async fn store_tagged(
        &self,
        caller: &Caller,
        name: &str,
        tag: &str,
        of: &TemplateRow,
    ) -> Result<TemplateRow> {
        let row = TemplateRow {
            id: new_template_id()?,
            name: Some(stored_name(name, tag)),
            created_at: Timestamp::now(),
            ..of.clone()
        };
        let (from, path) = (self.archive_path(&of.id), self.archive_path(&row.id));
        let _busy = self.inner.archives.begin(&path);
        link(&from, &path).await?;
        let stored = self.replace(caller, name, tag, &row).await;
        if stored.is_err() {
            let _ = tokio::fs::remove_file(&path).await;
        }
        stored.map(|()| row)
    }

    /// Stores a template in place of what had its tag.
    pub(crate) async fn replace(
        &self,
        caller: &Caller,
        name: &str,
        tag: &str,
        row: &TemplateRow,
    ) -> Result<()> {
        if let Some(old) = self.find_tag(caller, name, tag).await? {
            self.remove_files_of(&old).await?;
        }
        match self.inner.store.templates().insert(row).await {
            Err(StoreError::NameTaken { name, .. }) => Err(KeeperError::field(
                "name",
                format!("{name:?} was taken by another build; build it again"),
            )),
            stored => Ok(stored?),
        }
    }

    async fn remove_files_of(&self, row: &TemplateRow) -> Result<()> {
        match self.inner.store.templates().remove(&row.id).await {
            Err(StoreError::NotFound { .. }) | Ok(()) => self.inner.pools.give_up(&row.id),
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
