//! Checks of a build before anything starts: a step must not fail after minutes for what was missing from the beginning.

use std::path::Path;

use belljar_model::TreeBase;

use super::BuildInput;
use super::key::mirror_folder;
use crate::definition::{Base, Definition, StepKind};
use crate::error::BuildError;

/// Directories in which a sandbox on the machine's own tree finds programs.
const PROGRAM_DIRS: [&str; 5] = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"];

/// Checks that all inputs of the steps exist, and the programs of this machine that they need, before anything starts.
///
/// # Errors
/// Returns [`BuildError::Input`], with what is missing and how to get it.
pub fn check_input(definition: &Definition, input: &BuildInput) -> Result<(), BuildError> {
    if let (Base::Debian { .. }, None) = (&definition.base, &input.mirror) {
        return Err(BuildError::input(
            "base",
            concat!(
                "a base has no network, so its packages come from a directory; fill one with mirror.sh, a script of ",
                env!("CARGO_PKG_REPOSITORY"),
                "/blob/main/templates, and name it with --mirror DIR"
            ),
        ));
    }
    let from_mirror =
        definition.steps.iter().find(|step| mirror_folder(&step.kind).is_some() && !step.has_network());
    if let (Some(step), None) = (from_mirror, &input.mirror) {
        return Err(BuildError::input(
            format!("step.{}.{}", step.number, step.kind.name()),
            format!(
                "it has no network, so packages come from a directory: fill one and name it with --mirror DIR, or give \
                 the step network = {{ presets = [\"{}\"] }}",
                step.kind.name()
            ),
        ));
    }
    if let (Base::Oci { .. }, None) = (&definition.base, &input.image) {
        return Err(BuildError::input("image", "the path of the image is missing"));
    }
    for step in &definition.steps {
        if let StepKind::Copy(copy) = &step.kind {
            let exists = input.files.keys().any(|name| copy.target(name).is_some());
            if !exists {
                let field = format!("step.{}.copy.from", step.number);
                return Err(BuildError::input(
                    field,
                    format!("{:?} did not come with the template", copy.from),
                ));
            }
        }
    }
    if definition.base == Base::Host || input.base.as_ref().is_some_and(|base| base.base == TreeBase::Host) {
        let apt = definition.steps.iter().find(|step| matches!(step.kind, StepKind::Apt(_)));
        if let Some(step) = apt {
            return Err(BuildError::input(
                format!("step.{}.apt", step.number),
                "packages cannot be installed into the machine's own tree; use base = \"debian\"",
            ));
        }
    }
    check_mirror(definition, input)?;
    check_programs(definition, input)
}

/// Checks that the mirror has what the base and the steps take from it.
fn check_mirror(definition: &Definition, input: &BuildInput) -> Result<(), BuildError> {
    let Some(mirror) = &input.mirror else { return Ok(()) };
    let debian = matches!(definition.base, Base::Debian { .. }).then_some("apt");
    let of_steps = definition.steps.iter().filter(|step| !step.has_network());
    let folders = of_steps.filter_map(|step| mirror_folder(&step.kind)).map(|(folder, _)| folder);
    for folder in debian.into_iter().chain(folders) {
        let (missing, file) = match folder {
            "apt" => ("apt/Packages", "apt/Packages"),
            "npm" => ("npm/npm.tgz", "npm/npm.tgz"),
            folder => ("folder pip", folder),
        };
        if !mirror.join(file).exists() {
            let reason = format!(
                "the mirror has no {missing}; fill it for this template first: mirror.sh FILE {}, a script of {}/blob/main/templates",
                mirror.display(),
                env!("CARGO_PKG_REPOSITORY")
            );
            return Err(BuildError::input("mirror", reason));
        }
    }
    Ok(())
}

/// Checks that this machine has the programs that bases, steps and layers need.
fn check_programs(definition: &Definition, input: &BuildInput) -> Result<(), BuildError> {
    let has = |name: &str| PROGRAM_DIRS.iter().any(|dir| Path::new(dir).join(name).exists());
    let on_host =
        definition.base == Base::Host || input.base.as_ref().is_some_and(|base| base.base == TreeBase::Host);
    let any = |wanted: fn(&StepKind) -> bool| definition.steps.iter().find(|step| wanted(&step.kind));
    let packs = matches!(definition.base, Base::Debian { .. } | Base::Oci { .. } | Base::Image(_))
        || definition.steps.iter().any(|step| step.kind.changes_files());
    let mut needed = Vec::new();
    if packs {
        needed.push(("mksquashfs", "squashfs-tools", "packs layers"));
    }
    if matches!(definition.base, Base::Debian { .. }) {
        needed.push(("mmdebstrap", "mmdebstrap", "makes the tree of base = \"debian\""));
    }
    // A tree of its own has what its steps install.
    if on_host && any(|kind| matches!(kind, StepKind::Pip(_))).is_some() {
        needed.push(("python3", "python3-venv python3-pip", "installs the packages of a step pip"));
    }
    if let (true, Some(step)) = (on_host, any(|kind| matches!(kind, StepKind::Npm(_)))) {
        needed.push(("node", "nodejs", "installs the packages of a step npm"));
        if step.has_network() {
            needed.push(("npm", "npm", "installs the packages of a step npm"));
        }
    }
    match needed.into_iter().find(|(program, ..)| !has(program)) {
        Some((program, package, purpose)) => Err(BuildError::input(
            program,
            format!("not installed on the server's machine; it {purpose}: apt-get install {package}"),
        )),
        None => Ok(()),
    }
}
