//! The steps of a request, for traces. Without a collector of traces nobody wants them, and they cost a load each.

/// A span for one step. Logs do not show it: its target is for traces alone.
macro_rules! step {
    ($name:literal $(, $($field:tt)*)?) => {
        tracing::info_span!(target: "belljar_steps", $name $(, $($field)*)?)
    };
}

pub(crate) use step;
