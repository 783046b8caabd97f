//! HTTP client of the OTLP exporter.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

use crate::message::chain;

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
    /// Whether the last request failed, of any clone.
    is_failing: Arc<AtomicBool>,
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
        Ok(Self { client, runtime: Handle::current(), is_failing: Arc::default() })
    }

    /// Logs that requests begin to fail, or succeed again.
    fn report(&self, outcome: &Result<Response<Bytes>, HttpError>) {
        let why = match outcome {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(format!("it answered {}", response.status())),
            Err(error) => Some(chain(error.as_ref())),
        };
        match (why, self.is_failing.load(Ordering::Relaxed)) {
            (Some(error), false) => {
                tracing::warn!(
                    error,
                    "the collector of otlp.endpoint takes no traces and log lines; they are lost until it does"
                );
            }
            (None, true) => tracing::info!("the collector of otlp.endpoint takes traces and log lines again"),
            _ => return,
        }
        self.is_failing.fetch_not(Ordering::Relaxed);
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
        let this = self.clone();
        let client = self.client.clone();
        let exchange = async move {
            let (head, body) = client.request(request.map(Full::new)).await?.into_parts();
            let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await?;
            Ok::<_, HttpError>(Response::from_parts(head, body.to_bytes()))
        };
        let response = self.runtime.spawn(async move {
            let outcome =
                tokio::time::timeout(REQUEST_TIMEOUT, exchange).await.unwrap_or_else(|late| Err(late.into()));
            this.report(&outcome);
            outcome
        });
        Box::pin(async move { response.await? })
    }
}
