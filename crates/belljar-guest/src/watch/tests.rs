use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use belljar_proto::ErrorCode;
use futures::StreamExt;

use super::*;

const DEADLINE: Duration = Duration::from_secs(60);

type Seen = (v1::WatchKind, String, bool);

struct WatchFixture {
    home: tempfile::TempDir,
    stream: Pin<Box<dyn Stream<Item = Result<v1::WatchEvent, ConnectError>> + Send>>,
}

impl WatchFixture {
    async fn start(recursive: bool, prepare: impl FnOnce(&Path)) -> Self {
        let home = tempfile::tempdir().unwrap();
        prepare(home.path());
        let stream = Box::pin(watch(home.path(), b"home", recursive).await.unwrap());
        let mut fixture = Self { home, stream };
        assert_eq!(fixture.next().await, Some((v1::WatchKind::WATCH_KIND_READY, String::new(), true)));
        fixture
    }

    fn path(&self, path: &str) -> PathBuf {
        self.home.path().join(path)
    }

    async fn next(&mut self) -> Option<Seen> {
        let event = tokio::time::timeout(DEADLINE, self.stream.next()).await.unwrap()?.unwrap();
        let path = String::from_utf8(event.path.to_vec()).unwrap();
        Some((event.kind.as_known().unwrap(), path, event.directory))
    }

    /// Returns all events up to the given one, which must arrive.
    async fn read_until(&mut self, kind: v1::WatchKind, path: &str) -> Vec<Seen> {
        let mut seen = Vec::new();
        loop {
            seen.push(self.next().await.unwrap());
            let (last, at, _) = seen.last().unwrap();
            if *last == kind && at == path {
                return seen;
            }
        }
    }
}

use v1::WatchKind::{
    WATCH_KIND_CHANGED as CHANGED, WATCH_KIND_CREATED as CREATED, WATCH_KIND_MOVED_FROM as MOVED_FROM,
    WATCH_KIND_MOVED_TO as MOVED_TO, WATCH_KIND_OVERFLOW as OVERFLOW, WATCH_KIND_REMOVED as REMOVED,
};

fn seen(kind: v1::WatchKind, path: &str, directory: bool) -> Seen {
    (kind, path.to_owned(), directory)
}

#[tokio::test]
async fn non_recursive_watch_reports_only_direct_entries() {
    let mut fixture =
        WatchFixture::start(false, |home| std::fs::create_dir(home.join("below")).unwrap()).await;
    std::fs::write(fixture.path("below/file"), "x").unwrap();
    std::fs::write(fixture.path("a"), "").unwrap();
    std::fs::write(fixture.path("a"), "text").unwrap();
    std::fs::rename(fixture.path("a"), fixture.path("b")).unwrap();
    std::fs::remove_file(fixture.path("b")).unwrap();
    std::fs::create_dir(fixture.path("dir")).unwrap();
    let events = fixture.read_until(CREATED, "dir").await;
    let expected = [
        seen(CREATED, "a", false),
        seen(CHANGED, "a", false),
        seen(MOVED_FROM, "a", false),
        seen(MOVED_TO, "b", false),
        seen(REMOVED, "b", false),
        seen(CREATED, "dir", true),
    ];
    assert_eq!(events, expected);
}

/// A file that the guest writes has a temporary name until it is complete.
#[tokio::test]
async fn temporary_names_are_not_reported() {
    for recursive in [false, true] {
        let mut fixture = WatchFixture::start(recursive, |home| {
            std::fs::write(home.join(".belljar-00000000000000aa"), "left behind").unwrap();
        })
        .await;
        let (new, other) =
            (fixture.path(".belljar-0123456789abcdef"), fixture.path(".belljar-fedcba9876543210~"));
        std::fs::write(&new, "one").unwrap();
        std::fs::rename(&new, fixture.path("file")).unwrap();
        // A cancelled write, and the staging directory of an archive.
        std::fs::write(&new, "three").unwrap();
        std::fs::remove_file(&new).unwrap();
        std::fs::create_dir(&new).unwrap();
        std::fs::create_dir(new.join("dir")).unwrap();
        std::fs::write(new.join("dir/inner"), "").unwrap();
        std::fs::rename(new.join("dir"), fixture.path("dir")).unwrap();
        std::fs::remove_dir(&new).unwrap();
        // A name that only resembles a temporary one is reported.
        std::fs::write(fixture.path(".belljar-notes"), "").unwrap();
        std::fs::create_dir(fixture.path("end")).unwrap();
        let events = fixture.read_until(CREATED, "end").await;
        let kinds_of = |path: &str| {
            events.iter().filter(|(_, at, _)| at == path).map(|(kind, ..)| *kind).collect::<Vec<_>>()
        };
        assert_eq!(kinds_of("file"), [CREATED, CHANGED], "{events:?}");
        assert_eq!(kinds_of(".belljar-notes"), [CREATED], "{events:?}");
        assert_eq!(kinds_of("dir"), [MOVED_TO], "{events:?}");
        assert!(events.iter().all(|(_, at, _)| !at.contains("0123456789abcdef")), "{events:?}");
        // A replacement is not reported as created.
        std::fs::write(&other, "two").unwrap();
        std::fs::rename(&other, fixture.path("file")).unwrap();
        let events = fixture.read_until(CHANGED, "file").await;
        assert!(events.iter().all(|(_, at, _)| at == "file" || at == "dir/inner"), "{events:?}");
        assert!(!events.contains(&seen(CREATED, "file", false)), "{events:?}");
    }
}

#[tokio::test]
async fn new_directories_are_watched_with_entries_created_before_the_watch() {
    let mut fixture =
        WatchFixture::start(true, |home| std::fs::create_dir_all(home.join("old/deep")).unwrap()).await;
    // Everything is created before the first event is read.
    std::fs::create_dir_all(fixture.path("new/one/two")).unwrap();
    std::fs::write(fixture.path("new/one/two/file"), "x").unwrap();
    std::fs::write(fixture.path("old/deep/file"), "x").unwrap();
    std::fs::write(fixture.path("end"), "").unwrap();
    let mut events = fixture.read_until(CREATED, "new/one/two/file").await;
    for expected in [
        seen(CREATED, "new", true),
        seen(CREATED, "new/one", true),
        seen(CREATED, "new/one/two", true),
        seen(CREATED, "old/deep/file", false),
        seen(CREATED, "end", false),
    ] {
        let position = events.iter().position(|event| *event == expected).unwrap();
        events.remove(position);
        assert!(!events.contains(&expected), "{expected:?} comes once");
    }
    std::fs::write(fixture.path("new/one/two/later"), "x").unwrap();
    std::fs::remove_dir_all(fixture.path("new/one")).unwrap();
    let events = fixture.read_until(REMOVED, "new/one").await;
    assert!(events.contains(&seen(CREATED, "new/one/two/later", false)));
    assert!(events.contains(&seen(REMOVED, "new/one/two", true)));
}

#[tokio::test]
async fn renamed_directories_are_reported_under_their_new_name() {
    let mut fixture =
        WatchFixture::start(true, |home| std::fs::create_dir_all(home.join("a/b")).unwrap()).await;
    std::fs::rename(fixture.path("a"), fixture.path("c")).unwrap();
    std::fs::write(fixture.path("c/b/file"), "").unwrap();
    let events = fixture.read_until(CREATED, "c/b/file").await;
    assert_eq!(events[..2], [seen(MOVED_FROM, "a", true), seen(MOVED_TO, "c", true)]);

    let outside = tempfile::tempdir_in(fixture.home.path().parent().unwrap()).unwrap();
    std::fs::rename(fixture.path("c"), outside.path().join("c")).unwrap();
    std::fs::write(fixture.path("end"), "").unwrap();
    std::fs::write(outside.path().join("c/b/unseen"), "").unwrap();
    fixture.read_until(CREATED, "end").await;
    std::fs::rename(outside.path().join("c"), fixture.path("back")).unwrap();
    let events = fixture.read_until(CREATED, "back/b/unseen").await;
    assert_eq!(events[0], seen(MOVED_TO, "back", true), "{events:?}");
}

#[tokio::test]
async fn overflow_is_reported_and_missed_directories_are_found() {
    let limit = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let limit: usize = limit.trim().parse().unwrap();
    let mut fixture = WatchFixture::start(true, |home| std::fs::write(home.join("x"), "").unwrap()).await;
    for _ in 0..=limit / 2 {
        std::fs::rename(fixture.path("x"), fixture.path("y")).unwrap();
        std::fs::rename(fixture.path("y"), fixture.path("x")).unwrap();
    }
    std::fs::create_dir(fixture.path("lost")).unwrap();
    fixture.read_until(OVERFLOW, "").await;
    fixture.read_until(CREATED, "lost").await;
    std::fs::write(fixture.path("lost/file"), "").unwrap();
    fixture.read_until(CREATED, "lost/file").await;
}

#[tokio::test]
async fn watch_ends_with_its_directory_and_refuses_non_directories() {
    let mut fixture = WatchFixture::start(true, |home| std::fs::create_dir(home.join("a")).unwrap()).await;
    std::fs::remove_dir_all(fixture.home.path()).unwrap();
    fixture.read_until(REMOVED, "").await;
    assert_eq!(fixture.next().await, None);

    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("file"), "").unwrap();
    for (name, code) in [("file", ErrorCode::FailedPrecondition), ("none", ErrorCode::NotFound)] {
        let error = watch(&home.path().join(name), name.as_bytes(), true).await.err().unwrap();
        assert_eq!(error.code, code);
    }
}

#[tokio::test]
async fn number_of_watches_is_bounded() {
    let home = tempfile::tempdir().unwrap();
    for index in 0..MAX_WATCHES {
        std::fs::create_dir(home.path().join(index.to_string())).unwrap();
    }
    let error = watch(home.path(), b"home", true).await.err().unwrap();
    assert_eq!(error.code, ErrorCode::ResourceExhausted);
    std::fs::remove_dir(home.path().join("0")).unwrap();
    assert!(watch(home.path(), b"home", true).await.is_ok());
}
