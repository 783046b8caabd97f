//! Timings of the steps of a run.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use belljar_model::milliseconds;

use crate::message::say;

/// Steps of the engine and of a run, in chronological order.
const ORDER: [&str; 21] = [
    "prepare",
    "create",
    "plan",
    "supervisor",
    "namespaces",
    "identity",
    "root",
    "mounts",
    "proc",
    "pivot",
    "privileges",
    "equipment",
    "guest",
    "install",
    "upload",
    "compile",
    "run",
    "changes",
    "bring_out",
    "stop",
    "total",
];

/// Measures the time of each step of this command.
#[derive(Debug)]
pub(crate) struct Timings {
    begin: Instant,
    last: Instant,
    steps: BTreeMap<String, f64>,
}

impl Timings {
    /// Starts measuring at `begin`.
    pub(crate) fn new(begin: Instant) -> Self {
        Self { begin, last: begin, steps: BTreeMap::new() }
    }

    /// Ends a step.
    pub(crate) fn step(&mut self, name: &str) {
        let last = std::mem::replace(&mut self.last, Instant::now());
        self.add(name, self.last - last);
    }

    /// Starts a step without recording the time before, which is measured elsewhere.
    pub(crate) fn skip(&mut self) {
        self.last = Instant::now();
    }

    fn add(&mut self, name: &str, time: Duration) {
        self.steps.insert(name.to_owned(), milliseconds(time));
    }

    /// Returns all steps, together with those of `inner`.
    pub(crate) fn finish(mut self, inner: Option<BTreeMap<String, f64>>) -> BTreeMap<String, f64> {
        let mut all = inner.unwrap_or_default();
        // The run's own total is only a part here.
        all.remove("total");
        self.add("total", self.begin.elapsed());
        all.extend(self.steps);
        all
    }
}

/// Prints the timings, one line per step.
pub(crate) fn report(timings: &BTreeMap<String, f64>) {
    let known = ORDER.iter().filter_map(|name| timings.get_key_value(*name));
    let other = timings.iter().filter(|(name, _)| !ORDER.contains(&name.as_str()));
    for (name, time) in other.chain(known) {
        say(&format!("{name:<10} {time:>10.3} ms"));
    }
}
