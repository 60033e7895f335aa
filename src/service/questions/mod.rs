//! Questions to a human, and their answers.

pub(super) mod approvals;
pub(super) mod pins;

use crate::domain::access::principal::Principal;
use crate::domain::ids::InputId;
use crate::domain::run::input::{ACCEPT, InputAnswer, InputKind, InputRecord, InputState};
use crate::service::idempotency::{Replay, RequestKey, keyed};
use crate::service::runs::publish;
use crate::service::{Error, Result, Service};
use crate::store::{Asked, InputCursor, InputFilter, Page, PageRequest, ResolveInput, Resolved};
use crate::support::{failpoint, text};
use crate::tools::schema;
use serde_json::Value;

const INPUT_REQUEST: &str = "input request";

impl Service {
    pub async fn input_request(&self, principal: &Principal, id: &InputId) -> Result<InputRecord> {
        let found = self.store.input_request(&principal.user_id, id).await?;
        found.filter(|found| found.request.kind != InputKind::Approval).ok_or(Error::NotFound(INPUT_REQUEST))
    }

    pub async fn input_requests(
        &self,
        principal: &Principal,
        state: Option<InputState>,
        page: &PageRequest<InputCursor>,
    ) -> Result<Page<InputRecord>> {
        let filter = InputFilter { owner: &principal.user_id, asked: Asked::Questions, state };
        Ok(self.store.input_requests(filter, page).await?)
    }

    /// Answers a question, once. When this returns, the answer is stored and the run will act on it.
    pub async fn resolve_input(
        &self,
        principal: &Principal,
        id: &InputId,
        answer: InputAnswer,
        key: Option<RequestKey>,
    ) -> Result<(InputRecord, Replay)> {
        let owner = &principal.user_id;
        let asked = self.input_request(principal, id).await?;
        let answer = self.checked_answer(&asked, answer)?;
        let resolve = ResolveInput { owner: owner.clone(), id: id.clone(), answer, grant: None, now: self.clock.now() };
        self.resolve_question(resolve, key, INPUT_REQUEST).await
    }

    /// Stores the answer to a question or an approval, and wakes its run. `what` is the word for it in errors.
    pub(in crate::service) async fn resolve_question(
        &self,
        resolve: ResolveInput,
        key: Option<RequestKey>,
        what: &'static str,
    ) -> Result<(InputRecord, Replay)> {
        let claim = self.claim(&resolve.owner, key);
        self.whole(|store, hub| async move {
            let (resolved, replay) = keyed(store.resolve_input(resolve, claim).await?)?;
            failpoint::reached("C18-answered");
            match resolved {
                Resolved::Answered { record, events } => {
                    tracing::info!(run.id = %record.request.run_id, input.id = %record.request.id, "a question was answered");
                    publish(&hub, &record.request.conversation_id, events);
                    hub.notify_queue();
                    Ok((*record, replay))
                }
                Resolved::Closed { record } => {
                    let why = match record.request.state {
                        InputState::Pending if record.expires_at.is_some() => "its time is over",
                        InputState::Expired => "its time is over",
                        InputState::Pending => "its run is over",
                        InputState::Answered | InputState::Applied => "it is answered",
                        InputState::Cancelled => "it is cancelled",
                    };
                    Err(Error::Conflict(format!("this {what} takes no answer any more: {why}")))
                }
                Resolved::NoRequest => Err(Error::NotFound(what)),
            }
        })
        .await
    }

    fn checked_answer(&self, asked: &InputRecord, answer: InputAnswer) -> Result<InputAnswer> {
        let choices = &asked.request.question.choices;
        let has_words = answer.text.as_deref().is_some_and(|words| !words.trim().is_empty());
        let is_in_words = asked.request.kind == InputKind::Question && answer.choice.is_empty();
        if is_in_words && !has_words {
            return Err(Error::field("/text", "an answer needs a text, or one of the question's choices as choice"));
        }
        if !is_in_words && choices.iter().all(|choice| choice.value != answer.choice) {
            let known: Vec<&str> = choices.iter().map(|choice| choice.value.as_str()).collect();
            return Err(Error::field("/choice", format!("must be one of {}", known.join(", "))));
        }
        let form = asked.request.question.form().filter(|_| answer.choice == ACCEPT);
        let content = checked_content(form, answer.content)?;
        Ok(InputAnswer { text: self.answer_text("/text", answer.text)?, content, ..answer })
    }

    pub(in crate::service) fn answer_text(&self, pointer: &str, text: Option<String>) -> Result<Option<String>> {
        let limit = self.limits.max_message_chars;
        match text {
            Some(text) if text.chars().count() > limit => {
                Err(Error::field(pointer, format!("at most {limit} characters are accepted")))
            }
            text => Ok(text.map(|text| text::storable(&text).into_owned())),
        }
    }
}

const MAX_CONTENT: usize = 64 * 1024;

/// Checks a filled-in form. Returns nothing where there is no form, or it is not filled in.
fn checked_content(form: Option<&Value>, content: Option<Value>) -> Result<Option<Value>> {
    let (form, content) = match (form, content) {
        (None, None) => return Ok(None),
        (None, Some(_)) => return Err(Error::field("/content", "is for a form that is accepted")),
        (Some(form), content) => (form, content.unwrap_or_else(|| Value::Object(serde_json::Map::new()))),
    };
    if content.to_string().len() > MAX_CONTENT {
        return Err(Error::field("/content", format!("at most {MAX_CONTENT} bytes are accepted")));
    }
    let is_plain = |value: &Value| match value {
        Value::Null | Value::Object(_) => false,
        Value::Array(items) => items.iter().all(Value::is_string),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    };
    if !content.as_object().is_some_and(|fields| fields.values().all(is_plain)) {
        return Err(Error::field("/content", "must be an object whose fields are plain values, or lists of texts"));
    }
    schema::check_once(form, &content).map_err(|error| Error::field("/content", error.to_string()))?;
    Ok(Some(content))
}
