// The settings of the server in force, to read. Administrators see them.

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import * as api from "../api/client";
import { print } from "../api/json";
import type { Setting } from "../api/types";
import { brief, spelled } from "../text/words";
import { Failure, Section } from "./parts";

const SOURCES: Record<Setting["source"], string> = { default: "default", file: "file", environment: "variable", flag: "flag" };

/** Returns whether a setting has all the words, in its name, meaning, value or source. */
function matches(setting: Setting, query: string): boolean {
  const text = [setting.name, setting.help ?? "", shown(setting.value), setting.source, setting.origin ?? ""].join(" ").toLowerCase();
  return query.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function shown(value: unknown): string {
  return value === undefined ? "" : typeof value === "string" ? value : print(value);
}

export function Settings() {
  const { data, error } = useQuery({ queryKey: ["settings"], queryFn: () => api.get<{ data: Setting[] }>("/settings") });
  const [query, setQuery] = useState("");
  const [isChanged, setChanged] = useState(false);
  const found = data?.data.filter((setting) => (!isChanged || setting.source !== "default") && matches(setting, query));
  return (
    <Section title="Settings" hint="What this server runs with. A change in the file or the environment needs a restart. Secrets are not shown.">
      <div className="filters">
        <input type="search" id="settings-search" aria-label="Search settings" placeholder="Search settings" value={query} onChange={(event) => setQuery(event.target.value)} />
        <label className="check">
          <input type="checkbox" checked={isChanged} onChange={(event) => setChanged(event.target.checked)} />
          Only changed ones
        </label>
      </div>
      <Failure error={error} />
      {found?.length === 0 && <p className="faint">No matches</p>}
      {found !== undefined && found.length > 0 && (
        <div className="table" role="region" aria-label="Settings of the server" tabIndex={0}>
          <table className="steps settings">
            <thead>
              <tr>
                <th scope="col">Name</th>
                <th scope="col">Value</th>
                <th scope="col">From</th>
              </tr>
            </thead>
            <tbody>
              {found.map((setting) => (
                <tr key={setting.name} data-setting={setting.name}>
                  <th scope="row">
                    <code>{setting.name}</code>
                    {setting.help !== undefined && setting.help !== "" && <small className="faint">{setting.help}</small>}
                  </th>
                  <td>{setting.value === undefined ? <span className="faint">not set</span> : <code>{brief(spelled(shown(setting.value)), 400)}</code>}</td>
                  <td title={setting.origin}>{setting.origin === undefined ? SOURCES[setting.source] : `${SOURCES[setting.source]} ${brief(spelled(setting.origin), 60)}`}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Section>
  );
}
