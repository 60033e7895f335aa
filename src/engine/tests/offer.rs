//! Tool selection: the tools that a model is offered.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use crate::domain::agent::{AgentProfile, OutputMode};
use crate::domain::conversation::message::{Part, Role};
use crate::domain::event::EventBody;
use crate::domain::model::{ModelErrorKind, ModelFinish, ModelOptions, ToolChoice};
use crate::domain::run::plan::{PlanPolicy, Strategy};
use crate::domain::run::record::ClaimCause;
use crate::domain::run::{FinishReason, RunStatus};
use crate::domain::tool::ToolCallState::{Cancelled, Done};
use crate::domain::tool::tool_filter::{OfferedTools, SelectionMethod, ServerHint, ToolFilter, ToolFilterMode};
use crate::domain::tool::{ASK_USER, ReplayClass, ToolDefinition};
use crate::engine::tests::world::{Say, World, call, tool};
use crate::engine::{Input, tool_query};

/// Returns `n` tools of each server, and the built-in ones.
fn many(servers: &[&str], n: usize) -> Vec<Arc<ToolDefinition>> {
    let of = |server: &str, at: usize| {
        let name = format!("{server}__t{at:02}");
        ToolDefinition { server: Some(server.to_owned()), ..tool(&name, ReplayClass::Read) }
    };
    let own = ["clock", ASK_USER].map(|name| ToolDefinition { server: None, ..tool(name, ReplayClass::Read) });
    own.into_iter().chain(servers.iter().flat_map(|server| (0..n).map(move |at| of(server, at)))).map(Arc::new).collect()
}

fn profile(filter: ToolFilter) -> AgentProfile {
    AgentProfile { tool_filter: filter, ..AgentProfile::default() }
}

fn semantic(k: usize) -> ToolFilter {
    ToolFilter { mode: ToolFilterMode::Semantic, k, ..ToolFilter::default() }
}

/// Returns a filter that offers all tools of each server that the user names.
fn whole_servers(k: usize) -> ToolFilter {
    ToolFilter { whole_servers: true, ..semantic(k) }
}

fn categories() -> ToolFilter {
    ToolFilter { mode: ToolFilterMode::Categories, k: 3, above: 5, ..ToolFilter::default() }
}

fn asked(profile: AgentProfile, says: &str, tools: Vec<Arc<ToolDefinition>>) -> World {
    let mut world = World::new(profile);
    let words = world.user(says);
    world.rows.history = vec![words];
    world.claim_with(ClaimCause::First, tools);
    world
}

fn offered(world: &World) -> Vec<&str> {
    world.asked.as_ref().expect("the model is asked").tools.iter().map(|tool| tool.name.as_str()).collect()
}

fn announced(world: &World) -> Vec<Option<OfferedTools>> {
    let steps = world.events.iter().filter_map(|event| match event {
        EventBody::StepStarted { kind, tools, .. } if kind == "model" => Some(tools.clone()),
        _ => None,
    });
    steps.collect()
}

#[test]
fn the_best_are_offered_and_what_was_called_stays() {
    let mut world = asked(profile(semantic(3)), "Hello", many(&["files", "mail"], 9));
    // The order is stable, and independent of the rank. `ask_user` belongs to the engine.
    let first = [ASK_USER, "clock", "files__t00"];
    assert_eq!(offered(&world).into_iter().collect::<BTreeSet<_>>(), BTreeSet::from(first));
    assert_eq!(announced(&world), [Some(OfferedTools { offered: 3, of: 20, by: "lexical".to_owned(), left_out: Vec::new() })]);
    // A tool that was not offered is executed when called, and offered from then on.
    world.calls(&[call("mail__t07", &json!({}))]);
    assert_eq!(world.under_way[0].server.as_deref(), Some("mail"));
    world.tool_says(0, "sent");
    assert_eq!(world.states(), [Done]);
    assert_eq!(offered(&world).len(), 4);
    assert!(offered(&world).contains(&"mail__t07"));
    // It stays on offer in a later run of the conversation, whose request contains the call.
    world.says_text("Sent.");
    assert_eq!(world.ended().status, RunStatus::Completed);
    world.followed();
}

#[test]
fn a_name_that_is_nearly_one_that_is_not_offered_is_known() {
    let mut world = asked(profile(semantic(1)), "Hello", many(&["files", "mail"], 3));
    world.calls(&[call("mail__t0x", &json!({}))]);
    let result = world.results().remove(0);
    assert!(result.contains("mail__t00") && !result.contains("files__t02"), "{result}");
}

#[rstest]
#[case::by_name("Look into MAIL, please", &["mail__t00", "mail__t08"], 9)]
#[case::by_a_word("anything in my in-box?", &["mail__t00", "mail__t08"], 9)]
#[case::by_both("move mail to files", &["files__t00", "files__t08", "mail__t00", "mail__t08"], 18)]
#[case::not_by_a_part("mailing lists", &["clock"], 2)]
fn servers_that_the_user_speaks_of_come_first(#[case] says: &str, #[case] expected: &[&str], #[case] count: usize) {
    let hint = ServerHint { words: vec!["in-box".to_owned()], ..ServerHint::default() };
    let filter = ToolFilter { servers: [("mail".to_owned(), hint)].into(), ..whole_servers(2) };
    let world = asked(profile(filter), says, many(&["files", "mail"], 9));
    let names = offered(&world);
    assert!(expected.iter().all(|name| names.contains(name)), "{names:?}");
    // All tools of the named servers, or else K, plus `ask_user`.
    assert!((count..=count + 1).contains(&names.len()), "{names:?}");
}

#[test]
fn named_server_is_offered_within_k() {
    let world = asked(profile(semantic(4)), "Look into mail", many(&["files", "mail"], 9));
    assert_eq!(offered(&world), [ASK_USER, "mail__t00", "mail__t01", "mail__t02", "mail__t03"]);
}

// `k` also limits the tools of a server that a plan step names, unless `whole_servers` is set.
#[test]
fn plan_step_offers_k_tools_of_its_named_server() {
    for (whole_servers, count) in [(false, 15), (true, 20)] {
        let tool_filter = ToolFilter { whole_servers, ..ToolFilter::default() };
        let plan = PlanPolicy { k: 15, ..PlanPolicy::default() };
        let profile = AgentProfile { strategy: Strategy::PlanExecute, plan, tool_filter, ..AgentProfile::default() };
        let mut world = asked(profile, "Sort my letters", many(&["files", "mail"], 20));
        world.says_text("[step(\"mail\", \"look for letters\")] [done()]");
        let names = offered(&world);
        assert_eq!(names.len(), count, "{names:?}");
        assert!(names.iter().all(|name| name.starts_with("mail__")), "{names:?}");
    }
}

#[test]
fn agent_without_builtin_tools_offers_those_of_servers() {
    let profile = AgentProfile { builtin_tools: Some(Vec::new()), ..AgentProfile::default() };
    let world = asked(profile.clone(), "Hello", many(&["mail"], 2));
    assert_eq!(offered(&world), ["mail__t00", "mail__t01"]);
    // Without servers, the model is called once and gets no tools.
    let mut world = asked(profile, "Hello", many(&[], 0));
    assert!(world.asked.as_ref().unwrap().tools.is_empty());
    world.says_text("Hi.");
    assert_eq!(world.ended().status, RunStatus::Completed);
    let some = AgentProfile { builtin_tools: Some(vec!["clock".to_owned()]), ..AgentProfile::default() };
    assert_eq!(offered(&asked(some, "Hello", many(&["mail"], 1))), ["clock", "mail__t00"]);
}

#[test]
fn takeover_offers_the_same_tools() {
    let mut world = asked(profile(whole_servers(3)), "Look into mail", many(&["files", "mail"], 9));
    let before = world.asked.clone().unwrap().tools;
    world.die();
    world.claim_with(ClaimCause::Crash, Vec::new());
    assert_eq!(world.asked.as_ref().unwrap().tools, before);
    // A message that joins is a new question.
    world.join("And files?");
    world.calls(&[call("clock", &json!({}))]);
    world.tool_says(0, "noon");
    assert!(offered(&world).contains(&"files__t04") && offered(&world).contains(&"clock"));
}

#[test]
fn short_query_is_ranked_with_earlier_messages() {
    let mut world = World::new(profile(semantic(3)));
    let mut earlier = world.user("Send it to Ann");
    earlier.run_id = crate::domain::ids::RunId::generate(&world.ids);
    let mut yes = world.user("Yes");
    world.rows.history = vec![earlier.clone(), yes.clone()];
    world.load(ClaimCause::First);
    assert_eq!(tool_query(world.state.as_ref().unwrap()), "Yes\nSend it to Ann");
    // A retry run has no message of its own.
    yes.run_id = crate::domain::ids::RunId::generate(&world.ids);
    world.rows.history = vec![earlier.clone(), yes.clone()];
    world.load(ClaimCause::First);
    assert_eq!(tool_query(world.state.as_ref().unwrap()), "Yes\nSend it to Ann");
    if let Part::Text(text) = &mut yes.parts[0] {
        text.text = "word ".repeat(2_000);
    }
    world.rows.history = vec![earlier, yes];
    world.load(ClaimCause::First);
    let query = tool_query(world.state.as_ref().unwrap());
    assert!(query.starts_with("word") && !query.contains("Ann") && query.chars().count() <= 4_000);
}

#[rstest]
#[case::few(profile(semantic(20)))]
#[case::large_model(profile(ToolFilter { skip_models: vec!["demo/*".to_owned()], ..semantic(3) }))]
#[case::few_for_categories(profile(ToolFilter { above: 20, ..categories() }))]
fn nothing_is_narrowed_down_where_there_is_no_need(#[case] profile: AgentProfile) {
    let world = asked(profile, "Look into mail", many(&["files", "mail"], 9));
    assert_eq!(offered(&world).len(), 20);
    assert_eq!(announced(&world), [None]);
}

#[test]
fn a_named_tool_is_on_offer() {
    let mut profile = profile(semantic(1));
    profile.options.tool_choice = Some(ToolChoice::Tool("mail__t05".to_owned()));
    let world = asked(profile, "Hello", many(&["files", "mail"], 9));
    assert!(offered(&world).contains(&"mail__t05"));
    assert!(world.asked.as_ref().unwrap().options.tool_choice.is_some());
}

fn choose(names: &Value) -> Say {
    call("select_categories", names)
}

#[rstest]
#[case::one(json!({"categories": ["mail"]}), &["mail"])]
#[case::two(json!({"categories": ["Mail", "general"]}), &["general", "mail"])]
#[case::a_text(json!({"categories": "files, mail"}), &["files", "mail"])]
#[case::some_wrong(json!({"category": ["mail", "moon"]}), &["mail"])]
fn the_model_names_categories_and_is_offered_their_tools(#[case] said: Value, #[case] wanted: &[&str]) {
    let about = ServerHint { about: "Letters and post.".to_owned(), words: Vec::new() };
    let filter = ToolFilter { servers: [("mail".to_owned(), about)].into(), ..categories() };
    let mut world = asked(profile(filter), "Write to Ann", many(&["files", "mail"], 9));
    let request = world.asked.clone().unwrap();
    let [selector] = request.tools.as_slice() else { panic!("one tool: {:?}", request.tools) };
    for line in
        ["- files (9): t00, t01, t02, t03, t04, t05, t06, t07", "- mail (9): Letters and post.", "- general (2): clock, ask_user"]
    {
        assert!(selector.description.contains(line), "{}", selector.description);
    }
    let shown = world.events.len();
    world.says(&[Say::Text("Let me see."), choose(&said)], ModelFinish::ToolCalls);
    let place = |name: &str| name.split_once("__").map_or("general", |(place, _)| place).to_owned();
    let places: BTreeSet<String> = offered(&world).into_iter().filter(|name| *name != ASK_USER).map(place).collect();
    let wanted: BTreeSet<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(places, wanted);
    // The selection of categories is a step like any other, but clients see no text of it.
    let kinds: Vec<&str> = world.events[shown..].iter().map(EventBody::kind).collect();
    assert_eq!(kinds, ["step.completed", "step.started"]);
    assert_eq!(announced(&world)[0], Some(OfferedTools { offered: 0, of: 20, by: "choosing".to_owned(), left_out: Vec::new() }));
    assert_eq!(announced(&world)[1].as_ref().unwrap().by, "categories");
    assert_eq!(world.rows.counters.rounds, 0);
    assert_eq!(world.asked.as_ref().unwrap().messages, request.messages);
    world.says_text("Written.");
    assert_eq!(world.ended().reason, Some(FinishReason::Stop));
    assert_eq!(world.rows.usage.model_calls, 2);
    assert_eq!(world.followed().iter().filter(|message| message.role == Role::Assistant).count(), 1);
}

#[test]
fn a_model_that_calls_a_tool_right_away_means_its_category() {
    let mut world = asked(profile(categories()), "Write to Ann", many(&["files", "mail"], 9));
    world.calls(&[call("mail__t03", &json!({"to": "Ann"}))]);
    assert!(world.under_way.is_empty(), "the model has not seen the schema");
    assert!(offered(&world).contains(&"mail__t08") && !offered(&world).contains(&"files__t00"));
}

#[rstest]
#[case::words(&[Say::Text("I have no tools.")], ModelFinish::Stop)]
#[case::nothing(&[], ModelFinish::Stop)]
#[case::no_such(&[Say::Call("select_categories", r#"{"categories": ["moon"]}"#.to_owned())], ModelFinish::ToolCalls)]
#[case::no_json(&[Say::Call("select_categories", "{\"categ".to_owned())], ModelFinish::Length)]
#[case::another_tool(&[Say::Call("fly", "{}".to_owned())], ModelFinish::ToolCalls)]
#[case::refused(&[Say::Text("No.")], ModelFinish::Refused)]
fn a_model_that_names_no_category_is_offered_the_best(#[case] says: &[Say], #[case] finish: ModelFinish) {
    let mut world = asked(profile(categories()), "Look into mail", many(&["files", "mail"], 9));
    world.says(says, finish);
    assert_eq!(announced(&world)[1].as_ref().unwrap().by, "lexical");
    assert!(offered(&world).contains(&"mail__t00"), "{:?}", offered(&world));
    world.says_text("Done.");
    assert_eq!(world.ended().reason, Some(FinishReason::Stop));
    assert!(world.followed().iter().all(|message| message.text() != "I have no tools."));
}

#[test]
fn category_question_is_skipped_for_one_server() {
    let own = |tool: &ToolDefinition| tool.server.is_none();
    let mut tools = many(&["files"], 9);
    tools.retain(|tool| !own(tool));
    let world = asked(profile(categories()), "Hello", tools);
    assert_eq!(offered(&world), ["files__t00", "files__t01", "files__t02"]);
}

#[test]
fn category_question_is_repeated_after_crash_or_failure() {
    let mut world = asked(profile(categories()), "Write to Ann", many(&["files", "mail"], 9));
    world.show(&[Say::Text("Let me")]);
    world.die();
    world.claim_with(ClaimCause::Crash, Vec::new());
    assert_eq!(offered(&world), ["select_categories"]);
    world.fails(ModelErrorKind::Overloaded);
    world.claim_with(ClaimCause::Timer, Vec::new());
    assert_eq!(offered(&world), ["select_categories"]);
    world.calls(&[choose(&json!({"categories": ["mail"]}))]);
    world.die();
    world.claim_with(ClaimCause::Crash, Vec::new());
    assert_eq!(offered(&world).len(), 10);
    assert_eq!(world.rows.counters.chosen_tools.as_ref().unwrap().by, SelectionMethod::Categories);
}

#[test]
fn a_question_for_categories_that_is_cancelled_leaves_no_words() {
    let mut world = asked(profile(categories()), "Write to Ann", many(&["files", "mail"], 9));
    world.show(&[Say::Text("Let me see.")]);
    let partial = world.hang_up();
    world.feed(Input::CancelRequested { by: "user".to_owned(), partial, stopped: Vec::new() });
    assert_eq!(world.ended().status, RunStatus::Cancelled);
    assert!(world.rows.history.iter().all(|message| message.role == Role::User));
    world.check_next_turn();
    world.followed();
}

#[test]
fn earlier_calls_are_not_sent_with_the_question_for_categories() {
    let mut world = asked(profile(categories()), "Write to Ann", many(&["files", "mail"], 9));
    world.calls(&[choose(&json!({"categories": ["mail"]}))]);
    world.join("And look at the clock.");
    world.calls(&[call("mail__t00", &json!({}))]);
    world.tool_says(0, "ok");
    let request = world.asked.clone().unwrap();
    assert_eq!(offered(&world), ["select_categories"], "a message that joins is a new question");
    assert!(request.messages.iter().all(|message| message.tool_calls().next().is_none() && message.role != Role::Tool));
    world.calls(&[choose(&json!({"categories": ["general"]}))]);
    assert_eq!(offered(&world), ["clock", ASK_USER, "mail__t00"]);
    let request = world.asked.clone().unwrap();
    assert!(request.messages.iter().any(|message| message.role == Role::Tool));
}

#[test]
fn models_that_answer_in_objects_choose_in_objects() {
    let profile = AgentProfile { output: OutputMode::Structured, ..profile(categories()) };
    let mut world = asked(profile, "Write to Ann", many(&["files", "mail"], 9));
    assert!(world.asked.as_ref().unwrap().system.contains("select_categories"));
    world.says_text(r#"{"tool": "select_categories", "arguments": {"categories": ["mail"]}}"#);
    let system = world.asked.as_ref().unwrap().system.clone();
    assert!(system.contains("mail__t08") && !system.contains("files__t00"), "{system}");
    world.says_text(r#"{"answer": "Written."}"#);
    assert_eq!(world.ended().reason, Some(FinishReason::Stop));
}

#[test]
fn forced_call_waits_for_the_tool_choice() {
    let options = ModelOptions { tool_choice: Some(ToolChoice::Required), ..ModelOptions::default() };
    let mut world = asked(AgentProfile { options, ..profile(categories()) }, "Write", many(&["files", "mail"], 9));
    assert_eq!(world.asked.as_ref().unwrap().options.tool_choice, None);
    world.calls(&[choose(&json!({"categories": ["mail"]}))]);
    assert_eq!(world.asked.as_ref().unwrap().options.tool_choice, Some(ToolChoice::Required));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn offer_is_bounded_and_contains_every_called_tool(
        says in any::<String>(),
        hint in any::<String>(),
        k in 1..8_usize,
        called in 0..120_usize,
    ) {
        let tools = many(&["files", "メール"], 60);
        let hint = ServerHint { words: vec![hint], ..ServerHint::default() };
        let filter = ToolFilter { servers: [("files".to_owned(), hint)].into(), ..whole_servers(k) };
        let name: &'static str = Box::leak(tools[called + 2].name.clone().into_boxed_str());
        let mut world = asked(profile(filter.clone()), &says, tools.clone());
        let again = asked(profile(filter), &says, tools);
        prop_assert_eq!(offered(&world), offered(&again));
        // All tools together would be 122.
        prop_assert!(offered(&world).len() <= 101);
        world.calls(&[call(name, &json!({}))]);
        world.tool_says(0, "ok");
        prop_assert!(offered(&world).contains(&name));
        prop_assert!(offered(&world).len() <= 102);
        prop_assert!(!world.states().contains(&Cancelled));
    }
}
