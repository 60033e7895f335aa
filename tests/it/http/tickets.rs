//! Tickets: credentials for requests in which a browser cannot send a key.

use axum::http::{Method, StatusCode};
use capstan::domain::access::ticket::{StreamTicket, TicketTarget};
use capstan::domain::ids::UserId;
use capstan::http::HttpLimits;
use capstan::service::hash_key;
use serde_json::{Value, json};

use super::rig::{Keys, Rig, text};
use super::sockets::{connect, connect_with};

const PAGE: &str = "https://app.example";
/// A header that replaces the rig's key with an empty one.
const NO_KEY: (&str, &str) = ("authorization", "");

/// Opens an event stream with a ticket and no key.
async fn open(rig: &Rig, path: &str, ticket: &str, origin: &str) -> super::rig::Sse {
    rig.stream(&format!("{path}?ticket={ticket}"), &[NO_KEY, ("origin", origin)]).await
}

#[tokio::test]
async fn a_ticket_opens_its_stream_once() {
    let rig = Rig::with_keys().await;
    let (conversation, run) = rig.start("hello").await;
    let made = rig.post("/api/v1/stream-tickets", json!({"run_id": run})).await;
    assert_eq!((made.status, made.header("cache-control")), (StatusCode::CREATED, "no-store"));
    let expires_at: jiff::Timestamp = text(&made.json()["expires_at"]).parse().unwrap();
    #[expect(clippy::disallowed_methods, reason = "the server's clock is the machine's, too")]
    let lives = expires_at.as_millisecond() - jiff::Timestamp::now().as_millisecond();
    assert!((1..=60_000).contains(&lives), "{lives}");

    let path = format!("/api/v1/runs/{run}/events");
    let ticket = text(&made.json()["ticket"]);
    let stream = open(&rig, &path, &ticket, "").await;
    assert_eq!(stream.status, StatusCode::OK);
    assert_eq!(open(&rig, &path, &ticket, "").await.status, StatusCode::UNAUTHORIZED, "once");
    rig.play().await;
    assert_eq!(stream.rest().await.last().unwrap().kind(), "stream.end");

    // With the earlier cursor, as a page reconnects.
    let path = format!("/api/v1/conversations/{conversation}/events");
    let ticket = rig.ticket(json!({"conversation_id": conversation}), "").await;
    let mut stream = rig.stream(&format!("{path}?after=3&ticket={ticket}"), &[NO_KEY]).await;
    assert_eq!(stream.next().await.unwrap().id, Some(4));

    // A key takes precedence, and the ticket stays unused.
    let ticket = rig.ticket(json!({"conversation_id": conversation}), "").await;
    assert_eq!(rig.stream(&format!("{path}?ticket={ticket}"), &[]).await.status, StatusCode::OK);
    let wrong = [("authorization", "Bearer cap_wrong")];
    assert_eq!(rig.stream(&format!("{path}?ticket={ticket}"), &wrong).await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(open(&rig, &path, &ticket, "").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_ticket_opens_nothing_else() {
    let mut rig = Rig::with_keys().await;
    let address = rig.listen().await;
    let (conversation, run) = rig.start("one").await;
    let (_, other) = rig.start("two").await;
    let of_run = || rig.ticket(json!({"run_id": run}), "");
    let stream = format!("/api/v1/runs/{run}/events");
    for path in [
        format!("/api/v1/runs/{other}/events"),
        format!("/api/v1/conversations/{conversation}/events"),
        "/api/v1/runs/run_1/events".to_owned(),
    ] {
        let ticket = of_run().await;
        let refused = open(&rig, &path, &ticket, "").await;
        assert_eq!(refused.status, StatusCode::UNAUTHORIZED, "{path}");
    }
    // A ticket that was used elsewhere is spent.
    let ticket = of_run().await;
    open(&rig, &format!("/api/v1/runs/{other}/events"), &ticket, "").await;
    assert_eq!(open(&rig, &stream, &ticket, "").await.status, StatusCode::UNAUTHORIZED);

    // It opens the stream only, no other resource below its path, and is no key.
    let ticket = of_run().await;
    let headers = [NO_KEY, ("accept", "application/json")];
    for path in [format!("{stream}?ticket={ticket}"), format!("/api/v1/runs/{run}?ticket={ticket}")] {
        let reply = rig.send(Method::GET, &path, &headers, None).await;
        assert_eq!((reply.status, reply.code().as_str()), (StatusCode::UNAUTHORIZED, "unauthorized"), "{path}");
    }
    let as_key = format!("Bearer {ticket}");
    let reply = rig.send(Method::GET, &stream, &[("authorization", &as_key)], None).await;
    assert_eq!(reply.status, StatusCode::UNAUTHORIZED);
    let mut socket = connect_with(&address, &format!("?ticket={ticket}"), &[]).await.unwrap();
    assert_eq!(socket.next().await, Err(4401));
    let for_socket = rig.ticket(json!({"socket": true}), "").await;
    assert_eq!(open(&rig, &stream, &for_socket, "").await.status, StatusCode::UNAUTHORIZED);

    // A key in the URL is ignored under each parameter name.
    let key = rig.key.clone().unwrap();
    for name in ["key", "token", "access_token", "authorization", "ticket"] {
        let reply = rig.stream(&format!("{stream}?{name}={key}"), &[NO_KEY]).await;
        assert_eq!(reply.status, StatusCode::UNAUTHORIZED, "{name}");
    }
    for nothing in ["", "?ticket=", "?ticket=%00", &format!("?ticket={}", "x".repeat(2_000))] {
        assert_eq!(rig.stream(&format!("{stream}{nothing}"), &[NO_KEY]).await.status, StatusCode::UNAUTHORIZED, "{nothing}");
    }
}

#[tokio::test]
async fn a_ticket_is_for_the_page_that_asked_for_it() {
    let rig = Rig::with_keys().await;
    let (_, run) = rig.start("hello").await;
    let path = format!("/api/v1/runs/{run}/events");
    let body = || json!({"run_id": run});
    for (made_for, shown_by, status) in [
        (PAGE, PAGE, 200),
        // A browser sends no origin for a stream of the page's own server.
        (PAGE, "", 200),
        (PAGE, "https://evil.example", 403),
        (PAGE, "http://app.example", 403),
        (PAGE, "null", 403),
        // A ticket that the page's own server requested, without a page.
        ("", PAGE, 200),
    ] {
        let ticket = rig.ticket(body(), made_for).await;
        let stream = open(&rig, &path, &ticket, shown_by).await;
        assert_eq!(stream.status.as_u16(), status, "created for {made_for:?}, shown by {shown_by:?}");
        if status == 403 {
            let again = open(&rig, &path, &ticket, made_for).await;
            assert_eq!(again.status, StatusCode::UNAUTHORIZED, "a ticket that was tried is spent");
        }
    }
    let reply = rig.send(Method::POST, "/api/v1/stream-tickets", &[("origin", "null")], Some(body())).await;
    assert_eq!((reply.status, reply.code().as_str()), (StatusCode::FORBIDDEN, "forbidden"));
}

#[tokio::test]
async fn an_expired_ticket_is_refused() {
    let mut rig = Rig::with_keys().await;
    let address = rig.listen().await;
    let (_, run) = rig.start("hello").await;
    let key = hash_key(rig.key.as_ref().unwrap());
    let owner = UserId::from_stored(rig.store.user_by_key_hash(&key).await.unwrap().unwrap().id.as_str().to_owned());
    let of = |target| StreamTicket { owner: owner.clone(), key_hash: Some(key.clone()), session_hash: None, target, origin: None };
    let run_id = run.parse().unwrap();
    for (lifetime, status) in [(0, StatusCode::UNAUTHORIZED), (60_000, StatusCode::OK)] {
        let ticket = of(TicketTarget::Run(run.parse().unwrap()));
        rig.store.create_ticket(&hash_key("ticket_a"), &ticket, lifetime).await.unwrap();
        assert_eq!(open(&rig, &format!("/api/v1/runs/{run}/events"), "ticket_a", "").await.status, status);
    }
    rig.store.create_ticket(&hash_key("ticket_b"), &of(TicketTarget::Socket), 0).await.unwrap();
    let mut socket = connect_with(&address, "?ticket=ticket_b", &[]).await.unwrap();
    assert_eq!(socket.next().await, Err(4401));

    // A ticket of another owner, or of a server without keys, is refused as well.
    for wrong in [
        StreamTicket { owner: UserId::from_stored("user_other".into()), ..of(TicketTarget::Run(run_id)) },
        StreamTicket { key_hash: None, ..of(TicketTarget::Run(run.parse().unwrap())) },
    ] {
        rig.store.create_ticket(&hash_key("ticket_c"), &wrong, 60_000).await.unwrap();
        let refused = open(&rig, &format!("/api/v1/runs/{run}/events"), "ticket_c", "").await;
        assert_eq!(refused.status, StatusCode::UNAUTHORIZED, "{wrong:?}");
    }
}

#[tokio::test]
async fn a_ticket_is_asked_for_by_the_owner() {
    let mut rig = Rig::with_keys().await;
    let (conversation, run) = rig.start("mine").await;
    let bodies = [
        json!({}),
        json!({"socket": false}),
        json!({"run_id": run, "conversation_id": conversation}),
        json!({"run_id": run, "socket": true}),
        json!({"conversation_id": conversation, "socket": true}),
        json!({"run_id": "x"}),
        json!({"run_id": run, "more": 1}),
    ];
    for body in bodies {
        let reply = rig.post("/api/v1/stream-tickets", body.clone()).await;
        assert_eq!((reply.status, reply.code().as_str()), (StatusCode::BAD_REQUEST, "invalid_request"), "{body}");
    }
    // Each request gets a new ticket, also with a repeated key.
    let headers = [("idempotency-key", "k")];
    let mut tickets: Vec<Value> = Vec::new();
    for _ in 0..2 {
        let reply = rig.send(Method::POST, "/api/v1/stream-tickets", &headers, Some(json!({"run_id": run}))).await;
        tickets.push(reply.json()["ticket"].clone());
    }
    assert_ne!(tickets[0], tickets[1]);

    rig.key = Some(rig.user("bob").await);
    let missing = "01980000000070008000000000000009";
    for (theirs, missing) in [
        (json!({"run_id": run}), json!({"run_id": format!("run_{missing}")})),
        (json!({"conversation_id": conversation}), json!({"conversation_id": format!("conv_{missing}")})),
    ] {
        let headers = [("x-request-id", "same")];
        let theirs = rig.send(Method::POST, "/api/v1/stream-tickets", &headers, Some(theirs)).await;
        let missing = rig.send(Method::POST, "/api/v1/stream-tickets", &headers, Some(missing)).await;
        assert_eq!(theirs.status, StatusCode::NOT_FOUND);
        assert_eq!(theirs.body, missing.body);
    }
}

#[tokio::test]
async fn a_ticket_opens_a_socket_once() {
    let mut rig = Rig::with_keys().await;
    let address = rig.listen().await;
    let (_, run) = rig.start("hello").await;
    let ticket = rig.ticket(json!({"socket": true}), PAGE).await;
    let query = format!("?ticket={ticket}");
    let page = [("origin", PAGE), ("sec-websocket-protocol", "capstan.v1")];
    let mut socket = connect_with(&address, &query, &page).await.unwrap();
    assert_eq!(socket.call("subscribe", json!({"run_id": run})).await["result"]["run_id"], run.as_str());
    let mut again = connect_with(&address, &query, &page).await.unwrap();
    assert_eq!(again.next().await, Err(4401));

    // A browser always sends the page's origin when it opens a WebSocket.
    for headers in [&[("origin", "https://evil.example")][..], &[("origin", "null")], &[]] {
        let query = format!("?ticket={}", rig.ticket(json!({"socket": true}), PAGE).await);
        let refused = connect_with(&address, &query, headers).await.err();
        assert_eq!(refused, Some(StatusCode::FORBIDDEN), "{headers:?}");
        let mut again = connect_with(&address, &query, &page).await.unwrap();
        assert_eq!(again.next().await, Err(4401), "the ticket is spent");
    }
    let unbound = format!("?ticket={}", rig.ticket(json!({"socket": true}), "").await);
    let mut socket = connect_with(&address, &unbound, &page).await.unwrap();
    assert!(socket.call("ping", json!({})).await["result"].is_object());
    for query in ["?ticket=wrong", "?ticket="] {
        let mut socket = connect_with(&address, query, &[]).await.unwrap();
        assert_eq!(socket.next().await, Err(4401), "{query}");
    }
    let key = rig.key.clone().unwrap();
    for name in ["key", "token", "ticket"] {
        let mut socket = connect_with(&address, &format!("?{name}={key}"), &[]).await.unwrap();
        socket.send(r#"{"id":1,"method":"ping"}"#).await;
        assert_eq!(socket.next().await, Err(4401), "{name}");
    }
}

#[tokio::test]
async fn tickets_work_without_keys_too() {
    let mut rig = Rig::with(HttpLimits::default(), |options| options.cors_origins = vec![PAGE.to_owned()], Keys::None).await;
    let address = rig.listen().await;
    let (_, run) = rig.start("hello").await;
    let path = format!("/api/v1/runs/{run}/events");
    let ticket = rig.ticket(json!({"run_id": run}), PAGE).await;
    assert_eq!(open(&rig, &path, &ticket, PAGE).await.status, StatusCode::OK);
    assert_eq!(open(&rig, &path, &ticket, PAGE).await.status, StatusCode::UNAUTHORIZED, "a ticket that is sent must be valid");
    let query = format!("?ticket={}", rig.ticket(json!({"socket": true}), PAGE).await);
    let mut socket = connect_with(&address, &query, &[("origin", PAGE)]).await.unwrap();
    assert!(socket.call("ping", json!({})).await["result"].is_object());

    // A page of another origin gets no access, even on a server without keys.
    let protocols = "capstan.v1, bearer.eA";
    for (name, value) in [("authorization", "Bearer x"), ("sec-websocket-protocol", protocols), ("x-nothing", "")] {
        for origin in ["https://evil.example", "null"] {
            let refused = connect(&address, &[(name, value), ("origin", origin)]).await.err();
            assert_eq!(refused, Some(StatusCode::FORBIDDEN), "{name} from {origin}");
        }
        let own = format!("http://{address}");
        assert!(connect(&address, &[(name, value), ("origin", own.as_str())]).await.is_ok(), "{name}");
    }
}
