//! Delta compaction: consecutive deltas of a part are merged into one.
//!
//! The last delta of a group stays, with its own `seq` and the joined text. The event names the first `seq` that it covers. A
//! cursor at a removed event is inside that range, which [`covers_cursor`] detects; every other cursor stays valid.

use serde::Deserialize;

use crate::domain::event::{StoredEvent, part_delta_data};
use crate::domain::ids::{PartId, RunId};

/// Limit of the joined text in bytes, so that no event is too large for a frame.
pub const MAX_JOINED_BYTES: usize = 64 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompactedDelta {
    /// The `seq` of the event that stays.
    pub seq: i64,
    pub data: String,
    pub replaced_seqs: Vec<i64>,
}

/// A stored `part.delta`. A delta with an unknown field is not merged.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Delta {
    part_id: PartId,
    delta: String,
    /// The first `seq` that the delta covers, if it was merged.
    since: Option<i64>,
}

impl Delta {
    fn of(event: &StoredEvent) -> Option<Self> {
        if event.kind != "part.delta" {
            return None;
        }
        serde_json::from_str(&event.data).ok()
    }
}

struct Group {
    part_id: PartId,
    attempt: u32,
    since: i64,
    seqs: Vec<i64>,
    text: String,
}

impl Group {
    fn accepts(&self, event: &StoredEvent, delta: &Delta) -> bool {
        self.part_id == delta.part_id
            && self.attempt == event.attempt
            && self.seqs.last().is_some_and(|last| last + 1 == delta.since.unwrap_or(event.seq))
            && self.text.len() + delta.delta.len() <= MAX_JOINED_BYTES
    }

    fn merged(mut self) -> Option<CompactedDelta> {
        let seq = self.seqs.pop().filter(|_| !self.seqs.is_empty())?;
        let plain = part_delta_data(&self.part_id, &self.text);
        let data = format!("{},\"since\":{}}}", plain.strip_suffix('}').unwrap_or(&plain), self.since);
        Some(CompactedDelta { seq, data, replaced_seqs: self.seqs })
    }
}

/// Merges the deltas of `run` in `events`, a log without gaps. Idempotent.
pub fn compact_deltas(events: &[StoredEvent], run: &RunId) -> Vec<CompactedDelta> {
    let mut folded = Vec::new();
    let mut group: Option<Group> = None;
    for event in events {
        let delta = Delta::of(event).filter(|_| event.run_id.as_ref() == Some(run));
        let Some(delta) = delta else {
            folded.extend(group.take().and_then(Group::merged));
            continue;
        };
        if let Some(group) = group.as_mut().filter(|group| group.accepts(event, &delta)) {
            group.seqs.push(event.seq);
            group.text.push_str(&delta.delta);
            continue;
        }
        let since = delta.since.unwrap_or(event.seq);
        let next = Group { part_id: delta.part_id, attempt: event.attempt, since, seqs: vec![event.seq], text: delta.delta };
        folded.extend(group.replace(next).and_then(Group::merged));
    }
    folded.extend(group.and_then(Group::merged));
    folded
}

/// Returns whether `event`, the first one after `cursor`, covers events before the cursor, so that a reader there cannot continue.
pub fn covers_cursor(event: &StoredEvent, cursor: i64) -> bool {
    Delta::of(event).and_then(|delta| delta.since).is_some_and(|since| since <= cursor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::ConversationId;
    use crate::support::clock::UnixMillis;

    fn run(number: u8) -> RunId {
        RunId::parse(&format!("run_0198000000007000800000000000000{number}")).unwrap()
    }

    fn part(number: u8) -> PartId {
        PartId::parse(&format!("part_0198000000007000800000000000000{number}")).unwrap()
    }

    fn event(seq: i64, kind: &'static str, data: String) -> StoredEvent {
        let conversation_id = ConversationId::parse("conv_01980000000070008000000000000003").unwrap();
        StoredEvent { seq, kind: kind.into(), conversation_id, run_id: Some(run(1)), attempt: 1, at: UnixMillis(0), data }
    }

    fn delta(seq: i64, of: u8, text: &str) -> StoredEvent {
        event(seq, "part.delta", part_delta_data(&part(of), text))
    }

    /// Returns the log after compaction.
    fn merged(mut log: Vec<StoredEvent>) -> Vec<StoredEvent> {
        for fold in compact_deltas(&log, &run(1)) {
            log.retain(|event| !fold.replaced_seqs.contains(&event.seq));
            log.iter_mut().find(|event| event.seq == fold.seq).unwrap().data = fold.data;
        }
        log
    }

    fn texts(log: &[StoredEvent]) -> Vec<(i64, String)> {
        log.iter().map(|event| (event.seq, Delta::of(event).map_or_else(String::new, |delta| delta.delta))).collect()
    }

    #[test]
    fn neighbours_of_one_part_become_the_last_of_them() {
        let mut other = delta(11, 1, "x");
        other.run_id = Some(run(2));
        let log = vec![
            delta(4, 1, "a\""),
            delta(5, 1, "b\u{1F600}"),
            delta(6, 2, "c"),
            event(7, "message.created", "{}".to_owned()),
            delta(8, 2, "d"),
            delta(9, 2, "e"),
            delta(10, 2, "f"),
            other,
            delta(12, 1, "g"),
        ];
        let log = merged(log);
        let expected = [(5, "a\"b\u{1F600}"), (6, "c"), (7, ""), (10, "def"), (11, "x"), (12, "g")];
        assert_eq!(texts(&log), expected.map(|(seq, text)| (seq, text.to_owned())));
        assert_eq!(compact_deltas(&log, &run(1)), []);
        // Every remaining event is a valid cursor; a removed one is not.
        for cursor in 3..12 {
            let next = log.iter().find(|event| event.seq > cursor).unwrap();
            assert_eq!(covers_cursor(next, cursor), [4, 8, 9].contains(&cursor), "{cursor}");
        }
    }

    #[test]
    fn compacted_ranges_are_compacted_further() {
        let whole: Vec<_> = (1..=9).map(|seq| delta(seq, 1, &seq.to_string())).collect();
        let mut pieces = merged(whole[..4].to_vec());
        pieces.extend(merged(whole[4..7].to_vec()));
        pieces.extend_from_slice(&whole[7..]);
        assert_eq!(merged(pieces), merged(whole));
    }

    #[test]
    fn an_event_stays_of_a_size_to_be_sent() {
        let text = "x".repeat(MAX_JOINED_BYTES / 2);
        let log = merged((1..=5).map(|seq| delta(seq, 1, &text)).collect());
        assert_eq!(log.iter().map(|event| event.seq).collect::<Vec<_>>(), [2, 4, 5]);
        assert_eq!(merged(log.clone()), log);
        assert!(covers_cursor(&log[1], 3) && !covers_cursor(&log[1], 2));
    }

    #[test]
    fn a_delta_of_another_version_is_left_alone() {
        let strange = event(2, "part.delta", format!("{{\"part_id\":\"{}\",\"delta\":\"b\",\"lang\":\"de\"}}", part(1)));
        let log = vec![delta(1, 1, "a"), strange, delta(3, 1, "c")];
        assert_eq!(compact_deltas(&log, &run(1)), []);
    }
}
