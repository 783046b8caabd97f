//! Account for tests of an ordinary user, and the programs it can reach.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Account for the cases of an ordinary user.
pub(crate) const ACCOUNT: &str = "belljar-test";

/// File name of the guest's program.
const GUEST: &str = "belljar-guest";

/// Returns the account's uid and gid, by passwd(5).
pub(crate) fn find_account() -> Option<(u32, u32)> {
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = passwd.lines().find(|line| line.split(':').next() == Some(ACCOUNT))?;
    let mut ids = line.split(':').skip(2);
    Some((ids.next()?.parse().ok()?, ids.next()?.parse().ok()?))
}

/// Returns the guest's program: beside this program, or in the directory above, where Cargo puts it.
pub(crate) fn guest_program() -> std::io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let dirs = own.ancestors().skip(1).take(2);
    dirs.map(|dir| dir.join(GUEST)).find(|path| path.exists()).ok_or_else(|| {
        std::io::Error::other(
            "there is no belljar-guest; build it with the features of the tests: cargo build --workspace",
        )
    })
}

/// Installs this program at `path`, and the guest's beside it, where that account can run them: it may have no access to where
/// they are.
pub(crate) fn install_programs(path: &Path) -> std::io::Result<()> {
    install(&std::env::current_exe()?, path)?;
    install(&guest_program()?, &path.with_file_name(GUEST))
}

/// Links or copies a program. A link costs nothing, while a copy may have more than a hundred megabytes.
fn install(from: &Path, to: &Path) -> std::io::Result<()> {
    let may_run = from.metadata()?.permissions().mode() & 0o5 == 0o5;
    if may_run && std::fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    std::fs::copy(from, to)?;
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o755))
}
