//! Rewinding a conversation to an earlier message.

use crate::domain::access::principal::Principal;
use crate::domain::conversation::Conversation;
use crate::domain::ids::{ConversationId, MessageId};
use crate::service::idempotency_outcome::{Replay, RequestKey, outcome_or_conflict};
use crate::service::runs::publish;
use crate::service::{Error, Result, Service};
use crate::store::{Rewind, RewindFrom, RewindOutcome};

impl Service {
    /// Removes messages from a conversation: they are neither listed nor sent to a model, but stay in the log. Returns their ids.
    pub async fn rewind_conversation(
        &self,
        principal: &Principal,
        id: &ConversationId,
        from: RewindFrom,
        key: Option<RequestKey>,
    ) -> Result<(Conversation, Vec<MessageId>, Replay)> {
        let owner = principal.user_id.clone();
        let rewind = Rewind { owner, conversation_id: id.clone(), from, now: self.clock.now() };
        let claim = self.claim(&principal.user_id, key);
        let of = id.clone();
        let rewound = self.run_to_end(|store, hub| async move {
            let (rewound, replay) = outcome_or_conflict(store.rewind_conversation(rewind, claim).await?)?;
            match rewound {
                RewindOutcome::Conversation { conversation, superseded, events } => {
                    publish(&hub, &of, events);
                    Ok((*conversation, superseded, replay))
                }
                RewindOutcome::Active { run_id } => Err(Error::RunActive(run_id)),
                RewindOutcome::PartsCalls => Err(Error::conflict(
                    "this would separate tool calls from their results; rewind to the last message with results, or to one before the calls",
                )),
                RewindOutcome::NoMessage => Err(Error::NotFound("message in this conversation")),
                RewindOutcome::NoConversation => Err(Error::NotFound("conversation")),
            }
        });
        let (conversation, superseded, replay) = rewound.await?;
        self.check_replayed(principal, id, replay).await?;
        Ok((conversation, superseded, replay))
    }
}
