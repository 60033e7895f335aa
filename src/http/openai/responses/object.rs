//! The response object, and its identifier.

use serde_json::{Value, json};

use crate::domain::agent::AgentProfile;
use crate::domain::ids::RunId;
use crate::domain::model::{ModelOptions, Usage};
use crate::domain::problem::{ProblemBody, ProblemCode};
use crate::domain::run::Run;
use crate::http::openai::ids::{derived, seconds};
use crate::http::openai::responses::request::{SystemItem, system_items};

/// The identifier of a response: its run, and its number within the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ResponseId {
    pub run: RunId,
    pub segment: u32,
}

impl ResponseId {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("resp_")?;
        let (digits, segment) = match rest.split_once('_') {
            Some((digits, number)) => (digits, number.parse().ok().filter(|number| *number > 0)?),
            None => (rest, 0),
        };
        Some(Self { run: RunId::parse(&format!("run_{digits}")).ok()?, segment })
    }
}

impl std::fmt::Display for ResponseId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&derived("resp_", self.run.as_str()))?;
        match self.segment {
            0 => Ok(()),
            number => write!(f, "_{number}"),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    Queued,
    InProgress,
    Completed { at: i64 },
    Incomplete { reason: &'static str },
    Failed(Box<ProblemBody>),
    Cancelled,
}

impl Outcome {
    pub(super) fn is_over(&self) -> bool {
        !matches!(self, Self::Queued | Self::InProgress)
    }

    fn status(&self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::InProgress => "in_progress",
            Self::Completed { .. } => "completed",
            Self::Incomplete { .. } => "incomplete",
            Self::Failed(_) => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The facts of a response that no event changes: the run, and the request as the agent profile of the run stores it.
#[derive(Clone)]
pub(super) struct ResponseDetails {
    pub run: RunId,
    pub segment: u32,
    /// The request's fields, as the response shows them again.
    shown: Value,
    client_tools: Vec<String>,
    created_at: i64,
    limits_calls: bool,
    pub system_items: Vec<SystemItem>,
}

impl ResponseDetails {
    /// Returns the details of a response. `continued` has the fields of the request that began it, if it is not the first one of
    /// the run.
    pub(super) fn of(run: &Run, segment: u32, profile: &AgentProfile, continued: &Value) -> Self {
        let mut shown = defaults(run, &profile.options);
        let sent = profile.protocol.iter().chain([continued]).filter_map(Value::as_object);
        if let Some(shown) = shown.as_object_mut() {
            // A run of another protocol has other fields.
            for (name, value) in sent.flatten().filter(|(_, value)| !value.is_null()) {
                if let Some(known) = shown.get_mut(name) {
                    known.clone_from(value);
                }
            }
        }
        let own = if segment > 0 { Some(continued) } else { profile.protocol.as_ref() };
        if segment > 0 {
            shown["previous_response_id"] = ResponseId { run: run.id.clone(), segment: segment - 1 }.to_string().into();
        }
        let created_at = seconds(&run.created_at);
        let client_tools = profile.client_tools.iter().map(|tool| tool.name.clone()).collect();
        let system_items = own.map(system_items).unwrap_or_default();
        let limits_calls = profile.max_server_calls.is_some();
        Self { run: run.id.clone(), segment, shown, client_tools, created_at, limits_calls, system_items }
    }

    pub(super) fn is_background(&self) -> bool {
        self.shown["background"] == true
    }

    /// Returns whether the run limits the calls. Calls above the limit are no part of the response.
    pub(super) fn limits_calls(&self) -> bool {
        self.limits_calls
    }

    pub(super) fn is_client_tool(&self, name: &str) -> bool {
        self.client_tools.iter().any(|known| known == name)
    }

    pub(super) fn response(&self, created_at: Option<i64>, outcome: &Outcome, output: Vec<Value>, usage: Option<&Usage>) -> Value {
        let mut response = json!({
            "id": ResponseId { run: self.run.clone(), segment: self.segment }.to_string(),
            "object": "response",
            "created_at": created_at.unwrap_or(self.created_at),
            "status": outcome.status(),
            "error": null,
            "incomplete_details": null,
            "completed_at": null,
            "output": output,
            "usage": usage.map(response_usage),
        });
        match outcome {
            Outcome::Completed { at } => response["completed_at"] = (*at).into(),
            Outcome::Incomplete { reason } => response["incomplete_details"] = json!({ "reason": reason }),
            Outcome::Failed(problem) => response["error"] = response_error(problem),
            Outcome::Queued | Outcome::InProgress | Outcome::Cancelled => {}
        }
        if let (Some(response), Some(shown)) = (response.as_object_mut(), self.shown.as_object()) {
            response.extend(shown.clone());
        }
        response
    }
}

/// Returns whether a request for a response without the field `conversation` started the run. Such a run belongs to a chain.
pub(super) fn is_of_chain(profile: &AgentProfile) -> bool {
    profile.protocol.as_ref().and_then(|sent| sent.get("conversation")).is_some_and(Value::is_null)
}

/// Returns the response that the request named which began a run.
pub(super) fn previous_response(profile: &AgentProfile) -> Option<ResponseId> {
    ResponseId::parse(profile.protocol.as_ref()?.get("previous_response_id")?.as_str()?)
}

/// Returns the default values of the request's fields. Open Responses requires all fields, and does not allow null for most
/// numbers.
fn defaults(run: &Run, options: &ModelOptions) -> Value {
    json!({
        "background": false,
        "conversation": null,
        "frequency_penalty": 0.0,
        "instructions": null,
        "max_output_tokens": null,
        "max_tool_calls": null,
        "metadata": {},
        "model": run.model,
        "parallel_tool_calls": true,
        "presence_penalty": 0.0,
        "previous_response_id": null,
        "prompt_cache_key": null,
        "reasoning": { "effort": null, "summary": null },
        "safety_identifier": null,
        "service_tier": "default",
        "store": true,
        "temperature": options.temperature.unwrap_or(1.0),
        "text": { "format": { "type": "text" } },
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": options.top_p.unwrap_or(1.0),
        "truncation": "disabled",
        "user": null,
    })
}

fn response_usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.input_tokens,
        "input_tokens_details": { "cached_tokens": usage.cached_input_tokens, "cache_write_tokens": 0 },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
        "total_tokens": usage.input_tokens + usage.output_tokens,
    })
}

/// Returns the error of a failed response. OpenAI defines only a few codes, so the message begins with Capstan's problem code.
fn response_error(problem: &ProblemBody) -> Value {
    let is_rate =
        [ProblemCode::ProviderRateLimit, ProblemCode::ProviderQuota].map(ProblemCode::as_str).contains(&problem.code.as_str());
    let code = if is_rate { "rate_limit_exceeded" } else { "server_error" };
    json!({ "type": code, "code": code, "message": format!("{}: {}", problem.code, problem.detail), "param": null })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_id_is_the_run_and_its_number() {
        let first = ResponseId::parse("resp_01980000000070008000000000000001").unwrap();
        assert_eq!((first.run.as_str(), first.segment), ("run_01980000000070008000000000000001", 0));
        let third = ResponseId::parse("resp_01980000000070008000000000000001_2").unwrap();
        assert_eq!((third.segment, third.to_string().as_str()), (2, "resp_01980000000070008000000000000001_2"));
        for wrong in ["resp_1", "run_01980000000070008000000000000001", "resp_01980000000070008000000000000001_0", "resp_"] {
            assert_eq!(ResponseId::parse(wrong), None, "{wrong}");
        }
    }
}
