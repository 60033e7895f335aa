//! Questions to a human and their answers, approvals and tool reviews.
//!
//! Owns the rules for answers. Must not know what a run does with an answer.

pub(super) mod approvals;
pub(super) mod tool_results;
pub(super) mod tool_reviews;

use crate::domain::access::principal::Principal;
use crate::domain::ids::{ConversationId, InputId};
use crate::domain::run::question::{ACCEPT, InputAnswer, InputKind, InputRecord, InputState};
use crate::service::idempotency_outcome::{Replay, RequestKey, outcome_or_conflict};
use crate::service::runs::publish;
use crate::service::{Error, Result, Service};
use crate::store::{InputCursor, InputFilter, Page, PageRequest, QuestionFilterKind, ResolveInput, ResolveOutcome};
use crate::support::{failpoint, text};
use crate::tools::schema;
use serde_json::Value;

const INPUT_REQUEST: &str = "input request";

impl Service {
    pub async fn input_request(&self, principal: &Principal, id: &InputId) -> Result<InputRecord> {
        let found = self.store.input_request(&principal.user_id, id).await?;
        found
            .filter(|found| !matches!(found.request.kind, InputKind::Approval | InputKind::ClientTool))
            .ok_or(Error::NotFound(INPUT_REQUEST))
    }

    pub async fn input_requests(
        &self,
        principal: &Principal,
        state: Option<InputState>,
        conversation: Option<&ConversationId>,
        page: &PageRequest<InputCursor>,
    ) -> Result<Page<InputRecord>> {
        let filter = InputFilter { owner: &principal.user_id, kind: QuestionFilterKind::Questions, state, conversation };
        Ok(self.store.input_requests(filter, page).await?)
    }

    /// Answers a question, at most once. When this returns, the answer is durable and the run will act on it.
    pub async fn resolve_input(
        &self,
        principal: &Principal,
        id: &InputId,
        answer: InputAnswer,
        key: Option<RequestKey>,
    ) -> Result<(InputRecord, Replay)> {
        let owner = &principal.user_id;
        let input_record = self.input_request(principal, id).await?;
        let answer = self.checked_answer(&input_record, answer)?;
        let resolve = ResolveInput { owner: owner.clone(), id: id.clone(), answer, grant: None, now: self.clock.now() };
        self.resolve_question(resolve, key, INPUT_REQUEST).await
    }

    /// Stores the answer to a question or an approval, and wakes its run. `kind` names it in errors.
    pub(in crate::service) async fn resolve_question(
        &self,
        resolve: ResolveInput,
        key: Option<RequestKey>,
        kind: &'static str,
    ) -> Result<(InputRecord, Replay)> {
        let claim = self.claim(&resolve.owner, key);
        self.run_to_end(|store, hub| async move {
            let (resolved, replay) = outcome_or_conflict(store.resolve_input(resolve, claim).await?)?;
            failpoint::hit("C18-answered");
            match resolved {
                ResolveOutcome::Answered { record, events } => {
                    tracing::info!(run.id = %record.request.run_id, input.id = %record.request.id, "a question was answered");
                    publish(&hub, &record.request.conversation_id, events);
                    hub.notify_queue();
                    Ok((*record, replay))
                }
                ResolveOutcome::Closed { record } => {
                    let why = match record.request.state {
                        InputState::Pending if record.expires_at.is_some() => "it has expired",
                        InputState::Expired => "it has expired",
                        InputState::Pending => "its run has ended",
                        InputState::Answered | InputState::Applied => "it was answered already",
                        InputState::Cancelled => "it was cancelled",
                    };
                    Err(Error::Conflict(format!("this {kind} can no longer be answered: {why}")))
                }
                ResolveOutcome::NoRequest => Err(Error::NotFound(kind)),
            }
        })
        .await
    }

    fn checked_answer(&self, input_record: &InputRecord, answer: InputAnswer) -> Result<InputAnswer> {
        let choices = &input_record.request.question.choices;
        let has_words = answer.text.as_deref().is_some_and(|words| !words.trim().is_empty());
        let is_in_words = input_record.request.kind == InputKind::Question && answer.choice.is_empty();
        if is_in_words && !has_words {
            return Err(Error::field("/text", "must be present, unless choice is one of the question's choices"));
        }
        if !is_in_words && choices.iter().all(|choice| choice.value != answer.choice) {
            let known: Vec<&str> = choices.iter().map(|choice| choice.value.as_str()).collect();
            return Err(Error::field("/choice", format!("must be one of {}", known.join(", "))));
        }
        let form = input_record.request.question.form().filter(|_| answer.choice == ACCEPT);
        let content = checked_content(form, answer.content)?;
        Ok(InputAnswer { text: self.answer_text("/text", answer.text)?, content, ..answer })
    }

    pub(in crate::service) fn answer_text(&self, pointer: &str, text: Option<String>) -> Result<Option<String>> {
        let limit = self.limits.max_message_chars;
        match text {
            Some(text) if text.chars().count() > limit => {
                Err(Error::field(pointer, format!("must have at most {limit} characters")))
            }
            text => Ok(text.map(|text| text::storable(&text).into_owned())),
        }
    }
}

const MAX_CONTENT: usize = 64 * 1024;

/// Checks the content of a form. `None` if the question has no form, or the answer does not complete it.
fn checked_content(form: Option<&Value>, content: Option<Value>) -> Result<Option<Value>> {
    let (form, content) = match (form, content) {
        (None, None) => return Ok(None),
        (None, Some(_)) => return Err(Error::field("/content", "requires a question with a form and the choice accept")),
        (Some(form), content) => (form, content.unwrap_or_else(|| Value::Object(serde_json::Map::new()))),
    };
    if content.to_string().len() > MAX_CONTENT {
        return Err(Error::field("/content", format!("must have at most {MAX_CONTENT} bytes")));
    }
    let is_plain = |value: &Value| match value {
        Value::Null | Value::Object(_) => false,
        Value::Array(items) => items.iter().all(Value::is_string),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    };
    if !content.as_object().is_some_and(|fields| fields.values().all(is_plain)) {
        return Err(Error::field("/content", "must be an object whose fields are plain values or arrays of strings"));
    }
    schema::check_once(form, &content).map_err(|error| Error::field("/content", error.to_string()))?;
    Ok(Some(content))
}
