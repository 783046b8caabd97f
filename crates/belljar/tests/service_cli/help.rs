//! Help texts of the commands.

use crate::fixture::Home;

#[test]
fn help_texts_match_snapshots() {
    let home = Home::new();
    let help = |line: &str| home.good(&format!("{line} --help"));
    insta::assert_snapshot!("sandbox", help("sandbox"));
    insta::assert_snapshot!("sandbox_create", help("sandbox create"));
    insta::assert_snapshot!("sandbox_exec", help("sandbox exec"));
    insta::assert_snapshot!("sandbox_cp", help("sandbox cp"));
    insta::assert_snapshot!("volume", help("volume"));
    insta::assert_snapshot!("volume_create", help("volume create"));
    insta::assert_snapshot!("code", help("code"));
    insta::assert_snapshot!("key_create", help("key create"));
    insta::assert_snapshot!("template", help("template"));
    insta::assert_snapshot!("audit", help("audit"));
    insta::assert_snapshot!("completion", help("completion"));
}
