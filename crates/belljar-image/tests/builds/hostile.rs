//! Steps that attack: what they reach is their own sandbox.

use belljar_image::{BuildEvent, BuildInput};

use crate::world::{Case, World};

pub(crate) fn cases() -> Vec<(&'static str, Case)> {
    vec![
        ("a_step_reaches_nothing_of_the_host", |world| Box::pin(attack(world))),
        ("a_step_that_forks_and_hangs_is_ended_with_its_build", |world| Box::pin(left_behind(world))),
        ("a_forbidden_directory_is_no_mirror", |world| Box::pin(mirror(world))),
    ]
}

/// Each line says what it could do; only `fine` may stand there.
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

async fn attack(world: World) {
    let mirror = world.path().join("mirror");
    std::fs::create_dir(&mirror).unwrap();
    let text = format!("name = \"a\"\nbase = \"host\"\n[[step]]\nrun = '''{ATTACKS}'''\n");
    let input = BuildInput { mirror: Some(mirror.clone()), ..BuildInput::default() };
    let (built, told) = world.build(&text, &input).await;
    let lines: Vec<&str> = told
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

async fn left_behind(world: World) {
    let text = "name = \"a\"\nbase = \"host\"\n[[step]]\nrun = \"setsid sleep 1000 & echo $! > made\"\n[[step]]\nrun = \"ls\"";
    let built = world.good(text, &BuildInput::default()).await;
    let said = world.sh(&built, "cat /opt/template/made").await;
    assert_eq!(said.code, 0, "{said:?}");
    world.until_no_loops().await;
}

async fn mirror(world: World) {
    for dir in ["/etc/ssh", "/proc", "/root/.ssh", "/"] {
        if !std::path::Path::new(dir).exists() {
            continue;
        }
        let input = BuildInput { mirror: Some(dir.into()), ..BuildInput::default() };
        let text = "name = \"a\"\nbase = \"host\"\n[[step]]\nrun = \"true\"";
        let (built, _) = world.build(text, &input).await;
        let error = built.unwrap_err();
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        let text = format!("{error}: {cause}");
        assert!(text.contains("forbidden") || text.contains("is not allowed"), "{dir}: {text}");
    }
}
