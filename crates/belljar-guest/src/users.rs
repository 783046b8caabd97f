//! Users of a machine, by the files of its tree (passwd(5), group(5)). Code in the sandbox writes these files.

use std::io::Read as _;
use std::os::fd::OwnedFd;

use belljar_linux::User;
use rustix::fs::{FileType, Mode, OFlags};

/// Maximum size of each file, in bytes; what is beyond is not read.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Maximum number of groups of a user (`NGROUPS_MAX` is 65,536, which no program needs).
const MAX_GROUPS: usize = 256;

/// A user with what programs expect in their environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) user: User,
    pub(crate) home: String,
    pub(crate) shell: String,
}

impl Account {
    /// Returns the directory in which programs of the user start: the home, if it is there.
    pub(crate) fn directory(&self) -> Vec<u8> {
        let is_there = std::fs::metadata(&self.home).is_ok_and(|home| home.is_dir());
        if is_there { self.home.clone().into() } else { b"/".to_vec() }
    }
}

/// Looks a user up, by name or by number. `ids` is the number of ids of the sandbox.
pub(crate) fn find(name: &str, ids: u32) -> Option<Account> {
    find_in(&read("/etc/passwd"), &read("/etc/group"), name, ids)
}

fn find_in(passwd: &str, group: &str, name: &str, ids: u32) -> Option<Account> {
    let (name, uid, gid, home, shell) = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let found = fields.next().filter(|found| !found.is_empty())?;
        let number = fields.nth(1)?;
        (found == name || number == name).then_some(())?;
        let (uid, gid) = (number.parse().ok()?, fields.next()?.parse().ok()?);
        let home = fields.nth(1).filter(|home| home.starts_with('/')).unwrap_or("/");
        let shell = fields.next().filter(|shell| shell.starts_with('/')).unwrap_or("/bin/sh");
        Some((found, uid, gid, home, shell))
    })?;
    if uid >= ids || gid >= ids {
        return None;
    }
    let mut groups = vec![gid];
    let of_user = group.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let number: u32 = fields.nth(2)?.parse().ok()?;
        fields.next()?.split(',').any(|member| member == name).then_some(number)
    });
    groups.extend(of_user.filter(|number| *number != gid && *number < ids).take(MAX_GROUPS - 1));
    Some(Account { user: User { uid, gid, groups }, home: home.to_owned(), shell: shell.to_owned() })
}

/// Reads a file that may be anything; what cannot be read is empty.
fn read(path: &str) -> String {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let regular = |file: &OwnedFd| {
        rustix::fs::fstat(file)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
    };
    let mut content = Vec::new();
    if let Some(file) = rustix::fs::open(path, flags, Mode::empty()).ok().filter(regular) {
        let _ = std::fs::File::from(file).take(MAX_FILE_BYTES).read_to_end(&mut content);
    }
    String::from_utf8_lossy(&content).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n\n:x:5:5::/:/bin/sh\nshort:x:7\nuser:x:1000:1000:user:/home/user:\n\
                          far:x:70000:7:far:/:/bin/sh\npostgres:x:101:102::relative:/bin/bash\n";
    const GROUP: &str =
        "root:x:0:\nsudo:x:27:user,root\nssl-cert:x:103:postgres,user\nfar:x:70000:user\nbad:x:no:user\n";

    #[test]
    fn users_are_found_with_their_groups() {
        let find = |name: &str| find_in(PASSWD, GROUP, name, 65_536);
        let account = |uid, gid, groups: &[u32], home: &str, shell: &str| {
            let user = User { uid, gid, groups: groups.to_vec() };
            Some(Account { user, home: home.to_owned(), shell: shell.to_owned() })
        };
        assert_eq!(find("root"), account(0, 0, &[0, 27], "/root", "/bin/bash"));
        assert_eq!(find("1000"), account(1000, 1000, &[1000, 27, 103], "/home/user", "/bin/sh"));
        assert_eq!(find("postgres"), account(101, 102, &[102, 103], "/", "/bin/bash"));
        for nobody in ["", "short", "far", "nobody", "x", "4294967296", "7"] {
            assert_eq!(find(nobody), None, "{nobody}");
        }
    }

    #[test]
    fn files_that_are_no_files_are_empty() {
        assert_eq!((read("/dev/zero"), read("/proc"), read("/nowhere")), Default::default());
    }
}
