use proptest::prelude::*;

use super::super::details::Redacted;
use super::super::head::Head;
use super::super::record::NewRecord;
use super::*;

fn new_record() -> NewRecord {
    let at = Timestamp::from_microsecond(1_790_000_000_000_042).unwrap();
    NewRecord {
        actor: "10.0.0.1 curl/8".to_owned(),
        key_id: Some("key-1".to_owned()),
        sandbox: Some("s0000000000000000001".parse().unwrap()),
        details: Details::new().with("path", "/home/Größe").with("bytes", 3_u32).with("token", Redacted),
        ..NewRecord::new(at, "acme", "file.write", "ok")
    }
}

/// A change here changes what others verify with: docs/audit.md promises this form.
#[test]
fn canonical_form_matches_documentation() {
    let (record, body) = AuditRecord::after(Head::EMPTY, &new_record());
    let expected = concat!(
        r#"{"action":"file.write","actor":"10.0.0.1 curl/8","at":"2026-09-21T14:13:20.000042Z","code_digest":null,"#,
        r#""details":{"bytes":3,"path":"/home/Gr\u00f6\u00dfe","token":{"redacted":true}},"isolation":null,"key_id":"key-1","#,
        r#""outcome":"ok","output_digest":null,"policy_digest":null,"#,
        r#""prev":"0000000000000000000000000000000000000000000000000000000000000000","#,
        r#""request_id":"","sandbox":"s0000000000000000001","seq":1,"tenant":"acme"}"#
    );
    assert_eq!(body, expected);
    let hash = hex::encode(record.hash);
    let with_hash = expected.replace(r#""isolation""#, &format!(r#""hash":"{hash}","isolation""#));
    assert_eq!(serialize_line(&record), with_hash);
    assert_eq!(parse_line(&with_hash).unwrap(), record);
    assert_eq!(parse_body(&body, record.hash).unwrap(), record);
}

#[test]
fn control_and_non_ascii_characters_are_escaped() {
    let evil = "\n{\"seq\":2}\r\u{1b}[2J\u{9b}31m\u{7f}\u{202e}\u{2028}\0😀";
    let new = NewRecord {
        actor: evil.to_owned(),
        details: Details::new().with("path", evil),
        ..NewRecord::new(Timestamp::UNIX_EPOCH, evil, evil, evil)
    };
    let (record, _) = AuditRecord::after(Head::EMPTY, &new);
    let text = serialize_line(&record);
    assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{text}");
    assert!(
        text.contains(r#"\n{\"seq\":2}\r\u001b[2J\u009b31m\u007f\u202e\u2028\ufffd\ud83d\ude00"#),
        "{text}"
    );
    assert_eq!(parse_line(&text).unwrap(), record);
}

#[test]
fn non_canonical_forms_are_refused() {
    let (record, body) = AuditRecord::after(Head::EMPTY, &new_record());
    let good = serialize_line(&record);
    let cases = [
        good.replacen("{", "{ ", 1),
        good.replacen(r#""seq":1"#, r#""seq":1.0"#, 1),
        good.replacen(r#""tenant":"acme""#, r#""tenant":"\u0061cme""#, 1),
        good.replacen(r#""seq":1,"#, r#""seq":1,"seq":1,"#, 1),
        good.replacen(r#""isolation":null,"#, "", 1),
        good.replacen(r#"{"redacted":true}"#, r#"{"redacted":false}"#, 1),
        good.replacen("Z\"", "+00:00\"", 1),
        good.replacen(r#""tenant":"acme"}"#, r#""tenant":"acme","more":1}"#, 1),
        format!("{good} "),
        body.clone(),
        String::new(),
        "[".repeat(100_000),
    ];
    for text in cases {
        assert!(parse_line(&text).is_err(), "{text}");
    }
    // Even with the right hash of the wrong form.
    let spaced = body.replacen("{", "{ ", 1);
    assert!(parse_body(&spaced, digest(&spaced)).unwrap_err().contains("canonical"));
}

proptest! {
    #[test]
    fn records_round_trip(tenant: String, actor: String, reason in ".{0,2000}", micros in -1_000_000_000_000_i64..4_000_000_000_000_000) {
        let new = NewRecord {
            actor,
            details: Details::new().with("reason", reason),
            ..NewRecord::new(Timestamp::from_microsecond(micros).unwrap(), &tenant, "exec", "ok")
        };
        let (record, body) = AuditRecord::after(Head { seq: 41, hash: [7; 32] }, &new);
        let text = serialize_line(&record);
        prop_assert!(text.len() < MAX_LINE_BYTES);
        prop_assert!(text.is_ascii() && !text.contains('\n'));
        prop_assert_eq!(&parse_line(&text).unwrap(), &record);
        prop_assert_eq!(parse_body(&body, record.hash).unwrap(), record);
    }

    #[test]
    fn any_changed_byte_is_refused(place: prop::sample::Index, byte in 0x20_u8..0x7f) {
        let (record, _) = AuditRecord::after(Head::EMPTY, &new_record());
        let good = serialize_line(&record);
        let mut bytes = good.clone().into_bytes();
        let place = place.index(bytes.len());
        bytes[place] = byte;
        let text = String::from_utf8(bytes).unwrap();
        prop_assert_eq!(parse_line(&text).is_ok(), text == good);
    }
}
