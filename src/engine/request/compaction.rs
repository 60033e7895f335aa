//! A request that was too large for its model, made smaller once: a view of the history, never a change of it.
//!
//! The oldest turns go first, whole, so that every call keeps its result. What is left of a run that is too large by itself loses
//! its older pictures and thoughts, and then the middle of its longest texts, or the end of its longest files, until about half is
//! left. The user's newest words are cut when nothing else is left to cut, and the newest pictures go when even that is not enough. The
//! newest thoughts go before that, where there is no room beside them.

use serde_json::Value;

use crate::domain::message::{FilePart, Message, Part, Role, TextLimit, TextPart, ToolContent};
use crate::engine::request::size;
use crate::engine::request::size::Length;
use crate::support::text::prefix_chars;

/// No text is cut below this, in characters.
pub const LEAST_CHARS: usize = 500;

const NO_PICTURE: &str = "[a picture is left out here]";

/// What is said where something is cut has no more bytes than this.
const NOTICE: usize = 100;

/// What was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftOut {
    /// Messages that are not in the view.
    pub messages: u32,
    /// Texts, pictures and arguments that are cut in it, and messages that have lost their thoughts.
    pub texts: u32,
}

/// Halves a history that begins with the user and whose calls have their results directly after them.
pub fn halve(messages: &mut Vec<Message>) -> LeftOut {
    let budget = size::messages(messages) / 2;
    let dropped = first_to_keep(messages, budget);
    messages.drain(..dropped);
    // No picture leaves more room than it takes, so that no more are left out than have to be.
    let too_many = |messages: &[Message], budget| size::messages(messages).saturating_sub(budget).div_ceil(size::PICTURE);
    let pictures = drop_while(messages, |messages| too_many(messages, budget), drop_older_pictures);
    let mut texts = u32::try_from(pictures).unwrap_or(u32::MAX);
    let question = messages.iter().rposition(is_beginning);
    texts = texts.saturating_add(drop_older_thoughts(messages, budget as u64, |message| size::message(message) as u64));
    texts = texts.saturating_add(drop_thoughts_without_room(messages, |messages| size::messages(messages) <= budget));
    for spared in [question, None] {
        if size::messages(messages) > budget {
            texts = texts.saturating_add(cut_longest(messages, budget, spared));
        }
    }
    // What says that a text is cut is no reason to leave a picture out.
    let notices = (texts as usize).saturating_mul(NOTICE);
    let pictures = drop_while(messages, |messages| too_many(messages, budget.saturating_add(notices)), drop_pictures);
    texts = texts.saturating_add(u32::try_from(pictures).unwrap_or(u32::MAX));
    LeftOut { messages: u32::try_from(dropped).unwrap_or(u32::MAX), texts }
}

/// A hint of the loop is no beginning: the question that it belongs to stands before it.
pub fn is_beginning(message: &Message) -> bool {
    message.role == Role::User && !message.internal
}

/// The first message of the oldest turn from which on everything fits; of the last turn, if not even that does.
fn first_to_keep(messages: &[Message], budget: usize) -> usize {
    let mut kept = 0;
    let mut first = messages.len();
    for (at, message) in messages.iter().enumerate().rev() {
        kept += size::message(message);
        if is_beginning(message) && (kept <= budget || first == messages.len()) {
            first = at;
        }
        if kept > budget && first < messages.len() {
            break;
        }
    }
    if first == messages.len() { 0 } else { first }
}

/// Leaves pictures out with `drop`, as many at a time as `over` says that there are too many, until it says none or there are no more.
/// Gives how many there were.
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

/// The same as [`drop_pictures`], but of those before the newest message that shows any: they are worth less than words, and go before a
/// text is cut for them.
pub fn drop_older_pictures(messages: &mut [Message], count: usize) -> usize {
    let newest = messages.iter().rposition(|message| message.parts.iter().any(shows_picture)).unwrap_or(0);
    drop_pictures(&mut messages[..newest], count)
}

/// Leaves the oldest `count` of the pictures and documents out that are still shown: of a document its text stays, if it has any. Gives
/// how many there were.
pub fn drop_pictures(messages: &mut [Message], count: usize) -> usize {
    let mut left = count;
    for part in messages.iter_mut().flat_map(|message| &mut message.parts) {
        if left == 0 {
            break;
        }
        match part {
            Part::Image(file) | Part::File(file) if size::is_shown(file) => {
                match size::text_of(file) {
                    Some(Length { bytes, chars }) => file.text_limit = Some(TextLimit { chars, bytes }),
                    None => name_only(part),
                }
                left -= 1;
            }
            Part::ToolResult(result) => {
                let pictures = result.content.iter_mut().filter(|content| matches!(content, ToolContent::Image(_)));
                for picture in pictures.take(left) {
                    *picture = ToolContent::text(NO_PICTURE);
                    left -= 1;
                }
            }
            Part::Image(_) | Part::File(_) | Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) => {}
        }
    }
    count - left
}

/// Puts words in the place of a picture or file, which say what it was.
fn name_only(part: &mut Part) {
    let (what, file) = match part {
        Part::Image(file) => ("picture", file),
        Part::File(file) => ("file", file),
        Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) => return,
    };
    let text = format!("[{what} {}, {}: left out here, there is no room for it]", file.shown_name(), file.media_type);
    *part = Part::Text(TextPart { id: file.id.clone(), text });
}

fn shows_picture(part: &Part) -> bool {
    match part {
        Part::Image(file) | Part::File(file) => size::is_shown(file),
        Part::ToolResult(result) => result.content.iter().any(|content| matches!(content, ToolContent::Image(_))),
        Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) => false,
    }
}

/// Leaves thoughts out where all costs more than `budget`: those of turns that are over, and then, the oldest first, those of the turn
/// under way, whose calls keep what their provider has signed: Gemini takes no call of a turn without that. An answer whose calls are
/// the newest stays as it is, whoever has written behind it: it goes on from its thoughts, and its provider wants them back with the
/// results. From how many messages something is taken.
pub fn drop_older_thoughts(messages: &mut [Message], budget: u64, cost: impl Fn(&Message) -> u64) -> u32 {
    let mut all = messages.iter().map(&cost).fold(0_u64, u64::saturating_add);
    if all <= budget {
        return 0;
    }
    let question = messages.iter().rposition(is_beginning).unwrap_or(0);
    let newest = messages.iter().rposition(|message| message.role == Role::Assistant).unwrap_or(0);
    let mut count = 0_u32;
    for (at, message) in messages.iter_mut().enumerate().take(question.max(newest)) {
        let is_over = at < question;
        let goes_on = at == newest && message.parts.iter().any(|part| matches!(part, Part::ToolCall(_)));
        let has_some = if is_over { has_thoughts(message) } else { thinks(message) };
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

/// Leaves all thoughts out, if not even the beginnings of the texts have room beside them. From how many messages something is taken.
pub fn drop_thoughts_without_room(messages: &mut [Message], fits: impl Fn(&[Message]) -> bool) -> u32 {
    if fits(messages) || !messages.iter().any(has_thoughts) {
        return 0;
    }
    let mut least = messages.to_vec();
    cut_all(&mut least, LEAST_CHARS, None);
    if fits(&least) {
        return 0;
    }
    let mut count = 0_u32;
    for message in messages.iter_mut().filter(|message| has_thoughts(message)) {
        drop_thoughts(message);
        count = count.saturating_add(1);
    }
    count
}

/// Whether a message holds thoughts, or what ties its calls to them.
pub fn has_thoughts(message: &Message) -> bool {
    message.parts.iter().any(|part| match part {
        Part::Reasoning(_) => true,
        Part::ToolCall(call) => call.raw.is_some(),
        Part::Text(_) | Part::ToolResult(_) | Part::Image(_) | Part::File(_) => false,
    })
}

fn thinks(message: &Message) -> bool {
    message.parts.iter().any(|part| matches!(part, Part::Reasoning(_)))
}

fn drop_thoughts(message: &mut Message) {
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

/// A text that can be cut.
pub enum Cuttable<'m> {
    /// Words, which are here.
    Words(&'m mut String),
    /// A file, whose text is not: whoever puts it into the request cuts it.
    File(&'m mut FilePart),
}

impl Cuttable<'_> {
    fn length(&self) -> Length {
        match self {
            Self::Words(text) => Length { bytes: text.len(), chars: text.chars().count() },
            Self::File(file) => size::text_of(file).unwrap_or_default(),
        }
    }

    /// Leaves so many characters. What would not be shorter with its middle left out stays whole. Whether anything was cut.
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

/// So many of so many characters of a text, in bytes.
fn share(bytes: usize, limit: usize, chars: usize) -> usize {
    let share = bytes as u128 * limit as u128 / chars.max(1) as u128;
    usize::try_from(share).unwrap_or(bytes)
}

/// Cuts the longest texts to one length, the largest with which everything fits. How many are cut.
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

/// The length of the longest text, in characters.
pub fn longest(messages: &[Message], spared: Option<usize>) -> usize {
    let mut longest = 0;
    each_text(&mut messages.to_vec(), spared, &mut |text| longest = longest.max(text.length().chars));
    longest
}

/// Cuts all texts that are longer than so many characters. How many are cut.
pub fn cut_all(messages: &mut [Message], limit: usize, spared: Option<usize>) -> u32 {
    let mut count = 0_u32;
    each_text(messages, spared, &mut |text| count = count.saturating_add(u32::from(text.cut(limit))));
    count
}

/// Words, files, results, and the texts in the arguments of calls, which are all answered.
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
            Part::Reasoning(_) | Part::Image(_) => {}
        }
    }
}

/// What the server takes in is not nested deeply enough to run out of stack.
fn each_string(value: &mut Value, visit: &mut impl FnMut(Cuttable<'_>)) {
    match value {
        Value::String(text) => visit(Cuttable::Words(text)),
        Value::Array(items) => items.iter_mut().for_each(|item| each_string(item, visit)),
        Value::Object(fields) => fields.values_mut().for_each(|field| each_string(field, visit)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The beginning and the end, where most texts say what they want.
fn without_middle(text: &str, chars: usize, limit: usize) -> String {
    let end = limit / 3;
    let beginning = prefix_chars(text, limit - end);
    let rest = &text[prefix_chars(text, chars - end).len()..];
    format!("{beginning}\n[cut: {} characters are left out here]\n{rest}", chars - limit)
}
