// A form of a JSON Schema: a flat object with plain values, as models and MCP servers ask for.

import type { ReactNode } from "react";

import { exact, spelling, typedNumber } from "../api/json";
import { brief, spelled } from "../text/words";

interface Schema {
  type?: string;
  title?: string;
  description?: string;
  default?: unknown;
  format?: string;
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
  enum?: unknown[];
  enumNames?: unknown[];
  oneOf?: { const?: unknown; title?: unknown }[];
  anyOf?: { const?: unknown; title?: unknown }[];
  items?: Schema;
}

export interface FormSchema {
  properties?: Record<string, Schema | null>;
  required?: unknown;
}

interface Choice {
  /** The value as it is sent. */
  value: unknown;
  label: string;
  /** Its spelling in the schema. */
  spelt: string;
}

const TYPES: Record<string, string> = { date: "date", email: "email", uri: "url", "date-time": "datetime-local" };

const words = (text: string, most = 120): string => brief(spelled(text), most);

/** Returns the values to choose from; none if the schema names none. */
function choices(schema: Schema | undefined): Choice[] {
  const titled = schema?.oneOf ?? schema?.anyOf;
  const isPlain = (value: unknown) => ["string", "number", "boolean"].includes(typeof value);
  const choice = (holder: object, name: string | number, title: unknown): Choice => {
    const spelt = spelling(holder, name);
    return { value: exact(holder, name), label: typeof title === "string" ? title : spelt, spelt };
  };
  if (Array.isArray(titled)) return titled.filter((one) => isPlain(one.const)).map((one) => choice(one, "const", one.title));
  const { enum: values, enumNames } = schema ?? {};
  if (!Array.isArray(values)) return [];
  return values.flatMap((value, at) => (isPlain(value) ? [choice(values, at, enumNames?.[at])] : []));
}

/** Returns a typed number, to be sent as it was typed. Throws if this browser would round it. */
function numeric(text: string): unknown {
  const number = typedNumber(text);
  if (number === undefined) throw new RangeError(`This browser would round ${text}: answer with a shorter number, or with another browser`);
  return number;
}

const isNumber = (schema: Schema | undefined): boolean => schema?.type === "number" || schema?.type === "integer";

/** The fields of a form. `prefix` makes their ids unique on the page. */
export function SchemaFields({ schema, prefix }: { schema: FormSchema; prefix: string }) {
  const required = new Set(Array.isArray(schema.required) ? schema.required : []);
  return (
    <>
      {Object.entries(schema.properties ?? {}).map(([name, one], at) => (
        <Field key={name} name={name} schema={one ?? {}} isRequired={required.has(name)} id={`${prefix}-${at}`} />
      ))}
    </>
  );
}

function Field({ name, schema, isRequired, id }: { name: string; schema: Schema; isRequired: boolean; id: string }) {
  const label = words(schema.title ?? name) + (isRequired ? "" : " (optional)");
  const help = schema.description ? <small id={`${id}-help`}>{words(schema.description, 500)}</small> : null;
  const common = { id, required: isRequired, "aria-describedby": help === null ? undefined : `${id}-help` };
  const line = (control: ReactNode) => (
    <div className="line">
      <label htmlFor={id}>{label}</label>
      {control}
      {help}
    </div>
  );
  if (schema.type === "boolean") {
    return (
      <div className="line check">
        <input type="checkbox" id={id} defaultChecked={schema.default === true} aria-describedby={common["aria-describedby"]} />
        <label htmlFor={id}>{label}</label>
        {help}
      </div>
    );
  }
  if (schema.type === "array") {
    const preset = Array.isArray(schema.default) ? schema.default : [];
    const options = choices(schema.items);
    const spelt = preset.map((_, at) => spelling(preset, at));
    if (options.length === 0) return line(<textarea {...common} rows={3} placeholder="One in each line" defaultValue={spelt.join("\n")} />);
    return (
      <fieldset className="line">
        <legend>{label}</legend>
        {options.map((option, at) => (
          <div className="check" key={at}>
            <input type="checkbox" id={`${id}-${at}`} defaultChecked={spelt.includes(option.spelt)} />
            <label htmlFor={`${id}-${at}`}>{words(option.label)}</label>
          </div>
        ))}
        {help}
      </fieldset>
    );
  }
  const options = choices(schema);
  if (options.length > 0) {
    const preset = "default" in schema ? options.findIndex((option) => option.spelt === spelling(schema, "default")) : -1;
    return line(
      <select {...common} defaultValue={preset < 0 ? "" : String(preset)}>
        <option value="">—</option>
        {options.map((option, at) => (
          <option key={at} value={at}>
            {words(option.label)}
          </option>
        ))}
      </select>,
    );
  }
  if (isNumber(schema)) {
    const bound = (member: "minimum" | "maximum" | "default") => (typeof schema[member] === "number" ? spelling(schema, member) : undefined);
    return line(<input {...common} type="number" min={bound("minimum")} max={bound("maximum")} step={schema.type === "integer" ? 1 : "any"} defaultValue={bound("default")} />);
  }
  const type = TYPES[schema.format ?? ""] ?? "text";
  const preset = typeof schema.default === "string" ? schema.default : undefined;
  return line(<input {...common} type={type} minLength={schema.minLength} maxLength={schema.maxLength} defaultValue={preset} />);
}

/** Reads the values of a form inside `root`. Throws if one cannot be sent. */
export function readForm(schema: FormSchema, prefix: string, root: HTMLElement): Record<string, unknown> {
  const required = new Set(Array.isArray(schema.required) ? schema.required : []);
  const found: Record<string, unknown> = {};
  for (const [at, [name, one]] of Object.entries(schema.properties ?? {}).entries()) {
    const value = readField(one ?? {}, required.has(name), `${prefix}-${at}`, root);
    if (value !== undefined) found[name] = value;
  }
  return found;
}

function readField(schema: Schema, isRequired: boolean, id: string, root: HTMLElement): unknown {
  const control = (suffix = "") => root.querySelector<HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement>(`[id="${CSS.escape(id + suffix)}"]`);
  const text = control()?.value ?? "";
  if (schema.type === "boolean") return (control() as HTMLInputElement | null)?.checked === true;
  if (schema.type === "array") {
    const options = choices(schema.items);
    const lines = () => text.split("\n").map((one) => one.trim()).filter(Boolean);
    const chosen =
      options.length === 0
        ? lines().map((one) => (isNumber(schema.items) ? numeric(one) : one))
        : options.filter((_, at) => (control(`-${at}`) as HTMLInputElement | null)?.checked === true).map(({ value }) => value);
    return chosen.length === 0 && !isRequired ? undefined : chosen;
  }
  const options = choices(schema);
  if (options.length > 0) return text === "" ? undefined : options[Number(text)]?.value;
  if (isNumber(schema)) return text === "" ? undefined : numeric(text);
  if (text === "") return isRequired ? "" : undefined;
  return schema.format === "date-time" ? new Date(text).toISOString() : text;
}
