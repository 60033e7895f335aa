//! OAuth logins at MCP servers, and the exclusive refresh of their tokens.

use capstan::domain::ids::{McpServerId, UserId};
use capstan::store::{EncryptedRow, LoginClaimant, McpTokens, ProviderLogin, SecretKind};
use capstan::support::encryption::EncryptedSecret;
use capstan::support::ids::UuidIds;

use super::fixture::{World, user};

contract! {
    ;
    a_login_is_taken_once_by_its_owner_or_its_browser,
    the_newest_login_of_a_user_at_a_server_counts,
    tokens_are_kept_until_others_come,
    token_refresh_is_exclusive,
    a_refresh_that_was_overtaken_changes_nothing,
    key_rotation_keeps_the_token_version,
    tokens_of_removed_servers_are_deleted,
}

fn server() -> McpServerId {
    McpServerId::generate(&UuidIds)
}

fn encrypted(data: &str) -> EncryptedSecret {
    EncryptedSecret { key_id: "master-1".to_owned(), data: data.to_owned() }
}

fn login(owner: &UserId) -> ProviderLogin {
    ProviderLogin { owner: owner.clone(), browser_hash: "browser".to_owned(), key_hash: None, verifier: encrypted("dmVyaWZpZXI=") }
}

fn tokens(owner: Option<&UserId>) -> McpTokens {
    McpTokens { server: server(), owner: owner.cloned(), encrypted: encrypted("dG9rZW5z"), fresh_for_ms: None, version: 1 }
}

async fn a_login_is_taken_once_by_its_owner_or_its_browser(world: &World) {
    let (ann, bob, at) = (user(), user(), server());
    let store = &world.store;
    store.create_mcp_login("state", &at, &login(&ann), 60_000).await.unwrap();
    assert_eq!(store.take_mcp_login("state", &LoginClaimant::Owner(bob)).await.unwrap(), None);
    assert_eq!(store.take_mcp_login("state", &LoginClaimant::Browser("other".to_owned())).await.unwrap(), None);
    let taken = store.take_mcp_login("state", &LoginClaimant::Browser("browser".to_owned())).await.unwrap();
    assert_eq!(taken, Some((at.clone(), login(&ann))));
    assert_eq!(store.take_mcp_login("state", &LoginClaimant::Owner(ann.clone())).await.unwrap(), None, "once");
    store.create_mcp_login("late", &at, &login(&ann), 0).await.unwrap();
    assert_eq!(store.take_mcp_login("late", &LoginClaimant::Owner(ann)).await.unwrap(), None, "the login has expired");
}

async fn the_newest_login_of_a_user_at_a_server_counts(world: &World) {
    let (ann, one, two) = (user(), server(), server());
    let store = &world.store;
    for (state, at) in [("old", &one), ("beside", &two), ("new", &one)] {
        store.create_mcp_login(state, at, &login(&ann), 60_000).await.unwrap();
    }
    let mut taken = Vec::new();
    for state in ["old", "beside", "new"] {
        taken.push(store.take_mcp_login(state, &LoginClaimant::Owner(ann.clone())).await.unwrap().map(|(server, _)| server));
    }
    assert_eq!(taken, [None, Some(two), Some(one)]);
}

async fn tokens_are_kept_until_others_come(world: &World) {
    let (ann, store) = (user(), &world.store);
    let first = tokens(Some(&ann));
    assert_eq!(store.mcp_tokens(&first.server).await.unwrap(), None);
    store.put_mcp_tokens(&first).await.unwrap();
    assert_eq!(store.mcp_tokens(&first.server).await.unwrap(), Some(first.clone()));
    let second = McpTokens { encrypted: encrypted("YW5ldw=="), fresh_for_ms: Some(60_000), ..first.clone() };
    store.put_mcp_tokens(&second).await.unwrap();
    let kept = store.mcp_tokens(&first.server).await.unwrap().unwrap();
    assert!(kept.fresh_for_ms.is_some_and(|ms| (1..=60_000).contains(&ms)), "{kept:?}");
    assert_eq!((kept.version, kept.encrypted), (2, second.encrypted));
    assert!(!store.forget_mcp_tokens(&first.server, Some(1)).await.unwrap());
    store.create_mcp_login("state", &first.server, &login(&ann), 60_000).await.unwrap();
    assert!(store.forget_mcp_tokens(&first.server, Some(2)).await.unwrap());
    assert_eq!(store.mcp_tokens(&first.server).await.unwrap(), None);
    assert!(!store.forget_mcp_tokens(&first.server, None).await.unwrap());
    assert_eq!(store.take_mcp_login("state", &LoginClaimant::Owner(ann)).await.unwrap(), None, "it was deleted with the tokens");
}

async fn token_refresh_is_exclusive(world: &World) {
    let (kept, store) = (tokens(None), &world.store);
    store.put_mcp_tokens(&kept).await.unwrap();
    let at = &kept.server;
    let claims = (0..8).map(|_| store.claim_mcp_tokens(at, 1, 60_000));
    let claims = futures_util::future::join_all(claims).await;
    assert_eq!(claims.into_iter().filter(|claimed| *claimed.as_ref().unwrap()).count(), 1);
    // A released claim can be taken by another process, and a claim expires.
    assert!(store.end_mcp_refresh(at, 1, None).await.unwrap());
    assert!(store.claim_mcp_tokens(at, 1, 0).await.unwrap());
    assert!(store.claim_mcp_tokens(at, 1, 60_000).await.unwrap());
    let anew = encrypted("YW5ldw==");
    assert!(store.end_mcp_refresh(at, 1, Some((&anew, Some(1_000)))).await.unwrap());
    assert!(!store.claim_mcp_tokens(at, 1, 60_000).await.unwrap(), "that version was replaced");
    let now = store.mcp_tokens(at).await.unwrap().unwrap();
    assert_eq!((now.version, now.encrypted), (2, anew));
    assert!(store.claim_mcp_tokens(at, 2, 60_000).await.unwrap());
}

async fn a_refresh_that_was_overtaken_changes_nothing(world: &World) {
    let (kept, store) = (tokens(None), &world.store);
    store.put_mcp_tokens(&kept).await.unwrap();
    assert!(store.claim_mcp_tokens(&kept.server, 1, 60_000).await.unwrap());
    let anew = McpTokens { encrypted: encrypted("bG9naW4="), ..kept.clone() };
    store.put_mcp_tokens(&anew).await.unwrap();
    assert!(!store.end_mcp_refresh(&kept.server, 1, Some((&encrypted("bGF0ZQ=="), None))).await.unwrap());
    assert_eq!(store.mcp_tokens(&kept.server).await.unwrap(), Some(McpTokens { version: 2, ..anew }));
    assert!(store.claim_mcp_tokens(&kept.server, 2, 60_000).await.unwrap(), "a new login does not wait for an old refresh");
}

async fn key_rotation_keeps_the_token_version(world: &World) {
    let (ann, store) = (user(), &world.store);
    let kept = tokens(Some(&ann));
    store.put_mcp_tokens(&kept).await.unwrap();
    assert_eq!(store.master_keys_in_use().await.unwrap(), [("master-1".to_owned(), 1)]);
    let row = EncryptedRow {
        of: SecretKind::McpTokens,
        owner: Some(ann),
        id: capstan::domain::tool::mcp_server::tokens_row(&kept.server),
        encrypted: kept.encrypted.clone(),
    };
    assert_eq!(store.encrypted_rows(None, 10).await.unwrap(), std::slice::from_ref(&row));
    assert_eq!(store.encrypted_rows(Some(&row.id), 10).await.unwrap(), []);
    let anew = EncryptedSecret { key_id: "master-2".to_owned(), data: "bmV3".to_owned() };
    assert!(store.reencrypt(&row, Some(&anew)).await.unwrap());
    let now = store.mcp_tokens(&kept.server).await.unwrap();
    assert_eq!(now, Some(McpTokens { encrypted: anew.clone(), ..kept.clone() }));
    assert!(store.reencrypt(&EncryptedRow { encrypted: anew, ..row }, None).await.unwrap());
    assert_eq!(store.mcp_tokens(&kept.server).await.unwrap(), None, "lost with its key");
    store.put_mcp_tokens(&kept).await.unwrap();
}

async fn tokens_of_removed_servers_are_deleted(world: &World) {
    let (ann, store) = (user(), &world.store);
    let (gone, seen, recent) = (tokens(None), tokens(None), tokens(None));
    let kept = super::mcp_servers::server(Some(&ann), "bank");
    store.create_mcp_server(&kept, 50, None).await.unwrap();
    let of_kept = McpTokens { server: kept.id.clone(), ..tokens(Some(&ann)) };
    for tokens in [&gone, &seen, &of_kept] {
        store.put_mcp_tokens(tokens).await.unwrap();
    }
    world.database.rows("UPDATE mcp_tokens SET seen_at = seen_at - 100000 RETURNING server_id").await;
    store.put_mcp_tokens(&recent).await.unwrap();
    store.mark_mcp_tokens_configured(&[seen.server.clone(), server()]).await.unwrap();
    store.mark_mcp_tokens_configured(&[]).await.unwrap();
    store.create_mcp_login("late", &seen.server, &login(&ann), 0).await.unwrap();
    store.create_mcp_login("open", &recent.server, &login(&ann), 60_000).await.unwrap();
    assert_eq!(store.forget_unseen_mcp_tokens(90_000).await.unwrap(), 1);
    assert_eq!(store.mcp_tokens(&gone.server).await.unwrap(), None);
    for tokens in [&seen, &recent, &of_kept] {
        assert!(store.mcp_tokens(&tokens.server).await.unwrap().is_some(), "{tokens:?}");
    }
    assert_eq!(world.database.rows("SELECT state_hash FROM mcp_logins").await.len(), 1, "the login that may still complete");
    assert_eq!(store.forget_unseen_mcp_tokens(90_000).await.unwrap(), 0);
}
