//! Approvals: tool calls that a human must allow. This module only stores the answer; a worker acts on it.

use serde_json::Value;

use crate::domain::access::principal::Principal;
use crate::domain::ids::{ConversationId, GrantId, InputId};
use crate::domain::run::question::{InputAnswer, InputRecord, InputState};
use crate::domain::tool::approval::{Approval, ApprovalAnswer, ApprovalScope, ApprovalTerms, Decision, ToolGrant};
use crate::domain::tool::{MAX_NESTING, ReplayClass, ToolDefinition};
use crate::service::idempotency_outcome::{Replay, RequestKey};
use crate::service::{Error, Result, Service};
use crate::store::{InputCursor, InputFilter, NewGrant, Page, PageRequest, QuestionFilterKind, ResolveInput};
use crate::support::json::is_deeper_than;
use crate::tools::schema;

const APPROVAL: &str = "approval";

impl Service {
    pub async fn approval(&self, principal: &Principal, id: &InputId) -> Result<Approval> {
        let found = self.store.input_request(&principal.user_id, id).await?;
        found.and_then(Approval::of).ok_or(Error::NotFound(APPROVAL))
    }

    pub async fn approvals(
        &self,
        principal: &Principal,
        state: Option<InputState>,
        conversation: Option<&ConversationId>,
        page: &PageRequest<InputCursor>,
    ) -> Result<Page<Approval>> {
        let filter = InputFilter { owner: &principal.user_id, kind: QuestionFilterKind::Approvals, state, conversation };
        let Page { items, next } = self.store.input_requests(filter, page).await?;
        Ok(Page { items: items.into_iter().filter_map(Approval::of).collect(), next })
    }

    /// Stores a decision, at most once per approval. When this returns, the decision is durable and a worker will act on it. A
    /// refused decision leaves the run waiting.
    pub async fn resolve_approval(
        &self,
        principal: &Principal,
        id: &InputId,
        answer: ApprovalAnswer,
        key: Option<RequestKey>,
    ) -> Result<(Approval, Replay)> {
        let owner = &principal.user_id;
        let input_record = self.store.input_request(owner, id).await?.ok_or(Error::NotFound(APPROVAL))?;
        let terms = input_record.request.question.approval.as_deref().ok_or(Error::NotFound(APPROVAL))?;
        if answer.decision == Decision::Allow && input_record.request.state == InputState::Pending {
            self.check_reachable(principal, terms).await?;
        }
        let grant = self.grant(&input_record, terms, &answer);
        let answer = self.checked_decision(terms, answer)?;
        let resolve = ResolveInput { owner: owner.clone(), id: id.clone(), answer, grant, now: self.clock.now() };
        let (record, replay) = self.resolve_question(resolve, key, APPROVAL).await?;
        let approval = Approval::of(record).ok_or(Error::NotFound(APPROVAL))?;
        Ok((approval, replay))
    }

    /// Refuses to allow a call whose server is unavailable: the call could not be made, and the answer would be lost.
    async fn check_reachable(&self, principal: &Principal, terms: &ApprovalTerms) -> Result<()> {
        let (Some(server), Some(deps)) = (&terms.server, &self.mcp_servers) else { return Ok(()) };
        if deps.servers.has(&principal.user_id, server).await {
            return Ok(());
        }
        Err(Error::conflict("the MCP server of the tool was deleted or disabled: enable it and answer again, or deny the call"))
    }

    pub async fn tool_grants(&self, principal: &Principal) -> Result<Vec<ToolGrant>> {
        Ok(self.store.tool_grants(&principal.user_id, None).await?)
    }

    /// Deletes a grant: runs that are claimed from now on ask again.
    pub async fn delete_tool_grant(&self, principal: &Principal, id: &GrantId) -> Result<()> {
        let is_gone = self.store.delete_tool_grant(&principal.user_id, id).await?;
        is_gone.then_some(()).ok_or(Error::NotFound("tool grant"))
    }

    fn grant(&self, input_record: &InputRecord, terms: &ApprovalTerms, answer: &ApprovalAnswer) -> Option<NewGrant> {
        let conversation = match (answer.decision, answer.scope.unwrap_or_default()) {
            (Decision::Deny, _) | (_, ApprovalScope::Once) => return None,
            (Decision::Allow, ApprovalScope::Conversation) => Some(input_record.request.conversation_id.clone()),
            (Decision::Allow, ApprovalScope::Always) => None,
        };
        Some(NewGrant {
            id: GrantId::generate(&*self.ids),
            conversation,
            server: terms.server.clone(),
            tool: terms.tool.clone(),
            definition_hash: terms.consent_hash.as_ref().unwrap_or(&terms.definition_hash).clone(),
        })
    }

    fn checked_decision(&self, terms: &ApprovalTerms, answer: ApprovalAnswer) -> Result<InputAnswer> {
        let ApprovalAnswer { decision, scope, arguments, reason, arguments_hash } = answer;
        if arguments_hash.is_some_and(|expected_hash| expected_hash != terms.arguments_hash) {
            let detail = "the arguments of this approval differ from arguments_hash; read the approval again";
            return Err(Error::conflict(detail));
        }
        if let Some(scope) = scope.filter(|scope| !terms.scopes.contains(scope)) {
            let known: Vec<&str> = terms.scopes.iter().map(|scope| scope.as_str()).collect();
            return Err(Error::field("/scope", format!("{} is not allowed here, only {}", scope.as_str(), known.join(", "))));
        }
        if decision == Decision::Deny && (scope.is_some() || arguments.is_some()) {
            return Err(Error::field("/decision", "scope and arguments require the decision allow"));
        }
        if terms.undoes.is_some() && arguments.is_some() {
            let detail = "the arguments of an undo call cannot be edited: otherwise it would undo something else";
            return Err(Error::field("/arguments", detail));
        }
        let arguments = arguments
            .map(|arguments| checked_arguments(&terms.parameters, terms.key_argument.as_deref(), arguments))
            .transpose()?;
        let text = self.answer_text("/reason", reason)?;
        let scope = (decision == Decision::Allow).then(|| scope.unwrap_or_default());
        Ok(InputAnswer { choice: decision.as_str().to_owned(), text, content: None, scope, arguments })
    }
}

pub(in crate::service) fn arguments_for(tool: &ToolDefinition, arguments: Value) -> Result<Value> {
    let key_argument = match &tool.replay {
        ReplayClass::Keyed { argument } => Some(argument.as_str()),
        _ => None,
    };
    checked_arguments(&tool.parameters, key_argument, arguments)
}

/// Checks arguments that a human has edited. The key argument cannot be edited; the server sets it when the call is made.
fn checked_arguments(parameters: &Value, key_argument: Option<&str>, arguments: Value) -> Result<Value> {
    let Value::Object(mut edited) = arguments else {
        return Err(Error::field("/arguments", "must be a JSON object of arguments by name"));
    };
    if is_deeper_than(&Value::Object(edited.clone()), MAX_NESTING) {
        return Err(Error::field("/arguments", format!("must not be nested more than {MAX_NESTING} levels deep")));
    }
    let mut sent = edited.clone();
    if let Some(key) = key_argument {
        edited.shift_remove(key);
        sent.insert(key.to_owned(), Value::String("key".to_owned()));
    }
    schema::check_once(parameters, &Value::Object(sent)).map_err(|error| Error::field("/arguments", error.to_string()))?;
    Ok(Value::Object(edited))
}
