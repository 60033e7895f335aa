// Connects a provider: its key or address is stored and tested, and one of its models is chosen.

import { useRef, useState } from "react";

import * as api from "../api/client";
import type { Provider, ProviderModel, TestedProvider } from "../api/types";
import { queries } from "../shell/queries";
import { brief } from "../text/words";
import { Login } from "./login";
import { Action, Field, Form, textOf } from "./parts";

interface Kind {
  id: string;
  title: string;
  kind: Provider["kind"];
  name: string;
  url?: string;
  /** Whether the user types the address. */
  asksUrl?: boolean;
  asksKey: boolean;
  hint: string;
}

const KINDS: Kind[] = [
  { id: "ollama", title: "Ollama", kind: "ollama", name: "ollama", url: "http://127.0.0.1:11434", asksUrl: true, asksKey: false, hint: "Models on this machine, without a key." },
  { id: "openai", title: "OpenAI", kind: "openai", name: "openai", asksKey: true, hint: "A key begins with sk-." },
  { id: "anthropic", title: "Anthropic", kind: "anthropic", name: "anthropic", asksKey: true, hint: "A key begins with sk-ant-." },
  { id: "gemini", title: "Gemini", kind: "gemini", name: "gemini", asksKey: true, hint: "A key of Google AI Studio." },
  { id: "openrouter", title: "OpenRouter", kind: "openai", name: "openrouter", url: "https://openrouter.ai/api/v1", asksKey: true, hint: "Many models with one key, or with a login." },
  { id: "other", title: "Other", kind: "openai", name: "custom", asksUrl: true, asksKey: true, hint: "Any server with the API of OpenAI: LM Studio, vLLM, llama.cpp and others." },
];

/** A provider whose models are to be chosen from. */
interface Ready {
  provider: Provider;
  models: ProviderModel[];
}

/** Steps: choose a kind, connect, choose a model. `done` gets the chosen model. */
export function AddProvider({ done, cancel }: { done: (model: string | null) => void; cancel?: () => void }) {
  const [kind, setKind] = useState<Kind | null>(null);
  const [ready, setReady] = useState<Ready | null>(null);
  if (ready !== null) return <ChooseModel ready={ready} done={done} />;
  return (
    <div className="add-provider">
      <div className="kinds" role="group" aria-label="Provider">
        {KINDS.map((one) => (
          <button key={one.id} type="button" className={`kind${kind?.id === one.id ? " on" : ""}`} aria-pressed={kind?.id === one.id} data-kind={one.id} onClick={() => setKind(one)}>
            {one.title}
          </button>
        ))}
      </div>
      {kind !== null && <Connect key={kind.id} kind={kind} ready={setReady} {...(cancel === undefined ? {} : { cancel })} />}
      {kind === null && cancel !== undefined && (
        <button type="button" onClick={cancel}>
          Cancel
        </button>
      )}
    </div>
  );
}

function refresh(): void {
  void queries.invalidateQueries({ queryKey: ["providers"] });
  void queries.invalidateQueries({ queryKey: ["models"] });
}

/** Stores the provider, and removes it again if its test fails, so that a second attempt begins afresh. */
async function connect(kind: Kind, values: FormData): Promise<Ready> {
  const url = textOf(values, "url") || kind.url;
  const key = textOf(values, "key");
  const body = { name: textOf(values, "name") || kind.name, kind: kind.kind, ...(url === undefined ? {} : { base_url: url }), ...(key === "" ? {} : { key }) };
  const provider = await api.post<Provider>("/providers", body, api.newKey());
  try {
    const models = await api.all<ProviderModel>(`/providers/${provider.id}/models`);
    const first = models[0];
    if (first === undefined) throw new api.Problem(0, { detail: kind.kind === "ollama" ? "Ollama has no models yet: pull one, for example with `ollama pull qwen3:4b`" : "the provider lists no models" });
    refresh();
    return { provider, models };
  } catch (error) {
    await api.remove(`/providers/${provider.id}`).catch(() => undefined);
    throw error;
  }
}

function Connect({ kind, ready, cancel }: { kind: Kind; ready: (ready: Ready) => void; cancel?: () => void }) {
  return (
    <Form label="Connect" {...(cancel === undefined ? {} : { cancel })} submit={async (values) => ready(await connect(kind, values))}>
      <p className="faint">{kind.hint}</p>
      {kind.id === "openrouter" && (
        <div className="buttons">
          <OpenRouterLogin ready={ready} />
        </div>
      )}
      {kind.id === "other" && (
        <Field label="Name" hint="A model is then called NAME/model.">
          <input name="name" required pattern="[a-z0-9][a-z0-9_\-]{0,31}" defaultValue={kind.name} autoComplete="off" spellCheck={false} />
        </Field>
      )}
      {kind.asksUrl === true && (
        <Field label="Address">
          <input name="url" type="url" required defaultValue={kind.url} placeholder="http://127.0.0.1:1234/v1" autoComplete="off" spellCheck={false} />
        </Field>
      )}
      {kind.asksKey && (
        <Field label="Key" hint="It is stored encrypted, and never shown again.">
          <input name="key" type="password" required={kind.id !== "other"} autoComplete="off" spellCheck={false} />
        </Field>
      )}
    </Form>
  );
}

/** The provider of the user's login at OpenRouter, if there is one. */
const ofLogin = async () => (await api.all<Provider>("/providers")).find(({ name, scope, key }) => name === "openrouter" && scope === "own" && key.set);

function OpenRouterLogin({ ready }: { ready: (ready: Ready) => void }) {
  /** The time of the last change before the login, which changes the provider. */
  const before = useRef<string | undefined>(undefined);
  const begin = async () => {
    before.current = (await ofLogin())?.updated_at;
    return api.post<{ url: string; expires_in: number }>("/providers/openrouter/login");
  };
  const check = async () => {
    const provider = await ofLogin();
    if (provider === undefined || provider.updated_at === before.current) return false;
    const models = await api.all<ProviderModel>(`/providers/${provider.id}/models`);
    refresh();
    ready({ provider, models });
    return true;
  };
  return (
    <Login begin={begin} check={check}>
      Log in to OpenRouter
    </Login>
  );
}

/** Lists the models of a provider, of which one is chosen and tested. `done` gets it, or `null`. */
export function ChooseModel({ ready: { provider, models }, done }: { ready: Ready; done: (model: string | null) => void }) {
  const [query, setQuery] = useState("");
  const shown = models.filter((model) => model.model.toLowerCase().includes(query.toLowerCase())).slice(0, 60);
  const choose = async (model: string) => {
    const tested = await api.post<TestedProvider>(`/providers/${provider.id}/test`, { model: model.slice(provider.name.length + 1) });
    if (!tested.ok) throw new api.Problem(0, { detail: tested.error?.detail ?? "the model does not answer" });
    done(model);
  };
  return (
    <div className="choose-model">
      <p>
        <strong>{`${brief(provider.name, 60)} is connected.`}</strong> Choose the model for new conversations:
      </p>
      {models.length > 8 && <input type="search" aria-label="Search models" placeholder="Search models" value={query} onChange={(event) => setQuery(event.target.value)} />}
      <div className="list-scroll" role="region" aria-label="Models" tabIndex={0}>
        <ul className="model-list">
          {shown.map((model) => (
            <li key={model.model}>
              <span className="words">{brief(model.name, 80)}</span>
              <Action act={() => choose(model.model)} className="small choose">
                Use
              </Action>
            </li>
          ))}
        </ul>
      </div>
      <button type="button" className="quiet small" onClick={() => done(null)}>
        Not now
      </button>
    </div>
  );
}
