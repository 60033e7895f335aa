//! A key that is revoked on the command line is invalid in every process, with each stream and ticket that it opened.

use std::time::Duration;

use reqwest::StatusCode;
use rstest::rstest;
use serde_json::json;

use support::database::Kind;
use support::server::{Server, Site};
use support::sse::{Next, SseStream};
use support::wait;
use support::ws::{Incoming, WsClient};

/// The promised five seconds, plus ten for a busy machine.
const DEAD_AFTER: Duration = Duration::from_secs(15);

/// Returns a ticket that `server` made.
async fn ticket(server: &Server, body: serde_json::Value) -> String {
    let (status, answer) = server.post_json("/stream-tickets", &body).await;
    assert_eq!(status, 201, "{answer}");
    answer["ticket"].as_str().unwrap().to_owned()
}

async fn follow(request: reqwest::RequestBuilder) -> SseStream {
    let mut stream = SseStream::new(request.header("accept", "text/event-stream").send().await.unwrap());
    assert!(matches!(stream.next().await, Next::Frame(frame) if frame.kind() == "stream.snapshot"));
    stream
}

async fn has_ended(mut stream: SseStream) {
    loop {
        match stream.next().await {
            Next::Frame(_) => {}
            Next::End => return,
            Next::Broken => panic!("the stream was cut instead of ended"),
        }
    }
}

async fn was_closed(mut socket: WsClient) {
    loop {
        match socket.next().await {
            Incoming::Text(_) => {}
            Incoming::Closed(code) => return assert_eq!(code, Some(4401)),
            Incoming::Broken => panic!("the socket was cut instead of closed"),
        }
    }
}

/// W-18.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_key_is_dead_everywhere(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let site = Site::new(kind).await.env("CAPSTAN_LOG__LEVEL", "debug");
    let (ada, bob) = (site.key_of("ada").await, site.key_of("bob").await);
    let mut servers = vec![site.start().await];
    if kind == Kind::Postgres {
        servers.push(site.start().await);
    }
    let last = servers.len() - 1;
    servers[last].set_key(&bob);
    let of_bob = servers[last].start_run(&json!({"input": "hello"})).await["conversation_id"].as_str().unwrap().to_owned();
    let mut stream_of_bob = follow(servers[last].get(&format!("/conversations/{of_bob}/events"))).await;

    servers.iter_mut().for_each(|server| server.set_key(&ada));
    let run = servers[0].start_run(&json!({"input": "hello"})).await;
    servers[0].finished(run["id"].as_str().unwrap()).await;
    let conversation = run["conversation_id"].as_str().unwrap().to_owned();
    let path = format!("/conversations/{conversation}/events");
    let (mut streams, mut sockets, mut tickets) = (Vec::new(), Vec::new(), Vec::new());
    for server in &servers {
        streams.push(follow(server.get(&path)).await);
        sockets.push(WsClient::connect(&server.url, Some(&ada)).await);
        // Every process accepts the tickets of each other process.
        let of_stream = ticket(&servers[0], json!({"conversation_id": conversation})).await;
        let of_socket = ticket(&servers[0], json!({"socket": true})).await;
        let url = format!("{}/api/v1{path}?ticket={of_stream}", server.url);
        streams.push(follow(server.client.get(&url)).await);
        sockets.push(WsClient::connect_with(&server.url, &format!("?ticket={of_socket}"), None).await);
        for again in &servers {
            let url = format!("{}/api/v1{path}?ticket={of_stream}", again.url);
            let refused = again.client.get(&url).header("accept", "text/event-stream").send().await.unwrap();
            assert_eq!(refused.status(), StatusCode::UNAUTHORIZED, "once, in all processes together");
        }
        tickets.extend([of_stream, of_socket]);
    }
    for socket in &mut sockets {
        assert!(socket.call("subscribe", json!({"conversation_id": conversation})).await["result"].is_object());
    }
    let stored: Vec<_> = site.database.rows("SELECT hash FROM stream_tickets").await;
    assert!(stored.is_empty(), "used tickets are deleted: {stored:?}");

    let (listed, list) = site.command(&["keys", "list"]).await;
    let label = &ada[..10];
    assert!(listed && list.contains(label) && list.contains("ada") && list.contains("bob") && !list.contains(&ada), "{list}");
    assert!(!site.command(&["keys", "revoke", "cap_nobody"]).await.0);
    let (revoked, words) = site.command(&["keys", "revoke", label]).await;
    assert!(revoked && words.contains("ada"), "{words}");
    let everything = async {
        for stream in streams {
            has_ended(stream).await;
        }
        for socket in sockets {
            was_closed(socket).await;
        }
        for server in &servers {
            wait::until("the key to open nothing", DEAD_AFTER, || async {
                let answer = server.get("/conversations").send().await.unwrap();
                (answer.status() == StatusCode::UNAUTHORIZED).then_some(())
            })
            .await;
        }
    };
    wait::within("all of the key's to end", DEAD_AFTER, everything).await;
    let (again, words) = site.command(&["keys", "revoke", label]).await;
    assert!(again && words.contains("was already revoked"), "{words}");

    servers[last].set_key(&bob);
    servers[last].send(&of_bob, "still here", "queue").await;
    let created = stream_of_bob.until_kind("message.created").await;
    assert!(!created.is_empty());
    let secrets = [&ada, &bob].into_iter().chain(&tickets);
    for (secret, server) in secrets.flat_map(|secret| servers.iter().map(move |server| (secret, server))) {
        assert!(!server.log_text().contains(secret), "a secret is in the log");
    }
}
