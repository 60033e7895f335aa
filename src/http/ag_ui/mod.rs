//! AG-UI, in its releases 0.0.59 and 1.0, and the runtime routes of CopilotKit.
//!
//! A client names threads and runs. A run of the log that waits for answers is several runs of AG-UI: each ends with what it waits
//! for, and the next one brings the answers.

mod copilotkit;
mod messages;
mod request;
mod routes;
#[cfg(test)]
mod tests;
mod translator;

use crate::http::api_router::ApiRouter;

pub(super) fn routes() -> ApiRouter {
    routes::routes().merge(copilotkit::routes())
}
