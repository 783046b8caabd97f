//! The first key: a server without any key creates one, and shows it once.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use belljar_config::ServerConfig;
use belljar_keeper::{Caller, E2B_KEY_PREFIX, KEY_PREFIX, Keeper, KeeperError, NewKey, Quotas};
use belljar_model::{Approval, Role};

use super::listen::Listening;
use crate::cert::{AUTHORITY_FILE, BUNDLE_FILE};

/// Default port of HTTPS addresses.
const HTTPS_PORT: u16 = 443;

/// Error from creating the first key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FirstKeyError {
    /// Other machines can connect, so the first key must not be shown this way.
    #[error(
        "there is no API key yet, and {address} is no loopback address; start the server on 127.0.0.1 first, and make a \
         key with belljar key create"
    )]
    NotLocal { address: String },
    /// The keeper failed.
    #[error("cannot make the first key")]
    Keeper(#[from] KeeperError),
    /// The key could not be written.
    #[error("cannot write the first key to standard output; it has been revoked")]
    Write(#[source] io::Error),
}

/// How E2B's clients reach this server.
#[derive(Debug, Clone)]
pub(crate) enum E2bWay {
    /// By the server's address.
    Address,
    /// By host names of a domain, with TLS.
    Domain {
        domain: String,
        /// The directory of the server's certificate.
        certificates: PathBuf,
    },
}

impl E2bWay {
    /// Returns the way that a configuration gives; `None` if E2B's clients are not served.
    pub(crate) fn from_config(server: &ServerConfig) -> Option<Self> {
        let way = server.domain.clone().zip(server.tls.as_ref()).map_or(Self::Address, |(domain, tls)| {
            let certificates = tls.certificate.parent().map(Path::to_owned).unwrap_or_default();
            Self::Domain { domain, certificates }
        });
        server.e2b.then_some(way)
    }

    /// Returns the environment variables for E2B's clients, except for the key.
    fn variables(&self, url: &str, port: u16) -> String {
        match self {
            Self::Address => {
                let names = ["E2B_API_URL", "E2B_SANDBOX_URL", "E2B_VOLUME_API_URL"];
                names.map(|name| format!("export {name}={url}\n")).concat()
            }
            Self::Domain { domain, certificates } => {
                let port = if port == HTTPS_PORT { String::new() } else { format!(":{port}") };
                let mut text = format!("export E2B_DOMAIN={domain}{port}\n");
                // These files do not exist beside an operator's own certificate, which clients trust anyway.
                let files = [("SSL_CERT_FILE", BUNDLE_FILE), ("NODE_EXTRA_CA_CERTS", AUTHORITY_FILE)];
                for (name, file) in files {
                    let path = certificates.join(file);
                    if path.is_file() {
                        let _ = writeln!(text, "export {name}={}", path.display());
                    }
                }
                text
            }
        }
    }
}

/// The message that a server prints when it starts.
pub(crate) struct Welcome {
    key: Option<(String, String)>,
    /// Path of the console that signs in with that key, once.
    sign_in: Option<String>,
    /// How E2B's clients reach this server, if they are served.
    e2b: Option<E2bWay>,
    /// Whether the operator has closed the ports of their sandboxes.
    has_closed_ports: bool,
}

impl Welcome {
    /// Creates the first key if there is none. Secrets are not written to a log, so none is created if standard output is one.
    pub(crate) async fn prepare(
        keeper: &Keeper,
        listening: &Listening,
        e2b: Option<E2bWay>,
        has_closed_ports: bool,
    ) -> Result<Self, FirstKeyError> {
        if keeper.has_keys().await? {
            return Ok(Self { key: None, sign_in: None, e2b, has_closed_ports });
        }
        if let Some(address) =
            listening.addresses.iter().find(|address| !address.ip().to_canonical().is_loopback())
        {
            return Err(FirstKeyError::NotLocal { address: address.to_string() });
        }
        if is_journal() {
            tracing::warn!(
                "there is no API key yet, and standard output is a log; make a key with belljar key create"
            );
            return Ok(Self { key: None, sign_in: None, e2b, has_closed_ports });
        }
        let key = NewKey {
            name: "first".to_owned(),
            role: Role::Admin,
            tenant: String::new(),
            expires: None,
            quotas: Quotas::default(),
            owner: None,
            approval: Approval::Never,
        };
        let operator = Caller::operator("serve", "first-key");
        let made = keeper.create_key(&operator, key).await?;
        let holder = Caller { key: made.info.id.clone(), ..operator };
        let link = keeper.create_session_link(&holder).await?;
        let sign_in = Some(format!("/console#link={}", link.link));
        Ok(Self { key: Some((made.info.id, made.key)), sign_in, e2b, has_closed_ports })
    }

    /// Prints what is needed to use the server. A key that could not be printed is revoked.
    pub(crate) async fn print(self, keeper: &Keeper, listening: &Listening) -> Result<(), FirstKeyError> {
        let Err(error) = io::stdout().write_all(self.text(listening).as_bytes()) else { return Ok(()) };
        let Some((id, _)) = self.key else { return Ok(()) };
        keeper.revoke_key(&Caller::operator("serve", "first-key"), &id).await?;
        Err(FirstKeyError::Write(error))
    }

    fn text(&self, listening: &Listening) -> String {
        let (place, server) = match (listening.url(), &listening.socket) {
            (Some(url), _) => (url.clone(), url),
            (None, Some(path)) => (path.display().to_string(), format!("unix:{}", path.display())),
            (None, None) => (String::new(), String::new()),
        };
        // The certificate has a name that is not in the address; on this machine the socket leads to the server.
        let named = if server.starts_with("https:") { String::new() } else { format!("--server {server} ") };
        let text = match &self.key {
            Some((_, secret)) => format!(
                "Belljar serves {place}\n\
                 export BELLJAR_API_KEY={secret}  # the first key, for everything; save it, it won't be shown again\n\
                 belljar sandbox create {named}--timeout 10m\n"
            ),
            // Keys are not known any more once they were shown.
            None => format!("Belljar serves {place}\n# for a further key: belljar key create --role admin\n"),
        };
        let console = match (listening.url(), &self.sign_in) {
            (Some(url), Some(path)) => format!("console {url}{path}  # signs in once, within 15 minutes\n"),
            (Some(url), None) => {
                format!("console {url}/console  # a link that signs in: belljar console --server {url}\n")
            }
            (None, _) => String::new(),
        };
        let text = text + &console;
        match (listening.url(), listening.addresses.first(), &self.e2b) {
            (Some(url), Some(address), Some(way)) => {
                let note = match self.has_closed_ports {
                    true => {
                        "# ports of sandboxes need their traffic access token: server.e2b_public_ports = false\n"
                    }
                    false => "",
                };
                text + &way.variables(&url, address.port()) + &self.e2b_key() + note
            }
            _ => text,
        }
    }

    /// Returns the key as E2B's clients spell it. An existing key is not known any more.
    fn e2b_key(&self) -> String {
        let secret = self.key.as_ref().and_then(|(_, secret)| secret.strip_prefix(KEY_PREFIX));
        let key = match secret {
            Some(hex) => format!("{E2B_KEY_PREFIX}{hex}"),
            None => format!(
                "{E2B_KEY_PREFIX}…  # a key of this server, with {E2B_KEY_PREFIX} in place of {KEY_PREFIX}"
            ),
        };
        format!("export E2B_API_KEY={key}\n")
    }
}

/// Reports whether standard output is the journal of systemd, which stores it (systemd.exec(5), `JOURNAL_STREAM`).
fn is_journal() -> bool {
    let Some(stream) = std::env::var("JOURNAL_STREAM").ok() else { return false };
    let Ok(metadata) = std::fs::metadata("/proc/self/fd/1") else { return false };
    stream == format!("{}:{}", metadata.dev(), metadata.ino())
}
