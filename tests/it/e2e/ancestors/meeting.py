#!/usr/bin/env python3
"""An MCP server over stdio whose one tool answers when as many of its calls are under way as the argument of the program says.

Calls that are made one after the other never meet, and fail. Standard library only.
"""
import json
import sys
import threading

PATIENCE_S = 20
MEETING = threading.Barrier(int(sys.argv[1]))
OUT = threading.Lock()
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOL = {"name": "meet", "description": "Waits for the others.", "inputSchema": SCHEMA}


def send(message):
    with OUT:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def call(request_id, params):
    try:
        MEETING.wait(PATIENCE_S)
        text, has_failed = f"met {params['arguments']['n']}", False
    except threading.BrokenBarrierError:
        text, has_failed = "not all have come", True
    send({"id": request_id, "result": {"content": [{"type": "text", "text": text}], "isError": has_failed}})


def main():
    for line in sys.stdin:
        message = json.loads(line)
        method, request_id = message.get("method"), message.get("id")
        if request_id is None or method is None:
            continue
        if method == "initialize":
            version = message.get("params", {}).get("protocolVersion", "2025-06-18")
            server = {"name": "meeting", "version": "1.0.0"}
            send({"id": request_id, "result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}})
        elif method == "tools/list":
            send({"id": request_id, "result": {"tools": [TOOL]}})
        elif method == "tools/call":
            threading.Thread(target=call, args=(request_id, message["params"]), daemon=True).start()
        elif method == "ping":
            send({"id": request_id, "result": {}})
        else:
            send({"id": request_id, "error": {"code": -32601, "message": "no such method"}})


main()
