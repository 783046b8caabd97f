//! Creation of sandboxes as a run.

use crate::caller::Caller;
use crate::create::Created;
use crate::entry::Entry;
use crate::info::SandboxInfo;
use crate::keeper::Keeper;
use crate::request::CreateSandbox;
use crate::run::Run;

impl Keeper {
    /// Creates a sandbox, as [`Self::create`], and reports it as soon as it is accepted and has an id: an event of the run, unless it
    /// came from a pool or existed before, and so is at once what it will be. It is created also if nobody reads the run.
    #[must_use]
    pub fn stream_create(&self, caller: &Caller, request: CreateSandbox) -> Run<SandboxInfo, Created> {
        let (keeper, caller) = (self.clone(), caller.clone());
        Run::new(|report| async move {
            let accepted = Box::new(move |entry: &Entry| report.progress(entry.info()));
            keeper.creating(&caller, request, accepted).await
        })
    }
}
