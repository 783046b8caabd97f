use proptest::prelude::*;

use super::super::canonical::{digest, parse_line, serialize_body, serialize_line};
use super::super::details::Details;
use super::super::export::{Expected, verify_export};
use super::super::record::NewRecord;
use super::*;

/// Returns a chain of records, a minute apart.
fn chain(length: i64) -> Vec<AuditRecord> {
    let mut head = Head::EMPTY;
    let mut records = Vec::new();
    for number in 0..length {
        let at = Timestamp::from_second(1_790_000_000 + number * 60).unwrap();
        let details = Details::new().with("number", number);
        let (record, _) =
            AuditRecord::after(head, &NewRecord { details, ..NewRecord::new(at, "acme", "exec", "ok") });
        head = record.head();
        records.push(record);
    }
    records
}

fn export(records: &[AuditRecord]) -> String {
    records.iter().map(|record| serialize_line(record) + "\n").collect()
}

fn verify(text: &str, expected: Expected) -> Verification {
    verify_export(text.as_bytes(), expected).unwrap()
}

fn whole(records: &[AuditRecord]) -> Expected {
    Expected { first: Some(1), head: records.last().map(AuditRecord::head) }
}

fn broken_at(verification: &Verification) -> Option<i64> {
    match verification {
        Verification::Verified(_) => None,
        Verification::Broken(broken) => Some(broken.seq),
    }
}

/// Recomputes the hash, as an attacker who knows the form would.
fn rehash(record: &mut AuditRecord) {
    record.hash = digest(&serialize_body(record));
}

#[test]
fn intact_chain_is_verified() {
    let records = chain(20);
    let verified = |records: u64, head: Head| {
        let first = head.seq + 1 - i64::try_from(records).unwrap();
        Verification::Verified(Verified { records, first, head, steps_back: 0, first_step_back: None })
    };
    let all = export(&records);
    assert_eq!(verify(&all, whole(&records)), verified(20, records[19].head()));
    assert_eq!(verify(&all, Expected::default()), verified(20, records[19].head()));
    assert_eq!(verify("", Expected::default()), verified(0, Head::EMPTY));
    assert_eq!(verify("", Expected { first: Some(1), head: Some(Head::EMPTY) }), verified(0, Head::EMPTY));
    // A part, alone and after a head that is known.
    let part = export(&records[5..10]);
    assert_eq!(verify(&part, Expected { first: Some(6), head: None }), verified(5, records[9].head()));
    assert_eq!(
        verify(&part, Expected { first: None, head: Some(records[4].head()) }),
        verified(5, records[9].head())
    );
    let other = Head { seq: 5, hash: [1; 32] };
    assert_eq!(broken_at(&verify(&part, Expected { first: None, head: Some(other) })), Some(6));
    // A head before the part cannot confirm it.
    assert_eq!(broken_at(&verify(&part, Expected { first: None, head: Some(records[2].head()) })), Some(3));
}

#[test]
fn steps_back_in_time_are_counted() {
    let at = |second: i64| Timestamp::from_second(second).unwrap();
    let mut head = Head::EMPTY;
    let mut records = Vec::new();
    for second in [100, 200, 50, 60, 10] {
        let (record, _) = AuditRecord::after(head, &NewRecord::new(at(second), "acme", "exec", "ok"));
        head = record.head();
        records.push(record);
    }
    let expected = Verified { records: 5, first: 1, head, steps_back: 2, first_step_back: Some(3) };
    assert_eq!(verify(&export(&records), whole(&records)), Verification::Verified(expected));
}

#[test]
fn faults_are_distinguished() {
    let records = chain(9);
    let fault = |records: &[AuditRecord], head: &[AuditRecord]| match verify(&export(records), whole(head)) {
        Verification::Broken(broken) => broken.to_string(),
        Verification::Verified(_) => "verified".to_owned(),
    };
    let removed = [&records[..3], &records[4..]].concat();
    assert_eq!(fault(&removed, &records), "record 4: it is missing; record 5 is in its place");
    assert_eq!(fault(&records[..7], &records), "record 8: it is missing; the chain went on to record 9");
    assert_eq!(fault(&records[2..], &records), "record 1: it is missing; record 3 is in its place");
    let mut edited = records.clone();
    edited[4].tenant = "other".to_owned();
    assert_eq!(fault(&edited, &records), "record 5: it was changed: its content does not match its hash");
    rehash(&mut edited[4]);
    let replaced = "record 5: it was replaced: it is not the record that the later ones were chained to";
    assert_eq!(fault(&edited, &records), replaced);
    // The rest is rewritten as well: only the head shows it.
    for index in 5..9 {
        edited[index].prev = edited[index - 1].hash;
        rehash(&mut edited[index]);
    }
    assert!(fault(&edited, &records).starts_with("record 9: it was replaced"));
    let whole_text = export(&records);
    let cut = &whole_text[..whole_text.len() - 1];
    assert_eq!(broken_at(&verify(cut, whole(&records))), Some(9));
    let endless = "x".repeat(super::super::canonical::MAX_LINE_BYTES * 3);
    assert_eq!(broken_at(&verify(&(export(&records[..2]) + &endless), whole(&records))), Some(3));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Changes one field of one record, with or without a matching hash.
    #[test]
    fn edit_is_detected(length in 1_i64..20, place: prop::sample::Index, field in 0..8, fitting: bool) {
        let good = chain(length);
        let mut records = good.clone();
        let index = place.index(records.len());
        let record = &mut records[index];
        match field {
            0 => record.tenant.push('x'),
            1 => record.at += jiff::SignedDuration::from_micros(1),
            2 => record.key_id = Some(String::new()),
            3 => record.outcome.clear(),
            4 => record.details = Details::new(),
            5 => record.prev[31] ^= 1,
            6 => record.code_digest = Some("00".to_owned()),
            _ => record.hash[0] ^= 1,
        }
        if fitting && field != 7 {
            rehash(record);
        }
        let seq = good[index].seq;
        prop_assert_eq!(broken_at(&verify(&export(&records), whole(&good))), Some(seq));
    }

    #[test]
    fn deletion_is_detected(length in 1_i64..20, place: prop::sample::Index, count in 1_usize..5) {
        let good = chain(length);
        let begin = place.index(good.len());
        let end = good.len().min(begin + count);
        let records = [&good[..begin], &good[end..]].concat();
        prop_assert_eq!(broken_at(&verify(&export(&records), whole(&good))), Some(good[begin].seq));
    }

    #[test]
    fn swap_is_detected(length in 2_i64..20, a: prop::sample::Index, b: prop::sample::Index) {
        let good = chain(length);
        let (a, b) = (a.index(good.len()), b.index(good.len()));
        let mut records = good.clone();
        records.swap(a, b);
        let expected = (a != b).then(|| good[a.min(b)].seq);
        prop_assert_eq!(broken_at(&verify(&export(&records), whole(&good))), expected);
    }

    #[test]
    fn repetition_is_detected(length in 1_i64..20, place: prop::sample::Index) {
        let good = chain(length);
        let index = place.index(good.len());
        let mut records = good.clone();
        records.insert(index, good[index].clone());
        let expected = good[index].seq + 1;
        prop_assert_eq!(broken_at(&verify(&export(&records), whole(&good))), Some(expected));
    }

    #[test]
    fn truncation_is_detected(length in 1_i64..20, place: prop::sample::Index) {
        let good = chain(length);
        let kept = place.index(good.len());
        let broken = verify(&export(&good[..kept]), whole(&good));
        prop_assert_eq!(broken_at(&broken), Some(good[kept].seq));
    }

    #[test]
    fn any_changed_byte_is_detected(length in 1_i64..8, place: prop::sample::Index, byte: u8) {
        let good = chain(length);
        let text = export(&good);
        let mut bytes = text.clone().into_bytes();
        let place = place.index(bytes.len());
        bytes[place] = byte;
        let verification = verify_export(bytes.as_slice(), whole(&good)).unwrap();
        let line_number = i64::try_from(text[..place].matches('\n').count()).unwrap() + 1;
        let expected = (bytes != text.as_bytes()).then_some(line_number);
        prop_assert_eq!(broken_at(&verification), expected);
    }

    #[test]
    fn arbitrary_input_does_not_panic(text in "\\PC{0,200}", more: Vec<u8>) {
        let _ = parse_line(&text);
        let _ = verify_export(more.as_slice(), Expected::default()).unwrap();
    }
}
