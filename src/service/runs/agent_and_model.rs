//! The agent and the model of a message, and the defaults that its conversation stores.

use crate::domain::access::principal::Principal;
use crate::domain::agent::AgentProfile;
use crate::domain::conversation::{AgentChoice, Conversation};
use crate::service::runs::message_content::StartRun;
use crate::service::{Error, Result, Service};

const MAX_MODEL_CHARS: usize = 200;

/// Limit of an agent's name in a document, in characters. Names and ids with versions are shorter.
const MAX_AGENT_CHARS: usize = 200;

/// The profile of a message's agent, and the model that the message or its conversation names.
pub(in crate::service) struct ChosenAgent {
    pub(in crate::service) profile: AgentProfile,
    pub(in crate::service) names_model: bool,
    pub(in crate::service) model: Option<String>,
}

impl Service {
    /// Returns the agent and the model of a message: those in the message, or else those of its conversation.
    pub(in crate::service) async fn chosen_agent(&self, principal: &Principal, request: &StartRun) -> Result<ChosenAgent> {
        let stored = self.stored_choice(principal, request).await?;
        let (profile, names_model) = match (&request.agent, &stored.agent) {
            (None, Some(agent)) => {
                let found = self.agent_profile(principal, Some(agent)).await;
                found.map_err(|error| unusable_agent(agent, error))?
            }
            (agent, _) => self.agent_profile(principal, agent.as_deref()).await?,
        };
        let model = match (&request.model, stored.model) {
            (Some(model), _) => Some(storable_model(model)?),
            (None, Some(model)) if !self.serves(&principal.user_id, &model).await? => return Err(unusable_model(&model)),
            (None, stored) => stored,
        };
        Ok(ChosenAgent { profile, names_model, model })
    }

    /// Returns the defaults of the message's conversation. Reads them only if the message leaves a choice to them.
    async fn stored_choice(&self, principal: &Principal, request: &StartRun) -> Result<AgentChoice> {
        if let Some(stored) = &request.stored_choice {
            return Ok(stored.clone());
        }
        let Some(id) = request.conversation_id.as_ref().filter(|_| request.agent.is_none() || request.model.is_none()) else {
            return Ok(AgentChoice::default());
        };
        let stored = self.store.conversation(&principal.user_id, id).await?;
        Ok(stored.as_ref().map(Conversation::choice).unwrap_or_default())
    }

    /// Refuses an agent that the principal may not use, and a model that no provider serves. Empty text names none.
    pub(in crate::service) async fn check_choice(&self, principal: &Principal, choice: &AgentChoice) -> Result<()> {
        if let Some(agent) = choice.agent.as_deref().filter(|agent| !agent.is_empty()) {
            self.agent_profile(principal, Some(agent)).await?;
        }
        if let Some(model) = choice.model.as_deref().filter(|model| !model.is_empty()) {
            self.require_served(principal, &storable_model(model)?).await?;
        }
        Ok(())
    }

    pub(in crate::service) async fn require_served(&self, principal: &Principal, model: &str) -> Result<()> {
        let is_served = self.serves(&principal.user_id, model).await?;
        is_served.then_some(()).ok_or_else(|| Error::UnknownModel(model.to_owned()))
    }

    /// Returns the profile of the agent in a document, or the default agent's if the principal cannot use it here.
    pub(in crate::service) async fn imported_profile(&self, principal: &Principal, choice: &AgentChoice) -> Result<AgentProfile> {
        let named = self.agent_profile(principal, choice.agent.as_deref()).await;
        match named {
            Ok((profile, _)) => Ok(profile),
            Err(Error::Invalid { .. } | Error::Conflict(_) | Error::NotInGroups(_)) if choice.agent.is_some() => {
                Ok(self.agent_profile(principal, None).await?.0)
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns a model name that is safe to store and display. Does not check whether a provider serves it.
pub(in crate::service) fn storable_model(model: &str) -> Result<String> {
    if is_short(model, MAX_MODEL_CHARS) {
        return Ok(model.to_owned());
    }
    Err(Error::field("/model", format!("must have 1 to {MAX_MODEL_CHARS} characters, and no control characters")))
}

/// Returns the agent and the model of a document if they are valid names. The next message checks whether they exist here.
pub(in crate::service) fn imported_choice(choice: AgentChoice) -> Result<AgentChoice> {
    let check = |field: &str, name: Option<String>, most: usize| match name.filter(|name| !name.is_empty()) {
        Some(name) if !is_short(&name, most) => {
            let rule = format!("must have at most {most} characters, and no control characters");
            Err(Error::field(&format!("/conversation/{field}"), rule))
        }
        name => Ok(name),
    };
    Ok(AgentChoice { agent: check("agent", choice.agent, MAX_AGENT_CHARS)?, model: check("model", choice.model, MAX_MODEL_CHARS)? })
}

pub(in crate::service) fn is_short(name: &str, most: usize) -> bool {
    (1..=most).contains(&name.chars().count()) && !name.contains(char::is_control)
}

/// Returns the error about a conversation's agent. The request named no agent, so the error names the agent and the ways out.
fn unusable_agent(agent: &str, error: Error) -> Error {
    match error {
        Error::Invalid { errors, detail } => {
            let reason = errors.into_iter().next().map_or(detail, |error| error.detail);
            Error::Conflict(format!(
                "the conversation's agent {agent:?} cannot be used: {reason}; name another agent in the message, or change the \
                 conversation's agent with PATCH"
            ))
        }
        other => other,
    }
}

fn unusable_model(model: &str) -> Error {
    Error::Conflict(format!(
        "the conversation's model {model:?} cannot be used: no configured provider serves it; name another model in the \
         message, or change the conversation's model with PATCH"
    ))
}
