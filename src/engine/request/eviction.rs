//! Halves a request that was too large for its model. The result is a view of the history; stored messages do not change.
//!
//! A turn is a user message with all messages up to the next one. Complete turns are dropped first, oldest first, so that every
//! call keeps its result. A request that is still too large loses older images and reasoning. Then the newest reasoning is dropped
//! if it does not fit. After that, the middle of the longest texts and the end of the longest files are cut, the user's newest text
//! last. The newest images are dropped at the end.

use serde_json::Value;

use crate::domain::conversation::{FilePart, Message, Part, Role, TextLimit, TextPart, ToolContent};
use crate::engine::request::size;
use crate::engine::request::size::Length;
use crate::support::text::prefix_chars;

/// The shortest length that a text is cut to, in characters.
pub const LEAST_CHARS: usize = 500;

const NO_IMAGE: &str = "[a picture is left out here]";

/// The longest notice that replaces cut text, in bytes.
const NOTICE: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Eviction {
    pub messages: u32,
    /// Texts, images and arguments that are cut, and messages that lost their reasoning.
    pub texts: u32,
}

/// Halves a history that begins with a user message and whose calls are followed by their results.
pub fn halve(messages: &mut Vec<Message>) -> Eviction {
    let budget = size::messages(messages) / 2;
    let dropped = first_to_keep(messages, budget);
    messages.drain(..dropped);
    // Each image frees at most its estimate, so that no more are dropped than necessary.
    let too_many = |messages: &[Message], budget| size::messages(messages).saturating_sub(budget).div_ceil(size::IMAGE);
    let pictures = drop_while(messages, |messages| too_many(messages, budget), drop_older_images);
    let mut texts = u32::try_from(pictures).unwrap_or(u32::MAX);
    let question = messages.iter().rposition(Message::is_from_user);
    texts = texts.saturating_add(drop_older_reasoning(messages, budget as u64, |message| size::message(message) as u64));
    texts = texts.saturating_add(drop_reasoning_without_room(messages, |messages| size::messages(messages) <= budget));
    for spared in [question, None] {
        if size::messages(messages) > budget {
            texts = texts.saturating_add(cut_longest(messages, budget, spared));
        }
    }
    // The notices that replace cut text do not count here, so that they drop no image.
    let notices = (texts as usize).saturating_mul(NOTICE);
    let pictures = drop_while(messages, |messages| too_many(messages, budget.saturating_add(notices)), drop_images);
    texts = texts.saturating_add(u32::try_from(pictures).unwrap_or(u32::MAX));
    Eviction { messages: u32::try_from(dropped).unwrap_or(u32::MAX), texts }
}

/// Returns the index of the first message to keep. It begins the oldest turn from which on all messages fit, or else the last turn.
fn first_to_keep(messages: &[Message], budget: usize) -> usize {
    let mut cost = 0;
    let mut first = messages.len();
    for (at, message) in messages.iter().enumerate().rev() {
        cost += size::message(message);
        if message.is_from_user() && (cost <= budget || first == messages.len()) {
            first = at;
        }
        if cost > budget && first < messages.len() {
            break;
        }
    }
    if first == messages.len() { 0 } else { first }
}

/// Drops as many images as `over` returns, until it returns none or no images are left. Returns the number of dropped images.
pub fn drop_while(
    messages: &mut [Message],
    over: impl Fn(&[Message]) -> usize,
    drop: impl Fn(&mut [Message], usize) -> usize,
) -> usize {
    let mut all = 0_usize;
    loop {
        let count = over(messages);
        let dropped = drop(messages, count);
        all = all.saturating_add(dropped);
        if dropped < count || count == 0 {
            return all;
        }
    }
}

/// Does the same as [`drop_images`], but only before the newest message with an image: older images are dropped before texts are cut.
pub fn drop_older_images(messages: &mut [Message], count: usize) -> usize {
    let newest = messages.iter().rposition(|message| message.parts.iter().any(shows_image)).unwrap_or(0);
    drop_images(&mut messages[..newest], count)
}

/// Drops the oldest `count` images and documents; the text of a document stays. Returns the number of dropped ones.
pub fn drop_images(messages: &mut [Message], count: usize) -> usize {
    let mut remaining = count;
    for part in messages.iter_mut().flat_map(|message| &mut message.parts) {
        if remaining == 0 {
            break;
        }
        match part {
            Part::Image(file) | Part::File(file) if size::is_shown(file) => {
                match size::text_of(file) {
                    Some(Length { bytes, chars }) => file.text_limit = Some(TextLimit { chars, bytes }),
                    None => name_only(part),
                }
                remaining -= 1;
            }
            Part::ToolResult(result) => {
                let pictures = result.content.iter_mut().filter(|content| matches!(content, ToolContent::Image(_)));
                for picture in pictures.take(remaining) {
                    *picture = ToolContent::text(NO_IMAGE);
                    remaining -= 1;
                }
            }
            Part::Image(_) | Part::File(_) | Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) | Part::Source(_) => {}
        }
    }
    count - remaining
}

/// Replaces an image or file by a note with its name.
fn name_only(part: &mut Part) {
    let (kind, file) = match part {
        Part::Image(file) => ("picture", file),
        Part::File(file) => ("file", file),
        Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) | Part::Source(_) => return,
    };
    let text = format!("[{kind} {}, {}: left out here, there is no room for it]", file.shown_name(), file.media_type);
    *part = Part::Text(TextPart { id: file.id.clone(), text });
}

fn shows_image(part: &Part) -> bool {
    match part {
        Part::Image(file) | Part::File(file) => size::is_shown(file),
        Part::ToolResult(result) => result.content.iter().any(|content| matches!(content, ToolContent::Image(_))),
        Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) | Part::Source(_) => false,
    }
}

/// Drops reasoning if the messages cost more than `budget`: all of past turns, then, oldest first, of the current turn until the
/// messages fit. Calls of the current turn keep their signatures, since Gemini refuses calls without them. The newest answer is
/// unchanged if it has calls, because its provider requires its reasoning beside the results. Returns the number of changed
/// messages.
pub fn drop_older_reasoning(messages: &mut [Message], budget: u64, cost: impl Fn(&Message) -> u64) -> u32 {
    let mut all = messages.iter().map(&cost).fold(0_u64, u64::saturating_add);
    if all <= budget {
        return 0;
    }
    let question = messages.iter().rposition(Message::is_from_user).unwrap_or(0);
    let newest = messages.iter().rposition(|message| message.role == Role::Assistant).unwrap_or(0);
    let mut count = 0_u32;
    for (at, message) in messages.iter_mut().enumerate().take(question.max(newest)) {
        let is_over = at < question;
        let goes_on = at == newest && message.parts.iter().any(|part| matches!(part, Part::ToolCall(_)));
        let has_some = if is_over { has_reasoning(message) } else { has_reasoning_part(message) };
        if (is_over || all > budget) && has_some && !goes_on {
            let before = cost(message);
            message.parts.retain(|part| !matches!(part, Part::Reasoning(_)));
            if is_over {
                drop_signatures(message);
            }
            all = all.saturating_sub(before.saturating_sub(cost(message)));
            count = count.saturating_add(1);
        }
    }
    count
}

/// Drops all reasoning if the messages do not fit even with each text cut to [`LEAST_CHARS`]. Returns the number of changed
/// messages.
pub fn drop_reasoning_without_room(messages: &mut [Message], fits: impl Fn(&[Message]) -> bool) -> u32 {
    if fits(messages) || !messages.iter().any(has_reasoning) {
        return 0;
    }
    let mut least = messages.to_vec();
    cut_all(&mut least, LEAST_CHARS, None);
    if fits(&least) {
        return 0;
    }
    let mut count = 0_u32;
    for message in messages.iter_mut().filter(|message| has_reasoning(message)) {
        drop_reasoning(message);
        count = count.saturating_add(1);
    }
    count
}

/// Returns whether a message contains reasoning, or signatures of its calls.
pub fn has_reasoning(message: &Message) -> bool {
    message.parts.iter().any(|part| match part {
        Part::Reasoning(_) => true,
        Part::ToolCall(call) => call.raw.is_some(),
        Part::Text(_) | Part::ToolResult(_) | Part::Image(_) | Part::File(_) | Part::Source(_) => false,
    })
}

fn has_reasoning_part(message: &Message) -> bool {
    message.parts.iter().any(|part| matches!(part, Part::Reasoning(_)))
}

fn drop_reasoning(message: &mut Message) {
    message.parts.retain(|part| !matches!(part, Part::Reasoning(_)));
    drop_signatures(message);
}

fn drop_signatures(message: &mut Message) {
    for part in &mut message.parts {
        if let Part::ToolCall(call) = part {
            call.raw = None;
        }
    }
}

pub enum Cuttable<'m> {
    Words(&'m mut String),
    /// A file, whose text is cut when the request is built.
    File(&'m mut FilePart),
}

impl Cuttable<'_> {
    fn length(&self) -> Length {
        match self {
            Self::Words(text) => Length { bytes: text.len(), chars: text.chars().count() },
            Self::File(file) => size::text_of(file).unwrap_or_default(),
        }
    }

    /// Cuts a text to `limit` characters, unless the notice would make it longer. Returns whether it was cut.
    fn cut(self, limit: usize) -> bool {
        let Length { bytes, chars } = self.length();
        if chars <= limit {
            return false;
        }
        match self {
            Self::Words(text) => {
                let cut = without_middle(text, chars, limit);
                let is_shorter = cut.len() < text.len();
                if is_shorter {
                    *text = cut;
                }
                is_shorter
            }
            Self::File(file) => {
                file.text_limit = Some(TextLimit { chars: limit, bytes: share(bytes, limit, chars) });
                true
            }
        }
    }
}

/// Estimates the bytes of the first `limit` of `chars` characters, in proportion to `bytes`.
fn share(bytes: usize, limit: usize, chars: usize) -> usize {
    let share = bytes as u128 * limit as u128 / chars.max(1) as u128;
    usize::try_from(share).unwrap_or(bytes)
}

/// Cuts the longest texts to a common length with which all messages fit, but not below [`LEAST_CHARS`]. Returns the number of cut
/// texts.
fn cut_longest(messages: &mut [Message], budget: usize, spared: Option<usize>) -> u32 {
    let mut lengths = Vec::new();
    each_text(messages, spared, &mut |text| lengths.push(text.length()));
    let mut limit = lengths.iter().map(|length| length.chars).max().unwrap_or(0);
    let excess = size::messages(messages).saturating_sub(budget);
    let saved = |limit: usize| {
        let long = lengths.iter().filter(|length| length.chars > limit);
        long.map(|length| length.bytes - share(length.bytes, limit, length.chars)).sum::<usize>()
    };
    while saved(limit) < excess && limit > LEAST_CHARS {
        limit = (limit * 9 / 10).max(LEAST_CHARS);
    }
    cut_all(messages, limit, spared)
}

/// Returns the length of the longest text, in characters.
pub fn longest(messages: &[Message], spared: Option<usize>) -> usize {
    let mut longest = 0;
    each_text(&mut messages.to_vec(), spared, &mut |text| longest = longest.max(text.length().chars));
    longest
}

/// Cuts all texts longer than `limit` characters. Returns their number.
pub fn cut_all(messages: &mut [Message], limit: usize, spared: Option<usize>) -> u32 {
    let mut count = 0_u32;
    each_text(messages, spared, &mut |text| count = count.saturating_add(u32::from(text.cut(limit))));
    count
}

/// Visits texts, files, results, and texts in the arguments of calls. Cut arguments do no harm, because every call already has its
/// result.
fn each_text(messages: &mut [Message], spared: Option<usize>, visit: &mut impl FnMut(Cuttable<'_>)) {
    let others = messages.iter_mut().enumerate().filter(|(at, _)| Some(*at) != spared);
    for part in others.flat_map(|(_, message)| &mut message.parts) {
        match part {
            Part::Text(text) => visit(Cuttable::Words(&mut text.text)),
            Part::ToolResult(result) => {
                for content in &mut result.content {
                    if let ToolContent::Text { text } = content {
                        visit(Cuttable::Words(text));
                    }
                }
            }
            Part::ToolCall(call) => each_string(&mut call.arguments, visit),
            Part::File(file) => visit(Cuttable::File(file)),
            Part::Reasoning(_) | Part::Image(_) | Part::Source(_) => {}
        }
    }
}

/// Visits all strings of a JSON value. The recursion is bounded, because the nesting of accepted input is bounded.
fn each_string(value: &mut Value, visit: &mut impl FnMut(Cuttable<'_>)) {
    match value {
        Value::String(text) => visit(Cuttable::Words(text)),
        Value::Array(items) => items.iter_mut().for_each(|item| each_string(item, visit)),
        Value::Object(fields) => fields.values_mut().for_each(|field| each_string(field, visit)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Keeps the beginning and the end, which usually contain the purpose of a text.
fn without_middle(text: &str, chars: usize, limit: usize) -> String {
    let end = limit / 3;
    let beginning = prefix_chars(text, limit - end);
    let rest = &text[prefix_chars(text, chars - end).len()..];
    format!("{beginning}\n[cut: {} characters are left out here]\n{rest}", chars - limit)
}
