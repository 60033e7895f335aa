// One run for the clients of several protocols: every_wire.mjs NODE_MODULES URL TASK ARGUMENT...
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [modules, url, task, ...texts] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const load = name => {
  const entry = require(`${modules}/${name}/package.json`).exports['.'].import;
  return import(pathToFileURL(`${modules}/${name}/${entry}`));
};
const OpenAI = require('openai');
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'any', maxRetries: 0 });
const { HttpAgent } = await load('@ag-ui/client');
const { fetchServerSentEvents } = await load('@tanstack/ai-client');
const address = `${url}/ag-ui/default`;

// HttpAgent rejects a second promise, which it does not hand out, when it loses its stream.
process.on('unhandledRejection', () => {});

// The text of each model step, and each result by the name of its tool.
class Shown {
  texts = [];
  results = {};
  names = {};
  text(text) { if (text) this.texts.push(text); }
  call(id, name) { this.names[id] = name; }
  result(id, content) { this.results[this.names[id]] = content; }
}

const found = shown => ({ texts: shown.texts, results: shown.results });

// Items of a conversation, or the output of responses.
function ofItems(items) {
  const shown = new Shown();
  for (const item of items) {
    if (item.type === 'message' && item.role === 'assistant') shown.text(item.content.map(part => part.text).join(''));
    if (item.type === 'function_call') shown.call(item.call_id, item.name);
    if (item.type === 'function_call_output') shown.result(item.call_id, item.output);
    if (item.type === 'mcp_call') shown.results[`${item.server_label}__${item.name}`] = item.output;
  }
  return found(shown);
}

function ofAgentMessages(messages) {
  const shown = new Shown();
  for (const message of messages) {
    if (message.role === 'assistant') shown.text(message.content);
    for (const call of message.toolCalls ?? []) shown.call(call.id, call.function.name);
    if (message.role === 'tool') shown.result(message.toolCallId, message.content);
  }
  return found(shown);
}

function ofHydrated(messages) {
  const shown = new Shown();
  for (const { parts } of messages.filter(message => message.role === 'assistant')) {
    for (const part of parts) {
      if (part.type === 'text') shown.text(part.content);
      if (part.type === 'tool-call') shown.call(part.id, part.name);
      if (part.type === 'tool-result') shown.result(part.toolCallId, part.content);
    }
  }
  return found(shown);
}

function ofAgentEvents(events) {
  const shown = new Shown();
  const texts = new Map();
  for (const event of events) {
    if (event.type === 'TEXT_MESSAGE_CONTENT') texts.set(event.messageId, (texts.get(event.messageId) ?? '') + event.delta);
    if (event.type === 'TOOL_CALL_START') shown.call(event.toolCallId, event.toolCallName);
    if (event.type === 'TOOL_CALL_RESULT') shown.result(event.toolCallId, event.content);
  }
  texts.forEach(text => shown.text(text));
  return found(shown);
}

async function mcp(run) {
  const sdk = name => import(pathToFileURL(require.resolve(`@modelcontextprotocol/sdk/${name}`)));
  const { Client } = await sdk('client/index.js');
  const { StreamableHTTPClientTransport } = await sdk('client/streamableHttp.js');
  const client = new Client({ name: 'test', version: '1' });
  await client.connect(new StreamableHTTPClientTransport(new URL(`${url}/mcp`)));
  const results = [];
  for (const name of ['run_wait', 'run_get']) {
    results.push((await client.callTool({ name, arguments: { run_id: run } })).structuredContent);
  }
  await client.close();
  return results;
}

const tasks = {
  // Starts the run, and reads its first response.
  async begin() {
    const conversation = await openai.conversations.create();
    const tools = [{ type: 'function', name: 'look', parameters: { type: 'object', properties: {} }, strict: false }];
    const request = { model: 'default', input: texts[0], conversation: conversation.id, tools, background: true };
    const { id } = await openai.responses.create(request);
    let last;
    for await (const event of await openai.responses.retrieve(id, { stream: true })) last = event;
    return { conversation: conversation.id, response: id, asked: last.response.output.map(item => item.type) };
  },
  // Allows the call that the run asks about, and follows the run; again with a new agent each time that the server is lost.
  async decide() {
    const [thread] = texts;
    const { interrupts } = await fetchServerSentEvents(address).hydrate(thread);
    const [interrupt] = interrupts.pending;
    const resume = [{ interruptId: interrupt.id, status: 'resolved', payload: { approved: true } }];
    let lost = 0;
    for (;;) {
      const agent = new HttpAgent({ url: address, threadId: thread });
      let last;
      try {
        await agent.runAgent({ runId: 'the-decision', resume }, { onEvent({ event }) { last = event; } });
      } catch (error) {
        lost += 1;
      }
      if (last?.type === 'RUN_FINISHED') return { lost, pending: last.outcome.pendingToolCallIds, ...ofAgentMessages(agent.messages) };
      await new Promise(resolve => setTimeout(resolve, 100));
    }
  },
  // Reads the run by every client.
  async read() {
    const [thread, response] = texts;
    const run = response.replace('resp_', 'run_');
    const [waited, read] = await mcp(run);
    const responses = [];
    for (const id of [response, `${response}_1`, `${response}_2`]) responses.push(await openai.responses.retrieve(id));
    const items = [];
    for await (const item of openai.conversations.items.list(thread, { order: 'asc' })) items.push(item);
    const agent = new HttpAgent({ url: address, threadId: thread });
    await agent.runAgent({ runId: run });
    const tanstack = fetchServerSentEvents(address);
    const joined = [];
    for await (const chunk of tanstack.joinRun(run)) joined.push(chunk);
    return {
      mcp: { waited, read },
      responses: ofItems(responses.flatMap(one => one.output)),
      ended: responses.at(-1).output_text,
      items: ofItems(items),
      agent: ofAgentMessages(agent.messages),
      hydrated: ofHydrated((await tanstack.hydrate(thread)).messages),
      joined: ofAgentEvents(joined),
    };
  },
};

console.log(JSON.stringify(await tasks[task]()));
process.exit(0);
