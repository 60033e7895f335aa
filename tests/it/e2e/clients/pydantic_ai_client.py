"""Plays pydantic-ai against a Capstan server. See client_tasks.py."""

import asyncio
import warnings

from client_tasks import AGAIN, Door, call_door, look, play, say_door
from pydantic_ai import Agent, NativeOutput, PromptedOutput
from pydantic_ai.messages import NativeToolCallPart, NativeToolReturnPart, ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

warnings.simplefilter("error")
# Connections stay open until the end.
warnings.simplefilter("ignore", ResourceWarning)
# One loop for all requests: they share connections.
LOOP = asyncio.new_event_loop()


class PydanticAi:
    def __init__(self, url, model, api):
        kind = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}[api]
        self.model = kind(model, provider=OpenAIProvider(base_url=url, api_key="any"))

    def run(self, agent, text, stream, history=None):
        async def run():
            if not stream:
                return await agent.run(text, message_history=history)
            async with agent.run_stream(text, message_history=history) as result:
                # The text of a streamed run: that of its last answer.
                self.streamed = "".join([piece async for piece in result.stream_text(delta=True, debounce_by=None)])
                return result

        return LOOP.run_until_complete(run())

    def ask(self, text, stream):
        result = self.run(Agent(self.model), text, stream)
        parts = [part for message in result.all_messages() for part in message.parts]
        calls = [part.args_as_dict() for part in parts if isinstance(part, NativeToolCallPart)]
        outputs = [part.content["output"] for part in parts if isinstance(part, NativeToolReturnPart)]
        calls = [[call["tool_name"], call["tool_args"], output] for call, output in zip(calls, outputs, strict=True)]
        texts = [part.content for part in parts if part.part_kind == "text"]
        return " ".join(texts), [result.usage.input_tokens, result.usage.output_tokens], calls

    def loop(self, text, stream):
        agent = Agent(self.model, tools=[look])
        result = self.run(agent, text, stream)
        answer = self.streamed if stream else result.output
        parts = [part for message in result.all_messages() for part in message.parts]
        calls = [[part.tool_name, part.args_as_dict()] for part in parts if isinstance(part, ToolCallPart)]
        again = self.run(agent, AGAIN, stream, result.all_messages())
        return [calls, answer, self.streamed if stream else again.output]

    def doors(self):
        forms = [(NativeOutput(Door), say_door()), (PromptedOutput(Door), say_door()), (Door, call_door("final_result"))]
        return [self.run(Agent(self.model, output_type=form), text, False).output for form, text in forms]


play(PydanticAi)
LOOP.close()
