//! What owners may spend: what is under way counts, what is settled stays, and whoever loses a run loses its reservation.

use capstan::domain::budget::{Allowance, Amount, BudgetOf, Reserve, Reserved};
use capstan::domain::change::{Change, ReleaseCause};
use capstan::domain::ids::{ConversationId, UserId};
use capstan::domain::model::Usage;
use capstan::domain::record::Fence;
use capstan::store::{AcceptRun, DAY_MS};
use futures_util::future::join_all;

use super::fixture::*;

contract! {
    what_is_under_way_counts_until_it_is_settled,
    who_loses_a_run_loses_its_reservation,
    a_conversation_has_a_budget_of_its_own,
    many_at_once_get_no_more_than_there_is,
    what_is_spent_outlives_its_conversation,
    ;
    a_user_who_leaves_takes_the_books_along,
}

fn amount(tokens: u64, cost: &str) -> Amount {
    Amount { tokens, cost: cost.parse().unwrap() }
}

fn usd(dollars: &str) -> Option<capstan::domain::cost::Usd> {
    Some(serde_json::from_str(dollars).unwrap())
}

/// A call that may take so many tokens, of an owner who has 100 and a dollar a day.
fn call(tokens: u64, cost: &str) -> Reserve {
    let day = Allowance { tokens: Some(100), usd: usd("1") };
    Reserve { amount: amount(tokens, cost), conversation: Allowance::default(), day }
}

async fn run_in(world: &World, owner: &UserId, conversation: &ConversationId) -> Fence {
    world.accept(AcceptRun { ..hello(owner, conversation) }).await;
    world.claim_one().await
}

async fn run(world: &World, owner: &UserId) -> Fence {
    run_in(world, owner, &conversation()).await
}

async fn ask(world: &World, owner: &UserId, fence: &Fence, reserve: &Reserve) -> Option<Reserved> {
    world.store.reserve(fence, owner, reserve).await.unwrap()
}

/// The day of a reservation that is granted.
async fn granted(world: &World, owner: &UserId, fence: &Fence, reserve: &Reserve) -> i64 {
    match ask(world, owner, fence, reserve).await {
        Some(Reserved::Granted { day }) => day,
        other => panic!("not granted: {other:?}"),
    }
}

async fn settle(world: &World, fence: &Fence, day: i64, amount: Amount) {
    world.commit_one(changes(fence, vec![Change::Settle { day, amount }])).await.unwrap();
}

async fn what_is_under_way_counts_until_it_is_settled(world: &World) {
    let (ann, bob) = (user(), user());
    let (one, two) = (run(world, &ann).await, run(world, &ann).await);
    let day = granted(world, &ann, &one, &call(60, "0.5")).await;
    assert!(day > 20_000, "days are counted from 1970: {day}");
    assert_eq!(ask(world, &ann, &two, &call(41, "0")).await, Some(Reserved::Busy));
    assert_eq!(ask(world, &ann, &two, &call(0, "0.500000000001")).await, Some(Reserved::Busy), "money is a limit of its own");
    granted(world, &ann, &two, &call(40, "0.5")).await;
    // A run has one reservation.
    assert_eq!(ask(world, &ann, &one, &call(61, "0.5")).await, Some(Reserved::Busy));
    granted(world, &ann, &one, &call(60, "0.5")).await;
    let others = run(world, &bob).await;
    granted(world, &bob, &others, &call(100, "1")).await;

    settle(world, &one, day, amount(20, "0.25")).await;
    settle(world, &two, day, amount(30, "0.25")).await;
    granted(world, &ann, &two, &call(50, "0.5")).await;
    settle(world, &two, day, amount(50, "0.5")).await;
    let answer = ask(world, &ann, &one, &call(1, "0.25")).await;
    let Some(Reserved::Spent { of: BudgetOf::Day, spent, resets_in_ms: Some(left) }) = answer else { panic!("{answer:?}") };
    assert_eq!(spent, amount(100, "1"));
    assert!((1..=u64::try_from(DAY_MS).unwrap()).contains(&left), "{left}");
    // Both in one batch.
    let twice = vec![Change::Settle { day, amount: amount(1, "0.1") }, Change::Settle { day, amount: amount(2, "0.2") }];
    world.commit_one(changes(&others, twice)).await.unwrap();
    let Some(Reserved::Spent { spent, .. }) = ask(world, &bob, &others, &call(98, "0.1")).await else { panic!("3 are spent") };
    assert_eq!(spent, amount(3, "0.3"));
}

async fn who_loses_a_run_loses_its_reservation(world: &World) {
    let ann = user();
    let (one, two) = (run(world, &ann).await, run(world, &ann).await);
    let day = granted(world, &ann, &one, &call(60, "0")).await;
    assert_eq!(ask(world, &ann, &two, &call(60, "0")).await, Some(Reserved::Busy));
    // Taken over: the old fence holds nothing, and is told so.
    let newer = world.store.raise_fence(&one, 1).await.unwrap().unwrap();
    granted(world, &ann, &two, &call(60, "0")).await;
    assert_eq!(ask(world, &ann, &one, &call(1, "0")).await, None);
    world.commit_one(changes(&one, vec![Change::Settle { day, amount: amount(60, "0") }])).await.unwrap_err();
    assert_eq!(ask(world, &ann, &newer, &call(60, "0")).await, Some(Reserved::Busy), "the lost call is not counted");
    granted(world, &ann, &newer, &call(40, "0")).await;
    // Released, and ended.
    world.commit_one(released(&newer, None, ReleaseCause::Waiting)).await.unwrap();
    assert_eq!(ask(world, &ann, &newer, &call(1, "0")).await, None);
    let three = run(world, &ann).await;
    granted(world, &ann, &three, &call(40, "0")).await;
    world.commit_one(completed(&two)).await.unwrap();
    granted(world, &ann, &three, &call(100, "0")).await;
}

async fn a_conversation_has_a_budget_of_its_own(world: &World) {
    let (ann, talk) = (user(), conversation());
    let first = run_in(world, &ann, &talk).await;
    let usage = Usage { input_tokens: 20, output_tokens: 10, cost: Some("0.125".parse().unwrap()), ..Usage::default() };
    world.commit_one(changes(&first, vec![Change::Usage(usage)])).await.unwrap();
    world.commit_one(completed(&first)).await.unwrap();
    let second = run_in(world, &ann, &talk).await;
    let of_talk = |tokens, cost: &str, most, dollars: &str| Reserve {
        amount: amount(tokens, cost),
        conversation: Allowance { tokens: most, usd: usd(dollars) },
        day: Allowance::default(),
    };
    granted(world, &ann, &second, &of_talk(10, "0.125", Some(40), "0.25")).await;
    let spent = Some(Reserved::Spent { of: BudgetOf::Conversation, spent: amount(30, "0.125"), resets_in_ms: None });
    assert_eq!(ask(world, &ann, &second, &of_talk(11, "0", Some(40), "5")).await, spent);
    assert_eq!(ask(world, &ann, &second, &of_talk(0, "0.125000000001", None, "0.25")).await, spent);
    let elsewhere = run(world, &ann).await;
    granted(world, &ann, &elsewhere, &of_talk(40, "0.25", Some(40), "0.25")).await;
}

async fn many_at_once_get_no_more_than_there_is(world: &World) {
    let ann = user();
    let mut fences = Vec::new();
    for _ in 0..12 {
        fences.push(run(world, &ann).await);
    }
    let reserve = call(30, "0");
    let answers = join_all(fences.iter().map(|fence| ask(world, &ann, fence, &reserve))).await;
    let granted = answers.iter().filter(|answer| matches!(answer, Some(Reserved::Granted { .. }))).count();
    assert_eq!(granted, 3, "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| **answer == Some(Reserved::Busy)).count(), 9);
}

async fn what_is_spent_outlives_its_conversation(world: &World) {
    let (ann, talk) = (user(), conversation());
    let fence = run_in(world, &ann, &talk).await;
    let day = granted(world, &ann, &fence, &call(90, "0")).await;
    settle(world, &fence, day, amount(90, "0")).await;
    granted(world, &ann, &fence, &call(10, "0")).await;
    world.store.delete_conversation(&ann, &talk).await.unwrap().unwrap();
    assert_eq!(ask(world, &ann, &fence, &call(1, "0")).await, None);
    let next = run(world, &ann).await;
    granted(world, &ann, &next, &call(10, "0")).await;
    assert!(matches!(ask(world, &ann, &next, &call(11, "0")).await, Some(Reserved::Spent { .. })));
}

async fn a_user_who_leaves_takes_the_books_along(world: &World) {
    let (ann, talk) = (user(), conversation());
    let fence = run_in(world, &ann, &talk).await;
    let day = granted(world, &ann, &fence, &call(90, "0")).await;
    settle(world, &fence, day, amount(90, "0")).await;
    world.store.delete_conversation(&ann, &talk).await.unwrap().unwrap();
    assert_eq!(world.store.owned_by(&ann).await.unwrap().records, 1);
    assert!(world.store.remove_user(&ann).await.unwrap());
    assert_eq!(world.store.owned_by(&ann).await.unwrap().records, 0);
}
