"""Asks a Capstan server with the `openai` package, and reads the answer again.

Usage: chat.py [QUESTION]
"""

import os
import sys

from openai import OpenAI

url = os.environ.get("CAPSTAN_URL", "http://127.0.0.1:8080")
# A server without keys accepts any.
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("CAPSTAN_KEY", "none"))
question = sys.argv[1] if len(sys.argv) > 1 else "What time is it, and what is 17*23?"

# A model is an agent with its tools. The server runs the tools.
response = None
for event in client.responses.create(model="default", input=question, stream=True):
    if event.type == "response.created":
        response = event.response.id
    elif event.type == "response.output_text.delta":
        print(event.delta, end="", flush=True)
print()

# The response is stored: any process with the key can read it, also while it is being written.
again = client.responses.retrieve(response)
print(f"{again.status}, read again: {again.output_text}")

# The next question continues the conversation.
after = client.responses.create(model="default", input="And 2*21?", previous_response_id=response)
print(f"then: {after.output_text}")
