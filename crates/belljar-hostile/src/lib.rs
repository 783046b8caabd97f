//! The hostile suite: programs that attack, what must come of each, and what must stay true meanwhile.
//!
//! A case is a directory below `tests/hostile`; its form is in `tests/hostile/README.md`.

mod attempt;
mod canary;
mod case;
mod corpus;
mod error;
mod judge;
mod machine;
mod neighbour;
mod report;
mod scratch;
mod suite;
mod traces;
mod without;

pub use attempt::Bell;
pub use case::{Case, Class, Engine, Grade, Mutation};
pub use corpus::{Corpus, load, unpack_self_test};
pub use error::{CaseError, HarnessError};
pub use judge::{Answers, Fault};
pub use machine::Usage;
pub use report::{MutationReport, Report, Verdict, by_wall, summary, table};
pub use scratch::Scratch;
pub use suite::{Scope, Suite};
pub use traces::{Traces, adopt_orphans};
