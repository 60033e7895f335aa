//! The query that ranks a run's tools.

use crate::domain::conversation::{Message, Role};
use crate::domain::ids::RunId;
use crate::domain::run::RunRecord;
use crate::engine::machine::RunState;
use crate::engine::strategy::plan::progress;
use crate::support::{search_words, text};

const MAX_QUERY: usize = 4_000;

/// The query includes earlier messages if it has fewer words than this, such as "yes, do it".
const FEW_WORDS: usize = 8;

/// Characters of the earlier messages: enough to resolve "it", too few to outweigh a new question.
const MAX_EARLIER: usize = 400;

/// Returns the query of the current plan step, or else the text of the newest user messages, newest first. Adds the last exchange before them
/// if the text is short.
pub fn tool_query(state: &RunState) -> String {
    let record = &state.record;
    if let Some(query) = progress::query(record) {
        return text::prefix_chars(&query, MAX_QUERY).to_owned();
    }
    let mut query = user_text(record);
    if search_words::words(&query).len() < FEW_WORDS {
        let run_id = newest_user_run(record.history.iter());
        let earlier = record.history.iter().rev().filter(|message| match message.role {
            Role::User => !message.internal && Some(&message.run_id) != run_id,
            Role::Assistant => true,
            Role::Tool => false,
        });
        for message in earlier.take(2) {
            query.push('\n');
            query.push_str(text::prefix_chars(&message.text(), MAX_EARLIER / 2));
        }
    }
    text::prefix_chars(query.trim(), MAX_QUERY).to_owned()
}

pub(super) fn user_text(record: &RunRecord) -> String {
    text_of_user_messages(record.history.iter())
}

/// Returns the run that has the newest user message. This can be an earlier run, because a resumed or repeated run adds no message.
pub fn newest_user_run<'m>(history: impl DoubleEndedIterator<Item = &'m Message>) -> Option<&'m RunId> {
    history.rev().find(|message| message.is_from_user()).map(|message| &message.run_id)
}

/// Returns the text of the user messages of the run from [`newest_user_run`], newest first.
pub fn text_of_user_messages<'m>(history: impl DoubleEndedIterator<Item = &'m Message> + Clone) -> String {
    let run_id = newest_user_run(history.clone());
    let messages = history.rev().filter(|message| message.is_from_user() && Some(&message.run_id) == run_id);
    let mut joined = String::new();
    for message in messages {
        joined.push_str(text::prefix_chars(&message.text(), MAX_QUERY));
        joined.push('\n');
    }
    text::prefix_chars(joined.trim(), MAX_QUERY).to_owned()
}
