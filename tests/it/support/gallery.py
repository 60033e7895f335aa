#!/usr/bin/env python3
"""An MCP server over stdio with one tool: it answers with the JSON of a file in the folder GALLERY. Standard library only."""
import json
import os
import sys

SHOW = {
    "name": "show",
    "description": "Shows what is there.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}


def result(request):
    method = request["method"]
    if method == "initialize":
        version = request["params"]["protocolVersion"]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "gallery", "version": "1"}}
    if method == "tools/list":
        return {"tools": [SHOW]}
    if method == "tools/call":
        with open(os.path.join(os.environ["GALLERY"], request["params"]["arguments"]["text"])) as file:
            return json.load(file)
    return {} if method == "ping" else None


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        found = result(request)
        answer = {"error": {"code": -32601, "message": "there is no such method"}} if found is None else {"result": found}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
