//! Access to private items, for the fuzz targets of `belljar-fuzz`.

use belljar_model::{DomainName, NetworkPolicy, NetworkSetup};
use http::{HeaderMap, Method, Uri, Version};

use crate::config::GatewayConfig;
use crate::gateway::Gateway;
use crate::resolve::Resolver;
use crate::tls::Reader;

/// Returns the answer of a sandbox's resolver to one query under this policy.
pub fn resolve(policy: NetworkPolicy, query: &[u8]) -> Option<Vec<u8>> {
    let config = GatewayConfig {
        policy,
        setup: NetworkSetup::default(),
        authority: None,
        generation: 0,
        user: None,
        fixed_buffers: true,
        #[cfg(feature = "mutation")]
        without: Vec::new(),
    };
    crate::dns::answer(&Gateway::new(&config, Resolver::default(), None), query)
}

/// Parses the server name, if any, of a ClientHello given in pieces; `None` if it is invalid or incomplete.
pub fn server_name<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Option<Option<String>> {
    let mut reader = Reader::default();
    let mut read = pieces.into_iter().map(|piece| reader.read(piece));
    read.find_map(Result::transpose)?.ok().map(|(name, _)| name)
}

/// Reports whether a request is for this host on port 80.
pub fn is_for(method: &Method, uri: &Uri, headers: &HeaderMap, version: Version, name: &DomainName) -> bool {
    crate::web::is_for(method, uri, headers, version, name, 80).is_ok()
}
