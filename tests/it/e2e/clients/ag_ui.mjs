// A client of AG-UI: ag_ui.mjs NODE_MODULES PACKAGE URL TASK SCRIPT
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [modules, name, url, task, script] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const entry = require(`${modules}/${name}/package.json`).exports['.'].import;
const client = await import(pathToFileURL(`${modules}/${name}/${entry}`));

const errors = [];
const address = `${url}/ag-ui/default`;
const runs = async () => (await (await fetch(`${url}/api/v1/runs`)).json()).data;

// Runs an agent, and returns the types of its events and its last event.
async function run(agent, parameters = {}) {
  const types = [];
  let last;
  await agent.runAgent(parameters, {
    onEvent({ event }) {
      types.push(event.type);
      last = event;
    },
    onRunFailed({ error }) { errors.push(String(error)); },
  });
  return { types, last, messages: structuredClone(agent.messages), state: structuredClone(agent.state) };
}

function agentWith(text, threadId = `${name}-${task}`) {
  const agent = new client.HttpAgent({ url: address, threadId });
  agent.addMessage({ id: 'm1', role: 'user', content: text });
  return agent;
}

const http = {
  async answer() {
    const first = await run(agentWith(script), { runId: 'run-one' });
    // The same run in another client: no second run starts.
    const again = await run(agentWith(script), { runId: 'run-one' });
    return { first, again, count: (await runs()).length };
  },
  async approve() {
    const agent = agentWith(script);
    const asked = await run(agent);
    const [interrupt] = asked.last.outcome.interrupts;
    const answered = await run(agent, { resume: [{ interruptId: interrupt.id, status: 'resolved', payload: { approved: true } }] });
    return { asked, interrupt, answered };
  },
  async client() {
    const tools = [{ name: 'look', description: 'Looks', parameters: { type: 'object' } }];
    const agent = agentWith(script);
    const asked = await run(agent, { tools });
    const call = agent.messages.flatMap(message => message.toolCalls ?? []).find(found => found.function.name === 'look');
    agent.addMessage({ id: 't1', role: 'tool', toolCallId: call.id, content: 'a door' });
    return { asked, call, answered: await run(agent, { tools }) };
  },
};

const text = message => message.parts.filter(part => part.type === 'text').map(part => part.content).join('');

const tanstack = {
  async answer() {
    let cuts = 0;
    const posts = [];
    // Cuts the first two responses after some bytes: the client comes back with the id of its last frame.
    const fetchClient = async (input, init) => {
      const response = await fetch(input, init);
      posts.push(init.headers['Last-Event-ID'] ?? '');
      if (init.method !== 'POST' || cuts >= 2) return response;
      cuts += 1;
      const reader = response.body.getReader();
      let left = 900;
      const body = new ReadableStream({
        async pull(controller) {
          const { value, done } = await reader.read();
          if (done) return controller.close();
          controller.enqueue(value);
          left -= value.length;
          // The client cannot continue after the last frame of a run.
          if (left <= 0 && !Buffer.from(value).includes('RUN_FINISHED')) {
            await reader.cancel();
            controller.error(new TypeError('network error'));
          }
        },
      });
      return new Response(body, { status: response.status, headers: response.headers });
    };
    const connection = client.fetchServerSentEvents(address, { fetchClient });
    const chat = new client.ChatClient({ threadId: 'tanstack', connection, onError: error => errors.push(String(error)) });
    await chat.sendMessage(script);
    const messages = chat.getMessages();
    const hydrated = await connection.hydrate('tanstack');
    const joined = [];
    for await (const chunk of connection.joinRun((await runs())[0].id)) joined.push(chunk);
    return {
      texts: messages.map(text),
      posts,
      count: (await runs()).length,
      hydrated: hydrated.messages.map(text),
      activeRun: hydrated.activeRun,
      joined: joined.filter(chunk => chunk.type === 'TEXT_MESSAGE_CONTENT').map(chunk => chunk.delta).join(''),
    };
  },
  // Answers an approval, and executes a client tool.
  async act() {
    const calls = [];
    const execute = async given => { calls.push(given); return 'a door'; };
    const tools = [{ __toolSide: 'client', name: 'look', description: 'Looks', inputSchema: { type: 'object' }, execute }];
    const connection = client.fetchServerSentEvents(address);
    const chat = new client.ChatClient({ threadId: 'act', tools, connection, onError: error => errors.push(String(error)) });
    await chat.sendMessage(script);
    const [interrupt] = chat.getInterrupts();
    interrupt.resolveInterrupt({ approved: true });
    // The second approval is decided by the older method, with the id in the part of the call.
    const asked = () => chat.getMessages().flatMap(message => message.parts ?? []).find(part => part.state === 'approval-requested');
    await until('asked again', () => chat.getInterrupts().some(({ id }) => id !== interrupt.id) && asked());
    await chat.addToolApprovalResponse({ id: asked().approval.id, approved: true });
    await until('answered', () => chat.getMessages().some(message => message.role === 'assistant' && text(message) === 'bye'));
    return { canResolve: interrupt.canResolve, calls, count: (await runs()).length };
  },
  // Regenerates the answer.
  async reload() {
    const connection = client.fetchServerSentEvents(address);
    const chat = new client.ChatClient({ threadId: 'reload', connection, onError: error => errors.push(String(error)) });
    await chat.sendMessage(script);
    await chat.reload();
    const hydrated = await connection.hydrate('reload');
    return { texts: chat.getMessages().map(text), hydrated: hydrated.messages.map(text), count: (await runs()).length };
  },
};

const until = async (what, test) => {
  for (let left = 600; left > 0; left--) {
    if (await test()) return;
    await new Promise(resolve => setTimeout(resolve, 50));
  }
  throw new Error(`never ${what}`);
};

const copilotkit = {
  // Answers an approval, executes a frontend tool, shows the thread in a second page, and stops a run.
  async thread() {
    // The package connects only in a browser.
    globalThis.window = globalThis;
    const open = async () => {
      const core = new client.CopilotKitCore({ runtimeUrl: `${url}/copilotkit` });
      core.subscribe({ onError: ({ error }) => { errors.push(String(error)); } });
      await until('connected', () => core.runtimeConnectionStatus === 'connected');
      const agent = core.getAgent('default');
      agent.threadId = 'copilotkit';
      return { core, agent };
    };
    const shown = agent => agent.messages.map(({ role, content }) => [role, content ?? '']);
    const { core, agent } = await open();
    const calls = [];
    core.addTool({ name: 'look', description: 'Looks', handler: async given => { calls.push(given); return 'a door'; } });
    let last;
    agent.subscribe({ onEvent({ event }) { last = event; } });
    agent.addMessage({ id: 'm1', role: 'user', content: script });
    await core.runAgent({ agent });
    const interrupts = last.outcome.interrupts;
    const resume = interrupts.map(({ id }) => ({ interruptId: id, status: 'resolved', payload: { approved: true } }));
    await core.runAgent({ agent, resume });
    await until('idle', () => agent.messages.at(-1).content === 'bye');

    const other = await open();
    await other.core.connectAgent({ agent: other.agent });
    const connected = shown(other.agent);
    other.agent.addMessage({ id: 'm2', role: 'user', content: '[[id:endless]][[text:3,5]][[hold]]' });
    const running = other.core.runAgent({ agent: other.agent });
    await until('streaming', () => other.agent.messages.at(-1).content?.includes('t2'));
    other.core.stopAgent({ agent: other.agent });
    await running;
    await until('cancelled', async () => (await runs())[0].status === 'cancelled');
    return { agents: Object.keys(core.agents), asked: interrupts.length, calls, said: shown(agent), connected };
  },
};

const clients = { '@tanstack/ai-client': tanstack, '@copilotkit/core': copilotkit };
const found = await (clients[name] ?? http)[task]();
console.log(JSON.stringify({ ...found, errors }));
process.exit(0);
