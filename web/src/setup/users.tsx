// The users of the server, for administrators: roles, groups and keys.

import { useState } from "react";

import * as api from "../api/client";
import type { User } from "../api/types";
import { useMe } from "../shell/me";
import { queries, useUsers } from "../shell/queries";
import { brief, date, spelled } from "../text/words";
import { CreateKey, KeyList } from "./keys";
import { Failure, Field, Form, Section, textOf } from "./parts";

export function Users() {
  const { data: me } = useMe();
  const { data, error } = useUsers(true);
  return (
    <Section title="Users" hint="The role and the groups of a user apply to all their keys.">
      {me?.keys === true && <CreateKey isForUser />}
      <Failure error={error} />
      {data?.map((user) => (
        <UserCard key={user.id} user={user} isSelf={user.id === me?.id} />
      ))}
    </Section>
  );
}

function UserCard({ user, isSelf }: { user: User; isSelf: boolean }) {
  const [isOpen, setOpen] = useState(false);
  const submit = async (values: FormData) => {
    const role = textOf(values, "role");
    const groups = textOf(values, "groups").split(/[\s,]+/).filter(Boolean);
    await api.patch<User>(`/users/${user.id}`, { groups, ...(role !== "" && { role }) });
    await queries.invalidateQueries({ queryKey: ["users"] });
    if (isSelf) await queries.invalidateQueries({ queryKey: ["me"] });
  };
  return (
    <div className="card" data-user={user.name}>
      <div className="card-head">
        <strong>{brief(spelled(user.name), 100)}</strong>
        {isSelf && <span className="faint">you</span>}
        {user.role === "admin" && <span className="tag">administrator</span>}
        {user.groups.map((group) => (
          <span key={group} className="tag">
            {group}
          </span>
        ))}
        <span className="fill" />
        <span className="faint">{`since ${date(user.created_at)}`}</span>
      </div>
      <details onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>Role, groups and keys</summary>
        {isOpen && (
          <>
            <Form label="Save" submit={submit}>
              <Field label="Role" {...(isSelf && { hint: "Another administrator can change yours." })}>
                <select name="role" defaultValue={user.role} disabled={isSelf}>
                  <option value="member">member</option>
                  <option value="admin">administrator</option>
                </select>
              </Field>
              <Field label="Groups" hint="Names with spaces between them.">
                <input name="groups" defaultValue={user.groups.join(" ")} autoComplete="off" spellCheck={false} />
              </Field>
            </Form>
            <KeyList user={user.id} />
          </>
        )}
      </details>
    </div>
  );
}
