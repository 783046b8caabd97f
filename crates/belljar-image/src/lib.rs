//! Templates: their definition files, their builds inside sandboxes, and the resulting layers.
//!
//! ```text
//! definition.rs   a TOML text ──► Definition            strict, each error with line, column and field
//! build.rs        Definition ──► steps in sandboxes ──► tar of their changes ──► squashfs, made in another sandbox
//! dockerfile.rs   a Dockerfile, as far as a definition can express it
//! layers.rs       squashfs files by their SHA-256, and a cache from step keys to layers
//! bundle.rs       a template as one file
//! image_export.rs a template as an image
//! image_file.rs   an image in a file, as a layout directory
//! ```
//!
//! Nothing that a template supplies is run, unpacked or interpreted outside a sandbox, but for the names and documents of an image in a
//! file, which are read as those of a registry are. The result is a file that is
//! stored under its digest, and only ever mounted without devices and without set-uid programs.
#![forbid(unsafe_code)]

mod build;
mod bundle;
mod definition;
mod dockerfile;
mod error;
mod image_export;
mod image_file;
mod layers;
mod oci;
mod sandbox;
mod steps;

/// Private parsers, for fuzz targets.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    use crate::error::BuildError;
    use crate::oci::{Chosen, choose, parse_config, parse_manifest};

    /// Parses `text` as each kind of document of an OCI image, and returns the names of the files that it refers to.
    ///
    /// # Errors
    /// Each result fails if `text` is not a valid document of that kind.
    pub fn oci(text: &[u8], reference: Option<&str>) -> [Result<Vec<String>, BuildError>; 3] {
        let chosen = choose(text, reference).and_then(|chosen| match chosen {
            Chosen::Index(one) | Chosen::Manifest(one) => Ok(vec![one.hex()?.to_owned()]),
        });
        let layers = parse_manifest(text).and_then(|(config, layers)| {
            let all = std::iter::once(&config).chain(&layers);
            all.map(|one| Ok(one.hex()?.to_owned())).collect()
        });
        [chosen, layers, parse_config(text).map(|_| Vec::new())]
    }
}

pub use build::{
    BaseTemplate, BuildEvent, BuildInput, Builder, Built, MIRROR_NAME, check_input, is_unpacked,
};
pub use bundle::{BundleHeader, MAX_HEADER_BYTES, parse_header, write_header};
pub use definition::{
    Base, CopyStep, Definition, MAX_DEFINITION_BYTES, MAX_STEPS, Step, StepKind, script_line,
};
pub use dockerfile::{DockerStep, DockerStepKind, Dockerfile, DockerfileError, MAX_DOCKERFILE_BYTES};
pub use error::{BuildError, DefinitionError};
pub use image_export::{ImageExport, ImageSettings};
pub use image_file::{ImageFile, ImageFileLimits, read_image_file};
pub use layers::{Layer, Layers, Swept, bytes_of, digest_of};
pub use sandbox::Lines;
