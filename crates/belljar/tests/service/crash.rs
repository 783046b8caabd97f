//! A server under load is killed at random instants and restarted in the same home. `BELLJAR_LONG_CRASH=1` runs 200 rounds,
//! another number that many; `BELLJAR_SEED` reproduces a failure.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use belljar_hostile::{Traces, adopt_orphans};
use tokio::task::JoinSet;

use crate::check::{self, Doomed, SETTLED_WITHIN, all_sandboxes};
use crate::load::{Random, Worker};
use crate::run;
use crate::server::{Home, Server};

/// Number of concurrent clients.
const WORKERS: usize = 4;

/// Returns the number of rounds.
fn rounds() -> u32 {
    let Ok(asked) = std::env::var("BELLJAR_LONG_CRASH") else { return 12 };
    asked.parse().ok().filter(|rounds| *rounds > 1).unwrap_or(200)
}

/// Returns the seed of the random numbers.
pub(crate) fn seed() -> u64 {
    let given = std::env::var("BELLJAR_SEED").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        u64::from(now.subsec_nanos())
    })
}

/// The process to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Server,
    Launcher,
    Both,
    /// The server, and then the next one while it starts.
    StartingServer,
}

impl Victim {
    fn draw(random: &mut Random) -> Self {
        match random.below(12) {
            0 => Self::Launcher,
            1 => Self::Both,
            2..4 => Self::StartingServer,
            _ => Self::Server,
        }
    }
}

#[test]
fn crash_loses_nothing_acknowledged() {
    if crate::skipped("crash") {
        return;
    }
    let seed = seed();
    crate::say(&format!("crash: BELLJAR_SEED={seed}, {} rounds", rounds()));
    adopt_orphans().expect("orphans are adopted");
    let before = Traces::now(true);
    run(async {
        let pool = format!("sandboxes.pool={}", check::POOL);
        let mut crash = Crash {
            home: Home::new(&[&pool, "sandboxes.template_pool=0", "head_room.disk=0", "head_room.memory=0"]),
            random: Random(seed),
            start: Duration::from_millis(100),
            disturbed: Arc::default(),
        };
        let mut server = crash.home.start();
        server.ready().await;
        let mut workers: Vec<Worker> =
            (0..WORKERS).map(|number| Worker::new(number, server.admin(), seed, &crash.disturbed)).collect();
        for round in 0..rounds() {
            let victim = if round == 0 { Victim::Launcher } else { Victim::draw(&mut crash.random) };
            (server, workers) = crash.round(round, victim, server, workers).await;
            if (round + 1) % 20 == 0 {
                crate::say(&format!("crash: {} rounds are done", round + 1));
            }
        }
        let done: Vec<_> = workers.iter().map(|worker| &worker.done).collect();
        crate::say(&format!("crash: acknowledged {done:?}"));
        shut_down(server, &crash.home).await;
    });
    let left = Traces::left_since(&before, true);
    assert!(left.is_empty(), "left behind, seed {seed}: {left:#?}");
}

/// Ends all sandboxes and the server in an orderly way.
pub(crate) async fn shut_down(server: Server, home: &Home) {
    let client = server.admin();
    for id in all_sandboxes(&client).await {
        let ended = client.call("DELETE", &format!("/v1/sandboxes/{id}")).await;
        assert_eq!(ended.status, 204, "{ended:?}");
    }
    drop(client);
    server.stop();
    home.wait_for_launcher_exit();
}

struct Crash {
    home: Home,
    random: Random,
    /// Duration of the last start.
    start: Duration,
    disturbed: Arc<AtomicBool>,
}

impl Crash {
    async fn round(
        &mut self,
        round: u32,
        victim: Victim,
        server: Server,
        workers: Vec<Worker>,
    ) -> (Server, Vec<Worker>) {
        let stop = Arc::new(AtomicBool::new(false));
        let mut working = JoinSet::new();
        for worker in workers {
            working.spawn(worker.work(Arc::clone(&stop)));
        }
        let delay = Duration::from_micros(30_000 + self.random.below(700_000));
        tokio::time::sleep(delay).await;
        self.disturbed.store(true, Ordering::Relaxed);
        let (server, doomed) = self.kill(victim, server).await;
        stop.store(true, Ordering::Relaxed);
        let mut workers = working.join_all().await;
        workers.sort_by(|one, other| one.name.cmp(&other.name));
        self.disturbed.store(false, Ordering::Relaxed);
        let server = match server {
            Some(server) => server,
            None => self.restart(),
        };
        server.ready().await;
        let ready = Instant::now();
        let faults = check_all(&self.home, &server, &mut workers, &doomed).await;
        assert!(
            faults.is_empty(),
            "round {round}, {victim:?} killed after {delay:?}: {faults:#?}\n{}",
            tail(&self.home)
        );
        let took = ready.elapsed();
        // Later checks only read.
        assert!(took < SETTLED_WITHIN * 4, "round {round}: it took {took:?} to look at everything");
        (server, workers)
    }

    /// Kills the victim. Returns the server if it is still running, and the sandboxes whose launcher is dead.
    async fn kill(&mut self, victim: Victim, server: Server) -> (Option<Server>, Doomed) {
        match victim {
            Victim::Server => {
                server.kill();
                (None, Doomed::default())
            }
            Victim::StartingServer => {
                server.kill();
                let mut next = self.home.spawn();
                let most = u64::try_from(self.start.as_micros()).unwrap_or(100_000);
                tokio::time::sleep(Duration::from_micros(self.random.below(most))).await;
                next.kill().expect("it can be killed");
                next.wait().expect("it ends");
                (None, Doomed::default())
            }
            Victim::Launcher => {
                let doomed = Doomed { launcher: true, ids: self.home.alive() };
                self.home.kill_launcher();
                (Some(server), doomed)
            }
            Victim::Both => {
                let doomed = Doomed { launcher: true, ids: self.home.alive() };
                server.kill();
                self.home.kill_launcher();
                (None, doomed)
            }
        }
    }

    fn restart(&mut self) -> Server {
        let begin = Instant::now();
        let server = self.home.start();
        self.start = begin.elapsed();
        server
    }
}

/// Waits until every sandbox is whole or gone, and checks everything.
async fn check_all(home: &Home, server: &Server, workers: &mut [Worker], doomed: &Doomed) -> check::Faults {
    if doomed.launcher {
        wait_for_ends(server, &doomed.ids).await;
    }
    let settling = workers.iter_mut().map(|worker| check::settle(worker, server, doomed));
    let mut faults: check::Faults = futures::future::join_all(settling).await.into_iter().flatten().collect();
    faults.append(&mut check::whole_service(home, server, workers).await);
    faults
}

/// Waits until the sandboxes whose launcher is dead are reported as gone, also by a surviving server.
async fn wait_for_ends(server: &Server, doomed: &BTreeSet<String>) {
    let client = server.admin();
    let begin = Instant::now();
    for id in doomed {
        while client.get(&format!("/v1/sandboxes/{id}")).await.code() != "sandbox_gone"
            && begin.elapsed() < SETTLED_WITHIN
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Returns the end of the log.
fn tail(home: &Home) -> String {
    let log = home.log();
    let lines: Vec<&str> = log.lines().filter(|line| !line.contains("belljar_api::access")).collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}
