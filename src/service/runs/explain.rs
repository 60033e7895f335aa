//! Explains the progress of a run, for people and for programs.

use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::ids::{InputId, NodeId, RunId};
use crate::domain::problem::ProblemBody;
use crate::domain::run::question::InputKind;
use crate::domain::run::{Run, RunStatus, WaitReason};
use crate::store::Explanation;

/// The cause of the progress of a run, or of its delay. In `waiting`, the run waits for `waiting_for`, or until it can be
/// claimed. In `asking`, its calls wait for a human's answer. In `no_free_slot` and `no_worker`, no worker has claimed it for a
/// while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProgressState {
    /// The run has ended.
    Ended,
    /// A worker holds the run.
    Working,
    /// A worker holds the run, and its calls wait for a human's answer.
    Asking,
    /// The lease of the worker has expired, and another worker claims the run soon.
    LeaseExpired,
    /// The run waits for `waiting_for`, or until it can be claimed.
    Waiting,
    /// The run waits for the end of `behind_run`.
    BehindRun,
    /// The run waits because of the limit of its owner's running runs.
    OwnerLimit,
    /// The next free worker claims the run.
    Queued,
    /// No worker has claimed the run for a while: probably none has a free slot.
    NoFreeSlot,
    /// No worker has claimed the run for a while: probably none is alive.
    NoWorker,
}

/// The explanation of a run's progress.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct RunExplanation {
    /// The explanation in one or a few sentences.
    pub summary: String,
    /// Whether the run makes progress, or will without any action from outside.
    pub moving: bool,
    /// The state on which `summary` is based, for programs that word it themselves.
    pub state: ProgressState,
    /// The run.
    pub run: Run,
    /// The lease of the worker that holds the run.
    pub lease: Option<LeaseInfo>,
    /// How often a worker has claimed the run.
    pub attempt: u32,
    /// How many claims ended with a crash of the worker.
    pub crashes: u32,
    /// Number of runs that workers claim first, if the run can be claimed now.
    pub queue_position: Option<i64>,
    /// Milliseconds until the run can be claimed. Negative if it could already be claimed, for that many milliseconds.
    pub claimable_in_ms: Option<i64>,
    /// The active run of the same conversation that the run waits for.
    pub behind_run: Option<String>,
    /// The state of that run.
    pub behind_state: Option<ProgressState>,
    /// The reason why that run waits, if its state is `waiting`.
    pub behind_waiting_for: Option<WaitReason>,
    /// The reason why the run waits.
    pub waiting_for: Option<WaitReason>,
    /// The questions of the run without an answer.
    pub questions: Vec<ExplainedQuestion>,
    /// The user who requested the cancellation.
    pub cancel_requested_by: Option<String>,
    /// The newest step of the run.
    pub step: Option<StepInfo>,
    /// Tools whose calls have started and have no outcome.
    pub tools_under_way: Vec<String>,
    /// The last error of the run.
    pub last_error: Option<ProblemBody>,
    /// Whether the run has failed and can be resumed.
    pub resumable: bool,
}

/// A sentence about a run, with the facts on which it is based.
struct ProgressText {
    state: ProgressState,
    moving: bool,
    text: String,
}

impl ProgressText {
    fn new(state: ProgressState, moving: bool, text: impl Into<String>) -> Self {
        Self { state, moving, text: text.into() }
    }
}

/// The lease of the worker that holds the run.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct LeaseInfo {
    /// The name of the server process.
    pub node: String,
    /// Milliseconds since the worker claimed the run.
    pub age_ms: i64,
    /// Milliseconds until the lease expires without a renewal. Negative if it has expired.
    pub expires_in_ms: i64,
}

/// A question without an answer.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ExplainedQuestion {
    /// The id of the question, which the answer names.
    pub id: InputId,
    /// The kind of the question. An `approval` is answered through the approvals API.
    pub kind: InputKind,
    /// The text of the question.
    pub text: String,
}

/// The newest step of a run.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct StepInfo {
    /// The number of the step.
    pub number: u32,
    /// `model` or `tools`.
    pub kind: String,
    /// `started`, `completed` or `abandoned`.
    pub status: String,
    /// Milliseconds since the step began.
    pub age_ms: i64,
}

impl RunExplanation {
    /// Explains a run. `active_run` contains the known facts about the run that it is queued behind.
    pub fn new(explanation: Explanation, active_run: Option<&Explanation>) -> Self {
        // A run that has ended meanwhile no longer blocks this one.
        let active_run = active_run.filter(|active_run| !active_run.run.status.is_terminal());
        let ProgressText { state, moving, text: summary } = summary(&explanation, active_run);
        let behind = active_run.filter(|_| state == ProgressState::BehindRun).map(|run| (active_run_text(run, None).state, run));
        let waiting = behind.filter(|(state, _)| *state == ProgressState::Waiting);
        let lease = explanation.lease_node.map(|node| LeaseInfo {
            node: node.as_str().to_owned(),
            age_ms: explanation.lease_age_ms.unwrap_or_default(),
            expires_in_ms: explanation.lease_expires_in_ms.unwrap_or_default(),
        });
        Self {
            summary,
            moving,
            state,
            lease,
            attempt: explanation.run.attempt,
            crashes: explanation.crashes,
            queue_position: explanation.queue_position,
            claimable_in_ms: explanation.claimable_in_ms,
            behind_run: explanation.behind_run.map(|run| run.as_str().to_owned()),
            behind_state: behind.map(|(state, _)| state),
            behind_waiting_for: waiting.and_then(|(_, active_run)| active_run.run.reason),
            waiting_for: explanation.run.reason,
            questions: explanation.questions.into_iter().map(|(id, kind, text)| ExplainedQuestion { id, kind, text }).collect(),
            cancel_requested_by: explanation.cancel_requested_by,
            step: explanation.step.map(|(number, kind, status, age_ms)| StepInfo { number, kind, status, age_ms }),
            tools_under_way: explanation.tools_under_way,
            last_error: explanation.run.error.clone(),
            resumable: explanation.resumable,
            run: explanation.run,
        }
    }
}

/// A run that has been claimable for longer is not just waiting for the next poll of a worker.
const TAKEN_UP_WITHIN_MS: i64 = 3_000;

/// A run whose lease expired longer ago than this is not being swept. Workers sweep every 2 s. If many leases expire at once, which
/// looks like an outage, they wait for one more lease duration of 10 s.
const SWEPT_WITHIN_MS: i64 = 15_000;

fn summary(explanation: &Explanation, active_run: Option<&Explanation>) -> ProgressText {
    let run = &explanation.run;
    let ended = |text: String| ProgressText::new(ProgressState::Ended, false, text);
    let mut progress = match run.status {
        RunStatus::Completed => ended("The run is completed.".to_owned()),
        RunStatus::Cancelled => {
            let by = explanation.cancel_requested_by.as_ref().map_or_else(String::new, |by| format!(" by {by}"));
            ended(format!("The run was cancelled{by}."))
        }
        RunStatus::Failed => {
            let why = run.error.as_ref().map_or("the cause was not stored", |error| error.detail.as_str());
            let then = if explanation.resumable { " POST .../resume continues from the stored state." } else { "" };
            ended(format!("The run failed: {why}.{then}"))
        }
        RunStatus::Queued | RunStatus::Processing | RunStatus::ToolLoop | RunStatus::Waiting => {
            active_run_text(explanation, active_run)
        }
    };
    if run.status.is_terminal() {
        return progress;
    }
    let text = &mut progress.text;
    if let Some(by) = &explanation.cancel_requested_by {
        let holder = match explanation.lease_expires_in_ms {
            Some(expires_in) if expires_in > 0 => "its worker ends it soon",
            Some(_) | None => "the next worker that claims it ends it",
        };
        text.push_str(&format!(" {by} requested the cancellation; {holder}."));
    }
    match explanation.crashes {
        0 => {}
        1 => text.push_str(" Its worker has crashed once."),
        times => {
            text.push_str(&format!(" Its workers have crashed {times} times; a process works on one such run at a time."));
        }
    }
    progress
}

fn active_run_text(explanation: &Explanation, active_run: Option<&Explanation>) -> ProgressText {
    if let Some(node) = &explanation.lease_node {
        return lease_text(explanation, node);
    }
    if let Some(behind) = &explanation.behind_run {
        return queued_behind(behind, active_run);
    }
    match explanation.claimable_in_ms {
        Some(wait) if wait > 0 => timer_text(explanation, wait),
        Some(wait) => queue_text(explanation, -wait),
        None => match explanation.run.reason {
            Some(reason @ (WaitReason::Approval | WaitReason::Input | WaitReason::ClientTool | WaitReason::Budget)) => {
                let text = format!("The run waits for {}.{}", wait_text(reason), questions(explanation));
                ProgressText::new(ProgressState::Waiting, false, text)
            }
            Some(WaitReason::Backoff) | None => {
                let text = "No worker holds the run and none can claim it: this should last only for a moment.";
                ProgressText::new(ProgressState::Waiting, false, text)
            }
        },
    }
}

/// The run continues when the one ahead of it has ended, so it makes progress if that one does.
fn queued_behind(behind: &RunId, active_run: Option<&Explanation>) -> ProgressText {
    let text = format!("The run is queued behind {behind} in the same conversation");
    let Some(active_run) = active_run else {
        return ProgressText::new(ProgressState::BehindRun, true, format!("{text}."));
    };
    let ProgressText { text: why, moving, .. } = active_run_text(active_run, None);
    let waits = active_run.run.reason.filter(|_| active_run.lease_node.is_none());
    let text = match (waits, moving) {
        (Some(WaitReason::Backoff), true) => format!("{text}, which waits for a retry."),
        (Some(reason @ WaitReason::Budget), true) => format!("{text}, which waits for {}.", wait_text(reason)),
        (Some(WaitReason::Approval | WaitReason::Input | WaitReason::ClientTool) | None, true) => format!("{text}."),
        (Some(reason @ (WaitReason::Approval | WaitReason::Input | WaitReason::ClientTool)), false)
            if active_run.claimable_in_ms.is_none_or(|wait| wait > 0) =>
        {
            format!("{text}, which waits for {}.", wait_text(reason))
        }
        (Some(_) | None, false) => format!("{text}, which makes no progress either: {why}"),
    };
    ProgressText::new(ProgressState::BehindRun, moving, text)
}

fn lease_text(explanation: &Explanation, node: &NodeId) -> ProgressText {
    let expires_in = explanation.lease_expires_in_ms.unwrap_or_default();
    if expires_in <= 0 {
        let lost = format!("The lease of worker {node} expired {} s ago", seconds(-expires_in));
        if explanation.live_leases == 0 && -expires_in > SWEPT_WITHIN_MS {
            let text = format!("{lost}, and no worker holds any run: probably no worker is alive.");
            return ProgressText::new(ProgressState::NoWorker, false, text);
        }
        let text = format!("{lost}; another worker claims it after the next sweep.");
        return ProgressText::new(ProgressState::LeaseExpired, true, text);
    }
    let doing = match &explanation.step {
        Some((step, kind, status, age)) if status == "started" && kind == "tools" => {
            match explanation.tools_under_way.join(", ") {
                // The step is as old as its first call, but an approval may have taken days.
                none if none.is_empty() => format!("is about to continue the calls of step {step}"),
                tools => format!("runs tools ({tools}) in step {step} for {} s", seconds(*age)),
            }
        }
        Some((step, _, status, age)) if status == "started" => {
            format!("waits for the model in step {step} for {} s", seconds(*age))
        }
        Some((step, ..)) => format!("has finished step {step}"),
        None => "is about to begin".to_owned(),
    };
    // A server may ask a question during a call, which then waits together with its time limit.
    let under_way = i64::try_from(explanation.tools_under_way.len()).unwrap_or(i64::MAX);
    if explanation.calls_asking > 0 && under_way <= explanation.calls_asking {
        let text = format!("Worker {node} holds the run and {doing}, which waits for a human's answer.{}", questions(explanation));
        return ProgressText::new(ProgressState::Asking, false, text);
    }
    ProgressText::new(ProgressState::Working, true, format!("Worker {node} holds the run and {doing}."))
}

fn timer_text(explanation: &Explanation, wait: i64) -> ProgressText {
    let wait = seconds(wait);
    let (text, moving) = match explanation.run.reason {
        Some(WaitReason::Backoff) => {
            (format!("The model call failed and will be retried in {wait} s; POST .../resume retries at once."), true)
        }
        Some(reason @ WaitReason::Budget) => {
            let text =
                format!("The run waits for {} and checks again in {wait} s; POST .../resume checks at once.", wait_text(reason));
            (text, true)
        }
        Some(reason @ (WaitReason::Approval | WaitReason::Input | WaitReason::ClientTool)) => {
            let text = format!("The run waits for {}, for at most {wait} s more.{}", wait_text(reason), questions(explanation));
            (text, false)
        }
        None => (format!("The run can be claimed in {wait} s."), true),
    };
    ProgressText::new(ProgressState::Waiting, moving, text)
}

/// Explains a run that workers could have claimed for `since` milliseconds.
fn queue_text(explanation: &Explanation, since: i64) -> ProgressText {
    let subject = match (explanation.run.reason, explanation.questions.is_empty()) {
        (Some(WaitReason::Backoff), _) => "The failed model call can be retried, and the run",
        (Some(WaitReason::Input | WaitReason::Approval | WaitReason::ClientTool), true) => "The answer is stored, and the run",
        (Some(_) | None, _) => "The run",
    };
    if let Some((running, cap)) = explanation.owner_cap {
        let text = format!(
            "{subject} is queued because of the owner's limit: {running} runs of its owner are running, and at most {cap} may; it \
             is claimed when one of them ends or waits."
        );
        return ProgressText::new(ProgressState::OwnerLimit, true, text);
    }
    let position = match explanation.queue_position.unwrap_or_default() {
        0 => "is the next in the queue".to_owned(),
        1 => "is in the queue; 1 run comes first".to_owned(),
        before => format!("is in the queue; {before} runs come first"),
    };
    if since <= TAKEN_UP_WITHIN_MS {
        return ProgressText::new(ProgressState::Queued, true, format!("{subject} {position}."));
    }
    let since = seconds(since);
    match explanation.live_leases {
        0 => {
            let text = format!("{subject} {position}, for {since} s, and no worker holds any run: probably no worker is alive.");
            ProgressText::new(ProgressState::NoWorker, false, text)
        }
        live => {
            let text = format!("{subject} {position}, for {since} s; probably no worker has a free slot: they hold {live} runs.");
            ProgressText::new(ProgressState::NoFreeSlot, true, text)
        }
    }
}

fn wait_text(reason: WaitReason) -> &'static str {
    match reason {
        WaitReason::Approval => "a human to approve a tool call",
        WaitReason::Input => "a human's answer",
        WaitReason::ClientTool => "its client to execute a tool call",
        WaitReason::Backoff => "its next try",
        WaitReason::Budget => "the budget of the day, which is spent or reserved by running calls,",
    }
}

fn questions(explanation: &Explanation) -> String {
    let path = |kind: InputKind, id: &InputId| match kind {
        InputKind::Approval => format!("approvals/{id}"),
        InputKind::Question | InputKind::UnknownOutcome | InputKind::Elicitation => format!("input-requests/{id}"),
        InputKind::ClientTool => format!("runs/{}/tool-results", explanation.run.id),
    };
    let hint = |(id, kind, text): &(InputId, InputKind, String)| format!(" POST /api/v1/{} answers: {text}", path(*kind, id));
    explanation.questions.iter().map(hint).collect()
}

fn seconds(ms: i64) -> String {
    format!("{}.{}", ms / 1000, (ms % 1000).abs() / 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::ConversationId;

    fn explanation(status: RunStatus) -> Explanation {
        Explanation {
            run: Run {
                id: RunId::parse("run_01980000000070008000000000000001").unwrap(),
                conversation_id: ConversationId::parse("conv_01980000000070008000000000000003").unwrap(),
                status,
                reason: None,
                agent: "default".into(),
                agent_version: 1,
                model: "demo/demo".into(),
                attempt: 1,
                finish_reason: None,
                usage: None,
                error: None,
                output: None,
                trace_id: None,
                created_at: String::new(),
                started_at: None,
                finished_at: None,
            },
            lease_node: None,
            lease_expires_in_ms: None,
            lease_age_ms: None,
            crashes: 0,
            queue_position: None,
            owner_cap: None,
            claimable_in_ms: None,
            behind_run: None,
            live_leases: 0,
            resumable: false,
            questions: Vec::new(),
            cancel_requested_by: None,
            step: None,
            tools_under_way: Vec::new(),
            calls_asking: 0,
        }
    }

    #[test]
    fn unclaimable_run_is_explained_as_stuck() {
        let said = RunExplanation::new(explanation(RunStatus::Processing), None);
        assert_eq!((said.state, said.moving), (ProgressState::Waiting, false), "{}", said.summary);
    }

    #[test]
    fn a_budget_that_is_used_up_is_named_with_its_end() {
        let mut waiting = Explanation { claimable_in_ms: Some(3_600_000), ..explanation(RunStatus::Waiting) };
        waiting.run.reason = Some(WaitReason::Budget);
        let said = RunExplanation::new(waiting, None);
        assert!(said.moving, "it continues by itself when the next day begins");
        assert_eq!(
            said.summary,
            "The run waits for the budget of the day, which is spent or reserved by running calls, and checks again in 3600.0 \
             s; POST .../resume checks at once."
        );
    }

    #[test]
    fn explanation_names_the_workers_activity() {
        let working = Explanation {
            lease_node: Some(NodeId::from_stored("node_1".into())),
            lease_expires_in_ms: Some(9_000),
            step: Some((2, "tools".into(), "started".into(), 1_540)),
            tools_under_way: vec!["files__read".into()],
            crashes: 1,
            ..explanation(RunStatus::ToolLoop)
        };
        let said = RunExplanation::new(working, None);
        assert_eq!(
            said.summary,
            "Worker node_1 holds the run and runs tools (files__read) in step 2 for 1.5 s. Its worker has crashed once."
        );
    }
}
