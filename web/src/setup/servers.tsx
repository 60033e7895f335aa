// MCP servers: add, import, log in, restart, and look at their tools.

import { useQuery } from "@tanstack/react-query";
import { useRef, useState } from "react";

import * as api from "../api/client";
import type { McpServer, ToolDefinition } from "../api/types";
import { queries } from "../shell/queries";
import { brief, cut } from "../text/words";
import { Action, Field, Form, Scope, Section, State, textOf } from "./parts";

const refresh = (): void => {
  void queries.invalidateQueries({ queryKey: ["mcp-servers"] });
  void queries.invalidateQueries({ queryKey: ["tools"] });
};

const LOOKS: Record<string, "good" | "bad" | "wait" | "off"> = { ready: "good", connected: "good", running: "good", error: "bad", failed: "bad", connecting: "wait", starting: "wait" };

interface Imported {
  data: { name: string; outcome: string; reason?: string; warnings?: string[] }[];
}

export function Servers() {
  const { data, error } = useQuery({ queryKey: ["mcp-servers"], queryFn: () => api.all<McpServer>("/mcp-servers"), refetchInterval: 5_000 });
  const [adding, setAdding] = useState<"url" | "import" | null>(null);
  return (
    <Section
      title="Tools"
      hint="MCP servers give the model tools. Their calls ask you first where they may change something."
      actions={
        <>
          <button type="button" className="small" onClick={() => setAdding("import")}>
            Import
          </button>
          <button type="button" className="primary small" onClick={() => setAdding("url")}>
            Add a server
          </button>
        </>
      }
    >
      {adding === "url" && (
        <div className="card">
          <AddServer done={() => setAdding(null)} />
        </div>
      )}
      {adding === "import" && (
        <div className="card">
          <Import done={() => setAdding(null)} />
        </div>
      )}
      {error !== null && <p className="trouble">{api.words(error)}</p>}
      {data?.length === 0 && <p className="faint">No MCP server is connected. The built-in tools work without one.</p>}
      {data?.map((server) => <ServerCard key={server.id} server={server} />)}
    </Section>
  );
}

function AddServer({ done }: { done: () => void }) {
  const [kind, setKind] = useState<"url" | "command">("url");
  const submit = async (values: FormData) => {
    const words = textOf(values, "command").match(/"[^"]*"|'[^']*'|\S+/g)?.map((word) => word.replace(/^(["'])(.*)\1$/, "$2")) ?? [];
    const pairs: Record<string, string> = {};
    for (const line of textOf(values, "pairs").split("\n")) {
      const found = /^\s*([^=:\s]+)\s*[=:]\s*(.*)$/.exec(line);
      if (found?.[1] !== undefined) pairs[found[1]] = found[2] ?? "";
    }
    const hasPairs = Object.keys(pairs).length > 0;
    const entry = kind === "url" ? { url: textOf(values, "url"), ...(hasPairs ? { headers: pairs } : {}) } : { command: words[0] ?? "", args: words.slice(1), ...(hasPairs ? { env: pairs } : {}) };
    await api.post("/mcp-servers", { name: textOf(values, "name"), entry }, api.newKey());
    refresh();
    done();
  };
  return (
    <Form label="Add" submit={submit} cancel={done}>
      <div className="kinds" role="group" aria-label="Kind of server">
        <button type="button" className={`kind${kind === "url" ? " on" : ""}`} aria-pressed={kind === "url"} onClick={() => setKind("url")}>
          Address
        </button>
        <button type="button" className={`kind${kind === "command" ? " on" : ""}`} aria-pressed={kind === "command"} onClick={() => setKind("command")}>
          Command
        </button>
      </div>
      <Field label="Name" hint="The names of its tools begin with it.">
        <input name="name" required maxLength={40} autoComplete="off" spellCheck={false} />
      </Field>
      {kind === "url" ? (
        <Field label="Address">
          <input name="url" type="url" required placeholder="https://example.org/mcp" autoComplete="off" spellCheck={false} />
        </Field>
      ) : (
        <Field label="Command" hint="It runs on the server, without a shell.">
          <input name="command" required placeholder="npx -y @modelcontextprotocol/server-filesystem /data" autoComplete="off" spellCheck={false} />
        </Field>
      )}
      <Field label={kind === "url" ? "Headers" : "Environment"} hint="One NAME=value in each line. Values are stored encrypted.">
        <textarea name="pairs" rows={2} spellCheck={false} className="mono" />
      </Field>
    </Form>
  );
}

function Import({ done }: { done: () => void }) {
  const [result, setResult] = useState<Imported | null>(null);
  const text = useRef<HTMLTextAreaElement>(null);
  const submit = async (values: FormData) => {
    const parsed = JSON.parse(textOf(values, "file")) as { mcpServers?: object };
    setResult(await api.post<Imported>("/mcp-servers/import", { mcpServers: parsed.mcpServers ?? parsed }, api.newKey()));
    refresh();
  };
  if (result !== null) {
    return (
      <>
        <ul className="plain-list">
          {result.data.map((one) => (
            <li key={one.name}>
              <strong>{brief(one.name, 60)}</strong> {one.outcome} {one.reason !== undefined && <span className="faint">{brief(one.reason, 300)}</span>}
            </li>
          ))}
        </ul>
        <button type="button" onClick={done}>
          Close
        </button>
      </>
    );
  }
  return (
    <Form label="Import" submit={submit} cancel={done}>
      <Field label="File" hint="A file with mcpServers, as other programs use it.">
        <input
          type="file"
          accept=".json,application/json"
          onChange={(event) => {
            void event.target.files?.[0]?.text().then((read) => {
              if (text.current !== null) text.current.value = read;
            });
          }}
        />
      </Field>
      <textarea ref={text} name="file" rows={8} required className="mono" spellCheck={false} aria-label="Content of the file" placeholder={'{"mcpServers": {"files": {"command": "npx", "args": ["…"]}}}'} />
    </Form>
  );
}

function ServerCard({ server }: { server: McpServer }) {
  const [isOpen, setOpen] = useState(false);
  const { status, scope } = server;
  const path = `/mcp-servers/${server.id}`;
  const isKept = scope !== "config";
  const act = (method: () => Promise<unknown>) => async () => {
    await method();
    refresh();
  };
  const login = async () => {
    const { url } = await api.post<{ url: string }>(`${path}/login`);
    window.open(url, "_blank", "noopener");
  };
  return (
    <div className="card" data-server={server.name}>
      <div className="card-head">
        <strong>{brief(server.name, 60)}</strong>
        <Scope scope={scope} />
        <State look={server.enabled ? (LOOKS[status.state] ?? "wait") : "off"}>{server.enabled ? `${status.state.replace(/_/g, " ")}, ${status.tools} tools` : "off"}</State>
        <span className="fill" />
        {status.auth === "needed" && <Action act={login} className="small primary">Log in</Action>}
        {status.auth === "ok" && <Action act={act(() => api.remove(`${path}/login`))}>Log out</Action>}
        <Action act={act(() => api.post(`${path}/restart`))}>Restart</Action>
        {isKept && <Action act={act(() => api.patch(path, { enabled: !server.enabled }))}>{server.enabled ? "Turn off" : "Turn on"}</Action>}
        {isKept && <Action className="small danger" act={act(() => api.remove(path))}>Remove</Action>}
      </div>
      {status.error !== undefined && <p className="trouble">{brief(status.error, 600)}</p>}
      {server.warnings?.map((warning) => <p key={warning} className="warning">{brief(warning, 300)}</p>)}
      <details onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>Tools and output</summary>
        {isOpen && <ServerTools server={server} />}
      </details>
    </div>
  );
}

function policy(tool: ToolDefinition): string {
  const safety = tool.safety;
  const words = [safety?.approval === "always_ask" ? "asks always" : safety?.approval === "ask" ? "asks" : safety?.approval === "auto" ? "runs" : null, safety?.destructive === true ? "deletes or overwrites data" : null, tool.replay.class === "unsafe" ? null : tool.replay.class];
  return words.filter(Boolean).join(" · ");
}

function ServerTools({ server }: { server: McpServer }) {
  const { data, error } = useQuery({ queryKey: ["tools", server.id], queryFn: () => api.all<ToolDefinition>(`/mcp-servers/${server.id}/tools`) });
  return (
    <>
      {error !== null && <p className="trouble">{api.words(error)}</p>}
      <ul className="tool-list">
        {data?.map((tool) => (
          <li key={tool.name}>
            <code>{brief(tool.tool, 80)}</code> <span className="faint">{policy(tool)}</span>
            <p className="faint">{brief(tool.description, 300)}</p>
          </li>
        ))}
      </ul>
      {status(server)}
    </>
  );
}

const status = ({ status: { stderr } }: McpServer) =>
  stderr === undefined || stderr === "" ? null : (
    <>
      <div className="label">Last output</div>
      <pre className="output" tabIndex={0}>
        {cut(stderr, 8_000)}
      </pre>
    </>
  );
