//! Results and events, as other programs read them.

use belljar_model::{Event, Outcome, RunResult, StreamOutput};

use crate::data::text;

pub(crate) fn result_json(data: &[u8]) {
    if let Ok(result) = serde_json::from_str::<RunResult>(&text(data)) {
        check_result(&result);
    }
}

pub(crate) fn event_json(data: &[u8]) {
    let Ok(event) = serde_json::from_str::<Event>(&text(data)) else { return };
    match event {
        Event::Result(result) => check_result(&result),
        event => {
            let json = serde_json::to_string(&event).expect("an event can be written");
            assert_eq!(serde_json::from_str::<Event>(&json).expect("a written event can be read"), event);
        }
    }
}

/// Checks that a result is consistent and survives a round trip.
pub(crate) fn check_result(result: &RunResult) {
    let mut result = result.clone();
    for stream in [Some(&result.stdout), Some(&result.stderr)]
        .into_iter()
        .flatten()
        .chain(result.compile.iter().flat_map(|phase| [&phase.stdout, &phase.stderr]))
    {
        check_stream(stream);
    }
    // Reading a fraction may change its last digit.
    result.wall_ms = 0.0;
    result.cpu_ms = None;
    result.timings = None;
    if let Some(compile) = &mut result.compile {
        compile.wall_ms = 0.0;
        compile.cpu_ms = None;
    }
    let json = serde_json::to_string(&result).expect("a result can be written");
    assert_eq!(serde_json::from_str::<RunResult>(&json).expect("a written result can be read"), result);
    let _: u8 = result.outcome.exit_status_with(result.exit_code);
    if result.outcome.is_success() {
        assert_eq!(result.outcome, Outcome::Exited { code: 0 });
    }
}

/// Checks that the kept parts of a stream match its counts.
pub(crate) fn check_stream(stream: &StreamOutput) {
    let kept = stream.decode().expect("the kept part can be decoded").len() as u64;
    assert_eq!(kept, stream.kept_head_bytes + stream.kept_tail_bytes);
    assert_eq!(stream.total_bytes, kept + stream.omitted_bytes());
    assert_eq!(stream.truncated, stream.omitted_bytes() > 0);
    assert!(stream.text.is_some() != stream.base64.is_some());
    let json = serde_json::to_string(stream).expect("a stream can be written");
    assert_eq!(&serde_json::from_str::<StreamOutput>(&json).expect("a written stream can be read"), stream);
}
