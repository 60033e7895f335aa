// API keys: a new one is shown once, and each can be revoked.

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import * as api from "../api/client";
import type { ApiKey } from "../api/types";
import { Dialog } from "../shell/dialog";
import { useMe } from "../shell/me";
import { queries } from "../shell/queries";
import { CopyButton } from "../text/markdown";
import { brief, date, spelled } from "../text/words";
import { Action, Failure, Field, Form, Section, textOf } from "./parts";

const shown = (text: string): string => brief(spelled(text), 100);

export function Keys() {
  const { data: me } = useMe();
  if (me === undefined) return null;
  return (
    <Section title="Keys" hint="With a key, a program uses this server as you. Keys in the settings of the server are not listed.">
      {me.keys && <CreateKey />}
      <KeyList user={me.id} />
    </Section>
  );
}

/** A form for a new key: of the caller, or of a user who is named in it. */
export function CreateKey({ isForUser = false }: { isForUser?: boolean }) {
  const [made, setMade] = useState<ApiKey | null>(null);
  const submit = async (values: FormData) => {
    const role = textOf(values, "role");
    const user = isForUser && { user: textOf(values, "user"), ...(role !== "" && { role }) };
    setMade(await api.post<ApiKey>("/keys", { label: textOf(values, "label"), ...user }));
    void queries.invalidateQueries({ queryKey: ["keys"] });
    void queries.invalidateQueries({ queryKey: ["users"] });
  };
  if (made?.key !== undefined) {
    const { key, label, user } = made;
    return (
      <div className="card new-key" role="status">
        <p>{`The key “${shown(label)}” of ${shown(user)} is shown only now:`}</p>
        <p>
          <code className="secret">{key}</code>
        </p>
        <div className="buttons">
          <CopyButton text={() => key} label="Copy the key" className="primary" />
          <button type="button" onClick={() => setMade(null)}>
            Hide it
          </button>
        </div>
      </div>
    );
  }
  return (
    <div className="card">
      <Form label={isForUser ? "Create a user’s key" : "Create a key"} submit={submit}>
        {isForUser && (
          <>
            <Field label="User" hint="A new user is created with the key.">
              <input name="user" required maxLength={100} autoComplete="off" spellCheck={false} />
            </Field>
            <Field label="Role of a new user">
              <select name="role" defaultValue="">
                <option value="">member, or as it is</option>
                <option value="admin">administrator</option>
              </select>
            </Field>
          </>
        )}
        <Field label="Label" hint="The program or device that gets the key.">
          <input name="label" required maxLength={100} autoComplete="off" />
        </Field>
      </Form>
    </div>
  );
}

/** The keys of a user, newest first. Those that are revoked are folded. */
export function KeyList({ user }: { user: string }) {
  const { data, error } = useQuery({ queryKey: ["keys", user], queryFn: () => api.all<ApiKey>(`/keys?user_id=${user}`) });
  const live = data?.filter((key) => key.revoked_at === undefined) ?? [];
  const revoked = data?.filter((key) => key.revoked_at !== undefined) ?? [];
  return (
    <>
      <Failure error={error} />
      {data !== undefined && live.length === 0 && <p className="faint">There are no keys.</p>}
      {live.map((key) => (
        <KeyCard key={key.id} apiKey={key} />
      ))}
      {revoked.length > 0 && (
        <details>
          <summary>{`Revoked keys (${revoked.length})`}</summary>
          {revoked.map((key) => (
            <KeyCard key={key.id} apiKey={key} />
          ))}
        </details>
      )}
    </>
  );
}

function KeyCard({ apiKey: { id, label, created_at, revoked_at } }: { apiKey: ApiKey }) {
  const [isAsking, setAsking] = useState(false);
  return (
    <div className="card" data-key={label}>
      <div className="card-head">
        <strong>{shown(label)}</strong>
        <span className="faint">{`created ${date(created_at)}${revoked_at === undefined ? "" : `, revoked ${date(revoked_at)}`}`}</span>
        <span className="fill" />
        {revoked_at === undefined && (
          <button type="button" className="small" onClick={() => setAsking(true)} aria-label={`Revoke the key ${shown(label)}`}>
            Revoke
          </button>
        )}
      </div>
      <Dialog label="Revoke the key" isOpen={isAsking} close={() => setAsking(false)} className="ask-revoke">
        <p>{`Programs and browsers with the key “${shown(label)}” lose their access now and for good.`}</p>
        <div className="buttons">
          <button type="button" onClick={() => setAsking(false)}>
            Cancel
          </button>
          <Action
            className="danger"
            act={async () => {
              await api.remove(`/keys/${id}`);
              await queries.invalidateQueries({ queryKey: ["keys"] });
            }}
          >
            Revoke the key
          </Action>
        </div>
      </Dialog>
    </div>
  );
}
