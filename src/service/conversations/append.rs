//! Appends a client's messages to a conversation.

use std::sync::Arc;

use crate::domain::access::principal::Principal;
use crate::domain::conversation::message::Message;
use crate::domain::conversation::{AgentChoice, Conversation};
use crate::domain::ids::ConversationId;
use crate::service::conversations::import::SentConversation;
use crate::service::conversations::{MAX_PROMPT_CHARS, layer};
use crate::service::idempotency_outcome::{Replay, RequestKey, outcome_or_conflict};
use crate::service::runs::publish;
use crate::service::{Error, Result, Service};
use crate::store::{AppendMessages, AppendOutcome};

impl Service {
    /// Appends messages to a conversation without an unfinished run, and extends its part of the system prompt. Nothing is
    /// executed. Returns the messages with their new ids.
    pub async fn append_messages(
        &self,
        principal: &Principal,
        id: &ConversationId,
        sent: SentConversation,
        key: Option<RequestKey>,
    ) -> Result<(Vec<Message>, Replay)> {
        let Conversation { agent, model, .. } = self.conversation(principal, id).await?;
        let SentConversation { messages, system_prompt, metadata: _, field } = sent;
        let pointer = format!("/{field}");
        let append = AppendMessages {
            owner: principal.user_id.clone(),
            conversation_id: id.clone(),
            turns: self.sent_turns(principal, &AgentChoice { agent, model }, id, &messages, field).await?,
            system_prompt: layer(&pointer, system_prompt)?.filter(|text| !text.is_empty()),
            max_prompt_chars: MAX_PROMPT_CHARS,
            max_files: self.files.limits.max_per_conversation,
            ids: Arc::clone(&self.ids),
            now: self.clock.now(),
        };
        let (most_files, of) = (append.max_files, id.clone());
        let claim = self.claim(&principal.user_id, key);
        self.run_to_end(|store, hub| async move {
            let (appended, replay) = outcome_or_conflict(store.append_messages(append, claim).await?)?;
            match appended {
                AppendOutcome::Appended { messages, events } => {
                    publish(&hub, &of, events);
                    Ok((messages, replay))
                }
                AppendOutcome::Active { run_id } => Err(Error::RunActive(run_id)),
                AppendOutcome::LongPrompt { chars } => {
                    let reason = format!(
                        "has texts that extend the system prompt to {chars} characters; at most {MAX_PROMPT_CHARS} are accepted"
                    );
                    Err(Error::field(&pointer, reason))
                }
                AppendOutcome::TooManyFiles { files } => Err(Self::too_many_files(files, most_files, field)),
                AppendOutcome::NoConversation => Err(Error::NotFound("conversation")),
            }
        })
        .await
    }
}
