//! `belljar gc`: removes unused leftovers.

use std::path::{Path, PathBuf};

use belljar_client::Method;
use belljar_keeper::Leftover;
use serde::Deserialize;
use serde_json::json;

use super::args::Format;
use super::link::{Link, home};
use super::server_args::CollectArgs;
use super::show::{Table, print};
use crate::message::Quit;
use crate::serve::OLD_LOG_FILE;
use crate::units::bytes;

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
    show(link, args, &leftovers)?;
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

fn show(link: &Link, args: &CollectArgs, leftovers: &[Leftover]) -> Result<(), Quit> {
    if link.format == Format::Json {
        for leftover in leftovers {
            link.json(leftover)?;
        }
        return Ok(());
    }
    if link.quiet {
        let paths = leftovers.iter().filter_map(|one| one.path.as_ref());
        return print(&paths.map(|path| format!("{}\n", path.display())).collect::<String>());
    }
    let mut table = Table::new(&["KIND", "COUNT", "SIZE", "NAME"]);
    for one in leftovers {
        let name = one.path.as_ref().map_or_else(|| "-".to_owned(), |path| path.display().to_string());
        let size = if one.bytes == 0 { "-".to_owned() } else { bytes(one.bytes) };
        table.row(vec![one.kind.to_string(), one.count.to_string(), size, name]);
    }
    if !leftovers.is_empty() {
        table.print()?;
    }
    let sum = leftovers.iter().map(|one| one.bytes).sum();
    link.remark(&match (leftovers.is_empty(), args.dry_run) {
        (true, _) => "nothing is left over".to_owned(),
        (false, true) => format!("{} can be freed", bytes(sum)),
        (false, false) => format!("{} freed", bytes(sum)),
    });
    Ok(())
}
