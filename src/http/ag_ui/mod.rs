//! AG-UI, in its releases 0.0.59 and 1.0, and the runtime routes of CopilotKit.
//!
//! The client chooses the names of threads and runs. A Capstan run that waits for answers appears as several AG-UI runs: each ends
//! with its open interrupts or client tool calls, and the input of the next one contains the answers.

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
