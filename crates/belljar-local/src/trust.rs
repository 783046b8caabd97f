//! Certificate authorities trusted by programs in a sandbox whose gateway terminates TLS for some hosts.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_engine::EngineError;
use belljar_gateway::{Authority, AuthorityError, SYSTEM_ROOTS};
use belljar_linux::{MountStep, Node};
use belljar_model::{NetworkPolicy, NetworkSetup, SandboxSpec};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use sha1::{Digest as _, Sha1};

use crate::host_tree::HostTree;
use crate::template_tree::layer_with;

/// Directory of the files: the one directory that every tree has of its own.
pub const TRUST_DIR: &str = "/dev/belljar";
/// Certificate of the sandbox's authority.
const AUTHORITY: &str = "/dev/belljar/ca.pem";
/// The sandbox's authority together with those that the system trusts.
const BUNDLE: &str = "/dev/belljar/ca-bundle.pem";

/// The key store of Java's authorities, to which the installations of Debian and others refer.
const JAVA_STORE: &str = "/etc/ssl/certs/java/cacerts";
/// The same with the sandbox's authority.
const JAVA_BUNDLE: &str = "/dev/belljar/cacerts";
/// Maximum size of a store that is copied, in bytes.
const MAX_STORE_BYTES: u64 = 1 << 20;

/// Environment variables that name a file with all authorities: OpenSSL (and with it Python, Ruby, PHP), requests, curl, git,
/// pip, cargo, the AWS command line, gRPC.
const BUNDLE_VARIABLES: [&str; 8] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
];
/// Environment variables that name a file with additional authorities: Node, Deno.
const EXTRA_VARIABLES: [&str; 2] = ["NODE_EXTRA_CA_CERTS", "DENO_CERT"];

/// Returns the content of a store of the tree. `None` if the tree has none there, or a path to it with links.
fn read_store(tree: &HostTree, path: &str) -> Option<Vec<u8>> {
    const IN_HOST_TREE: &str = "/etc/ssl/certs/";
    let host;
    let root = match tree.layers.is_empty() {
        false => layer_with(&tree.layers, path.trim_start_matches('/'))?,
        // Of the machine's `/etc` the tree has only this.
        true if !tree.prefix.is_empty() || !path.starts_with(IN_HOST_TREE) => return None,
        true => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            host = rustix::fs::open("/", flags, Mode::empty()).ok()?;
            host.as_fd()
        }
    };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    // A FIFO in a template must not make the launch wait.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat2(root, path, flags, Mode::empty(), resolve).ok()?);
    let mut content = Vec::new();
    let metadata =
        file.metadata().ok().filter(|metadata| metadata.is_file() && metadata.len() <= MAX_STORE_BYTES)?;
    file.take(metadata.len()).read_to_end(&mut content).ok()?;
    Some(content)
}

/// Mounts a file of the sandbox's own on one of the tree.
fn cover(tree: &mut HostTree, source: &str, target: &str) {
    let target = match tree.prefix {
        "" => target.trim_start_matches('/').to_owned(),
        prefix => format!("{prefix}{target}"),
    };
    tree.own(source.trim_start_matches('/'), &target);
}

/// Adds a certificate in PEM to a key store of Java in the form JKS. `None` if the store has another form.
///
/// The form (sun.security.provider.JavaKeyStore): magic, version and count, the entries, and a SHA-1 digest over the password, a fixed
/// text and all of that. The password only protects from accidents: every installation has the same.
fn add_to_key_store(store: &[u8], pem: &[u8]) -> Option<Vec<u8>> {
    const MAGIC: [u8; 8] = [0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2];
    const TRUSTED_CERTIFICATE: u32 = 2;
    let (entries, _) = store.strip_prefix(&MAGIC)?.split_last_chunk::<20>()?;
    let (count, entries) = entries.split_first_chunk::<4>()?;
    let text = std::str::from_utf8(pem).ok()?;
    let body = text.lines().skip_while(|line| !line.starts_with("-----BEGIN")).skip(1);
    let body: String = body.take_while(|line| !line.starts_with('-')).collect();
    let certificate = STANDARD.decode(body).ok()?;
    let word =
        |text: &str| [&u16::try_from(text.len()).unwrap_or(0).to_be_bytes()[..], text.as_bytes()].concat();
    let parts: [&[u8]; 9] = [
        &MAGIC,
        &u32::from_be_bytes(*count).checked_add(1)?.to_be_bytes(),
        entries,
        &TRUSTED_CERTIFICATE.to_be_bytes(),
        &word("belljar"),
        // The time of its creation, in milliseconds.
        &[0; 8],
        &word("X.509"),
        &u32::try_from(certificate.len()).ok()?.to_be_bytes(),
        &certificate,
    ];
    let mut content = parts.concat();
    let mut digest = Sha1::new();
    "changeit".encode_utf16().for_each(|unit| digest.update(unit.to_be_bytes()));
    digest.update(b"Mighty Aphrodite");
    digest.update(&content);
    content.extend(digest.finalize());
    Some(content)
}

/// Creates the authority of a sandbox whose policy reads requests.
pub(crate) fn authority(
    policy: &NetworkPolicy,
    setup: &NetworkSetup,
) -> Result<Option<Authority>, EngineError> {
    let hosts = policy.read_hosts();
    if hosts.is_empty() {
        return Ok(None);
    }
    if let Some(file) = &setup.ca_file {
        // Checked here, as the gateway cannot report it.
        std::fs::File::open(file).map_err(EngineError::launch("read the operator's file of certificates"))?;
    }
    Ok(Some(Authority::new(hosts.into_iter().collect()).map_err(authority_error)?))
}

fn authority_error(error: AuthorityError) -> EngineError {
    EngineError::launch("make the sandbox's certificate authority")(std::io::Error::other(error))
}

/// Returns the certificates that this machine trusts, in PEM, if it has a file of them.
#[must_use]
pub fn system_bundle() -> Option<String> {
    SYSTEM_ROOTS.iter().find_map(|path| std::fs::read_to_string(path).ok())
}

/// Returns the read-only tree of a sandbox with the machine's own programs, for engines whose walls are others: what to make, and what to
/// mount there.
#[must_use]
pub fn host_tree(spec: &SandboxSpec, trust: Option<&Trust>) -> (Vec<Node>, Vec<MountStep>) {
    let mut tree = HostTree::system(spec);
    if let Some(trust) = trust {
        trust.add_to(&mut tree);
        trust.cover_stores(&mut tree);
    }
    (tree.nodes, tree.mounts)
}

/// Authorities that a sandbox trusts.
#[derive(Debug)]
pub struct Trust {
    authority: Vec<u8>,
    bundle: Vec<u8>,
}

impl Trust {
    /// Returns what programs of a sandbox with this authority trust: it, and the authorities that this machine trusts.
    pub(crate) fn in_sandbox(authority: &Authority) -> Result<Self, EngineError> {
        let authority = authority.certificate_pem().map_err(authority_error)?.into_bytes();
        let bundle = [system_bundle().unwrap_or_default().into_bytes(), authority.clone()].join(&b'\n');
        Ok(Self { authority, bundle })
    }

    /// Adds the files to the tree.
    pub(crate) fn add_to(&self, tree: &mut HostTree) {
        tree.dir(TRUST_DIR.trim_start_matches('/'), 0o755);
        for (path, content) in self.files() {
            tree.file(path.trim_start_matches('/'), content.to_vec());
        }
    }

    /// Returns the files, in [`TRUST_DIR`], with their content.
    #[must_use]
    pub fn files(&self) -> [(&'static str, &[u8]); 2] {
        [(AUTHORITY, self.authority.as_slice()), (BUNDLE, self.bundle.as_slice())]
    }

    /// Mounts the files on the tree's own stores of certificates, as far as it has them. They cannot be replaced then.
    pub(crate) fn cover_stores(&self, tree: &mut HostTree) {
        for store in SYSTEM_ROOTS {
            if read_store(tree, store).is_some() {
                cover(tree, BUNDLE, store);
            }
        }
        let java = read_store(tree, JAVA_STORE);
        if let Some(content) = java.and_then(|store| add_to_key_store(&store, &self.authority)) {
            tree.file(JAVA_BUNDLE.trim_start_matches('/'), content);
            cover(tree, JAVA_BUNDLE, JAVA_STORE);
        }
    }

    /// Returns the environment variables that name the files.
    pub fn environment() -> impl Iterator<Item = (String, String)> {
        let bundle = BUNDLE_VARIABLES.iter().map(|name| (*name, BUNDLE));
        let more = EXTRA_VARIABLES.iter().map(|name| (*name, AUTHORITY));
        bundle.chain(more).map(|(name, path)| (name.to_owned(), path.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_is_added_to_a_key_store() {
        // A store without entries, as keytool writes it: its digest is of the password, the text and the head.
        let head = [0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2, 0, 0, 0, 0];
        let empty = [&head[..], &[0; 20]].concat();
        let pem = b"-----BEGIN CERTIFICATE-----\nAQID\nBAU=\n-----END CERTIFICATE-----\n";
        let one = add_to_key_store(&empty, pem).unwrap();
        assert_eq!(one[8..12], [0, 0, 0, 1]);
        let end = one.len() - 20;
        assert_eq!(one[end - 5..end], [1, 2, 3, 4, 5]);
        let two = add_to_key_store(&one, pem).unwrap();
        assert_eq!((two[8..12].to_vec(), two.len()), (vec![0, 0, 0, 2], 2 * one.len() - 32));
        assert_eq!(add_to_key_store(b"PKCS12", pem), None);
    }
}
