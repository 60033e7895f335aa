// Agents: profiles with a model, a prompt, tools and limits, in versions.

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import * as api from "../api/client";
import { print } from "../api/json";
import type { Agent } from "../api/types";
import { queries, useAgents } from "../shell/queries";
import { Diff } from "../text/diff-view";
import { brief, clock } from "../text/words";
import { AgentForm } from "./agent-form";
import { Action, Scope, Section, useMayChange } from "./parts";

interface Version {
  version: number;
  profile: Record<string, unknown>;
  note: string;
  created_at: string;
}

const refresh = (): void => {
  void queries.invalidateQueries({ queryKey: ["agents"] });
  void queries.invalidateQueries({ queryKey: ["agent"] });
  void queries.invalidateQueries({ queryKey: ["versions"] });
};

export function Agents() {
  const { data, error } = useAgents();
  const [edited, setEdited] = useState<Agent | "new" | null>(null);
  return (
    <Section
      title="Agents"
      hint="An agent is a profile: its model, instructions, tools and limits. A conversation keeps its agent."
      actions={
        <button type="button" className="primary small" onClick={() => setEdited("new")}>
          Make an agent
        </button>
      }
    >
      {edited !== null && (
        <div className="card">
          <AgentForm key={edited === "new" ? "new" : `${edited.id} ${edited.revision ?? ""}`} agent={edited === "new" ? null : edited} refresh={refresh} done={() => setEdited(null)} />
        </div>
      )}
      {error !== null && <p className="trouble">{api.words(error)}</p>}
      {data?.map((agent) => <AgentCard key={agent.id} agent={agent} edit={() => setEdited(agent)} />)}
    </Section>
  );
}

function AgentCard({ agent, edit }: { agent: Agent; edit: () => void }) {
  const [isOpen, setOpen] = useState(false);
  const isKept = agent.scope === "own" || agent.scope === "global";
  const mayChange = useMayChange(agent.scope);
  return (
    <div className="card" data-agent={agent.name}>
      <div className="card-head">
        <strong>{brief(agent.name, 60)}</strong>
        <Scope scope={agent.scope} />
        {isKept && <span className="faint">{`version ${agent.version}`}</span>}
        <span className="fill" />
        {mayChange && (
          <button type="button" className="small" onClick={edit}>
            Edit
          </button>
        )}
        {mayChange && <Action className="small danger" act={() => api.remove(`/agents/${agent.id}`).then(refresh)}>Remove</Action>}
      </div>
      {agent.description !== "" && <p className="faint">{brief(agent.description, 300)}</p>}
      {agent.error !== undefined && <p className="trouble">{brief(agent.error, 400)}</p>}
      <details onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>Profile{isKept ? " and versions" : ""}</summary>
        {isOpen && (
          <>
            <pre className="output" tabIndex={0}>
              {print(agent.profile, 2)}
            </pre>
            {isKept && <Versions agent={agent} mayChange={mayChange} />}
          </>
        )}
      </details>
    </div>
  );
}

function Versions({ agent, mayChange }: { agent: Agent; mayChange: boolean }) {
  const { data } = useQuery({ queryKey: ["versions", agent.id, agent.latest_version], queryFn: () => api.all<Version>(`/agents/${agent.id}/versions`) });
  return (
    <ol className="versions" reversed>
      {data?.map((one, at) => (
        <li key={one.version}>
          <span>{`Version ${one.version}`}</span> <span className="faint">{[clock(one.created_at), brief(one.note, 120)].filter(Boolean).join(" · ")}</span>
          {mayChange && one.version !== agent.version && (
            <Action act={() => api.post(`/agents/${agent.id}/rollback`, { version: one.version }).then(refresh)}>Roll back to it</Action>
          )}
          <Difference before={data[at + 1]?.profile ?? {}} after={one.profile} />
        </li>
      ))}
    </ol>
  );
}

/** Returns a field of a profile as lines: a text as it is, anything else as JSON. */
const written = (value: unknown): string => (value === undefined ? "" : typeof value === "string" ? value : print(value, 2));

/** The fields that a version changed, each with its changed lines. */
function Difference({ before, after }: { before: Record<string, unknown>; after: Record<string, unknown> }) {
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])].filter((name) => print(before[name]) !== print(after[name]));
  return names.map((name) => (
    <div key={name}>
      <div className="label">{name}</div>
      <Diff label={`Changes of ${name}`} before={written(before[name])} after={written(after[name])} isShort />
    </div>
  ));
}
