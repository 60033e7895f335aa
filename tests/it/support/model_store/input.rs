//! Questions and their answers.

use async_trait::async_trait;
use capstan::domain::event::{EventBody, NewEvent};
use capstan::domain::ids::{ConversationId, GrantId, InputId, UserId};
use capstan::domain::run::question::{InputKind, InputRecord, InputState};
use capstan::domain::run::record::ClaimCause;
use capstan::domain::tool::approval::{ApprovalState, ToolGrant};
use capstan::store::{
    IdempotencyKey, IdempotentResult, InputCursor, InputFilter, InputStore, NewGrant, Page, PageRequest, QuestionFilterKind,
    ResolveInput, ResolveOutcome, StoreResult, ToolResults, ToolResultsOutcome,
};

use super::ModelStore;
use super::state::State;

#[async_trait]
impl InputStore for ModelStore {
    async fn input_request(&self, owner: &UserId, id: &InputId) -> StoreResult<Option<InputRecord>> {
        let state = self.state();
        let asked = state.runs.values().filter(|row| row.owner == *owner).flat_map(|row| &row.inputs);
        Ok(asked.into_iter().find(|asked| asked.request.id == *id).cloned())
    }

    async fn input_requests(&self, filter: InputFilter<'_>, page: &PageRequest<InputCursor>) -> StoreResult<Page<InputRecord>> {
        let InputFilter { owner, kind, state, conversation } = filter;
        let model = self.state();
        let found = model.runs.values().filter(|row| row.owner == *owner).flat_map(|row| &row.inputs);
        let found = found.filter(|asked| asked.request.kind != InputKind::ClientTool);
        let found = found.filter(|asked| state.is_none_or(|state| asked.request.state == state));
        let found = found.filter(|found| conversation.is_none_or(|id| found.request.conversation_id == *id));
        let found = found.filter(|found| (found.request.kind == InputKind::Approval) == (kind == QuestionFilterKind::Approvals));
        let mut asked: Vec<_> = found.map(|asked| (millis(&asked.created_at), asked.request.id.clone(), asked.clone())).collect();
        asked.sort_by(|one, other| (other.0, &other.1).cmp(&(one.0, &one.1)));
        asked.retain(|(at, id, _)| page.after.as_ref().is_none_or(|after| (*at, id) < (after.at, &after.id)));
        let more = asked.len() > page.limit as usize;
        asked.truncate(page.limit as usize);
        let last = asked.last().filter(|_| more).map(|(at, id, _)| InputCursor { at: *at, id: id.clone() }.to_string());
        Ok(Page { items: asked.into_iter().map(|(.., asked)| asked).collect(), next: last })
    }

    async fn tool_grants(&self, owner: &UserId, within: Option<&ConversationId>) -> StoreResult<Vec<ToolGrant>> {
        let model = self.state();
        let holds =
            |grant: &ToolGrant| within.is_none() || grant.conversation_id.is_none() || grant.conversation_id.as_ref() == within;
        let found = model.grants.iter().filter(|(by, grant)| by == owner && holds(grant));
        Ok(found.rev().map(|(_, grant)| grant.clone()).collect())
    }

    async fn delete_tool_grant(&self, owner: &UserId, id: &GrantId) -> StoreResult<bool> {
        let mut model = self.state();
        let before = model.grants.len();
        model.grants.retain(|(by, grant)| by != owner || grant.id != *id);
        Ok(model.grants.len() < before)
    }

    async fn resolve_input(&self, resolve: ResolveInput, key: Option<IdempotencyKey>) -> IdempotentResult<ResolveOutcome> {
        Ok(self.state().keyed(key, |state| state.resolve(&resolve)))
    }

    async fn store_tool_results(&self, results: ToolResults, key: Option<IdempotencyKey>) -> IdempotentResult<ToolResultsOutcome> {
        Ok(self.state().keyed(key, |state| state.store_results(&results)))
    }
}

/// Returns the remaining time for an answer.
pub fn left_of(asked: &InputRecord, now: i64) -> Option<u64> {
    asked.expires_at.as_deref().map(|at| u64::try_from(millis(at) - now).unwrap_or(0))
}

fn millis(text: &str) -> i64 {
    text.parse::<jiff::Timestamp>().unwrap().as_millisecond()
}

impl State {
    fn store_results(&mut self, results: &ToolResults) -> (ToolResultsOutcome, bool) {
        let ToolResults { owner, run_id, results } = results;
        let (at, at_text) = (self.now, self.now_text());
        let Self { runs, leases, .. } = self;
        let Some(row) = runs.get_mut(run_id).filter(|row| row.owner == *owner) else { return (ToolResultsOutcome::NoRun, false) };
        let mut places = Vec::new();
        for (call, _) in results {
            let is_of =
                |asked: &InputRecord| asked.request.kind == InputKind::ClientTool && asked.request.call_id.as_ref() == Some(call);
            let Some(place) = row.inputs.iter().position(is_of) else {
                return (ToolResultsOutcome::NoCall { call_id: call.clone() }, false);
            };
            let asked = &row.inputs[place];
            if asked.request.state != InputState::Pending || left_of(asked, at) == Some(0) || places.contains(&place) {
                return (ToolResultsOutcome::Closed { call_id: call.clone(), state: asked.request.state }, false);
            }
            places.push(place);
        }
        for (place, (_, answer)) in places.into_iter().zip(results) {
            let asked = &mut row.inputs[place];
            (asked.request.state, asked.request.answer) = (InputState::Answered, Some(answer.clone()));
            (asked.resolved_by, asked.resolved_at) = (Some(owner.to_string()), Some(at_text.clone()));
        }
        if leases.contains_key(run_id) {
            row.answered = true;
        } else if !row.is_over() && row.claimable_at.is_none_or(|due| due > at) {
            (row.claimable_at, row.cause) = (Some(at), ClaimCause::Request);
        }
        (ToolResultsOutcome::Stored, true)
    }

    fn resolve(&mut self, resolve: &ResolveInput) -> (ResolveOutcome, bool) {
        let ResolveInput { owner, id, answer, grant, now } = resolve;
        let (at, at_text) = (self.now, self.now_text());
        let Self { runs, leases, grants, .. } = self;
        let found = runs.values_mut().filter(|row| row.owner == *owner).find_map(|row| {
            let place = row.inputs.iter().position(|asked| asked.request.id == *id)?;
            Some((row, place))
        });
        let Some((row, place)) = found else { return (ResolveOutcome::NoRequest, false) };
        let asked = &mut row.inputs[place];
        if asked.request.state != InputState::Pending || left_of(asked, at) == Some(0) {
            return (ResolveOutcome::Closed { record: Box::new(asked.clone()) }, false);
        }
        (asked.request.state, asked.request.answer) = (InputState::Answered, Some(answer.clone()));
        (asked.resolved_by, asked.resolved_at) = (Some(owner.to_string()), Some(at_text));
        let record = Box::new(asked.clone());
        if leases.contains_key(&row.run.id) {
            row.answered = true;
        } else if !row.is_over() && row.claimable_at.is_none_or(|due| due > at) {
            (row.claimable_at, row.cause) = (Some(at), ClaimCause::Request);
        }
        if let Some(NewGrant { id, conversation, server, tool, definition_hash }) = grant.clone() {
            let covers = |known: &ToolGrant| known.covers(server.as_deref(), &tool, &definition_hash);
            if !grants.iter().any(|(by, known)| by == owner && known.conversation_id == conversation && covers(known)) {
                let created_at = record.resolved_at.clone().unwrap_or_default();
                let kept = ToolGrant { id, conversation_id: conversation, server, tool, definition_hash, created_at };
                grants.push((owner.clone(), kept));
            }
        }
        let (id, by, answer) = (id.clone(), Some(owner.clone()), answer.clone());
        let body = match record.request.kind {
            InputKind::UnknownOutcome | InputKind::Question | InputKind::Elicitation | InputKind::ClientTool => {
                EventBody::InputResolved { id, state: InputState::Answered, answer: Some(answer), by }
            }
            InputKind::Approval => EventBody::ApprovalResolved {
                id,
                call_id: record.request.call_id.clone(),
                status: if answer.choice == "deny" { ApprovalState::Denied } else { ApprovalState::Allowed },
                scope: answer.scope,
                edited_arguments: answer.arguments,
                reason: answer.text,
                by,
            },
        };
        let event = NewEvent::new(&body, Some(row.run.id.clone()), row.run.attempt, *now);
        let conversation = row.run.conversation_id.clone();
        let events = self.append(&conversation, vec![event]);
        (ResolveOutcome::Answered { record, events }, true)
    }
}
