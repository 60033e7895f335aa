//! Undoes tool calls, with the call that the tool's undo rule names.
//!
//! A new run executes only that call, like any other call, and ends.

use crate::domain::conversation::message::{Message, Part, TextPart, ToolCallPart};
use crate::domain::ids::{CallId, MessageId, PartId, RunId};
use crate::domain::run::Run;
use crate::domain::tool::{ToolCall, ToolCallState};
use crate::service::idempotency_outcome::Replay;
use crate::service::questions::approvals::arguments_for;
use crate::service::runs::resume::ContinueRun;
use crate::service::{Error, Result, Service};
use crate::store::{CallBatch, ResumeKind};

impl Service {
    /// Undoes a call of a terminal run with the undo call of its tool. All rules for calls apply to it.
    pub async fn undo_call(&self, request: ContinueRun<'_>, call: &CallId, confirmed: bool) -> Result<(Run, Replay)> {
        let batch = self.ended_call_batch(&request, call).await?;
        let new = RunId::generate(self.ids.as_ref());
        let batch = self.taken_back(batch, call, confirmed, &new)?;
        self.continue_run(request, new, ResumeKind::Undo { batch: Box::new(batch), confirmed }, None).await
    }

    /// Returns the undo call for the beginning of the new run.
    fn taken_back(&self, batch: CallBatch, id: &CallId, confirmed: bool, run: &RunId) -> Result<CallBatch> {
        let CallBatch { original, message, calls, tools, twin: _ } = batch;
        let undone = calls.iter().find(|call| call.id == *id).ok_or(Error::NotFound("tool call"))?;
        check_undoable(undone, confirmed)?;
        let tool = tools.iter().find(|tool| tool.name == undone.name);
        let Some((tool, rule)) = tool.and_then(|tool| Some((tool, tool.undo.as_ref()?))) else {
            let detail = format!(
                "no undo rule for {} is known: declare it as capstan.undo in its server's entry, which applies to calls of \
                 later runs",
                undone.name
            );
            return Err(Error::Conflict(detail));
        };
        let undoing = tools.iter().find(|other| other.server == tool.server && other.tool == rule.tool);
        let undoing =
            undoing.ok_or_else(|| Error::Conflict(format!("the undo tool {} is not one of the run's tools", rule.tool)))?;
        let unfit = |why: String| Error::Conflict(format!("{} cannot undo the call: {why}", undoing.name));
        let arguments = rule.arguments_for(undone).map_err(|error| unfit(error.to_string()))?;
        let arguments = arguments_for(undoing, arguments).map_err(|error| unfit(error.to_string()))?;
        let (call_id, message_id) = (CallId::generate(self.ids.as_ref()), MessageId::generate(self.ids.as_ref()));
        let part_id = || PartId::generate(self.ids.as_ref());
        let request = format!("The user wants to undo a call of {}.", undone.name);
        let parts = vec![
            Part::Text(TextPart { id: part_id(), text: request }),
            Part::ToolCall(ToolCallPart {
                undoes: Some(undone.id.clone()),
                ..ToolCallPart::new(part_id(), call_id.clone(), undoing.name.clone(), arguments.clone())
            }),
        ];
        let ids = (run.clone(), message_id.clone());
        let undoes = Some(undone.key().clone());
        let call = ToolCall { undoes, ..ToolCall::planned(call_id, ids, undoing, arguments) };
        let message = Message {
            id: message_id,
            run_id: run.clone(),
            parts,
            // No model wrote the message.
            model: None,
            usage: None,
            created_at: self.clock.now().to_rfc3339(),
            ..message
        };
        Ok(CallBatch { original, message, calls: vec![call], tools, twin: None })
    }
}

fn check_undoable(call: &ToolCall, confirmed: bool) -> Result<()> {
    match call.state {
        ToolCallState::Done => Ok(()),
        ToolCallState::Failed | ToolCallState::Cancelled | ToolCallState::Unknown if confirmed => Ok(()),
        ToolCallState::Failed | ToolCallState::Cancelled | ToolCallState::Unknown => Err(Error::Conflict(format!(
            "the call is {}, and may not have taken effect: check that yourself, and send \"confirm\": true to undo it",
            call.state.as_str()
        ))),
        ToolCallState::Denied | ToolCallState::Planned | ToolCallState::AwaitingApproval | ToolCallState::Started => {
            Err(Error::Conflict(format!("the call is {}: there is nothing to undo", call.state.as_str())))
        }
    }
}
