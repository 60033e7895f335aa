// The card of a server without a model: connects one, and makes it the default.

import { useState } from "react";

import { words } from "../api/client";
import { AddProvider } from "../setup/add-provider";
import { setDefaultModel, useMe } from "../shell/me";
import { toast } from "../shell/toasts";

export default function FirstRun() {
  const { data: me } = useMe();
  const [isDone, setDone] = useState(false);
  const isDemo = me !== undefined && (me.model === undefined || me.model.startsWith("demo/"));
  if (!isDemo || isDone) return null;
  const done = (model: string | null) => {
    setDone(true);
    if (model === null) return;
    setDefaultModel(model).then(
      () => toast({ words: `New conversations use ${model}.` }),
      (error: unknown) => toast({ words: words(error) }),
    );
  };
  return (
    <div className="card first-run">
      <h3>Connect a model</h3>
      <p className="faint">Only the offline demonstration answers so far. Choose where your models come from:</p>
      <AddProvider done={done} />
    </div>
  );
}
