//! The hostile suite: attacking programs, their allowed outcomes, and the invariants around each run.
//!
//! A case is a directory below `tests/hostile`; `tests/hostile/README.md` describes its format.

mod attempt;
mod canary;
mod case;
mod corpus;
mod disable_walls;
mod error;
mod judge;
mod machine;
mod neighbour;
mod report;
mod scratch;
mod suite;
mod traces;

pub use attempt::Binary;
pub use case::{Case, Class, Engine, Grade, Mutation};
pub use corpus::{Corpus, load, unpack_self_test};
pub use error::{CaseError, HarnessError};
pub use judge::{Answers, Fault};
pub use machine::Usage;
pub use report::{MutationReport, Report, Verdict, by_wall, summary, table};
pub use scratch::Scratch;
pub use suite::{Scope, Suite};
pub use traces::{Traces, adopt_orphans};
