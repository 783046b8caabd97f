//! What may be secret lies sealed in the database: specifications of sandboxes and templates, whose environment may hold
//! tokens, and answers that are kept, which may repeat them. The key lies in a file apart.
//!
//! ```text
//!   key file   check in the store
//!   none       none      a new store: the key is made, and what is plain is sealed
//!   there      none      one from before, or one that is to be shared: what is plain is sealed
//!   there      there     they must fit
//!   none       there     refused: a new key would open nothing
//! ```

mod establish;
mod key_file;
mod sealer;

pub(crate) use establish::{establish, establish_in_memory};
pub use key_file::KeyFile;
pub(crate) use sealer::{Place, Sealer};
