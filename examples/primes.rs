//! Counts the primes up to a limit with a sieve.

fn main() {
    let limit: usize = match std::env::args().nth(1) {
        Some(text) => text.parse().expect("the limit is a whole number"),
        None => 20_000_000,
    };
    let mut composite = vec![false; limit + 1];
    let mut count = 0;
    let mut last = 0;
    for n in 2..=limit {
        if composite[n] {
            continue;
        }
        count += 1;
        last = n;
        for multiple in (n * n..=limit).step_by(n) {
            composite[multiple] = true;
        }
    }
    println!("{count} primes up to {limit}, the last is {last}");
}
