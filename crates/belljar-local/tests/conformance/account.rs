//! The account that tests of an ordinary user run as.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// The account that the cases of an ordinary user run as.
pub(crate) const ACCOUNT: &str = "belljar-test";

/// The account's uid and gid, by passwd(5).
pub(crate) fn account() -> Option<(u32, u32)> {
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = passwd.lines().find(|line| line.split(':').next() == Some(ACCOUNT))?;
    let mut ids = line.split(':').skip(2);
    Some((ids.next()?.parse().ok()?, ids.next()?.parse().ok()?))
}

/// Puts this program at `path`, where that account can run it: it may not be able to go where the program lies. A link costs
/// nothing where a copy has more than a hundred megabytes.
pub(crate) fn place_program(path: &Path) -> std::io::Result<()> {
    let own = std::env::current_exe()?;
    let may_run = own.metadata()?.permissions().mode() & 0o5 == 0o5;
    if may_run && std::fs::hard_link(&own, path).is_ok() {
        return Ok(());
    }
    std::fs::copy(&own, path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
}
