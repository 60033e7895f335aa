// Plays the package @modelcontextprotocol/sdk against the MCP server of Capstan: mcp_client.mjs NODE_MODULES URL KEY TASK [ARGUMENT...]
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [modules, url, key, task, ...texts] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const load = (name) => import(pathToFileURL(require.resolve(`@modelcontextprotocol/sdk/${name}`)));
const { Client } = await load('client/index.js');
const { StreamableHTTPClientTransport } = await load('client/streamableHttp.js');
const { ElicitRequestSchema } = await load('types.js');

const asked = [];

async function connect(capabilities) {
  const client = new Client({ name: 'test', version: '1' }, { capabilities });
  if (capabilities.elicitation) {
    client.setRequestHandler(ElicitRequestSchema, async ({ params }) => {
      asked.push(params.message);
      return { action: 'accept', content: { approve: texts[1] === 'allow' } };
    });
  }
  const headers = { authorization: `Bearer ${key}` };
  const transport = new StreamableHTTPClientTransport(new URL(`${url}/mcp`), { requestInit: { headers } });
  await client.connect(transport);
  return { client, transport };
}

const shown = ({ content, isError, structuredContent }) => ({
  text: content.map((block) => block.text).join(''), error: isError ?? false, facts: structuredContent,
});

const tasks = {
  async answer() {
    const { client, transport } = await connect({});
    const { tools } = await client.listTools();
    const progress = [];
    const first = await client.callTool({ name: 'default', arguments: { message: texts[0] } }, undefined, {
      onprogress: ({ message }) => progress.push(message),
    });
    const handle = await client.callTool({ name: 'default', arguments: { message: texts[1], wait_seconds: 0 } });
    const run = { run_id: handle.structuredContent.run_id };
    const end = await client.callTool({ name: 'run_wait', arguments: run });
    const endless = await client.callTool({ name: 'default', arguments: { message: texts[2], wait_seconds: 0 } });
    const last = { run_id: endless.structuredContent.run_id };
    await client.callTool({ name: 'run_cancel', arguments: last });
    const cancelled = await client.callTool({ name: 'run_wait', arguments: last });
    const found = {
      server: client.getServerVersion().name, session: transport.sessionId ?? null, tools: tools.map(({ name }) => name).sort(),
      first: shown(first), handle: shown(handle), end: shown(end), cancelled: shown(cancelled), progress,
    };
    await client.close();
    return found;
  },
  async ask() {
    const { client, transport } = await connect({ elicitation: {} });
    const result = shown(await client.callTool({ name: 'default', arguments: { message: texts[0] } }));
    const session = typeof transport.sessionId;
    await transport.terminateSession();
    await client.close();
    return { ...result, asked, session };
  },
};

process.stdout.write(JSON.stringify(await tasks[task]()));
process.exit(0);
