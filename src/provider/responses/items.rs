//! The items of an answer, assembled from events.
//!
//! Every text arrives up to five times: in deltas, complete, as a part, with its item, and with the complete answer. Some servers omit some
//! of these. New text is emitted from whichever event contains it first, and never twice.

use crate::provider::stream::AnswerAssembler;

/// The kind of an item with text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Message,
    /// Reasoning, or its summary.
    Reasoning,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ItemRef<'a> {
    pub(super) output: Option<i64>,
    /// The item's id, which some servers generate anew in every event.
    pub(super) id: &'a str,
}

/// A part of an item: the source of its text, and its position there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartKey {
    pub(super) source: Source,
    pub(super) index: i64,
}

/// The source of a text. Only the first source of an item is emitted, because reasoning and its summary have the same content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Text,
    Summary,
}

#[derive(Debug, Default)]
pub(super) struct Texts {
    items: Vec<TextItem>,
}

#[derive(Debug)]
struct TextItem {
    kind: Kind,
    output: Option<i64>,
    id: String,
    is_done: bool,
    parts: Vec<(PartKey, String)>,
}

impl TextItem {
    fn text(&self) -> String {
        self.parts.iter().map(|(_, text)| text.as_str()).collect()
    }
}

impl Texts {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the text of all items of a kind, in order.
    pub(super) fn text(&self, kind: Kind) -> String {
        self.items.iter().filter(|item| item.kind == kind).map(TextItem::text).collect()
    }

    pub(super) fn begin(&mut self, kind: Kind, item_ref: ItemRef<'_>) {
        let is_known = self
            .items
            .iter()
            .any(|item| !item.is_done && item.kind == kind && item.id == item_ref.id && item.output == item_ref.output);
        if !is_known {
            self.open(kind, item_ref);
        }
    }

    fn open(&mut self, kind: Kind, item_ref: ItemRef<'_>) -> usize {
        self.items.push(TextItem { kind, output: item_ref.output, id: item_ref.id.to_owned(), is_done: false, parts: Vec::new() });
        self.items.len() - 1
    }

    pub(super) fn piece(&mut self, kind: Kind, item_ref: ItemRef<'_>, key: PartKey, text: &str, answer: &mut AnswerAssembler) {
        if text.is_empty() {
            return;
        }
        let at = self.at(kind, item_ref);
        self.show(at, key, text, answer);
    }

    pub(super) fn whole_part(&mut self, kind: Kind, item_ref: ItemRef<'_>, key: PartKey, text: &str, answer: &mut AnswerAssembler) {
        let at = self.at(kind, item_ref);
        let received = self.items.get(at).and_then(|item| item.parts.iter().find(|(known, _)| *known == key));
        let rest = received.map_or(Some(text), |(_, received)| text.strip_prefix(received.as_str())).unwrap_or_default().to_owned();
        self.show(at, key, &rest, answer);
    }

    /// Accepts a complete item. Its parts are compared as one text, because their positions are not always right.
    pub(super) fn whole_item(
        &mut self,
        kind: Kind,
        item_ref: ItemRef<'_>,
        parts: &[(PartKey, &str)],
        answer: &mut AnswerAssembler,
    ) {
        let at = self.at(kind, item_ref);
        let Some(item) = self.items.get_mut(at) else { return };
        item.is_done = true;
        let received = item.text();
        let mut received = received.as_str();
        for (key, text) in parts {
            if let Some(rest) = received.strip_prefix(text) {
                received = rest;
                continue;
            }
            // Emitted text cannot be withdrawn, so it takes precedence if the two differ.
            let Some(rest) = text.strip_prefix(received) else { return };
            received = "";
            self.show(at, *key, rest, answer);
        }
    }

    /// Returns the item of an event. Positions are more reliable than ids, but some gateways send the same position for all items.
    fn at(&mut self, kind: Kind, item_ref: ItemRef<'_>) -> usize {
        let of_kind = || self.items.iter().enumerate().rev().filter(|(_, item)| item.kind == kind);
        let same_place = || of_kind().filter(|(_, item)| item_ref.output.is_some() && item.output == item_ref.output);
        let same_id = |(_, item): &(usize, &TextItem)| !item_ref.id.is_empty() && item.id == item_ref.id;
        let found = same_place()
            .find(same_id)
            .or_else(|| same_place().next())
            .or_else(|| of_kind().find(same_id))
            .or_else(|| of_kind().find(|(_, item)| !item.is_done && (item_ref.output.is_none() || item.output.is_none())));
        match found {
            Some((at, _)) => at,
            None => self.open(kind, item_ref),
        }
    }

    fn show(&mut self, at: usize, key: PartKey, text: &str, answer: &mut AnswerAssembler) {
        let Some(item) = self.items.get_mut(at) else { return };
        if text.is_empty() || item.parts.iter().any(|(known, _)| known.source != key.source) {
            return;
        }
        let part = match item.parts.iter().position(|(known, _)| *known == key) {
            Some(part) => part,
            None => {
                // The parts of a summary are paragraphs.
                if item.kind == Kind::Reasoning && !item.parts.is_empty() {
                    answer.reasoning("\n\n".into());
                }
                item.parts.push((key, String::new()));
                item.parts.len() - 1
            }
        };
        item.parts[part].1.push_str(text);
        match item.kind {
            Kind::Message => answer.text(text.into()),
            Kind::Reasoning => answer.reasoning(text.into()),
        }
    }
}
