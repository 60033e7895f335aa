//! Titles that a model makes of the first turn of a conversation.

use crate::domain::conversation::message::{Message, Part, Role, TextPart};
use crate::domain::ids::{MessageId, PartId};
use crate::domain::model::{ModelOptions, ModelRequest};
use crate::engine::machine::RunState;
use crate::support::ids::IdSource;
use crate::support::text;

/// The longest title that a model makes, in characters.
const MAX_CHARS: usize = 60;
/// Tokens of its answer: more than a title has, because some models reason first.
const MAX_TOKENS: u32 = 600;
/// Characters of the question and of the answer that it reads.
const READ_CHARS: usize = 2_000;

const SYSTEM: &str = "You give conversations their titles.";
const ASK: &str = "Write a title for this conversation: at most six words, in its language, without quotes and without a full stop. \
     Answer with the title and nothing else.";
const NO_WORDS: &str = "(a file without words)";

/// Returns the request for a title of the turn that has just ended. `None` if it has no answer.
pub fn title_request(run: &RunState, ids: &dyn IdSource) -> Option<ModelRequest> {
    let record = &run.record;
    let run_id = &record.fence.run_id;
    let mut said = record.history.iter().filter(|message| message.run_id == *run_id && !message.internal);
    let question = said.clone().find(|message| message.role == Role::User)?;
    let answer = said.rfind(|message| message.role == Role::Assistant && !message.text().trim().is_empty())?;
    let part = |words: &str| {
        let words = if words.trim().is_empty() { NO_WORDS } else { text::prefix_chars(words, READ_CHARS) };
        TextPart { id: PartId::generate(ids), text: words.to_owned() }
    };
    let messages = vec![
        Message { parts: vec![Part::Text(part(&question.text()))], ..question.head() },
        Message { parts: vec![Part::Text(part(&answer.text()))], ..answer.head() },
        Message::of_request(MessageId::generate(ids), record.fence.ids(), Role::User, part(ASK)),
    ];
    let model = record.profile.title_model.as_deref().unwrap_or(record.model());
    Some(ModelRequest {
        owner: Some(record.owner.clone()),
        model: model.to_owned(),
        system: SYSTEM.to_owned(),
        messages,
        options: ModelOptions { max_output_tokens: Some(MAX_TOKENS), ..ModelOptions::default() },
        // The window of the run's requests, so that the provider does not load the model anew.
        window: record.profile.context.said_window(run.facts.capacity_of(model).window),
        ..ModelRequest::default()
    })
}

/// Cleans a model's title: its first line, without markup and quotes. `None` if nothing is left.
pub fn cleaned_title(said: &str) -> Option<String> {
    let line = said.lines().map(str::trim).find(|line| line.chars().any(char::is_alphanumeric))?;
    let plain: String = line.chars().filter(|c| !matches!(c, '*' | '`') && (c.is_whitespace() || !c.is_control())).collect();
    let words = plain.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut title = words.trim_start_matches(['#', '>', '-', ' ']);
    for label in ["Title:", "title:"] {
        title = title.strip_prefix(label).unwrap_or(title);
    }
    let around =
        |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '“' | '”' | '„' | '‘' | '’' | '«' | '»' | '_' | '.' | '。');
    let title = title.trim_start_matches(|c| around(c) && c != '.').trim_end_matches(around);
    let short = text::prefix_chars(title, MAX_CHARS);
    let short = match short.rsplit_once(' ') {
        Some((whole_words, _)) if short.len() < title.len() => whole_words.trim_end_matches(|c| around(c) || c == ','),
        Some(_) | None => short,
    };
    (!short.is_empty()).then(|| text::storable(short).into_owned())
}

#[cfg(test)]
mod tests {
    use crate::engine::title::cleaned_title;

    #[test]
    fn titles_are_plain_and_short() {
        for (said, title) in [
            ("Tea in Japan", "Tea in Japan"),
            ("  \"Tea in Japan.\"\n\nI hope that helps!", "Tea in Japan"),
            ("# **Title:** `Tea`\tin Japan…", "Tea in Japan…"),
            ("Title: „Tee in Japan“.", "Tee in Japan"),
            ("```\nsnake_case in .NET\n```", "snake_case in .NET"),
            ("- ’Tis tea", "Tis tea"),
            ("お茶の入れ方。", "お茶の入れ方"),
        ] {
            assert_eq!(cleaned_title(said).as_deref(), Some(title), "{said:?}");
        }
        let long = cleaned_title(&"wörd, ".repeat(30)).unwrap();
        assert_eq!((long.chars().count(), long.ends_with("wörd")), (58, true), "{long}");
        assert_eq!(cleaned_title(&"x".repeat(100)).unwrap().len(), 60);
        for nothing in ["", " \n", "\"\"", "***", "..."] {
            assert_eq!(cleaned_title(nothing), None, "{nothing:?}");
        }
    }
}
