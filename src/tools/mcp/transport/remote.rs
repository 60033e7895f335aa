//! Connects to a server over HTTP, by Streamable HTTP or SSE.
//!
//! If the entry does not name the transport, Streamable HTTP is tried first. A server that answers 400, 404 or 405 may know SSE, as the
//! protocol says under "Backwards Compatibility". The transport that worked is tried first the next time.

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

use crate::support::net::http;
use crate::support::net::outbound::{self, Reach};
use crate::support::redact;
use crate::tools::mcp::calls::fates::status_of;
use crate::tools::mcp::config::HttpStyle;
use crate::tools::mcp::errors::chain;
use crate::tools::mcp::oauth::{AuthState, Authorized};
use crate::tools::mcp::process::LastWords;
use crate::tools::mcp::transport::attentive::Attentive;
use crate::tools::mcp::transport::endpoint::{Endpoint, OpenError};
use crate::tools::mcp::transport::handler::Handler;
use crate::tools::mcp::transport::sse::SseTransport;
use crate::tools::mcp::transport::statuses;
use crate::tools::mcp::transport::stdio::{Ending, Noise};

const CONNECT_LIMIT: Duration = Duration::from_secs(10);

type Greeted = (RunningService<RoleClient, Handler>, Ending);

pub struct Remote<'a> {
    server: Endpoint<'a>,
    url: Url,
    client: Authorized,
    headers: HashMap<HeaderName, HeaderValue>,
}

enum Unfit {
    /// The stream of the SSE transport could not be opened.
    Closed(StreamableHttpError<reqwest::Error>),
    Greeting(Box<ClientInitializeError>),
}

impl<'a> Remote<'a> {
    pub fn new(url: &str, headers: &BTreeMap<String, SecretString>, reach: Reach, server: Endpoint<'a>) -> Result<Self, String> {
        let mut custom = HashMap::new();
        for (name, value) in headers {
            let header = HeaderName::try_from(name.as_str()).map_err(|_| format!("headers.{name} is no valid header name"))?;
            let value = HeaderValue::from_str(value.expose_secret());
            let mut value = value.map_err(|_| format!("headers.{name} has an invalid value"))?;
            value.set_sensitive(true);
            custom.insert(header, value);
        }
        let place = Url::parse(url).map_err(|error| format!("url: {error}"))?;
        outbound::check(&place, reach).map_err(|error| format!("url: {error}"))?;
        // A redirect could send the headers, which often are credentials, to another server.
        let client = statuses::noted(outbound::guarded(http::client_for(url), reach), &place)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_LIMIT)
            .build()
            .map_err(|error| redact::error_text(&error.without_url().to_string()))?;
        Ok(Self { server, url: place, client: Authorized::new(client, server.login.cloned()), headers: custom })
    }

    pub async fn greet(
        &self,
        style: HttpStyle,
        lifecycle: ClientLifecycleMode,
        handler: &Handler,
        token: CancellationToken,
    ) -> Result<Greeted, OpenError> {
        let is_old = self.server.is_old;
        let greeted = match style {
            HttpStyle::Sse => self.sse(lifecycle, handler, token).await,
            HttpStyle::Streamable => self.streamable(lifecycle, handler, token).await,
            HttpStyle::Either if is_old.load(Ordering::SeqCst) => {
                let greeted = self.sse(lifecycle, handler, token).await;
                // The server may know the newer transport by now.
                is_old.store(greeted.is_ok(), Ordering::SeqCst);
                greeted
            }
            HttpStyle::Either => match self.streamable(lifecycle.clone(), handler, token.clone()).await {
                Err(error) if may_be_old(&error) => {
                    let greeted = self.sse(lifecycle, handler, token).await.map_err(|_| error);
                    is_old.store(greeted.is_ok(), Ordering::SeqCst);
                    greeted
                }
                greeted => greeted,
            },
        };
        greeted.map_err(|error| self.told(error))
    }

    async fn streamable(
        &self,
        lifecycle: ClientLifecycleMode,
        handler: &Handler,
        token: CancellationToken,
    ) -> Result<Greeted, Unfit> {
        // A new session may belong to another server behind the same URL, so its tools are checked before a call is sent again.
        let config = StreamableHttpClientTransportConfig::with_uri(self.url.as_str());
        let config = config.custom_headers(self.headers.clone()).reinit_on_expired_session(false);
        let transport = StreamableHttpClientTransport::with_client(self.client.clone(), config);
        let transport = Attentive::new(transport, self.server.name, Arc::clone(&handler.heard));
        let greeted = serve_client_with_lifecycle_and_ct(handler.clone(), transport, lifecycle, token).await;
        Ok((greeted.map_err(|error| Unfit::Greeting(Box::new(error)))?, Ending::default()))
    }

    async fn sse(&self, lifecycle: ClientLifecycleMode, handler: &Handler, token: CancellationToken) -> Result<Greeted, Unfit> {
        let noise = Noise::new(self.server.name, &self.server.config.masks);
        let opened = SseTransport::open(self.client.clone(), &self.url, self.headers.clone(), noise).await;
        let transport = opened.map_err(Unfit::Closed)?;
        let ending = transport.ending.clone();
        let transport = Attentive::new(transport, self.server.name, Arc::clone(&handler.heard));
        let greeted = serve_client_with_lifecycle_and_ct(handler.clone(), transport, lifecycle, token).await;
        Ok((greeted.map_err(|error| Unfit::Greeting(Box::new(error)))?, ending))
    }

    fn told(&self, error: Unfit) -> OpenError {
        let masks = &self.server.config.masks;
        match (self.server.login.filter(|login| login.state() == AuthState::Needed), error) {
            (Some(login), _) => OpenError::Other(login.wanted().into()),
            (None, Unfit::Greeting(error)) => OpenError::new(*error, masks, LastWords::default()),
            (None, Unfit::Closed(error)) => OpenError::Other(masks.error_text(&chain(&error)).into()),
        }
    }
}

/// Whether a server has refused Streamable HTTP as one that does not know it.
fn may_be_old(error: &Unfit) -> bool {
    let Unfit::Greeting(error) = error else { return false };
    let ClientInitializeError::TransportError { error, .. } = &**error else { return false };
    match error.error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
        Some(StreamableHttpError::UnexpectedServerResponse(said)) => matches!(status_of(said), Some(400 | 404 | 405)),
        _ => false,
    }
}
