"""Follows a Capstan server at the default limits of the package `websockets`, or with a plain reader of SSE.

Usage: follow.py ws|sse URL run INPUT | conversation ID. Prints one line of JSON: what came, and the largest frame in bytes. A connection
that is closed ends the program with an error: it never connects again.
"""
import json
import sys
import urllib.parse
import urllib.request

from websockets.sync.client import connect

wire, base, task, subject = sys.argv[1:5]


def get(path):
    with urllib.request.urlopen(base + path) as answer:
        return json.load(answer)


class Socket:
    def __init__(self):
        self.largest = 0
        self.socket = connect(base.replace("http", "ws", 1) + "/api/v1/ws", subprotocols=["capstan.v1"])

    def frames(self):
        for text in self.socket:
            self.largest = max(self.largest, len(text.encode()))
            yield json.loads(text)

    def request(self, method, params):
        self.socket.send(json.dumps({"id": 1, "method": method, "params": params}))
        yield from self.frames()

    def run(self, text):
        return self.request("run.start", {"input": text})

    def conversation(self, conversation, **cursor):
        return self.request("subscribe", {"conversation_id": conversation, **cursor})


class Sse:
    def __init__(self):
        self.largest = 0

    def stream(self, path, body=None):
        headers = {"accept": "text/event-stream", "content-type": "application/json"}
        request = urllib.request.Request(base + path, data=body and json.dumps(body).encode(), headers=headers)
        block = []
        for line in urllib.request.urlopen(request):
            block.append(line)
            if line == b"\n":
                self.largest = max(self.largest, sum(map(len, block)))
                data = [field[6:] for field in block if field.startswith(b"data: ")]
                block = []
                if data:
                    yield json.loads(b"".join(data))

    def run(self, text):
        return self.stream("/api/v1/runs", {"input": text})

    def conversation(self, conversation, **cursor):
        return self.stream(f"/api/v1/conversations/{conversation}/events?{urllib.parse.urlencode(cursor)}")


def follow_run(client, text):
    kinds, images = [], []
    for event in client.run(text):
        kinds.append(event.get("type"))
        if event.get("type") == "tool.completed":
            images += [part for part in event["data"]["content"] if part["type"] == "image"]
        if event.get("type") == "stream.end":
            return {"kinds": kinds, "images": images}
        if event.get("type") == "tool.started":
            assert "shortened" not in event, event


def said(message):
    return [message["id"], len(message["parts"][0]["text"])]


def follow_conversation(client, conversation):
    snapshot = next(event for event in client.conversation(conversation) if event.get("type") == "stream.snapshot")["data"]
    messages, before, pages = snapshot["messages"], snapshot["before"], 0
    while before is not None:
        page = get(f"/api/v1/conversations/{conversation}/messages?limit=100&before={before}")
        messages, before, pages = page["data"] + messages, page["next_cursor"], pages + 1
    logged, shortened = [], 0
    for event in client.conversation(conversation, after=0):
        if event.get("seq") is None:
            continue
        if "shortened" in event:
            shortened += 1
            [whole] = get(event["shortened"]["url"])["data"]
            assert (whole["seq"], whole["type"]) == (event["seq"], event["type"])
            part, short = whole["data"]["message"]["parts"][0], event["data"]["message"]["parts"][0]
            assert part["text"].startswith(short["text"]) and part["id"] == short["id"]
            event = whole
        if event["type"] == "message.created":
            logged.append(said(event["data"]["message"]))
        if event["seq"] == snapshot["head"]:
            break
    return {"shown": len(snapshot["messages"]), "pages": pages, "shortened": shortened, "paged": list(map(said, messages)), "logged": logged}


client = {"ws": Socket, "sse": Sse}[wire]()
found = {"run": follow_run, "conversation": follow_conversation}[task](client, subject)
print(json.dumps({**found, "largest": client.largest}))
