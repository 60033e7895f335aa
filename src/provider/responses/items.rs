//! The items of an answer, assembled from events.
//!
//! Every text comes up to five times: in pieces, whole, as a part, with its item, and with the whole answer. Some servers leave out some
//! of them. New text is emitted, whichever event brings it, and nothing twice.

use crate::provider::stream::AnswerAssembler;

/// The kind of an item with text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Message,
    /// Reasoning, or its summary.
    Reasoning,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) output: Option<i64>,
    /// The item's id, which some servers make up anew in every event.
    pub(super) id: &'a str,
}

/// A part of an item: the source of its text, and its position there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartKey {
    pub(super) source: Source,
    pub(super) index: i64,
}

/// The source of a text. Only the first source of an item is emitted: reasoning and its summary say the same.
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
    done: bool,
    parts: Vec<(PartKey, String)>,
}

impl TextItem {
    fn said(&self) -> String {
        self.parts.iter().map(|(_, text)| text.as_str()).collect()
    }
}

impl Texts {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the text of all items of a kind, in order.
    pub(super) fn said(&self, kind: Kind) -> String {
        self.items.iter().filter(|item| item.kind == kind).map(TextItem::said).collect()
    }

    pub(super) fn begin(&mut self, kind: Kind, place: Place<'_>) {
        let is_known =
            self.items.iter().any(|item| !item.done && item.kind == kind && item.id == place.id && item.output == place.output);
        if !is_known {
            self.open(kind, place);
        }
    }

    fn open(&mut self, kind: Kind, place: Place<'_>) -> usize {
        self.items.push(TextItem { kind, output: place.output, id: place.id.to_owned(), done: false, parts: Vec::new() });
        self.items.len() - 1
    }

    pub(super) fn piece(&mut self, kind: Kind, place: Place<'_>, key: PartKey, text: &str, answer: &mut AnswerAssembler) {
        if text.is_empty() {
            return;
        }
        let at = self.at(kind, place);
        self.show(at, key, text, answer);
    }

    pub(super) fn whole_part(&mut self, kind: Kind, place: Place<'_>, key: PartKey, text: &str, answer: &mut AnswerAssembler) {
        let at = self.at(kind, place);
        let said = self.items.get(at).and_then(|item| item.parts.iter().find(|(known, _)| *known == key));
        let rest = said.map_or(Some(text), |(_, said)| text.strip_prefix(said.as_str())).unwrap_or_default().to_owned();
        self.show(at, key, &rest, answer);
    }

    /// Takes in a whole item. Its parts are compared as one text, because their positions are not always right.
    pub(super) fn whole_item(&mut self, kind: Kind, place: Place<'_>, parts: &[(PartKey, &str)], answer: &mut AnswerAssembler) {
        let at = self.at(kind, place);
        let Some(item) = self.items.get_mut(at) else { return };
        item.done = true;
        let said = item.said();
        let mut said = said.as_str();
        for (key, text) in parts {
            if let Some(rest) = said.strip_prefix(text) {
                said = rest;
                continue;
            }
            // Emitted text cannot be taken back, so it wins where the two differ.
            let Some(rest) = text.strip_prefix(said) else { return };
            said = "";
            self.show(at, *key, rest, answer);
        }
    }

    /// Finds the item of an event. Positions are more reliable than ids, but some gateways give all items the same.
    fn at(&mut self, kind: Kind, place: Place<'_>) -> usize {
        let of_kind = || self.items.iter().enumerate().rev().filter(|(_, item)| item.kind == kind);
        let same_place = || of_kind().filter(|(_, item)| place.output.is_some() && item.output == place.output);
        let same_id = |(_, item): &(usize, &TextItem)| !place.id.is_empty() && item.id == place.id;
        let found = same_place()
            .find(same_id)
            .or_else(|| same_place().next())
            .or_else(|| of_kind().find(same_id))
            .or_else(|| of_kind().find(|(_, item)| !item.done && (place.output.is_none() || item.output.is_none())));
        match found {
            Some((at, _)) => at,
            None => self.open(kind, place),
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
