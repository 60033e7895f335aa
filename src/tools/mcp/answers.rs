//! What the end of a call means for whoever made it.

use super::content;
use super::reply::Reply;
use super::servers::McpAnswer;
use crate::domain::tool::ToolCallState;

/// The answer that a reply of the server `name` is. `may_repeat` says whether the call may be repeated if nobody knows what became of it.
pub fn of(name: &str, reply: Reply, may_repeat: bool) -> McpAnswer {
    match reply {
        Reply::Result(result) => {
            let is_error = content::is_error(&result);
            let state = if is_error { ToolCallState::Failed } else { ToolCallState::Done };
            let structured = result.get("structuredContent").filter(|structured| !structured.is_null()).cloned();
            McpAnswer { state, content: content::from_result(&result), is_error, structured }
        }
        // Who says so on a new session, too, is no proof that nothing happened.
        Reply::Refused(reason) | Reply::NoSession(reason) => failed(format!("the server {name} answered with an error: {reason}")),
        Reply::NotSent(reason) => failed(format!("the server {name} cannot be reached, nothing was sent: {reason}")),
        Reply::TimedOut(limit) => {
            let reason = format!("the tool did not answer within {limit:?} and was cancelled; it may have taken effect");
            if may_repeat { failed(reason) } else { unknown(reason) }
        }
        // Whoever listens does not look at this.
        Reply::Paused => unknown("the server waits for what it wants to know".to_owned()),
        // Nobody follows it here.
        Reply::Task(_) => unknown("the server goes on with the call by itself".to_owned()),
        Reply::Gone(reason) if may_repeat => {
            failed(format!("the server {name} does not know its task for the call any more; it may be repeated: {reason}"))
        }
        Reply::Gone(reason) => unknown(format!(
            "the server {name} does not know its task for the call any more; nobody knows whether it took effect: {reason}"
        )),
        Reply::Lost(reason) if may_repeat => {
            failed(format!("the connection to the server {name} was lost during the call, which may be repeated: {reason}"))
        }
        Reply::Lost(reason) => unknown(format!(
            "the connection to the server {name} was lost during the call; nobody knows whether it took effect: {reason}"
        )),
        Reply::Cancelled => unknown("the call was cancelled while it was under way; it may have taken effect".to_owned()),
    }
}

/// A call that did not succeed, and why.
pub fn failed(reason: String) -> McpAnswer {
    McpAnswer::error(ToolCallState::Failed, reason)
}

fn unknown(reason: String) -> McpAnswer {
    McpAnswer::error(ToolCallState::Unknown, reason)
}

/// A call that nobody wanted any more before it was made.
pub fn cancelled() -> McpAnswer {
    McpAnswer::error(ToolCallState::Cancelled, "the call was cancelled before it was sent".to_owned())
}
