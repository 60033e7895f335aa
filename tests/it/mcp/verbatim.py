#!/usr/bin/env python3
"""An MCP server over stdio that records each line it is sent, and answers with JSON exactly as it stands here. Standard library only."""
import json
import sys

RECORD = sys.argv[1]
KEEP = (
    '{"type":"object","properties":{"z":{"type":"integer","maximum":20000000000000000002},"a":{"type":"number","minimum":1.10},'
    '"m":{"type":"number"},"b":{"type":"number"}},"required":["z"]}'
)
FORM = (
    '{"type":"object","properties":{"zip":{"type":"string"},"amount":{"type":"number","minimum":0.10,"maximum":1e3},'
    '"age":{"type":"integer"}},"required":["zip"]}'
)
TOOLS = (
    '{"tools":[{"name":"keep","description":"Keeps numbers.","inputSchema":' + KEEP + '},'
    '{"name":"ask","description":"Asks.","inputSchema":{"type":"object"}},'
    '{"name":"long","description":"Answers with a long number.","inputSchema":{"type":"object"}}]}'
)
KEPT = (
    '{"content":[{"type":"text","text":"kept","annotations":{"priority":0.9}}],'
    '"structuredContent":{"total":20000000000000000001,"each":1.10,"also":[0.1,1e-7]},"isError":false}'
)
LONG = '{"content":[],"structuredContent":{"n":' + "9" * 1001 + "}}"


def send(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def call(request_id, params):
    if params["name"] == "keep":
        token = json.dumps(params["_meta"]["progressToken"])
        for progress in ("0.50", "1E0"):
            report = '{"progressToken":' + token + ',"progress":' + progress + ',"total":1.50}'
            send('{"jsonrpc":"2.0","method":"notifications/progress","params":' + report + "}")
        return KEPT
    if params["name"] == "long":
        return LONG
    form = '{"message":"Fill it in.","requestedSchema":' + FORM + "}"
    send('{"jsonrpc":"2.0","id":"form","method":"elicitation/create","params":' + form + "}")
    with open(RECORD, "a") as record:
        record.write(sys.stdin.readline())
    return '{"content":[{"type":"text","text":"thanks"}]}'


for line in sys.stdin:
    message = json.loads(line)
    method, request_id = message.get("method"), json.dumps(message.get("id"))
    if request_id == "null":
        continue
    if method == "initialize":
        version = json.dumps(message["params"]["protocolVersion"])
        info = '"capabilities":{"tools":{}},"serverInfo":{"name":"verbatim","version":"1"}'
        result = '{"protocolVersion":' + version + "," + info + "}"
    elif method == "tools/list":
        result = TOOLS
    elif method == "tools/call":
        with open(RECORD, "a") as record:
            record.write(line)
        result = call(request_id, message["params"])
    else:
        result = "{}"
    send('{"jsonrpc":"2.0","id":' + request_id + ',"result":' + result + "}")
