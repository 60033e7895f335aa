// Fields of an agent that are lists: models in their order, names that are chosen, and permissions of tools. Each has a hidden input with its JSON.

import { useId, useState, type ReactNode } from "react";

import { parse, print } from "../api/json";
import type { ToolDefinition } from "../api/types";
import { Icon } from "../shell/icons";
import { brief, spelled } from "../text/words";

/** Lists that are longer have a search. */
const SEARCHED = 12;

const shown = (name: string): string => brief(spelled(name), 80);
/** Returns the JSON in a field; `undefined` for an empty field. */
const read = (text: string): unknown => (text === "" ? undefined : parse(text));
const rulesIn = (value: unknown): Record<string, unknown> => (typeof value === "object" && value !== null ? { ...value } : {});
const namesIn = (value: unknown): string[] => (Array.isArray(value) ? value.filter((name) => typeof name === "string") : []);

interface ListProps {
  path: string;
  label: string;
  /** The ids of the texts that describe the field. */
  describedBy: string;
  isInvalid: boolean;
  /** The JSON of the value; empty where it is inherited. */
  initial: string;
  inherited: string;
}

/** The frame of a list, with the value that is sent. */
function List({ path, label, describedBy, isInvalid, initial, value, children }: Pick<ListProps, "path" | "label" | "describedBy" | "isInvalid" | "initial"> & { value: string; children: ReactNode }) {
  // The inputs cannot show every value, such as "none" or an empty object. Such a value stays until a person changes the list.
  const [unchanged] = useState(value);
  return (
    <fieldset className="field-list" aria-describedby={describedBy} data-invalid={isInvalid ? "" : undefined} tabIndex={-1}>
      <legend className="field-label">{label}</legend>
      <input type="hidden" name={path} value={value === unchanged ? initial : value} />
      {children}
    </fieldset>
  );
}

const asInherited = (inherited: string): string => (inherited === "" ? "As inherited" : `As inherited: ${brief(inherited, 60)}`);

/** Models in their order. */
export function ModelList({ models, ...props }: ListProps & { models: readonly string[] }) {
  const [list, setList] = useState<string[] | null>(() => (props.initial === "" ? null : namesIn(read(props.initial))));
  const [typed, setTyped] = useState("");
  const id = useId();
  const add = () => {
    const model = typed.trim();
    if (model !== "" && list?.includes(model) === false) setList([...list, model]);
    setTyped("");
  };
  const move = (at: number) => {
    const next = [...(list ?? [])];
    next.splice(at - 1, 0, ...next.splice(at, 1));
    setList(next);
  };
  return (
    <List {...props} value={list === null ? "" : JSON.stringify(list)}>
      <select aria-label={props.label} value={list === null ? "" : "own"} onChange={({ target }) => setList(target.value === "" ? null : [])}>
        <option value="">{asInherited(props.inherited)}</option>
        <option value="own">These models, in this order</option>
      </select>
      {list !== null && (
        <>
          {list.length === 0 && <p className="faint">No model replaces the first one.</p>}
          <ol className="chosen-models">
            {list.map((model, at) => (
              <li key={model}>
                <code>{shown(model)}</code>
                <button type="button" className="quiet small" disabled={at === 0} aria-label={`Move ${shown(model)} up`} onClick={() => move(at)}>
                  Up
                </button>
                <button type="button" className="quiet icon" aria-label={`Remove ${shown(model)}`} title="Remove" onClick={() => setList(list.filter((other) => other !== model))}>
                  <Icon name="close" />
                </button>
              </li>
            ))}
          </ol>
          <div className="add-line">
            <input
              list={id}
              aria-label="Model to add"
              placeholder="provider/name"
              autoComplete="off"
              spellCheck={false}
              value={typed}
              onChange={({ target }) => setTyped(target.value)}
              onKeyDown={(event) => {
                // The key must not send the whole form.
                if (event.key !== "Enter") return;
                event.preventDefault();
                add();
              }}
            />
            <datalist id={id}>
              {models.map((model) => (
                <option key={model} value={model} />
              ))}
            </datalist>
            <button type="button" onClick={add}>
              Add
            </button>
          </div>
        </>
      )}
    </List>
  );
}

/** A name of a list, with a few words about it. */
export interface Named {
  name: string;
  about: string;
}

export const namedTools = (tools: readonly ToolDefinition[]): Named[] => tools.map(({ name, description }) => ({ name, about: description }));

/** Returns the names that can be chosen: those on offer, and those that were chosen before. */
function withChosen(offered: readonly Named[], chosen: readonly string[]): Named[] {
  const missing = chosen.filter((name) => !offered.some((one) => one.name === name));
  return [...offered, ...missing.map((name) => ({ name, about: "not offered now" }))];
}

function Search({ label, query, set }: { label: string; query: string; set: (query: string) => void }) {
  return <input type="search" aria-label={`Search: ${label}`} placeholder="Search" value={query} onChange={({ target }) => set(target.value)} />;
}

/** All names of a list, or some of them. */
export function NameChoice({ offered, ...props }: ListProps & { offered: readonly Named[] }) {
  const before = read(props.initial);
  const [mode, setMode] = useState<"" | "all" | "some">(before === undefined ? "" : Array.isArray(before) ? "some" : before === null ? "all" : "some");
  const [chosen, setChosen] = useState<ReadonlySet<string>>(() => new Set(namesIn(before)));
  const [query, setQuery] = useState("");
  const names = withChosen(offered, namesIn(before));
  const toggle = (name: string, isOn: boolean) => setChosen(new Set(isOn ? [...chosen, name] : [...chosen].filter((other) => other !== name)));
  return (
    <List {...props} value={mode === "" ? "" : mode === "all" ? "null" : JSON.stringify([...chosen])}>
      <select aria-label={props.label} value={mode} onChange={({ target }) => setMode(target.value as typeof mode)}>
        <option value="">{asInherited(props.inherited)}</option>
        <option value="all">All</option>
        <option value="some">Only those that are chosen</option>
      </select>
      {mode === "some" && (
        <>
          {names.length > SEARCHED && <Search label={props.label} query={query} set={setQuery} />}
          <ul className="name-choice" role="list" aria-label={props.label}>
            {names.map(({ name, about }) => (
              <li key={name} hidden={!name.toLowerCase().includes(query.toLowerCase())}>
                <label className="check">
                  <input type="checkbox" checked={chosen.has(name)} onChange={({ target }) => toggle(name, target.checked)} />
                  <span>
                    <code>{shown(name)}</code> <span className="faint">{brief(about, 120)}</span>
                  </span>
                </label>
              </li>
            ))}
          </ul>
        </>
      )}
    </List>
  );
}

const MODES = [
  ["", "as its server says"],
  ["auto", "runs without asking"],
  ["ask", "asks first, unless allowed before"],
  ["always_ask", "asks before each call"],
] as const;

/** Returns the words of a permission that is not set. */
function inheritedMode(mode: unknown): string {
  if (typeof mode !== "string") return MODES[0][1];
  return `as inherited: ${MODES.find(([known]) => known === mode)?.[1] ?? brief(mode, 60)}`;
}

/** The permission of each tool. `accepts` returns whether this user may set a permission. */
export function ApprovalRules({ offered, accepts, ...props }: ListProps & { offered: readonly Named[]; accepts: (tool: string, mode: string) => boolean }) {
  const before = rulesIn(read(props.initial));
  const [rules, setRules] = useState<Record<string, unknown>>(before);
  const inherited = rulesIn(read(props.inherited));
  const [query, setQuery] = useState("");
  const names = withChosen(offered, Object.keys({ ...inherited, ...rules }));
  const set = (name: string, mode: string) => setRules(Object.fromEntries([...Object.entries(rules).filter(([other]) => other !== name), ...(mode === "" ? [] : [[name, mode] as const])]));
  return (
    <List {...props} value={Object.keys(rules).length === 0 ? "" : print(rules)}>
      {names.length === 0 && <p className="faint">No tool is offered now.</p>}
      {names.length > SEARCHED && <Search label={props.label} query={query} set={setQuery} />}
      <ul className="name-choice" role="list" aria-label={props.label}>
        {names.map(({ name }) => (
          <li key={name} hidden={!name.toLowerCase().includes(query.toLowerCase())} className="rule-line">
            <code>{shown(name)}</code>
            <select aria-label={`Permission of ${shown(name)}`} value={typeof rules[name] === "string" ? rules[name] : ""} onChange={({ target }) => set(name, target.value)}>
              {MODES.filter(([mode]) => mode === "" || mode === before[name] || accepts(name, mode)).map(([mode, words]) => (
                <option key={mode} value={mode}>
                  {mode === "" ? inheritedMode(inherited[name]) : words}
                </option>
              ))}
            </select>
          </li>
        ))}
      </ul>
    </List>
  );
}
