//! The query for ranking a run's tools.

use crate::domain::conversation::message::{Message, Role};
use crate::domain::ids::RunId;
use crate::domain::run::record::RunRecord;
use crate::engine::machine::RunState;
use crate::engine::strategy::plan::progress;
use crate::support::{text, words};

const MAX_QUERY: usize = 4_000;

/// With fewer words, such as "yes, do it", the query includes earlier messages.
const FEW_WORDS: usize = 8;

/// Characters of the earlier messages: enough to resolve "it", not enough to drown a new question.
const MAX_EARLIER: usize = 400;

/// Returns the user's words in the turn, newest first, and earlier messages if those are few.
pub fn tool_query(state: &RunState) -> String {
    let record = &state.record;
    if let Some(query) = progress::query(record) {
        return text::prefix_chars(&query, MAX_QUERY).to_owned();
    }
    let mut query = said_in(record);
    if words::words(&query).len() < FEW_WORDS {
        let turn = turn(record.history.iter());
        let earlier = record.history.iter().rev().filter(|message| match message.role {
            Role::User => !message.internal && Some(&message.run_id) != turn,
            Role::Assistant => true,
            Role::Tool => false,
        });
        // The last exchange.
        for message in earlier.take(2) {
            query.push('\n');
            query.push_str(text::prefix_chars(&message.text(), MAX_EARLIER / 2));
        }
    }
    text::prefix_chars(query.trim(), MAX_QUERY).to_owned()
}

pub(super) fn said_in(record: &RunRecord) -> String {
    said_by_user(record.history.iter())
}

/// Returns the newest run with a user message. A run that continues or repeats another one has none of its own, and answers that
/// one's.
pub fn turn<'m>(history: impl DoubleEndedIterator<Item = &'m Message>) -> Option<&'m RunId> {
    history.rev().find(|message| is_said_by_user(message)).map(|message| &message.run_id)
}

fn is_said_by_user(message: &Message) -> bool {
    message.role == Role::User && !message.internal
}

/// Returns the user's words in the turn, newest first.
pub fn said_by_user<'m>(history: impl DoubleEndedIterator<Item = &'m Message> + Clone) -> String {
    let turn = turn(history.clone());
    let own = history.rev().filter(|message| is_said_by_user(message) && Some(&message.run_id) == turn);
    let mut said = String::new();
    for message in own {
        said.push_str(text::prefix_chars(&message.text(), MAX_QUERY));
        said.push('\n');
    }
    text::prefix_chars(said.trim(), MAX_QUERY).to_owned()
}
