//! Hostile steps, which must stay confined to their sandbox.

use belljar_image::{BuildError, BuildEvent, BuildInput};
use belljar_local::{LocalConfig, LocalEngine, LocalKind};

use crate::fixture::{Case, Fixture};

pub(crate) fn cases() -> Vec<(&'static str, Case)> {
    vec![
        ("step_cannot_reach_the_host", |fixture| Box::pin(attack(fixture))),
        ("background_processes_of_a_step_end_with_the_build", |fixture| {
            Box::pin(background_process(fixture))
        }),
        ("forbidden_directories_are_refused_as_inputs", |fixture| Box::pin(mirror(fixture))),
    ]
}

/// Each line prints `reached …` if its attack works; only `fine` may be printed.
const ATTACKS: &str = r#"
cat /etc/shadow 2>/dev/null && echo reached shadow
echo x > /usr/bin/planted 2>/dev/null && echo reached usr
echo x > /home/user/mirror/planted 2>/dev/null && echo reached mirror
mount -t tmpfs none /mnt 2>/dev/null && echo reached mount
unshare -U true 2>/dev/null && echo reached namespaces
mknod /opt/template/disk b 7 0 2>/dev/null && echo reached devices
chroot / true 2>/dev/null && echo reached chroot
ls /dev/loop0 2>/dev/null && echo reached loops
kill -9 -1 2>/dev/null
grep -v 0000000000000000 /proc/self/status | grep ^Cap && echo reached capabilities
ls /proc/1/root/ 2>/dev/null && echo reached the first process
echo 1 > /proc/sys/kernel/hostname 2>/dev/null && echo reached sysctl
echo fine
"#;

async fn attack(fixture: Fixture) {
    let mirror = fixture.path().join("mirror");
    std::fs::create_dir(&mirror).unwrap();
    let text = format!("name = \"a\"\nbase = \"host\"\n[[step]]\nrun = '''{ATTACKS}'''\n");
    let input = BuildInput { mirror: Some(mirror.clone()), ..BuildInput::default() };
    let (built, events) = fixture.build(&text, &input).await;
    let lines: Vec<&str> = events
        .iter()
        .filter_map(|event| match event {
            BuildEvent::Log { line, .. } => Some(line.as_str()),
            _ => None,
        })
        .collect();
    assert!(built.is_ok(), "{built:?} {lines:?}");
    assert!(lines.contains(&"fine"), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("reached")), "{lines:?}");
    assert_eq!(std::fs::read_dir(&mirror).unwrap().count(), 0);
}

async fn background_process(fixture: Fixture) {
    let text = "name = \"a\"\nbase = \"host\"\n[[step]]\nrun = \"setsid sleep 1000 & echo $! > made\"\n[[step]]\nrun = \"ls\"";
    let built = fixture.build_ok(text, &BuildInput::default()).await;
    let output = fixture.sh(&built, "cat /opt/template/made").await;
    assert_eq!(output.code, 0, "{output:?}");
    fixture.wait_for_no_loops().await;
}

async fn mirror(mut fixture: Fixture) {
    let check = |error: BuildError, expected: &str| {
        let BuildError::Input { field, reason } = &error else { panic!("{error:?}") };
        assert_eq!(field, expected, "{reason}");
        let is_refused = reason.contains("forbidden") || reason.contains("is the root of the host");
        assert!(is_refused, "{reason}");
    };
    for dir in ["/etc/ssh", "/proc", "/root/.ssh", "/"] {
        if !std::path::Path::new(dir).exists() {
            continue;
        }
        let input = BuildInput { image: Some(dir.into()), ..BuildInput::default() };
        let (built, _) = fixture.build("name = \"a\"\nbase = \"oci\"\nimage = \"layout\"", &input).await;
        check(built.unwrap_err(), "image");
    }
    // What the operator lets no sandbox see, no build sees.
    let secrets = fixture.path().join("secrets");
    for dir in [fixture.path(), &secrets, &secrets.join("inner")] {
        std::fs::create_dir_all(dir.join("pip")).unwrap();
    }
    let mut config = LocalConfig::new(LocalKind::Local);
    config.mount_policy.forbid(secrets.clone()).unwrap();
    fixture.engine = LocalEngine::new(config);
    for dir in [secrets.clone(), secrets.join("inner"), fixture.path().to_owned()] {
        let input = BuildInput { mirror: Some(dir), ..BuildInput::default() };
        let (built, _) =
            fixture.build("name = \"a\"\nbase = \"host\"\n[[step]]\npip = [\"x\"]", &input).await;
        check(built.unwrap_err(), "mirror");
    }
}
