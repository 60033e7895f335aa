//! Users who send messages, cancel them, and retry until they get an answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use capstan::domain::access::principal::{Principal, UserRole};
use capstan::domain::conversation::message::{Message, Role};
use capstan::domain::ids::{CallId, ConversationId, InputId, MessageId, RunId, UserId};
use capstan::domain::problem::ProblemCode;
use capstan::domain::run::OnBusy;
use capstan::domain::run::question::InputKind;
use capstan::domain::run::question::{InputAnswer, InputRequest, InputState};
use capstan::domain::tool::approval::{ApprovalAnswer, ApprovalScope, Decision};
use capstan::domain::trace::TraceId;
use capstan::service::{Content, ContinueRun, Error, Replay, RequestKey, RetryCall, RetryRun, RewindFrom, StartRun};

use super::cluster::{Cluster, Node};
use super::followers::{Follower, Subject};
use super::line::tail;

/// The time limit of a client for an answer before it asks another node.
const PATIENCE: Duration = Duration::from_secs(4);

/// The reason why a node did not execute a request.
enum Refused {
    /// No node executed it.
    ForGood,
    /// A node that was asked before has not answered, and may still execute it.
    ThisTime,
}

/// The answers that users received.
#[derive(Default)]
pub struct Promises {
    /// The run and the conversation of each accepted text.
    pub accepted: BTreeMap<String, (ConversationId, RunId)>,
    /// Texts that were refused without being stored.
    pub refused: BTreeSet<String>,
    pub deleted: BTreeSet<ConversationId>,
    /// How often a repeated undo of a call was confirmed.
    pub confirmed: BTreeMap<CallId, usize>,
    /// The kinds of changes to earlier messages.
    pub done: Vec<&'static str>,
}

/// A user with their conversations.
#[derive(Clone)]
pub struct User {
    pub cluster: Arc<Cluster>,
    pub promises: Arc<Mutex<Promises>>,
    pub principal: Principal,
    conversations: Vec<ConversationId>,
    runs: Vec<RunId>,
    unsettled: BTreeSet<ConversationId>,
}

impl User {
    pub fn new(cluster: &Arc<Cluster>, promises: &Arc<Mutex<Promises>>) -> Self {
        let ids = cluster.ground.ids.as_ref();
        let user_id = UserId::generate(ids);
        let count = 1 + cluster.ground.dice.below(2);
        Self {
            cluster: Arc::clone(cluster),
            promises: Arc::clone(promises),
            principal: Principal { user_id, role: UserRole::Member },
            conversations: (0..count).map(|_| ConversationId::generate(ids)).collect(),
            runs: Vec::new(),
            unsettled: BTreeSet::new(),
        }
    }

    /// Returns followers of all conversations of this user, from their beginning.
    pub fn followers(&self) -> Vec<Follower> {
        let of =
            |id: &ConversationId| Follower::new(&self.cluster, &self.promises, &self.principal, Subject::Conversation(id.clone()));
        self.conversations.iter().flat_map(|id| [of(id), of(id)]).collect()
    }

    /// Answers the questions of this user's runs while it is polled. The user answers from the ledger, which does not contain
    /// calls that are still on their way.
    pub async fn answer(self) {
        let ground = &self.cluster.ground;
        loop {
            ground.dice.sleep(200, 5_000).await;
            let open = {
                let state = ground.model.state();
                let mut runs = state.runs.values().filter(|row| row.owner == self.principal.user_id);
                runs.find_map(|row| {
                    let asked = row.inputs.iter().find(|asked| asked.request.state == InputState::Pending)?;
                    let call = row.calls.iter().find(|call| Some(&call.id) == asked.request.call_id.as_ref())?;
                    Some((asked.request.clone(), call.id.clone(), call.key().clone()))
                })
            };
            let Some((InputRequest { id, kind, .. }, call, same)) = open else { continue };
            if kind == InputKind::Approval {
                self.decide(&id, &call).await;
                continue;
            }
            let choice = if ground.dice.chance(200) { "skip" } else { ground.ledger.recall(&call, &same) };
            let what = format!("{choice} of {}", tail(call.as_str()));
            let answer = InputAnswer::new(choice, None);
            let key = RequestKey { key: id.to_string(), fingerprint: choice.to_owned() };
            let ask = async |node: &Node| node.service.resolve_input(&self.principal, &id, answer.clone(), Some(key.clone())).await;
            // The run may have ended meanwhile.
            let _ = self.insist(&what, ask).await;
            ground.dice.note(format_args!("{what} is answered"));
        }
    }

    /// Allows or denies a call, sometimes permanently.
    async fn decide(&self, id: &InputId, call: &CallId) {
        let dice = &self.cluster.ground.dice;
        let decision = if dice.chance(300) { Decision::Deny } else { Decision::Allow };
        let for_good = decision == Decision::Allow && dice.chance(200);
        let scope = for_good.then_some(ApprovalScope::Conversation);
        let answer = ApprovalAnswer { decision, scope, arguments: None, reason: None, arguments_hash: None };
        let what = format!("{} of {}", decision.as_str(), tail(call.as_str()));
        let key = RequestKey { key: id.to_string(), fingerprint: what.clone() };
        let ask = async |node: &Node| node.service.resolve_approval(&self.principal, id, answer.clone(), Some(key.clone())).await;
        let _ = self.insist(&what, ask).await;
        dice.note(format_args!("{what} is decided"));
    }

    /// Acts until all messages are sent.
    pub async fn live(mut self, number: u64) {
        let acts = 3 + self.cluster.ground.dice.below(6);
        for act in 0..acts {
            self.cluster.ground.dice.sleep(0, 6_000).await;
            match self.cluster.ground.dice.below(30) {
                0..3 if !self.runs.is_empty() => self.cancel().await,
                3..5 if !self.runs.is_empty() => self.resume().await,
                5 if self.conversations.len() > 1 => self.delete().await,
                6..8 => self.retry().await,
                8..11 => self.retry_call().await,
                11..13 => self.undo().await,
                13 | 14 => self.rewind().await,
                15 | 16 => self.edit(&format!("edit-{number}.{act}")).await,
                17 => self.compact().await,
                _ => self.say(&format!("say-{number}.{act}"), None).await,
            }
        }
    }

    fn run(&self) -> RunId {
        self.runs[usize::try_from(self.cluster.ground.dice.below(self.runs.len() as u64)).unwrap()].clone()
    }

    /// Asks one node after the other until there is an answer.
    async fn insist<T>(&self, what: &str, ask: impl AsyncFn(&Node) -> Result<T, Error>) -> Result<(Arc<Node>, T), Refused> {
        let dice = &self.cluster.ground.dice;
        let mut refused = Refused::ForGood;
        loop {
            let Some(node) = self.cluster.any() else {
                dice.sleep(200, 2_000).await;
                continue;
            };
            let answer = tokio::select! {
                biased;
                () = node.gone.cancelled() => None,
                answer = tokio::time::timeout(PATIENCE, ask(&node)) => answer.ok(),
            };
            match answer {
                Some(Ok(answer)) => return Ok((node, answer)),
                Some(Err(error)) if !matches!(error.code(), ProblemCode::Unavailable | ProblemCode::Internal) => {
                    dice.note(format_args!("{what} is refused by {}: {error}", node.name));
                    return Err(refused);
                }
                answer => {
                    if answer.is_none() {
                        refused = Refused::ThisTime;
                    }
                    dice.note(format_args!("{what} is not answered by {}", node.name));
                }
            }
            dice.sleep(1, 1_500).await;
        }
    }

    fn conversation(&self) -> ConversationId {
        self.conversations[usize::try_from(self.cluster.ground.dice.below(self.conversations.len() as u64)).unwrap()].clone()
    }

    /// Returns one of the things that this user can see.
    fn pick<T>(&self, mut seen: Vec<T>) -> Option<T> {
        let at = if seen.is_empty() { return None } else { self.cluster.ground.dice.below(seen.len() as u64) };
        Some(seen.swap_remove(usize::try_from(at).unwrap()))
    }

    /// Sends a message, or an earlier one with another text.
    async fn say(&mut self, text: &str, edits: Option<(ConversationId, MessageId)>) {
        let ground = &self.cluster.ground;
        let (conversation, edits) = match edits {
            Some((conversation, message)) => (conversation, Some(message)),
            None => (self.conversation(), None),
        };
        let on_busy = match &edits {
            Some(_) => OnBusy::Reject,
            None => ground.dice.pick(&[OnBusy::Queue, OnBusy::Steer, OnBusy::Steer, OnBusy::Interrupt, OnBusy::Reject]),
        };
        let request = StartRun {
            conversation_id: Some(conversation.clone()),
            on_busy,
            create: edits.is_none(),
            edits,
            ..StartRun::new(Content::Text(text.to_owned()), "content", TraceId::generate(ground.ids.as_ref()))
        };
        let key = RequestKey { key: text.to_owned(), fingerprint: text.to_owned() };
        let ask = async |node: &Node| node.service.start_run(&self.principal, request.clone(), Some(key.clone())).await;
        let (node, started) = match self.insist(text, ask).await {
            Ok(started) => started,
            Err(Refused::ForGood) => {
                self.promises.lock().unwrap().refused.insert(text.to_owned());
                return;
            }
            Err(Refused::ThisTime) => {
                // The request may still create the conversation, so it must not be deleted before.
                self.unsettled.insert(conversation);
                return;
            }
        };
        let run = started.run.id.clone();
        ground.dice.note(format_args!("{text} is accepted by {} as {} ({:?})", node.name, tail(run.as_str()), request.on_busy));
        self.promises.lock().unwrap().accepted.insert(text.to_owned(), (conversation.clone(), run.clone()));
        if request.edits.is_some() {
            self.done("said anew");
        }
        self.runs.push(run.clone());
        if started.replay == Replay::Fresh && ground.dice.chance(600) {
            let subject = Subject::Run(conversation, run);
            let follower = Follower::new(&self.cluster, &self.promises, &self.principal, subject);
            let reader = node.service.stream_started(&self.principal, started);
            ground.tasks.spawn(follower.go_on(node, reader));
        }
    }

    async fn cancel(&self) {
        let run = self.run();
        let what = format!("cancel {}", tail(run.as_str()));
        let cancel = async |node: &Node| node.service.cancel_run(&self.principal, &run, None).await;
        // Cancelling a deleted run is refused.
        let _ = self.insist(&what, cancel).await;
        self.cluster.ground.dice.note(format_args!("{what} is done"));
    }

    async fn resume(&mut self) {
        let run = self.run();
        let what = format!("resume {}", tail(run.as_str()));
        let ground = &self.cluster.ground;
        let text = format!("resume-{}", ground.ids.next());
        let key = RequestKey { key: text.clone(), fingerprint: text };
        let trace = TraceId::generate(ground.ids.as_ref());
        let ask = async |node: &Node| node.service.resume_run(self.continuing(&run, &key, &trace)).await;
        if let Ok((_, (run, _))) = self.insist(&what, ask).await {
            ground.dice.note(format_args!("{what} is done as {}", tail(run.id.as_str())));
            self.runs.push(run.id);
        }
    }

    async fn delete(&mut self) {
        // No message is sent to it any more.
        let Some(id) = self.conversations.pop_if(|id| !self.unsettled.contains(id)) else { return };
        self.promises.lock().unwrap().deleted.insert(id.clone());
        // Deleting a missing or deleted conversation is refused.
        let _ = self.insist("delete", async |node: &Node| node.service.delete_conversation(&self.principal, &id).await).await;
        self.cluster.ground.dice.note(format_args!("{} is deleted", tail(id.as_str())));
    }
}

/// Changes of earlier messages and calls. Users read a conversation first, which may have changed by the time of the request.
impl User {
    fn done(&self, what: &'static str) {
        self.promises.lock().unwrap().done.push(what);
    }

    /// Returns a new key for a request.
    fn key(&self) -> (RequestKey, TraceId) {
        let ids = &self.cluster.ground.ids;
        let text = format!("key-{}", ids.next());
        (RequestKey { key: text.clone(), fingerprint: text }, TraceId::generate(ids.as_ref()))
    }

    fn continuing<'a>(&'a self, run: &'a RunId, key: &RequestKey, trace: &TraceId) -> ContinueRun<'a> {
        ContinueRun { principal: &self.principal, run, key: Some(key.clone()), trace: trace.clone() }
    }

    /// Returns a message of a conversation that matches.
    fn message(&self, of: &ConversationId, is_wanted: impl Fn(&Message) -> bool) -> Option<MessageId> {
        let read = self.cluster.ground.model.state().read_in(of);
        self.pick(read.into_iter().filter(|(_, message)| is_wanted(message)).map(|(_, message)| message.id).collect())
    }

    async fn rewind(&self) {
        let id = self.conversation();
        let Some(message) = self.message(&id, |_| true) else { return };
        let from = if self.cluster.ground.dice.chance(500) { RewindFrom::At(message) } else { RewindFrom::After(message) };
        let (key, _) = self.key();
        let ask = async |node: &Node| node.service.rewind_conversation(&self.principal, &id, from.clone(), Some(key.clone())).await;
        if let Ok((_, (_, gone, _))) = self.insist("rewind", ask).await {
            self.cluster.ground.dice.note(format_args!("{} is taken back by {}", tail(id.as_str()), gone.len()));
            if !gone.is_empty() {
                self.done("taken back");
            }
        }
    }

    async fn edit(&mut self, text: &str) {
        let id = self.conversation();
        let Some(message) = self.message(&id, |message| message.role == Role::User) else { return };
        self.say(text, Some((id, message))).await;
    }

    async fn compact(&self) {
        let id = self.conversation();
        let (key, _) = self.key();
        let ask = async |node: &Node| node.service.compact_conversation(&self.principal, &id, Some(key.clone())).await;
        if let Ok((_, ((messages, _), _))) = self.insist("compact", ask).await {
            self.cluster.ground.dice.note(format_args!("{messages} messages of {} are left out", tail(id.as_str())));
            if messages > 0 {
                self.done("compacted");
            }
        }
    }

    /// Returns the last run of a conversation.
    fn newest_run(&self) -> Option<RunId> {
        let id = self.conversation();
        self.cluster.ground.model.state().runs_in(&id).last().map(|row| row.run.id.clone())
    }

    async fn retry(&mut self) {
        let Some(run) = self.newest_run() else { return };
        let what = format!("retry {}", tail(run.as_str()));
        let (key, trace) = self.key();
        let ask = async |node: &Node| node.service.retry_run(self.continuing(&run, &key, &trace), RetryRun::default()).await;
        if let Ok((_, (run, _))) = self.insist(&what, ask).await {
            self.goes_on("answered once more", &what, run.id);
        }
    }

    async fn retry_call(&mut self) {
        let Some(run) = self.newest_run() else { return };
        let calls = self.cluster.ground.model.state().runs[&run].calls.iter().map(|call| call.id.clone()).collect();
        let Some(call) = self.pick(calls) else { return };
        let retry = RetryCall { arguments: None, confirm: self.cluster.ground.dice.chance(500) };
        let what = format!("retry {}", tail(call.as_str()));
        let (key, trace) = self.key();
        let ask = async |node: &Node| node.service.retry_call(self.continuing(&run, &key, &trace), &call, retry.clone()).await;
        if let Ok((_, (run, _))) = self.insist(&what, ask).await {
            self.goes_on("called once more", &what, run.id);
        }
    }

    async fn undo(&mut self) {
        let calls = {
            let state = self.cluster.ground.model.state();
            let runs = state.runs.values().filter(|row| row.owner == self.principal.user_id);
            let calls = runs.flat_map(|row| &row.calls).filter(|call| matches!(call.name.as_str(), "launch" | "note"));
            calls.map(|call| (call.run_id.clone(), call.id.clone(), call.key().clone())).collect()
        };
        let Some((run, call, same)) = self.pick(calls) else { return };
        let confirmed = self.cluster.ground.dice.chance(300);
        if confirmed {
            *self.promises.lock().unwrap().confirmed.entry(same).or_default() += 1;
        }
        let what = format!("undo {}", tail(call.as_str()));
        let (key, trace) = self.key();
        let ask = async |node: &Node| node.service.undo_call(self.continuing(&run, &key, &trace), &call, confirmed).await;
        if let Ok((_, (run, _))) = self.insist(&what, ask).await {
            self.goes_on("undone", &what, run.id);
        }
    }

    fn goes_on(&mut self, what: &'static str, asked: &str, run: RunId) {
        self.cluster.ground.dice.note(format_args!("{asked} is done as {}", tail(run.as_str())));
        self.done(what);
        self.runs.push(run);
    }
}
