//! Sums of usage.

use capstan::domain::agent::AgentProfile;
use capstan::domain::ids::UserId;
use capstan::domain::model::Usage;
use capstan::domain::model::cost::Cost;
use capstan::domain::run::change::Change;
use capstan::domain::run::usage::{PeriodUsage, UsageGroup, UsagePeriod};
use capstan::store::{DAY_MS, Page, UsageFilter};
use capstan::support::clock::UnixMillis;

use super::fixture::*;

contract! {
    ;
    runs_are_added_up_by_day_owner_and_model,
    pages_and_filters,
    hours_agents_and_conversations,
}

/// Stores a run with this usage, `day` days after the first.
async fn used(world: &World, owner: &UserId, day: i64, model: &str, usage: Usage) {
    let profile = AgentProfile { model: model.to_owned(), ..AgentProfile::default() };
    let accept = capstan::store::AcceptRun { profile, now: UnixMillis(NOW.0 + day * DAY_MS), ..hello(owner, &conversation()) };
    world.accept(accept).await;
    let fence = world.claim_one().await;
    world.commit_one(changes(&fence, vec![Change::SetUsage(usage)])).await.unwrap();
}

fn tokens(input: u64, output: u64, cost: Option<&str>) -> Usage {
    let cost: Option<Cost> = cost.map(|cost| cost.parse().unwrap());
    Usage { input_tokens: input, output_tokens: output, reasoning_tokens: 1, model_calls: 1, cost, ..Usage::default() }
}

async fn all(world: &World, owner: Option<&UserId>, since_day: i64) -> Vec<PeriodUsage> {
    let since = UnixMillis((NOW.0.div_euclid(DAY_MS) + since_day) * DAY_MS);
    let filter = UsageFilter::by_day_and_model(owner.cloned(), since);
    world.store.usage(&filter, &page(100, None)).await.unwrap().items
}

async fn runs_are_added_up_by_day_owner_and_model(world: &World) {
    let (ann, bob) = (user(), user());
    assert_eq!(all(world, None, 0).await, []);
    used(world, &ann, 0, "a/one", tokens(10, 1, Some("0.000675"))).await;
    used(world, &ann, 0, "a/one", Usage { estimated: true, ..tokens(20, 2, Some("12.000000000001")) }).await;
    used(world, &ann, 0, "a/two", tokens(5, 5, None)).await;
    used(world, &ann, 1, "a/one", tokens(7, 7, Some("3"))).await;
    used(world, &bob, 0, "a/one", tokens(1_000, 1, None)).await;
    let rows = all(world, Some(&ann), 0).await;
    let shown: Vec<_> =
        rows.iter().map(|row| (row.day.as_str(), row.model.as_deref().unwrap(), row.runs, row.usage.input_tokens)).collect();
    let day = |day: i64| UnixMillis(NOW.0 + day * DAY_MS).to_rfc3339()[..10].to_owned();
    let (first, second) = (day(0), day(1));
    assert_eq!(shown, [(second.as_str(), "a/one", 1, 7), (first.as_str(), "a/one", 2, 30), (first.as_str(), "a/two", 1, 5)]);
    let sum = &rows[1].usage;
    assert_eq!((sum.output_tokens, sum.reasoning_tokens, sum.model_calls, sum.estimated), (3, 2, 2, true));
    assert_eq!(sum.cost.unwrap().to_string(), "12.000675000001");
    assert_eq!(rows[0].usage.cost.unwrap().to_string(), "3");
    assert_eq!((rows[2].usage.cost, rows[2].usage.estimated), (None, false));
    assert!(rows.iter().all(|row| row.owner_id == ann));
    assert_eq!(all(world, None, 0).await.len(), 4);
}

async fn pages_and_filters(world: &World) {
    let (ann, bob) = (user(), user());
    for day in 0..3 {
        for model in ["a/one", "a/Two", "a/été"] {
            used(world, &ann, day, model, tokens(1, 1, None)).await;
            used(world, &bob, day, model, tokens(1, 1, None)).await;
        }
    }
    let filter = UsageFilter::by_day_and_model(None, UnixMillis(NOW.0 - DAY_MS));
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let Page { items, next } = world.store.usage(&filter, &page(4, after)).await.unwrap();
        assert!(items.len() <= 4);
        seen.extend(items);
        match next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(seen.len(), 18);
    assert_eq!(seen, all(world, None, 0).await);
    assert!(seen.is_sorted_by(|one, other| one.day >= other.day));
    assert_eq!(all(world, Some(&bob), 2).await.len(), 3);
    assert_eq!(all(world, Some(&user()), 0).await, []);
}

async fn hours_agents_and_conversations(world: &World) {
    const HOUR_MS: i64 = 3_600_000;
    let (ann, midnight) = (user(), NOW.0.div_euclid(DAY_MS) * DAY_MS);
    let mut conversations = Vec::new();
    for (hour, agent) in [(0, "chat"), (0, "cms"), (1, "chat"), (23, "chat")] {
        let conversation = conversation();
        let profile = AgentProfile { name: agent.to_owned(), model: "a/one".to_owned(), ..AgentProfile::default() };
        let at = UnixMillis(midnight + hour * HOUR_MS + 1);
        world.accept(capstan::store::AcceptRun { profile, now: at, ..hello(&ann, &conversation) }).await;
        let fence = world.claim_one().await;
        world.commit_one(changes(&fence, vec![Change::SetUsage(tokens(10, 1, None))])).await.unwrap();
        conversations.push(conversation);
    }
    let embeddings = format!(
        "INSERT INTO embedding_usage (owner_id, day, model, calls, input_tokens) VALUES ('{}', {}, 'a/vectors', 1, 5)
         RETURNING CAST(day AS text)",
        ann.as_str(),
        midnight / DAY_MS
    );
    world.database.rows(&embeddings).await;
    let read = async |period, group| {
        let filter = UsageFilter { period, group, ..UsageFilter::by_day_and_model(Some(ann.clone()), UnixMillis(midnight)) };
        let mut rows = Vec::new();
        let mut after = None;
        loop {
            let Page { items, next } = world.store.usage(&filter, &page(2, after)).await.unwrap();
            rows.extend(items);
            match next {
                Some(next) => after = Some(next),
                None => return rows,
            }
        }
    };
    let by_hour = read(UsagePeriod::Hour, UsageGroup::Model).await;
    let hours: Vec<_> = by_hour.iter().map(|row| (row.hour, row.model.as_deref(), row.runs)).collect();
    let (model, vectors) = (Some("a/one"), Some("a/vectors"));
    assert_eq!(hours, [(Some(23), model, 1), (Some(1), model, 1), (Some(0), model, 2), (Some(0), vectors, 0)]);
    assert!(by_hour.iter().all(|row| row.day == UnixMillis(midnight).to_rfc3339()[..10]));
    let by_agent = read(UsagePeriod::Day, UsageGroup::Agent).await;
    let agents: Vec<_> = by_agent.iter().map(|row| (row.hour, row.agent.as_deref(), row.model.as_deref(), row.runs)).collect();
    assert_eq!(agents, [(None, None, None, 0), (None, Some("chat"), None, 3), (None, Some("cms"), None, 1)]);
    let mut by_conversation = read(UsagePeriod::Day, UsageGroup::Conversation).await;
    assert_eq!(by_conversation.remove(0).conversation_id, None, "embeddings have no conversation");
    conversations.sort_by(|one, other| one.as_str().cmp(other.as_str()));
    assert_eq!(by_conversation.into_iter().map(|row| row.conversation_id.unwrap()).collect::<Vec<_>>(), conversations);
}
