//! A progress indicator for slow starts, on a terminal only.

use std::borrow::Cow;
use std::convert::Infallible;
use std::time::Duration;

use indicatif::ProgressBar;
use parking_lot::{Mutex, MutexGuard};

use crate::colour;

/// Delay before anything is shown.
const SHOW_DELAY: Duration = Duration::from_millis(500);

/// Interval between two frames.
const FRAME_INTERVAL: Duration = Duration::from_millis(100);

/// Default message.
pub(crate) const STARTING: &str = "starting the sandbox";

/// The progress indicator. Once cleared, nothing is shown any more.
#[derive(Debug)]
pub(crate) struct Progress(Mutex<State>);

#[derive(Debug)]
enum State {
    /// Nothing has been shown yet.
    Waiting { message: Cow<'static, str> },
    /// Something is shown.
    Shown(ProgressBar),
    /// Nothing is shown any more.
    Cleared,
}

impl Progress {
    /// Shows `message` after a delay if standard error is a terminal.
    pub(crate) fn new(message: impl Into<Cow<'static, str>>, quiet: bool) -> Self {
        let can_show = !quiet && rustix::termios::isatty(rustix::stdio::stderr()) && colour::is_allowed();
        Self(Mutex::new(if can_show { State::Waiting { message: message.into() } } else { State::Cleared }))
    }

    /// Shows another message from now on.
    pub(crate) fn message(&self, text: impl Into<Cow<'static, str>>) {
        match &mut *self.state() {
            State::Waiting { message } => *message = text.into(),
            State::Shown(bar) => bar.set_message(text.into()),
            State::Cleared => {}
        }
    }

    /// Hides the indicator for now, so that a line can be printed.
    pub(crate) fn hide(&self) {
        let mut state = self.state();
        if let State::Shown(bar) = &*state {
            bar.finish_and_clear();
            *state = State::Waiting { message: STARTING.into() };
        }
    }

    /// Removes the indicator for good.
    pub(crate) fn clear(&self) {
        if let State::Shown(bar) = std::mem::replace(&mut *self.state(), State::Cleared) {
            bar.finish_and_clear();
        }
    }

    /// Keeps the indicator moving. Never returns.
    pub(crate) async fn keep_moving(&self) -> Infallible {
        if matches!(*self.state(), State::Cleared) {
            return std::future::pending().await;
        }
        tokio::time::sleep(SHOW_DELAY).await;
        loop {
            self.step();
            tokio::time::sleep(FRAME_INTERVAL).await;
        }
    }

    fn step(&self) {
        let mut state = self.state();
        match &*state {
            State::Waiting { message } => {
                let bar = ProgressBar::new_spinner().with_message(message.clone());
                bar.tick();
                *state = State::Shown(bar);
            }
            State::Shown(bar) => bar.tick(),
            State::Cleared => {}
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}
