//! What can go wrong in a use case.

use crate::domain::ids::RunId;
use crate::domain::model::ModelError;
use crate::domain::problem::{FieldError, ProblemBody, ProblemCode};
use crate::store::StoreError;
use crate::support::seal::SealError;

/// Result of a use case.
pub type Result<T> = std::result::Result<T, Error>;

/// A use case that was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is not of the documented shape.
    #[error("{detail}")]
    Invalid {
        /// The thing, the reason, the way out.
        detail: String,
        /// Where.
        errors: Vec<FieldError>,
    },
    /// Not a cursor of ours.
    #[error("{0}")]
    InvalidCursor(String),
    /// No such thing, or somebody else's: the two look the same.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// The conversation is busy and the request said `reject`.
    #[error("run {0} is active in this conversation; wait for it or cancel it, or send the message with another on_busy")]
    RunActive(RunId),
    /// The state does not allow it.
    #[error("{0}")]
    Conflict(String),
    /// The cursor is not within the log.
    #[error("the events after {after} are not available: the log holds {oldest} to {head}")]
    CursorGone {
        /// The cursor.
        after: i64,
        /// The oldest event that is kept.
        oldest: i64,
        /// The newest event.
        head: i64,
    },
    /// The idempotency key was used with another request.
    #[error("this Idempotency-Key was used with another request; use a new key")]
    IdempotencyMismatch,
    /// A file that is not accepted, or that a message cannot have.
    #[error("{detail}")]
    UnusableFile {
        /// The thing, the reason, the way out.
        detail: String,
        /// Where in the request it is named.
        errors: Vec<FieldError>,
    },
    /// A file is too large.
    #[error("the file has more than {0} bytes, which is the most that is accepted")]
    FileTooLarge(usize),
    /// Too many uploads at a time.
    #[error("too many files are being uploaded at this moment; try again in a few seconds")]
    TooManyUploads,
    /// Too many runs at a time.
    #[error("{0} runs are under way already; wait for one to end")]
    TooManyRuns(u32),
    /// Too many logins were begun.
    #[error(
        "{0} logins at MCP servers were begun within 10 minutes, which is the most (limits.max_mcp_logins_per_owner); try again later"
    )]
    TooManyLogins(u32),
    /// Too many conversations.
    #[error("there are {0} conversations that are not archived already, which is the most; archive or delete one")]
    TooManyConversations(u32),
    /// Not a model that is configured.
    #[error("no configured provider serves the model {0:?}; write it as provider/name")]
    UnknownModel(String),
    /// No model was named, and none is there to be the default.
    #[error("no model was named and there is no default one: {0}")]
    NoModel(String),
    /// A secret could not be made.
    #[error("the operating system gives no random bytes")]
    NoRandomness(#[source] getrandom::Error),
    /// Nobody can tell what a file is.
    #[error("the process that reads files cannot be started")]
    NoReader(#[source] std::io::Error),
    /// It is to be seen by this principal, but not to be changed.
    #[error("{0}")]
    Forbidden(&'static str),
    /// The agent of that name is for groups that the principal is in none of. Which ones is not said: that is for those who are.
    #[error("the agent {0:?} is for members of some groups only; ask an administrator to be put into one of them")]
    NotInGroups(String),
    /// It is not of the version that the request is about.
    #[error("it has been changed since it was read; read it again and decide anew")]
    Stale,
    /// A provider failed that was asked for the request's sake.
    #[error(transparent)]
    Provider(ModelError),
    /// A secret cannot be sealed or opened.
    #[error(transparent)]
    Sealing(SealError),
    /// The process ends.
    #[error("the server is ending; try again in a few seconds")]
    Ending,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Error {
    /// An invalid field.
    #[must_use]
    pub fn field(pointer: &str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        let errors = vec![FieldError { pointer: pointer.to_owned(), detail: detail.clone() }];
        let place = if pointer.is_empty() { "the body" } else { pointer };
        Self::Invalid { detail: format!("{place}: {detail}"), errors }
    }

    /// A file that cannot be used, and where the request names it.
    #[must_use]
    pub fn file(pointer: &str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        let errors = vec![FieldError { pointer: pointer.to_owned(), detail: detail.clone() }];
        Self::UnusableFile { detail: format!("{pointer}: {detail}"), errors }
    }

    /// A fault of a request that is in none of its fields, but in its query or its headers.
    #[must_use]
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::Invalid { detail: detail.into(), errors: Vec::new() }
    }

    /// The code that clients see.
    #[must_use]
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

    /// What clients see, without a request id. A failure of ours says nothing about its cause: that is for the log.
    #[must_use]
    pub fn problem(self) -> ProblemBody {
        let code = self.code();
        match self {
            Self::Provider(error) => code.body(error.message),
            Self::Sealing(_) if code == ProblemCode::Conflict => {
                code.body("its key cannot be opened with the master keys of this server; give the key anew")
            }
            Self::Store(_) | Self::NoRandomness(_) | Self::NoReader(_) | Self::Sealing(_) => {
                code.body(if code == ProblemCode::Unavailable {
                    "the server cannot reach its database; try again in a few seconds"
                } else {
                    "the server could not do this; its log has the cause under this request_id"
                })
            }
            Self::Invalid { detail, errors } | Self::UnusableFile { detail, errors } => ProblemBody { errors, ..code.body(detail) },
            other @ (Self::InvalidCursor(_)
            | Self::NotFound(_)
            | Self::RunActive(_)
            | Self::Conflict(_)
            | Self::CursorGone { .. }
            | Self::IdempotencyMismatch
            | Self::FileTooLarge(_)
            | Self::TooManyUploads
            | Self::TooManyRuns(_)
            | Self::TooManyLogins(_)
            | Self::TooManyConversations(_)
            | Self::UnknownModel(_)
            | Self::NoModel(_)
            | Self::Forbidden(_)
            | Self::NotInGroups(_)
            | Self::Stale
            | Self::Ending) => code.body(other.to_string()),
        }
    }
}
