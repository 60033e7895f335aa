"""Serves a model by llama.cpp's own server: `llama_server.py FILE KEY --host HOST --port PORT`."""
import argparse
import signal

import xllamacpp

# A form of calls that the server knows: with it, a grammar makes the model call the tool that is asked for.
TEMPLATE = """{%- if tools %}<|im_start|>system
You may call these functions: <tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
For each call return <fn>{"name": <function-name>, "arguments": <args-json-object>}</fn><|im_end|>
{% endif %}{%- for message in messages %}<|im_start|>{{ message.role }}
{%- if message.tool_calls %}
{%- for call in message.tool_calls %}
<fn>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</fn>
{%- endfor %}
{%- else %}
{{ message.content }}
{%- endif %}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("key")
parser.add_argument("--host", required=True)
parser.add_argument("--port", type=int, required=True)
chosen = parser.parse_args()

params = xllamacpp.CommonParams()
params.model.path = chosen.model
params.model_alias = ["tiny"]
params.hostnames = [chosen.host]
params.port = chosen.port
params.api_keys = [chosen.key]
params.n_ctx = 16384
params.n_parallel = 1
params.use_jinja = True
params.chat_template = TEMPLATE
server = xllamacpp.Server(params)
signal.pause()
