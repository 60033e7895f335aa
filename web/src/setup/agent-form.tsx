// The form of an agent: each field of its profile with its explanation. An empty field inherits its value.

import { useQuery } from "@tanstack/react-query";
import { useEffect, useId, useRef, useState, type ReactNode } from "react";

import * as api from "../api/client";
import type { Agent, ToolList } from "../api/types";
import { useMe } from "../shell/me";
import { useAgent, useAgents, useDefaultAgent, useModels } from "../shell/queries";
import { brief } from "../text/words";
import { ABSENT, GROUPS, RETRYABLE, type AgentField, type FieldGroup, type Option } from "./agent-fields";
import { ApprovalRules, ModelList, NameChoice, namedTools } from "./agent-lists";
import { acceptsFromMember, errorsByField, inheritedWords, isNothing, nothingName, readProfile, valueAt, written, writtenRest, type Profile } from "./agent-profile";
import { ForAllUsers, Form, scopeOf, textOf } from "./parts";

const useOfferedTools = () => useQuery({ queryKey: ["tools", "offered"], queryFn: async () => (await api.get<ToolList>("/tools")).data });

const CHANGED = "The agent was changed meanwhile. Press Edit to load it again.";

/** `refresh` is called when the stored agent is not the one of the form any more, `done` at the end of the form. */
export function AgentForm({ agent, refresh, done }: { agent: Agent | null; refresh: () => void; done: () => void }) {
  const profile = (agent?.profile ?? {}) as Profile;
  const [baseName, setBaseName] = useState(typeof profile.extends === "string" ? profile.extends : "");
  const base = useBase(baseName);
  const accepts = useAccepts();
  const [errors, setErrors] = useState<ReadonlyMap<string, string>>(new Map());
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const first = errors.size === 0 ? null : box.current?.querySelector<HTMLElement>("[aria-invalid=true], [data-invalid]");
    first?.closest("details")?.setAttribute("open", "");
    first?.focus();
  }, [errors]);
  const submit = async (values: FormData) => {
    const read = readProfile((path) => textOf(values, path), textOf(values, "rest"), profile);
    setErrors(errorsByField(read.errors));
    if (read.errors.length > 0) throw new api.Problem(0, { detail: "The agent is not saved. Look at the marked fields." });
    const body = { name: textOf(values, "name"), description: textOf(values, "description"), profile: read.profile, note: textOf(values, "note") };
    try {
      if (agent === null) await api.post("/agents", { ...body, ...scopeOf(values) }, api.newKey());
      // The whole profile is sent, which would revert a version that was saved meanwhile.
      else await api.patch(`/agents/${agent.id}`, body, agent.revision);
    } catch (error) {
      if (!(error instanceof api.Problem)) throw error;
      setErrors(errorsByField(error.errors));
      if (error.status !== 412) throw error;
      refresh();
      throw new api.Problem(error.status, { detail: CHANGED });
    }
    refresh();
    done();
  };
  const own = (name: string, label: string, hint: string, input: (props: InputProps) => ReactNode) => (
    <Labelled label={label} hint={hint} error={errors.get(name)}>
      {input}
    </Labelled>
  );
  return (
    <Form label={agent === null ? "Make" : "Save as a new version"} submit={submit} cancel={done}>
      <div className="agent-form" ref={box}>
        {own("name", "Name", "Lower case, as in short-poet.", (props) => (
          <input {...props} name="name" required maxLength={60} defaultValue={agent?.name} autoComplete="off" spellCheck={false} />
        ))}
        {own("description", "Description", "Its purpose, for those who choose an agent.", (props) => (
          <input {...props} name="description" maxLength={300} defaultValue={agent?.description} />
        ))}
        <p className="faint">A field that stays empty inherits its value, unless the box below it is checked.</p>
        {GROUPS.map((group, at) => (
          <Group key={group.title} group={group} isFirst={at === 0} profile={profile} base={base} errors={errors} itself={agent?.name ?? null} chooseBase={setBaseName} accepts={accepts} />
        ))}
        <details className="field-group">
          <summary>Advanced</summary>
          <div className="field-group-body">
            {own("rest", "Other fields", "Parts of the profile that have no input here, as JSON.", (props) => (
              <textarea {...props} name="rest" rows={4} className="mono" spellCheck={false} defaultValue={writtenRest(profile)} />
            ))}
          </div>
        </details>
        {own("note", "Note", "The reason for this version.", (props) => (
          <input {...props} name="note" maxLength={200} />
        ))}
        {agent === null && <ForAllUsers />}
      </div>
    </Form>
  );
}

/** Returns the profile that empty fields inherit from, as far as this user may see it. `base` is as in `extends`; empty for the agent of the settings. */
function useBase(base: string): Profile | undefined {
  const { data: usual } = useDefaultAgent();
  const [name = "", version] = base.split("@");
  const { data: of } = useAgent(name === "" ? null : name);
  if (base === "") return usual?.effective;
  // The profile of another version is not known here.
  return version === undefined || Number(version) === of?.version ? of?.effective : undefined;
}

/** Returns whether the server accepts a value of a field from this user. */
type Accepts = (path: string, value: string) => boolean;

function useAccepts(): Accepts {
  const { data: me } = useMe();
  const { data: usual } = useDefaultAgent();
  return (path, value) => me?.role !== "member" || acceptsFromMember(path, value, usual?.effective);
}

interface GroupProps {
  group: FieldGroup;
  isFirst: boolean;
  profile: Profile;
  base: Profile | undefined;
  errors: ReadonlyMap<string, string>;
  /** The name of the edited agent, which cannot extend itself. */
  itself: string | null;
  /** Called with the agent that this one is based on; empty for the agent of the settings. */
  chooseBase: (name: string) => void;
  accepts: Accepts;
}

function Group({ group: { title, fields }, isFirst, profile, base, errors, itself, chooseBase, accepts }: GroupProps) {
  const set = fields.filter(({ path }) => valueAt(profile, path) !== undefined).length;
  return (
    <details
      className="field-group"
      open={isFirst}
      data-group={title}
      onInvalidCapture={(event) => {
        // The browser can only show an input that is visible.
        event.currentTarget.open = true;
      }}
    >
      <summary>
        {title} {set > 0 && <span className="faint">{`${set} set`}</span>}
      </summary>
      <div className="field-group-body">
        {fields.map((field) => (
          <AgentInput
            key={field.path}
            field={field}
            initial={written(field, profile)}
            wasNothing={isNothing(field, profile)}
            inherited={inheritedWords(field, base)}
            error={errors.get(field.path)}
            itself={itself}
            chooseBase={chooseBase}
            accepts={accepts}
          />
        ))}
      </div>
    </details>
  );
}

interface InputProps {
  id: string;
  "aria-describedby": string;
  "aria-invalid": boolean | undefined;
}

/** A label, an input and its explanation. */
function Labelled({ label, hint, error, path, children }: { label: string; hint: string; error: string | undefined; path?: string; children: (props: InputProps) => ReactNode }) {
  const id = useId();
  return (
    <div className="field-line" data-field={path}>
      <label className="field-label" htmlFor={id}>
        {label}
      </label>
      {children({ id, "aria-describedby": `${id}-hint${error === undefined ? "" : ` ${id}-error`}`, "aria-invalid": error === undefined ? undefined : true })}
      <Explanation id={id} hint={hint} error={error} />
    </div>
  );
}

function Explanation({ id, hint, error }: { id: string; hint: string; error: string | undefined }) {
  return (
    <>
      <small className="faint" id={`${id}-hint`}>
        {hint}
      </small>
      {error !== undefined && (
        <small className="trouble" id={`${id}-error`} role="alert">
          {brief(error, 400)}
        </small>
      )}
    </>
  );
}

interface AgentInputProps {
  field: AgentField;
  initial: string;
  /** Whether the profile has a value without content. */
  wasNothing: boolean;
  inherited: string;
  error: string | undefined;
  itself: string | null;
  chooseBase: (name: string) => void;
  accepts: Accepts;
}

function AgentInput(props: AgentInputProps) {
  const { field, error } = props;
  const { label, hint, path, kind } = field;
  if (kind === "models" || kind === "tools" || kind === "builtins" || kind === "classes" || kind === "approvals") return <ListInput {...props} />;
  return (
    <Labelled label={label} hint={hint} error={error} path={path}>
      {(input) => <OneInput {...props} input={input} />}
    </Labelled>
  );
}

/** A field with one input, and where an empty value is not an inherited one, with a box that tells them apart. */
function OneInput({ input, ...props }: AgentInputProps & { input: InputProps }) {
  const { field, initial, wasNothing, accepts } = props;
  const [hasText, setHasText] = useState(initial.trim() !== "");
  const [isChecked, setChecked] = useState(wasNothing);
  const common = { ...input, name: field.path, defaultValue: initial };
  if (field.nothing === undefined) return <PlainInput {...props} common={common} />;
  const isNothing = isChecked && !hasText;
  return (
    <>
      <PlainInput {...props} inherited={isNothing ? (field.nothingWords ?? "nothing") : props.inherited} common={{ ...common, onInput: (event) => setHasText(event.currentTarget.value.trim() !== "") }} />
      {(wasNothing || accepts(field.path, ABSENT)) && (
        <label className="check faint">
          <input type="checkbox" name={nothingName(field.path)} checked={isNothing} disabled={hasText} onChange={({ target }) => setChecked(target.checked)} />
          <span>
            {field.nothingWords ?? "Inherit nothing"}
            <span className="unseen">{` for ${field.label}`}</span>
          </span>
        </label>
      )}
    </>
  );
}

function PlainInput({ field, initial, inherited, itself, chooseBase, accepts, common }: AgentInputProps & { common: Common }) {
  const { path, kind, options = [], min, max, step } = field;
  const hint = brief(inherited, 60);
  const accepted = (all: readonly Option[]) => all.filter(([value]) => value === initial || accepts(path, value));
  switch (kind) {
    case "number":
    case "seconds":
      return <input {...common} type="number" inputMode="decimal" min={min} max={max} step={step} placeholder={hint} />;
    case "long":
      return <textarea {...common} rows={path === "system_prompt" ? 5 : 3} placeholder={brief(inherited, 300)} />;
    case "lines":
      return <textarea {...common} rows={2} spellCheck={false} placeholder={hint} />;
    case "json":
      return <textarea {...common} rows={3} className="mono" spellCheck={false} placeholder={hint} />;
    case "choice":
      return <Select common={common} hint={hint} options={accepted(options)} />;
    case "flag":
      return <Select common={common} hint={hint} options={accepted([["true", "yes"], ["false", "no"]])} />;
    case "agent":
      return <AgentSelect common={common} itself={itself} choose={chooseBase} />;
    case "model":
      return <ModelInput common={common} hint={hint} />;
    case "toolChoice":
      return <ToolChoice common={common} hint={hint} />;
    default:
      return <input {...common} autoComplete="off" placeholder={hint} />;
  }
}

type Common = InputProps & { name: string; defaultValue: string; onInput?: (event: { currentTarget: { value: string } }) => void };

/** A choice whose first option inherits. An unknown value stays, also when the options change. */
function Select({ common: { defaultValue, ...common }, hint, options, choose }: { common: Common; hint: string; options: readonly Option[]; choose?: (value: string) => void }) {
  const [chosen, setChosen] = useState(defaultValue);
  const unknown = [...new Set([defaultValue, chosen])].filter((value) => value !== "" && !options.some(([known]) => known === value));
  const change = (value: string) => {
    setChosen(value);
    choose?.(value);
  };
  return (
    <select {...common} value={chosen} onChange={({ target }) => change(target.value)}>
      <option value="">{hint === "" ? "As inherited" : `As inherited: ${hint}`}</option>
      {options.map(([value, words]) => (
        <option key={value} value={value}>
          {words}
        </option>
      ))}
      {unknown.map((value) => (
        <option key={value} value={value}>
          {brief(value, 60)}
        </option>
      ))}
    </select>
  );
}

function AgentSelect({ common, itself, choose }: { common: Common; itself: string | null; choose: (name: string) => void }) {
  const { data = [] } = useAgents();
  const names = data.map(({ name }) => name).filter((name) => name !== itself);
  return <Select common={common} hint="the agent of the settings" options={names.map((name): Option => [name, brief(name, 60)])} choose={choose} />;
}

function ModelInput({ common, hint }: { common: Common; hint: string }) {
  const { data: models = [] } = useModels();
  const id = `${common.id}-models`;
  return (
    <>
      <input {...common} list={id} placeholder={hint} autoComplete="off" spellCheck={false} />
      <datalist id={id}>
        {models.map((model) => (
          <option key={model.id} value={model.id} />
        ))}
      </datalist>
    </>
  );
}

function ToolChoice({ common, hint }: { common: Common; hint: string }) {
  const { data: tools = [] } = useOfferedTools();
  const words: Option[] = [
    ["auto", "the model decides"],
    ["none", "no tool"],
    ["required", "any tool, at first"],
    // A provider then lets the model decide, but "auto" has these words.
    [ABSENT, "not sent"],
  ];
  return <Select common={common} hint={hint} options={[...words, ...tools.map(({ name }): Option => [`tool:${name}`, `${brief(name, 80)}, at first`])]} />;
}

/** A field whose value is a list. */
function ListInput({ field, initial, inherited, error, accepts }: AgentInputProps) {
  const { path, label, hint, kind } = field;
  const { data: models = [] } = useModels();
  const { data: tools = [] } = useOfferedTools();
  const id = useId();
  const props = { path, label, initial, inherited, describedBy: `${id}-hint${error === undefined ? "" : ` ${id}-error`}`, isInvalid: error !== undefined };
  return (
    <div className="field-line" data-field={path}>
      {kind === "models" ? (
        <ModelList {...props} models={models.map((model) => model.id)} />
      ) : kind === "approvals" ? (
        <ApprovalRules {...props} offered={namedTools(tools)} accepts={(tool, mode) => accepts(`${path}/${tool}`, mode)} />
      ) : (
        <NameChoice {...props} offered={kind === "classes" ? RETRYABLE.map((name) => ({ name, about: "" })) : namedTools(kind === "tools" ? tools : tools.filter(({ server }) => server === undefined))} />
      )}
      <Explanation id={id} hint={hint} error={error} />
    </div>
  );
}
