//! `belljar gc`: removes unused leftovers.

use std::path::{Path, PathBuf};

use belljar_client::Method;
use belljar_keeper::Leftover;
use serde::Deserialize;
use serde_json::json;

use super::link::{Link, home};
use super::server_args::CollectArgs;
use super::show::show_leftovers;
use crate::message::Quit;
use crate::serve::OLD_LOG_FILE;

/// Error from removing a leftover.
#[derive(Debug, thiserror::Error)]
enum CollectError {
    #[error("cannot remove {path:?}")]
    Remove { path: PathBuf, source: std::io::Error },
}

/// Response of the server.
#[derive(Deserialize)]
struct Leftovers {
    leftovers: Vec<Leftover>,
}

/// Removes leftovers, or only lists them.
pub(crate) async fn run(link: &Link, args: &CollectArgs) -> Result<u8, Quit> {
    let request = json!({"dry_run": args.dry_run});
    let request = link.client.send(Method::POST, "/v1/gc", &request);
    let Leftovers { mut leftovers } = link.with_progress("looking for what is left over", request).await?;
    if link.is_own {
        leftovers.extend(old_log(&home(&args.server)?, args.dry_run)?);
    }
    show_leftovers(link, args.dry_run, &leftovers)?;
    Ok(0)
}

/// Removes the rotated log of a server in the background, and returns it if there is one.
fn old_log(home: &Path, dry_run: bool) -> Result<Option<Leftover>, CollectError> {
    let path = home.join(OLD_LOG_FILE);
    let Some(metadata) = path.symlink_metadata().ok().filter(std::fs::Metadata::is_file) else {
        return Ok(None);
    };
    if !dry_run {
        std::fs::remove_file(&path).map_err(|source| CollectError::Remove { path: path.clone(), source })?;
    }
    Ok(Some(Leftover { kind: "log".into(), path: Some(path), bytes: metadata.len(), count: 1 }))
}
