//! Messages that are cut so that a request fits its budget: older results first, if they are read by their beginnings anyway,
//! then whatever is longest.

use crate::domain::message::{Message, Part, Role, ToolContent};
use crate::engine::request::compaction;
use crate::engine::request::compaction::LEAST_CHARS;
use crate::engine::request::window::estimate;
use crate::engine::request::window::estimate::Measure;
use crate::support::text;

/// The newest messages, whose results are left as they are.
const VERBATIM: usize = 4;

/// A result that costs more than so many tokens is long, and so many of its characters are left.
const LONG: u64 = 50;
const PREVIEW: usize = 100;

/// Leaves the beginnings of long results that are older than the last few messages.
pub fn compress_results(messages: &mut [Message]) {
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

/// What messages may cost, counted in one way.
#[derive(Debug, Clone, Copy)]
pub struct Bound {
    /// How it is counted.
    pub measure: Measure,
    /// How much it may be.
    pub room: u64,
}

impl Bound {
    fn cost(self, messages: &[Message]) -> u64 {
        estimate::messages(self.measure, messages)
    }

    /// How many pictures too many there are. No picture leaves more room than it takes, so that no more are left out than have to be.
    fn pictures_too_many(self, messages: &[Message]) -> usize {
        let over = self.cost(messages).saturating_sub(self.room);
        usize::try_from(over.div_ceil(estimate::picture(self.measure).max(1))).unwrap_or(usize::MAX)
    }

    /// The share of the longest text that is left when all is cut to what there is room for.
    fn share(self, messages: &[Message], longest: usize) -> usize {
        let cost = self.cost(messages);
        if cost <= self.room {
            return longest;
        }
        let share = (longest as u128 * u128::from(self.room)).div_ceil(u128::from(cost));
        usize::try_from(share).unwrap_or(longest)
    }
}

/// Cuts messages so that they are within all `bounds`, as far as cutting can do that: the newest question last, and no text
/// below what says that it is cut. Of the pictures and documents the oldest are left out, and no more than it takes: of those in the
/// newest message that has any no more than do not fit beside the beginnings of the texts. Thoughts of the newest answer stay where
/// those beginnings have room beside them.
pub fn cut_to(messages: &mut Vec<Message>, bounds: &[Bound]) {
    let fits = |messages: &[Message]| bounds.iter().all(|bound| bound.cost(messages) <= bound.room);
    if fits(messages) {
        return;
    }
    let too_many = |messages: &[Message]| bounds.iter().map(|bound| bound.pictures_too_many(messages)).max().unwrap_or(0);
    compaction::drop_while(messages, too_many, compaction::drop_older_pictures);
    let question = messages.iter().rposition(compaction::is_beginning);
    for bound in bounds {
        compaction::drop_older_thoughts(messages, bound.room, |message| estimate::message(bound.measure, message));
    }
    compaction::drop_thoughts_without_room(messages, fits);
    let too_many_beside_beginnings = |messages: &[Message]| {
        let mut least = messages.to_vec();
        compaction::cut_all(&mut least, LEAST_CHARS, None);
        too_many(&least)
    };
    compaction::drop_while(messages, too_many_beside_beginnings, compaction::drop_pictures);
    for (spared, least) in [(question, LEAST_CHARS), (None, LEAST_CHARS), (None, 0)] {
        if fits(messages) {
            return;
        }
        let whole = std::mem::take(messages);
        let longest = compaction::longest(&whole, spared);
        // Cutting the longest texts to a share of their length leaves about that share of all, or more. To begin at their whole length
        // would mean to count every text dozens of times.
        let share = bounds.iter().map(|bound| bound.share(&whole, longest)).min().unwrap_or(longest);
        let mut limit = share.min(longest).max(least);
        limit = limit.saturating_add(limit.div_ceil(7)).min(longest);
        loop {
            limit = (limit - limit.div_ceil(8)).max(least);
            messages.clone_from(&whole);
            compaction::cut_all(messages, limit, spared);
            if limit == least || fits(messages) {
                break;
            }
        }
    }
}
