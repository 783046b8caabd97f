//! Walls of the service that a test takes away, to see that the attack on them then succeeds.

/// What a wall of the service is called in `BELLJAR_TEST_WITHOUT`, before its own name.
#[cfg(feature = "mutation")]
const PREFIX: &str = "service:";

/// Whether a test has taken this wall of the service away. Without the feature `mutation` the answer is a constant no, so a
/// release cannot be talked into it.
#[cfg(feature = "mutation")]
#[must_use]
pub fn is_without(wall: &str) -> bool {
    static TAKEN: std::sync::OnceLock<Vec<String>> = std::sync::OnceLock::new();
    let taken = TAKEN.get_or_init(|| {
        let text = std::env::var("BELLJAR_TEST_WITHOUT").unwrap_or_default();
        text.split(',').filter_map(|name| name.strip_prefix(PREFIX)).map(str::to_owned).collect()
    });
    taken.iter().any(|name| name == wall)
}

/// Whether a test has taken this wall of the service away. Without the feature `mutation` the answer is a constant no, so a
/// release cannot be talked into it.
#[cfg(not(feature = "mutation"))]
#[must_use]
pub const fn is_without(_wall: &str) -> bool {
    false
}
