// The MCP servers with their states, at a glance.

import { words } from "../api/client";
import { brief } from "../text/words";
import { Dialog } from "./dialog";
import { Icon } from "./icons";
import { useServers } from "./queries";
import { serverState, toolCount } from "./server-state";

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
      {error !== null && <p className="trouble">{words(error)}</p>}
      {data?.length === 0 && <p className="faint">No MCP server is connected. The built-in tools work without one.</p>}
      <ul>
        {data?.map((server) => {
          const { words: state, look } = serverState(server);
          return (
            <li key={server.id} data-server={server.name}>
              <a href={`#/setup/tools/${server.id}`} onClick={close}>
                <span className={`state ${look}`}>
                  <span className="state-dot" aria-hidden="true" />
                </span>
                <span className="name">{brief(server.name, 60)}</span>
                <span className="faint">{server.enabled ? `${state} · ${toolCount(server.status.tools)}` : state}</span>
              </a>
            </li>
          );
        })}
      </ul>
      <a className="button small" href="#/setup/tools" onClick={close}>
        Set up servers
      </a>
    </Dialog>
  );
}
