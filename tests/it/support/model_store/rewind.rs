//! Changes of earlier messages: rewinding, editing, and compaction on demand.

use capstan::domain::conversation::ConversationStatus;
use capstan::domain::conversation::eviction_summary::{compact_history, section};
use capstan::domain::conversation::message::{Message, Role};
use capstan::domain::event::{EventBody, NewEvent};
use capstan::domain::ids::{ConversationId, MessageId, RunId};
use capstan::store::{
    AcceptOutcome, AcceptRun, Compact, CompactOutcome, EditOutcome, IdempotencyKey, IdempotentOutcome, Rewind, RewindFrom,
    RewindOutcome,
};

use super::state::State;

impl State {
    /// Returns the messages in the order in which models read them, with the sequence numbers of their runs.
    pub fn read_in(&self, id: &ConversationId) -> Vec<(i64, Message)> {
        let of_run = |first_seq: i64, mut messages: Vec<(i64, Message)>| {
            messages.sort_by_key(|(at, _)| *at);
            messages.into_iter().map(move |(_, message)| (first_seq, message))
        };
        self.runs_in(id).into_iter().flat_map(|row| of_run(row.first_seq, row.messages.clone())).collect()
    }

    /// Supersedes messages, and deletes a summary that covers any of them.
    pub fn take_out(&mut self, id: &ConversationId, gone: &[MessageId]) {
        let read = self.read_in(id);
        let row = self.conversations.get_mut(id).unwrap();
        let covered = row.summary.as_ref().and_then(|known| read.iter().position(|(_, message)| message.id == known.covers));
        let first = read.iter().position(|(_, message)| gone.contains(&message.id));
        if covered.is_some_and(|covered| first.is_some_and(|first| first <= covered)) {
            row.summary = None;
        }
        for row in self.runs.values_mut() {
            row.gone.extend(row.messages.extract_if(.., |(_, message)| gone.contains(&message.id)));
        }
    }

    /// Marks runs that lost a message, and those that lost the message to answer.
    fn note_rewound(&mut self, id: &ConversationId, gone: &[MessageId]) {
        let runs: Vec<RunId> = self.runs_in(id).into_iter().map(|row| row.run.id.clone()).collect();
        let mut is_turn_out = false;
        for run in runs {
            let row = self.run_mut(&run);
            row.is_rewound |= row.gone.iter().any(|(_, message)| gone.contains(&message.id));
            // A run whose message was superseded earlier does not affect the runs after it.
            if row.is_turn_out {
                continue;
            }
            if row.is_asked() {
                is_turn_out = !row.asks();
            }
            row.is_turn_out = is_turn_out;
        }
    }

    /// Returns the result of a rewind, and whether rows were stored.
    pub fn rewind(&mut self, rewind: &Rewind) -> (RewindOutcome, bool) {
        let Rewind { owner, conversation_id: id, from, now } = rewind;
        if self.conversation_of(owner, id).is_none() {
            return (RewindOutcome::NoConversation, false);
        }
        if let Some(open) = self.runs_in(id).into_iter().find(|row| !row.is_over()) {
            return (RewindOutcome::Active { run_id: open.run.id.clone() }, false);
        }
        let read = self.read_in(id);
        let at = read.iter().position(|(_, message)| message.id == *from.message());
        let Some(at) = at else { return (RewindOutcome::NoMessage, false) };
        let later = &read[at + usize::from(!from.takes_it())..];
        let mut of_run = later.iter().take_while(|(run, _)| *run == read[at].0).map(|(_, message)| message.role);
        if of_run.find(|role| *role != Role::User) == Some(Role::Tool) {
            return (RewindOutcome::PartsCalls, false);
        }
        let superseded: Vec<MessageId> = later.iter().map(|(_, message)| message.id.clone()).collect();
        let mut events = Vec::new();
        if !superseded.is_empty() {
            self.take_out(id, &superseded);
            self.note_rewound(id, &superseded);
            let row = self.conversations.get_mut(id).unwrap();
            (row.status, row.updated_at) = (ConversationStatus::Idle, *now);
            let (title, supersedes) = (Some(row.title.clone()), superseded.clone());
            let said = EventBody::ConversationUpdated { title, status: ConversationStatus::Idle, supersedes };
            events = self.append(id, vec![NewEvent::new(&said, None, 0, *now)]);
        }
        let conversation = Box::new(self.shown(id).unwrap());
        (RewindOutcome::Conversation { conversation, superseded, events }, true)
    }

    /// Returns the result of an edit: all of it, or no change.
    pub fn edit(
        &mut self,
        mut accept: AcceptRun,
        message: &MessageId,
        key: Option<IdempotencyKey>,
    ) -> IdempotentOutcome<EditOutcome> {
        accept.taker = None;
        let mut refused = None;
        let outcome = self.keyed(key, |state| {
            let before = state.clone();
            let edited = state.edit_once(&accept, message);
            match edited {
                EditOutcome::Accepted(accepted) if matches!(*accepted, AcceptOutcome::Run { .. }) => (*accepted, true),
                edited => {
                    *state = before;
                    refused = Some(edited);
                    (AcceptOutcome::NoConversation, false)
                }
            }
        });
        let accepted = |accepted| EditOutcome::Accepted(Box::new(accepted));
        match (refused, outcome) {
            (Some(refused), _) => IdempotentOutcome::Fresh(refused),
            (None, IdempotentOutcome::Fresh(outcome)) => IdempotentOutcome::Fresh(accepted(outcome)),
            (None, IdempotentOutcome::Replayed(outcome)) => IdempotentOutcome::Replayed(accepted(outcome)),
            (None, IdempotentOutcome::Mismatch) => IdempotentOutcome::Mismatch,
        }
    }

    fn edit_once(&mut self, accept: &AcceptRun, id: &MessageId) -> EditOutcome {
        let refused = |accepted| EditOutcome::Accepted(Box::new(accepted));
        let of_user = |(_, message): &(i64, Message)| message.id == *id && message.role == Role::User && !message.internal;
        let is_of_user = self.runs.values().any(|row| row.messages.iter().any(of_user));
        let (owner, conversation_id) = (accept.owner.clone(), accept.conversation_id.clone());
        let rewind = Rewind { owner, conversation_id, from: RewindFrom::At(id.clone()), now: accept.now };
        let taken_out = match self.rewind(&rewind).0 {
            RewindOutcome::Conversation { events, .. } => events,
            RewindOutcome::Active { run_id } => return refused(AcceptOutcome::Busy { run_id }),
            RewindOutcome::PartsCalls => return EditOutcome::PartsCalls,
            RewindOutcome::NoMessage => return EditOutcome::NoMessage,
            RewindOutcome::NoConversation => return refused(AcceptOutcome::NoConversation),
        };
        if !is_of_user {
            return EditOutcome::NotTheUsers;
        }
        let (mut accepted, _) = self.accept(accept);
        if let AcceptOutcome::Run { events, .. } = &mut accepted {
            events.splice(0..0, taken_out);
        }
        refused(accepted)
    }

    /// Returns the result of a compaction, and whether rows were stored.
    pub fn compact(&mut self, compact: &Compact) -> (CompactOutcome, bool) {
        let Compact { owner, conversation: id, policy, now } = compact;
        let Some(row) = self.conversation_of(owner, id) else { return (CompactOutcome::NoConversation, false) };
        let before = row.summary.clone();
        if self.runs_in(id).iter().any(|row| !row.is_over()) {
            return (CompactOutcome::Busy, false);
        }
        let mut read: Vec<Message> = self.read_in(id).into_iter().map(|(_, message)| message).collect();
        if let Some(before) = &before {
            let covered = read.iter().position(|message| message.id == before.covers).unwrap();
            read.drain(..=covered);
        }
        let Some(after) = compact_history(policy, before.as_ref(), &read) else {
            return (CompactOutcome::Done { messages: 0, summary: before, events: Vec::new() }, true);
        };
        let messages = after.messages - before.map_or(0, |before| before.messages);
        let (through, summary) = (Some(after.covers.clone()), section(&after));
        let said = EventBody::ContextCompacted { messages, texts: 0, through, summary };
        let events = self.append(id, vec![NewEvent::new(&said, None, 0, *now)]);
        self.conversations.get_mut(id).unwrap().summary = Some(after.clone());
        (CompactOutcome::Done { messages, summary: Some(after), events }, true)
    }
}
