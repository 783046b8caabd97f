use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use belljar_proto::ErrorCode;
use futures::StreamExt;

use super::*;

const DEADLINE: Duration = Duration::from_secs(60);

type Seen = (v1::WatchKind, String, bool);

struct Watched {
    home: tempfile::TempDir,
    stream: Pin<Box<dyn Stream<Item = Result<v1::WatchEvent, ConnectError>> + Send>>,
}

impl Watched {
    async fn start(recursive: bool, prepare: impl FnOnce(&Path)) -> Self {
        let home = tempfile::tempdir().unwrap();
        prepare(home.path());
        let stream = Box::pin(watch(home.path(), b"home", recursive).await.unwrap());
        let mut watched = Self { home, stream };
        assert_eq!(watched.next().await, Some((v1::WatchKind::WATCH_KIND_READY, String::new(), true)));
        watched
    }

    fn path(&self, path: &str) -> PathBuf {
        self.home.path().join(path)
    }

    async fn next(&mut self) -> Option<Seen> {
        let event = tokio::time::timeout(DEADLINE, self.stream.next()).await.unwrap()?.unwrap();
        let path = String::from_utf8(event.path.to_vec()).unwrap();
        Some((event.kind.as_known().unwrap(), path, event.directory))
    }

    /// Everything up to the event, which must come.
    async fn until(&mut self, kind: v1::WatchKind, path: &str) -> Vec<Seen> {
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
async fn a_directory_reports_what_happens_in_it_and_not_below() {
    let mut watched = Watched::start(false, |home| std::fs::create_dir(home.join("below")).unwrap()).await;
    std::fs::write(watched.path("below/file"), "x").unwrap();
    std::fs::write(watched.path("a"), "").unwrap();
    std::fs::write(watched.path("a"), "text").unwrap();
    std::fs::rename(watched.path("a"), watched.path("b")).unwrap();
    std::fs::remove_file(watched.path("b")).unwrap();
    std::fs::create_dir(watched.path("dir")).unwrap();
    let events = watched.until(CREATED, "dir").await;
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

/// A file that the guest writes has another name until it is whole.
#[tokio::test]
async fn names_of_what_is_not_whole_are_not_seen() {
    for recursive in [false, true] {
        let mut watched = Watched::start(recursive, |home| {
            std::fs::write(home.join(".belljar-00000000000000aa"), "left behind").unwrap();
        })
        .await;
        let (new, other) =
            (watched.path(".belljar-0123456789abcdef"), watched.path(".belljar-fedcba9876543210~"));
        std::fs::write(&new, "one").unwrap();
        std::fs::rename(&new, watched.path("file")).unwrap();
        // One that breaks off, and a place where an archive is unpacked.
        std::fs::write(&new, "three").unwrap();
        std::fs::remove_file(&new).unwrap();
        std::fs::create_dir(&new).unwrap();
        std::fs::create_dir(new.join("dir")).unwrap();
        std::fs::write(new.join("dir/inner"), "").unwrap();
        std::fs::rename(new.join("dir"), watched.path("dir")).unwrap();
        std::fs::remove_dir(&new).unwrap();
        // What only looks like one is seen.
        std::fs::write(watched.path(".belljar-notes"), "").unwrap();
        std::fs::create_dir(watched.path("end")).unwrap();
        let events = watched.until(CREATED, "end").await;
        let told = |path: &str| {
            events.iter().filter(|(_, at, _)| at == path).map(|(kind, ..)| *kind).collect::<Vec<_>>()
        };
        assert_eq!(told("file"), [CREATED, CHANGED], "{events:?}");
        assert_eq!(told(".belljar-notes"), [CREATED], "{events:?}");
        assert_eq!(told("dir"), [MOVED_TO], "{events:?}");
        assert!(events.iter().all(|(_, at, _)| !at.contains("0123456789abcdef")), "{events:?}");
        // What takes the place of something is no new name.
        std::fs::write(&other, "two").unwrap();
        std::fs::rename(&other, watched.path("file")).unwrap();
        let events = watched.until(CHANGED, "file").await;
        assert!(events.iter().all(|(_, at, _)| at == "file" || at == "dir/inner"), "{events:?}");
        assert!(!events.contains(&seen(CREATED, "file", false)), "{events:?}");
    }
}

#[tokio::test]
async fn new_directories_are_watched_with_what_was_made_in_them_before() {
    let mut watched =
        Watched::start(true, |home| std::fs::create_dir_all(home.join("old/deep")).unwrap()).await;
    // All of it before the first event is read.
    std::fs::create_dir_all(watched.path("new/one/two")).unwrap();
    std::fs::write(watched.path("new/one/two/file"), "x").unwrap();
    std::fs::write(watched.path("old/deep/file"), "x").unwrap();
    std::fs::write(watched.path("end"), "").unwrap();
    let mut events = watched.until(CREATED, "new/one/two/file").await;
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
    std::fs::write(watched.path("new/one/two/later"), "x").unwrap();
    std::fs::remove_dir_all(watched.path("new/one")).unwrap();
    let events = watched.until(REMOVED, "new/one").await;
    assert!(events.contains(&seen(CREATED, "new/one/two/later", false)));
    assert!(events.contains(&seen(REMOVED, "new/one/two", true)));
}

#[tokio::test]
async fn renamed_directories_go_on_under_their_new_name() {
    let mut watched = Watched::start(true, |home| std::fs::create_dir_all(home.join("a/b")).unwrap()).await;
    std::fs::rename(watched.path("a"), watched.path("c")).unwrap();
    std::fs::write(watched.path("c/b/file"), "").unwrap();
    let events = watched.until(CREATED, "c/b/file").await;
    assert_eq!(events[..2], [seen(MOVED_FROM, "a", true), seen(MOVED_TO, "c", true)]);

    let outside = tempfile::tempdir_in(watched.home.path().parent().unwrap()).unwrap();
    std::fs::rename(watched.path("c"), outside.path().join("c")).unwrap();
    std::fs::write(watched.path("end"), "").unwrap();
    std::fs::write(outside.path().join("c/b/unseen"), "").unwrap();
    watched.until(CREATED, "end").await;
    std::fs::rename(outside.path().join("c"), watched.path("back")).unwrap();
    let events = watched.until(CREATED, "back/b/unseen").await;
    assert_eq!(events[0], seen(MOVED_TO, "back", true), "{events:?}");
}

#[tokio::test]
async fn an_overflow_is_passed_on_and_directories_made_meanwhile_are_found() {
    let limit = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let limit: usize = limit.trim().parse().unwrap();
    let mut watched = Watched::start(true, |home| std::fs::write(home.join("x"), "").unwrap()).await;
    for _ in 0..=limit / 2 {
        std::fs::rename(watched.path("x"), watched.path("y")).unwrap();
        std::fs::rename(watched.path("y"), watched.path("x")).unwrap();
    }
    std::fs::create_dir(watched.path("lost")).unwrap();
    watched.until(OVERFLOW, "").await;
    watched.until(CREATED, "lost").await;
    std::fs::write(watched.path("lost/file"), "").unwrap();
    watched.until(CREATED, "lost/file").await;
}

#[tokio::test]
async fn it_ends_with_its_directory_and_refuses_what_is_none() {
    let mut watched = Watched::start(true, |home| std::fs::create_dir(home.join("a")).unwrap()).await;
    std::fs::remove_dir_all(watched.home.path()).unwrap();
    watched.until(REMOVED, "").await;
    assert_eq!(watched.next().await, None);

    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("file"), "").unwrap();
    for (name, code) in [("file", ErrorCode::FailedPrecondition), ("none", ErrorCode::NotFound)] {
        let error = watch(&home.path().join(name), name.as_bytes(), true).await.err().unwrap();
        assert_eq!(error.code, code);
    }
}

#[tokio::test]
async fn the_number_of_watches_is_bounded() {
    let home = tempfile::tempdir().unwrap();
    for index in 0..MAX_WATCHES {
        std::fs::create_dir(home.path().join(index.to_string())).unwrap();
    }
    let error = watch(home.path(), b"home", true).await.err().unwrap();
    assert_eq!(error.code, ErrorCode::ResourceExhausted);
    std::fs::remove_dir(home.path().join("0")).unwrap();
    assert!(watch(home.path(), b"home", true).await.is_ok());
}
