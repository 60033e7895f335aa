// The account of the user: role, groups and default model.

import { setDefaultModel, useMe } from "../shell/me";
import { brief } from "../text/words";
import { Action, Section } from "./parts";

export function Account() {
  const { data: me } = useMe();
  if (me === undefined) return null;
  return (
    <Section title="Account" hint={me.keys ? undefined : <>This server needs no keys. All its callers are this user. <code>capstan keys create</code> makes the first key.</>}>
      <dl className="facts account">
        <div>
          <dt>Name</dt>
          <dd>{brief(me.name, 100)}</dd>
        </div>
        <div>
          <dt>Role</dt>
          <dd>{me.role === "admin" ? "administrator" : me.role}</dd>
        </div>
        <div>
          <dt>Groups</dt>
          <dd>{me.groups.length === 0 ? "none" : me.groups.join(", ")}</dd>
        </div>
        <div>
          <dt>Id</dt>
          <dd>
            <code>{me.id}</code>
          </dd>
        </div>
        <div>
          <dt>Default model</dt>
          <dd>
            {me.model === undefined ? "not known yet" : brief(me.model, 120)} {me.default_model === undefined ? <span className="tag">of the server</span> : <Action act={() => setDefaultModel(null)}>Use the server’s</Action>}
          </dd>
        </div>
      </dl>
    </Section>
  );
}
