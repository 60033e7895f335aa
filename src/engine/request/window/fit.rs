//! Cuts messages until a request fits its budget: first older results, if the agent compresses them, then the longest texts.

use crate::domain::conversation::{Message, Part, Role, ToolContent};
use crate::engine::request::eviction;
use crate::engine::request::eviction::LEAST_CHARS;
use crate::engine::request::window::estimate;
use crate::engine::request::window::estimate::Measure;
use crate::support::text;

/// The number of newest messages whose results are not compressed.
const VERBATIM: usize = 4;

/// The length from which a result is compressed, in tokens.
const LONG: u64 = 50;
const PREVIEW: usize = 100;

/// Cuts long results to a preview, except in the newest messages.
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

/// The highest cost of the messages, in one measure.
#[derive(Debug, Clone, Copy)]
pub struct Bound {
    pub measure: Measure,
    pub room: u64,
}

impl Bound {
    fn cost(self, messages: &[Message]) -> u64 {
        estimate::messages(self.measure, messages)
    }

    /// Returns the number of excess images. Each frees at most its estimate, so that no more are dropped than necessary.
    fn excess_images(self, messages: &[Message]) -> usize {
        let over = self.cost(messages).saturating_sub(self.room);
        usize::try_from(over.div_ceil(estimate::picture(self.measure).max(1))).unwrap_or(usize::MAX)
    }

    /// Returns the length of the longest text if all texts are cut in proportion.
    fn share(self, messages: &[Message], longest: usize) -> usize {
        let cost = self.cost(messages);
        if cost <= self.room {
            return longest;
        }
        let share = (longest as u128 * u128::from(self.room)).div_ceil(u128::from(cost));
        usize::try_from(share).unwrap_or(longest)
    }
}

/// Cuts messages until they fit all `bounds`, as far as possible. Cuts the newest user message last, and no text below the length
/// of its notice. Drops only as many of the oldest images and documents as necessary. From the newest message with images, drops
/// only those that do not fit beside texts of [`LEAST_CHARS`]. Reasoning of the newest answer stays if it fits beside texts of that
/// length.
pub fn cut_to(messages: &mut Vec<Message>, bounds: &[Bound]) {
    let fits = |messages: &[Message]| bounds.iter().all(|bound| bound.cost(messages) <= bound.room);
    if fits(messages) {
        return;
    }
    let too_many = |messages: &[Message]| bounds.iter().map(|bound| bound.excess_images(messages)).max().unwrap_or(0);
    eviction::drop_while(messages, too_many, eviction::drop_older_images);
    let question = messages.iter().rposition(Message::is_from_user);
    for bound in bounds {
        eviction::drop_older_reasoning(messages, bound.room, |message| estimate::message(bound.measure, message));
    }
    eviction::drop_reasoning_without_room(messages, fits);
    let too_many_beside_beginnings = |messages: &[Message]| {
        let mut least = messages.to_vec();
        eviction::cut_all(&mut least, LEAST_CHARS, None);
        too_many(&least)
    };
    eviction::drop_while(messages, too_many_beside_beginnings, eviction::drop_images);
    for (spared, least) in [(question, LEAST_CHARS), (None, LEAST_CHARS), (None, 0)] {
        if fits(messages) {
            return;
        }
        let whole = std::mem::take(messages);
        let longest = eviction::longest(&whole, spared);
        // Cutting the longest texts in proportion leaves about that share of the total, or more. A search from their full length would
        // count every text dozens of times.
        let share = bounds.iter().map(|bound| bound.share(&whole, longest)).min().unwrap_or(longest);
        let mut limit = share.min(longest).max(least);
        limit = limit.saturating_add(limit.div_ceil(7)).min(longest);
        loop {
            limit = (limit - limit.div_ceil(8)).max(least);
            messages.clone_from(&whole);
            eviction::cut_all(messages, limit, spared);
            if limit == least || fits(messages) {
                break;
            }
        }
    }
}
