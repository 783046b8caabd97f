//! Sessions: shells that keep their state between commands.

use belljar_engine::v1;

use super::processes::digest;
use super::{Kind, number, operations, with_own_env};
use crate::error::GuestResource::{File, Session};

operations! {
    v1::SessionOpen = Kind::new("session.open", File).audited(),
        for |request, entered| with_own_env(entered, &mut request.env);
    v1::ListSessionsRequest = Kind::new("session.list", Session);
    v1::SessionClose = Kind::new("session.close", Session).audited(), |request| vec![number("session", request.id)];
    v1::SessionRun = Kind::new("session.run", Session).audited().executes(), |request| vec![
        number("session", request.id), digest([b"session".as_slice(), &request.command]),
    ],
        as |started, entered| entered.note_started(started.id);
}
