//! Titles of conversations, which a model writes from the question and the answer of a run.

use serde_json::Value;

use crate::domain::conversation::{Message, Part, Role, TextPart};
use crate::domain::ids::{MessageId, PartId};
use crate::domain::model::{ModelOptions, ModelRequest};
use crate::engine::calls::json_repair::unfenced;
use crate::engine::machine::RunState;
use crate::support::ids::IdSource;
use crate::support::text;

/// The longest title, in characters.
const MAX_CHARS: usize = 60;
/// The output limit of the model call, in tokens: more than a title needs, because some models reason first.
const MAX_TOKENS: u32 = 600;
/// Characters of the question, and of the answer, that the model reads.
const READ_CHARS: usize = 2_000;

const SYSTEM: &str = "You write titles for conversations.";
const ASK: &str = "Write a title for this conversation: at most six words, in its language, without quotes and without a full stop. \
     Answer with the title and nothing else.";
const NO_WORDS: &str = "(a file without words)";

/// Returns the request for a title from the run that has just ended. Returns `None` if the run has no question or no answer.
pub fn title_request(run: &RunState, ids: &dyn IdSource) -> Option<ModelRequest> {
    let record = &run.record;
    let run_id = &record.fence.run_id;
    let mut model_text = record.history.iter().filter(|message| message.run_id == *run_id && !message.internal);
    let question = model_text.clone().find(|message| message.role == Role::User)?;
    let answer = model_text.rfind(|message| message.role == Role::Assistant && !message.text().trim().is_empty())?;
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
        // The same window as in the run's requests, so that a local provider does not reload the model.
        window: record.profile.context.token_limit(run.facts.capacity_of(model).window),
        ..ModelRequest::default()
    })
}

/// Tags around the reasoning that some models write before their answer.
const REASONING: [(&str, &str); 3] = [("<think>", "</think>"), ("<thinking>", "</thinking>"), ("<reasoning>", "</reasoning>")];

/// Removes reasoning at the beginning. If the reasoning has no end tag, nothing is left.
fn without_reasoning(model_text: &str) -> &str {
    let model_text = model_text.trim_start();
    match REASONING.iter().find(|(open, _)| model_text.starts_with(open)) {
        Some((_, close)) => model_text.split_once(close).map_or("", |(_, answer)| answer),
        // The chat template may have written the opening tag into the prompt.
        None => REASONING.iter().find_map(|(_, close)| model_text.split_once(close)).map_or(model_text, |(_, answer)| answer),
    }
}

/// Returns the text of a JSON answer, such as `{"title": "Tea"}`: its title, or its only text. Returns `None` if the answer is not
/// a JSON string, object or array.
fn title_in_json(answer: &str) -> Option<String> {
    match serde_json::from_str(answer).ok()? {
        Value::String(title) => Some(title),
        Value::Object(fields) => {
            let mut texts = fields.values().filter_map(Value::as_str);
            let only = texts.next().filter(|_| texts.next().is_none());
            Some(fields.get("title").and_then(Value::as_str).or(only).unwrap_or_default().to_owned())
        }
        Value::Array(_) => Some(String::new()),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

/// Cleans a model's title: its first line, without reasoning, code fence, JSON, markup and quotes. `None` if nothing is left.
pub fn cleaned_title(answer: &str) -> Option<String> {
    let answer = unfenced(without_reasoning(answer));
    let from_json = title_in_json(answer);
    let line =
        from_json.as_deref().unwrap_or(answer).lines().map(str::trim).find(|line| line.chars().any(char::is_alphanumeric))?;
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
        for (answer, title) in [
            ("Tea in Japan", "Tea in Japan"),
            ("  \"Tea in Japan.\"\n\nI hope that helps!", "Tea in Japan"),
            ("# **Title:** `Tea`\tin Japan…", "Tea in Japan…"),
            ("Title: „Tee in Japan“.", "Tee in Japan"),
            ("```\nsnake_case in .NET\n```", "snake_case in .NET"),
            ("- ’Tis tea", "Tis tea"),
            ("お茶の入れ方。", "お茶の入れ方"),
            ("<think>The user asks about tea.\nShort title.</think>\n\nTea in Japan", "Tea in Japan"),
            ("They ask about tea.\n</think>Tea in Japan", "Tea in Japan"),
            ("```json\n{\"title\": \"Tea in Japan\"}\n```", "Tea in Japan"),
            ("{\"name\": \"Tea in Japan\"}", "Tea in Japan"),
            ("\"Tea in Japan\"", "Tea in Japan"),
            ("1984", "1984"),
        ] {
            assert_eq!(cleaned_title(answer).as_deref(), Some(title), "{answer:?}");
        }
        let long = cleaned_title(&"wörd, ".repeat(30)).unwrap();
        assert_eq!((long.chars().count(), long.ends_with("wörd")), (58, true), "{long}");
        assert_eq!(cleaned_title(&"x".repeat(100)).unwrap().len(), 60);
        for nothing in ["", " \n", "\"\"", "***", "...", "<think>", "<think>The user asks about", "{}", "[1]", "```json\n```"] {
            assert_eq!(cleaned_title(nothing), None, "{nothing:?}");
        }
    }
}
