//! Walls of the service that a test takes away, to see that the attack on them then succeeds.

macro_rules! walls {
    ($($variant:ident $name:literal $doc:literal,)*) => {
        /// A wall of the service. All of them stand, unless a test takes some away: `BELLJAR_TEST_WITHOUT` then lists them, as
        /// `service:` and the name. Without the feature `mutation` nothing can.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ServiceWall {
            $(#[doc = $doc] $variant,)*
        }

        #[cfg(feature = "mutation")]
        impl ServiceWall {
            fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

walls! {
    AnswerBound "answer-bound" "Of an output little is kept for requests that come again.",
    BodyBounds "body-bounds" "Bodies are bounded.",
    DenialBound "denial-bound" "Wrong keys are recorded by address, of a bounded number of addresses.",
    Descriptors "descriptors" "Half of the process's descriptors are not for connections.",
    E2bExpiry "e2b-expiry" "Addresses that E2B's clients sign end with their time.",
    E2bSignature "e2b-signature" "Addresses that E2B's clients sign are vouched for.",
    Engines "engines" "Only the engines that are offered make sandboxes.",
    EvictIdle "evict-idle" "The longest idle connection makes room for another.",
    FairShares "fair-shares" "Sandboxes of one tenant weigh together as one of another.",
    FairQueue "fair-queue" "Who waits most gives way.",
    HeadRoom "head-room" "Some of the machine is nobody's.",
    Hosts "hosts" "The server answers to its own names only.",
    Idempotency "idempotency" "A request with a key is carried out once.",
    Keys "keys" "Callers have keys.",
    MessageBounds "message-bounds" "Messages of WebSockets are bounded.",
    Origins "origins" "Pages of other origins cannot use the server.",
    OutputFiles "output-files" "Long outputs are in files.",
    Policy "policy" "What only administrators may ask for is refused to others.",
    PortForm "port-form" "A port has one form.",
    PublishedPorts "published-ports" "Only published ports are reached.",
    RefusalBound "refusal-bound" "Refusals are recorded up to a number each minute.",
    Reserve "reserve" "Some of the disk is set aside for ending things.",
    RevokedStreams "revoked-streams" "Open streams end with their key.",
    Roles "roles" "An operation needs a role.",
    Sealing "sealing" "What may be secret is sealed in the store.",
    SealingPlace "sealing-place" "What is sealed opens in its own place only.",
    SlowBodies "slow-bodies" "Bodies come at a pace.",
    SlowHeads "slow-heads" "Heads of requests come in time.",
    Tenants "tenants" "A tenant sees its own only.",
    TokenMac "token-mac" "Tokens are vouched for.",
    TokenScope "token-scope" "A sandbox's token opens that sandbox only.",
}

impl ServiceWall {
    /// Whether what this wall decides about goes on: it is `allowed`, or the wall is down.
    #[must_use]
    pub fn allows(self, allowed: bool) -> bool {
        allowed || self.is_down()
    }

    /// Whether a test has taken it away.
    #[cfg(feature = "mutation")]
    #[must_use]
    pub fn is_down(self) -> bool {
        static DOWN: std::sync::OnceLock<Vec<ServiceWall>> = std::sync::OnceLock::new();
        let down = DOWN.get_or_init(|| {
            let text = std::env::var("BELLJAR_TEST_WITHOUT").unwrap_or_default();
            let names = text.split(',').filter_map(|name| name.strip_prefix("service:"));
            // A test that takes nothing away would show nothing.
            let wall =
                |name| Self::from_name(name).unwrap_or_else(|| panic!("{name} is no wall of the service"));
            names.map(wall).collect()
        });
        down.contains(&self)
    }

    /// Whether a test has taken it away, which is not possible here.
    #[cfg(not(feature = "mutation"))]
    #[must_use]
    pub const fn is_down(self) -> bool {
        false
    }
}
