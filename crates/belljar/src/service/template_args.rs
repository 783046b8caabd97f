//! Command-line arguments of volumes, templates and images.

use std::path::PathBuf;

use belljar_model::ImageReference;
use clap::{Args, Subcommand};

use super::args::{CopyArgs, ServerArgs};
use super::build_display::ProgressStyle;

/// Arguments of `belljar volume`.
#[derive(Debug, Args)]
pub(crate) struct VolumeCommandArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: VolumeCommand,
}

/// The commands of `belljar volume`. A volume is named by its id or by its name.
#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Create a volume and print its id
    Create {
        /// Name
        name: String,
        /// Size, reserved on the server's disk [default: set by the operator, initially 1g]
        #[arg(long, value_name = "SIZE")]
        size: Option<String>,
    },
    /// List volumes
    #[command(visible_alias = "list")]
    Ls,
    /// Show volume details
    Info {
        /// Volume
        volume: String,
    },
    /// Remove volumes and their files; a volume that a sandbox mounts is not removed
    Rm {
        /// Volumes
        #[arg(required = true)]
        volumes: Vec<String>,
    },
    /// Copy files and directories in or out; one of the two places is VOLUME:PATH
    #[command(after_help = VOLUME_COPY_EXAMPLES)]
    Cp(CopyArgs),
}

const VOLUME_COPY_EXAMPLES: &str = "\
Examples:
  belljar volume cp a.csv data:             into the volume's root
  belljar volume cp src data:/app           a directory, as app, or into app if it exists
  belljar volume cp data:/out/. results     what is in out, into results
  belljar volume cp data:/out - | tar tf -  a directory, as a tar

Exit status 1: some entries could not be copied, such as sockets and unreadable files.";

/// Arguments of `belljar template`.
#[derive(Debug, Args)]
pub(crate) struct TemplateCommandArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: TemplateCommand,
}

/// Arguments of `belljar image`.
#[derive(Debug, Args)]
pub(crate) struct ImageCommandArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: ImageCommand,
}

/// The commands of `belljar image`.
#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Pull an image from its registry, for --image and as a template
    Pull {
        /// The image, such as python:3.12-slim or ghcr.io/org/app@sha256:…
        image: ImageReference,
        /// Unpack it again, also if its layer is there
        #[arg(long)]
        fresh: bool,
    },
    /// List pulled images
    #[command(visible_alias = "list")]
    Ls,
    /// Show image details
    Info {
        /// The image
        image: ImageReference,
    },
    /// Remove pulled images; sandboxes that use them keep running
    Rm {
        /// The images
        #[arg(required = true)]
        images: Vec<ImageReference>,
    },
    /// Import an image from a file: a tar of docker save, or an OCI image layout as a tar or a directory
    Import {
        /// The file or directory; - is standard input
        file: PathBuf,
        /// Name of the image, if not the one in the file; of several in the file, the one to import
        #[arg(long, value_name = "IMAGE")]
        name: Option<ImageReference>,
        /// How to show progress; auto is tty on a terminal, else plain
        #[arg(long, value_name = "STYLE", value_enum, default_value_t)]
        progress: ProgressStyle,
    },
    /// Write an image, or a built template, as a tar that docker load and other programs read
    Export {
        /// The image, or the name or id of a template with a tree of its own
        #[arg(value_name = "NAME")]
        image: String,
        /// The file; - is standard output
        file: PathBuf,
    },
    /// Build a template from a Dockerfile with FROM, RUN, COPY, ENV, WORKDIR, USER and ARG
    #[command(after_help = IMAGE_BUILD_EXAMPLES)]
    Build(Box<ImageBuildArgs>),
    /// Store an account at a registry, with which its images are pulled
    Login {
        /// The registry, such as docker.io or registry.corp.example:5000
        registry: String,
        /// Name of the account; asked for if not given
        #[arg(short, long, visible_alias = "username", value_name = "NAME")]
        user: Option<String>,
        /// Read the password, or a token in place of one, from standard input
        #[arg(long)]
        password_stdin: bool,
    },
    /// Remove the account at a registry
    Logout {
        /// The registry
        registry: String,
    },
    /// List the accounts at registries that are stored
    Accounts,
    /// Remove what no sandbox, template or tag needs of images
    Gc {
        /// Only print what would be removed
        #[arg(long)]
        dry_run: bool,
    },
}

const IMAGE_BUILD_EXAMPLES: &str = "\
Examples:
  belljar image build --preset pip .           the Dockerfile of this directory; its steps reach the Python index
  belljar image build -t app -f app.dockerfile src
  belljar sandbox create --template app        a sandbox of it";

/// Arguments of `belljar image build`.
#[derive(Debug, Args)]
pub(crate) struct ImageBuildArgs {
    /// Directory with the files that COPY names
    #[arg(value_name = "DIR")]
    pub(crate) context: PathBuf,
    /// The Dockerfile [default: Dockerfile in DIR]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Name of the template [default: that of DIR]
    #[arg(short = 't', long, visible_alias = "tag", value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Set the value of an ARG; NAME alone takes it from here
    #[arg(long = "build-arg", value_name = "NAME[=VALUE]")]
    pub(crate) build_args: Vec<String>,
    /// Run all steps, including those with a cached result
    #[arg(long, visible_alias = "no-cache")]
    pub(crate) fresh: bool,
    /// How to show progress; auto is tty on a terminal, else plain, with the steps' whole output
    #[arg(long, value_name = "STYLE", value_enum, default_value_t)]
    pub(crate) progress: ProgressStyle,
    #[command(flatten)]
    pub(crate) net: crate::cli::NetArgs,
}

/// The commands of `belljar template`.
#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    /// List templates
    #[command(visible_alias = "list")]
    Ls,
    /// Show template details
    Info {
        /// Id or name
        template: String,
    },
    /// Build a template from its file, in sandboxes
    Build {
        /// The template's file, or the name of one that comes with Belljar: base, code-interpreter, code-interpreter-light or -full
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Directory with packages on the server's machine, which templates/mirror.sh of Belljar's repository fills
        #[arg(long, value_name = "DIR")]
        mirror: Option<PathBuf>,
        /// Another name than in the file
        #[arg(long)]
        name: Option<String>,
        /// Run all steps, including those with a cached result
        #[arg(long)]
        fresh: bool,
        /// How to show progress; auto is tty on a terminal, else plain, with the steps' whole output
        #[arg(long, value_name = "STYLE", value_enum, default_value_t)]
        progress: ProgressStyle,
    },
    /// List builds: those that run or wait, and the last that have ended
    Builds,
    /// Follow a build from its beginning; Ctrl-C leaves it running
    Attach {
        /// The build's id
        build: String,
        /// How to show progress, as for build
        #[arg(long, value_name = "STYLE", value_enum, default_value_t)]
        progress: ProgressStyle,
    },
    /// Cancel a build; steps that have ended stay cached
    Cancel {
        /// The build's id
        build: String,
    },
    /// Write a built template into one file
    Export {
        /// Id or name
        template: String,
        /// The file; - is standard output
        file: PathBuf,
    },
    /// Import a template from an exported file
    Import {
        /// The file; - is standard input
        file: PathBuf,
        /// Another name than in the file
        #[arg(long)]
        name: Option<String>,
    },
    /// Remove a template; sandboxes that use it keep running
    Rm {
        /// Id or name
        template: String,
    },
}
