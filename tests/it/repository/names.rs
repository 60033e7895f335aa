//! Types and functions have names of the field, and the terms of the glossary exist in the code.

use std::collections::BTreeSet;

use super::{files, read};

/// Names of types that say nothing about the type: participles, metaphors and words of everyday language.
#[rustfmt::skip]
const BANNED_TYPES: &[&str] = &[
    "Accent", "Accepted", "Allowed", "Asked", "Asker", "Asking", "Asks", "Attentive", "Authorized",
    "Begin", "Beginning", "Beside", "Bond", "Breaker", "BudgetOf", "Cancelled", "Carried", "ChosenBy", "ChosenTools",
    "Claims", "Committed", "Common", "Compacted", "Consent", "ContentKeeper", "Copied", "Created", "CutShort", "Desk",
    "Door", "DoorOptions", "Doubt", "Drive", "Edited", "Elsewhere", "End", "Ended", "Ending", "Exchanged", "Expanded",
    "Expired", "Facts", "FallbacksFor", "Fate", "Fault", "FeedbackGiven", "Fenced", "FoldMode", "FoldStep", "Folded",
    "Folder", "Forbidden", "Found", "FoundIn", "Full", "Gauge", "Given", "GoOn", "Greeted", "Guard", "Happened",
    "Health", "Heard", "Held", "HeldGuard", "IdleFor", "Joined", "Judged", "Kept", "KeptInStore", "KeptServer",
    "KeptServers", "Keyed", "Known", "KnowsModel", "LastWords", "Learned", "Left", "LeftOut", "Listed",
    "Listening", "Listing", "Live", "LoginTaker", "Lost", "Made", "Mark", "Masks", "Meant", "Mended", "Merger",
    "Missing", "Moving", "NamedChanged", "NamedMade", "News", "Noise", "Numbers", "Once", "OneTooMany",
    "Opener", "Outbox", "Own", "OwnItem", "Owned", "Parted", "Parting", "Pause", "Pauses", "Peers", "Place",
    "PlaceHash", "Placed", "Planned", "Polled", "Prepared", "Proof", "Protected", "Pulse", "Rated", "Reach", "Readers",
    "Ready", "Redeemed", "Refreshed", "Refused", "Remedy", "Removal", "Renamed", "Rendered", "Reserve", "Reserved",
    "Resolved", "Rested", "Resumed", "Rewound", "Room", "Said", "Sampled", "Samples", "Sealed", "SealedRow", "Seat",
    "SecretOf", "Seen", "SeenDefinition", "SeenTool", "Settled", "Shortfall", "Shown", "ShownAgent",
    "ShownMcpServer", "ShownScope", "Sight", "Spending", "Spent", "Stage", "Standing", "Started", "Step", "Stopped",
    "Strays", "Surround", "Surroundings", "SystemPlace", "Taken", "TakenOut", "Taker", "Tally", "ThoughtsInText",
    "Tidied", "Tidier", "TidyAges", "Tidying", "TitleMade", "TokenKeeper", "Told", "ToolSays", "ToolsOffered",
    "Underway", "Unfit", "Unmarked", "Verdict", "Waited", "WakeElsewhere", "Wanted", "Wants", "Watch", "Watched",
    "What", "WithoutVectors", "Words", "Written",
];

/// Names of functions without a verb and an object, or with a metaphor.
#[rustfmt::skip]
const BANNED_FUNCTIONS: &[&str] = &[
    "are_left", "around", "at_home", "bearing_silence", "bears", "blind", "bury", "came", "chores", "dismiss", "excuse",
    "farewell", "find_out", "forgive", "give_back", "give_in", "go_on", "going_on", "greet", "hand_on", "hang_up",
    "has_told", "hear", "insist", "is_resting", "is_said_again", "is_unheard", "judge", "keeps_waiting", "kept",
    "lacks", "leave", "let_go", "lets_go", "look_after", "look_again", "look_at", "misunderstood", "most_named",
    "narrows", "next_look", "nobody_knows", "once_more", "or_refused", "own_of", "own_pace", "patiently", "quarantine",
    "reached", "reached_after", "said", "said_in", "said_window", "say", "says_failure", "says_nothing",
    "says_something", "shown", "sift", "sight", "soon", "speaking", "spread", "stands_for", "still_going", "strangers",
    "swallows", "take_up", "taken", "taken_out", "tell", "teller", "tend", "thinks_aloud", "told_text", "turning_away",
    "way_out", "went_back", "widen",
];

/// Banned names that still exist: the file and the name. This list may only shrink.
const ALLOWED: &[(&str, &str)] = &[
    ("src/app/process/log.rs", "shown"),
    ("src/provider/demo/client.rs", "said"),
    ("src/service/conversations/snippet.rs", "shown"),
    ("src/support/json.rs", "Known"),
    ("src/tools/mcp/config/arguments.rs", "shown"),
    ("src/tools/mcp/transport/ending.rs", "Ending"),
];

/// Terms of `docs/glossary.md` that are types or modules, each with the name of the type, or of the file or folder.
const TERMS_IN_CODE: &[(&str, &str)] = &[
    ("conversation", "Conversation"),
    ("message", "Message"),
    ("part", "Part"),
    ("run", "Run"),
    ("step", "StepKind"),
    ("tool call", "ToolCall"),
    ("event", "StoredEvent"),
    ("agent", "AgentRecord"),
    ("agent profile", "AgentProfile"),
    ("provider", "ProviderRecord"),
    ("question", "Question"),
    ("approval", "Approval"),
    ("grant", "ToolGrant"),
    ("tool review", "ToolReview"),
    ("claim", "Claim"),
    ("lease", "leases"),
    ("epoch, fence", "Fence"),
    ("heartbeat", "heartbeat"),
    ("hand-off", "handoff"),
    ("orphaned claim", "orphaned_claims"),
    ("sweep", "Sweep"),
    ("low-water mark", "low_water_marks"),
    ("durability: before, behind", "durability"),
    ("replay class", "ReplayClass"),
    ("reservation, settlement", "reservation"),
    ("circuit breaker", "circuit_breaker"),
    ("decision", "Decision"),
    ("run facts, run progress", "RunFacts"),
    ("strategy", "Strategy"),
    ("context window", "context_window"),
    ("eviction, compaction", "eviction"),
    ("summary", "ContextSummary"),
    ("stop analysis", "stop_analysis"),
    ("duplicate call", "duplicates"),
    ("JSON repair, name repair", "json_repair"),
    ("event log", "LogStore"),
    ("cursor", "Cursor"),
    ("subscriber, lagging subscriber", "Subscription"),
    ("delta compaction", "delta_compaction"),
    ("snapshot", "Snapshot"),
    ("ticket", "StreamTicket"),
    ("dialect", "Dialect"),
    ("quirk", "Quirks"),
    ("answer assembler", "assembler"),
    ("finish reason, usage, pricing", "FinishReason"),
    ("reasoning, thinking block, signature", "ReasoningPart"),
    ("tool executor", "ToolExecutor"),
    ("tool definition", "ToolDefinition"),
    ("orphaned process", "orphans"),
    ("secret redaction", "redact"),
    ("encryption at rest, master key, key rotation", "MasterKey"),
    ("idempotency key, replayed response", "idempotency_keys"),
    ("principal, role, group", "Principal"),
    ("retention, archive, purge", "retention"),
    ("clone detection", "clone_detection"),
    ("copy, fork, import, export, rewind", "fork"),
    ("problem, problem code", "ProblemCode"),
];

/// Returns the names that declarations with one of these keywords introduce in a file.
fn declared<'t>(text: &'t str, keywords: &'static [&'static str]) -> impl Iterator<Item = &'t str> {
    let code = text.lines().map(str::trim_start).filter(|line| !line.starts_with("//"));
    code.flat_map(move |line| {
        keywords.iter().filter_map(move |keyword| {
            let (before, rest) = line.split_once(keyword)?;
            let is_declaration = before.is_empty() || before.starts_with("pub") || before == "async " || before == "const ";
            let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
            (is_declaration && !name.is_empty()).then_some(name)
        })
    })
}

const TYPES: &[&str] = &["struct ", "enum ", "trait ", "type "];

#[test]
fn no_type_or_function_has_a_banned_name() {
    let mut found = Vec::new();
    for file in files("src", "rs").into_iter().filter(|file| !file.starts_with("src/engine/tests")) {
        let (name, text) = (file.to_str().unwrap().to_owned(), read(&file));
        let types = declared(&text, TYPES).filter(|declared| BANNED_TYPES.contains(declared));
        let functions = declared(&text, &["fn "]).filter(|declared| BANNED_FUNCTIONS.contains(declared));
        found.extend(types.chain(functions).map(|declared| (name.clone(), declared.to_owned())));
    }
    let is_allowed = |(file, name): &(String, String)| ALLOWED.contains(&(file.as_str(), name.as_str()));
    let unused: Vec<_> = ALLOWED.iter().filter(|(file, name)| !found.contains(&((*file).to_owned(), (*name).to_owned()))).collect();
    assert!(unused.is_empty(), "remove these exceptions: {unused:?}");
    found.retain(|declaration| !is_allowed(declaration));
    assert!(found.is_empty(), "name these by what they are or do: {found:#?}");
}

#[test]
fn each_glossary_term_in_code_exists() {
    let page = read("docs/glossary.md");
    let mut names = BTreeSet::new();
    for file in files("src", "rs") {
        names.extend(declared(&read(&file), TYPES).map(str::to_owned));
        names.extend(file.with_extension("").iter().map(|part| part.to_str().unwrap().to_owned()));
    }
    for (term, name) in TERMS_IN_CODE {
        assert!(page.contains(&format!("- **{term}")), "docs/glossary.md should explain {term}");
        assert!(names.contains(*name), "no type, file or folder is named {name}, for the glossary's {term}");
    }
}

#[test]
fn declarations_are_found() {
    let text = "pub(super) struct Kept<'a> {\nimpl Kept {\n    pub async fn leave(&self) {\n// struct Not\nasync fn go() {}";
    assert_eq!(declared(text, TYPES).collect::<Vec<_>>(), ["Kept"]);
    assert_eq!(declared(text, &["fn "]).collect::<Vec<_>>(), ["leave", "go"]);
}
