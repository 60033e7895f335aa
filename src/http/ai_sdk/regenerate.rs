//! Decides which message or run a regenerated answer or an edited message replaces, and so which later messages leave the
//! conversation. Must not know how the new run starts, or how its stream is sent.

use super::assistant_message_id::AssistantMessageId;
use super::request::UiMessage;
use crate::domain::conversation::message::{Message, Part, Role};
use crate::domain::ids::{FileId, MessageId, PartId, RunId};
use crate::http::clients::thread::Thread;
use crate::http::wire::problem::HttpResult;
use crate::service::{Content, Error, NewPart};

/// The way in which the answer of `run` is regenerated.
pub(super) struct Regeneration {
    pub run: RunId,
    pub method: RegenerationMethod,
}

pub(super) enum RegenerationMethod {
    /// The answer is the newest one: a retry of its run replaces it.
    RetryRun,
    /// The answer has later messages: the user's message before it is sent again, and replaces all messages from there on.
    ResendMessage(ResentMessage),
    /// The answer was regenerated already, and the client has lost the response: the active run is that answer.
    FollowRun(RunId),
}

/// A stored message of the user, as the content of a new message that replaces it.
pub(super) struct ResentMessage {
    pub replaces: MessageId,
    pub content: Content,
    pub first_part: Option<PartId>,
}

/// Returns whether the request regenerates the answer to a message that the server does not have, such as after a network error. The
/// `message` is the last one, and `answer` is the id in the request.
pub(super) async fn regenerates_unknown_message(thread: &Thread, message: &UiMessage, answer: Option<&str>) -> HttpResult<bool> {
    let Some(name) = message.id.as_deref().filter(|name| !name.is_empty() && message.role == "user") else { return Ok(false) };
    if answer.is_some_and(|answer| answer != name) {
        return Ok(false);
    }
    Ok(thread.row_or_new().await?.is_none() || thread.find_message(name).await?.is_none())
}

/// Decides how the answer that the client calls `name` is regenerated; without a name, the newest one.
pub(super) async fn decide_regeneration(thread: &Thread, name: Option<&str>) -> HttpResult<Regeneration> {
    let row = thread.row().await?.ok_or(Error::NotFound("chat"))?;
    let newest = row.last_run.as_ref().map(|run| run.id.clone());
    let run = match name {
        None => newest.clone(),
        Some(name) => match AssistantMessageId::parse(name) {
            Some(answer) => Some(answer.run),
            None => thread.find_message(name).await?.map(|message| message.run_id).or_else(|| newest.clone()),
        },
    };
    let run = run.ok_or(Error::NotFound("message in this chat"))?;
    thread.check_run(&run).await?;
    let joined = name.and_then(AssistantMessageId::parse).and_then(|answer| answer.joined);
    if newest.as_ref() == Some(&run) && joined.is_none() {
        return Ok(Regeneration { run, method: RegenerationMethod::RetryRun });
    }
    // The later messages leave the conversation, so the user's message that the answer follows is sent again.
    let mut is_reached = false;
    let question = thread.find(|message| {
        is_reached |= message.run_id == run;
        let is_named = joined.as_ref().is_none_or(|joined| *joined == message.id);
        is_reached && is_named && message.role == Role::User && !message.internal
    });
    let question = question.await?;
    let method = match question {
        Some(question) => RegenerationMethod::ResendMessage(ResentMessage {
            content: Content::Parts(question.parts.iter().filter_map(new_part).collect()),
            first_part: question.parts.first().map(|part| part.id().clone()),
            replaces: question.id,
        }),
        None => RegenerationMethod::FollowRun(row.active_run_id.ok_or(Error::NotFound("message in this chat"))?),
    };
    Ok(Regeneration { run, method })
}

/// Returns the message that a submitted message replaces, with all messages after it: the user's message of the same `name`, if the
/// client names it as `replaced`.
pub(super) async fn edited_message(thread: &Thread, name: Option<&str>, replaced: Option<&str>) -> HttpResult<Option<Message>> {
    match name.filter(|name| replaced == Some(*name)) {
        Some(name) => Ok(thread.find_message(name).await?.filter(|found| found.role == Role::User)),
        None => Ok(None),
    }
}

/// Returns whether a stored message has the same text as this content and, for a list of parts, the same number of parts.
pub(super) fn has_content(message: &Message, content: &Content) -> bool {
    match content {
        Content::Text(text) => message.text() == *text,
        Content::Parts(parts) => {
            let texts = parts.iter().filter_map(|part| match part {
                NewPart::Text { text } => Some(text.as_str()),
                NewPart::Image { .. } | NewPart::File { .. } => None,
            });
            parts.len() == message.parts.len() && message.text() == texts.collect::<String>()
        }
    }
}

/// Returns a part of a stored message as a part of a new one.
fn new_part(part: &Part) -> Option<NewPart> {
    match part {
        Part::Text(part) => Some(NewPart::Text { text: part.text.clone() }),
        Part::Image(file) | Part::File(file) => {
            let file_id: Option<FileId> = file.file_id.as_deref().and_then(|id| id.parse().ok());
            let url = file.url.clone().filter(|_| file_id.is_none());
            let (media_type, name) = (Some(file.media_type.clone()), file.name.clone());
            Some(match part {
                Part::Image(_) => NewPart::Image { media_type, url, file_id, name },
                _ => NewPart::File { media_type, url, file_id, name },
            })
        }
        Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) | Part::Source(_) => None,
    }
}
