//! Continues runs: one that waits or has failed, a whole turn again, or from one of its calls.
//!
//! A terminal run stays terminal: a new run goes on after it, and its messages replace the earlier ones.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::access::principal::{Principal, UserRole};
use crate::domain::conversation::message::{Message, Part, ToolCallPart};
use crate::domain::ids::{CallId, MessageId, PartId, RunId};
use crate::domain::run::{FinishReason, Run, WaitReason};
use crate::domain::tool::{ReplayClass, ToolCall, ToolCallState};
use crate::domain::trace::TraceId;
use crate::service::idempotency::{Replay, RequestKey, keyed};
use crate::service::questions::approvals::arguments_for;
use crate::service::runs::publish;
use crate::service::{Error, Result, Service};
use crate::store::{CallBatch, GoOn, ResumeRun, Resumed};
use crate::support::json;

/// The options of a retried tool call.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RetryCallBody)]
pub struct RetryCall {
    /// Arguments that replace the original ones. They must conform to the tool's schema.
    #[schema(value_type = Option<Object>)]
    pub arguments: Option<Value>,
    /// Confirms that the call may take effect twice. Required if the call may have taken effect and its tool is not declared
    /// repeatable.
    #[serde(default)]
    pub confirm: bool,
}

/// A request that continues a run.
pub struct ContinueRun<'a> {
    pub principal: &'a Principal,
    pub run: &'a RunId,
    pub key: Option<RequestKey>,
    pub trace: TraceId,
}

impl Service {
    /// Continues a run that waits for a retry, or has failed.
    pub async fn resume_run(&self, request: ContinueRun<'_>) -> Result<(Run, Replay)> {
        self.go_on(request, RunId::generate(self.ids.as_ref()), GoOn::Resume).await
    }

    /// Answers the message of a terminal run again.
    pub async fn retry_run(&self, request: ContinueRun<'_>) -> Result<(Run, Replay)> {
        self.go_on(request, RunId::generate(self.ids.as_ref()), GoOn::Turn).await
    }

    /// Makes a call of a terminal run again, and continues from there.
    pub async fn retry_call(&self, request: ContinueRun<'_>, call: &CallId, retry: RetryCall) -> Result<(Run, Replay)> {
        let batch = self.ended_call_batch(&request, call).await?;
        let new = RunId::generate(self.ids.as_ref());
        let batch = self.once_more(batch, call, retry, &new)?;
        self.go_on(request, new, GoOn::Call(Box::new(batch))).await
    }

    /// Returns a tool call of a terminal run, with the other calls of its answer.
    pub(in crate::service) async fn ended_call_batch(&self, request: &ContinueRun<'_>, call: &CallId) -> Result<CallBatch> {
        let run = self.run(request.principal, request.run).await?;
        let batch = self.store.call_batch(&request.principal.user_id, request.run, call).await?;
        let batch = batch.ok_or(Error::NotFound("tool call"))?;
        if run.status.is_terminal() { Ok(batch) } else { Err(still_going(&run)) }
    }

    pub(in crate::service) async fn go_on(&self, request: ContinueRun<'_>, new_run_id: RunId, how: GoOn) -> Result<(Run, Replay)> {
        let ContinueRun { principal, run: id, key, trace } = request;
        let (is_resumed, is_undone) = (how == GoOn::Resume, how.undone().is_some());
        // A user may undo a call also after they have left the groups of its agent.
        if !is_undone {
            self.admit_again(principal, id).await?;
        }
        let (owner, run_id) = (principal.user_id.clone(), id.clone());
        let most = self.limits.max_active_runs;
        let resume = ResumeRun { owner, run_id, how, new_run_id, trace, max_active_runs: most, now: self.clock.now() };
        let claim = self.claim(&principal.user_id, key);
        let (run, replay) = self
            .whole(|store, hub| async move {
                let (resumed, replay) = keyed(store.resume_run(resume, claim).await?)?;
                match resumed {
                    Resumed::Run { run, events } => {
                        tracing::info!(run.id = %run.id, conversation.id = %run.conversation_id, "a run goes on");
                        publish(&hub, &run.conversation_id, events);
                        hub.notify_queue();
                        Ok((run, replay))
                    }
                    Resumed::TooManyRuns => Err(Error::TooManyRuns(most)),
                    Resumed::NotResumable { run } if is_resumed => Err(not_resumable(&run)),
                    Resumed::NotResumable { run } if !run.status.is_terminal() => Err(still_going(&run)),
                    Resumed::NotResumable { .. } if is_undone => Err(Error::conflict(NOT_UNDOABLE)),
                    Resumed::NotResumable { .. } => Err(Error::conflict(NOT_RETRYABLE)),
                    Resumed::TakenBack => Err(Error::conflict(TAKEN_BACK)),
                    Resumed::NoRun => Err(Error::NotFound("run")),
                }
            })
            .await?;
        if replay == Replay::Replayed {
            // The record of the earlier request outlives the run.
            self.run_view(principal, &run.id).await?;
        }
        Ok((run, replay))
    }

    /// Refuses a principal who is in none of the groups that the agent of a run was for when the run was accepted. They may have been in
    /// one of them then.
    pub(in crate::service) async fn admit_again(&self, principal: &Principal, id: &RunId) -> Result<()> {
        match principal.role {
            UserRole::Admin => Ok(()),
            UserRole::Member => {
                let profile = self.store.run_profile(&principal.user_id, id).await?.ok_or(Error::NotFound("run"))?;
                self.admit(principal, &profile.name, &profile.groups).await
            }
        }
    }

    /// Returns the answer with the call, as the new run begins with it.
    fn once_more(&self, batch: CallBatch, id: &CallId, retry: RetryCall, run: &RunId) -> Result<CallBatch> {
        let CallBatch { original, message, calls, tools, twin } = batch;
        // An answer that was cut may lack the end of any of its calls, also of one that can be read.
        let is_cut = message.finish_reason == Some(FinishReason::Length);
        let mut message = Message {
            id: MessageId::generate(self.ids.as_ref()),
            run_id: run.clone(),
            created_at: self.clock.now().to_rfc3339(),
            ..message
        };
        let mut taken_over = Vec::with_capacity(calls.len());
        for call in calls {
            let new_id = CallId::generate(self.ids.as_ref());
            for part in &mut message.parts {
                if let Part::ToolCall(part) = part
                    && part.call_id == call.id
                {
                    *part = ToolCallPart { id: PartId::generate(self.ids.as_ref()), call_id: new_id.clone(), ..part.clone() };
                }
            }
            let call = if call.id == *id {
                if retry.arguments.is_none() && (is_cut || !call.is_readable()) {
                    return Err(Error::conflict(UNFINISHED));
                }
                let tool = tools.iter().find(|tool| tool.name == call.name);
                let tool = tool.ok_or_else(|| Error::Conflict(format!("the run has no tool {:?}", call.name)))?;
                let checked = |arguments| arguments_for(tool, arguments);
                // A call that does not fit the schema was answered by an error to the model, and never sent.
                let was_sendable = checked(call.arguments.clone()).is_ok();
                let arguments = retry.arguments.clone().map(checked).transpose()?;
                let may_have_happened = may_have_happened(&call, was_sendable, twin.is_some());
                made_again(call, may_have_happened, arguments, retry.confirm)?
            } else if call.outcome.is_none() {
                return Err(Error::Conflict(format!("another call of the same answer, {}, has no outcome", call.id)));
            } else {
                ToolCall { key: Some(call.key().clone()), ..call }
            };
            taken_over.push(ToolCall { id: new_id, run_id: run.clone(), message_id: message.id.clone(), step: 1, ..call });
        }
        for part in &mut message.parts {
            let id = PartId::generate(self.ids.as_ref());
            match part {
                Part::Text(part) => part.id = id,
                Part::Reasoning(part) => part.id = id,
                Part::ToolCall(_) | Part::ToolResult(_) | Part::Image(_) | Part::File(_) => {}
            }
        }
        Ok(CallBatch { original, message, calls: taken_over, tools, twin: None })
    }
}

const NOT_UNDOABLE: &str = "the call has been taken back already, or was never made, or another run of its conversation is under way (wait for \
     that to end), or an earlier try to take it back may have taken effect: then look for yourself, and send \"confirm\": true";

const NOT_RETRYABLE: &str = "only the newest run of a conversation can be retried, and only while no other is active; this one has been \
     retried already, another message came after it, the conversation was rewound past it, or it was there only to take a call back";

const TAKEN_BACK: &str = "a call of this answer was taken back since, or that was tried and may have taken effect, so that what its calls have \
     done does not hold any more: retry the turn";

/// The reason why a call cannot be made again unchanged.
const UNFINISHED: &str = "the model did not write the arguments of this call to their end, or not as a JSON object, so that it was never made: send \
     \"arguments\"";

/// Returns whether a call may have taken effect. An error is no proof of the contrary: the tool may have run out of time.
fn may_have_happened(call: &ToolCall, was_sendable: bool, has_twin: bool) -> bool {
    // A call that was taken over from an earlier run may have been made in that one.
    if call.key.is_some() {
        return was_sendable;
    }
    let never_began = match call.state {
        ToolCallState::Denied => true,
        // A call that may run again is also cancelled when its run ends during it. Another one is cancelled only before anything was
        // sent; but its server may have let go of an earlier round of it. Where the same call was made beside it, as when a rule of the loop
        // refused it for that, making this one is making that one twice.
        ToolCallState::Cancelled => !call.replay.may_repeat() && call.handle.is_none() && !has_twin,
        ToolCallState::Done
        | ToolCallState::Failed
        | ToolCallState::Unknown
        | ToolCallState::Planned
        | ToolCallState::AwaitingApproval
        | ToolCallState::Started => false,
    };
    was_sendable && !never_began
}

/// Returns the call for the new run. It starts like any other call, so its approval is asked again.
fn made_again(call: ToolCall, may_have_happened: bool, arguments: Option<Value>, confirmed: bool) -> Result<ToolCall> {
    match call.state {
        ToolCallState::Failed | ToolCallState::Denied | ToolCallState::Cancelled | ToolCallState::Unknown => {}
        ToolCallState::Done | ToolCallState::Planned | ToolCallState::AwaitingApproval | ToolCallState::Started => {
            return Err(Error::Conflict(format!(
                "the call is {}: only one that failed, was denied or cancelled, or whose outcome is unknown is made again",
                call.state.as_str()
            )));
        }
    }
    let is_edited = arguments.is_some();
    if call.undoes.is_some() {
        return Err(Error::conflict("this call was there to take another one back: undo that one again"));
    }
    // Its server is asked first what became of it, as after a crash; but not where its user accepts that it may happen twice.
    let can_be_asked_about = matches!(call.replay, ReplayClass::Reconcile { .. });
    let is_harmless = match &call.replay {
        ReplayClass::Read | ReplayClass::Idempotent => true,
        ReplayClass::Keyed { .. } | ReplayClass::KeyedMeta { .. } | ReplayClass::Reconcile { .. } => !is_edited,
        ReplayClass::Unsafe => false,
    };
    if may_have_happened && !confirmed && !is_harmless {
        return Err(Error::conflict(
            "this call may have taken effect, whatever became of it: look for yourself, and send \"confirm\": true if it is to be \
             made again all the same",
        ));
    }
    // A call that may have happened is the same call for its tool, which then does it once, or is asked whether it has done it.
    let is_the_same = may_have_happened && !is_edited && !(can_be_asked_about && confirmed);
    let key = is_the_same.then(|| call.key().clone());
    let arguments = arguments.unwrap_or(call.arguments);
    let arguments_hash = json::hash(&arguments);
    Ok(ToolCall { state: ToolCallState::Planned, key, arguments_hash, arguments, handle: None, outcome: None, ..call })
}

pub(in crate::service) fn still_going(run: &Run) -> Error {
    let status = run.status.as_str();
    Error::Conflict(format!("the run is {status}: wait for its end, answer what it asks, or cancel it; then it can be retried"))
}

fn not_resumable(run: &Run) -> Error {
    if run.reason == Some(WaitReason::Input) {
        return Error::conflict("the run waits for a human's answer and goes on when it has it: POST /api/v1/input-requests/{id}");
    }
    Error::Conflict(format!(
        "a run that is {} cannot be resumed here: only a waiting run goes on, and a failed one that is the newest of its \
         conversation, while no other is active",
        run.status.as_str()
    ))
}
