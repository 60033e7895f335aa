//! A conversation under the name that a client of another protocol gives it, and the operations that these protocols share.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use crate::domain::access::principal::Principal;
use crate::domain::conversation::Conversation;
use crate::domain::conversation::message::{Message, Role};
use crate::domain::ids::{CallId, ConversationId, InputId, MessageId, RunId};
use crate::domain::run::OnBusy;
use crate::domain::run::question::{InputRequest, InputState};
use crate::domain::tool::approval::{Approval, ApprovalAnswer, ApprovalState, Decision};
use crate::domain::trace::TraceId;
use crate::http::clients::ids;
use crate::http::clients::pauses::{RunPauses, Section};
use crate::http::options::App;
use crate::http::wire::problem::{HttpResult, found};
use crate::service::{
    Access, BeforeCursor, Error, NewToolResult, PageRequest, RequestKey, Service, StoreError, StreamItem, StreamStart,
};
use crate::support::json;

/// Number of rows in one read.
const PAGE: u32 = 100;
/// Number of rows in the first read for one message, which is often among the newest. Each further read doubles it, up to a page.
const FIRST_ROWS: u32 = 10;
/// Limit of reads for one message, so that no request reads without end.
const MAX_PAGES: usize = 200;
/// Limit of reads for a list of messages, each of about 1 MiB at most.
const MAX_LISTED_PAGES: usize = 32;
/// Time limit for a cancelled run to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);

pub(in crate::http) struct Thread {
    pub app: App,
    pub access: Access,
    pub trace: TraceId,
    pub id: ConversationId,
    /// Whether the client gave an id of the native API, which must exist. Any other name may be new.
    is_native: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(in crate::http) struct ApprovalDecision {
    pub approved: bool,
    pub reason: Option<String>,
    /// Arguments that replace those of the call.
    pub arguments: Option<Value>,
}

#[derive(Debug, Default)]
pub(in crate::http) struct OpenQuestions {
    pub approvals: Vec<Approval>,
    pub questions: Vec<InputRequest>,
}

impl OpenQuestions {
    pub fn is_empty(&self) -> bool {
        self.approvals.is_empty() && self.questions.is_empty()
    }
}

/// Returns the open questions of a run of a conversation, oldest first.
pub(in crate::http) async fn open_questions(
    service: &Service,
    principal: &Principal,
    (conversation, run): (&ConversationId, &RunId),
) -> HttpResult<OpenQuestions> {
    let (mut open, page) = (OpenQuestions::default(), PageRequest { limit: PAGE, after: None });
    let approvals = service.approvals(principal, Some(InputState::Pending), Some(conversation), &page).await?;
    open.approvals.extend(approvals.items.into_iter().rev().filter(|approval| approval.run_id == *run));
    let questions = service.input_requests(principal, Some(InputState::Pending), Some(conversation), &page).await?;
    open.questions.extend(questions.items.into_iter().rev().map(|found| found.request).filter(|found| found.run_id == *run));
    Ok(open)
}

/// Returns the calls in these messages that clients execute.
pub(in crate::http) async fn client_calls(
    service: &Service,
    principal: &Principal,
    messages: &[Message],
) -> HttpResult<BTreeSet<CallId>> {
    let mut tools: BTreeMap<&RunId, BTreeSet<String>> = BTreeMap::new();
    let mut calls = BTreeSet::new();
    for message in messages {
        for call in message.tool_calls() {
            let names = match tools.entry(&message.run_id) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => match service.run_profile(principal, &message.run_id).await {
                    Ok(profile) => new.insert(profile.client_tools.into_iter().map(|tool| tool.name).collect()),
                    // The run of an imported message does not exist.
                    Err(Error::NotFound(_)) => new.insert(BTreeSet::new()),
                    Err(error) => return Err(error.into()),
                },
            };
            if names.contains(&call.name) {
                calls.insert(call.call_id.clone());
            }
        }
    }
    Ok(calls)
}

/// Returns the messages in the order in which their runs began. A message that waited behind a run is stored before that run's answer.
pub(in crate::http) fn messages_by_run(messages: &[Message]) -> Vec<&Message> {
    let mut places: BTreeMap<&RunId, usize> = BTreeMap::new();
    for (place, message) in messages.iter().enumerate() {
        places.entry(&message.run_id).or_insert(place);
    }
    let mut ordered: Vec<&Message> = messages.iter().collect();
    ordered.sort_by_key(|message| places.get(&message.run_id));
    ordered
}

impl Thread {
    /// Returns the conversation that the client calls `name` in this field of its request.
    pub fn new(app: &App, access: Access, trace: TraceId, (field, name): (&str, &str)) -> HttpResult<Self> {
        let id = ids::conversation(&access.principal().user_id, field, name)?;
        let is_native = name.parse::<ConversationId>().is_ok();
        Ok(Self { app: app.clone(), access, trace, id, is_native })
    }

    pub fn service(&self) -> &Service {
        &self.app.service
    }

    pub fn principal(&self) -> &Principal {
        self.access.principal()
    }

    /// Returns the conversation; `None` if a client's name has none yet.
    pub async fn row(&self) -> HttpResult<Option<Conversation>> {
        match self.row_or_new().await? {
            None if self.is_native => Err(Error::NotFound("conversation").into()),
            row => Ok(row),
        }
    }

    /// Returns the conversation, or `None` if it does not exist: then the new message creates it, also under an id of the native
    /// API.
    pub async fn row_or_new(&self) -> HttpResult<Option<Conversation>> {
        found(self.service().conversation(self.principal(), &self.id).await)
    }

    /// Returns the idempotency key of a request that has none. The client's `name` for the request identifies its repetitions.
    pub fn request_key(&self, purpose: &str, name: &str) -> RequestKey {
        let fingerprint = json::hash_bytes(format!("{}\n{purpose}\n{name}", self.id).as_bytes());
        RequestKey { key: format!("client.{fingerprint}"), fingerprint }
    }

    /// Returns how a new message treats the active run: it interrupts a run that waits for an answer, and waits for any other run.
    pub fn on_busy(row: Option<&Conversation>) -> OnBusy {
        let waits = row.is_some_and(Conversation::waits_for_answer);
        if waits { OnBusy::Interrupt } else { OnBusy::Queue }
    }

    /// Returns the newest message that a client calls `name`.
    pub async fn find_message(&self, name: &str) -> HttpResult<Option<Message>> {
        self.find(self.is_named(name)).await
    }

    /// Returns whether a client calls a message `name`.
    fn is_named(&self, name: &str) -> impl Fn(&Message) -> bool + use<> {
        let (id, part) = (name.parse::<MessageId>().ok(), ids::first_part(&self.id, name));
        move |message: &Message| Some(&message.id) == id.as_ref() || message.parts.first().is_some_and(|first| *first.id() == part)
    }

    /// Returns the run of the user's newest message, if the client sends that message again: it has this `name`, and `is_same`
    /// holds.
    pub async fn run_of_repeated_message(&self, name: &str, is_same: impl Fn(&Message) -> bool) -> HttpResult<Option<RunId>> {
        let newest = self.find(|message| message.role == Role::User && !message.internal).await?;
        let Some(message) = newest.filter(self.is_named(name)).filter(is_same) else { return Ok(None) };
        // The run of an imported message does not exist.
        Ok(found(self.service().run(self.principal(), &message.run_id).await)?.map(|run| run.id))
    }

    /// Returns the newest message for which `is_wanted` holds. Calls it from the newest message to the oldest.
    pub async fn find(&self, mut is_wanted: impl FnMut(&Message) -> bool) -> HttpResult<Option<Message>> {
        let mut before: Option<BeforeCursor> = None;
        let mut rows = FIRST_ROWS;
        for _ in 0..MAX_PAGES {
            let page = match self.service().earlier_messages(self.principal(), &self.id, before, rows).await {
                Ok(page) => page,
                Err(Error::NotFound(_)) if !self.is_native => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            if let Some(found) = page.items.into_iter().rev().find(|message| is_wanted(message)) {
                return Ok(Some(found));
            }
            before = page.next.and_then(|next| next.parse().ok());
            if before.is_none() {
                break;
            }
            rows = (rows * 2).min(PAGE);
        }
        Ok(None)
    }

    /// Returns the newest messages, oldest first, and the conversation as read after them. Repeats both reads if the active run or
    /// its wait reason changed between them.
    pub async fn history(&self) -> HttpResult<Option<(Conversation, Vec<Message>)>> {
        let Some(mut row) = self.row().await? else { return Ok(None) };
        loop {
            let messages = self.messages().await?;
            let Some(now) = self.row().await? else { return Ok(None) };
            let is_same = (&now.active_run_id, now.reason) == (&row.active_run_id, row.reason);
            row = now;
            if is_same {
                return Ok(Some((row, messages)));
            }
        }
    }

    /// Returns the newest messages, oldest first.
    async fn messages(&self) -> HttpResult<Vec<Message>> {
        let mut pages = Vec::new();
        let mut before: Option<BeforeCursor> = None;
        for _ in 0..MAX_LISTED_PAGES {
            let page = self.service().earlier_messages(self.principal(), &self.id, before, PAGE).await?;
            pages.push(page.items);
            before = page.next.and_then(|next| next.parse().ok());
            if before.is_none() {
                break;
            }
        }
        Ok(pages.into_iter().rev().flatten().collect())
    }

    pub async fn open_questions(&self, run: &RunId) -> HttpResult<OpenQuestions> {
        open_questions(self.service(), self.principal(), (&self.id, run)).await
    }

    /// Fails if a run is not part of this conversation.
    pub async fn check_run(&self, run: &RunId) -> HttpResult<()> {
        match self.service().run(self.principal(), run).await?.conversation_id == self.id {
            true => Ok(()),
            false => Err(Error::NotFound("run in this conversation").into()),
        }
    }

    /// Decides about an approval of this conversation, unless it is decided already. Returns its run.
    pub async fn decide(&self, id: &InputId, decided: ApprovalDecision) -> HttpResult<RunId> {
        let approval = self.service().approval(self.principal(), id).await?;
        if approval.conversation_id != self.id {
            return Err(Error::NotFound("approval").into());
        }
        if approval.status == ApprovalState::Pending {
            let ApprovalDecision { approved, reason, arguments } = decided;
            let decision = if approved { Decision::Allow } else { Decision::Deny };
            let arguments = arguments.filter(|_| approved);
            let answer = ApprovalAnswer { decision, scope: None, arguments, reason, arguments_hash: None };
            self.service().resolve_approval(self.principal(), id, answer, None).await?;
        }
        Ok(approval.run_id)
    }

    /// Stores the results of those calls that the run still waits for. Returns the ids of these calls.
    async fn store_results(&self, run: &RunId, mut results: Vec<NewToolResult>) -> HttpResult<Vec<String>> {
        if results.is_empty() {
            return Ok(Vec::new());
        }
        let requested = RunPauses::read(self.service(), self.principal(), run).await?.requested;
        results.retain(|result| requested.contains_key(&result.call_id));
        let calls: Vec<String> = results.iter().map(|result| result.call_id.to_string()).collect();
        if calls.is_empty() {
            return Ok(calls);
        }
        match self.service().store_tool_results(self.principal(), run, results, None).await {
            // The client repeats results whose response it has lost.
            Ok(_) | Err(Error::AlreadyAnswered(_)) => Ok(calls),
            Err(error) => Err(error.into()),
        }
    }

    /// Stores results of client tools. Returns the section of the run after these results and the answers with the ids `answered`.
    ///
    /// A message also repeats results of earlier waits: `sent` has the calls of all its results. Without a new answer, the section
    /// follows the newest of these results. Without any result, it fails if the run waits for an answer.
    pub async fn section_after(
        &self,
        run: &RunId,
        mut answered: BTreeSet<String>,
        (sent, results): (&[CallId], Vec<NewToolResult>),
    ) -> HttpResult<Section> {
        answered.extend(self.store_results(run, results).await?);
        // This is read before the row, so that a wait that begins between both reads does not count as over.
        let pauses = RunPauses::read(self.service(), self.principal(), run).await?;
        if answered.is_empty() {
            answered.extend(pauses.newest_result(sent.iter()));
        }
        if answered.is_empty() {
            let row = self.row().await?.ok_or(Error::NotFound("run in this conversation"))?;
            if row.waits_for_answer() && row.active_run_id.as_ref() == Some(run) {
                return Err(Error::conflict("the run waits for an answer, and the newest message has none").into());
            }
        }
        Ok(pauses.section_after(&answered))
    }

    /// Cancels the active run, and waits for its end.
    pub async fn end_active_run(&self) -> HttpResult<()> {
        let Some(run) = self.row().await?.and_then(|row| row.active_run_id) else { return Ok(()) };
        let start = self.service().stream_run(self.principal(), &run, None).await?;
        self.service().cancel_run(self.principal(), &run, None).await?;
        let StreamStart::Stream(mut reader) = start else { return Ok(()) };
        let ended = tokio::time::timeout(END_TIMEOUT, async {
            while let Some(items) = reader.next().await? {
                if items.iter().any(StreamItem::is_last) {
                    break;
                }
            }
            Ok::<(), StoreError>(())
        });
        match ended.await {
            Ok(read) => Ok(read.map_err(Error::from)?),
            Err(_elapsed) => Err(Error::conflict("the active run has not ended yet; try again in a few seconds").into()),
        }
    }
}
