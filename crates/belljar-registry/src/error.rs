//! Errors of pulls.

use std::io;
use std::path::PathBuf;

/// Failure to pull an image. Texts of the registry are shown without control characters, and cut.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// The operator has not allowed the registry, or one of the hosts that it refers to.
    #[error(
        "images from {host} are not allowed here{reason}; the operator can allow the registry with the setting images.registries"
    )]
    NotAllowed {
        /// The host, with its port.
        host: String,
        /// Why this one, if it is not the registry's own.
        reason: String,
    },
    /// There is no such image, or it needs credentials, which registries do not tell apart.
    #[error("there is no image {reference}, or it is private: {said}")]
    NotFound {
        /// The image.
        reference: String,
        /// The registry's reason.
        said: String,
    },
    /// The registry refused the credentials, or wants some.
    #[error("{registry} refuses access to {repository}: {said}; {}", account_advice(registry, *has_account))]
    Unauthorized {
        /// The registry.
        registry: String,
        /// The repository.
        repository: String,
        /// The registry's reason.
        said: String,
        /// Whether it had an account.
        has_account: bool,
    },
    /// The registry refused an account.
    #[error("{registry} refuses the account: {said}")]
    Login {
        /// The registry.
        registry: String,
        /// The registry's reason.
        said: String,
    },
    /// The registry limits the number of requests.
    #[error("{registry} accepts no more requests for now; try again{}", after.map_or(String::from(" later"), |seconds| format!(" in {seconds} s")))]
    Limited {
        /// The registry.
        registry: String,
        /// Time until another attempt, in seconds, if it said.
        after: Option<u64>,
    },
    /// The image is not for this machine.
    #[error("{reference} is not for {wanted}; it is for {}", list(offered))]
    Platform {
        /// The image.
        reference: String,
        /// This machine's system and architecture, such as `linux/amd64`.
        wanted: String,
        /// Those that there are.
        offered: Vec<String>,
    },
    /// The registry's answer is not what the protocol, the digest or the size say.
    #[error("{registry} gave an invalid answer: {what}")]
    Invalid {
        /// The registry.
        registry: String,
        /// What is wrong.
        what: String,
    },
    /// The image is larger than allowed.
    #[error(
        "{reference} has {bytes} bytes in {layers} layers; at most {max_bytes} bytes in {max_layers} layers are allowed"
    )]
    TooLarge {
        /// The image.
        reference: String,
        /// Its size, compressed.
        bytes: u64,
        /// Its layers.
        layers: usize,
        /// Limit of the size.
        max_bytes: u64,
        /// Limit of the layers.
        max_layers: usize,
    },
    /// The host cannot be reached, or the connection broke.
    #[error("cannot {action} {host}")]
    Connection {
        /// What was done, such as `connect to`.
        action: &'static str,
        /// The host, with its port.
        host: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file of the layout cannot be written.
    #[error("cannot write {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// TLS cannot be set up.
    #[error("cannot set up TLS: {reason}")]
    Tls {
        /// The reason, with the file if it is one.
        reason: String,
    },
}

fn account_advice(registry: &str, has_account: bool) -> String {
    match has_account {
        true => format!("the account of belljar image login {registry} may lack the right"),
        false => format!("log in with belljar image login {registry}"),
    }
}

fn list(offered: &[String]) -> String {
    if offered.is_empty() { "no system that it names".to_owned() } else { offered.join(", ") }
}

/// Returns text of a registry as it may be shown: without control characters, at most 200 characters.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(200).map(|one| if one.is_control() { ' ' } else { one }).collect()
}
