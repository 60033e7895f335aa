"""Plays litellm as a client against a Capstan server. See client_tasks.py."""

import json
import os

# Otherwise it would download a list of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from client_tasks import AGAIN, Door, call_door, look, play, say_door

# It prints advice to the standard output.
litellm.suppress_debug_info = True
# It streams responses of registered models only, and cuts those of others itself.
for name in ["default", "openai/mock"]:
    litellm.register_model({name: {"litellm_provider": "openai", "mode": "chat", "supports_native_streaming": True}})


def tool(name, parameters, api):
    function = {"name": name, "parameters": parameters}
    return {"type": "function", **function} if api == "responses" else {"type": "function", "function": function}


LOOK = {"type": "object", "properties": {"at": {"type": "string"}}}


class LiteLlm:
    def __init__(self, url, model, api):
        self.api = api
        self.options = {"model": f"openai/{model}", "api_base": url, "api_key": "any", "num_retries": 0, "timeout": 60}

    def chat(self, messages, stream=False, **fields):
        if stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        answer = litellm.completion(messages=messages, **self.options, **fields)
        return litellm.stream_chunk_builder(list(answer), messages=messages) if stream else answer

    def respond(self, given, stream=False, **fields):
        answer = litellm.responses(input=given, stream=stream, **self.options, **fields)
        return list(answer)[-1].response if stream else answer

    def ask(self, text, stream):
        if self.api == "chat":
            answer = self.chat([{"role": "user", "content": text}], stream)
            usage = [answer.usage.prompt_tokens, answer.usage.completion_tokens]
            return answer.choices[0].message.content, usage, []
        answer = self.respond(text, stream)
        texts = [part.text for item in answer.output if item.type == "message" for part in item.content]
        calls = [item for item in answer.output if item.type == "mcp_call"]
        calls = [[call.name, json.loads(call.arguments), call.output] for call in calls]
        return " ".join(texts), [answer.usage.input_tokens, answer.usage.output_tokens], calls

    def loop(self, text, stream):
        tools = [tool("look", LOOK, self.api)]
        return (self.chat_loop if self.api == "chat" else self.response_loop)(text, stream, tools)

    def chat_loop(self, text, stream, tools):
        messages, calls = [{"role": "user", "content": text}], []
        while True:
            message = self.chat(messages, stream, tools=tools).choices[0].message
            messages.append(message)
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                arguments = json.loads(call.function.arguments)
                calls.append([call.function.name, arguments])
                messages.append({"role": "tool", "tool_call_id": call.id, "content": look(**arguments)})
        again = self.chat([*messages, {"role": "user", "content": AGAIN}], stream, tools=tools)
        return [calls, message.content, again.choices[0].message.content]

    def response_loop(self, text, stream, tools):
        answer, calls = self.respond(text, stream, tools=tools), []
        while wanted := [item for item in answer.output if item.type == "function_call"]:
            arguments = [json.loads(call.arguments) for call in wanted]
            calls += [[call.name, given] for call, given in zip(wanted, arguments)]
            outputs = [
                {"type": "function_call_output", "call_id": call.call_id, "output": look(**given)}
                for call, given in zip(wanted, arguments)
            ]
            answer = self.respond(outputs, stream, tools=tools, previous_response_id=answer.id)
        again = self.respond(AGAIN, stream, previous_response_id=answer.id)
        return [calls, answer.output[0].content[0].text, again.output[0].content[0].text]

    def doors(self):
        tools = [tool("Door", Door.model_json_schema(), self.api)]
        if self.api == "chat":
            said = self.chat([{"role": "user", "content": say_door()}], response_format=Door).choices[0].message.content
            choice = {"type": "function", "function": {"name": "Door"}}
            called = self.chat([{"role": "user", "content": call_door("Door")}], tools=tools, tool_choice=choice)
            called = called.choices[0].message.tool_calls[0].function.arguments
        else:
            said = self.respond(say_door(), text_format=Door).output[0].content[0].text
            choice = {"type": "function", "name": "Door"}
            called = self.respond(call_door("Door"), tools=tools, tool_choice=choice).output[0].arguments
        return [Door.model_validate_json(text) for text in [said, called]]


play(LiteLlm)
