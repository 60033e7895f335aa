//! `/api/v1/conversations`: conversations, their messages and their logs.

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::domain::access::principal::Principal;
use crate::domain::conversation::message::Message;
use crate::domain::conversation::{Conversation, ConversationSort};
use crate::domain::event::EventBody;
use crate::domain::ids::{ConversationId, MessageId};
use crate::http::options::App;
use crate::http::streams;
use crate::http::streams::preferred_response::{RunResponder, RunResponses};
use crate::http::streams::render::StreamEvent;
use crate::http::v1::runs::{EventsRequest, event_page};
use crate::http::wire::auth::Caller;
use crate::http::wire::conversation_status::StatusWords;
use crate::http::wire::etag;
use crate::http::wire::extract::{Id, Input, OptionalInput, Params, ResponseFormat};
use crate::http::wire::idempotency_header::replayed;
use crate::http::wire::page::{self, PageParams, Paging};
use crate::http::wire::problem::HttpResult;
use crate::http::wire::responses::created;
use crate::http::wire::types::{AcceptedBody, CompactedBody, EmptyBody, ListBody, SendMessageBody};
use crate::service::{
    BeforeCursor, ConversationCursor, ConversationFilter, ConversationPatch, Error, InvalidCursor, MessageCursor,
    NewConversationRequest, Page, PageRequest,
};

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct FilterParams {
    /// A part of the title.
    q: Option<String>,
    /// Archived conversations (`true`), the others (`false`), or both (`any`).
    #[param(inline, default = "false")]
    archived: Option<Archived>,
    /// Pinned conversations (`true`) or the others (`false`). Defaults to both.
    pinned: Option<bool>,
    /// A tag of the conversations.
    tag: Option<String>,
    /// The time that orders the list: the creation (`created`), or the last change, such as a new message (`updated`).
    #[param(inline, default = "created")]
    sort: Option<ConversationSort>,
}

/// The selection of conversations by whether they are archived.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Archived {
    True,
    #[default]
    False,
    Any,
}

impl Archived {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::True => "true",
            Self::False => "false",
            Self::Any => "any",
        }
    }

    /// Returns whether the conversation must be archived; `None` for both.
    pub(crate) fn filter(self) -> Option<bool> {
        match self {
            Self::True => Some(true),
            Self::False => Some(false),
            Self::Any => None,
        }
    }
}

impl FilterParams {
    /// Returns the filter, and the query that selects the same rows on the next page.
    fn read(self) -> (ConversationFilter, String) {
        let Self { q, archived, pinned, tag, sort } = self;
        let (archived, sort) = (archived.unwrap_or_default(), sort.unwrap_or_default());
        let rest = page::query([
            ("q", q.as_deref()),
            ("archived", (archived != Archived::False).then_some(archived.word())),
            ("pinned", pinned.map(|is| if is { "true" } else { "false" })),
            ("tag", tag.as_deref()),
            ("sort", (sort == ConversationSort::Updated).then_some("updated")),
        ]);
        (ConversationFilter { query: q, archived: archived.filter(), pinned, tag, sort }, rest)
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct WordsParams {
    /// Adds `word`: the status of the conversation in the vocabulary of the agent `cms` or `chat`.
    #[param(inline)]
    words: Option<StatusWords>,
}

/// A conversation, with its status in the requested vocabulary.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ConversationInWords {
    #[serde(flatten)]
    conversation: Conversation,
    /// The status of the conversation in the requested vocabulary.
    #[serde(skip_serializing_if = "Option::is_none")]
    word: Option<&'static str>,
}

impl WordsParams {
    async fn show(
        &self,
        app: &App,
        principal: &Principal,
        conversations: Vec<Conversation>,
    ) -> HttpResult<Vec<ConversationInWords>> {
        let runs = match self.words {
            Some(StatusWords::Cms) => conversations.iter().filter_map(|shown| shown.active_run_id.clone()).collect(),
            // This vocabulary does not contain the progress of a run.
            Some(StatusWords::Chat) | None => Vec::new(),
        };
        let reached = app.service.run_progress(principal, &runs).await?;
        let show = |conversation: Conversation| {
            let run = conversation.active_run_id.as_ref();
            let reached = reached.iter().find(|(id, _)| Some(id) == run).map(|(_, kind)| *kind);
            let word = self.words.map(|words| words.word(conversation.status, conversation.reason, reached));
            ConversationInWords { conversation, word }
        };
        Ok(conversations.into_iter().map(show).collect())
    }
}

/// Creates a conversation
#[utoipa::path(
    post, path = "/api/v1/conversations", tag = "conversations", operation_id = "create_conversation",
    request_body = Option<NewConversationRequest>,
    responses((status = 201, description = "The conversation", body = Conversation, headers(("Location" = String)))),
)]
pub(crate) async fn create(
    caller: Caller,
    OptionalInput { body, key }: OptionalInput<NewConversationRequest>,
) -> HttpResult<Response> {
    let (conversation, replay) = caller.app.service.create_conversation(&caller.principal, body, key).await?;
    Ok(created(replay, None, &format!("/api/v1/conversations/{}", conversation.id), conversation))
}

/// Lists conversations, newest first
#[utoipa::path(
    get, path = "/api/v1/conversations", tag = "conversations", operation_id = "list_conversations",
    params(FilterParams, WordsParams, PageParams),
    responses((status = 200, description = "A page of the list", body = ListBody<ConversationInWords>)),
)]
pub(crate) async fn list(
    Caller { app, principal }: Caller,
    Params(filter): Params<FilterParams>,
    Params(words): Params<WordsParams>,
    Paging(page): Paging<ConversationCursor>,
) -> HttpResult<Response> {
    let (filter, rest) = filter.read();
    let rest = rest + &page::query([("words", words.words.map(StatusWords::as_str))]);
    let Page { items, next } = app.service.conversations(&principal, filter, &page).await?;
    let items = words.show(&app, &principal, items).await?;
    Ok(page::answer(Page { items, next }, page.limit, "/api/v1/conversations", &rest))
}

/// Returns a conversation
#[utoipa::path(
    get, path = "/api/v1/conversations/{id}", tag = "conversations", operation_id = "get_conversation",
    params(
        ("id" = ConversationId, Path, description = "The id of the conversation"), WordsParams,
        ("If-None-Match" = Option<String>, Header, description = "The ETag of the client's copy"),
    ),
    responses(
        (status = 200, description = "The conversation", body = ConversationInWords, headers(("ETag" = String))),
        (status = 304, description = "The client already has the current state"),
    ),
)]
pub(crate) async fn get(
    Caller { app, principal }: Caller,
    Id(id): Id<ConversationId>,
    Params(words): Params<WordsParams>,
    request: HeaderMap,
) -> HttpResult<Response> {
    let conversation = app.service.conversation(&principal, &id).await?;
    let conversation = words.show(&app, &principal, vec![conversation]).await?.pop();
    Ok(etag::tagged(&request, StatusCode::OK, &conversation))
}

/// Changes a conversation
///
/// Changes the title, the tags, the pin, the archive state, and the conversation's parts of the system prompt. Also changes the
/// agent and the model for messages that name none. Absent fields stay unchanged.
#[utoipa::path(
    patch, path = "/api/v1/conversations/{id}", tag = "conversations", operation_id = "update_conversation",
    params(("id" = ConversationId, Path, description = "The id of the conversation")), request_body = ConversationPatch,
    responses((status = 200, description = "The conversation", body = Conversation)),
)]
pub(crate) async fn update(
    caller: Caller,
    Id(id): Id<ConversationId>,
    Input { body, .. }: Input<ConversationPatch>,
) -> HttpResult<Json<Conversation>> {
    Ok(Json(caller.app.service.change_conversation(&caller.principal, &id, body).await?))
}

/// Compacts a conversation
///
/// Later requests to models contain a summary instead of the older messages. The newest messages stay, as many as the server's own
/// agent keeps (`agent.context.keep_last`). Stored messages do not change. The server refuses the request while a run is active. An
/// active run compacts its conversation when needed.
#[utoipa::path(
    post, path = "/api/v1/conversations/{id}/compact", tag = "conversations", operation_id = "compact_conversation",
    params(("id" = ConversationId, Path, description = "The id of the conversation")),
    responses((status = 200, description = "The result of the compaction", body = CompactedBody)),
)]
pub(crate) async fn compact(
    caller: Caller,
    Id(id): Id<ConversationId>,
    OptionalInput { key, .. }: OptionalInput<EmptyBody>,
) -> HttpResult<Response> {
    let ((messages, summary), replay) = caller.app.service.compact_conversation(&caller.principal, &id, key).await?;
    Ok((StatusCode::OK, replayed(replay), Json(CompactedBody::new(messages, summary))).into_response())
}

/// Deletes a conversation
///
/// Its messages, runs and events are deleted too. An active run is stopped.
#[utoipa::path(
    delete, path = "/api/v1/conversations/{id}", tag = "conversations", operation_id = "delete_conversation",
    params(("id" = ConversationId, Path, description = "The id of the conversation")),
    responses((status = 204, description = "The conversation was deleted")),
)]
pub(crate) async fn delete(caller: Caller, Id(id): Id<ConversationId>) -> HttpResult<StatusCode> {
    caller.app.service.delete_conversation(&caller.principal, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The message in a path.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "Ids reads the path; this is its description")]
pub(crate) struct MessagePath {
    /// The id of the conversation
    id: ConversationId,
    /// The id of the message.
    message_id: MessageId,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct MessageParams {
    /// `false` omits internal messages between the server and the model. A page may then have fewer rows than its limit.
    #[param(default = true)]
    internal: Option<bool>,
    /// A cursor for pages in backward direction: `before` of a snapshot, or `next_cursor` of such a page. Selects the messages
    /// before the cursor. Empty for the newest messages.
    before: Option<String>,
}

enum Direction {
    Forwards(PageRequest<MessageCursor>),
    Backwards { before: Option<BeforeCursor>, limit: u32 },
}

impl MessageParams {
    fn direction(&self, page: &PageParams) -> HttpResult<Direction> {
        let limit = page::limit(page.limit)?;
        let before = match (self.before.as_deref(), page.cursor.as_deref()) {
            (None, None) => return Ok(Direction::Forwards(PageRequest { limit, after: None })),
            (Some(_), Some(_)) => return Err(Error::invalid("send one of before and cursor").into()),
            (Some(""), None) => return Ok(Direction::Backwards { before: None, limit }),
            (Some(before), None) => page::decode(before),
            // The `next_cursor` of a page that was read backwards continues backwards.
            (None, Some(cursor)) => match page::decode(cursor) {
                Ok(before) => Ok(before),
                Err(InvalidCursor) => return Ok(Direction::Forwards(page.request()?)),
            },
        };
        let invalid =
            |InvalidCursor| Error::InvalidCursor("send before of a snapshot, or next_cursor of the previous page".to_owned());
        Ok(Direction::Backwards { before: Some(before.map_err(invalid)?), limit })
    }
}

/// Lists the messages of a conversation, oldest first
///
/// Pages begin with the first message. With `before`, pages go backwards. The messages of each page are oldest first, and
/// `next_cursor` leads to the messages before them.
#[utoipa::path(
    get, path = "/api/v1/conversations/{id}/messages", tag = "conversations", operation_id = "list_messages",
    params(("id" = ConversationId, Path, description = "The id of the conversation"), PageParams, MessageParams),
    responses((status = 200, description = "A page of the list", body = ListBody<Message>)),
)]
pub(crate) async fn messages(
    caller: Caller,
    Id(id): Id<ConversationId>,
    Params(params): Params<PageParams>,
    Params(which): Params<MessageParams>,
) -> HttpResult<Response> {
    let (mut found, limit, name) = match which.direction(&params)? {
        Direction::Forwards(request) => {
            (caller.app.service.messages(&caller.principal, &id, &request).await?, request.limit, "cursor")
        }
        Direction::Backwards { before, limit } => {
            (caller.app.service.earlier_messages(&caller.principal, &id, before, limit).await?, limit, "before")
        }
    };
    let rest = match which.internal.unwrap_or(true) {
        true => "",
        false => {
            found.items.retain(|message| !message.internal);
            "&internal=false"
        }
    };
    Ok(page::answer_as(name, found, limit, &format!("/api/v1/conversations/{id}/messages"), rest))
}

/// Sends a message
///
/// With `Accept: text/event-stream` or `application/x-ndjson`, the response is the run's event stream. With `Prefer: wait=N`, the
/// server first waits up to N seconds until the run ends or waits for an answer.
#[utoipa::path(
    post, path = "/api/v1/conversations/{id}/messages", tag = "conversations", operation_id = "send_message",
    params(("id" = ConversationId, Path, description = "The id of the conversation"), RunResponder),
    request_body = SendMessageBody,
    responses(RunResponses<AcceptedBody>),
)]
pub(crate) async fn send(
    Id(id): Id<ConversationId>,
    responder: RunResponder,
    Input { body, key }: Input<SendMessageBody>,
) -> HttpResult<Response> {
    let request = body.into_request(Some(id), responder.trace.clone());
    responder.start_run(request, key).await
}

/// Reads the event log of a conversation
///
/// The response is a JSON page. With `Accept: text/event-stream` or `application/x-ndjson`, it is a stream. The stream starts at
/// the cursor. Without a cursor, it starts with one `stream.snapshot`, followed by new events.
#[utoipa::path(
    get, path = "/api/v1/conversations/{id}/events", tag = "conversations", operation_id = "conversation_events",
    params(("id" = ConversationId, Path, description = "The id of the conversation"), EventsRequest),
    responses(
        (status = 200, description = "Events, oldest first. Each `data` field or line of a stream is one event",
         content((ListBody<EventBody> = "application/json"), (StreamEvent = "text/event-stream"), (StreamEvent = "application/x-ndjson"))),
    ),
)]
pub(crate) async fn events(Id(id): Id<ConversationId>, request: EventsRequest) -> HttpResult<Response> {
    let EventsRequest { app, access, after, limit, wants } = request;
    match wants {
        ResponseFormat::Stream(framing) => {
            let start = app.service.stream_conversation(access.principal(), &id, after).await?;
            Ok(streams::respond(&app, access, start, framing))
        }
        ResponseFormat::Json => {
            let events = app.service.conversation_events(access.principal(), &id, after, limit).await?;
            Ok(event_page(&events, limit, &format!("/api/v1/conversations/{id}/events")))
        }
    }
}
