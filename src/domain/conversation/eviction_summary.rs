//! The summary of evicted messages: one line for each, and the files named in their calls. It is made from the messages alone,
//! without a model, so it costs nothing, cannot fail and invents no facts.

use std::collections::HashMap;

use serde_json::Value;

use crate::domain::conversation::{Message, Role, ToolContent};
use crate::domain::ids::{CallId, MessageId, RunId};
use crate::domain::run::context::prose_tokens;
use crate::domain::run::{ContextPolicy, ContextStrategy, ContextSummary};
use crate::support::text;

/// Limit of a line from a user or a model, and from a tool, in characters.
const SAID: usize = 80;
const RESULT: usize = 60;

/// Limit of files in a summary, of which the oldest are dropped first, and limit of a name in characters.
const FILES: usize = 20;
const FILE: usize = 200;

/// Replaces lines that do not fit.
const OMITTED: &str = "[earlier lines are omitted]";

/// Extends the summary `before` by these messages. Messages that are `questions` remain visible in requests. `None` without
/// messages.
pub fn extend_summary(
    policy: &ContextPolicy,
    before: Option<&ContextSummary>,
    messages: &[&Message],
    questions: Vec<MessageId>,
) -> Option<ContextSummary> {
    let last = messages.last()?;
    let count = u32::try_from(messages.len()).unwrap_or(u32::MAX);
    let mut summary = ContextSummary {
        covers: last.id.clone(),
        messages: before.map_or(0, |before| before.messages).saturating_add(count),
        asked: questions,
        text: String::new(),
        files: Vec::new(),
    };
    match policy.strategy {
        ContextStrategy::Summarize => {}
        // A summary that exists already stays: another agent or the owner requested it.
        ContextStrategy::DropOldest | ContextStrategy::None => {
            if let Some(before) = before {
                summary.text.clone_from(&before.text);
                summary.files.clone_from(&before.files);
            }
            return Some(summary);
        }
    }
    let old = before.map_or("", |before| before.text.as_str());
    let mut lines: Vec<String> = old.lines().filter(|line| *line != OMITTED).map(str::to_owned).collect();
    let was_cut = old.starts_with(OMITTED);
    summary.files = before.map(|before| before.files.clone()).unwrap_or_default();
    for message in messages.iter().filter(|message| !message.internal) {
        lines.extend(line(message));
        for call in message.tool_calls() {
            collect_files(None, &call.arguments, &mut summary.files);
        }
    }
    // Files use at most a quarter of the token budget.
    while prose_tokens(summary.files.join(", ").len()) > policy.summary_tokens / 4 {
        summary.files.remove(0);
    }
    let room = policy.summary_tokens - prose_tokens(summary.files.join(", ").len());
    summary.text = cap_lines(&lines, room, was_cut);
    Some(summary)
}

/// Returns the section of the system prompt that contains a summary.
pub fn section(summary: &ContextSummary) -> Option<String> {
    if summary.text.is_empty() && summary.files.is_empty() {
        return None;
    }
    let mut section = format!(
        "Earlier messages of this conversation are left out ({}). In a line each, they were:\n{}",
        summary.messages, summary.text
    );
    if !summary.files.is_empty() {
        section.push_str("\nFiles that they were about: ");
        section.push_str(&summary.files.join(", "));
    }
    Some(section)
}

/// Summarizes all but the newest messages of an idle conversation, on request. `history` contains the messages that no summary
/// covers.
pub fn compact_history(policy: &ContextPolicy, before: Option<&ContextSummary>, history: &[Message]) -> Option<ContextSummary> {
    let policy = ContextPolicy { strategy: ContextStrategy::Summarize, ..policy.clone() };
    let history_refs: Vec<&Message> = history.iter().collect();
    let at = Spans::of(&history_refs, std::iter::empty()).before(newest(&history_refs, policy.keep_last as usize, None));
    let asks = |message: &&&Message| message.is_from_user();
    let turn = history_refs.iter().rev().find(|message| asks(message)).map(|message| &message.run_id);
    let questions = history_refs[..at].iter().filter(asks).filter(|message| Some(&message.run_id) == turn);
    // An earlier question is open unless messages of another run follow it.
    let goes_on = history_refs.first().is_some_and(|first| !asks(&first));
    let open =
        before.filter(|_| goes_on && turn.is_none_or(|turn| history_refs.first().is_some_and(|first| first.run_id == *turn)));
    let questions = open
        .into_iter()
        .flat_map(|before| before.asked.iter().cloned())
        .chain(questions.map(|message| message.id.clone()))
        .collect();
    extend_summary(&policy, before, &history_refs[..at], questions)
}

/// Returns the index at which the newest `keep` messages begin. Internal messages of other runs than `run` are not sent, and not
/// counted.
pub fn newest(messages: &[&Message], keep: usize, run: Option<&RunId>) -> usize {
    let is_sent = |message: &Message| !message.internal || Some(&message.run_id) == run;
    let mut sent = messages.iter().enumerate().rev().filter(|(_, message)| is_sent(message)).map(|(at, _)| at);
    keep.checked_sub(1).map_or(Some(messages.len()), |before| sent.nth(before)).unwrap_or(0)
}

/// The index ranges between calls and their results, in which a history must not be cut.
pub struct Spans(Vec<(usize, usize)>);

impl Spans {
    /// Finds the ranges in these messages. The results of `open` calls will follow later.
    pub fn of<'c>(messages: &[&Message], open: impl Iterator<Item = &'c CallId>) -> Self {
        let mut called: HashMap<&CallId, usize> = HashMap::new();
        let mut spans = Vec::new();
        for (at, message) in messages.iter().enumerate() {
            called.extend(message.tool_calls().map(|call| (&call.call_id, at)));
            let results = message.tool_results().filter_map(|result| called.get(&result.call_id).copied());
            if let Some(first) = results.min() {
                spans.push((first, at));
            }
        }
        // The range of an open call has no end. One index stays free after it, so that a search for the next cut ends.
        spans.extend(open.filter_map(|call| called.get(call)).min().map(|first| (*first, usize::MAX - 1)));
        Self(spans)
    }

    /// Returns the last valid cut position up to `at`.
    pub fn before(&self, mut at: usize) -> usize {
        while let Some((first, _)) = self.0.iter().find(|(first, last)| *first < at && at <= *last) {
            at = *first;
        }
        at
    }

    /// Returns the first valid cut position from `at` on.
    pub fn after(&self, mut at: usize) -> usize {
        while let Some((_, last)) = self.0.iter().find(|(first, last)| *first < at && at <= *last) {
            at = last.saturating_add(1);
        }
        at
    }
}

fn line(message: &Message) -> Option<String> {
    let text = message.text();
    let line = match message.role {
        Role::User => format!("user: {}", shorten_words(&text, SAID)),
        Role::Assistant => {
            let calls: Vec<&str> = message.tool_calls().map(|call| call.name.as_str()).collect();
            let called =
                if calls.is_empty() { String::new() } else { format!(" (called {})", shorten_words(&calls.join(", "), SAID)) };
            format!("assistant: {}{called}", shorten_words(&text, SAID))
        }
        Role::Tool => {
            let lines = message.tool_results().map(|result| {
                let words = result.content.iter().find_map(ToolContent::as_text);
                let failed = if result.is_error { " failed" } else { "" };
                format!(
                    "tool {}{failed}: {}",
                    shorten_words(&result.name, SAID),
                    shorten_words(words.unwrap_or("(a picture)"), RESULT)
                )
            });
            lines.collect::<Vec<_>>().join("\n")
        }
    };
    Some(line).filter(|line| !line.is_empty())
}

/// Returns one line of at most `most` characters.
fn shorten_words(words: &str, most: usize) -> String {
    let start = text::prefix_chars(words.trim(), most);
    start.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the newest lines that fit, after a notice if older lines were omitted.
fn cap_lines(lines: &[String], room: u64, was_cut: bool) -> String {
    let cost = |text: &str| prose_tokens(text.len());
    let whole = lines.join("\n");
    if !was_cut && cost(&whole) <= room {
        return whole;
    }
    let mut used_bytes = OMITTED.len();
    let fits = |bytes: usize| prose_tokens(bytes) <= room;
    let newest = lines.iter().rev().take_while(|line| {
        used_bytes += line.len() + 1;
        fits(used_bytes)
    });
    let mut newest: Vec<&str> = newest.map(String::as_str).collect();
    newest.push(OMITTED);
    newest.reverse();
    let text = newest.join("\n");
    if cost(&text) <= room { text } else { String::new() }
}

/// Collects argument values that look like file names, or whose field is named like a file. The nesting of the input is bounded, so
/// the recursion is too.
fn collect_files(name: Option<&str>, value: &Value, files: &mut Vec<String>) {
    match value {
        Value::String(text) if is_file(name, text) => {
            let file = shorten_words(text, FILE);
            // A file that is named again counts as the newest.
            files.retain(|known| *known != file);
            files.push(file);
            if files.len() > FILES {
                files.remove(0);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_files(name, item, files)),
        Value::Object(fields) => fields.iter().for_each(|(name, field)| collect_files(Some(name), field, files)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn is_file(name: Option<&str>, text: &str) -> bool {
    let is_one_line = !text.trim().is_empty() && !text.contains('\n') && text.chars().nth(FILE).is_none();
    let name = name.unwrap_or_default().to_ascii_lowercase();
    let is_named = ["path", "file", "filename", "directory", "folder"].iter().any(|known| name.ends_with(known));
    let looks_like_one = ["/", "~/", "./", "../"].iter().any(|start| text.starts_with(start));
    is_one_line && (is_named || looks_like_one)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::domain::conversation::message::{Part, TextPart, ToolCallPart, ToolResultPart};
    use crate::domain::ids::{ConversationId, PartId, RunId};
    use crate::domain::tool::ToolCallState;
    use crate::support::ids::SequentialIds;
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::json;

    /// One generated entry of a conversation.
    #[derive(Debug, Clone)]
    enum Wrote {
        Words,
        /// So many calls.
        Calls(usize),
        /// The results of so many of the oldest calls that have none.
        Results(usize),
    }

    fn any_messages() -> impl Strategy<Value = Vec<Wrote>> {
        let one = prop_oneof![Just(Wrote::Words), (1..4_usize).prop_map(Wrote::Calls), (1..5_usize).prop_map(Wrote::Results)];
        prop::collection::vec(one, 0..20)
    }

    /// The messages, and the calls that have no result.
    fn written(all: &[Wrote]) -> (Vec<Message>, Vec<CallId>) {
        let ids = SequentialIds::default();
        let (conversation_id, run_id) = (ConversationId::generate(&ids), RunId::generate(&ids));
        let mut waiting: Vec<CallId> = Vec::new();
        let mut messages = Vec::new();
        for wrote in all {
            let (role, parts): (Role, Vec<Part>) = match wrote {
                Wrote::Words => (Role::User, vec![Part::Text(TextPart { id: PartId::generate(&ids), text: "Go on.".to_owned() })]),
                Wrote::Calls(count) => {
                    let called: Vec<CallId> = (0..*count).map(|_| CallId::generate(&ids)).collect();
                    waiting.extend(called.iter().cloned());
                    let part = |call_id| {
                        let (id, name, arguments) = (PartId::generate(&ids), "read".to_owned(), json!({}));
                        Part::ToolCall(ToolCallPart {
                            id,
                            call_id,
                            name,
                            arguments,
                            provider_call_id: None,
                            raw: None,
                            undoes: None,
                        })
                    };
                    (Role::Assistant, called.into_iter().map(part).collect())
                }
                Wrote::Results(count) => {
                    let part = |call_id| {
                        let (id, name, content) = (PartId::generate(&ids), "read".to_owned(), vec![ToolContent::text("ok")]);
                        let state = ToolCallState::Done;
                        Part::ToolResult(ToolResultPart { id, call_id, name, content, is_error: false, state, undoable: false })
                    };
                    (Role::Tool, waiting.drain(..waiting.len().min(*count)).map(part).collect())
                }
            };
            messages.push(Message::new(MessageId::generate(&ids), (run_id.clone(), conversation_id.clone()), role, parts));
        }
        (messages, waiting)
    }

    /// The calls and the results in these messages.
    fn answered(messages: &[&Message]) -> (HashSet<CallId>, HashSet<CallId>) {
        let (mut calls, mut results) = (HashSet::new(), HashSet::new());
        for part in messages.iter().flat_map(|message| &message.parts) {
            match part {
                Part::ToolCall(call) => _ = calls.insert(call.call_id.clone()),
                Part::ToolResult(result) => _ = results.insert(result.call_id.clone()),
                Part::Text(_) | Part::Reasoning(_) | Part::Image(_) | Part::File(_) | Part::Source(_) => {}
            }
        }
        (calls, results)
    }

    proptest! {
        #[test]
        fn summary_keeps_calls_with_results_and_open_calls(
            all in any_messages(), at in 0..25_usize, are_open in prop::collection::vec(any::<bool>(), 60),
        ) {
            let (messages, waiting) = written(&all);
            let history_refs: Vec<&Message> = messages.iter().collect();
            let open: Vec<&CallId> = waiting.iter().zip(are_open).filter(|(_, is_open)| *is_open).map(|(call, _)| call).collect();
            let spans = Spans::of(&history_refs, open.iter().copied());
            let at = at.min(history_refs.len());
            prop_assert!(spans.before(at) <= at && spans.after(at) >= at);
            for cut in [spans.before(at), spans.before(spans.after(at).min(history_refs.len()))] {
                prop_assert_eq!(spans.before(cut), cut, "a cut that may be made stays where it is");
                let ((calls, results), (_, later)) = (answered(&history_refs[..cut]), answered(&history_refs[cut..]));
                prop_assert!(calls.is_disjoint(&later), "a result has lost its call");
                prop_assert!(results.is_subset(&calls));
                prop_assert!(open.iter().all(|call| !calls.contains(*call)), "an open call is left out");
            }
        }
    }

    #[test]
    fn nudges_of_earlier_runs_are_not_kept_beside_a_summary() {
        let (mut messages, _) = written(&[const { Wrote::Words }; 6]);
        let own = RunId::from_stored("run_own".to_owned());
        for at in [1, 3, 4] {
            messages[at].internal = true;
        }
        messages[4].run_id = own.clone();
        let history_refs: Vec<&Message> = messages.iter().collect();
        let kept = |run| [1, 2, 3, 4, 9].map(|keep| newest(&history_refs, keep, run));
        assert_eq!(kept(None), [5, 2, 0, 0, 0]);
        assert_eq!(kept(Some(&own)), [5, 4, 2, 0, 0]);
    }

    #[test]
    fn files_are_found_wherever_they_stand() {
        let mut files = Vec::new();
        let arguments = json!({"path": "notes.txt", "to": "/tmp/a b", "text": "and/or", "list": ["~/x", "y"], "n": {"files": 4},
            "output_file": "z.md", "body": "/one\n/two", "again": "/tmp/a b", "filename": " "});
        collect_files(None, &arguments, &mut files);
        files.sort();
        assert_eq!(files, ["/tmp/a b", "notes.txt", "z.md", "~/x"]);
    }

    #[rstest]
    #[case::all(&["one", "two"], 100, false, "one\ntwo")]
    #[case::cut_before(&["one", "two"], 100, true, "[earlier lines are omitted]\none\ntwo")]
    #[case::the_newest_stay(&["user: the first one", "user: the second one", "user: a third one"], 15, false, "[earlier lines are omitted]\nuser: a third one")]
    #[case::no_room_at_all(&["one two three"], 2, false, "")]
    fn a_summary_keeps_its_end(#[case] lines: &[&str], #[case] room: u64, #[case] was_cut: bool, #[case] expected: &str) {
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        assert_eq!(cap_lines(&lines, room, was_cut), expected);
    }
}
