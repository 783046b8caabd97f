//! Response times leak nothing (C02, C03). Statistics need an idle machine: `make timing`.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::Client;
use crate::run;
use crate::server::Home;

/// Number of timed pairs of requests.
const PAIRS: usize = 600;

/// Maximum difference of the medians: less than the variation of a request over loopback.
const MAX_DIFFERENCE: Duration = Duration::from_micros(150);

/// Sends two kinds of requests in turn, so that other load affects both, and checks that their median times are alike.
async fn assert_alike(names: [&str; 2], ask: [impl AsyncFn(); 2]) {
    let mut times: [Vec<Duration>; 2] = [Vec::new(), Vec::new()];
    for pair in 0..PAIRS * 2 {
        let which = pair % 2;
        let begin = Instant::now();
        ask[which]().await;
        times[which].push(begin.elapsed());
    }
    let [one, two] = times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    });
    let [first, second] = names;
    crate::say(&format!("{first} {one:?}, {second} {two:?} (medians of {PAIRS})"));
    assert!(one.abs_diff(two) < MAX_DIFFERENCE.max(one / 10), "{first} {one:?}, {second} {two:?}");
}

#[test]
fn c02_foreign_and_missing_resources_take_the_same_time() {
    if crate::skipped("C02") {
        return;
    }
    run(async {
        let mut home = Home::new(&["sandboxes.pool=0"]);
        let server = home.start();
        server.ready().await;
        let admin = server.admin();
        let foreign = admin.sandbox(&json!({ "timeout": 3600 })).await;
        let other = admin.with_key(&admin.new_key("user", "second").await.1);
        let look = |client: Client, id: String| {
            async move || client.get(&format!("/v1/sandboxes/{id}")).await.assert(404, "sandbox_not_found")
        };
        let asks = [look(other.clone(), foreign), look(other, "zzzzzzzzzzzzzzzzzzzz".to_owned())];
        assert_alike(["foreign", "missing"], asks).await;
        crate::crash::shut_down(server, &home).await;
    });
}

#[test]
fn c03_response_time_does_not_reveal_a_matching_key_prefix() {
    if crate::skipped("C03") {
        return;
    }
    run(async {
        let mut home = Home::new(&["sandboxes.pool=0"]);
        let server = home.start();
        server.ready().await;
        let other = |letter: char| if letter == '0' { '1' } else { '0' };
        let wrong_at = |place: usize| -> Client {
            let letters = server.key.chars().enumerate();
            let key: String = letters.map(|(at, one)| if at == place { other(one) } else { one }).collect();
            server.stranger().with_key(&key)
        };
        let try_key =
            |client: Client| async move || client.get("/v1/me").await.assert(401, "unauthenticated");
        let asks = [try_key(wrong_at(3)), try_key(wrong_at(server.key.len() - 1))];
        assert_alike(["wrong at once", "wrong at the end"], asks).await;
        crate::crash::shut_down(server, &home).await;
    });
}
