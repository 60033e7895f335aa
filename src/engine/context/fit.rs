//! Messages that are cut so that a request fits its budget: older results first, if they are read by their beginnings anyway,
//! then whatever is longest.

use super::estimate::{self, Measure};
use crate::domain::message::{Message, Part, Role, ToolContent};
use crate::engine::compaction::{self, LEAST_CHARS};
use crate::support::text;

/// The newest messages, whose results are left as they are.
const VERBATIM: usize = 4;

/// A result that costs more than so many tokens is long, and so many of its characters are left.
const LONG: u64 = 50;
const PREVIEW: usize = 100;

/// Leaves the beginnings of long results that are older than the last few messages.
pub(super) fn compress_results(messages: &mut [Message]) {
    let older = messages.len().saturating_sub(VERBATIM);
    for part in messages.iter_mut().take(older).filter(|message| message.role == Role::Tool).flat_map(|message| &mut message.parts)
    {
        let Part::ToolResult(result) = part else { continue };
        for content in &mut result.content {
            let is_long = estimate::content(Measure::Estimate, content) > LONG;
            if let ToolContent::Text { text } = content
                && is_long
            {
                let chars = text.chars().count();
                if chars > PREVIEW {
                    let left_out = chars - PREVIEW;
                    *text = format!("{} [cut: {left_out} characters are left out here]", text::prefix_chars(text, PREVIEW));
                }
            }
        }
    }
}

/// Cuts messages so that they cost no more than `room`, as far as cutting can do that: the newest question last, and no text
/// below what says that it is cut. Of the pictures and documents the oldest are left out, and no more than it takes: of those in the
/// newest message that has any no more than do not fit beside the beginnings of the texts.
pub(super) fn cut_to(messages: &mut Vec<Message>, measure: Measure, room: u64) {
    let cost = |messages: &[Message]| estimate::messages(measure, messages);
    if cost(messages) <= room {
        return;
    }
    // No picture leaves more room than it takes, so that no more are left out than have to be.
    let too_many = |messages: &[Message]| {
        let over = cost(messages).saturating_sub(room);
        usize::try_from(over.div_ceil(estimate::picture(measure).max(1))).unwrap_or(usize::MAX)
    };
    compaction::drop_while(messages, too_many, compaction::drop_older_pictures);
    let question = messages.iter().rposition(compaction::is_beginning);
    if cost(messages) > room {
        messages.iter_mut().take(question.unwrap_or(0)).for_each(compaction::drop_thoughts);
    }
    let too_many_beside_beginnings = |messages: &[Message]| {
        let mut least = messages.to_vec();
        compaction::cut_all(&mut least, LEAST_CHARS, None);
        too_many(&least)
    };
    compaction::drop_while(messages, too_many_beside_beginnings, compaction::drop_pictures);
    for (spared, least) in [(question, LEAST_CHARS), (None, LEAST_CHARS), (None, 0)] {
        let before = cost(messages);
        if before <= room {
            return;
        }
        let whole = std::mem::take(messages);
        let longest = compaction::longest(&whole, spared);
        // Cutting the longest texts to a share of their length leaves about that share of all, or more. To begin at their whole length
        // would mean to count every text dozens of times.
        let share = (longest as u128 * u128::from(room)).div_ceil(u128::from(before));
        let mut limit = usize::try_from(share).unwrap_or(longest).min(longest).max(least);
        limit = limit.saturating_add(limit.div_ceil(7)).min(longest);
        loop {
            limit = (limit - limit.div_ceil(8)).max(least);
            messages.clone_from(&whole);
            compaction::cut_all(messages, limit, spared);
            if limit == least || cost(messages) <= room {
                break;
            }
        }
    }
}
