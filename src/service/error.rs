//! Errors of use cases, and the problems that clients see.

use crate::domain::ids::{CallId, RunId};
use crate::domain::model::ModelError;
use crate::domain::problem::{FieldError, ProblemBody, ProblemCode};
use crate::store::StoreError;
use crate::support::encryption::EncryptionError;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `detail` names the thing, the reason and the way out.
    #[error("{detail}")]
    Invalid { detail: String, errors: Vec<FieldError> },
    #[error("{0}")]
    InvalidCursor(String),
    /// The resource does not exist, or belongs to another owner: clients cannot distinguish the two.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    #[error("run {0} is active in this conversation; wait for it or cancel it, or send the message with another on_busy")]
    RunActive(RunId),
    #[error("{0}")]
    Conflict(String),
    #[error("the call {0} has a result already; a call takes one result")]
    AlreadyAnswered(CallId),
    #[error("the events after {after} are not available: the log contains {oldest} to {head}")]
    CursorGone { after: i64, oldest: i64, head: i64 },
    #[error("this Idempotency-Key was used with another request; use a new key")]
    IdempotencyMismatch,
    /// A file is not accepted, or a message cannot refer to it.
    #[error("{detail}")]
    UnusableFile { detail: String, errors: Vec<FieldError> },
    #[error("the file is larger than the limit of {0} bytes")]
    FileTooLarge(usize),
    #[error("too many files are being uploaded; try again in a few seconds")]
    TooManyUploads,
    #[error("{0} runs are unfinished, which is the limit; wait for one to end")]
    TooManyRuns(u32),
    #[error("{0}")]
    BudgetSpent(String),
    #[error("calls under way have reserved the rest of the day's budget; try again in a few seconds")]
    BudgetReserved,
    #[error(
        "the day's budget of this server is in money, but the model {0:?} has no known prices; set them in the entry of its provider"
    )]
    UnpricedModel(String),
    #[error(
        "{0} logins at MCP servers were begun within 10 minutes, which is the limit (limits.max_mcp_logins_per_owner); try again later"
    )]
    TooManyLogins(u32),
    #[error("there are {0} conversations that are not archived, which is the limit; archive or delete one")]
    TooManyConversations(u32),
    #[error("no configured provider serves the model {0:?}; write it as provider/name")]
    UnknownModel(String),
    #[error("the request names no model, and there is no default model: {0}")]
    NoModel(String),
    #[error("the operating system provides no random bytes")]
    NoRandomness(#[source] getrandom::Error),
    #[error("the process that reads files cannot be started")]
    NoReader(#[source] std::io::Error),
    /// The principal may see the resource, but not change it.
    #[error("{0}")]
    Forbidden(&'static str),
    /// The agent is restricted to groups that the principal does not belong to. The error does not name the groups, because only
    /// their members may know them.
    #[error("the agent {0:?} is for members of some groups only; ask an administrator to be put into one of them")]
    NotInGroups(String),
    /// The resource has none of the versions that the request names.
    #[error("it has been changed since it was read; read it again and decide anew")]
    Stale,
    #[error(transparent)]
    Provider(ModelError),
    #[error(transparent)]
    Encryption(EncryptionError),
    #[error("the server is shutting down; try again in a few seconds")]
    Ending,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The first words of details that continue a sentence about their field. Any other detail is a sentence by itself.
const PREDICATES: [&str; 6] = ["is", "has", "must", "holds", "names", "stands"];

/// Returns the fault of a field as a sentence for people. Programs read the pointer in `errors`.
fn sentence(error: &FieldError) -> String {
    let (detail, field) = (&error.detail, error.path().replace("~1", "/").replace("~0", "~"));
    let is_predicate = detail.split(' ').next().is_some_and(|word| PREDICATES.contains(&word));
    match (is_predicate, field.as_str()) {
        (true, "") => format!("the body {detail}"),
        (true, field) => format!("`{field}` {detail}"),
        (false, "") => detail.clone(),
        (false, field) => format!("{detail} (in `{field}`)"),
    }
}

impl Error {
    pub fn field(pointer: &str, detail: impl Into<String>) -> Self {
        let error = FieldError { pointer: pointer.to_owned(), detail: detail.into() };
        Self::Invalid { detail: sentence(&error), errors: vec![error] }
    }

    pub fn file(pointer: &str, detail: impl Into<String>) -> Self {
        let error = FieldError { pointer: pointer.to_owned(), detail: detail.into() };
        Self::UnusableFile { detail: sentence(&error), errors: vec![error] }
    }

    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::Conflict(detail.into())
    }

    /// Creates an error for a query or header of a request, not for a field.
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::Invalid { detail: detail.into(), errors: Vec::new() }
    }

    pub fn code(&self) -> ProblemCode {
        match self {
            Self::Invalid { .. } => ProblemCode::InvalidRequest,
            Self::InvalidCursor(_) => ProblemCode::InvalidCursor,
            Self::NotFound(_) => ProblemCode::NotFound,
            Self::RunActive(_) => ProblemCode::RunActive,
            Self::Conflict(_) | Self::TooManyConversations(_) => ProblemCode::Conflict,
            Self::AlreadyAnswered(_) => ProblemCode::AlreadyAnswered,
            Self::CursorGone { .. } => ProblemCode::CursorGone,
            Self::IdempotencyMismatch => ProblemCode::IdempotencyMismatch,
            Self::UnusableFile { .. } => ProblemCode::UnusableFile,
            Self::FileTooLarge(_) => ProblemCode::PayloadTooLarge,
            Self::BudgetSpent(_) => ProblemCode::BudgetSpent,
            Self::UnpricedModel(_) => ProblemCode::UnpricedModel,
            Self::TooManyRuns(_) | Self::TooManyUploads | Self::TooManyLogins(_) | Self::BudgetReserved => {
                ProblemCode::TooManyRequests
            }
            Self::UnknownModel(_) | Self::NoModel(_) => ProblemCode::UnknownModel,
            Self::Forbidden(_) | Self::NotInGroups(_) => ProblemCode::Forbidden,
            Self::Stale => ProblemCode::PreconditionFailed,
            Self::Provider(error) => error.kind.into(),
            Self::Encryption(EncryptionError::UnknownKey { .. } | EncryptionError::Damaged { .. }) => ProblemCode::Conflict,
            Self::Encryption(EncryptionError::NoKey(_) | EncryptionError::File { .. } | EncryptionError::NoRandomness(_)) => {
                ProblemCode::Internal
            }
            Self::Ending => ProblemCode::Unavailable,
            Self::Store(error) if error.is_transient() => ProblemCode::Unavailable,
            Self::Store(_) | Self::NoRandomness(_) | Self::NoReader(_) => ProblemCode::Internal,
        }
    }

    /// Returns the problem for clients, without a request id. Only the log contains the cause of an internal failure.
    pub fn problem(self) -> ProblemBody {
        let code = self.code();
        match (self, code) {
            (Self::Provider(error), _) => code.body(error.message),
            (Self::Encryption(_), ProblemCode::Conflict) => {
                code.body("the server cannot decrypt the provider's key with its master keys; enter the key again")
            }
            (Self::Store(_), ProblemCode::Unavailable) => {
                code.body("the server cannot reach its database; try again in a few seconds")
            }
            (_, ProblemCode::Internal) => code.body("internal error; the server's log contains the cause under this request_id"),
            (Self::Invalid { detail, errors } | Self::UnusableFile { detail, errors }, _) => {
                ProblemBody { errors, ..code.body(detail) }
            }
            (other, _) => code.body(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("/input", "has 9 characters; at most 8 are accepted", "`input` has 9 characters; at most 8 are accepted")]
    #[case("/messages/0/parts/2/type", "is unknown", "`messages[0].parts[2].type` is unknown")]
    #[case("/agent", "there is no agent \"x\"", "there is no agent \"x\" (in `agent`)")]
    #[case("", "must be a JSON object", "the body must be a JSON object")]
    #[case("", "missing field `input`", "missing field `input`")]
    #[case("/a~1b", "is wrong", "`a/b` is wrong")]
    fn field_error_begins_with_a_sentence(#[case] pointer: &str, #[case] detail: &str, #[case] sentence: &str) {
        let problem = Error::field(pointer, detail).problem();
        assert_eq!(problem.detail, sentence);
        assert_eq!((problem.errors[0].pointer.as_str(), problem.errors[0].detail.as_str()), (pointer, detail));
    }
}
