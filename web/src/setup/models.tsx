// Providers and their models.

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import * as api from "../api/client";
import type { Provider, ProviderModel, TestedProvider } from "../api/types";
import { setDefaultModel, useMe } from "../shell/me";
import { queries } from "../shell/queries";
import { toast } from "../shell/toasts";
import { brief, tokens } from "../text/words";
import { AddProvider } from "./add-provider";
import { Action, Field, Form, Scope, Section, State, textOf, useMayChange } from "./parts";

const refresh = (): void => {
  void queries.invalidateQueries({ queryKey: ["providers"] });
  void queries.invalidateQueries({ queryKey: ["models"] });
};

export function Models() {
  const { data, error } = useQuery({ queryKey: ["providers"], queryFn: () => api.all<Provider>("/providers") });
  const { data: me } = useMe();
  const [isAdding, setAdding] = useState(false);
  return (
    <Section
      title="Models"
      hint={me?.model === undefined ? undefined : `New conversations use ${brief(me.model, 80)}.`}
      actions={
        <button type="button" className="primary small" onClick={() => setAdding(true)} disabled={isAdding}>
          Add a provider
        </button>
      }
    >
      {isAdding && (
        <div className="card">
          <AddProvider
            cancel={() => setAdding(false)}
            done={(model) => {
              setAdding(false);
              if (model !== null) void setDefaultModel(model).then(() => toast({ words: `New conversations use ${model}.` }));
            }}
          />
        </div>
      )}
      {error !== null && <p className="trouble">{api.words(error)}</p>}
      {data?.length === 0 && <p className="faint">No provider is connected. The demonstration model answers until one is.</p>}
      {data?.map((provider) => <ProviderCard key={provider.id} provider={provider} />)}
    </Section>
  );
}

function ProviderCard({ provider }: { provider: Provider }) {
  const [isOpen, setOpen] = useState(false);
  const [tested, setTested] = useState<TestedProvider | null>(null);
  const [isReplacing, setReplacing] = useState(false);
  const mayChange = useMayChange(provider.scope);
  const path = `/providers/${provider.id}`;
  const test = async () => setTested(await api.post<TestedProvider>(`${path}/test`));
  const replaceKey = async (values: FormData) => {
    await api.patch(path, { key: textOf(values, "key") });
    setReplacing(false);
    refresh();
    await test();
  };
  return (
    <div className="card" data-provider={provider.name}>
      <div className="card-head">
        <strong>{brief(provider.name, 60)}</strong>
        <Scope scope={provider.scope} />
        {!provider.enabled && <State look="off">off</State>}
        {tested !== null && <State look={tested.ok ? "good" : "bad"}>{tested.ok ? `answers in ${tested.latency_ms} ms` : brief(tested.error?.detail ?? "no answer", 200)}</State>}
        <span className="fill" />
        <Action act={test}>Test</Action>
        {mayChange && !isReplacing && (
          <button type="button" className="small replace-key" onClick={() => setReplacing(true)}>
            {provider.key.set ? "Replace the key" : "Add a key"}
          </button>
        )}
        {mayChange && <Action act={() => api.patch(path, { enabled: !provider.enabled }).then(refresh)}>{provider.enabled ? "Turn off" : "Turn on"}</Action>}
        {mayChange && <Action className="small danger" act={() => api.remove(path).then(refresh)}>Remove</Action>}
      </div>
      <p className="faint">
        {[provider.kind, provider.base_url, provider.key.set ? `key ${provider.key.hint ?? "stored"}` : null].filter(Boolean).join(" · ")}
      </p>
      {isReplacing && (
        <Form label="Save and test" submit={replaceKey} cancel={() => setReplacing(false)}>
          <Field label="New key" hint="It is stored encrypted, and never shown again.">
            <input name="key" type="password" required autoFocus autoComplete="off" spellCheck={false} />
          </Field>
        </Form>
      )}
      {!mayChange && provider.key.set && tested?.ok === false && <p className="faint">An administrator can replace this key.</p>}
      <details onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>Models</summary>
        {isOpen && <ProviderModels provider={provider} />}
      </details>
    </div>
  );
}

function ProviderModels({ provider }: { provider: Provider }) {
  const { data, error } = useQuery({ queryKey: ["models", provider.id], queryFn: () => api.all<ProviderModel>(`/providers/${provider.id}/models`) });
  const { data: me } = useMe();
  if (error !== null) return <p className="trouble">{api.words(error)}</p>;
  if (data === undefined) return <p className="faint">Asking the provider…</p>;
  return (
    <div className="list-scroll" role="region" aria-label={`Models of ${brief(provider.name, 60)}`} tabIndex={0}>
      <ul className="model-list">
        {data.map((model) => (
          <li key={model.model}>
            <span className="words">{brief(model.name, 80)}</span>
            <span className="faint">
              {[model.context === undefined ? null : `${tokens(model.context)} context`, model.prices === undefined ? null : `$${model.prices.input} in, $${model.prices.output} out per M`].filter(Boolean).join(" · ")}
            </span>
            {me?.model === model.model ? <State look="good">default</State> : <Action act={() => setDefaultModel(model.model)}>Make default</Action>}
          </li>
        ))}
      </ul>
    </div>
  );
}
