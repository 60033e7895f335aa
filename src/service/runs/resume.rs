//! Continues runs: resumes a waiting or failed run, retries a whole run, or retries one of its calls.
//!
//! A terminal run stays terminal: a new run continues it, and the new messages replace the earlier ones.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::access::principal::{Principal, UserRole};
use crate::domain::agent::OnUnknown;
use crate::domain::conversation::message::{Message, Part, ToolCallPart};
use crate::domain::ids::{CallId, MessageId, PartId, RunId};
use crate::domain::problem::ProblemCode;
use crate::domain::run::{FinishReason, Run, WaitReason};
use crate::domain::tool::closed_calls::ProgressAtEnd;
use crate::domain::tool::{ReplayClass, ToolCall, ToolCallState};
use crate::domain::trace::TraceId;
use crate::service::idempotency_outcome::{Replay, RequestKey, outcome_or_conflict};
use crate::service::questions::approvals::arguments_for;
use crate::service::runs::agent_and_model::storable_model;
use crate::service::runs::publish;
use crate::service::{Error, Result, Service};
use crate::store::{CallBatch, EarlierPage, ResumeKind, ResumeOutcome, ResumeRun};
use crate::support::json;

/// The options of a retried run.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RetryRunBody)]
pub struct RetryRun {
    /// The model as `provider/name`. Defaults to the model of the retried run.
    pub model: Option<String>,
}

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

pub struct ContinueRun<'a> {
    pub principal: &'a Principal,
    pub run: &'a RunId,
    pub key: Option<RequestKey>,
    pub trace: TraceId,
}

impl Service {
    /// Continues a run that waits for a retry, or has failed. After a crash, the new run begins with the calls that the crash
    /// interrupted.
    pub async fn resume_run(&self, request: ContinueRun<'_>) -> Result<(Run, Replay)> {
        let new = RunId::generate(self.ids.as_ref());
        let how = match self.interrupted_calls(&request, &new).await? {
            Some(batch) => ResumeKind::Call(Box::new(batch)),
            None => ResumeKind::Resume,
        };
        self.continue_run(request, new, how, None).await
    }

    /// Returns the answer whose calls a crash has interrupted, for the beginning of the new run. The replay class of each call
    /// decides whether the new run makes it, as if the run had not ended. `None` if it makes none.
    async fn interrupted_calls(&self, request: &ContinueRun<'_>, new: &RunId) -> Result<Option<CallBatch>> {
        let owner = &request.principal.user_id;
        let run = self.run_view(request.principal, request.run).await?.run;
        let codes = [ProblemCode::Interrupted, ProblemCode::Poison].map(ProblemCode::as_str);
        if !run.error.as_ref().is_some_and(|error| codes.contains(&error.code.as_str())) {
            return Ok(None);
        }
        let newest = EarlierPage { before: None, limit: 1, bytes: 64 << 20 };
        let newest = self.store.earlier_messages(owner, &run.conversation_id, newest).await?;
        let newest = newest.and_then(|page| page.items.into_iter().next_back()).map(|(_, message)| message);
        let Some(results) = newest.filter(|message| message.run_id == run.id) else { return Ok(None) };
        let Some(call) = results.tool_results().next().map(|result| result.call_id.clone()) else { return Ok(None) };
        let Some(batch) = self.store.call_batch(owner, request.run, &call).await? else { return Ok(None) };
        let profile = self.store.run_profile(owner, request.run).await?.ok_or(Error::NotFound("run"))?;
        let runs_again = profile.on_unknown == OnUnknown::Rerun;
        let batch = self.renewed(batch, new, |call| Ok(left_to_do(call, runs_again)))?;
        let has_work = batch.calls.iter().any(|call| call.state == ToolCallState::Planned);
        Ok(has_work.then_some(batch))
    }

    /// Answers the message of a terminal run again, in a new run, with another model if one is named.
    pub async fn retry_run(&self, request: ContinueRun<'_>, retry: RetryRun) -> Result<(Run, Replay)> {
        let model = retry.model.as_deref().map(storable_model).transpose()?;
        if let Some(model) = &model {
            self.require_served(request.principal, model).await?;
        }
        self.continue_run(request, RunId::generate(self.ids.as_ref()), ResumeKind::Turn, model).await
    }

    /// Executes a call of a terminal run again, and continues from there.
    pub async fn retry_call(&self, request: ContinueRun<'_>, call: &CallId, retry: RetryCall) -> Result<(Run, Replay)> {
        let batch = self.ended_call_batch(&request, call).await?;
        let new = RunId::generate(self.ids.as_ref());
        let batch = self.copy_call_for_new_run(batch, call, retry, &new)?;
        self.continue_run(request, new, ResumeKind::Call(Box::new(batch)), None).await
    }

    /// Returns a tool call of a terminal run, with the other calls of its answer.
    pub(in crate::service) async fn ended_call_batch(&self, request: &ContinueRun<'_>, call: &CallId) -> Result<CallBatch> {
        let run = self.run_view(request.principal, request.run).await?.run;
        let batch = self.store.call_batch(&request.principal.user_id, request.run, call).await?;
        let batch = batch.ok_or(Error::NotFound("tool call"))?;
        if run.status.is_terminal() { Ok(batch) } else { Err(run_active_error(&run)) }
    }

    pub(in crate::service) async fn continue_run(
        &self,
        request: ContinueRun<'_>,
        new_run_id: RunId,
        how: ResumeKind,
        model: Option<String>,
    ) -> Result<(Run, Replay)> {
        let ContinueRun { principal, run: id, key, trace } = request;
        let (is_resumed, is_undone) = (how == ResumeKind::Resume, how.undone_call().is_some());
        // A user may undo a call even after leaving the groups of its agent.
        if !is_undone {
            self.admit_again(principal, id).await?;
        }
        let (owner, run_id) = (principal.user_id.clone(), id.clone());
        let most = self.limits.max_active_runs;
        let resume = ResumeRun { owner, run_id, how, model, new_run_id, trace, max_active_runs: most, now: self.clock.now() };
        let claim = self.claim(&principal.user_id, key);
        let (run, replay) = self
            .run_to_end(|store, hub| async move {
                let (resumed, replay) = outcome_or_conflict(store.resume_run(resume, claim).await?)?;
                match resumed {
                    ResumeOutcome::Run { run, events } => {
                        tracing::info!(run.id = %run.id, conversation.id = %run.conversation_id, "a run was continued");
                        publish(&hub, &run.conversation_id, events);
                        hub.notify_queue();
                        Ok((run, replay))
                    }
                    ResumeOutcome::TooManyRuns => Err(Error::TooManyRuns(most)),
                    ResumeOutcome::NotResumable { run } if is_resumed => Err(not_resumable(&run)),
                    ResumeOutcome::NotResumable { run } if !run.status.is_terminal() => Err(run_active_error(&run)),
                    ResumeOutcome::NotResumable { .. } if is_undone => Err(Error::conflict(NOT_UNDOABLE)),
                    ResumeOutcome::NotResumable { .. } => Err(Error::conflict(NOT_RETRYABLE)),
                    ResumeOutcome::TakenBack => Err(Error::conflict(TAKEN_BACK)),
                    ResumeOutcome::NoRun => Err(Error::NotFound("run")),
                }
            })
            .await?;
        if replay == Replay::Replayed {
            // The idempotency record outlives the run.
            self.run_view(principal, &run.id).await?;
        }
        Ok((run, replay))
    }

    /// Refuses a principal who belongs to none of the groups that the run's agent was restricted to at the acceptance. The
    /// principal may have belonged to one then.
    pub(in crate::service) async fn admit_again(&self, principal: &Principal, id: &RunId) -> Result<()> {
        match principal.role {
            UserRole::Admin => Ok(()),
            UserRole::Member => {
                let profile = self.store.run_profile(&principal.user_id, id).await?.ok_or(Error::NotFound("run"))?;
                self.admit(principal, &profile.name, &profile.groups).await
            }
        }
    }

    /// Returns the answer for the beginning of the new run, which makes the call `id` again.
    fn copy_call_for_new_run(&self, batch: CallBatch, id: &CallId, retry: RetryCall, run: &RunId) -> Result<CallBatch> {
        // An answer that was cut off may lack the end of any of its calls, even of a readable one.
        let is_cut = batch.message.finish_reason == Some(FinishReason::Length);
        let (tools, has_twin) = (batch.tools.clone(), batch.twin.is_some());
        self.renewed(batch, run, |call| {
            if call.id != *id {
                return Ok(None);
            }
            if retry.arguments.is_none() && (is_cut || !call.is_readable()) {
                return Err(Error::conflict(UNFINISHED));
            }
            let tool = tools.iter().find(|tool| tool.name == call.name);
            let tool = tool.ok_or_else(|| Error::Conflict(format!("the run has no tool {:?}", call.name)))?;
            let checked = |arguments| arguments_for(tool, arguments);
            // The model got an error for a call whose arguments violate the schema, and the call was never sent.
            let was_sendable = checked(call.arguments.clone()).is_ok();
            let arguments = retry.arguments.clone().map(checked).transpose()?;
            let may_have_happened = may_have_happened(call, was_sendable, has_twin);
            made_again(call.clone(), may_have_happened, arguments, retry.confirm).map(Some)
        })
    }

    /// Copies an answer and its calls for the beginning of a new run. `again` returns the calls to make again; the others keep
    /// their outcomes.
    fn renewed(&self, batch: CallBatch, run: &RunId, again: impl Fn(&ToolCall) -> Result<Option<ToolCall>>) -> Result<CallBatch> {
        let CallBatch { original, message, calls, tools, twin: _ } = batch;
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
            let call = if let Some(again) = again(&call)? {
                again
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
                Part::ToolCall(_) | Part::ToolResult(_) => {}
                Part::Image(part) | Part::File(part) => part.id = id,
                Part::Source(part) => part.id = id,
            }
        }
        Ok(CallBatch { original, message, calls: taken_over, tools, twin: None })
    }
}

/// Returns a call that the end of its run has closed, for the new run; `None` if the call is not made again. A call that was under
/// way keeps its key, so that its tool executes it only once, or its server is first asked for the outcome.
fn left_to_do(call: &ToolCall, runs_again: bool) -> Option<ToolCall> {
    let key = match ProgressAtEnd::of_closed(call)? {
        ProgressAtEnd::NotBegun => call.key.clone(),
        ProgressAtEnd::Stopped => Some(call.key().clone()),
        ProgressAtEnd::Unknown if runs_again || matches!(call.replay, ReplayClass::Reconcile { .. }) => Some(call.key().clone()),
        ProgressAtEnd::Unknown => return None,
    };
    Some(ToolCall { state: ToolCallState::Planned, key, handle: None, outcome: None, ..call.clone() })
}

const NOT_UNDOABLE: &str = "the call was undone already, or never executed, or another run of its conversation is active (wait \
 for its end), or an earlier attempt to undo it may have taken effect: then check that yourself, and send \"confirm\": true";

const NOT_RETRYABLE: &str = "only the newest run of a conversation can be retried, and only while no other is active; this one \
 was retried already, another message came after it, the conversation was rewound to before it, or it only undid a call";

const TAKEN_BACK: &str = "a call of this answer was undone since, or an attempt to undo it may have taken effect, so that its \
 effects are uncertain: retry the turn";

/// Why a call cannot be executed again unchanged.
const UNFINISHED: &str = "the model did not complete the arguments of this call, or they are not a JSON object, so that it was \
 never executed: send \"arguments\"";

/// Returns whether a call may have taken effect. An error proves nothing: the tool may have timed out.
fn may_have_happened(call: &ToolCall, was_sendable: bool, has_twin: bool) -> bool {
    // A call that was copied from an earlier run may have been executed there.
    if call.key.is_some() {
        return was_sendable;
    }
    let never_began = match call.state {
        ToolCallState::Denied => true,
        // A repeatable call may also be cancelled while it runs, when its run ends. Any other call is cancelled only before it is
        // sent. But its server may have acted in an earlier round (`handle`), and an equal call of the same answer may have been
        // executed (`has_twin`).
        ToolCallState::Cancelled => !call.replay.may_repeat() && call.handle.is_none() && !has_twin,
        _ => false,
    };
    was_sendable && !never_began
}

/// Returns the call for the new run. It starts like any other call, so its approval is requested again.
fn made_again(call: ToolCall, may_have_happened: bool, arguments: Option<Value>, confirmed: bool) -> Result<ToolCall> {
    match call.state {
        ToolCallState::Failed | ToolCallState::Denied | ToolCallState::Cancelled | ToolCallState::Unknown => {}
        ToolCallState::Done | ToolCallState::Planned | ToolCallState::AwaitingApproval | ToolCallState::Started => {
            return Err(Error::Conflict(format!(
                "the call is {}: only a failed, denied or cancelled call, or one with an unknown outcome, can be retried",
                call.state.as_str()
            )));
        }
    }
    let is_edited = arguments.is_some();
    if call.undoes.is_some() {
        return Err(Error::conflict("this call undoes another one: undo that one again"));
    }
    // The server is first asked for the outcome, as after a crash, unless the user accepts that the call may take effect twice.
    let can_be_asked_about = matches!(call.replay, ReplayClass::Reconcile { .. });
    let is_harmless = match &call.replay {
        ReplayClass::Read | ReplayClass::Idempotent => true,
        ReplayClass::Keyed { .. } | ReplayClass::KeyedMeta { .. } | ReplayClass::Reconcile { .. } => !is_edited,
        ReplayClass::Unsafe => false,
    };
    if may_have_happened && !confirmed && !is_harmless {
        return Err(Error::conflict(
            "this call may have taken effect: check that yourself, and send \"confirm\": true to execute it again",
        ));
    }
    // A call that may have taken effect keeps its key, so that the tool executes it once, or reports whether it did.
    let is_the_same = may_have_happened && !is_edited && !(can_be_asked_about && confirmed);
    let key = is_the_same.then(|| call.key().clone());
    let arguments = arguments.unwrap_or(call.arguments);
    let arguments_hash = json::hash(&arguments);
    Ok(ToolCall { state: ToolCallState::Planned, key, arguments_hash, arguments, handle: None, outcome: None, ..call })
}

pub(in crate::service) fn run_active_error(run: &Run) -> Error {
    let status = run.status.as_str();
    Error::Conflict(format!("the run is {status}: wait for its end, answer its questions, or cancel it; then retry it"))
}

fn not_resumable(run: &Run) -> Error {
    if run.reason == Some(WaitReason::ClientTool) {
        return Error::conflict("the run waits for its client and continues after the result: POST /api/v1/runs/{id}/tool-results");
    }
    if run.reason == Some(WaitReason::Input) {
        return Error::conflict("the run waits for a human's answer and continues after it: POST /api/v1/input-requests/{id}");
    }
    Error::Conflict(format!(
        "a run that is {} cannot be resumed here: only a waiting run can, or a failed one that is the newest of its \
         conversation, while no other is active",
        run.status.as_str()
    ))
}
