//! Templates: their files, exported templates, and images.

use std::collections::BTreeMap;

use belljar_image::{
    Base, Definition, DockerStepKind, Dockerfile, MAX_DEFINITION_BYTES, MAX_STEPS, StepKind, parse_header,
    write_header,
};

use crate::data::{check_refusal, check_text, text};

pub(crate) fn template_file(data: &[u8]) {
    let text = text(data);
    let definition = match Definition::parse(&text) {
        Ok(definition) => definition,
        Err(error) => {
            check_text(&error.to_string());
            assert!(error.line <= text.matches('\n').count() + 1, "{error}");
            assert!(error.line > 0 && error.column > 0 && !error.field.is_empty(), "{error}");
            return;
        }
    };
    assert!(text.len() <= MAX_DEFINITION_BYTES && definition.steps.len() <= MAX_STEPS);
    assert!(is_name(&definition.name) && !definition.description.chars().any(char::is_control));
    if let Base::Template(base) = &definition.base {
        assert!(is_name(base), "{base:?}");
    }
    assert!(definition.ready.is_none() || definition.start.is_some());
    for (index, step) in definition.steps.iter().enumerate() {
        assert_eq!(step.number, index + 1);
        assert!(step.kind.runs() || !step.has_network(), "a step that runs nothing has no network");
        assert!(step.kind.runs() || step.env.is_empty(), "nor variables of its own");
        match &step.kind {
            // No package may be an option of the installer.
            StepKind::Apt(words) | StepKind::Pip(words) | StepKind::Npm(words) => {
                assert!(!words.is_empty());
                assert!(words.iter().all(|word| !word.is_empty() && !word.starts_with('-')), "{words:?}");
            }
            StepKind::Copy(copy) => {
                let climbs = copy.from.split('/').any(|part| part == "..");
                assert!(!climbs && !copy.from.starts_with('/') && copy.to.starts_with('/'), "{copy:?}");
            }
            StepKind::Run(line) => assert!(!line.trim().is_empty() && !line.contains('\0')),
            StepKind::Workdir(dir) => assert!(dir.starts_with('/'), "{dir:?}"),
            StepKind::Env(_) | StepKind::User(_) => {}
        }
    }
    definition.spec.resolve().expect("a template contains a valid specification");
}

pub(crate) fn dockerfile(data: &[u8]) {
    let text = text(data);
    let env = BTreeMap::from([("PATH".to_owned(), "/bin".to_owned())]);
    let parsed = match Dockerfile::parse(&text, &BTreeMap::new()) {
        Ok(parsed) => parsed,
        Err(error) => {
            check_text(&error.to_string());
            assert!(error.line > 0 && error.line <= text.matches('\n').count() + 1, "{error}");
            assert!(!error.instruction.is_empty() && !error.reason.is_empty(), "{error}");
            return;
        }
    };
    // Values of the image may make a step invalid, but in no other way.
    let Ok(steps) = parsed.steps(&env, Some("/srv")) else { return };
    assert!(steps.windows(2).all(|pair| pair[0].line < pair[1].line), "{steps:?}");
    for step in steps {
        let is_absolute = |path: &str| path.starts_with('/') && !path.split('/').any(|part| part == "..");
        match step.kind {
            DockerStepKind::Run { line, .. } => assert!(!line.is_empty()),
            DockerStepKind::Copy { sources, to, .. } => {
                assert!(is_absolute(&to) && !sources.is_empty(), "{to:?}");
                let leaves =
                    |source: &String| source.starts_with('/') || source.split('/').any(|part| part == "..");
                assert!(!sources.iter().any(leaves), "{sources:?}");
            }
            DockerStepKind::Workdir(dir) => assert!(is_absolute(&dir), "{dir:?}"),
            DockerStepKind::Env(env) => assert!(!env.is_empty()),
            DockerStepKind::User(name) => assert!(!name.is_empty()),
        }
    }
}

fn is_name(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

pub(crate) fn bundle_head(data: &[u8]) {
    match parse_header(data) {
        Ok(None) => {}
        Ok(Some((header, length))) => {
            assert!(length <= data.len());
            // A prefix of a valid header is incomplete, not invalid.
            assert!(parse_header(&data[..length - 1]).expect("a prefix is valid").is_none());
            assert!(header.warm.iter().all(|name| !name.is_empty() && !name.contains([';', ' ', '/'])));
            if let Ok(written) = write_header(&header) {
                let (again, again_length) =
                    parse_header(&written).expect("a written header can be read").expect("it is complete");
                assert_eq!((again, again_length), (header, written.len()));
            }
        }
        Err(error) => check_refusal(&error.to_string(), &["bundle"]),
    }
}

pub(crate) fn oci_documents(data: &[u8]) {
    for reference in [None, Some("latest")] {
        for read in belljar_image::fuzzing::oci(data, reference) {
            match read {
                Ok(files) => {
                    let digits = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
                    assert!(files.iter().all(|name| name.len() == 64 && name.bytes().all(digits)));
                }
                Err(error) => check_refusal(&error.to_string(), &["image"]),
            }
        }
    }
}
