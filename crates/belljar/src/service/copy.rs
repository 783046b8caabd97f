//! `belljar sandbox cp`: files in and out. One of the two places is `SANDBOX:PATH`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use belljar_client::v1;

use super::create::put;
use super::link::Link;
use crate::copy_out::Outputs;
use crate::files::Inputs;
use crate::message::Quit;

/// The most bytes of a file that come out of a sandbox whose disk is not known: 1 TiB.
const MOST_BYTES: u64 = 1 << 40;

/// Copies `from` to `to`.
pub(crate) async fn copy(link: &Link, from: &OsStr, to: &OsStr) -> Result<(), Quit> {
    match (inside(from), inside(to)) {
        (None, Some((sandbox, path))) => {
            let files = Inputs::find(&[pair(from, &target(from, path))], None)?;
            put(link, &sandbox, files).await
        }
        (Some((sandbox, path)), None) => {
            let outputs = Outputs::find(&[pair(path, to)])?;
            let request = v1::GetSandboxRequest { sandbox: sandbox.clone(), ..Default::default() };
            let info = link.client.get(request).await?;
            let most = info.limits.as_option().and_then(|limits| limits.disk_bytes).unwrap_or(MOST_BYTES);
            match outputs.bring_at_most(&link.client.guest(&sandbox)?, most).await.into_iter().next() {
                Some(error) => Err(error.into()),
                None => Ok(()),
            }
        }
        _ => Err(Quit::Usage(
            "one of the two places must be SANDBOX:PATH, and the other a file here; write ./a:b for a file here with a \
             colon in its name"
                .to_owned(),
        )),
    }
}

/// `SANDBOX:PATH`. A place with a slash before its first colon is one here.
fn inside(place: &OsStr) -> Option<(String, &OsStr)> {
    let bytes = place.as_bytes();
    let colon = bytes.iter().position(|byte| *byte == b':')?;
    let (sandbox, path) = (&bytes[..colon], &bytes[colon + 1..]);
    if sandbox.is_empty() || sandbox.contains(&b'/') || sandbox.contains(&b'.') {
        return None;
    }
    let path = if path.is_empty() { OsStr::new(".") } else { OsStr::from_bytes(path) };
    Some((std::str::from_utf8(sandbox).ok()?.to_owned(), path))
}

/// Where a file goes: a path that ends with a slash, or that is `.`, is a directory for it.
fn target(from: &OsStr, path: &OsStr) -> OsString {
    let name = std::path::Path::new(from).file_name().unwrap_or(from);
    match path.as_bytes() {
        b"." => name.to_owned(),
        bytes if bytes.ends_with(b"/") => OsString::from_vec([bytes, name.as_bytes()].concat()),
        _ => path.to_owned(),
    }
}

/// `SRC:DEST`, as `belljar run` takes it. A colon in the source stays its own.
fn pair(source: &OsStr, target: &OsStr) -> OsString {
    OsString::from_vec([source.as_bytes(), b":", target.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_apart() {
        let told = |text: &'static str| {
            inside(OsStr::new(text)).map(|(sandbox, path)| (sandbox, path.to_string_lossy().into_owned()))
        };
        let id = "abcdefghij0123456789";
        assert_eq!(told("abcdefghij0123456789:/home/user/"), Some((id.to_owned(), "/home/user/".to_owned())));
        assert_eq!(told("work:a:b"), Some(("work".to_owned(), "a:b".to_owned())));
        assert_eq!(told("work:"), Some(("work".to_owned(), ".".to_owned())));
        for here in ["a.csv", "./a:b", "/tmp/a:b", ":a", "a.b:c"] {
            assert_eq!(told(here), None, "{here}");
        }
    }

    #[test]
    fn a_directory_keeps_the_name() {
        let name =
            |path: &str| target(OsStr::new("dir/a.csv"), OsStr::new(path)).to_string_lossy().into_owned();
        assert_eq!(name("."), "a.csv");
        assert_eq!(name("/home/user/"), "/home/user/a.csv");
        assert_eq!(name("b.csv"), "b.csv");
    }
}
