//! Resource usage of the server's own process, under the conventional names of Prometheus' client libraries.

use std::fmt::Error;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Collector that samples the process on each scrape.
#[derive(Debug)]
pub(crate) struct ProcessMetrics {
    /// When the server started, in seconds since 1970.
    started: f64,
}

/// Resource usage of this process, from `/proc`.
#[derive(Debug, Default, PartialEq)]
struct Usage {
    resident_bytes: Option<u64>,
    virtual_bytes: Option<u64>,
    threads: Option<u64>,
    cpu_seconds: Option<f64>,
    open_descriptors: Option<u64>,
    max_descriptors: Option<u64>,
}

impl ProcessMetrics {
    /// Creates a collector with the current time as the start.
    pub(crate) fn new() -> Self {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        Self { started }
    }
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let now = Usage::measure();
        let gauges = [
            ("process_resident_memory_bytes", "Resident memory of the server", now.resident_bytes),
            ("process_virtual_memory_bytes", "Virtual memory of the server", now.virtual_bytes),
            ("process_threads", "Threads of the server", now.threads),
            ("process_open_fds", "Open descriptors of the server", now.open_descriptors),
            ("process_max_fds", "Descriptors that the server may have", now.max_descriptors),
        ];
        for (name, help, value) in gauges {
            let Some(value) = value else { continue };
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let started = ConstGauge::new(self.started);
        let help = "When the server started, in seconds since 1970";
        started.encode(encoder.encode_descriptor(
            "process_start_time_seconds",
            help,
            None,
            started.metric_type(),
        )?)?;
        if let Some(seconds) = now.cpu_seconds {
            let counter = ConstCounter::new(seconds);
            let help = "Processor time that the server used";
            counter.encode(encoder.encode_descriptor(
                "process_cpu_seconds",
                help,
                None,
                counter.metric_type(),
            )?)?;
        }
        Ok(())
    }
}

impl Usage {
    fn measure() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let stat = read("/proc/self/stat");
        let ticks = rustix::param::clock_ticks_per_second();
        Self {
            open_descriptors: std::fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as u64),
            max_descriptors: limit,
            cpu_seconds: stat.as_deref().and_then(|stat| cpu_seconds(stat, ticks)),
            ..read("/proc/self/status").map(|status| Self::parse_status(&status)).unwrap_or_default()
        }
    }

    /// Reads `/proc/self/status` (proc_pid_status(5)).
    fn parse_status(status: &str) -> Self {
        let number = |name: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let kib = |name| number(name)?.checked_mul(1024);
        Self {
            resident_bytes: kib("VmRSS"),
            virtual_bytes: kib("VmSize"),
            threads: number("Threads"),
            ..Self::default()
        }
    }
}

/// User and system time in `/proc/self/stat` (proc_pid_stat(5)): the 14th and the 15th field. The second one, the name of
/// the program, may have spaces in it.
fn cpu_seconds(stat: &str, ticks_per_second: u64) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u32>().ok();
    let ticks_per_second = u32::try_from(ticks_per_second).ok().filter(|ticks| *ticks > 0)?;
    Some((f64::from(ticks()?) + f64::from(ticks()?)) / f64::from(ticks_per_second))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_parsed() {
        let status = "Name:\tx\nVmSize:\t  2048 kB\nVmRSS:\t    1024 kB\nThreads:\t3\n";
        let expected = Usage {
            resident_bytes: Some(1 << 20),
            virtual_bytes: Some(2 << 20),
            threads: Some(3),
            ..Usage::default()
        };
        assert_eq!(Usage::parse_status(status), expected);
        let stat = "1 (a b) c) S 0 1 1 0 -1 0 0 0 0 0 150 50 0 0 20 0 3 0 1 0 0";
        assert_eq!(cpu_seconds(stat, 100), Some(2.0));
        assert_eq!(cpu_seconds("1 (x) S", 100), None);
        let now = Usage::measure();
        assert!(
            now.resident_bytes.unwrap() > 0 && now.open_descriptors.unwrap() > 2 && now.cpu_seconds.is_some(),
            "{now:?}"
        );
    }
}
