//! A template as one file: a magic line, a header line of JSON, and the layers.
//!
//! ```text
//! belljar-template 1\n
//! {"name":…,"base":…,"layers":[{"digest":…,"bytes":…},…],…}\n
//! <the squashfs files, the lowest first>
//! ```
//!
//! Earlier files have a single `layer`, or `null`. A layer of a file from elsewhere is never mounted: it is unpacked in a sandbox and repacked there.

use belljar_model::{MAX_TREE_LAYERS, SpecFile, TreeBase, one_or_several};
use serde::{Deserialize, Serialize};

use crate::definition::{MAX_WORDS, is_module, sanitize};
use crate::error::BuildError;
use crate::layers::Layer;

/// Limit of the magic line and the header line together, in bytes.
pub const MAX_HEADER_BYTES: usize = 1 << 20;

/// Limit of the working directory's path, in bytes.
const MAX_DIR_BYTES: usize = 1024;

const MAGIC: &str = "belljar-template 1\n";

/// The header of a bundle: everything about the template except its files.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BundleHeader {
    /// The template's name.
    pub name: String,
    /// The purpose of the template.
    pub description: String,
    /// The tree below the layers.
    pub base: TreeBase,
    /// The layers that follow, the lowest first.
    #[serde(default, alias = "layer", deserialize_with = "one_or_several")]
    pub layers: Vec<Layer>,
    /// Limits and environment of the template's sandboxes.
    pub spec: SpecFile,
    /// A command that is started in each sandbox.
    pub start: Option<String>,
    /// A command that succeeds as soon as a sandbox is ready for use.
    pub ready: Option<String>,
    /// The absolute path of the directory in which both commands run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Modules that warm interpreters import in advance.
    pub warm: Vec<String>,
}

/// Returns the beginning of a bundle: the magic line and the header line.
///
/// # Errors
/// Fails if the result is longer than [`MAX_HEADER_BYTES`].
pub fn write_header(header: &BundleHeader) -> Result<Vec<u8>, BuildError> {
    let json =
        serde_json::to_string(header).map_err(|error| BuildError::Bundle { reason: error.to_string() })?;
    let head = format!("{MAGIC}{json}\n").into_bytes();
    if head.len() > MAX_HEADER_BYTES {
        let reason =
            format!("its header would have {} bytes; at most {MAX_HEADER_BYTES} are allowed", head.len());
        return Err(BuildError::Bundle { reason });
    }
    Ok(head)
}

/// Parses the header from the first bytes of a bundle, and returns it with the offset of the first layer; `None` if more
/// bytes are needed.
///
/// # Errors
/// Fails if `bytes` is not the beginning of a valid bundle.
pub fn parse_header(bytes: &[u8]) -> Result<Option<(BundleHeader, usize)>, BuildError> {
    let invalid = |reason: String| BuildError::Bundle { reason: sanitize(&reason, 1000) };
    let magic = MAGIC.as_bytes();
    let common = bytes.len().min(magic.len());
    if bytes[..common] != magic[..common] {
        return Err(invalid(
            "it is no exported template; belljar template build FILE makes one of a file in TOML".to_owned(),
        ));
    }
    let rest = &bytes[common..];
    match rest.iter().position(|byte| *byte == b'\n') {
        Some(end) if common == magic.len() && common + end < MAX_HEADER_BYTES => {
            let header: BundleHeader = serde_json::from_slice(&rest[..end])
                .map_err(|error| invalid(format!("its header is invalid: {error}")))?;
            if !header.layers.iter().all(Layer::is_valid) {
                return Err(invalid("layers.digest: give 64 hexadecimal digits".to_owned()));
            }
            if header.layers.len() > MAX_TREE_LAYERS {
                return Err(invalid(format!("layers: at most {MAX_TREE_LAYERS} are allowed")));
            }
            if header.layers.is_empty() && header.base == TreeBase::Own {
                return Err(invalid("layers: a tree of its own has at least one".to_owned()));
            }
            if header.spec.machine == Some(true) && header.base == TreeBase::Host {
                return Err(invalid("spec.machine: a machine needs a tree of its own".to_owned()));
            }
            let is_dir =
                |dir: &String| dir.starts_with('/') && dir.len() <= MAX_DIR_BYTES && !dir.contains('\0');
            if !header.workdir.iter().all(is_dir) {
                return Err(invalid(format!(
                    "workdir: give an absolute path of at most {MAX_DIR_BYTES} bytes"
                )));
            }
            if header.warm.len() > MAX_WORDS || !header.warm.iter().all(|name| is_module(name)) {
                return Err(invalid(format!("warm: give at most {MAX_WORDS} names of Python modules")));
            }
            Ok(Some((header, common + end + 1)))
        }
        _ if bytes.len() >= MAX_HEADER_BYTES => {
            Err(invalid(format!("its header has more than {MAX_HEADER_BYTES} bytes")))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> BundleHeader {
        BundleHeader {
            name: "a".to_owned(),
            description: String::new(),
            base: TreeBase::Own,
            layers: vec![Layer { digest: "0".repeat(64), bytes: 3 }],
            spec: SpecFile::default(),
            start: None,
            ready: None,
            workdir: Some("/srv".to_owned()),
            warm: vec!["numpy".to_owned()],
        }
    }

    #[test]
    fn header_round_trip_in_partial_reads() {
        let mut bytes = write_header(&header()).unwrap();
        let length = bytes.len();
        bytes.extend_from_slice(b"abc\n");
        for end in 0..length {
            assert_eq!(parse_header(&bytes[..end]).unwrap(), None, "{end}");
        }
        assert_eq!(parse_header(&bytes).unwrap(), Some((header(), length)));
    }

    #[test]
    fn invalid_bundles_are_refused() {
        let good = String::from_utf8(write_header(&header()).unwrap()).unwrap();
        let written = |header: BundleHeader| String::from_utf8(write_header(&header).unwrap()).unwrap();
        let machine = SpecFile { machine: Some(true), ..SpecFile::default() };
        let on_host = BundleHeader { base: TreeBase::Host, layers: Vec::new(), ..header() };
        assert!(parse_header(written(on_host.clone()).as_bytes()).is_ok(), "settings alone");
        for (bad, field) in [
            (BundleHeader { layers: Vec::new(), ..header() }, "layers"),
            (BundleHeader { spec: machine, ..on_host }, "spec.machine"),
        ] {
            let error = parse_header(written(bad).as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("bundle: {field}: ")), "{error}");
        }
        for bad in [
            "PK\x03\x04".to_owned(),
            good.replace("template 1", "template 2"),
            good.replace("\"own\"", "\"other\""),
            good.replace("\"warm\"", "\"more\":1,\"warm\""),
            good.replace("\"/srv\"", "\"srv\""),
            good.replace("\"numpy\"", "\"os; rm\""),
            good.replace(&"0".repeat(64), "../../etc/passwd"),
            format!("{MAGIC}{}", "x".repeat(MAX_HEADER_BYTES)),
            format!("{MAGIC}{{}}\n"),
        ] {
            let error = parse_header(bad.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("bundle: "), "{error}");
        }
    }
}
