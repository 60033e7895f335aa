//! Errors of use cases, and the problems that clients see.

use crate::domain::ids::RunId;
use crate::domain::model::ModelError;
use crate::domain::problem::{FieldError, ProblemBody, ProblemCode};
use crate::store::StoreError;
use crate::support::seal::SealError;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `detail` names the thing, the reason and the way out.
    #[error("{detail}")]
    Invalid { detail: String, errors: Vec<FieldError> },
    #[error("{0}")]
    InvalidCursor(String),
    /// There is no such thing, or it belongs to another owner: the two look the same.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    #[error("run {0} is active in this conversation; wait for it or cancel it, or send the message with another on_busy")]
    RunActive(RunId),
    #[error("{0}")]
    Conflict(String),
    #[error("the events after {after} are not available: the log holds {oldest} to {head}")]
    CursorGone { after: i64, oldest: i64, head: i64 },
    #[error("this Idempotency-Key was used with another request; use a new key")]
    IdempotencyMismatch,
    /// A file is not accepted, or a message cannot have it.
    #[error("{detail}")]
    UnusableFile { detail: String, errors: Vec<FieldError> },
    #[error("the file has more than {0} bytes, which is the most that is accepted")]
    FileTooLarge(usize),
    #[error("too many files are being uploaded at this moment; try again in a few seconds")]
    TooManyUploads,
    #[error("{0} runs are under way already; wait for one to end")]
    TooManyRuns(u32),
    #[error(
        "{0} logins at MCP servers were begun within 10 minutes, which is the most (limits.max_mcp_logins_per_owner); try again later"
    )]
    TooManyLogins(u32),
    #[error("there are {0} conversations that are not archived already, which is the most; archive or delete one")]
    TooManyConversations(u32),
    #[error("no configured provider serves the model {0:?}; write it as provider/name")]
    UnknownModel(String),
    #[error("no model was named and there is no default one: {0}")]
    NoModel(String),
    #[error("the operating system gives no random bytes")]
    NoRandomness(#[source] getrandom::Error),
    #[error("the process that reads files cannot be started")]
    NoReader(#[source] std::io::Error),
    /// The principal may see it, but not change it.
    #[error("{0}")]
    Forbidden(&'static str),
    /// The agent is for groups that the principal is in none of. The groups are not named: that is for their members.
    #[error("the agent {0:?} is for members of some groups only; ask an administrator to be put into one of them")]
    NotInGroups(String),
    /// It has none of the versions that the request names.
    #[error("it has been changed since it was read; read it again and decide anew")]
    Stale,
    #[error(transparent)]
    Provider(ModelError),
    #[error(transparent)]
    Sealing(SealError),
    #[error("the server is ending; try again in a few seconds")]
    Ending,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Error {
    pub fn field(pointer: &str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        let place = if pointer.is_empty() { "the body" } else { pointer };
        Self::Invalid { detail: format!("{place}: {detail}"), errors: vec![FieldError { pointer: pointer.to_owned(), detail }] }
    }

    pub fn file(pointer: &str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self::UnusableFile {
            detail: format!("{pointer}: {detail}"),
            errors: vec![FieldError { pointer: pointer.to_owned(), detail }],
        }
    }

    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::Conflict(detail.into())
    }

    /// A fault of a request that is in none of its fields, but in its query or its headers.
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
            Self::CursorGone { .. } => ProblemCode::CursorGone,
            Self::IdempotencyMismatch => ProblemCode::IdempotencyMismatch,
            Self::UnusableFile { .. } => ProblemCode::UnusableFile,
            Self::FileTooLarge(_) => ProblemCode::PayloadTooLarge,
            Self::TooManyRuns(_) | Self::TooManyUploads | Self::TooManyLogins(_) => ProblemCode::TooManyRequests,
            Self::UnknownModel(_) | Self::NoModel(_) => ProblemCode::UnknownModel,
            Self::Forbidden(_) | Self::NotInGroups(_) => ProblemCode::Forbidden,
            Self::Stale => ProblemCode::PreconditionFailed,
            Self::Provider(error) => error.kind.into(),
            Self::Sealing(SealError::UnknownKey { .. } | SealError::Damaged { .. }) => ProblemCode::Conflict,
            Self::Sealing(SealError::NoKey(_) | SealError::File { .. } | SealError::NoRandomness(_)) => ProblemCode::Internal,
            Self::Ending => ProblemCode::Unavailable,
            Self::Store(error) if error.is_transient() => ProblemCode::Unavailable,
            Self::Store(_) | Self::NoRandomness(_) | Self::NoReader(_) => ProblemCode::Internal,
        }
    }

    /// Returns what clients see, without a request id. The cause of an internal failure is for the log only.
    pub fn problem(self) -> ProblemBody {
        let code = self.code();
        match (self, code) {
            (Self::Provider(error), _) => code.body(error.message),
            (Self::Sealing(_), ProblemCode::Conflict) => {
                code.body("its key cannot be opened with the master keys of this server; give the key anew")
            }
            (Self::Store(_), ProblemCode::Unavailable) => {
                code.body("the server cannot reach its database; try again in a few seconds")
            }
            (_, ProblemCode::Internal) => code.body("the server could not do this; its log has the cause under this request_id"),
            (Self::Invalid { detail, errors } | Self::UnusableFile { detail, errors }, _) => {
                ProblemBody { errors, ..code.body(detail) }
            }
            (other, _) => code.body(other.to_string()),
        }
    }
}
