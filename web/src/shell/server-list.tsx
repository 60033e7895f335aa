// The MCP servers with their states, at a glance.

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import * as api from "../api/client";
import type { McpServer, McpServerTool } from "../api/types";
import { ServerLogin } from "../setup/login";
import { When } from "../text/when";
import { brief } from "../text/words";
import { Dialog } from "./dialog";
import { Icon } from "./icons";
import { useMe } from "./me";
import { useServers } from "./queries";
import { failureCount, needsLogin, mayLogIn, nextAttempt, serverState, toolCount } from "./server-state";

/** How often the states are read while they are shown, in milliseconds. */
const EACH_MS = 5_000;

export default function ServerList({ close }: { close: () => void }) {
  const { data, error } = useServers(true, EACH_MS);
  return (
    <Dialog label="MCP servers" isOpen close={close} className="server-list">
      <div className="dialog-head">
        <h2>MCP servers</h2>
        <button type="button" className="quiet icon" aria-label="Close" title="Close" onClick={close}>
          <Icon name="close" />
        </button>
      </div>
      {error !== null && <p className="trouble">{api.words(error)}</p>}
      {data?.length === 0 && <p className="faint">No MCP server is connected. The built-in tools work without one.</p>}
      <ul>
        {data?.map((server) => (
          <ServerEntry key={server.id} server={server} close={close} />
        ))}
      </ul>
      <a className="button small" href="#/setup/tools" onClick={close}>
        Set up servers
      </a>
    </Dialog>
  );
}

function ServerEntry({ server, close }: { server: McpServer; close: () => void }) {
  const { words: state, look } = serverState(server);
  const { data: me } = useMe();
  const { enabled, status } = server;
  const failures = failureCount(status);
  const next = nextAttempt(status);
  return (
    <li data-server={server.name}>
      <a href={`#/setup/tools/${server.id}`} onClick={close}>
        <span className={`state ${look}`}>
          <span className="state-dot" aria-hidden="true" />
        </span>
        <span className="name">{brief(server.name, 60)}</span>
        <span className="faint">{enabled ? `${state} · ${toolCount(status.tools)}` : state}</span>
      </a>
      {enabled && (
        <div className="server-detail">
          {status.error !== undefined && <p className="trouble">{brief(status.error, 400)}</p>}
          {failures !== null && (
            <p className="faint">
              {failures}
              {status.since !== undefined && (
                <>
                  {" · last "}
                  <When at={status.since} />
                </>
              )}
              {next !== null && ` · ${next}`}
            </p>
          )}
          {needsLogin(server) && mayLogIn(server, me) && (
            <p className="server-login">
              <ServerLogin server={server} />
            </p>
          )}
          {status.tools > 0 && <ToolNames server={server} />}
        </div>
      )}
    </li>
  );
}

/** The names of the tools of a server, which are read when they are opened. */
function ToolNames({ server: { id, name, status } }: { server: McpServer }) {
  const [isOpen, setOpen] = useState(false);
  const { data, error } = useQuery({ queryKey: ["tools", id], queryFn: () => api.all<McpServerTool>(`/mcp-servers/${id}/tools`), enabled: isOpen });
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary className="tool-count">
        {toolCount(status.tools)}
        <span className="unseen"> of {brief(name, 60)}</span>
      </summary>
      {error !== null && <p className="trouble">{api.words(error)}</p>}
      {isOpen && data === undefined && error === null && <p className="faint">Reading the tools…</p>}
      {data !== undefined && (
        <ul className="tool-names" aria-label={`Tools of ${brief(name, 60)}`}>
          {data.map((tool) => (
            <li key={tool.name} data-tool={tool.tool}>
              <code title={brief(tool.description, 300)}>{brief(tool.tool, 80)}</code>
            </li>
          ))}
        </ul>
      )}
    </details>
  );
}
