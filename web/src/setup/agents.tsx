// Agents: profiles with a model, a prompt, tools and limits, in versions.

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import * as api from "../api/client";
import { print } from "../api/json";
import type { Agent } from "../api/types";
import { queries, useAgents, useModels } from "../shell/queries";
import { Diff } from "../text/diff-view";
import { brief, clock } from "../text/words";
import { Action, Field, ForAllUsers, Form, Scope, Section, scopeOf, textOf, useMayChange } from "./parts";

interface Version {
  version: number;
  profile: Record<string, unknown>;
  note: string;
  created_at: string;
}

const refresh = (): void => {
  void queries.invalidateQueries({ queryKey: ["agents"] });
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
          <AgentForm key={edited === "new" ? "new" : edited.id} agent={edited === "new" ? null : edited} done={() => setEdited(null)} />
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

/** The fields of a profile that the form shows one by one; the others stay in the field for JSON. */
const OWN = ["model", "system_prompt", "max_rounds"];

function AgentForm({ agent, done }: { agent: Agent | null; done: () => void }) {
  const { data: models = [] } = useModels();
  const profile = agent?.profile ?? {};
  const rest = Object.fromEntries(Object.entries(profile).filter(([name]) => !OWN.includes(name)));
  const shown = (name: string): string => (typeof profile[name] === "string" || typeof profile[name] === "number" ? String(profile[name]) : "");
  const submit = async (values: FormData) => {
    const more = textOf(values, "rest");
    const next: Record<string, unknown> = more === "" ? {} : (JSON.parse(more) as Record<string, unknown>);
    for (const name of ["model", "system_prompt"]) if (textOf(values, name) !== "") next[name] = textOf(values, name);
    if (textOf(values, "max_rounds") !== "") next.max_rounds = Number(textOf(values, "max_rounds"));
    const body = { name: textOf(values, "name"), description: textOf(values, "description"), profile: next, note: textOf(values, "note") };
    if (agent === null) await api.post("/agents", { ...body, ...scopeOf(values) }, api.newKey());
    else await api.patch(`/agents/${agent.id}`, body);
    refresh();
    done();
  };
  return (
    <Form label={agent === null ? "Make" : "Save as a new version"} submit={submit} cancel={done}>
      <Field label="Name" hint="Lower case, as in short-poet.">
        <input name="name" required maxLength={60} defaultValue={agent?.name} autoComplete="off" spellCheck={false} />
      </Field>
      <Field label="Description" hint="Its purpose, for those who choose an agent.">
        <input name="description" maxLength={300} defaultValue={agent?.description} />
      </Field>
      <Field label="Model" hint="Empty for the default model.">
        <input name="model" list="agent-models" defaultValue={shown("model")} autoComplete="off" spellCheck={false} />
      </Field>
      <datalist id="agent-models">
        {models.map((model) => (
          <option key={model.id} value={model.id} />
        ))}
      </datalist>
      <Field label="Instructions" hint="The system prompt.">
        <textarea name="system_prompt" rows={5} defaultValue={shown("system_prompt")} />
      </Field>
      <Field label="Most steps" hint="Model calls of one run.">
        <input name="max_rounds" type="number" min={1} max={1000} defaultValue={shown("max_rounds")} />
      </Field>
      <Field label="Other fields" hint="As JSON, with the names of the section [agent] of the settings, such as tools, approval or context.">
        <textarea name="rest" rows={5} className="mono" spellCheck={false} defaultValue={Object.keys(rest).length === 0 ? "" : print(rest, 2)} />
      </Field>
      <Field label="Note" hint="The reason for this version.">
        <input name="note" maxLength={200} />
      </Field>
      {agent === null && <ForAllUsers />}
    </Form>
  );
}
