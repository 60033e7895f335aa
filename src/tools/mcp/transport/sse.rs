//! The SSE transport of the protocol's first revision: an event stream from the server, and a POST for each message to it.
//!
//! The library has dropped it, but many servers have no other. The first event contains the endpoint for messages. It must have the origin
//! of the stream, or else a server could redirect our credentials.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use reqwest::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use reqwest::{StatusCode, Url};
use rmcp::RoleClient;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::common::client_side_sse::BoxedSseResponse;
use rmcp::transport::streamable_http_client::{AuthRequiredError, StreamableHttpClient as _, StreamableHttpError};

use crate::tools::mcp::errors::error_chain_without_urls;
use crate::tools::mcp::oauth::AuthorizedClient;
use crate::tools::mcp::transport::ending::Ending;
use crate::tools::mcp::transport::flood_limits::UnparsedOutput;

/// How long a server may take to send its endpoint.
const ENDPOINT_LIMIT: Duration = Duration::from_secs(15);
/// How long it may take to accept a message, which it processes later.
const POST_LIMIT: Duration = Duration::from_secs(30);
/// The largest message, in bytes.
const MAX_EVENT: usize = 16 * 1024 * 1024;

type Failure = StreamableHttpError<reqwest::Error>;

pub struct SseTransport {
    client: AuthorizedClient,
    headers: HashMap<HeaderName, HeaderValue>,
    messages: Url,
    events: Option<BoxedSseResponse>,
    noise: UnparsedOutput,
    pub ending: Ending,
}

impl SseTransport {
    /// Opens the stream at `url`, and waits for the endpoint.
    pub async fn open(
        client: AuthorizedClient,
        url: &Url,
        headers: HashMap<HeaderName, HeaderValue>,
        noise: UnparsedOutput,
    ) -> Result<Self, Failure> {
        let uri: Arc<str> = url.as_str().into();
        let opened = async {
            let opened = client.get_stream_with_max_sse_event_size(uri, None, None, None, headers.clone(), MAX_EVENT).await;
            let mut events = opened?;
            while let Some(event) = events.next().await {
                let event = event?;
                if event.event.as_deref() == Some("endpoint") {
                    let messages = endpoint(url, event.data.as_deref().unwrap_or_default()).map_err(unexpected)?;
                    return Ok((messages, events));
                }
            }
            Err(unexpected("the event stream ended before the event with the endpoint".to_owned()))
        };
        let late = |_| Err(unexpected(format!("the event stream sent no endpoint within {ENDPOINT_LIMIT:?}")));
        let (messages, events) = tokio::time::timeout(ENDPOINT_LIMIT, opened).await.unwrap_or_else(late)?;
        Ok(Self { client, headers, messages, events: Some(events), noise, ending: Ending::default() })
    }
}

fn endpoint(stream: &Url, named: &str) -> Result<Url, String> {
    let messages = stream.join(named.trim()).map_err(|_| "the endpoint in the event stream is not a URL".to_owned())?;
    if messages.origin() != stream.origin() || !messages.username().is_empty() || messages.password().is_some() {
        return Err("the endpoint in the event stream has another origin than the stream, so no message is sent to it".to_owned());
    }
    Ok(messages)
}

fn unexpected(why: String) -> Failure {
    StreamableHttpError::UnexpectedServerResponse(why.into())
}

/// Sends one message. Success means that it was accepted, not that it was processed.
async fn post(
    client: &reqwest::Client,
    url: &Url,
    headers: &HashMap<HeaderName, HeaderValue>,
    token: Option<String>,
    body: &[u8],
) -> Result<(), Failure> {
    let mut request = client.post(url.clone()).timeout(POST_LIMIT).header(CONTENT_TYPE, "application/json").body(body.to_vec());
    for (name, value) in headers {
        request = request.header(name, value);
    }
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    let status = request.send().await.map_err(StreamableHttpError::Client)?.status();
    match status {
        status if status.is_success() => Ok(()),
        StatusCode::UNAUTHORIZED => Err(StreamableHttpError::AuthRequired(AuthRequiredError::new("HTTP 401".to_owned()))),
        status => Err(unexpected(format!("HTTP {status}"))),
    }
}

impl Transport<RoleClient> for SseTransport {
    type Error = Failure;

    fn send(&mut self, message: TxJsonRpcMessage<RoleClient>) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
        let (client, url, headers) = (self.client.clone(), self.messages.clone(), self.headers.clone());
        async move {
            let body = serde_json::to_vec(&message)?;
            client.with_token(|token| post(&client.client, &url, &headers, token, &body)).await
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            let event = match self.events.as_mut()?.next().await {
                Some(Ok(event)) => event,
                Some(Err(error)) => {
                    self.ending.end(format!("its event stream was cut off: {}", error_chain_without_urls(&error)));
                    return None;
                }
                None => {
                    self.ending.end("it ended its event stream".to_owned());
                    return None;
                }
            };
            // Events without a name are messages. No revision defines other names.
            let is_message = event.event.as_deref().is_none_or(|name| name == "message");
            let Some(data) = event.data.filter(|_| is_message) else { continue };
            if let ControlFlow::Break(message) = self.noise.inspect_line(data.as_bytes(), &self.ending) {
                return message;
            }
        }
    }

    async fn close(&mut self) -> Result<(), Failure> {
        self.events = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("/message?sessionId=1", Some("https://h:8/message?sessionId=1"))]
    #[case("message", Some("https://h:8/a/message"))]
    #[case("https://h:8/x", Some("https://h:8/x"))]
    #[case("//evil/x", None)]
    #[case("https://h/x", None)]
    #[case("http://h:8/x", None)]
    #[case("https://user:pw@h:8/x", None)]
    #[case("javascript:alert(1)", None)]
    fn messages_go_to_where_the_stream_is(#[case] named: &str, #[case] expected: Option<&str>) {
        let found = endpoint(&Url::parse("https://h:8/a/sse").unwrap(), named);
        assert_eq!(found.ok().as_ref().map(Url::as_str), expected);
    }
}
