//! Comparison with golden files. `BELLJAR_BLESS=1` rewrites them.

use std::path::Path;
use std::process::Command;

/// Compares `text` with `tests/golden/NAME` and shows the difference.
#[track_caller]
pub(crate) fn check(name: &str, text: &str) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("BELLJAR_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&golden, text).unwrap();
        return;
    }
    if std::fs::read_to_string(&golden).unwrap_or_default() == text {
        return;
    }
    let found = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&found, text).unwrap();
    let diff = Command::new("diff").arg("-u").args([&golden, &found]).output().unwrap();
    panic!(
        "{} has changed; if that is intended, run this test with BELLJAR_BLESS=1 (CONTRIBUTING.md)\n{}",
        golden.display(),
        String::from_utf8_lossy(&diff.stdout)
    );
}
