//! Certificate authorities trusted by programs in a sandbox whose gateway terminates TLS for some hosts.

use belljar_engine::EngineError;
use belljar_gateway::{Authority, AuthorityError, SYSTEM_ROOTS};
use belljar_model::{NetworkPolicy, NetworkSetup};

use crate::engine::launch;
use crate::host_tree::HostTree;

/// Directory of the files: the one directory that every tree has of its own.
const DIR: &str = "dev/belljar";
/// Certificate of the sandbox's authority.
const AUTHORITY: &str = "/dev/belljar/ca.pem";
/// The sandbox's authority together with those that the system trusts.
const BUNDLE: &str = "/dev/belljar/ca-bundle.pem";

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
        std::fs::File::open(file).map_err(launch("read the operator's file of certificates"))?;
    }
    Ok(Some(Authority::new(hosts.into_iter().collect()).map_err(authority_error)?))
}

fn authority_error(error: AuthorityError) -> EngineError {
    launch("make the sandbox's certificate authority")(std::io::Error::other(error))
}

/// Returns the certificates that this machine trusts, in PEM, if it has a file of them.
#[must_use]
pub fn system_bundle() -> Option<String> {
    SYSTEM_ROOTS.iter().find_map(|path| std::fs::read_to_string(path).ok())
}

/// Authorities that a sandbox trusts.
pub(crate) struct Trust {
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
        tree.dir(DIR, 0o755);
        for (path, content) in [(AUTHORITY, &self.authority), (BUNDLE, &self.bundle)] {
            tree.file(path.trim_start_matches('/'), content.clone());
        }
    }

    /// Returns the environment variables that name the files.
    pub(crate) fn environment() -> impl Iterator<Item = (String, String)> {
        let bundle = BUNDLE_VARIABLES.iter().map(|name| (*name, BUNDLE));
        let more = EXTRA_VARIABLES.iter().map(|name| (*name, AUTHORITY));
        bundle.chain(more).map(|(name, path)| (name.to_owned(), path.to_owned()))
    }
}
