//! Converts the reply of a server into the result of its call.

use crate::domain::tool::ToolCallState;
use crate::tools::mcp::calls::content;
use crate::tools::mcp::calls::reply::Reply;
use crate::tools::mcp::registry::McpAnswer;

/// Returns the result for a reply of the server `name`. `may_repeat`: the call may be repeated if its outcome is unknown.
pub fn of(name: &str, reply: Reply, may_repeat: bool) -> McpAnswer {
    let open = |reason| if may_repeat { McpAnswer::failed(reason) } else { unknown(reason) };
    let fate = if may_repeat { "it may be repeated" } else { "it may have taken effect" };
    match reply {
        Reply::Result(result) => {
            let is_error = content::is_error(&result);
            let state = if is_error { ToolCallState::Failed } else { ToolCallState::Done };
            let structured = result.get("structuredContent").filter(|structured| !structured.is_null()).cloned();
            McpAnswer { state, content: content::from_result(&result), is_error, structured }
        }
        // A server that knows no new session either may mean something else by this error. So the call may have had an effect.
        Reply::Refused(reason) | Reply::NoSession(reason) => {
            McpAnswer::failed(format!("the server {name} answered with an error: {reason}"))
        }
        Reply::NotSent(reason) => McpAnswer::failed(format!("the server {name} cannot be reached, nothing was sent: {reason}")),
        Reply::TimedOut(limit) => {
            open(format!("the tool did not answer within {limit:?} and was cancelled; it may have taken effect"))
        }
        // The worker ignores this result: it already knows that the server requires input.
        Reply::Paused => unknown("the server waits for input".to_owned()),
        // Tasks are followed before this point.
        Reply::Task(_) => unknown("the server continues the call as a task".to_owned()),
        Reply::Gone(reason) => open(format!("the server {name} no longer knows the task of the call; {fate}: {reason}")),
        Reply::PollFailed(reason) => open(format!(
            "the server {name} did not report the end of the call's task in time; {fate}: the last poll failed: {reason}"
        )),
        Reply::Lost(reason) => open(format!("the connection to the server {name} was lost during the call; {fate}: {reason}")),
        Reply::Cancelled => unknown("the call was cancelled while it was under way; it may have taken effect".to_owned()),
    }
}

fn unknown(reason: String) -> McpAnswer {
    McpAnswer::error(ToolCallState::Unknown, reason)
}

pub fn cancelled() -> McpAnswer {
    McpAnswer::error(ToolCallState::Cancelled, "the call was cancelled before it was sent".to_owned())
}
