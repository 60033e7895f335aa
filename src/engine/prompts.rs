//! The texts of the loop: hints to the model, and results of calls that were not executed.
//!
//! Hints are `internal` messages of the user role. Requests of later runs omit them.

use serde_json::Value;

use crate::domain::tool::Repair;
use crate::engine::calls::arguments::NULL;

pub const EMPTY_REPLY: &str = "Your last answer was empty. Continue with the task: call a tool, or answer in words.";

pub const HOLLOW_CALLS: &str =
    "Your last answer announced tool calls but contained none. Call the tool, or give your final answer in words.";

pub const WORDED_CALL: &str = "Your last answer was a tool call written as text, and was not carried out. Call the tool in the way that \
     this conversation offers, or give your final answer in words.";

/// Precedes a forced answer, after too many empty answers.
pub const FORCED_EMPTY: &str = "Your last answers were empty. Tools are no longer available. Answer now in words. Say only \
     what the tool results above say, and name what is still open.";

pub const FORCED_ROUNDS: &str = "The limit of rounds is reached and tools are no longer available. Sum up now what was done and \
     what was found. Say only what the tool results above say, and name what is still open.";

pub const FORCED_BUDGET: &str = "The token budget of this run is used up and tools are no longer available. Sum up briefly what was \
     done and what was found. Say only what the tool results above say, and name what is still open.";

pub const FORCED_CONTEXT: &str = "There is no room left for more tool calls, and tools are no longer available. Sum up briefly what was \
     done and what was found. Say only what the tool results above say, and name what is still open.";

pub const FORCED_DUPLICATES: &str = "You keep repeating calls that have been answered. Tools are no longer available. Answer now from the \
     results above, and name what is still open.";

pub const FORCED_BREAKER: &str = "A tool has failed too often and tools are no longer available. Answer now from the results above, and \
     say what could not be done.";

pub const CONTINUE_WORK: &str = "You stopped before the task was finished. Go on with what is left, by calling tools. Sum up only when \
     everything is done.";

pub const CONTINUE_WITHOUT_QUESTIONS: &str = "Do not ask questions and do not offer help. Go on with the task, with the tools that you have. What cannot \
     be done, name at the end, with the reason.";

/// Precedes the first model call of a run, if the previous answer claimed a change that was not made.
pub const FALSE_CLAIM: &str = "Correction: your last answer said that something was changed, but in that turn no call that changes \
     anything succeeded. Nothing was saved. Do not build on it; make the change now if it is still wanted, and tell the user.";

/// Precedes the first model call of the loop after a plan was given up.
pub const PLAN_GIVEN_UP: &str = "The plan for this task was given up. Its completed steps and their results are above: do not repeat them. \
     Continue with the rest.";

/// Precedes a forced answer, if the planner cannot report the completed plan.
pub const PLAN_DONE: &str = "All steps above are completed, and tools are no longer available. Answer the user now from their \
     results, and say what has failed.";

/// The result of a plan step for which no tool was called.
pub const NO_CALL_FOR_STEP: &str = "no tool was called";

pub const ERROR_ROUNDS: &str = "The last tool calls all failed. Read the errors, then change the arguments, use another tool, or tell the \
     user what does not work. Do not repeat the same calls.";

pub fn malformed_answer(reason: &str, quoted: &str) -> String {
    format!(
        "Your last answer was not used: it is not the one JSON object that was requested ({reason}). It began with: {}\n\
         Answer again with one JSON object as the instructions describe, and nothing else.",
        Value::from(quoted)
    )
}

/// Follows an answer that does not consider a message that has joined.
pub const JOINED: &str = "While you were answering, the user sent the message before your last answer. Take it into account now.";

/// Precedes the first model call with tools after a forced answer, because a message has joined.
pub const NO_LONGER_FORCED: &str =
    "The user has sent another message since. You may go on working, with the tools that are on offer now.";

pub const LIMIT_MESSAGE: &str = "I have reached the limit of rounds for this turn and stop here. Send another message to continue.";

pub const UNKNOWN_AFTER_CRASH: &str = "this call may or may not have taken effect; check before repeating";

/// Returns the result of a call whose server could not tell the outcome.
pub fn unknown_after_asking(reason: &str) -> String {
    format!("{UNKNOWN_AFTER_CRASH} (its server was asked whether it did: {reason})")
}

pub const CONFIRMED_BY_HUMAN: &str = "a person confirmed that this call took effect; its result is not known";

pub const LEFT_UNCLEAR: &str =
    "this call may or may not have taken effect, and a person could not tell either; check before repeating";

pub const UNANSWERED: &str =
    "this call may or may not have taken effect, and no person answered the question about it in time; check before repeating";

pub fn did_it_happen(tool: &str) -> String {
    format!("A call of {tool} was interrupted, and its outcome is unknown. Did it take effect?")
}

pub const CALL_DENIED: &str = "a person denied this call, and it was not made; do not repeat it unless they ask for it";

pub const APPROVAL_EXPIRED: &str = "this call needs a person's approval, which did not arrive in time, and it was not made";

pub const APPROVAL_OUTDATED: &str =
    "the approval of this call is for other arguments or for another version of the tool, and it was not made";

pub const SIBLING_DENIED: &str = "this call was not made, because another call in the same answer was denied";

pub const DENIED: &str = "I stop here, because the action was not approved. Tell me how to continue.";

pub fn edited_arguments(arguments: &Value) -> String {
    let arguments_text = arguments.to_string();
    let arguments_text = crate::support::text::prefix_chars(&arguments_text, 1_000);
    format!("[A person changed the arguments of this call before it was made, to {arguments_text}]\n")
}

pub fn repair_note(repair: &Repair, tool: &str) -> String {
    let name = repair.name.as_ref().map(|name| {
        let name = crate::support::text::prefix_chars(name, 80);
        format!("there is no tool named \"{name}\", and {tool} was called")
    });
    let (nulls, syntax): (Vec<&str>, Vec<&str>) = repair.arguments.iter().map(String::as_str).partition(|fix| *fix == NULL);
    let arguments = (!syntax.is_empty()).then(|| format!("the arguments were not valid JSON ({})", syntax.join(", ")));
    let nulls = (!nulls.is_empty()).then(|| "optional arguments that were null were left out".to_owned());
    let repairs: Vec<String> = name.into_iter().chain(arguments).chain(nulls).collect();
    format!("[This call was repaired before it was made: {}]\n", repairs.join("; "))
}

pub fn approval_question(tool: &str) -> String {
    format!("May {tool} be called?")
}

pub const NO_QUESTION: &str = "the question is missing: send it as the text `question`";

pub const CHOICES_AND_FORM: &str = "a question has either `choices` or a `form`: leave one of them out";

pub const NO_ANSWER: &str = "the user has not answered in time; go on without the answer, or tell the user what you need to know";

pub const NO_CLIENT_RESULT: &str = "the client has sent no result in time; the call may or may not have taken effect";

/// Returns the text of the question about a client call.
pub fn client_call(name: &str) -> String {
    format!("the client is to execute {name} and to send its result")
}

pub fn with_words(text: &str, words: Option<&str>) -> String {
    match words.filter(|words| !words.trim().is_empty()) {
        Some(words) => format!("{text}. They say: {words}"),
        None => text.to_owned(),
    }
}

pub const CUT_CALL: &str = "not carried out: your answer reached the output limit inside a tool call, so its arguments are incomplete. \
     Make the call again with shorter arguments, or split the work into several calls.";

pub const NO_TOOLS: &str = "not carried out: no tools are available at this point. Answer in words.";

/// Replaces an empty tool result.
pub const NOTHING_RETURNED: &str = "(the tool returned nothing)";

/// Replaces an empty tool result that is an error.
pub const FAILED_SILENTLY: &str = "(the tool failed without a message)";

/// The first message of a request whose history does not begin with a user message.
pub const HISTORY_CUT: &str = "(The beginning of this conversation is not shown.)";

/// The last message of a request whose history ends with an answer.
pub const CONTINUE: &str = "Continue.";

/// The reason why a changed tool is not on offer.
pub const CHANGED_TOOL: &str =
    "its definition has changed since it was first seen; it is offered again after a tool review has accepted it";

pub const SELECTOR: &str = "Call this first, once, and name every category whose tools may be needed for what the user asks \
     now. Their tools are offered to you next. Do not answer the user yet. The categories, with the number of their tools:";

/// The maximum number of tool names in an error result.
const NAMES_LISTED: usize = 30;

pub fn unknown_tool(name: &str, near: &[&str], offered: &[&str]) -> String {
    let name = crate::support::text::prefix_chars(name, 80);
    let listed = offered.iter().take(NAMES_LISTED).copied().collect::<Vec<_>>().join(", ");
    let more = offered.len().saturating_sub(NAMES_LISTED);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    let meant = if near.is_empty() { String::new() } else { format!(" Did you mean {}?", near.join(" or ")) };
    format!("not carried out: there is no tool named \"{name}\".{meant} The tools are: {listed}{rest}.")
}

pub fn dropped_tool(name: &str) -> String {
    format!("not carried out: {name} failed too often and is no longer available in this run. Use another way.")
}

/// Returns the notice at the last failure of a tool before it is dropped.
pub fn last_failure(name: &str, failures: u32) -> String {
    format!("{name} has now failed {failures} times and is no longer available in this run. Stop using it.")
}

pub fn bad_arguments(reason: &str) -> String {
    format!("not carried out: the arguments must be one JSON object ({reason}). Make the call again with valid JSON.")
}

/// The result of a call above the limit of the request.
pub const NO_CALLS_LEFT: &str = "not carried out: the limit of tool calls is reached. Answer with what you know.";

pub fn too_many_calls(limit: u32) -> String {
    format!(
        "not carried out: at most {limit} calls of one answer are carried out. Make this call again in a later round if it is still needed."
    )
}

pub const UNKNOWN_BEFORE: &str = "not carried out: the same call with the same arguments was made before in this run, and it is not \
     known whether it took effect. Find out without repeating it, or tell the user.";

pub const DUPLICATE_IN_ANSWER: &str = "not carried out: the same call with the same arguments comes before this one in your answer, and is made \
     once.";

pub fn duplicate_call(earlier: &str) -> String {
    format!(
        "not carried out again: the same call with the same arguments was answered before in this run. The answer was: {earlier}"
    )
}

/// Returns why a run fails if the model reached its output limit before it wrote anything.
pub fn output_used_up(limit: Option<u32>, has_reasoned: bool) -> String {
    let limit_text = match limit {
        Some(limit) => format!("its output limit of {limit} tokens"),
        None => "the output limit of its provider".to_owned(),
    };
    let how = if has_reasoned { "on reasoning and wrote no answer" } else { "and wrote no answer" };
    let raise = if limit.is_some() { "raise or remove" } else { "set a higher" };
    let effort = if has_reasoned { ", or lower `options.reasoning_effort`" } else { "" };
    format!("the model used up {limit_text} {how}: {raise} `options.max_output_tokens`{effort}")
}
