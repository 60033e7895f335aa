#!/usr/bin/env python3
"""An MCP server over stdio whose tools leave a trace outside the server under test.

Each execution is one JSON line in the file named by LEDGER_FILE, written and synced before the answer is sent: what is in
the file has happened, whatever anybody's database says. Standard library only.
"""
import json
import os
import sys
import threading
import time

LEDGER = os.environ["LEDGER_FILE"]
OUT = threading.Lock()


def schema(properties, required):
    return {"type": "object", "properties": properties, "required": required}


TEXT = {"type": "string"}
TOOLS = [
    {"name": "append", "description": "Appends a line. Not safe to repeat.", "inputSchema": schema({"text": TEXT}, ["text"])},
    {
        "name": "append_keyed",
        "description": "Appends a line under a key.",
        "inputSchema": schema({"text": TEXT, "key": TEXT}, ["text"]),
    },
    {
        "name": "slow_append",
        "description": "Appends a line, then takes its time to answer.",
        "inputSchema": schema({"text": TEXT, "ms": {"type": "integer"}}, ["text", "ms"]),
    },
    {
        "name": "pay",
        "description": os.environ.get("LEDGER_PAY", "Appends a line, and can be asked about it."),
        "inputSchema": schema({"text": TEXT}, ["text"]),
    },
    {
        "name": "paid",
        "description": "Says whether a call of pay took effect.",
        "inputSchema": schema({"key": TEXT, "tool": TEXT, "arguments": {"type": "object"}}, ["key", "tool", "arguments"]),
        "annotations": {"readOnlyHint": True},
    },
    {"name": "append_meta", "description": "Appends a line under a key beside it.", "inputSchema": schema({"text": TEXT}, ["text"])},
    {
        "name": "lookup",
        "description": "Reads only.",
        "inputSchema": schema({"text": TEXT}, []),
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": "destroy",
        "description": "Appends a line, as if it destroyed something.",
        "inputSchema": schema({"text": TEXT}, ["text"]),
        "annotations": {"destructiveHint": True},
    },
    {"name": "fail", "description": "Always reports an error.", "inputSchema": schema({"text": TEXT}, ["text"])},
    {"name": "environment", "description": "Names of the variables it inherited.", "inputSchema": schema({}, [])},
]


def record(tool, arguments, meta, phase):
    entry = {"tool": tool, "arguments": arguments, "meta": meta, "phase": phase, "pid": os.getpid(), "at": time.time()}
    line = json.dumps(entry)
    descriptor = os.open(LEDGER, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, (line + "\n").encode())
    os.fsync(descriptor)
    os.close(descriptor)


def send(message):
    with OUT:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def paid(question):
    """What the ledger says about a call of pay. What was paid says how well it can be said."""
    text = question["arguments"]["text"]
    if text == "hang":
        time.sleep(60)
    with open(LEDGER) as file:
        entries = [json.loads(line) for line in file]
    happened = any(
        entry["tool"] == question["tool"] and entry["meta"].get("capstan/key") == question["key"] for entry in entries
    )
    said = {"happened": "perhaps" if text == "unclear" else happened, "result": "paid " + text}
    return {"content": [], "structuredContent": said, "isError": text == "fail"}


def call(request_id, params):
    tool, arguments = params.get("name"), params.get("arguments") or {}
    if tool not in [known["name"] for known in TOOLS]:
        send({"jsonrpc": "2.0", "id": request_id, "error": {"code": -32602, "message": "unknown tool"}})
        return
    record(tool, arguments, params.get("_meta") or {}, "done")
    if tool == "slow_append":
        time.sleep(arguments["ms"] / 1000)
    text = "recorded " + str(arguments.get("text", ""))
    if tool == "environment":
        text = json.dumps(sorted(os.environ))
    result = {"content": [{"type": "text", "text": text}], "isError": tool == "fail"}
    if tool == "paid":
        result = paid(arguments)
    send({"jsonrpc": "2.0", "id": request_id, "result": result})


def main():
    for line in sys.stdin:
        message = json.loads(line)
        method, request_id = message.get("method"), message.get("id")
        if request_id is None or method is None:
            continue
        if method == "initialize":
            version = message.get("params", {}).get("protocolVersion", "2025-06-18")
            result = {
                "protocolVersion": version,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "ledger", "version": "1.0.0"},
            }
            send({"jsonrpc": "2.0", "id": request_id, "result": result})
        elif method == "tools/list":
            send({"jsonrpc": "2.0", "id": request_id, "result": {"tools": TOOLS}})
        elif method == "tools/call":
            threading.Thread(target=call, args=(request_id, message["params"]), daemon=True).start()
        elif method == "ping":
            send({"jsonrpc": "2.0", "id": request_id, "result": {}})
        else:
            send({"jsonrpc": "2.0", "id": request_id, "error": {"code": -32601, "message": "no such method"}})


main()
