//! Tool results as models read them.

use crate::domain::conversation::message::{ToolContent, ToolResultPart};
use crate::domain::ids::PartId;
use crate::domain::tool::ToolCall;
use crate::engine::prompts;
use crate::support::text::prefix_chars;

/// Cuts an answer to `limit` characters of text, the notice included, so that cutting twice changes nothing. Keeps the beginning,
/// and with a quarter of the limit the end, where logs report the result. Pictures stay. An empty answer becomes a text, because
/// providers refuse empty results. The second value says whether text was left out.
pub fn cut(content: &[ToolContent], limit: usize) -> (Vec<ToolContent>, bool) {
    let total: usize = content.iter().map(chars).sum();
    let mut kept = Vec::with_capacity(content.len());
    let is_cut = total > limit;
    if !is_cut {
        kept.extend(content.iter().filter(|piece| !is_empty(piece)).cloned());
    } else {
        // The notice is measured with the largest numbers that it can hold.
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
                    // One text stays one, so that it can later be compressed to one beginning.
                    let said = if before > head { notice.take() } else { None };
                    let text = [first, said.as_deref().unwrap_or_default(), &text[skipped.len()..]].concat();
                    kept.extend((!text.is_empty()).then(|| ToolContent::text(text)));
                }
                ToolContent::Image(_) | ToolContent::File(_) => kept.push(piece.clone()),
            }
        }
    }
    if kept.is_empty() {
        kept.push(ToolContent::text(prompts::NOTHING_RETURNED));
    }
    (kept, is_cut)
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

/// Returns the result of a call as a part. A call without an outcome says so: every call has exactly one result.
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

/// Returns the text of an answer, cut to `limit` characters.
pub fn gist(content: &[ToolContent], limit: usize) -> String {
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
        content.iter().filter(|piece| chars(piece) > 0).map(|piece| gist(std::slice::from_ref(piece), usize::MAX)).collect()
    }

    proptest! {
        #[test]
        fn any_answer_is_cut_to_any_limit(
            content in prop::collection::vec(any_piece(), 0..5),
            limit in prop_oneof![0..80_usize, 80..400_usize, Just(usize::MAX)],
        ) {
            let (whole, (kept, outcome)) = (text_of(&content), cut(&content, limit));
            let pictures = |content: &[ToolContent]| content.iter().filter(|piece| matches!(piece, ToolContent::Image(_))).count();
            prop_assert_eq!(pictures(&kept), pictures(&content));
            prop_assert!(!kept.is_empty() && kept.len() <= content.len().max(1));
            let shown = text_of(&kept);
            if whole.chars().count() <= limit {
                prop_assert!(!outcome);
                prop_assert!(shown == whole || shown == prompts::NOTHING_RETURNED);
                return Ok(());
            }
            prop_assert!(outcome);
            // The words for nothing stand where not even one character has room.
            prop_assert!(shown.chars().count() <= limit || (limit == 0 && shown == prompts::NOTHING_RETURNED));
            // Beginning, notice and end are what they say; without room for a notice there is the beginning alone.
            let notice = shown.rfind("\n[cut: the first ").filter(|_| limit >= 80);
            match notice.and_then(|at| Some((&shown[..at], shown[at..].split_once(" characters are shown]\n")?.1))) {
                Some((head, tail)) => prop_assert!(whole.starts_with(head) && whole.ends_with(tail)),
                None => prop_assert!(limit < 80 || whole.starts_with(&shown)),
            }
            prop_assert_eq!(&cut(&kept, limit).0, &kept, "cutting twice changes nothing");
        }
    }

    #[test]
    fn cuts_once_and_says_so() {
        let long = vec![ToolContent::text("ä".repeat(500)), ToolContent::text("b".repeat(500))];
        let (kept, outcome) = cut(&long, 600);
        assert!(outcome);
        let total: usize = kept.iter().map(chars).sum();
        assert!(total <= 600 && total > 590, "{total}");
        let [head, tail] = &kept[..] else { panic!("two texts: {kept:?}") };
        let shown = gist(std::slice::from_ref(head), 1_000).matches('ä').count();
        let said = format!("the first {shown} and the last {} of 1000 characters", chars(tail));
        assert!(gist(std::slice::from_ref(head), 1_000).contains(&said), "{head:?}");
        assert!(gist(&kept, 1_000).starts_with("ää") && gist(&kept, 1_000).ends_with("bb"));
        assert_eq!(cut(&kept, 600), (kept.clone(), false));
        assert_eq!(cut(&long, 1_000), (long, false));
    }

    #[test]
    fn pictures_and_places_are_kept() {
        let picture = ToolContent::Image(BinaryContent::inline("image/png", None, "AAAA"));
        let text: String = (0..1_000).map(|n| char::from(b'a' + u8::try_from(n % 26).unwrap())).collect();
        let (kept, _) = cut(&[ToolContent::text(&text[..10]), picture.clone(), ToolContent::text(&text[10..])], 400);
        let [first, between, rest] = &kept[..] else { panic!("three pieces: {kept:?}") };
        assert_eq!((first, between), (&ToolContent::text(&text[..10]), &picture));
        let rest = gist(std::slice::from_ref(rest), 1_000);
        let (rest, last) = (rest.split_once("\n[cut: ").unwrap().0, rest.split_once("]\n").unwrap().1);
        assert!(text[10..].starts_with(rest) && text.ends_with(last) && rest.len() > 2 * last.len(), "{rest} {last}");
        let (kept, _) = cut(&[ToolContent::text(text), picture.clone()], 400);
        assert_eq!(kept.last(), Some(&picture));
    }

    #[test]
    fn nothing_is_never_sent() {
        assert_eq!(cut(&[], 10).0, [ToolContent::text(prompts::NOTHING_RETURNED)]);
        assert_eq!(cut(&[ToolContent::text("")], 10).0, [ToolContent::text(prompts::NOTHING_RETURNED)]);
        assert_eq!(cut(&[ToolContent::text("abcdef")], 3), (vec![ToolContent::text("abc")], true));
    }
}
