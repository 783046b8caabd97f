//! The error numbers that a filter may return.

use std::fmt;

/// Every error number that the policy may name. The numbers are the same on both architectures (asm-generic/errno.h).
const KNOWN: &[(u16, &str)] = &[
    // The call does not run and returns success.
    (0, "PRETEND"),
    (1, "EPERM"),
    (13, "EACCES"),
    (22, "EINVAL"),
    (38, "ENOSYS"),
    (93, "EPROTONOSUPPORT"),
    (95, "EOPNOTSUPP"),
    (97, "EAFNOSUPPORT"),
];

/// An error number that a filter returns instead of running the call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilterErrno(u16);

impl FilterErrno {
    /// "Function not implemented", the answer to unlisted calls.
    pub const NOSYS: Self = Self(38);

    /// Returns the number, 0 to 4095.
    #[must_use]
    pub fn number(self) -> u16 {
        self.0
    }

    /// Returns the name, such as `EPERM`.
    #[must_use]
    pub fn name(self) -> &'static str {
        KNOWN.iter().find(|(number, _)| *number == self.0).map_or("?", |(_, name)| name)
    }

    /// Returns the error number named `name`, if a policy may use it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        KNOWN.iter().find(|(_, known)| *known == name).map(|(number, _)| Self(*number))
    }

    /// Returns the names that a policy may use, for an error message.
    pub(super) fn names() -> String {
        let names: Vec<&str> = KNOWN.iter().map(|(_, name)| *name).collect();
        names.join(", ")
    }
}

impl fmt::Display for FilterErrno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for FilterErrno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_match_the_kernels() {
        let check = |name: &str, expected: i32| {
            let errno = FilterErrno::from_name(name).expect("a known name");
            assert_eq!(i32::from(errno.number()), expected, "{name}");
            assert_eq!(errno.name(), name);
        };
        check("EPERM", libc::EPERM);
        check("EACCES", libc::EACCES);
        check("EINVAL", libc::EINVAL);
        check("ENOSYS", libc::ENOSYS);
        check("EPROTONOSUPPORT", libc::EPROTONOSUPPORT);
        check("EOPNOTSUPP", libc::EOPNOTSUPP);
        check("EAFNOSUPPORT", libc::EAFNOSUPPORT);
        assert_eq!(FilterErrno::NOSYS.name(), "ENOSYS");
        assert_eq!(FilterErrno::from_name("EPERMX"), None);
    }
}
