//! Why a run is or is not moving, for people and for programs.

use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::ids::InputId;
use crate::domain::problem::ProblemBody;
use crate::domain::run::{Run, RunStatus, WaitReason};
use crate::store::Explanation;

/// Why a run is or is not moving.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct RunExplanation {
    /// In one or a few sentences.
    pub summary: String,
    /// Whether the run moves now, or will without anybody doing anything.
    pub moving: bool,
    /// The run.
    pub run: Run,
    /// Who works on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseInfo>,
    /// How often it was taken up.
    pub attempt: u32,
    /// How many of those times ended with the worker's death.
    pub crashes: u32,
    /// Runs that will be taken up first, if it can be taken up now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_position: Option<i64>,
    /// Milliseconds until it can be taken up; negative: since when it could have been.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimable_in_ms: Option<i64>,
    /// The active run of the same conversation that it is queued behind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind_run: Option<String>,
    /// What it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<WaitReason>,
    /// What it asks a human, and nobody has answered.
    pub questions: Vec<OpenQuestion>,
    /// Who asked for it to be cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel_requested_by: Option<String>,
    /// What it is doing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<StepInfo>,
    /// Tools whose calls have begun and have no outcome.
    pub tools_under_way: Vec<String>,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<ProblemBody>,
}

/// The lease of the worker that has the run.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct LeaseInfo {
    /// The server process.
    pub node: String,
    /// For how long it has the run, in milliseconds.
    pub age_ms: i64,
    /// When the lease ends unless it is renewed, in milliseconds from now; negative if it has ended.
    pub expires_in_ms: i64,
}

/// A question that nobody has answered.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct OpenQuestion {
    /// Its id, for the answer.
    pub id: InputId,
    /// The question.
    pub text: String,
}

/// The newest step.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct StepInfo {
    /// Its number.
    pub number: u32,
    /// `model` or `tools`.
    pub kind: String,
    /// `started`, `completed` or `abandoned`.
    pub status: String,
    /// Milliseconds since it began.
    pub age_ms: i64,
}

impl From<Explanation> for RunExplanation {
    fn from(known: Explanation) -> Self {
        let (summary, moving) = summary(&known);
        let lease = known.lease_node.map(|node| LeaseInfo {
            node: node.as_str().to_owned(),
            age_ms: known.lease_age_ms.unwrap_or_default(),
            expires_in_ms: known.lease_expires_in_ms.unwrap_or_default(),
        });
        Self {
            summary,
            moving,
            lease,
            attempt: known.run.attempt,
            crashes: known.crashes,
            queue_position: known.queue_position,
            claimable_in_ms: known.claimable_in_ms,
            behind_run: known.behind_run.map(|run| run.as_str().to_owned()),
            waiting_for: known.run.reason,
            questions: known.questions.into_iter().map(|(id, text)| OpenQuestion { id, text }).collect(),
            cancel_requested_by: known.cancel_requested_by,
            step: known.step.map(|(number, kind, status, age_ms)| StepInfo { number, kind, status, age_ms }),
            tools_under_way: known.tools_under_way,
            last_error: known.run.error.clone(),
            run: known.run,
        }
    }
}

fn summary(known: &Explanation) -> (String, bool) {
    let run = &known.run;
    let (mut text, moving) = match run.status {
        RunStatus::Completed => ("The run is completed.".to_owned(), false),
        RunStatus::Cancelled => ("The run was cancelled.".to_owned(), false),
        RunStatus::Failed => {
            let why = run.error.as_ref().map_or("the cause was not kept", |error| error.detail.as_str());
            (format!("The run failed: {why}."), false)
        }
        RunStatus::Waiting => waiting(known),
        RunStatus::Queued | RunStatus::Processing | RunStatus::ToolLoop => under_way(known),
    };
    if let Some(by) = known.cancel_requested_by.as_ref().filter(|_| !run.status.is_terminal()) {
        text.push_str(&format!(" Cancellation was asked for by {by}; the worker ends the run as soon as it notices."));
    }
    if known.crashes > 0 && !run.status.is_terminal() {
        text.push_str(&format!(" Its worker died {} times so far.", known.crashes));
    }
    (text, moving)
}

fn waiting(known: &Explanation) -> (String, bool) {
    match known.run.reason {
        Some(WaitReason::Backoff) => {
            let due = known.claimable_in_ms.map_or_else(String::new, |ms| format!(" in {} s", seconds(ms)));
            (format!("The model call failed and will be made again{due}; POST .../resume tries at once."), true)
        }
        Some(WaitReason::Approval) => ("The run waits for a human to approve a tool call.".to_owned(), false),
        Some(WaitReason::Input) => {
            let asked = known.questions.iter().map(|(id, text)| format!(" POST /api/v1/input-requests/{id} answers: {text}"));
            (format!("The run waits for a human's answer.{}", asked.collect::<String>()), false)
        }
        Some(WaitReason::Budget) => ("The run waits because a budget is used up.".to_owned(), false),
        None => ("The run waits, and it was not written down for what.".to_owned(), false),
    }
}

fn under_way(known: &Explanation) -> (String, bool) {
    if let Some(node) = &known.lease_node {
        let left = known.lease_expires_in_ms.unwrap_or_default();
        if left <= 0 {
            let text = format!("Worker {node} has lost the run {} s ago; another takes it up at the next sweep.", seconds(-left));
            return (text, true);
        }
        let doing = match &known.step {
            Some((step, kind, status, age)) if status == "started" && kind == "tools" => {
                let tools = known.tools_under_way.join(", ");
                format!("runs tools ({tools}) in step {step} for {} s", seconds(*age))
            }
            Some((step, _, status, age)) if status == "started" => {
                format!("waits for the model in step {step} for {} s", seconds(*age))
            }
            Some((step, ..)) => format!("is past step {step}"),
            None => "is about to begin".to_owned(),
        };
        return (format!("Worker {node} has the run and {doing}."), true);
    }
    if let Some(behind) = &known.behind_run {
        return (format!("The run is queued behind {behind} in the same conversation."), true);
    }
    if let Some((running, cap)) = known.owner_cap {
        let text = format!(
            "The run is queued because of the owner's cap: {running} runs of its owner are worked on, and at most {cap} may be; it is \
             taken up when one of them ends or waits."
        );
        return (text, true);
    }
    match (known.queue_position, known.claimable_in_ms) {
        (Some(0), _) => ("The run is the next in the queue and waits for a free worker.".to_owned(), true),
        (Some(before), _) => (format!("The run is queued; {before} runs come first."), true),
        (None, Some(ms)) if ms > 0 => (format!("The run can be taken up in {} s.", seconds(ms)), true),
        (None, _) => ("No worker has the run and none can take it up: this should not last.".to_owned(), false),
    }
}

fn seconds(ms: i64) -> String {
    format!("{}.{}", ms / 1000, (ms % 1000).abs() / 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::{ConversationId, NodeId, RunId};

    fn known(status: RunStatus) -> Explanation {
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
            questions: Vec::new(),
            cancel_requested_by: None,
            step: None,
            tools_under_way: Vec::new(),
        }
    }

    #[test]
    fn a_run_that_nobody_can_take_up_is_called_stuck() {
        let said = RunExplanation::from(known(RunStatus::Processing));
        assert!(!said.moving, "{}", said.summary);
        let said = RunExplanation::from(Explanation { queue_position: Some(3), ..known(RunStatus::Queued) });
        assert!(said.moving && said.summary.contains("3 runs"), "{}", said.summary);
    }

    #[test]
    fn what_a_worker_does_is_said() {
        let said = RunExplanation::from(Explanation {
            lease_node: Some(NodeId::from_stored("node_1".into())),
            lease_expires_in_ms: Some(9_000),
            step: Some((2, "tools".into(), "started".into(), 1_540)),
            tools_under_way: vec!["files__read".into()],
            crashes: 1,
            ..known(RunStatus::ToolLoop)
        });
        assert_eq!(
            said.summary,
            "Worker node_1 has the run and runs tools (files__read) in step 2 for 1.5 s. Its worker died 1 times so far."
        );
    }
}
