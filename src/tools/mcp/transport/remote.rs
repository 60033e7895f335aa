//! Connects to a server over HTTP, by Streamable HTTP or SSE.
//!
//! If the entry does not set the transport, Streamable HTTP is tried first. A server that answers 400, 404 or 405 may support SSE, as the
//! protocol describes under "Backwards Compatibility". The transport that worked is tried first the next time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use reqwest::Url;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::RoleClient;
use rmcp::service::{ClientInitializeError, ClientLifecycleMode, RunningService, serve_client_with_lifecycle_and_ct};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::{StreamableHttpClientTransportConfig, StreamableHttpError};
use secrecy::{ExposeSecret as _, SecretString};
use tokio_util::sync::CancellationToken;

use crate::support::net::egress::{self, EgressScope};
use crate::support::net::http;
use crate::support::redact;
use crate::tools::mcp::calls::request_effect::status_of;
use crate::tools::mcp::config::HttpStyle;
use crate::tools::mcp::errors::error_chain_without_urls;
use crate::tools::mcp::oauth::{AuthState, AuthorizedClient};
use crate::tools::mcp::process::ExitReport;
use crate::tools::mcp::transport::controlled_transport::ControlledTransport;
use crate::tools::mcp::transport::ending::Ending;
use crate::tools::mcp::transport::endpoint::{Endpoint, OpenError};
use crate::tools::mcp::transport::flood_limits::UnparsedOutput;
use crate::tools::mcp::transport::handler::Handler;
use crate::tools::mcp::transport::http_status;
use crate::tools::mcp::transport::sse::SseTransport;

const CONNECT_LIMIT: Duration = Duration::from_secs(10);

type InitializedSession = (RunningService<RoleClient, Handler>, Ending);

pub struct Remote<'a> {
    server: Endpoint<'a>,
    url: Url,
    client: AuthorizedClient,
    headers: HashMap<HeaderName, HeaderValue>,
}

enum ConnectError {
    /// The stream of the SSE transport could not be opened.
    Closed(StreamableHttpError<reqwest::Error>),
    Greeting(Box<ClientInitializeError>),
}

impl<'a> Remote<'a> {
    pub fn new(
        url: &str,
        headers: &BTreeMap<String, SecretString>,
        egress: EgressScope,
        server: Endpoint<'a>,
    ) -> Result<Self, String> {
        let mut custom = HashMap::new();
        for (name, value) in headers {
            let header = HeaderName::try_from(name.as_str()).map_err(|_| format!("headers.{name} is not a valid header name"))?;
            let value = HeaderValue::from_str(value.expose_secret());
            let mut value = value.map_err(|_| format!("headers.{name} has an invalid value"))?;
            value.set_sensitive(true);
            custom.insert(header, value);
        }
        let parsed_url = Url::parse(url).map_err(|error| format!("url: {error}"))?;
        egress::check(&parsed_url, egress).map_err(|error| format!("url: {error}"))?;
        let client = http_status::prepare_client(egress::with_egress_check(http::client_for(url), egress), &parsed_url)
            .redirect(http::redirects_within_origin())
            .connect_timeout(CONNECT_LIMIT)
            .build()
            .map_err(|error| redact::error_text(&http::chain_without_url(error)))?;
        Ok(Self { server, url: parsed_url, client: AuthorizedClient::new(client, server.login.cloned()), headers: custom })
    }

    pub async fn initialize(
        &self,
        style: HttpStyle,
        lifecycle: ClientLifecycleMode,
        handler: &Handler,
        token: CancellationToken,
    ) -> Result<InitializedSession, OpenError> {
        let uses_sse = self.server.uses_sse;
        let greeted = match style {
            HttpStyle::Sse => self.sse(lifecycle, handler, token).await,
            HttpStyle::Streamable => self.streamable(lifecycle, handler, token).await,
            HttpStyle::Either if uses_sse.load(Ordering::SeqCst) => {
                let greeted = self.sse(lifecycle, handler, token).await;
                // The server may support the newer transport by now.
                uses_sse.store(greeted.is_ok(), Ordering::SeqCst);
                greeted
            }
            HttpStyle::Either => match self.streamable(lifecycle.clone(), handler, token.clone()).await {
                Err(error) if may_be_old(&error) => {
                    let greeted = self.sse(lifecycle, handler, token).await.map_err(|_| error);
                    uses_sse.store(greeted.is_ok(), Ordering::SeqCst);
                    greeted
                }
                greeted => greeted,
            },
        };
        greeted.map_err(|error| self.open_error(error))
    }

    async fn streamable(
        &self,
        lifecycle: ClientLifecycleMode,
        handler: &Handler,
        token: CancellationToken,
    ) -> Result<InitializedSession, ConnectError> {
        // A new session may belong to another server behind the same URL, so its tools are checked before a call is sent again.
        let config = StreamableHttpClientTransportConfig::with_uri(self.url.as_str());
        let config = config.custom_headers(self.headers.clone()).reinit_on_expired_session(false);
        let transport = StreamableHttpClientTransport::with_client(self.client.clone(), config);
        let transport = ControlledTransport::new(transport, self.server.name, Arc::clone(&handler.subscriptions));
        let greeted = serve_client_with_lifecycle_and_ct(handler.clone(), transport, lifecycle, token).await;
        Ok((greeted.map_err(|error| ConnectError::Greeting(Box::new(error)))?, Ending::default()))
    }

    async fn sse(
        &self,
        lifecycle: ClientLifecycleMode,
        handler: &Handler,
        token: CancellationToken,
    ) -> Result<InitializedSession, ConnectError> {
        let noise = UnparsedOutput::new(self.server.name, &self.server.config.redactor);
        let opened = SseTransport::open(self.client.clone(), &self.url, self.headers.clone(), noise).await;
        let transport = opened.map_err(ConnectError::Closed)?;
        let ending = transport.ending.clone();
        let transport = ControlledTransport::new(transport, self.server.name, Arc::clone(&handler.subscriptions));
        let greeted = serve_client_with_lifecycle_and_ct(handler.clone(), transport, lifecycle, token).await;
        Ok((greeted.map_err(|error| ConnectError::Greeting(Box::new(error)))?, ending))
    }

    fn open_error(&self, error: ConnectError) -> OpenError {
        let redactor = &self.server.config.redactor;
        match (self.server.login.filter(|login| login.state() == AuthState::Needed), error) {
            (Some(login), _) => OpenError::Other(login.login_hint().into()),
            (None, ConnectError::Greeting(error)) => OpenError::new(*error, redactor, ExitReport::default()),
            (None, ConnectError::Closed(error)) => OpenError::Other(redactor.error_text(&error_chain_without_urls(&error)).into()),
        }
    }
}

/// Returns whether a server has refused Streamable HTTP like one that does not support it.
fn may_be_old(error: &ConnectError) -> bool {
    let ConnectError::Greeting(error) = error else { return false };
    let ClientInitializeError::TransportError { error, .. } = &**error else { return false };
    match error.error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
        Some(StreamableHttpError::UnexpectedServerResponse(message)) => matches!(status_of(message), Some(400 | 404 | 405)),
        _ => false,
    }
}
