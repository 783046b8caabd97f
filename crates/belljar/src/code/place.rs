//! The sandbox that code runs in: one of a server, or one that this command creates itself.

use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::time::Duration;

use belljar_api::limits_message;
use belljar_client::v1::{CreateSandboxRequest, KillSandboxRequest, UpdateSandboxRequest};
use belljar_client::{MessageField, well_known};
use belljar_engine::v1::WriteOpen;
use belljar_engine::{CreateRequest, Engine, GuestClient, Sandbox, Usage};
use belljar_model::{EngineName, ImageReference, Language, NetworkPolicy, SandboxSpec, Timeout};
use bytes::Bytes;

use super::{CodeArgs, ServerArgs};
use crate::cli::{RunArgs, SandboxArgs};
use crate::files::Inputs;
use crate::limits::RunLimits;
use crate::message::{Quit, say};
use crate::net::policy_message;
use crate::packages::Packages;
use crate::progress::{Progress, STARTING};
use crate::run::{create, server_image, wait_for_creation};
use crate::service::copy::most_bytes;
use crate::service::image::start_from;
use crate::service::link::{Link, is_missing};
use crate::service::values;
use crate::signals::Signals;
use crate::spec::{UncheckedSpec, weaker_grade};

/// Default lifetime of a session's sandbox.
const LIFE: &str = "1h";

/// Minimum lifetime of a sandbox for given code: the same.
const MIN_LIFE: Duration = Duration::from_secs(3600);

/// Packages to install in a new sandbox, and the policy of its network from then on.
pub(super) struct Installation {
    packages: Packages,
    network: NetworkPolicy,
    quiet: bool,
}

/// A validated request for a place.
pub(super) enum PlaceRequest {
    /// An existing sandbox of a server.
    Existing { server: ServerArgs, sandbox: String },
    /// A new sandbox of a server.
    Server { server: ServerArgs, image: Option<ImageReference>, request: Box<CreateSandboxRequest> },
    /// A sandbox without a server.
    Embedded { engine: Arc<dyn Engine>, spec: Box<SandboxSpec>, quiet: bool },
}

/// A sandbox that code runs in.
pub(super) enum Place {
    Server {
        link: Box<Link>,
        guest: Box<GuestClient>,
        sandbox: String,
        made: bool,
        may_wait: bool,
        most: u64,
    },
    Embedded {
        sandbox: Box<Sandbox>,
        most: u64,
    },
}

/// Returns the request for a server's sandbox with these flags. Those that need the command to create the sandbox itself are refused,
/// and so are `alone`, each with whether it is given.
pub(crate) fn server_request(
    sandbox: &SandboxArgs,
    cause: &str,
    alone: &[(&str, bool)],
) -> Result<CreateSandboxRequest, Quit> {
    let own = [
        ("hostname", sandbox.hostname.is_some()),
        ("spec", sandbox.spec.is_some()),
        ("policy", sandbox.policy.is_some()),
    ];
    if let Some((flag, _)) = own.iter().chain(alone).find(|(_, is_given)| *is_given) {
        let text = match cause {
            "--rich" => "with --rich it needs --engine, which does without a server".to_owned(),
            _ => format!("with {cause} the sandbox is one of a server; leave it out"),
        };
        return Err(Quit::Usage(format!("--{flag}: {text}")));
    }
    Ok(CreateSandboxRequest {
        grade: sandbox.limits.clone().unwrap_or_default(),
        env: values::variables("env", &sandbox.env)?.into_iter().collect(),
        limits: limits_message(&sandbox.resources.file()?),
        network_policy: sandbox.net.message()?.map_or_else(Default::default, Into::into),
        mounts: sandbox.mounts.clone(),
        ..Default::default()
    })
}

impl PlaceRequest {
    pub(super) fn from_code_args(args: &CodeArgs) -> Result<Self, Quit> {
        let server = args.server.clone();
        let new = &args.new;
        if let Some(engine) = &args.engine {
            let sandbox = SandboxArgs {
                engine: Some(engine.clone()),
                resources: RunLimits::new(|limit| new.limits.get(limit.name).map(str::to_owned)),
                net: new.net.clone(),
                mounts: new.mounts.clone(),
                env: new.env.clone(),
                quiet: args.server.quiet,
                ..SandboxArgs::default()
            };
            let life = Timeout::new(MIN_LIFE)?;
            return Ok(Self::embedded(&sandbox, args.image.as_ref(), None, life, Packages::default())?.0);
        }
        if let Some(sandbox) = &args.sandbox {
            if !new.limits.is_empty() || new.net.file()?.is_some() {
                let text = "--sandbox: an existing sandbox has its limits and its network; change them with belljar sandbox set \
                            and belljar sandbox net";
                return Err(Quit::Usage(text.to_owned()));
            }
            return Ok(Self::Existing { server, sandbox: sandbox.clone() });
        }
        let request = CreateSandboxRequest {
            template: args.template.clone().unwrap_or_default(),
            timeout: values::span("life", Some(args.life.as_deref().unwrap_or(LIFE)))?,
            env: values::variables("env", &new.env)?.into_iter().collect(),
            limits: limits_message(&new.limits.file()?),
            network_policy: new.net.message()?.map_or_else(Default::default, Into::into),
            mounts: new.mounts.clone(),
            volumes: values::volumes(&new.volumes)?,
            ..Default::default()
        };
        Ok(Self::Server { server, image: args.image.clone(), request: Box::new(request) })
    }

    /// Returns the request for a new sandbox, and what is installed in it. `life` is the time that the code may take.
    pub(super) fn from_run_args(
        args: &RunArgs,
        language: &Language,
        life: Duration,
        packages: Packages,
    ) -> Result<(Self, Installation), Quit> {
        let sandbox = &args.sandbox;
        let life = Timeout::new(life.clamp(MIN_LIFE, Timeout::MAX.duration()))?;
        if sandbox.engine.is_some() {
            return Self::embedded(sandbox, args.image.as_ref(), Some(language), life, packages);
        }
        packages.check_network(sandbox.net.net.as_deref())?;
        let network = sandbox.net.policy()?;
        let log = [("log", sandbox.resources.get("log").is_some())];
        let mut request = CreateSandboxRequest {
            template: args.template.clone().unwrap_or_default(),
            timeout: MessageField::some(well_known::Duration::from(life.duration())),
            ..server_request(sandbox, "--rich", &log)?
        };
        let opened = packages.widen(&network);
        if opened != network {
            request.network_policy = policy_message((&opened).into()).into();
        }
        let server = ServerArgs::new(sandbox.quiet);
        let installation = Installation { packages, network, quiet: sandbox.quiet };
        Ok((Self::Server { server, image: args.image.clone(), request: Box::new(request) }, installation))
    }

    fn embedded(
        args: &SandboxArgs,
        image: Option<&ImageReference>,
        language: Option<&Language>,
        life: Timeout,
        packages: Packages,
    ) -> Result<(Self, Installation), Quit> {
        let mut unchecked = UncheckedSpec::from_args(args)?;
        server_image(&mut unchecked, args, image)?;
        packages.check_network(unchecked.network_mode())?;
        if !packages.is_empty() {
            unchecked.set_needs_network();
        }
        // The time limit applies to one execution; the sandbox lives as long as this command.
        unchecked.set_timeout(life);
        let checked = unchecked.resolve(language, args.policy.as_deref())?;
        let engine = checked.engine();
        let mut spec = Box::new(checked.spec);
        let network = spec.network.clone();
        spec.network = packages.widen(&network);
        let installation = Installation { packages, network, quiet: args.quiet };
        Ok((Self::Embedded { engine, spec, quiet: args.quiet }, installation))
    }
}

impl Place {
    /// Opens the place, and copies files into it. If that fails, a sandbox that was created for it is removed.
    pub(super) async fn open(
        request: PlaceRequest,
        installation: Option<Installation>,
        files: Inputs,
        signals: &mut Signals,
    ) -> Result<Self, Quit> {
        let mut memory = None;
        let place = match request {
            PlaceRequest::Existing { server, sandbox } => {
                let link = Link::open(&server).await?;
                let guest = link.guest(&sandbox)?;
                let may_wait = link.may_wait().await?;
                // Nothing is brought out of one that is kept.
                Self::Server {
                    link: Box::new(link),
                    guest: Box::new(guest),
                    sandbox,
                    made: false,
                    may_wait,
                    most: 0,
                }
            }
            PlaceRequest::Server { server, image, mut request } => {
                let link = Link::open(&server).await?;
                start_from(&link, image.as_ref(), &mut request).await?;
                let may_wait = link.may_wait().await?;
                let made = link.create(*request).await?;
                let info = made.sandbox.into_option().unwrap_or_default();
                memory = info.limits.as_option().and_then(|limits| limits.memory_bytes);
                let most = most_bytes(&info);
                let sandbox = info.id;
                let guest = link.guest(&sandbox)?;
                Self::Server {
                    link: Box::new(link),
                    guest: Box::new(guest),
                    sandbox,
                    made: true,
                    may_wait,
                    most,
                }
            }
            PlaceRequest::Embedded { engine, spec, quiet } => {
                memory = (spec.engine == EngineName::LOCAL).then(|| spec.limits.memory.bytes());
                let most = spec.limits.disk.bytes().max(spec.limits.tmp.bytes());
                let progress = Progress::new(STARTING, quiet);
                let sandbox =
                    wait_for_creation(create(&*engine, CreateRequest::run(&spec)), signals, &progress).await;
                progress.clear();
                let sandbox = sandbox?;
                if let Some(warning) = weaker_grade(sandbox.isolation.grade).filter(|_| !quiet) {
                    say(warning);
                }
                Self::Embedded { sandbox: Box::new(sandbox), most }
            }
        };
        let prepared = async {
            memory.map_or(Ok(()), |memory| files.check_size(memory))?;
            if let Some(installation) = installation {
                place.install(&installation, signals).await?;
            }
            upload(place.guest(), files).await
        };
        match prepared.await {
            Ok(()) => Ok(place),
            Err(error) => match place.end(Err(error)).await {
                Err(quit) => Err(quit),
                Ok(status) => Err(Quit::Status(status)),
            },
        }
    }

    /// Installs packages, and then closes the network to what its policy allows.
    async fn install(&self, installation: &Installation, signals: &mut Signals) -> Result<(), Quit> {
        let Installation { packages, network, quiet } = installation;
        if packages.is_empty() {
            return Ok(());
        }
        if let Some(remark) = packages.remark(network).filter(|_| !quiet) {
            say(&remark);
        }
        let installing = async {
            // An interpreter with contexts finds packages in the home directory itself.
            packages.install(self.guest()).await?;
            if packages.widen(network) == *network {
                return Ok(());
            }
            match self {
                Self::Embedded { sandbox, .. } => sandbox.set_network(network).await?,
                Self::Server { link, sandbox, .. } => {
                    let request = UpdateSandboxRequest {
                        sandbox: sandbox.clone(),
                        network_policy: policy_message(network.into()).into(),
                        ..Default::default()
                    };
                    link.client.update(request).await?;
                }
            }
            Ok(())
        };
        let progress = Progress::new(packages.progress(), *quiet);
        let done = wait_for_creation(installing, signals, &progress).await;
        progress.clear();
        done
    }

    /// Returns the guest of the sandbox.
    pub(super) fn guest(&self) -> &GuestClient {
        match self {
            Self::Server { guest, .. } => guest,
            Self::Embedded { sandbox, .. } => sandbox.guest(),
        }
    }

    /// Returns the maximum size of what comes out of a new sandbox, in bytes.
    pub(super) const fn most_bytes(&self) -> u64 {
        match self {
            Self::Server { most, .. } | Self::Embedded { most, .. } => *most,
        }
    }

    /// Reports whether code may ask for input while it runs: an approval, for which a call may have to wait, covers none.
    pub(super) fn allows_input(&self) -> bool {
        !matches!(self, Self::Server { may_wait: true, .. })
    }

    /// Returns the usage of an embedded sandbox. A server measures its own.
    pub(super) async fn usage(&self) -> Usage {
        match self {
            Self::Server { .. } => Usage::default(),
            Self::Embedded { sandbox, .. } => sandbox.usage().await,
        }
    }

    /// Ends a sandbox that was created for this command, and returns the command's result.
    pub(super) async fn end(self, done: Result<u8, Quit>) -> Result<u8, Quit> {
        match self {
            Self::Embedded { sandbox, .. } => {
                let stopped = sandbox.stop().await;
                let status = done?;
                stopped?;
                Ok(status)
            }
            Self::Server { link, sandbox, made, .. } => {
                let ended = if made {
                    let request = KillSandboxRequest { sandbox, ..Default::default() };
                    link.client.kill(request).await.map(drop)
                } else {
                    Ok(())
                };
                let status = done.map_err(|quit| link.explain(quit))?;
                match ended {
                    Err(error) if !is_missing(&error) => Err(error.into()),
                    _ => Ok(status),
                }
            }
        }
    }
}

async fn upload(guest: &GuestClient, mut files: Inputs) -> Result<(), Quit> {
    files.prepare(guest).await?;
    for file in files.into_files() {
        let open = WriteOpen {
            path: Bytes::copy_from_slice(file.target.as_os_str().as_bytes()),
            mode: file.mode,
            make_parents: true,
            ..Default::default()
        };
        guest.write_from(open, file.content).await?;
    }
    Ok(())
}
