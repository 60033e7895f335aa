//! Examples of the schemas that a first request uses.

use serde_json::{Value, json};

const CONVERSATION: &str = "conv_01980000000070008000000000000001";
const RUN: &str = "run_01980000000070008000000000000002";
const START: &str = "2026-01-31T12:00:00.000Z";
const END: &str = "2026-01-31T12:00:02.500Z";

pub(super) fn all() -> [(&'static str, Value); 7] {
    let usage = json!({
        "input_tokens": 412, "output_tokens": 9, "cached_input_tokens": 0, "reasoning_tokens": 0, "model_calls": 1,
    });
    let message = json!({
        "id": "msg_01980000000070008000000000000003",
        "conversation_id": CONVERSATION,
        "run_id": RUN,
        "role": "user",
        "status": "complete",
        "parts": [{ "type": "text", "id": "part_01980000000070008000000000000004", "text": "What is the capital of France?" }],
        "created_at": START,
    });
    [
        ("StartRunBody", json!({ "input": "What is the capital of France?" })),
        ("SendMessageBody", json!({ "content": "And of Italy?" })),
        ("Message", message),
        (
            "Run",
            json!({
                "id": RUN, "conversation_id": CONVERSATION, "status": "completed", "agent": "default", "agent_version": 1,
                "model": "openai/gpt-5", "attempt": 1, "finish_reason": "stop", "usage": usage,
                "created_at": START, "started_at": START, "finished_at": END,
            }),
        ),
        (
            "Conversation",
            json!({
                "id": CONVERSATION, "title": "The capital of France", "status": "idle", "pinned": false, "tags": [],
                "last_seq": 17, "created_at": START, "updated_at": END,
            }),
        ),
        (
            "Event",
            json!({
                "seq": 6, "type": "part.delta", "conversation_id": CONVERSATION, "run_id": RUN, "attempt": 1, "at": START,
                "data": { "part_id": "part_01980000000070008000000000000005", "delta": "Paris" },
            }),
        ),
        (
            "ProblemBody",
            json!({
                "type": "/docs/errors/not_found", "title": "There is no such thing", "status": 404, "detail": "there is no such run",
                "code": "not_found", "request_id": "req_01980000000070008000000000000006", "retryable": false,
            }),
        ),
    ]
}
