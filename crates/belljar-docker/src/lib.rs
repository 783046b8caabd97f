//! The engine `docker`: the guest is the first process of a container of a daemon with Docker's API, local or not.
//!
//! ```text
//!  host                       daemon                        container
//!   │── create, start ─────────►│── runtime ──────────────────►│ belljar-guest, from a volume, listens in a directory in memory
//!   │◄════════ its socket, through /proc/PID/root or a program that the daemon starts ════════►│ configuration, then HTTP/2
//! ```

mod backend;
mod container;
mod daemon;
mod engine;
mod facts;
mod guest_volume;
mod host;
mod image;
mod kind;
mod layers;
mod reach;

pub use engine::{DockerConfig, DockerEngine, Route};
pub use kind::DockerKind;
