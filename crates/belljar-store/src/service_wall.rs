//! Protections of the service that a test can disable, to show that the attack on them then succeeds.

macro_rules! walls {
    ($($variant:ident $name:literal $doc:literal,)*) => {
        /// Protection of the service. All are active unless a test disables some: `BELLJAR_TEST_WITHOUT` then lists them, as
        /// `service:` and the name. Without the feature `mutation` none can be disabled.
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
    AnswerBound "answer-bound" "Stored answers to repeatable requests hold only a bounded part of an output.",
    BodyBounds "body-bounds" "Request bodies are bounded.",
    DenialBound "denial-bound" "Wrong keys are recorded per address, for a bounded number of addresses.",
    CrossSiteRequests "cross-site-requests" "A session's cookie counts only with the token of the page.",
    Descriptors "descriptors" "Half of the process's descriptors are reserved for other uses than connections.",
    E2bExpiry "e2b-expiry" "URLs signed by E2B clients expire.",
    E2bSignature "e2b-signature" "The signatures of URLs signed by E2B clients are verified.",
    Engines "engines" "Only the offered engines create sandboxes.",
    EvictIdle "evict-idle" "The connection that is idle longest is evicted for a new one.",
    FairShares "fair-shares" "All sandboxes of a tenant together weigh as much as those of another.",
    FairQueue "fair-queue" "When the queue is full, the key with the most waiting requests gives way.",
    HeadRoom "head-room" "A part of the machine is kept free.",
    Hosts "hosts" "The server answers to its own host names only.",
    Idempotency "idempotency" "A request with a key is carried out once.",
    Keys "keys" "Callers have keys.",
    MessageBounds "message-bounds" "WebSocket messages are bounded.",
    Origins "origins" "Pages of other origins cannot use the server.",
    OutputFiles "output-files" "Long outputs are spilled to files.",
    Policy "policy" "Requests reserved to administrators are refused to others.",
    PortForm "port-form" "A port number has one accepted spelling.",
    PublishedPorts "published-ports" "Only published ports are reachable.",
    RefusalBound "refusal-bound" "The number of refusals recorded per minute is bounded.",
    Reserve "reserve" "Disk space is reserved for the records of endings.",
    RevokedCalls "revoked-calls" "Calls that wait end with their key, and code calls as its key may now.",
    RevokedStreams "revoked-streams" "Open streams end with their key.",
    Roles "roles" "Operations require a role.",
    Sealing "sealing" "Values that may be secret are sealed in the store.",
    SealingPlace "sealing-place" "Sealed values open in their own place only.",
    SecretScope "secret-scope" "A stored secret is sent to its own hosts only.",
    Shares "shares" "A tenant leaves something of the machine for others.",
    SlowBodies "slow-bodies" "Request bodies must arrive at a minimum rate.",
    SlowHeads "slow-heads" "Request heads must arrive within a timeout.",
    TemplateMakers "template-makers" "A key removes and replaces only the snapshots that it has made.",
    Tenants "tenants" "A tenant sees only its own objects.",
    TokenMac "token-mac" "The MACs of tokens are verified.",
    TokenScope "token-scope" "A sandbox's token opens that sandbox only.",
    UnreadAnswers "unread-answers" "Answers that a key's clients have not read are bounded.",
}

impl ServiceWall {
    /// Reports whether to proceed: `allowed` is true, or the protection is disabled.
    #[must_use]
    pub fn allows(self, allowed: bool) -> bool {
        allowed || self.is_down()
    }

    /// Reports whether a test has disabled this protection.
    #[cfg(feature = "mutation")]
    #[must_use]
    pub fn is_down(self) -> bool {
        static DOWN: std::sync::OnceLock<Vec<ServiceWall>> = std::sync::OnceLock::new();
        let down = DOWN.get_or_init(|| {
            let text = std::env::var("BELLJAR_TEST_WITHOUT").unwrap_or_default();
            let names = text.split(',').filter_map(|name| name.strip_prefix("service:"));
            // A test that disables nothing would show nothing.
            let wall =
                |name| Self::from_name(name).unwrap_or_else(|| panic!("unknown wall of the service: {name}"));
            names.map(wall).collect()
        });
        down.contains(&self)
    }

    /// Always reports false: no test can disable protections without the feature `mutation`.
    #[cfg(not(feature = "mutation"))]
    #[must_use]
    pub const fn is_down(self) -> bool {
        false
    }
}
