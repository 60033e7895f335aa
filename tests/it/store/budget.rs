//! Budgets of owners: reservations count, settlements stay, and a lost run's reservation becomes spending.

use capstan::domain::agent::AgentProfile;
use capstan::domain::ids::{ConversationId, UserId};
use capstan::domain::model::Usage;
use capstan::domain::run::budget::{
    Allowance, Amount, Budget, BudgetScope, LostReservation, ReservationOutcome, ReservationRequest,
};
use capstan::domain::run::change::{Change, ReleaseCause};
use capstan::domain::run::record::Fence;
use capstan::store::{AcceptRun, DAY_MS, EmbeddingCharge, GeneratedTitle, PageRequest, UsageFilter};
use capstan::support::clock::UnixMillis;
use futures_util::future::join_all;

use super::fixture::*;

contract! {
    reservation_counts_until_settlement,
    reservation_is_spent_on_lease_loss_and_freed_on_release,
    refused_reservation_holds_nothing,
    a_conversation_has_a_budget_of_its_own,
    many_at_once_get_no_more_than_there_is,
    spending_outlives_its_conversation,
    ;
    a_user_who_leaves_takes_the_books_along,
    titles_are_spent_from_the_same,
    embeddings_are_spent_from_the_same,
    days_gone_by_are_forgotten,
}

fn amount(tokens: u64, cost: &str) -> Amount {
    Amount { tokens, cost: cost.parse().unwrap() }
}

fn usd(dollars: &str) -> Option<capstan::domain::model::cost::Usd> {
    Some(serde_json::from_str(dollars).unwrap())
}

/// Returns a reservation of these tokens, for an owner with 100 tokens and a dollar a day.
fn call(tokens: u64, cost: &str) -> ReservationRequest {
    let day = Allowance { tokens: Some(100), usd: usd("1") };
    ReservationRequest { amount: amount(tokens, cost), conversation: Allowance::default(), day }
}

async fn run_in(world: &World, owner: &UserId, conversation: &ConversationId) -> Fence {
    world.accept(AcceptRun { ..hello(owner, conversation) }).await;
    world.claim_one().await
}

async fn run(world: &World, owner: &UserId) -> Fence {
    run_in(world, owner, &conversation()).await
}

async fn ask(world: &World, owner: &UserId, fence: &Fence, reserve: &ReservationRequest) -> Option<ReservationOutcome> {
    world.store.reserve(fence, owner, reserve).await.unwrap()
}

/// Reserves and returns the day of the reservation.
async fn granted(world: &World, owner: &UserId, fence: &Fence, reserve: &ReservationRequest) -> i64 {
    match ask(world, owner, fence, reserve).await {
        Some(ReservationOutcome::Granted { day }) => day,
        other => panic!("not granted: {other:?}"),
    }
}

async fn settle(world: &World, fence: &Fence, day: i64, amount: Amount) {
    world.commit_one(changes(fence, vec![Change::ChargeBudget { day, amount }])).await.unwrap();
}

async fn reservation_counts_until_settlement(world: &World) {
    let (ann, bob) = (user(), user());
    let (one, two) = (run(world, &ann).await, run(world, &ann).await);
    let day = granted(world, &ann, &one, &call(60, "0.5")).await;
    assert!(day > 20_000, "days are counted from 1970: {day}");
    assert_eq!(ask(world, &ann, &two, &call(41, "0")).await, Some(ReservationOutcome::Busy));
    assert_eq!(
        ask(world, &ann, &two, &call(0, "0.500000000001")).await,
        Some(ReservationOutcome::Busy),
        "cost is a separate limit"
    );
    granted(world, &ann, &two, &call(40, "0.5")).await;
    // A run has at most one reservation.
    assert_eq!(ask(world, &ann, &one, &call(61, "0.5")).await, Some(ReservationOutcome::Busy));
    granted(world, &ann, &one, &call(60, "0.5")).await;
    let others = run(world, &bob).await;
    granted(world, &bob, &others, &call(100, "1")).await;

    settle(world, &one, day, amount(20, "0.25")).await;
    settle(world, &two, day, amount(30, "0.25")).await;
    granted(world, &ann, &two, &call(50, "0.5")).await;
    settle(world, &two, day, amount(50, "0.5")).await;
    let answer = ask(world, &ann, &one, &call(1, "0.25")).await;
    let Some(ReservationOutcome::Spent { of: BudgetScope::Day, spent, resets_in_ms: Some(left) }) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(spent, amount(100, "1"));
    assert!((1..=u64::try_from(DAY_MS).unwrap()).contains(&left), "{left}");
    // Both settlements in one batch.
    let twice =
        vec![Change::ChargeBudget { day, amount: amount(1, "0.1") }, Change::ChargeBudget { day, amount: amount(2, "0.2") }];
    world.commit_one(changes(&others, twice)).await.unwrap();
    let Some(ReservationOutcome::Spent { spent, .. }) = ask(world, &bob, &others, &call(98, "0.1")).await else {
        panic!("3 are spent")
    };
    assert_eq!(spent, amount(3, "0.3"));
}

async fn reservation_is_spent_on_lease_loss_and_freed_on_release(world: &World) {
    let profile = AgentProfile {
        budget: Budget { day: Allowance { tokens: Some(100), usd: None }, ..Budget::default() },
        ..AgentProfile::default()
    };
    let ann = user();
    world.accept(AcceptRun { profile, ..hello(&ann, &conversation()) }).await;
    let (one, two) = (world.claim_one().await, run(world, &ann).await);
    let day = granted(world, &ann, &one, &call(60, "0.5")).await;
    assert_eq!(ask(world, &ann, &two, &call(60, "0")).await, Some(ReservationOutcome::Busy));
    assert_eq!(world.load(&one).await.lost, None, "the reservation is under way");
    // After a takeover, the usage of the call is unknown. The old fence has no reservation.
    let newer = world.store.raise_fence(&one, 1).await.unwrap().unwrap();
    let lost = LostReservation { day, amount: amount(60, "0.5") };
    assert_eq!(world.load(&newer).await.lost, Some(lost));
    let answer = ask(world, &ann, &two, &call(60, "0")).await;
    let Some(ReservationOutcome::Spent { of: BudgetScope::Day, spent, .. }) = answer else {
        panic!("no wait gives it back: {answer:?}")
    };
    assert_eq!(spent, lost.amount);
    granted(world, &ann, &two, &call(40, "0")).await;
    assert_eq!(ask(world, &ann, &one, &call(1, "0")).await, None);
    world.commit_one(changes(&one, vec![Change::ChargeBudget { day, amount: lost.amount }])).await.unwrap_err();
    // The new owner of the lease settles with its estimate.
    settle(world, &newer, day, amount(50, "0.25")).await;
    assert_eq!(world.load(&newer).await.lost, None);
    granted(world, &ann, &newer, &call(10, "0")).await;
    // A worker that releases the run settles zero usage.
    settle(world, &newer, day, Amount::default()).await;
    world.commit_one(released(&newer, None, ReleaseCause::Waiting)).await.unwrap();
    assert_eq!(ask(world, &ann, &newer, &call(1, "0")).await, None);
    let three = run(world, &ann).await;
    granted(world, &ann, &three, &call(10, "0")).await;
    settle(world, &two, day, Amount::default()).await;
    world.commit_one(completed(&two)).await.unwrap();
    granted(world, &ann, &three, &call(50, "0")).await;
}

async fn refused_reservation_holds_nothing(world: &World) {
    let ann = user();
    let (one, two) = (run(world, &ann).await, run(world, &ann).await);
    granted(world, &ann, &one, &call(60, "0")).await;
    granted(world, &ann, &two, &call(10, "0")).await;
    assert_eq!(ask(world, &ann, &one, &call(91, "0")).await, Some(ReservationOutcome::Busy));
    granted(world, &ann, &two, &call(100, "0")).await;
    assert!(matches!(ask(world, &ann, &two, &call(101, "0")).await, Some(ReservationOutcome::Spent { .. })));
    granted(world, &ann, &one, &call(100, "0")).await;
}

async fn a_conversation_has_a_budget_of_its_own(world: &World) {
    let (ann, talk) = (user(), conversation());
    let first = run_in(world, &ann, &talk).await;
    let usage = Usage { input_tokens: 20, output_tokens: 10, cost: Some("0.125".parse().unwrap()), ..Usage::default() };
    world.commit_one(changes(&first, vec![Change::SetUsage(usage)])).await.unwrap();
    world.commit_one(completed(&first)).await.unwrap();
    let second = run_in(world, &ann, &talk).await;
    let of_talk = |tokens, cost: &str, most, dollars: &str| ReservationRequest {
        amount: amount(tokens, cost),
        conversation: Allowance { tokens: most, usd: usd(dollars) },
        day: Allowance::default(),
    };
    granted(world, &ann, &second, &of_talk(10, "0.125", Some(40), "0.25")).await;
    let spent = Some(ReservationOutcome::Spent { of: BudgetScope::Conversation, spent: amount(30, "0.125"), resets_in_ms: None });
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
    let granted = answers.iter().filter(|answer| matches!(answer, Some(ReservationOutcome::Granted { .. }))).count();
    assert_eq!(granted, 3, "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| **answer == Some(ReservationOutcome::Busy)).count(), 9);
}

async fn spending_outlives_its_conversation(world: &World) {
    let (ann, talk) = (user(), conversation());
    let fence = run_in(world, &ann, &talk).await;
    let day = granted(world, &ann, &fence, &call(90, "0")).await;
    settle(world, &fence, day, amount(90, "0")).await;
    granted(world, &ann, &fence, &call(10, "0")).await;
    world.store.delete_conversation(&ann, &talk).await.unwrap().unwrap();
    assert_eq!(ask(world, &ann, &fence, &call(1, "0")).await, None);
    let next = run(world, &ann).await;
    let answer = ask(world, &ann, &next, &call(1, "0")).await;
    let Some(ReservationOutcome::Spent { spent, .. }) = answer else { panic!("with the call that was under way: {answer:?}") };
    assert_eq!(spent, amount(100, "0"));
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

async fn titles_are_spent_from_the_same(world: &World) {
    let (ann, talk) = (user(), conversation());
    world.accept(AcceptRun { create_with_title: Some(String::new()), parts: text("tea"), ..hello(&ann, &talk) }).await;
    let fence = world.claim_one().await;
    let day = granted(world, &ann, &fence, &call(50, "0")).await;
    settle(world, &fence, day, amount(20, "0.25")).await;
    world.commit_one(completed(&fence)).await.unwrap();
    let usage = Usage { input_tokens: 30, output_tokens: 5, cost: Some("0.125".parse().unwrap()), ..Usage::default() };
    let was = world.store.claim_title(&ann, &talk).await.unwrap().unwrap();
    let made = GeneratedTitle {
        owner: ann.clone(),
        conversation: talk.clone(),
        was,
        title: Some("Tea".to_owned()),
        model: "small/titles".to_owned(),
        usage: Some(usage),
        budget_of: Some(fence.run_id.clone()),
        now: NOW,
    };
    assert_eq!(world.store.finish_title(made).await.unwrap().len(), 1);
    let next = run_in(world, &ann, &talk).await;
    let Some(ReservationOutcome::Spent { spent, .. }) = ask(world, &ann, &next, &call(46, "0")).await else {
        panic!("55 are spent")
    };
    assert_eq!(spent, amount(55, "0.375"));
    let of_talk =
        ReservationRequest { conversation: Allowance { tokens: Some(40), usd: None }, day: Allowance::default(), ..call(6, "0") };
    let spent = Some(ReservationOutcome::Spent { of: BudgetScope::Conversation, spent: amount(35, "0.125"), resets_in_ms: None });
    assert_eq!(ask(world, &ann, &next, &of_talk).await, spent);
    granted(world, &ann, &next, &call(45, "0")).await;
}

async fn embeddings_are_spent_from_the_same(world: &World) {
    let (ann, bob) = (user(), user());
    let day = Allowance { tokens: Some(100), usd: usd("1") };
    let reserve = async |owner, wanted| world.store.reserve_embeddings(owner, wanted, day).await.unwrap();
    let charge = async |owner, reserved, used: Option<Amount>, is_cost_known| {
        let used = used.map(|used| ("acme/vectors".to_owned(), used));
        world.store.charge_embeddings(owner, &EmbeddingCharge { reserved, used, is_cost_known }).await.unwrap();
    };
    let fence = run(world, &ann).await;
    granted(world, &ann, &fence, &call(30, "0")).await;
    assert_eq!(reserve(&ann, amount(71, "0")).await, ReservationOutcome::Busy, "a run has reserved the rest");
    let ReservationOutcome::Granted { day: today } = reserve(&ann, amount(60, "0.5")).await else { panic!("60 of 70 are left") };
    assert!(matches!(ask(world, &ann, &fence, &call(41, "0")).await, Some(ReservationOutcome::Spent { .. })));
    // The request was shorter than its estimate.
    charge(&ann, Some((today, amount(60, "0.5"))), Some(amount(20, "0.125")), true).await;
    granted(world, &ann, &fence, &call(80, "0.875")).await;
    settle(world, &fence, today, amount(0, "0")).await;
    // A failed call costs nothing.
    let wanted = amount(50, "0");
    assert_eq!(reserve(&ann, wanted).await, ReservationOutcome::Granted { day: today });
    charge(&ann, Some((today, wanted)), None, true).await;
    let ReservationOutcome::Spent { spent, .. } = reserve(&ann, amount(81, "0")).await else { panic!("20 are spent") };
    assert_eq!(spent, amount(20, "0.125"));
    charge(&ann, None, Some(amount(5, "0")), false).await;
    charge(&bob, None, Some(amount(7, "0")), false).await;

    let filter = |owner: &UserId| UsageFilter::by_day_and_model(Some(owner.clone()), UnixMillis((today - 1) * DAY_MS));
    let usage = async |owner| world.store.usage(&filter(owner), &PageRequest { limit: 100, after: None }).await.unwrap().items;
    let of_ann = usage(&ann).await.into_iter().find(|row| row.model.as_deref() == Some("acme/vectors")).unwrap();
    assert_eq!((of_ann.runs, of_ann.usage.model_calls, of_ann.usage.input_tokens), (0, 2, 25));
    assert_eq!(of_ann.usage.cost.map(|cost| cost.to_string()).as_deref(), Some("0.125"));
    let [of_bob] = usage(&bob).await.try_into().unwrap();
    assert_eq!((of_bob.usage.input_tokens, of_bob.usage.output_tokens, of_bob.usage.cost), (7, 0, None));
}

async fn days_gone_by_are_forgotten(world: &World) {
    let ann = user();
    let fence = run(world, &ann).await;
    granted(world, &ann, &fence, &call(1, "0")).await;
    let insert = |day: &str, run: usize| {
        format!(
            "INSERT INTO spending (owner_id, day, run_id, conversation_id) SELECT owner_id, day - {day}, 'run_{run}', conversation_id
             FROM spending WHERE run_id = '{}' RETURNING CAST(day AS text)",
            fence.run_id.as_str()
        )
    };
    for (day, run) in [("1", 1), ("2", 2), ("3", 3)] {
        world.database.rows(&insert(day, run)).await;
    }
    assert_eq!(world.store.remove_old_spending().await.unwrap(), 2);
    assert_eq!(world.store.remove_old_spending().await.unwrap(), 0);
    assert_eq!(world.database.count("SELECT CAST(count(*) AS text) FROM spending").await, 2, "today and yesterday");
}
