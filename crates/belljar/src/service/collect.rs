//! `belljar gc`: what is left over, and in nobody's use.

use std::path::{Path, PathBuf};

use belljar_client::v1;

use super::args::{CollectArgs, Format};
use super::link::{Link, home};
use super::show::{Table, bytes, print};
use crate::message::Quit;
use crate::serve::OLD_LOG_FILE;

/// Why a file could not be removed.
#[derive(Debug, thiserror::Error)]
enum CollectError {
    #[error("cannot remove {path:?}")]
    Remove { path: PathBuf, source: std::io::Error },
}

/// Removes what is left over, or only says what that would be.
pub(crate) async fn run(link: &Link, args: &CollectArgs) -> Result<u8, Quit> {
    let request = v1::CollectRequest { dry_run: args.dry_run, ..Default::default() };
    let mut leftovers =
        link.long("looking for what is left over", link.client.collect(request)).await?.leftovers;
    if link.is_own {
        leftovers.extend(old_log(&home(&args.server)?, args.dry_run)?);
    }
    show(link, args, &leftovers)?;
    Ok(0)
}

/// The log that a server in the background has put aside.
fn old_log(home: &Path, dry_run: bool) -> Result<Option<v1::Leftover>, CollectError> {
    let path = home.join(OLD_LOG_FILE);
    let Some(metadata) = path.symlink_metadata().ok().filter(std::fs::Metadata::is_file) else {
        return Ok(None);
    };
    let name = path.display().to_string();
    if !dry_run {
        std::fs::remove_file(&path).map_err(|source| CollectError::Remove { path, source })?;
    }
    Ok(Some(v1::Leftover {
        kind: "log".to_owned(),
        name,
        bytes: metadata.len(),
        count: 1,
        ..Default::default()
    }))
}

fn show(link: &Link, args: &CollectArgs, leftovers: &[v1::Leftover]) -> Result<(), Quit> {
    if link.format == Format::Json {
        for leftover in leftovers {
            link.json(leftover)?;
        }
        return Ok(());
    }
    if link.quiet {
        return print(
            &leftovers
                .iter()
                .filter(|one| !one.name.is_empty())
                .map(|one| format!("{}\n", one.name))
                .collect::<String>(),
        );
    }
    let mut table = Table::new(&["KIND", "COUNT", "SIZE", "NAME"]);
    for one in leftovers {
        let name = if one.name.is_empty() { "-" } else { &one.name };
        let size = if one.bytes == 0 { "-".to_owned() } else { bytes(one.bytes) };
        table.row(vec![one.kind.clone(), one.count.to_string(), size, name.to_owned()]);
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
