//! Tool results as models read them.

use crate::domain::conversation::{ToolContent, ToolResultPart};
use crate::domain::ids::PartId;
use crate::domain::tool::ToolCall;
use crate::engine::prompts;
use crate::support::text::prefix_chars;

/// Cuts a result to `limit` characters of text, including the notice, so that a second cut changes nothing. Keeps the beginning,
/// and uses a quarter of the limit for the end, where logs report the result. Images stay. An empty result becomes a text, because
/// providers refuse empty results. The second value is whether text was cut.
pub fn cut(content: &[ToolContent], limit: usize) -> (Vec<ToolContent>, bool) {
    let total: usize = content.iter().map(chars).sum();
    let mut compressed = Vec::with_capacity(content.len());
    let is_cut = total > limit;
    if !is_cut {
        compressed.extend(content.iter().filter(|piece| !is_empty(piece)).cloned());
    } else {
        // The notice is measured with the largest possible numbers.
        let room = limit.saturating_sub(notice(total, total, total).chars().count());
        let (head, tail) = if room == 0 { (limit, 0) } else { (room - room / 4, room / 4) };
        let mut notice = (room > 0).then(|| notice(head, tail, total));
        let mut before = 0;
        for piece in content {
            match piece {
                ToolContent::Text { text } => {
                    let count = chars(piece);
                    let first = prefix_chars(text, head.saturating_sub(before));
                    let skipped = prefix_chars(text, (total - tail).saturating_sub(before));
                    before += count;
                    // One text stays one text, so that it can later be compressed to its beginning.
                    let shown_notice = if before > head { notice.take() } else { None };
                    let text = [first, shown_notice.as_deref().unwrap_or_default(), &text[skipped.len()..]].concat();
                    compressed.extend((!text.is_empty()).then(|| ToolContent::text(text)));
                }
                ToolContent::Image(_) | ToolContent::File(_) => compressed.push(piece.clone()),
            }
        }
    }
    if compressed.is_empty() {
        compressed.push(ToolContent::text(prompts::NOTHING_RETURNED));
    }
    (compressed, is_cut)
}

fn notice(head: usize, tail: usize, total: usize) -> String {
    format!("\n[cut: the first {head} and the last {tail} of {total} characters are shown]\n")
}

fn chars(piece: &ToolContent) -> usize {
    piece.as_text().map_or(0, |text| text.chars().count())
}

fn is_empty(piece: &ToolContent) -> bool {
    match piece {
        ToolContent::Text { text } => text.is_empty(),
        ToolContent::Image(binary) | ToolContent::File(binary) => binary.is_empty(),
    }
}

/// Returns the result of a call as a part. Every call has exactly one result: a call without an outcome gets a notice.
pub fn part(id: PartId, call: &ToolCall, limit: usize) -> ToolResultPart {
    let (content, is_error) = match &call.outcome {
        Some(outcome) => (cut(&outcome.content, limit).0, outcome.is_error),
        None => (vec![ToolContent::text(missing(call.state.as_str()))], true),
    };
    ToolResultPart { id, call_id: call.id.clone(), name: call.name.clone(), content, is_error, state: call.state, undoable: false }
}

pub fn missing(state: &str) -> String {
    format!("there is no result of this call (state: {state})")
}

/// Returns the text of a result, cut to `limit` characters.
pub fn cut_text(content: &[ToolContent], limit: usize) -> String {
    let text: String = content.iter().filter_map(ToolContent::as_text).collect();
    if text.is_empty() { prompts::NOTHING_RETURNED.to_owned() } else { prefix_chars(&text, limit).to_owned() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::conversation::message::BinaryContent;

    fn any_piece() -> impl Strategy<Value = ToolContent> {
        let picture = ToolContent::Image(BinaryContent::inline("image/png", None, "AAAA"));
        prop_oneof![
            6 => (any::<String>(), 0..20_usize).prop_map(|(text, times)| ToolContent::text(text.repeat(times))),
            1 => Just(picture)
        ]
    }

    fn text_of(content: &[ToolContent]) -> String {
        content.iter().filter(|piece| chars(piece) > 0).map(|piece| cut_text(std::slice::from_ref(piece), usize::MAX)).collect()
    }

    proptest! {
        #[test]
        fn any_answer_is_cut_to_any_limit(
            content in prop::collection::vec(any_piece(), 0..5),
            limit in prop_oneof![0..80_usize, 80..400_usize, Just(usize::MAX)],
        ) {
            let (whole, (compressed, outcome)) = (text_of(&content), cut(&content, limit));
            let pictures = |content: &[ToolContent]| content.iter().filter(|piece| matches!(piece, ToolContent::Image(_))).count();
            prop_assert_eq!(pictures(&compressed), pictures(&content));
            prop_assert!(!compressed.is_empty() && compressed.len() <= content.len().max(1));
            let shown = text_of(&compressed);
            if whole.chars().count() <= limit {
                prop_assert!(!outcome);
                prop_assert!(shown == whole || shown == prompts::NOTHING_RETURNED);
                return Ok(());
            }
            prop_assert!(outcome);
            // Even with a limit of one character, an empty result gets its placeholder.
            prop_assert!(shown.chars().count() <= limit || (limit == 0 && shown == prompts::NOTHING_RETURNED));
            // Beginning, notice and end add up; if the notice does not fit, only the beginning is kept.
            let notice = shown.rfind("\n[cut: the first ").filter(|_| limit >= 80);
            match notice.and_then(|at| Some((&shown[..at], shown[at..].split_once(" characters are shown]\n")?.1))) {
                Some((head, tail)) => prop_assert!(whole.starts_with(head) && whole.ends_with(tail)),
                None => prop_assert!(limit < 80 || whole.starts_with(&shown)),
            }
            prop_assert_eq!(&cut(&compressed, limit).0, &compressed, "cutting twice changes nothing");
        }
    }

    #[test]
    fn cuts_once_and_says_so() {
        let long = vec![ToolContent::text("ä".repeat(500)), ToolContent::text("b".repeat(500))];
        let (compressed, outcome) = cut(&long, 600);
        assert!(outcome);
        let total: usize = compressed.iter().map(chars).sum();
        assert!(total <= 600 && total > 590, "{total}");
        let [head, tail] = &compressed[..] else { panic!("two texts: {compressed:?}") };
        let shown = cut_text(std::slice::from_ref(head), 1_000).matches('ä').count();
        let shown_notice = format!("the first {shown} and the last {} of 1000 characters", chars(tail));
        assert!(cut_text(std::slice::from_ref(head), 1_000).contains(&shown_notice), "{head:?}");
        assert!(cut_text(&compressed, 1_000).starts_with("ää") && cut_text(&compressed, 1_000).ends_with("bb"));
        assert_eq!(cut(&compressed, 600), (compressed.clone(), false));
        assert_eq!(cut(&long, 1_000), (long, false));
    }

    #[test]
    fn pictures_and_places_are_kept() {
        let picture = ToolContent::Image(BinaryContent::inline("image/png", None, "AAAA"));
        let text: String = (0..1_000).map(|n| char::from(b'a' + u8::try_from(n % 26).unwrap())).collect();
        let (compressed, _) = cut(&[ToolContent::text(&text[..10]), picture.clone(), ToolContent::text(&text[10..])], 400);
        let [first, between, rest] = &compressed[..] else { panic!("three pieces: {compressed:?}") };
        assert_eq!((first, between), (&ToolContent::text(&text[..10]), &picture));
        let rest = cut_text(std::slice::from_ref(rest), 1_000);
        let (rest, last) = (rest.split_once("\n[cut: ").unwrap().0, rest.split_once("]\n").unwrap().1);
        assert!(text[10..].starts_with(rest) && text.ends_with(last) && rest.len() > 2 * last.len(), "{rest} {last}");
        let (compressed, _) = cut(&[ToolContent::text(text), picture.clone()], 400);
        assert_eq!(compressed.last(), Some(&picture));
    }

    #[test]
    fn nothing_is_never_sent() {
        assert_eq!(cut(&[], 10).0, [ToolContent::text(prompts::NOTHING_RETURNED)]);
        assert_eq!(cut(&[ToolContent::text("")], 10).0, [ToolContent::text(prompts::NOTHING_RETURNED)]);
        assert_eq!(cut(&[ToolContent::text("abcdef")], 3), (vec![ToolContent::text("abc")], true));
    }
}
