//! Recovers the HTTP status of answers that the library returns without it.
//!
//! For a failed answer with a protocol error, the library returns the error alone. The HTTP client passes the status of each answer to its
//! retry classifier, which runs in the task that waits for the answer. A task-local variable carries the status from there.

use std::cell::Cell;
use std::error::Error;

use reqwest::{ClientBuilder, StatusCode, Url, retry};
use rmcp::model::JsonRpcMessage;
use rmcp::transport::streamable_http_client::{StreamableHttpError, StreamableHttpPostResponse};

use crate::tools::mcp::calls::request_effect;

type Answer = Result<StreamableHttpPostResponse, StreamableHttpError<reqwest::Error>>;

tokio::task_local! {
    /// The status of the last answer to the current request.
    static STATUS: Cell<Option<StatusCode>>;
}

/// The prefixes of HTTP/2 errors for a request that the server has not processed: it refused the stream, or is closing the connection. The
/// client retries such requests by itself only without a custom classifier.
const NOT_PROCESSED: [&str; 2] = [
    "stream error received: refused stream before processing any application logic",
    "connection error received: not a result of an error",
];

/// Prepares a client for the server at `url`, so that [`classify_status`] gets the status of its answers.
pub fn prepare_client(builder: ClientBuilder, url: &Url) -> ClientBuilder {
    let host = url.host_str().unwrap_or_default().to_owned();
    builder.retry(retry::for_host(host).no_budget().classify_fn(|exchange| {
        // Fails outside of `classify_status`, where the status is not needed.
        let _ = STATUS.try_with(|status| status.set(exchange.status()));
        let is_turned_away = exchange.error().is_some_and(is_turned_away);
        if is_turned_away { exchange.retryable() } else { exchange.success() }
    }))
}

fn is_turned_away(error: &(dyn Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| (**error).source()).map(ToString::to_string);
    causes.any(|words| NOT_PROCESSED.iter().any(|start| words.starts_with(start)))
}

/// Returns the answer to a message that a client of [`prepare_client`] sends.
///
/// An error with the status of a gateway becomes a transport error, because the effect of the request is unknown. So does an error without
/// a known status, which happens after three attempts.
pub fn classify_status(sending: impl Future<Output = Answer>) -> impl Future<Output = Answer> {
    // Boxed because it is large, and would be stored twice in the outer future.
    let sending = Box::pin(sending);
    STATUS.scope(Cell::new(None), async move {
        let answer = sending.await;
        let status = STATUS.try_with(Cell::get).unwrap_or_default();
        match answer {
            Ok(StreamableHttpPostResponse::Json(JsonRpcMessage::Error(error), _))
                if status.is_none_or(|status| request_effect::is_gateway_status(status.as_u16())) =>
            {
                let status = status.map_or("of an unknown status".to_owned(), |status| status.to_string());
                let words = format!("HTTP {status}: {}", error.error.message);
                Err(StreamableHttpError::UnexpectedServerResponse(words.into()))
            }
            answer => answer,
        }
    })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// An HTTP/2 server that refuses the first request and answers all others, as long as the connection lasts.
    async fn refuse_first_request(listener: TcpListener, requests: &Cell<usize>) {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_exact(&mut [0; 24]).await.unwrap();
        stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
        let mut head = [0; 9];
        while stream.read_exact(&mut head).await.is_ok() {
            let [high, middle, low, kind, _, id @ ..] = head;
            let length = u32::from_be_bytes([0, high, middle, low]);
            stream.read_exact(&mut vec![0; usize::try_from(length).unwrap()]).await.unwrap();
            // Only the headers of a request matter here.
            if kind != 1 {
                continue;
            }
            requests.set(requests.get() + 1);
            let answer = match requests.get() {
                1 => [&[0, 0, 4, 3, 0][..], &id, &[0, 0, 0, 7]].concat(),
                _ => [&[0, 0, 1, 1, 5][..], &id, &[0x88]].concat(),
            };
            stream.write_all(&answer).await.unwrap();
        }
    }

    /// A client that [`prepare_client`] has not prepared.
    #[tokio::test]
    async fn a_request_that_http_2_turns_away_is_sent_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
        let client = prepare_client(reqwest::Client::builder().no_proxy().http2_prior_knowledge(), &url).build().unwrap();
        let requests = Cell::new(0);
        let answer = tokio::select! {
            answer = client.post(url).body("{}").send() => answer.unwrap(),
            () = refuse_first_request(listener, &requests) => panic!("the connection has ended"),
        };
        assert_eq!((answer.status(), requests.get()), (StatusCode::OK, 2));
    }
}
