//! A sign of life while a start takes long, on a terminal only.

use std::borrow::Cow;
use std::convert::Infallible;
use std::time::Duration;

use indicatif::ProgressBar;
use parking_lot::{Mutex, MutexGuard};

/// How long a start may take before anything is shown.
const PATIENCE: Duration = Duration::from_millis(500);

/// Time between two pictures.
const STEP: Duration = Duration::from_millis(100);

/// What is shown of a start unless somebody says otherwise.
pub(crate) const STARTING: &str = "starting the sandbox";

/// What is shown. Once over, nothing is shown any more.
#[derive(Debug)]
pub(crate) struct Progress(Mutex<State>);

#[derive(Debug)]
enum State {
    /// Nothing has been shown yet.
    Waiting { message: Cow<'static, str> },
    /// Something is shown.
    Shown(ProgressBar),
    /// Never again.
    Over,
}

impl Progress {
    /// Shows `message` if it takes long, and if somebody can see it.
    pub(crate) fn new(message: impl Into<Cow<'static, str>>, quiet: bool) -> Self {
        let plain = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        let can_show =
            !quiet && rustix::termios::isatty(rustix::stdio::stderr()) && !plain("NO_COLOR") && !dumb;
        Self(Mutex::new(if can_show { State::Waiting { message: message.into() } } else { State::Over }))
    }

    /// Shows another message from now on.
    pub(crate) fn message(&self, text: impl Into<Cow<'static, str>>) {
        match &mut *self.state() {
            State::Waiting { message } => *message = text.into(),
            State::Shown(bar) => bar.set_message(text.into()),
            State::Over => {}
        }
    }

    /// Takes everything away for now, so that a line can be said.
    pub(crate) fn hide(&self) {
        let mut state = self.state();
        if let State::Shown(bar) = &*state {
            bar.finish_and_clear();
            *state = State::Waiting { message: STARTING.into() };
        }
    }

    /// Takes everything away, for good.
    pub(crate) fn clear(&self) {
        if let State::Shown(bar) = std::mem::replace(&mut *self.state(), State::Over) {
            bar.finish_and_clear();
        }
    }

    /// Keeps the picture moving. Never returns.
    pub(crate) async fn keep_moving(&self) -> Infallible {
        if matches!(*self.state(), State::Over) {
            return std::future::pending().await;
        }
        tokio::time::sleep(PATIENCE).await;
        loop {
            self.step();
            tokio::time::sleep(STEP).await;
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
            State::Over => {}
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}
