//! Specifications of sandboxes.

use belljar_model::{MAX_SPEC_BYTES, ModelError, SpecFile};

use crate::data::{check_text, text};

pub(crate) fn spec_toml(data: &[u8]) {
    check(SpecFile::from_toml(&text(data)), data.len());
}

pub(crate) fn spec_json(data: &[u8]) {
    check(SpecFile::from_json(&text(data)), data.len());
}

fn check(read: Result<SpecFile, ModelError>, length: usize) {
    let file = match read {
        Ok(file) => file,
        Err(error) => {
            check_text(&error.to_string());
            return;
        }
    };
    assert!(length <= 3 * MAX_SPEC_BYTES);
    // The specification survives a round trip in either format.
    let json = serde_json::to_string(&file).expect("a specification can be written");
    assert_eq!(SpecFile::from_json(&json).expect("a written specification can be read"), file);
    assert_eq!(serde_json::from_str::<SpecFile>(&json).expect("a written specification can be read"), file);
    // Merging with the empty specification changes nothing.
    assert_eq!(file.clone().merge(SpecFile::default()), file);
    assert_eq!(SpecFile::default().merge(file.clone()), file);
    let given = file.clone();
    match file.resolve() {
        Ok(spec) => {
            assert_eq!(given.limits.resolve(), spec.limits);
            assert_eq!(spec.mounts.len(), given.mounts.map_or(0, |mounts| mounts.len()));
            assert_eq!(spec.env.len(), given.env.map_or(0, |env| env.len()));
        }
        Err(error) => {
            let message = error.to_string();
            check_text(&message);
            assert!(message.contains(':'), "{message:?} names no field");
        }
    }
}
