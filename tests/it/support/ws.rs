//! A client of the WebSocket.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// An open socket.
pub struct WsClient {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    next_id: u64,
    /// Event envelopes that came while an answer was awaited.
    early: std::collections::VecDeque<String>,
}

/// An item from the socket.
#[derive(Debug, Clone, PartialEq)]
pub enum Incoming {
    /// A text frame, as it stood.
    Text(String),
    /// The server closed the socket, with its code.
    Closed(Option<u16>),
    /// The connection broke.
    Broken,
}

impl WsClient {
    /// Connects to `ws://.../api/v1/ws` of a server and checks that the subprotocol is echoed.
    pub async fn connect(server_url: &str, token: Option<&str>) -> Self {
        Self::connect_with(server_url, "", token).await
    }

    /// The same with a query.
    pub async fn connect_with(server_url: &str, query: &str, token: Option<&str>) -> Self {
        let mut request = format!("{}/api/v1/ws{query}", server_url.replacen("http", "ws", 1)).into_client_request().unwrap();
        request.headers_mut().insert("sec-websocket-protocol", "capstan.v1".parse().unwrap());
        if let Some(token) = token {
            request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        let (socket, response) = tokio_tungstenite::connect_async(request).await.unwrap();
        assert_eq!(response.headers()["sec-websocket-protocol"], "capstan.v1");
        Self { socket, next_id: 0, early: std::collections::VecDeque::new() }
    }

    /// Sends any frame. False if the server has closed the connection meanwhile.
    pub async fn send(&mut self, message: Message) -> bool {
        self.socket.send(message).await.is_ok()
    }

    /// Sends text as it is.
    pub async fn send_text(&mut self, text: &str) {
        assert!(self.send(Message::text(text.to_owned())).await, "the connection is closed");
    }

    /// The next text frame or the end. Panics if nothing comes for 30 seconds.
    pub async fn next(&mut self) -> Incoming {
        if let Some(text) = self.early.pop_front() {
            return Incoming::Text(text);
        }
        self.receive().await
    }

    async fn receive(&mut self) -> Incoming {
        loop {
            let message = super::wait::within("the next frame", Duration::from_secs(30), self.socket.next()).await;
            match message {
                Some(Ok(Message::Text(text))) => return Incoming::Text(text.as_str().to_owned()),
                Some(Ok(Message::Close(frame))) => return Incoming::Closed(frame.map(|frame: CloseFrame| frame.code.into())),
                Some(Ok(Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                None | Some(Err(Error::ConnectionClosed)) => return Incoming::Closed(None),
                Some(Err(_)) => return Incoming::Broken,
            }
        }
    }

    /// Calls a method and waits for its answer; events that come first are kept for [`Self::next`].
    pub async fn call(&mut self, method: &str, params: Value) -> Value {
        self.next_id += 1;
        let id = self.next_id;
        self.send_text(&json!({"id": id, "method": method, "params": params}).to_string()).await;
        loop {
            match self.receive().await {
                Incoming::Text(text) => {
                    let value: Value = serde_json::from_str(&text).unwrap();
                    if value["id"] == id && value.get("type").is_none() {
                        return value;
                    }
                    self.early.push_back(text);
                }
                other => panic!("no answer to {method}: {other:?}"),
            }
        }
    }

    /// Event envelopes as they stood on the wire, up to `stream.end` or until `limit` stored ones came.
    pub async fn events(&mut self, limit: usize) -> (Vec<String>, bool) {
        let mut events = Vec::new();
        while events.len() < limit {
            match self.next().await {
                Incoming::Text(text) => {
                    let value: Value = serde_json::from_str(&text).unwrap();
                    match value["type"].as_str() {
                        Some("stream.end") => return (events, true),
                        Some("stream.ping") | None => {}
                        Some(_) => events.push(text),
                    }
                }
                other => panic!("the socket ended after {} events: {other:?}", events.len()),
            }
        }
        (events, false)
    }
}
