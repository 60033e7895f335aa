//! The input items of a response: the items that its request added.

use axum::Json;
use axum::extract::Path;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::IntoParams;

use crate::domain::access::principal::Principal;
use crate::domain::event::EventBody;
use crate::domain::run::Run;
use crate::domain::tool::approval::ApprovalState;
use crate::http::clients::pauses::Section;
use crate::http::openai::ids::{Order, derived, list as page_of};
use crate::http::openai::responses::{find, items};
use crate::http::options::App;
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::Params;
use crate::http::wire::problem::HttpResult;
use crate::service::{Error, PageRequest};

/// The events that pause a run, and those that come from a request.
const KINDS: [&str; 6] =
    ["run.waiting", "message.created", "approval.resolved", "input.resolved", "tool.requested", "tool.completed"];

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct ItemParams {
    /// The id of the last item that the client has.
    pub after: Option<String>,
    /// Maximum number of items.
    #[param(minimum = 1, maximum = 100, default = 20)]
    limit: Option<u32>,
    #[serde(default)]
    #[param(inline)]
    pub order: Order,
}

impl ItemParams {
    pub(super) fn limit(&self) -> usize {
        self.limit.unwrap_or(20).clamp(1, 100) as usize
    }
}

/// Lists the input of a response
#[utoipa::path(
    get, path = "/v1/responses/{id}/input_items", tag = "responses", operation_id = "openai_list_input_items",
    params(("id" = String, Path, description = "The id of the response"), ItemParams),
    responses((status = 200, description = "A page of items", body = Object)),
)]
pub(in crate::http) async fn list(
    caller: Caller,
    Path(id): Path<String>,
    Params(params): Params<ItemParams>,
) -> HttpResult<Json<Value>> {
    let Caller { app, principal } = &caller;
    let (run, facts) = find(app, principal, &id).await?;
    let of = (&run.id, facts.segment);
    let mut items: Vec<Value> = facts.system_items.iter().zip(0..).map(|(item, at)| items::system(of, at, item)).collect();
    items.extend(match facts.segment {
        0 => begun_with(app, principal, &run).await?,
        segment => continued_with(app, principal, &run, segment).await?,
    });
    if params.order == Order::Desc {
        items.reverse();
    }
    let skip = match &params.after {
        None => 0,
        Some(after) => {
            let at = items.iter().position(|item| item["id"] == **after);
            at.ok_or_else(|| Error::field("/after", "is not the id of an item of this response"))? + 1
        }
    };
    let limit = params.limit();
    let has_more = items.len() > skip + limit;
    Ok(Json(page_of(items.into_iter().skip(skip).take(limit).collect(), has_more)))
}

/// Returns the messages that began a run, oldest first.
async fn begun_with(app: &App, principal: &Principal, run: &Run) -> HttpResult<Vec<Value>> {
    let first = app.service.run_events(principal, &run.id, None, 1).await?;
    let own = first.events.first().and_then(|event| event.body()).and_then(|body| match body {
        EventBody::MessageCreated { message } => Some(message.id),
        _ => None,
    });
    let mut found = Vec::new();
    let mut page = PageRequest { limit: 100, after: None };
    loop {
        let messages = app.service.messages(principal, &run.conversation_id, &page).await?;
        found.extend(messages.items.into_iter().filter(|message| message.run_id == run.id && !message.internal));
        let last = found.iter().position(|message| Some(&message.id) == own.as_ref());
        match (last, messages.next.and_then(|next| next.parse().ok())) {
            (None, Some(next)) => page.after = Some(next),
            (last, _) => {
                found.truncate(last.map_or(found.len(), |last| last + 1));
                return Ok(items::of_messages(&found, |_| true));
            }
        }
    }
}

/// Returns the answers and messages that a run got after the pause before a response, oldest first.
async fn continued_with(app: &App, principal: &Principal, run: &Run, segment: u32) -> HttpResult<Vec<Value>> {
    let log = app.service.run_events_of_kinds(principal, &run.id, &KINDS).await?;
    let (mut items, mut requested, mut pauses) = (Vec::new(), Vec::new(), 0);
    let mut section = Section::default();
    for (seq, body) in log.events.iter().filter_map(|event| Some((event.seq, event.body()?))) {
        pauses += u32::from(section.observe_pause(seq, &body));
        let item = match body {
            EventBody::ToolRequested { call } => {
                requested.push(call.call_id);
                None
            }
            EventBody::MessageCreated { message } => items::of_messages([&message], |_| true).pop(),
            EventBody::ToolCompleted { call_id, content, .. } if requested.contains(&call_id) => {
                Some(items::function_output(&call_id, &content, "completed"))
            }
            EventBody::ApprovalResolved {
                id, status: status @ (ApprovalState::Allowed | ApprovalState::Denied), reason, ..
            } => Some(json!({
                "type": "mcp_approval_response",
                "id": derived("mcpa_", id.as_str()),
                "approval_request_id": items::approval_id(&id),
                "approve": status == ApprovalState::Allowed,
                "reason": reason,
            })),
            EventBody::InputResolved { id, answer: Some(answer), .. } => Some(items::question_answer(&id, answer)),
            _ => None,
        };
        if pauses == segment {
            items.extend(item);
        }
    }
    Ok(items)
}
