"""Plays LangChain's `ChatOpenAI` against a Capstan server. See client_tasks.py."""

import json
import warnings

from client_tasks import AGAIN, Door, call_door, look, play, say_door
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

warnings.simplefilter("error")
LOOK = tool(look)


class LangChain:
    def __init__(self, url, model, api):
        kind = {"use_responses_api": True, "output_version": "responses/v1"} if api == "responses" else {"stream_usage": True}
        self.model = ChatOpenAI(base_url=url, api_key="any", model=model, max_retries=0, timeout=60, **kind)

    def answer(self, model, messages, stream):
        if not stream:
            return model.invoke(messages)
        whole = None
        for chunk in model.stream(messages):
            whole = chunk if whole is None else whole + chunk
        return whole

    def ask(self, text, stream):
        answer = self.answer(self.model, text, stream)
        usage = answer.usage_metadata
        blocks = answer.content if isinstance(answer.content, list) else [{"type": "text", "text": answer.content}]
        texts = [block["text"] for block in blocks if block["type"] == "text"]
        calls = [block for block in blocks if block["type"] == "mcp_call"]
        calls = [[call["name"], json.loads(call["arguments"]), call["output"]] for call in calls]
        return " ".join(texts), [usage["input_tokens"], usage["output_tokens"]], calls

    def loop(self, text, stream):
        model, messages, calls = self.model.bind_tools([LOOK]), [HumanMessage(text)], []
        while True:
            answer = self.answer(model, messages, stream)
            assert not answer.invalid_tool_calls, answer
            messages.append(answer)
            if not answer.tool_calls:
                break
            calls += [[call["name"], call["args"]] for call in answer.tool_calls]
            messages += [LOOK.invoke(call) for call in answer.tool_calls]
        again = self.answer(model, [*messages, HumanMessage(AGAIN)], stream)
        return [calls, answer.text, again.text]

    def doors(self):
        forms = {"json_schema": say_door(), "json_mode": say_door(), "function_calling": call_door("Door")}
        return [self.model.with_structured_output(Door, method=form).invoke(text) for form, text in forms.items()]


play(LangChain)
