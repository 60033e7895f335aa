//! Writes the demo's replies.

use super::intent::{self, WantedCall};
use crate::domain::conversation::{Message, Role, ToolCallPart, ToolContent, ToolResultPart};
use crate::domain::model::ModelRequest;
use crate::provider::request::shared_parts::tool_results;
use crate::support::text;

const MAX_COUNT: u32 = 10_000;
/// Characters of a tool's result that the demo repeats.
const MAX_QUOTE: usize = 1_500;

const INTRODUCTION: &str = "I am only a demonstration: an offline model without a mind, so that you can try Capstan without a key. \
For a real model set OPENAI_API_KEY (and OPENAI_BASE_URL for any other server that speaks the same API), choose it with \
CAPSTAN_MODEL, such as openai/gpt-5, and start again.\n\n";

#[derive(Debug)]
pub(super) enum Reply {
    Text(String),
    Calls(Vec<WantedCall>),
}

pub(super) fn reply(request: &ModelRequest) -> Reply {
    let question_at = request.messages.iter().rposition(Message::is_from_user);
    let (before, since) = request.messages.split_at(question_at.unwrap_or(0));
    let question = since.first().map(Message::text).unwrap_or_default();
    let results = results(since);
    let offered = |name: &str| request.tools.iter().any(|tool| tool.name == name);
    let (possible, missing): (Vec<_>, Vec<_>) = intent::wanted_calls(&question).into_iter().partition(|call| offered(call.name));
    if results.is_empty() && !possible.is_empty() {
        return Reply::Calls(possible);
    }
    let first = !before.iter().any(|message| message.role == Role::Assistant);
    let introduction = if first { INTRODUCTION } else { "" };
    let mut body = if results.is_empty() {
        talk(request, &question, &missing)
    } else {
        results.iter().map(|(call, result)| sentence(*call, result)).collect::<Vec<_>>().join(" ")
    };
    if !results.is_empty() && !missing.is_empty() {
        body.push(' ');
        body.push_str(&not_on_offer(&missing));
    }
    Reply::Text(format!("{introduction}{body}"))
}

/// Returns the results in `turn`, the messages since the question, with the calls that they answer.
fn results(turn: &[Message]) -> Vec<(Option<&ToolCallPart>, &ToolResultPart)> {
    let call_of = |result: &ToolResultPart| turn.iter().flat_map(Message::tool_calls).find(|call| call.call_id == result.call_id);
    let messages = turn.iter().filter(|message| message.role == Role::Tool);
    messages.flat_map(tool_results).map(|result| (call_of(result), result)).collect()
}

fn sentence(call: Option<&ToolCallPart>, result: &ToolResultPart) -> String {
    let whole: String = result.content.iter().filter_map(ToolContent::as_text).collect();
    let quote = text::prefix_chars(whole.trim(), MAX_QUOTE);
    let argument = |name: &str| call.and_then(|call| call.arguments.get(name)).and_then(|value| value.as_str());
    if result.is_error {
        return format!("The tool {} failed: {quote}.", result.name);
    }
    match result.name.as_str() {
        "current_time" => format!("It is {}.", readable_time(quote)),
        "calculate" => format!("{} = {quote}.", argument("expression").unwrap_or("The result")),
        "list_directory" => format!("In the folder {} I see:\n\n{quote}\n\n", argument("path").unwrap_or("you gave me")),
        "read_file" => format!("{} says:\n\n{quote}\n\n", argument("path").unwrap_or("The file")),
        other => format!("The tool {other} answered: {quote}."),
    }
}

/// Returns the text in parentheses in the result of the clock tool.
fn readable_time(time: &str) -> &str {
    match time.split_once('(') {
        Some((_, words)) => words.trim_end_matches(')'),
        None => time,
    }
}

fn not_on_offer(missing: &[WantedCall]) -> String {
    let names: Vec<&str> = missing.iter().map(|call| call.name).collect();
    format!("I would have used {}, but this agent does not offer it.", names.join(" and "))
}

fn talk(request: &ModelRequest, question: &str, missing: &[WantedCall]) -> String {
    if let Some(target) = intent::count_to(question) {
        return (1..=target.min(MAX_COUNT)).map(|number| number.to_string()).collect::<Vec<_>>().join(" ");
    }
    if intent::wants_story(question) {
        return story();
    }
    if !missing.is_empty() {
        return not_on_offer(missing);
    }
    let mut talk = match question.trim() {
        "" => String::new(),
        other => format!("You said: “{}”. I cannot think about that. ", text::prefix_chars(other, 200)),
    };
    let skills: Vec<&str> = request
        .tools
        .iter()
        .filter_map(|tool| match tool.name.as_str() {
            "current_time" => Some("ask me what time it is"),
            "calculate" => Some("give me a calculation such as 17*23"),
            "list_directory" => Some("ask me to list the files in a folder"),
            "read_file" => Some("ask me to read notes.txt"),
            _ => None,
        })
        .collect();
    if !skills.is_empty() {
        talk.push_str(&format!("But you can {}; several of them in one message are carried out in parallel. ", skills.join(", ")));
    }
    talk.push_str("“Tell me a long story” and “count to 500” give you something long to stream, cancel and resume.");
    talk
}

fn story() -> String {
    const WATCHES: [&str; 8] = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "last"];
    const SIGHTS: [&str; 8] = [
        "a grey whale that blew twice and dived",
        "three gulls asleep on a floating crate",
        "the lights of a harbour that was on no chart",
        "a bank of fog as straight as a wall",
        "a bottle with a letter, too far off to reach",
        "green fire at the tip of every mast",
        "an island of ice with a lamp burning on it",
        "the lighthouse of home, low over the water",
    ];
    let watches = WATCHES.iter().zip(SIGHTS).map(|(watch, sight)| {
        format!(
            "In the {watch} watch of the night the crew of the Patience walked round the capstan once more. Step by step the \
             cable came in, and with every step a pawl fell into its notch with a click, so that nothing they had won could \
             slip back into the sea. The helmsman called out that there was {sight}, and the captain wrote it down in the log \
             before anybody was allowed to speak of it. When a hand grew tired another took the bar from him, looked up the \
             last line of the log, and went on from there. Nobody had to begin anew, and nobody did the same thing twice."
        )
    });
    let mut story = watches.collect::<Vec<_>>().join("\n\n");
    story.push_str("\n\nThen the anchor hung dripping at the bow, and they sailed.");
    story
}
