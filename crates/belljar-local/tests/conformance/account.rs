//! The account that tests of an ordinary user run as.

/// The account that the cases of an ordinary user run as.
pub(crate) const ACCOUNT: &str = "belljar-test";

/// The account's uid and gid, by passwd(5).
pub(crate) fn account() -> Option<(u32, u32)> {
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = passwd.lines().find(|line| line.split(':').next() == Some(ACCOUNT))?;
    let mut ids = line.split(':').skip(2);
    Some((ids.next()?.parse().ok()?, ids.next()?.parse().ok()?))
}
