// Asks for a key, when the server wants one.

import { useEffect, useRef, useState, type SyntheticEvent } from "react";

import * as api from "../api/client";
import { Dialog } from "./dialog";

export function KeyDialog({ used }: { used: () => void }) {
  const [isOpen, setOpen] = useState(false);
  const [trouble, setTrouble] = useState("");
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => api.onLockedOut(() => setOpen(true)), []);
  const submit = async (event: SyntheticEvent) => {
    event.preventDefault();
    const key = field.current?.value.trim() ?? "";
    if (field.current !== null) field.current.value = "";
    try {
      await api.signIn(key);
      setOpen(false);
      used();
    } catch (error) {
      setTrouble(error instanceof api.Problem && error.status === 401 ? "This key does not let you in." : api.words(error));
    }
  };
  return (
    <Dialog id="key-dialog" label="This server wants a key" isOpen={isOpen}>
      <form id="key-form" onSubmit={submit}>
        <h2>Sign in</h2>
        <p>
          This browser stays signed in for 30 days, in all tabs. <code>capstan keys create --user NAME</code> makes a key.
        </p>
        <label>
          Key <input ref={field} type="password" id="key" required autoComplete="current-password" spellCheck={false} autoFocus />
        </label>
        <p id="key-trouble" role="alert" hidden={trouble === ""}>
          {trouble}
        </p>
        <div className="buttons">
          <button type="submit" className="primary">
            Sign in
          </button>
        </div>
      </form>
    </Dialog>
  );
}
