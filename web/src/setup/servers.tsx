// MCP servers: add, import, log in, restart, and look at their tools.

import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";

import * as api from "../api/client";
import type { McpServer, McpServerTool } from "../api/types";
import { useMe } from "../shell/me";
import { queries, useServers } from "../shell/queries";
import { failureCount, mayLogIn, needsLogin, nextAttempt, serverState, toolCount } from "../shell/server-state";
import { brief, cut } from "../text/words";
import { ServerLogin } from "./login";
import { Action, Field, ForAllUsers, Form, Scope, Section, State, scopeOf, textOf, useMayChange } from "./parts";

const refresh = (): void => {
  void queries.invalidateQueries({ queryKey: ["mcp-servers"] });
  void queries.invalidateQueries({ queryKey: ["tools"] });
};

interface Imported {
  data: { name: string; outcome: string; reason?: string; warnings?: string[] }[];
}

/** `target` is the id of the server that is sought. */
export function Servers({ target }: { target: string | null }) {
  const { data, error } = useServers(true, 5_000);
  const [adding, setAdding] = useState<"url" | "import" | null>(null);
  return (
    <Section
      title="Tools"
      hint="MCP servers give the model tools. Each tool says whether its calls ask you first. An agent can have other rules."
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
      {data?.map((server) => <ServerCard key={server.id} server={server} isTarget={server.id === target} />)}
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
    await api.post("/mcp-servers", { name: textOf(values, "name"), entry, ...scopeOf(values) }, api.newKey());
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
      <ForAllUsers />
    </Form>
  );
}

const OUTCOMES: Record<Imported["data"][number]["outcome"], string> = { made: "added", replaced: "replaced", refused: "refused" };

function Import({ done }: { done: () => void }) {
  const [result, setResult] = useState<Imported | null>(null);
  const text = useRef<HTMLTextAreaElement>(null);
  const submit = async (values: FormData) => {
    const parsed = JSON.parse(textOf(values, "file")) as { mcpServers?: object };
    setResult(await api.post<Imported>("/mcp-servers/import", { mcpServers: parsed.mcpServers ?? parsed, ...scopeOf(values) }, api.newKey()));
    refresh();
  };
  if (result !== null) {
    return (
      <>
        <ul className="plain-list">
          {result.data.map((one) => (
            <li key={one.name}>
              <strong>{brief(one.name, 60)}</strong> {OUTCOMES[one.outcome]} {one.reason !== undefined && <span className="faint">{brief(one.reason, 300)}</span>}
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
      <ForAllUsers />
    </Form>
  );
}

function ServerCard({ server, isTarget }: { server: McpServer; isTarget: boolean }) {
  const card = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!isTarget) return;
    card.current?.scrollIntoView({ block: "nearest" });
    card.current?.focus({ preventScroll: true });
  }, [isTarget]);
  const [isOpen, setOpen] = useState(false);
  const { status, scope } = server;
  const path = `/mcp-servers/${server.id}`;
  const mayChange = useMayChange(scope);
  const { data: me } = useMe();
  const state = serverState(server);
  const failures = failureCount(status);
  const act = (method: () => Promise<unknown>) => async () => {
    await method();
    refresh();
  };
  // The next start finds that there is no login, and the card offers one.
  const logOut = async () => {
    await api.remove(`${path}/login`);
    await api.post(`${path}/restart`);
  };
  return (
    <div className={`card${isTarget ? " target" : ""}`} data-server={server.name} ref={card} tabIndex={-1}>
      <div className="card-head">
        <strong>{brief(server.name, 60)}</strong>
        <Scope scope={scope} />
        <State look={state.look}>{server.enabled ? `${state.words}, ${toolCount(status.tools)}` : state.words}</State>
        <span className="fill" />
        {needsLogin(server) && mayLogIn(server, me) && <ServerLogin server={server} />}
        {status.auth === "ok" && <Action act={act(logOut)}>Log out</Action>}
        <Action act={act(() => api.post(`${path}/restart`))}>Restart</Action>
        {mayChange && <Action act={act(() => api.patch(path, { enabled: !server.enabled }))}>{server.enabled ? "Turn off" : "Turn on"}</Action>}
        {mayChange && <Action className="small danger" act={act(() => api.remove(path))}>Remove</Action>}
      </div>
      {status.error !== undefined && <p className="trouble">{brief(status.error, 600)}</p>}
      {failures !== null && <p className="faint">{[failures, nextAttempt(status)].filter(Boolean).join(" · ")}</p>}
      {status.left_out === true && <p className="warning">The server lists more tools than are offered. The log names those that are left out.</p>}
      {server.warnings?.map((warning) => <p key={warning} className="warning">{brief(warning, 300)}</p>)}
      <details onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>Tools and output</summary>
        {isOpen && (server.enabled ? <ServerTools server={server} /> : <LastOutput server={server} />)}
      </details>
    </div>
  );
}

const APPROVALS: Record<McpServerTool["approval"], string> = { auto: "runs without asking", ask: "asks first, unless you allowed it before", always_ask: "asks before each call" };

/** Returns in words how the calls of a tool are treated. */
function policy({ approval, safety, replay }: McpServerTool): string {
  return [APPROVALS[approval], safety?.destructive === true ? "deletes or overwrites data" : "", replay.class === "read" ? "only reads" : ""].filter(Boolean).join(" · ");
}

function ServerTools({ server }: { server: McpServer }) {
  const { data, error } = useQuery({ queryKey: ["tools", server.id], queryFn: () => api.all<McpServerTool>(`/mcp-servers/${server.id}/tools`) });
  return (
    <>
      {error !== null && <p className="trouble">{api.words(error)}</p>}
      <div className="list-scroll" role="region" aria-label={`Tools of ${brief(server.name, 60)}`} tabIndex={0}>
        <ul className="tool-list">
          {data?.map((tool) => (
            <li key={tool.name} data-tool={tool.tool}>
              <code>{brief(tool.tool, 80)}</code> <span className="faint">{policy(tool)}</span>
              <p className="faint">{brief(tool.description, 300)}</p>
            </li>
          ))}
        </ul>
      </div>
      <LastOutput server={server} />
    </>
  );
}

const LastOutput = ({ server: { status } }: { server: McpServer }) =>
  status.stderr === undefined || status.stderr === "" ? null : (
    <>
      <div className="label">Last output</div>
      <pre className="output" tabIndex={0}>
        {cut(status.stderr, 8_000)}
      </pre>
    </>
  );
