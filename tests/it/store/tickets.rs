//! Single-use tickets for streams.

use capstan::domain::access::ticket::{StreamTicket, TicketTarget};
use capstan::domain::ids::{ConversationId, RunId};
use capstan::support::ids::UuidIds;
use tokio::task::JoinSet;

use super::fixture::{World, user};

contract! {
    ;
    a_ticket_is_given_to_one,
    a_ticket_comes_back_as_it_was_made,
    an_expired_ticket_is_nobodys,
}

const LONG: u32 = 600_000;

fn ticket(target: TicketTarget) -> StreamTicket {
    let (key_hash, session_hash) = (Some("key".to_owned()), Some("session".to_owned()));
    StreamTicket { owner: user(), key_hash, session_hash, target, origin: Some("https://a.example".to_owned()) }
}

async fn a_ticket_is_given_to_one(world: &World) {
    let made = ticket(TicketTarget::Socket);
    for round in 0..20 {
        let hash = format!("hash-{round}");
        world.store.create_ticket(&hash, &made, LONG).await.unwrap();
        let mut together = JoinSet::new();
        for _ in 0..8 {
            let (store, hash) = (world.store.clone(), hash.clone());
            together.spawn(async move { store.take_ticket(&hash).await.unwrap() });
        }
        let got: Vec<_> = together.join_all().await.into_iter().flatten().collect();
        assert_eq!((got.len(), got.first()), (1, Some(&made)));
        assert_eq!(world.store.take_ticket(&hash).await.unwrap(), None);
    }
    assert_eq!(world.store.take_ticket("nothing").await.unwrap(), None);
}

async fn a_ticket_comes_back_as_it_was_made(world: &World) {
    let targets = [
        TicketTarget::Socket,
        TicketTarget::Run(RunId::generate(&UuidIds)),
        TicketTarget::Conversation(ConversationId::generate(&UuidIds)),
    ];
    for target in targets {
        let bound = ticket(target.clone());
        let loose = StreamTicket { key_hash: None, session_hash: None, origin: None, ..ticket(target) };
        world.store.create_ticket("bound", &bound, LONG).await.unwrap();
        world.store.create_ticket("loose", &loose, LONG).await.unwrap();
        assert!(world.store.create_ticket("loose", &bound, LONG).await.is_err(), "a hash stands for one ticket");
        assert_eq!(world.store.take_ticket("bound").await.unwrap(), Some(bound));
        assert_eq!(world.store.take_ticket("loose").await.unwrap(), Some(loose));
    }
}

async fn an_expired_ticket_is_nobodys(world: &World) {
    let made = ticket(TicketTarget::Socket);
    let soon = world.store.create_ticket("long", &made, LONG).await.unwrap();
    for hash in ["old-1", "old-2", "old-3"] {
        let expired = world.store.create_ticket(hash, &made, 0).await.unwrap();
        // Both use the database's clock, which advanced by less than the duration of a test.
        assert!((soon.0 - expired.0 - i64::from(LONG)).abs() < 60_000, "{soon:?} {expired:?}");
    }
    assert_eq!(world.store.take_ticket("old-1").await.unwrap(), None);
    assert_eq!(world.store.remove_expired_tickets().await.unwrap(), 2, "one was used after its expiry");
    assert_eq!(world.store.remove_expired_tickets().await.unwrap(), 0);
    assert_eq!(world.store.take_ticket("long").await.unwrap(), Some(made));
}
