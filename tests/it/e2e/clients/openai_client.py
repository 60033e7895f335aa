"""Plays the official `openai` package against a Capstan server, and checks each answer and event against the package's own types.

Usage: openai_client.py URL TASK [ARGUMENT...]. Prints one line of JSON: the findings of the task.
"""

import base64
import json
import sys
import time
import urllib.request

import openai
from openai import OpenAI
from openai._base_client import BasePage
from openai.types.responses import Response, ResponsesServerEvent, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

URL, TASK, *ARGUMENTS = sys.argv[1:]
MODEL = "openai/mock"
LOOK = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
# A field that popular gateways add, and fields of Open Responses: no type of the package has them.
KNOWN_EXTRAS = {"reasoning_content", "frequency_penalty", "presence_penalty", "store"}


def extras(value, path):
    """Returns the fields that the package's types do not know."""
    found = []
    if isinstance(value, BasePage):
        # The package leaves out some fields of lists.
        return extras(value.data, f"{path}.data")
    if isinstance(value, BaseModel):
        found += [f"{path}.{name}" for name in (value.model_extra or {}) if name not in KNOWN_EXTRAS]
        for name in type(value).model_fields:
            found += extras(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list):
        for item in value:
            found += extras(item, path + "[]")
    return found


def checked(value):
    unknown = extras(value, type(value).__name__)
    assert not unknown, unknown
    return value


class StrictClient(OpenAI):
    """Fails if a field of an answer or event is missing, has another type, or is unknown."""

    def _process_response_data(self, **arguments):
        return checked(super()._process_response_data(**arguments))


client = StrictClient(base_url=URL + "/v1", api_key="any", max_retries=0, timeout=60, _strict_response_validation=True)


def get(path):
    return urllib.request.urlopen(URL + path, timeout=60)


def frames(answer):
    for line in answer:
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            yield json.loads(line[6:])


def events(path):
    found = list(frames(get(path)))
    for event in found:
        checked(TypeAdapter(ResponseStreamEvent).validate_python(event))
    numbers = [event["sequence_number"] for event in found]
    assert all(one < other for one, other in zip(numbers, numbers[1:])), numbers
    return found


def code_of(send):
    try:
        send()
    except openai.APIStatusError as error:
        return [error.status_code, error.code]
    return None


def chat():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ARGUMENTS[0]}]
    plain = client.chat.completions.create(model="default", messages=messages)
    stream = client.chat.completions.create(model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    try:
        client.chat.completions.create(model="nobody", messages=messages)
    except openai.NotFoundError as error:
        refused = {"code": error.code, "param": error.param, "message": error.message, "id": error.request_id}
    return {
        "plain": plain.choices[0].message.content,
        "stream": text,
        "finish": [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1],
        "usage": chunks[-1].usage.total_tokens,
        "ids": len({chunk.id for chunk in chunks}),
        "refused": refused,
        "models": [model.id for model in client.models.list()],
        "one": client.models.retrieve("default").id,
        "no_model": code_of(lambda: client.models.retrieve("openai/nobody")),
        "of_provider": [client.models.retrieve(MODEL).id, json.load(get(f"/v1/models/{MODEL}"))["id"]],
    }


def chat_tools():
    tools = [{"type": "function", "function": LOOK}]
    messages = [{"role": "user", "content": ARGUMENTS[0]}]
    first = client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
    message = first.choices[0].message
    streamed = list(client.chat.completions.create(model=MODEL, messages=messages, tools=tools, stream=True))
    calls = [call for chunk in streamed for call in chunk.choices[0].delta.tool_calls or []]
    results = [{"role": "tool", "tool_call_id": call.id, "content": "a door"} for call in message.tool_calls]
    picture = "data:image/png;base64," + base64.b64encode(png()).decode()
    more = {"role": "user", "content": [{"type": "text", "text": "And this?"}, {"type": "image_url", "image_url": {"url": picture}}]}
    second = client.chat.completions.create(model=MODEL, messages=[*messages, message, *results], tools=tools)
    third = client.chat.completions.create(model=MODEL, messages=[*messages, message, *results, second.choices[0].message, more])
    return {
        "finish": first.choices[0].finish_reason,
        "calls": [[call.function.name, json.loads(call.function.arguments)] for call in message.tool_calls],
        "streamed": [[call.index, call.function.name] for call in calls],
        "answer": second.choices[0].message.content,
        "third": third.choices[0].message.content,
    }


def png():
    return base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )


def responses():
    first = client.responses.create(model=MODEL, input=ARGUMENTS[0], metadata={"a": "b"})
    live = list(client.responses.create(model=MODEL, input=ARGUMENTS[0], stream=True))
    identifier = live[0].response.id
    assert list(client.responses.retrieve(identifier, stream=True)) == live
    for at, event in enumerate(live):
        rest = client.responses.retrieve(identifier, stream=True, starting_after=event.sequence_number)
        assert list(rest) == live[at + 1 :], event
    with client.responses.stream(response_id=identifier, starting_after=live[3].sequence_number) as stream:
        helped = [event.type for event in stream]
        final = stream.get_final_response()
    follow = client.responses.create(model=MODEL, input=ARGUMENTS[1], previous_response_id=first.id, store=True)
    items = client.responses.input_items.list(follow.id)
    try:
        client.responses.create(model=MODEL, input="x", previous_response_id="resp_01980000000070008000000000000001")
    except openai.NotFoundError as error:
        missing = [error.param, error.message]
    hidden = client.responses.create(model=MODEL, input=ARGUMENTS[0], store=False)
    client.responses.delete(identifier)
    try:
        client.responses.retrieve(identifier)
        deleted = False
    except openai.NotFoundError:
        deleted = True
    return {
        "status": first.status,
        "metadata": first.metadata,
        "text": client.responses.retrieve(first.id).output_text,
        "types": [event.type for event in live],
        "helped": helped,
        "final": final.output_text,
        "follow": follow.output_text,
        "items": [item.content[0].text for item in items],
        "missing": missing,
        "hidden": hidden.output_text,
        "deleted": deleted,
    }


def response_tools():
    tools = [{"type": "function", "strict": False, **LOOK}]
    first = client.responses.create(model="default", input=ARGUMENTS[0], tools=tools)
    calls = [item for item in first.output if item.type == "function_call"]
    try:
        client.responses.create(model="default", input="well?", previous_response_id=first.id)
    except openai.BadRequestError as error:
        unanswered = error.param
    outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "a door"} for call in calls]
    second = client.responses.create(model="default", input=outputs, previous_response_id=first.id, tools=tools)
    for response in [first, second]:
        events(f"/v1/responses/{response.id}?stream=true")
        assert client.responses.retrieve(response.id) == response
    again = client.responses.create(model="default", input=outputs, previous_response_id=first.id)
    brought = client.responses.input_items.list(second.id).data
    return {
        "brought": [[item.type, item.call_id == calls[0].call_id, item.output] for item in brought],
        "first": [item.type for item in first.output],
        "calls": [[call.name, json.loads(call.arguments)] for call in calls],
        "unanswered": unanswered,
        "second": second.output_text,
        "previous": second.previous_response_id == first.id,
        "again": again.id == second.id and again.output_text == second.output_text,
    }


def response_socket():
    """Creates responses over one WebSocket: a stored one, a continued one, one that is not stored, and refused ones."""
    tools = [{"type": "function", "strict": False, **LOOK}]
    with client.responses.connect() as connection:

        def create(**fields):
            connection.response.create(**fields)
            found = []
            while not found or found[-1]["type"] not in ["response.completed", "error"]:
                found.append(json.loads(connection.recv_bytes()))
                checked(TypeAdapter(ResponsesServerEvent).validate_python(found[-1]))
            return found

        def refusal(**fields):
            (event,) = create(model=MODEL, input="x", **fields)
            return [event["status"], event["error"]["code"], event["error"]["param"], event.get("stream_id")]

        live = create(model=MODEL, input=ARGUMENTS[0])
        first = Response.model_validate(live[-1]["response"])
        assert live == events(f"/v1/responses/{first.id}?stream=true")
        follow = create(model=MODEL, input=ARGUMENTS[1], previous_response_id=first.id)
        asked = create(model="default", input=ARGUMENTS[2], tools=tools, store=False)[-1]["response"]
        calls = [item["call_id"] for item in asked["output"]]
        refused = [refusal(generate=False), refusal(stream_id="main", generate=False), refusal(previous_response_id=f"{first.id}_7")]
        connection.response.steer(input="faster", previous_response_id=asked["id"])
        steered = connection.recv()
        outputs = [{"type": "function_call_output", "call_id": call, "output": "a door"} for call in calls]
        answered = create(model="default", input=outputs, previous_response_id=asked["id"], tools=tools, store=False)
    return {
        "text": first.output_text,
        "follow": Response.model_validate(follow[-1]["response"]).output_text,
        "asked": [item["type"] for item in asked["output"]],
        "answered": Response.model_validate(answered[-1]["response"]).output_text,
        "refused": refused,
        "steered": steered.error.code,
    }


def refusal(send):
    try:
        send()
    except openai.APIStatusError as error:
        return [error.status_code, error.param, error.message]
    return None


def response_chain():
    tools = [{"type": "function", "strict": False, **LOOK}]
    create = lambda **fields: client.responses.create(model="default", tools=tools, **fields)
    first = create(input=ARGUMENTS[0])
    calls = [item.call_id for item in first.output if item.type == "function_call"]
    outputs = [{"type": "function_call_output", "call_id": call, "output": "a door"} for call in calls]
    found = {
        "calls": len(calls),
        "part": refusal(lambda: create(input=outputs[:1], previous_response_id=first.id)),
        "early": refusal(lambda: client.responses.retrieve(f"{first.id}_1")),
        "invented": refusal(lambda: create(input=outputs, previous_response_id=f"{first.id}_7")),
    }
    second = create(input=outputs, previous_response_id=first.id)
    found["stale"] = refusal(lambda: create(input="more", previous_response_id=first.id))
    found["unstored"] = [item.type for item in create(input=ARGUMENTS[1], store=False).output]
    found["background"] = refusal(lambda: create(input="x", store=False, background=True))
    found["metadata"] = refusal(lambda: create(input="x", metadata={"k" * 65: "v"}))
    found["instructions"] = refusal(lambda: create(input="x", instructions="i" * 100_001))
    return found | {"second": second.output_text}


def conversations():
    items = [
        {"type": "message", "role": "developer", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
    ]
    tools = [{"type": "function", "strict": False, **LOOK}]
    talk = client.conversations.create().id
    asked = client.responses.create(model="default", input=ARGUMENTS[2], conversation=talk, tools=tools)
    output = {"type": "function_call_output", "call_id": asked.output[-1].call_id, "output": "a door"}
    seen = client.responses.create(model="default", input=[output], conversation=talk, tools=tools)
    client.conversations.delete(talk)
    created = client.conversations.create(items=items, metadata={"a": "b"})
    identifier = created.id
    response = client.responses.create(model="default", input=ARGUMENTS[0], conversation=identifier)
    listed = client.conversations.items.list(identifier, order="asc").data
    one_by_one = [item.id for item in client.conversations.items.list(identifier, limit=1)]
    assert one_by_one == [item.id for item in reversed(listed)], one_by_one
    for item in listed:
        assert client.conversations.items.retrieve(item.id, conversation_id=identifier) == item
    added = [
        {"role": "user", "content": "three"},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "a door"},
        {"role": "assistant", "content": "four"},
    ]
    first = client.conversations.items.create(identifier, items=added).data
    data = "data:text/plain;base64," + base64.b64encode(b"notes").decode()
    parts = [{"type": "input_text", "text": "five"}, {"type": "input_file", "filename": "notes.txt", "file_data": data}]
    system = {"role": "system", "content": "Be kind."}
    last = client.conversations.items.create(identifier, items=[{"role": "user", "content": parts}, system]).data
    later = client.conversations.items.list(identifier, order="asc", after=listed[-1].id)
    later = [item.id for item in later]
    assert later == [item.id for item in [*first, *last]], later
    client.responses.create(model="default", input=ARGUMENTS[1], conversation=identifier)
    updated = client.conversations.update(identifier, metadata={"c": "d"})
    fork = urllib.request.Request(f"{URL}/api/v1/conversations/{identifier}/fork", b"{}", {"content-type": "application/json"})
    fork = json.load(urllib.request.urlopen(fork, timeout=60))
    assert "metadata" not in fork, fork
    found = {
        "continued": seen.output_text,
        "created": created.metadata,
        "updated": updated.metadata,
        "read": client.conversations.retrieve(identifier).metadata,
        "forked": client.conversations.retrieve(fork["id"]).metadata,
        "cleared": client.conversations.update(identifier, metadata=None).metadata,
        "types": [item.type for item in listed],
        "texts": [item.content[0].text for item in listed if item.type == "message"],
        "answer": response.output_text,
        "long": refusal(lambda: client.conversations.update(identifier, metadata={"k" * 65: "v"})),
        "robot": refusal(lambda: client.conversations.create(items=[{"role": "robot", "content": "x"}])),
        "after": refusal(lambda: client.conversations.items.list(identifier, after="msg_1")),
        "added": [item.content[0].text for item in last],
        "many": refusal(lambda: client.conversations.items.create(identifier, items=items * 7)),
        "foreign": refusal(lambda: client.conversations.items.create("conv_1", items=items)),
        "removed": refusal(lambda: client.conversations.items.delete(one_by_one[0], conversation_id=identifier)),
        "no_item": refusal(lambda: client.conversations.items.retrieve("msg_1", conversation_id=identifier)),
        "deleted": client.conversations.delete(identifier).deleted,
        "gone": refusal(lambda: client.conversations.retrieve(identifier)),
        "gone_items": refusal(lambda: client.conversations.items.list(identifier)),
    }
    empty = client.conversations.create()
    found["empty"] = [empty.metadata, len(client.conversations.items.list(empty.id).data)]
    client.conversations.delete(empty.id)
    # More messages than the server reads at a time.
    texts = [str(number) for number in range(120)]
    many = client.conversations.create(items=[{"role": "user", "content": text} for text in texts])
    for order in ["asc", "desc"]:
        read = [item.content[0].text for item in client.conversations.items.list(many.id, order=order, limit=7)]
        assert read == (texts if order == "asc" else texts[::-1]), read
    return found


def approval():
    first = client.responses.create(model="default", input=ARGUMENTS[0])
    request = next(item for item in first.output if item.type == "mcp_approval_request")
    answer = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    second = client.responses.create(model="default", input=[answer], previous_response_id=first.id)
    call = next(item for item in second.output if item.type == "mcp_call")
    events(f"/v1/responses/{second.id}?stream=true")
    brought = client.responses.input_items.list(second.id).data
    # Clients that keep the history themselves send it again, without the id of a response.
    question = {"role": "user", "content": ARGUMENTS[1]}
    asking = client.responses.create(model="default", input=[question])
    asked = [item.to_dict() for item in asking.output]
    answer = {"type": "mcp_approval_response", "approval_request_id": asking.output[-1].id, "approve": True}
    resent = client.responses.create(model="default", input=[question, *asked, answer])
    unknown = {**answer, "approval_request_id": "mcpr_01980000000070008000000000000001"}
    return {
        "brought": [[item.type, item.approve, item.approval_request_id == request.id] for item in brought],
        "resent": [resent.output_text, resent.id == f"{asking.id}_1"],
        "unknown": refusal(lambda: client.responses.create(model="default", input=[question, unknown]))[:2],
        "request": [request.server_label, request.name],
        "call": [call.server_label, call.name, call.status, call.approval_request_id == request.id],
        "text": second.output_text,
    }


def question():
    """Answers a question of the agent, which is a message."""
    first = client.responses.create(model="default", input=ARGUMENTS[0])
    events(f"/v1/responses/{first.id}?stream=true")
    output = {"type": "function_call_output", "call_id": "call_01980000000070008000000000000001", "output": "red"}
    again = {"input": "Red", "previous_response_id": first.id}
    found = {"refused": refusal(lambda: client.responses.create(model="default", input=[output], previous_response_id=first.id))[0]}
    second = client.responses.create(model="default", **again)
    events(f"/v1/responses/{second.id}?stream=true")
    # A client that keeps the history itself.
    asking = {"role": "user", "content": ARGUMENTS[0]}
    asked = [item.to_dict() for item in client.responses.create(model="default", input=[asking]).output]
    found["resent"] = client.responses.create(model="default", input=[asking, *asked, {"role": "user", "content": ARGUMENTS[3]}], store=False).output_text
    form = client.responses.create(model="default", input=ARGUMENTS[1])
    found["wrong"] = refusal(lambda: client.responses.create(model="default", input='{"day": "x"}', previous_response_id=form.id))[:2]
    filled = client.responses.create(model="default", input='{"day": 3}', previous_response_id=form.id)
    chat = client.chat.completions.create(model="default", messages=[{"role": "user", "content": ARGUMENTS[2]}]).choices[0]
    return found | {
        "first": [first.status, first.output_text],
        "second": [second.status, second.output_text, second.previous_response_id == first.id],
        "brought": [item.content[0].text for item in client.responses.input_items.list(second.id)],
        "filled": filled.output_text,
        "chat": [chat.finish_reason, chat.message.content],
    }


def begin():
    """Begins a background response, and leaves its stream after some events."""
    stream = client.responses.create(model=MODEL, input=ARGUMENTS[0], background=True, stream=True)
    seen = []
    for event in stream:
        seen.append([event.sequence_number, event.type])
        identifier = event.response.id if event.type == "response.created" else identifier
        if event.type == "response.output_text.delta":
            break
    return {"id": identifier, "seen": seen}


def resume():
    stream = client.responses.retrieve(ARGUMENTS[0], stream=True, starting_after=int(ARGUMENTS[1]))
    rest = [[event.sequence_number, event.type] for event in stream]
    whole = events(f"/v1/responses/{ARGUMENTS[0]}?stream=true")
    response = client.responses.retrieve(ARGUMENTS[0])
    return {
        "rest": rest,
        "whole": [[event["sequence_number"], event["type"]] for event in whole],
        "status": response.status,
        "text": response.output_text,
    }


def cancel():
    begun = client.responses.create(model=MODEL, input=ARGUMENTS[0], background=True)
    while client.responses.retrieve(begun.id).status == "queued":
        time.sleep(0.02)
    cancelled = client.responses.cancel(begun.id)
    return {"begun": begun.status, "cancelled": cancelled.status, "again": client.responses.cancel(begun.id).status}


def embeddings():
    # By default the package requests base64 and decodes it later, which its own strict validation refuses.
    usual = OpenAI(base_url=URL + "/v1", api_key="any", max_retries=0, timeout=60)
    found = usual.embeddings.create(model=ARGUMENTS[0], input=["an umbrella", "a letter"])
    numbers = client.embeddings.create(model=ARGUMENTS[0], input="a letter", encoding_format="float")
    long = "x" * 100
    # Base64 carries floats of 32 bits.
    vectors = [[round(number, 6) for number in entry.embedding] for entry in found.data]
    return {
        "vectors": vectors,
        "same": numbers.data[0].embedding == vectors[1],
        "unknown": refusal(lambda: client.embeddings.create(model="text-embedding-3-small", input="a")),
        "spent": refusal(lambda: client.embeddings.create(model=ARGUMENTS[0], input=long)),
    }


class Door(BaseModel):
    """A door."""

    color: str
    height: int


def forms():
    """Plays the forms of requests and answers that no other task has."""
    created = [client.files.create(file=(f"{at}.txt", f"file {at}".encode()), purpose="user_data") for at in range(5)]
    listed = list(client.files.list(limit=2))
    assert listed == created[::-1], listed
    assert client.files.wait_for_processing(created[0].id) == client.files.retrieve(created[0].id)
    assert list(client.files.list(limit=2, order="asc")) == created
    for_batch = client.files.create(file=("b.jsonl", b"{}"), purpose="batch")
    assert list(client.files.list(purpose="batch")) == [for_batch]
    assert list(client.files.list(purpose="user_data")) == listed and list(client.files.list(purpose="vision")) == []
    refused = [
        refusal(lambda: client.files.list(purpose="fun")),
        refusal(lambda: client.files.list(order="up")),
        refusal(lambda: client.files.create(file=("a.txt", b"a"), purpose="fun")),
    ]
    content = [
        {"type": "input_text", "text": "See."},
        {"type": "input_image", "image_url": "data:image/png;base64," + base64.b64encode(png()).decode(), "detail": "auto"},
        {"type": "input_file", "file_id": created[0].id},
        {"type": "input_file", "filename": "b.txt", "file_data": "data:text/plain;base64,aGVsbG8="},
    ]
    seen = client.responses.create(model="default", input=[{"role": "user", "content": content}], reasoning={"effort": "low"})
    said, failing = '[[say:{"color": "red", "height": 2}]]', "[[status:400]]"
    messages = [{"role": "user", "content": said}]
    failed = client.responses.create(model="default", input=failing)
    return {
        "refused": [problem[:2] for problem in refused],
        "content": client.files.content(created[1].id).text,
        "deleted": client.files.delete(created[1].id).deleted,
        "input": [part.type for item in client.responses.input_items.list(seen.id) for part in item.content],
        "chat": client.chat.completions.parse(model=MODEL, messages=messages, response_format=Door).choices[0].message.parsed.height,
        "response": client.responses.parse(model=MODEL, input=said, text_format=Door).output_parsed.height,
        "failed": [failed.status, failed.error.code],
        "events": [event.type for event in client.responses.create(model="default", input=failing, stream=True)],
    }


print(json.dumps(globals()[TASK]()))
