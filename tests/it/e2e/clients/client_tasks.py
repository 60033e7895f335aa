"""The tasks that each client package plays against a Capstan server through an adapter of its own.

An adapter is made with the URL of the API, the name of a model, and `chat` or `responses`. It has:

- `ask(text, stream)`: returns the answer, its usage as [input, output], and the calls of server tools as [name, arguments, output]
- `loop(text, stream)`: executes calls of `look` until the model answers; returns the calls, the answer, and the answer to `AGAIN`
- `doors()`: returns doors as structured output, one for each form that the package knows

Usage: NAME_client.py URL MODEL... Prints one line of JSON: for each model, the findings for each API.
"""

import json
import sys

from pydantic import BaseModel


class Door(BaseModel):
    """A door."""

    color: str
    height: int


DOOR = '{"color": "red", "height": 2}'
LOOP = '[[id:loop]][[call:look {"at":"x"}]][[call:look {"at":"y"}]][[next]][[call:look {"at":"z"}]][[next]][[say:three doors]]'
AGAIN = "[[id:again]][[say:again]]"


def look(at: str) -> str:
    """Looks at a place."""
    return "a door at " + at


def say_door():
    return f"[[id:door]][[say:{DOOR}]]"


def call_door(name):
    return f"[[id:door]][[call:{name} {DOOR}]]"


def refusal(adapter):
    try:
        adapter.ask("hi", False)
    except Exception as error:
        return [error.status_code, "nobody" in str(error)]


def findings(adapter, url, model):
    found = {}
    for api in ["chat", "responses"]:
        # A failure shows what was played.
        print(model, api, file=sys.stderr)
        client = adapter(url + "/v1", model, api)
        append = '[[id:%s]][[say:before]][[call:ledger__append {"text":"%s"}]][[next]][[say:after]]'
        tasks = {}
        for way in ["plain", "stream"]:
            is_stream = way == "stream"
            answer, usage, _ = client.ask("[[id:ask]][[reason:2,0]][[text:2,0]]", is_stream)
            name = f"{api}-{way}"
            server = client.ask(append % (name, name), is_stream) if model == "default" else None
            tasks[way] = {
                "words": len(answer.split()),
                "usage": usage,
                "loop": client.loop(LOOP, is_stream),
                "server": server and [server[0].split(), server[2]],
            }
        tasks["doors"] = [door.model_dump() for door in client.doors()]
        tasks["refused"] = refusal(adapter(url + "/v1", "nobody", api))
        found[api] = tasks
    return found


def play(adapter):
    url, *models = sys.argv[1:]
    print(json.dumps({model: findings(adapter, url, model) for model in models}))
