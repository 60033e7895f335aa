"""Plays the official `mcp` package against the MCP server of Capstan.

Usage: mcp_client.py URL KEY MODE TASKS, where MODE is `legacy` (up to 2025-11-25) or a later protocol version, and TASKS is JSON: a list
of [TASK, [ARGUMENT...]]. Prints the findings of each task, as a JSON list.
"""

import asyncio
import json
import sys

import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

URL, KEY, MODE, TASKS = sys.argv[1:]
ARGUMENTS = []


def shown(result):
    return {
        "text": "".join(block.text for block in result.content),
        "error": bool(result.is_error),
        "facts": result.structured_content,
    }


async def answer(client):
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    progress = []

    async def notice(number, _total, message):
        progress.append([number, message])

    first = await client.call_tool("default", {"message": ARGUMENTS[0]}, progress_callback=notice)
    conversation = first.structured_content["conversation_id"]
    second = await client.call_tool("default", {"message": ARGUMENTS[1], "conversation_id": conversation})
    return {
        "version": client.protocol_version,
        "server": client.server_info.name if client.server_info else None,
        "tools": sorted(tools),
        "required": tools["default"].input_schema["required"],
        "first": shown(first),
        "second": shown(second),
        "progress": progress,
    }


async def long(client):
    handle = await client.call_tool("default", {"message": ARGUMENTS[0], "wait_seconds": 0})
    run = {"run_id": handle.structured_content["run_id"]}
    early = await client.call_tool("run_get", run)
    end = await client.call_tool("run_wait", run)
    return {"handle": shown(handle), "early": shown(early), "end": shown(end), "late": shown(await client.call_tool("run_get", run))}


async def cancel(client):
    handle = await client.call_tool("default", {"message": ARGUMENTS[0], "wait_seconds": 0})
    run = {"run_id": handle.structured_content["run_id"]}
    cancelled = await client.call_tool("run_cancel", run)
    return {"cancelled": shown(cancelled), "end": shown(await client.call_tool("run_wait", run))}


async def refused(client):
    """Calls each tool for runs with an id that the caller does not own."""
    found = {}
    for name in ["run_get", "run_wait", "run_cancel"]:
        found[name] = shown(await client.call_tool(name, {"run_id": ARGUMENTS[0]}))
    continued = {"message": "hello", "conversation_id": ARGUMENTS[1]}
    found["conversation"] = shown(await client.call_tool("default", continued))
    found["arguments"] = shown(await client.call_tool("run_get", {}))
    return found


async def call(client):
    return shown(await client.call_tool("default", {"message": ARGUMENTS[0]}))


asked = []


async def answers(_context, params):
    asked.append({"message": params.message, "fields": sorted(params.requested_schema["properties"])})
    content = json.loads(ARGUMENTS[1])
    return types.ElicitResult(action="accept", content=content) if content else types.ElicitResult(action="decline")


async def played(task):
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable_http_client(URL + "/mcp", http_client=http)
        can_ask = {"elicitation_callback": answers} if task == "ask" else {}
        async with Client(transport, mode=MODE, **can_ask) as client:
            if task == "ask":
                return {**await call(client), "asked": asked}
            return await {"answer": answer, "long": long, "cancel": cancel, "refused": refused, "call": call}[task](client)


found = []
for name, ARGUMENTS in json.loads(TASKS):
    # A failure shows the name of its task.
    print(name, file=sys.stderr)
    found.append(asyncio.run(played(name)))
print(json.dumps(found))
