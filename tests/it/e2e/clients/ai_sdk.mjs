// A chat of the AI SDK, as a page has it: ai_sdk.mjs NODE_MODULES PACKAGE URL KEY-OF-TASK SCRIPT
// PACKAGE+websocket uses the package's WebSocket transport.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [modules, choice, url, task, script] = process.argv.slice(2);
const [name, socket] = choice.split('+');
const require = createRequire(`${modules}/`);
const manifest = require(`${modules}/${name}/package.json`);
const entry = manifest.exports['.'].import ?? manifest.module;
const ai = await import(pathToFileURL(`${modules}/${name}/${typeof entry === 'string' ? entry : entry.default}`));

// The state that the bindings for React and Vue keep.
class State {
  status = 'ready';
  error = undefined;
  constructor(messages) { this.messages = messages; }
  pushMessage = message => { this.messages = [...this.messages, message]; };
  popMessage = () => { this.messages = this.messages.slice(0, -1); };
  replaceMessage = (at, message) => { this.messages = this.messages.map((known, place) => (place === at ? message : known)); };
  snapshot = value => structuredClone(value);
}

class Chat extends ai.AbstractChat {
  constructor({ messages = [], ...init }) { super({ ...init, state: new State(messages) }); }
}

const errors = [];
const requests = [];
// Notes the requests as the other transport makes them.
const socketClass = () => class extends require('ws') {
  send(frame) {
    if (JSON.parse(frame).type === 'send') requests.push('POST');
    super.send(frame);
  }
};
const transport = (options = {}) => socket ? new ai.WebSocketChatTransport({ url: `${url}/api/chat`, webSocket: socketClass(), ...options }) : new ai.DefaultChatTransport({
  api: `${url}/api/chat`,
  fetch: (input, init) => {
    requests.push(init.method);
    return fetch(input, init);
  },
  ...options,
});
const chat = (options = {}) => new Chat({ id: `${name}-${task}`, transport: transport(), onError: error => errors.push(String(error)), ...options });

// Waits until the chat is idle, and the last message satisfies the test.
async function idle(one, test = () => true) {
  for (let left = 600; left > 0; left--) {
    if ((one.status === 'ready' || one.status === 'error') && test(one.lastMessage)) return;
    await new Promise(resolve => setTimeout(resolve, 50));
  }
  throw new Error(`not idle: ${one.status} ${JSON.stringify(one.messages)}`);
}

const text = message => message.parts.filter(part => part.type === 'text').map(part => part.text).join('');
const stored = async one => (await fetch(`${url}/api/chat/${one.id}/messages`)).json();
const tools = message => message.parts.filter(part => part.type === 'dynamic-tool' || part.type.startsWith('tool-'));
const shown = one => ({
  ids: one.messages.map(message => message.id),
  roles: one.messages.map(message => message.role),
  texts: one.messages.map(text),
  tools: one.messages.flatMap(tools).map(part => ({ type: part.type, state: part.state, input: part.input, output: part.output })),
  reasoning: one.messages.flatMap(message => message.parts).filter(part => part.type === 'reasoning').map(part => part.text),
});

const tasks = {
  async answer() {
    const one = chat();
    await one.sendMessage({ text: script });
    await idle(one);
    const first = shown(one);
    await one.regenerate();
    await idle(one);
    const second = shown(one);
    await one.sendMessage({ text: '[[id:edited]][[say:edited]]', messageId: one.messages[0].id });
    await idle(one);
    return { first, second, edited: shown(one), stored: await stored(one) };
  },
  async approve() {
    const one = chat({ sendAutomaticallyWhen: ai.lastAssistantMessageIsCompleteWithApprovalResponses });
    await one.sendMessage({ text: script });
    const asked = shown(one);
    const paused = await stored(one);
    const part = tools(one.lastMessage).find(found => found.state === 'approval-requested');
    await one.addToolApprovalResponse({ id: part.approval.id, approved: true });
    await idle(one, message => text(message).includes('bye'));
    return { asked, paused, answered: shown(one) };
  },
  async approve_all() {
    const one = chat({ sendAutomaticallyWhen: ai.lastAssistantMessageIsCompleteWithApprovalResponses });
    await one.sendMessage({ text: script });
    for (const part of tools(one.lastMessage).filter(found => found.state === 'approval-requested')) {
      await one.addToolApprovalResponse({ id: part.approval.id, approved: true });
    }
    await idle(one, message => text(message).includes('bye'));
    return { answered: shown(one) };
  },
  async beside() {
    const calls = [];
    const one = chat({
      transport: transport({ body: { tools: [{ name: 'look', description: 'Looks', parameters: { type: 'object' } }] } }),
      sendAutomaticallyWhen: state =>
        ai.lastAssistantMessageIsCompleteWithToolCalls(state) || ai.lastAssistantMessageIsCompleteWithApprovalResponses(state),
      onToolCall({ toolCall }) {
        calls.push(toolCall.toolName);
        void one.addToolOutput({ tool: toolCall.toolName, toolCallId: toolCall.toolCallId, output: { seen: 'a door' } });
      },
    });
    await one.sendMessage({ text: script });
    await idle(one, () => requests.length >= 2);
    const waiting = shown(one);
    const part = tools(one.lastMessage).find(found => found.state === 'approval-requested');
    await one.addToolApprovalResponse({ id: part.approval.id, approved: true });
    await idle(one, message => text(message).includes('bye'));
    return { calls, waiting, answered: shown(one) };
  },
  async client() {
    const calls = [];
    const one = chat({
      transport: transport({ body: { tools: [{ name: 'look', description: 'Looks', parameters: { type: 'object' } }] } }),
      sendAutomaticallyWhen: ai.lastAssistantMessageIsCompleteWithToolCalls,
      onToolCall({ toolCall }) {
        calls.push(toolCall.toolName);
        const result = { tool: toolCall.toolName, toolCallId: toolCall.toolCallId, output: { seen: 'a door' } };
        void (one.addToolOutput ?? one.addToolResult)(result);
      },
    });
    await one.sendMessage({ text: script });
    await idle(one, message => text(message).includes('bye'));
    return { calls, answered: shown(one), stored: await stored(one) };
  },
  async resume() {
    const one = chat();
    const sending = one.sendMessage({ text: script });
    while (!(one.lastMessage?.role === 'assistant' && text(one.lastMessage).length > 0)) await new Promise(resolve => setTimeout(resolve, 20));
    await one.stop();
    await sending;
    const again = chat({ messages: await stored(one) });
    const before = shown(again);
    await again.resumeStream();
    await idle(again);
    const after = shown(again);
    await again.resumeStream();
    return { before, after, idle: shown(again), stored: await stored(one) };
  },
};

const found = await tasks[task]();
console.log(JSON.stringify({ ...found, errors, requests }));
process.exit(0);
