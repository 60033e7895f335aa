//! The boundaries between two stored steps at which a process may be killed.

/// One boundary. `name` is its row in `docs/faults.md`, and a suffix after a dash tells several points of one row apart.
pub struct Point {
    /// The name in reports and coverage.
    pub name: &'static str,
    /// The failpoint in the code.
    pub failpoint: &'static str,
    pub scenario: Scenario,
    /// How often a run reaches the point.
    pub often: Often,
    /// The passes besides the first at which the quick form tries the point.
    pub also: &'static [usize],
}

/// The work around a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Rounds of tools of each replay class, then a text answer.
    Turn,
    /// The same with unsafe tools that act at once and answer late.
    SlowTools,
    /// The first model call fails.
    Retry,
    /// The model's first answer ends after a call, without a finish reason.
    CutCall,
    /// The first call needs an approval and gets it.
    Approval,
    /// The run is cancelled while the model streams.
    Cancel,
    /// The run is cancelled while a tool call is under way.
    CancelTool,
    /// The conversation is deleted while the model streams.
    Delete,
    /// The server that worked on the run was killed before.
    Takeover,
    /// The conversation exceeds the context window: a summary replaces the older messages.
    Summary,
    /// No run: the command that encrypts secrets with another master key, beside a server that uses them.
    Rotation,
}

/// How often a point is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Often {
    /// On this pass.
    At(usize),
    /// At least twice.
    Twice,
    /// Once for each answer of the model.
    Answers,
    /// Once for each answer of the model but the first.
    LaterAnswers,
    /// Once for each tool call.
    Calls,
    /// Once for each result that arrives while other calls of the round are under way.
    Siblings,
}

const fn point(name: &'static str, scenario: Scenario, often: Often) -> Point {
    Point { name, failpoint: name, scenario, often, also: &[] }
}

pub const POINTS: &[Point] = &[
    point("C01", Scenario::Turn, Often::At(1)),
    point("C02", Scenario::Turn, Often::At(1)),
    point("C03", Scenario::Turn, Often::At(1)),
    point("C04", Scenario::Turn, Often::At(1)),
    point("C05", Scenario::Turn, Often::At(1)),
    // The last answer, too: only text follows the tools.
    Point { also: &[3], ..point("C06", Scenario::Turn, Often::Answers) },
    point("C07", Scenario::Turn, Often::Twice),
    // The write was sent to the database, which may receive it long after the lease expires.
    Point { failpoint: "outgoing-deltas", ..point("C07-outgoing", Scenario::Turn, Often::At(1)) },
    Point { also: &[3], ..point("C08", Scenario::Turn, Often::Answers) },
    point("C09", Scenario::Turn, Often::Calls),
    Point { also: &[3, 4], ..point("C10", Scenario::Turn, Often::Calls) },
    point("C11", Scenario::Turn, Often::Calls),
    point("C12", Scenario::SlowTools, Often::Calls),
    Point { also: &[3, 4], ..point("C13", Scenario::Turn, Often::Calls) },
    Point { failpoint: "outgoing-outcome", ..point("C13-outgoing", Scenario::SlowTools, Often::At(1)) },
    point("C14", Scenario::Turn, Often::Siblings),
    Point { also: &[2], ..point("C15", Scenario::Turn, Often::LaterAnswers) },
    // The run waits for a human and holds no lease.
    Point { failpoint: "C19", ..point("C17", Scenario::Approval, Often::At(1)) },
    // The decision is stored, and no worker is notified.
    point("C18-answered", Scenario::Approval, Often::At(1)),
    // A worker has claimed the run for it.
    Point { failpoint: "C04", ..point("C18", Scenario::Approval, Often::At(2)) },
    point("C19", Scenario::Retry, Often::At(1)),
    // The timer has fired: the second claim.
    Point { failpoint: "C04", ..point("C19-fires", Scenario::Retry, Often::At(2)) },
    Point { failpoint: "C19", ..point("C19-cut", Scenario::CutCall, Often::At(1)) },
    // The cancellation is stored, and no worker is notified.
    point("C20-asked", Scenario::Cancel, Often::At(1)),
    // The owner has the cancellation.
    point("C20", Scenario::Cancel, Often::At(1)),
    point("C21", Scenario::CancelTool, Often::At(1)),
    point("C22", Scenario::Turn, Often::At(1)),
    point("C23", Scenario::Turn, Often::At(1)),
    // The summary is about to be stored, with the start of the step.
    point("C26", Scenario::Summary, Often::At(1)),
    // The summary was stored, or waits for the next commit. The model has answered.
    Point { failpoint: "C08", ..point("C26-answered", Scenario::Summary, Often::At(1)) },
    point("C27", Scenario::Delete, Often::At(1)),
    point("C28", Scenario::Takeover, Often::At(1)),
    point("C30", Scenario::Turn, Often::At(1)),
    // Before the first of two secrets, and between them.
    Point { also: &[2], ..point("C31", Scenario::Rotation, Often::Twice) },
];

/// Crash points of `docs/faults.md` without a point, and why.
pub const WITHOUT_POINT: &[(&str, &str)] = &[
    ("C16", "results are stored in their row, whatever their size; uploads are, in pieces, before anything names them"),
    ("C24", "there are no webhooks yet"),
    ("C25", "there are no sub-agents yet"),
    ("C29", "a step of a migration is one transaction of the database, with nothing of ours between two of them"),
    ("C32", "a full disk is no point but a failure of any commit: e2e::database lets no file grow, passes.rs fails each call"),
];

/// Failpoints that are not in `docs/faults.md`, and the tests that try them.
pub const TRIED_ELSEWHERE: &[(&str, &str)] =
    &[("C04-loaded", "e2e::crash"), ("reconciled", "e2e::replay"), ("handle", "e2e::tasks"), ("accepted", "e2e::restored")];
