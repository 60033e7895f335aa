//! A revoked key is invalid, and the streams that it opened end.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use serde_json::json;

use super::rig::{Rig, text};
use super::sockets::{connect, connect_with};
use support::wait::{until, within};

/// The promised five seconds, plus ten for a busy machine.
const DEAD_AFTER: Duration = Duration::from_secs(15);

#[tokio::test]
async fn streams_of_a_revoked_key_end() {
    let mut rig = Rig::with_keys().await;
    let address = rig.listen().await;
    let (conversation, run) = rig.start("hello").await;
    let path = format!("/api/v1/conversations/{conversation}/events");
    let mut streams = vec![
        rig.stream(&path, &[]).await,
        rig.stream(&format!("/api/v1/runs/{run}/events"), &[]).await,
        rig.post_stream("/api/v1/runs", &[], json!({"input": "and its own answer"})).await,
    ];
    let ticket = rig.ticket(json!({"conversation_id": conversation}), "").await;
    streams.push(rig.stream(&format!("{path}?ticket={ticket}"), &[("authorization", "")]).await);
    let by_header = format!("Bearer {}", rig.key.as_ref().unwrap());
    let query = format!("?ticket={}", rig.ticket(json!({"socket": true}), "").await);
    let mut sockets = vec![
        connect(&address, &[("authorization", &by_header)]).await.unwrap(),
        connect_with(&address, &query, &[]).await.unwrap(),
    ];
    let mut by_frame = connect(&address, &[]).await.unwrap();
    by_frame.call("auth", json!({"token": rig.key.as_ref().unwrap()})).await;
    sockets.push(by_frame);
    for socket in &mut sockets {
        socket.call("subscribe", json!({"conversation_id": conversation})).await;
        assert_eq!(socket.next().await.unwrap()["type"], "stream.snapshot");
    }
    let unused = rig.ticket(json!({"socket": true}), "").await;

    let bob = rig.user("bob").await;
    let mine = rig.key.replace(bob.clone());
    let (of_bob, _) = rig.start("somebody else's").await;
    let mut stream_of_bob = rig.stream(&format!("/api/v1/conversations/{of_bob}/events"), &[]).await;
    stream_of_bob.until("stream.snapshot").await;
    rig.key = mine;

    let keys = rig.store.keys().await.unwrap();
    let ann = keys.iter().find(|key| key.user.name == "ann").unwrap();
    let ends = async {
        // A request that waits for its run, which no worker has claimed.
        let (path, waiting) = (format!("/api/v1/runs/{run}"), [("prefer", "wait=60")]);
        let waits = rig.send(Method::GET, &path, &waiting, None);
        let revoke = async { assert!(rig.store.revoke_key(&ann.id, capstan::support::clock::UnixMillis(1)).await.unwrap()) };
        let (reply, ()) = tokio::join!(waits, revoke);
        assert_eq!((reply.status, reply.code().as_str()), (StatusCode::UNAUTHORIZED, "unauthorized"));
        for stream in &mut streams {
            while stream.next().await.is_some() {}
            assert_eq!(stream.comments.last().unwrap(), "the key is no longer valid");
        }
        for socket in &mut sockets {
            assert_eq!(socket.next().await, Err(4401));
        }
        until("the key to open nothing", DEAD_AFTER, || async {
            let reply = rig.get(&path).await;
            (reply.status == StatusCode::UNAUTHORIZED).then_some(())
        })
        .await;
    };
    within("everything to end", DEAD_AFTER, Box::pin(ends)).await;

    let mut late = connect_with(&address, &format!("?ticket={unused}"), &[]).await.unwrap();
    assert_eq!(late.next().await, Err(4401), "a ticket lives no longer than its key");
    // Other users' streams are not affected.
    rig.key = Some(bob);
    let sent = rig.post(&format!("/api/v1/conversations/{of_bob}/messages"), json!({"content": "still here"})).await;
    assert_eq!(sent.status, StatusCode::ACCEPTED);
    let created = stream_of_bob.until("message.created").await.pop().unwrap();
    assert_eq!(text(&created.json()["data"]["message"]["id"]), text(&sent.json()["message"]["id"]));
}

#[tokio::test]
async fn unread_stream_sends_nothing_after_key_revocation() {
    let rig = Rig::with_keys().await;
    let (_, run) = rig.start("hello").await;
    let path = format!("/api/v1/runs/{run}/events");
    let (mut stream, witness) = (rig.stream(&path, &[]).await, rig.stream(&path, &[]).await);
    stream.until("run.queued").await;
    let fence = rig.claim().await;
    let act = rig.play_half(&fence).await;
    rig.revoke_all().await;
    // The stream is not polled before the server has noticed the revocation.
    within("the other stream to end", DEAD_AFTER, witness.rest()).await;
    rig.play_rest(&fence, act).await;
    let frames = within("the end", DEAD_AFTER, stream.rest()).await;
    assert_eq!(frames, [], "not even stored events");
}
