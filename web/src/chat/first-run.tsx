// The card that is shown while no model is chosen. The user connects a provider, or chooses a model of a local one.

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import * as api from "../api/client";
import type { Provider, ProviderModel } from "../api/types";
import { AddProvider, ChooseModel } from "../setup/add-provider";
import { setDefaultModel, useMe } from "../shell/me";
import { toast } from "../shell/toasts";

/** Providers on this machine, which the server finds without a setting. */
const LOCAL = /^(ollama|lmstudio|llamacpp|vllm)\//;

export default function FirstRun() {
  const { data: me } = useMe();
  const [isDone, setDone] = useState(false);
  if (me === undefined || isDone) return null;
  const done = (model: string | null) => {
    setDone(true);
    if (model === null) return;
    setDefaultModel(model).then(
      () => toast({ words: `New conversations use ${model}.` }),
      (error: unknown) => toast({ words: api.words(error) }),
    );
  };
  // On a server with keys, the administrator chooses the default model.
  if (!me.keys && me.default_model === undefined && LOCAL.test(me.model ?? "")) return <LocalModels model={me.model ?? ""} done={done} />;
  if (me.model !== undefined && !me.model.startsWith("demo/")) return null;
  return (
    <div className="card first-run">
      <h3>Connect a model</h3>
      <p className="faint">Only the offline demonstration answers so far. Choose where your models come from:</p>
      <AddProvider done={done} />
    </div>
  );
}

/** The models of a local provider that was found. Without a choice, its first model stays the default. */
function LocalModels({ model, done }: { model: string; done: (model: string | null) => void }) {
  const name = model.slice(0, model.indexOf("/"));
  const { data } = useQuery({
    queryKey: ["found", name],
    queryFn: async () => {
      const provider = (await api.all<Provider>("/providers")).find((one) => one.name === name);
      return provider === undefined ? null : { provider, models: await api.all<ProviderModel>(`/providers/${provider.id}/models`) };
    },
  });
  if (data == null || data.models.length < 2) return null;
  return (
    <div className="card first-run">
      <ChooseModel ready={data} done={(chosen) => done(chosen ?? model)} />
    </div>
  );
}
