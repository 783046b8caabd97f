//! Output of programs.

use belljar_engine::Collector;
use belljar_model::{
    HintReader, LimitEvents, LimitKind, Outcome, SandboxSpec, StreamOutput, hint as hint_for,
};
use bytes::Bytes;

use crate::data::{Input, check_text};
use crate::result::check_stream;

pub(crate) fn stream_output(data: &[u8]) {
    let mut input = Input(data);
    let omitted = u64::from(input.byte());
    let (head, tail) = input.0.split_at(usize::from(input.byte()).min(input.0.len()));
    let whole = head.len() as u64 + tail.len() as u64;
    let output = StreamOutput::new(head, tail, whole + omitted);
    check_stream(&output);
    let kept = output.decode().expect("a stream made here can be decoded");
    if omitted == 0 {
        assert_eq!(kept, [head, tail].concat());
    } else {
        let at = usize::try_from(output.kept_head_bytes).unwrap();
        assert!(head.starts_with(&kept[..at]) && tail.ends_with(&kept[at..]));
        // Only parts of one character on each side may be dropped, and only if the rest is text.
        assert!(output.omitted_bytes() - omitted <= 6);
        assert!(output.base64.is_none() || output.omitted_bytes() == omitted);
    }
}

pub(crate) fn collector(data: &[u8]) {
    let mut input = Input(data);
    let keep = u64::from(input.byte()) * 8;
    let mut collector = Collector::new(keep, None);
    let mut all = Vec::new();
    while !input.is_empty() {
        // Many pieces from few bytes: a guest may send single bytes.
        let piece = Bytes::copy_from_slice(input.piece());
        for _ in 0..=usize::from(input.byte() % 32) {
            all.extend_from_slice(&piece);
            collector.push(&piece);
        }
    }
    assert_eq!(collector.total(), all.len() as u64);
    // Memory is bounded by the kept bytes, however they arrived.
    assert!(collector.held_bytes() as u64 <= 2 * keep + 64, "{} for {keep}", collector.held_bytes());
    let half = usize::try_from(keep / 2).unwrap();
    let (head, tail) =
        if all.len() <= 2 * half { (&all[..], &[][..]) } else { (&all[..half], &all[all.len() - half..]) };
    let kept = [head, tail].concat();
    for count in [0, 1, half, kept.len(), kept.len() + 1] {
        assert_eq!(collector.last(count), kept[kept.len() - count.min(kept.len())..]);
    }
    let output = collector.finish();
    check_stream(&output);
    assert_eq!(output, StreamOutput::new(head, tail, all.len() as u64));
}

pub(crate) fn hint(data: &[u8]) {
    let mut input = Input(data);
    let outcome = match input.byte() % 8 {
        0 => Outcome::TimedOut,
        1 => Outcome::OutOfMemory,
        2 => Outcome::Limit { limit: LimitKind::Disk },
        3 => Outcome::Denied { rule: String::from_utf8_lossy(input.piece()).into_owned() },
        4 => Outcome::signalled(i32::from(input.byte())),
        code => Outcome::Exited { code: i32::from(code) - 5 },
    };
    let reader = match input.0.len() % 4 {
        0 => HintReader::CommandLine,
        1 => HintReader::Program,
        2 => HintReader::Model { timeout: "timeout_ms", create: None },
        _ => HintReader::Tool { name: "sh".to_owned(), timeout: belljar_model::Timeout::default() },
    };
    let found = hint_for(&outcome, LimitEvents::default(), input.0, &SandboxSpec::default(), &reader);
    if outcome.is_success() {
        assert_eq!(found, None);
    }
    if let Some(words) = found {
        check_text(&words);
        assert!(words.ends_with('.'), "{words:?}");
        // Only one short name may come from the program itself. A rule comes from the operator, and is shown in full.
        if !matches!(outcome, Outcome::Denied { .. }) {
            assert!(words.len() < 1024 && words.is_ascii(), "{words:?}");
        }
    }
}
