//! Sealing of values that may be secret: specifications of sandboxes and templates, whose environment may hold tokens, and
//! stored answers, which may repeat them. The key is kept in a separate file.
//!
//! ```text
//!   key file   check in the store
//!   none       none      a new store: the key is created, and plain values are sealed
//!   exists     none      an older store, or one to be shared: plain values are sealed
//!   exists     exists    they must match
//!   none       exists    refused: a new key would open nothing
//! ```

mod establish;
mod key_file;
mod sealer;

pub(crate) use establish::{establish, establish_in_memory};
pub use key_file::KeyFile;
pub(crate) use sealer::{Place, Sealer};
