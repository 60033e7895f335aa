//! `/mcp`: the agents of the caller as tools of an MCP server, over Streamable HTTP.
//!
//! The official SDK implements the protocol. This module owns the tools, their results, and the questions that a client asks its
//! user. Its only state is the sessions of clients that support elicitation: runs and their questions are in the log.

mod calls;
mod endpoint;
mod questions;
mod server;

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue};
use rmcp::model::ErrorCode;
use serde_json::json;

use crate::domain::problem::ProblemBody;
use crate::http::api_router::ApiRouter;
use crate::http::options::Protocol;

pub(in crate::http) const PROTOCOL: Protocol = Protocol { prefix: "/mcp", error: error_form };

pub(in crate::http) fn routes() -> ApiRouter {
    endpoint::routes()
}

/// Renders an error as a JSON-RPC error of no particular request.
fn error_form(problem: &ProblemBody) -> (HeaderMap, String) {
    let code = if problem.status < 500 { ErrorCode::INVALID_REQUEST } else { ErrorCode::INTERNAL_ERROR };
    let data = json!({ "code": problem.code, "request_id": problem.request_id, "retryable": problem.retryable });
    let error = json!({ "code": code.0, "message": problem.detail, "data": data });
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
    (headers, json!({ "jsonrpc": "2.0", "id": null, "error": error }).to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::domain::problem::ProblemCode;

    #[test]
    fn problem_becomes_json_rpc_error() {
        let (headers, text) = error_form(&ProblemCode::Forbidden.body("not from there"));
        let error: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&error["id"], &error["error"]["code"]), (&Value::Null, &json!(-32600)));
        assert_eq!((&error["error"]["message"], &error["error"]["data"]["code"]), (&json!("not from there"), &json!("forbidden")));
        assert_eq!(headers["content-type"], "application/json");
        let (_, text) = error_form(&ProblemCode::Internal.body("failed"));
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["error"]["code"], -32603);
    }
}
