//! HTTP client of the OTLP exporter.

use std::pin::Pin;
use std::time::Duration;

use belljar_client::{Roots, TargetError};
use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{HttpClient, HttpError};
use tokio::runtime::Handle;

/// Deadline of one request, including its response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum length of a response, in bytes.
const MAX_RESPONSE_BYTES: usize = 1 << 20;

/// Why no client can be made for a collector.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// The endpoint is not the address of a host.
    #[error("not the address of a host")]
    Address,
    /// The trusted certificates cannot be read.
    #[error(transparent)]
    Roots(#[from] TargetError),
    /// TLS cannot be set up.
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
}

/// Client for one collector. The exporter calls it from threads without a runtime, so it runs requests on the server's.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    client: HyperClient<HttpsConnector<HttpConnector>, Full<Bytes>>,
    runtime: Handle,
}

impl Client {
    /// Makes a client for `endpoint`, which runs its requests on the current runtime.
    ///
    /// # Errors
    /// Fails if `endpoint` has no host, or is `https` and the trusted certificates cannot be read.
    pub(crate) fn new(endpoint: &str) -> Result<Self, ClientError> {
        let uri: Uri = endpoint.parse().map_err(|_| ClientError::Address)?;
        uri.host().ok_or(ClientError::Address)?;
        let roots = if uri.scheme_str() == Some("https") { Roots::system()? } else { Roots::none() };
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let tls = rustls::ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
        let client = HyperClient::builder(TokioExecutor::new()).build(connector);
        Ok(Self { client, runtime: Handle::current() })
    }
}

impl HttpClient for Client {
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let client = self.client.clone();
        let exchange = async move {
            let (head, body) = client.request(request.map(Full::new)).await?.into_parts();
            let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await?;
            Ok(Response::from_parts(head, body.to_bytes()))
        };
        let response = self.runtime.spawn(async { tokio::time::timeout(REQUEST_TIMEOUT, exchange).await });
        Box::pin(async move { response.await?? })
    }
}
