// The set up: models, tools, agents and permissions, the audit of calls, keys, users, settings, and the account.

import { Tabs } from "radix-ui";

import { useMe } from "../shell/me";
import { Account } from "./account";
import { Agents } from "./agents";
import { Audit } from "./audit";
import { Keys } from "./keys";
import { Models } from "./models";
import { Permissions } from "./permissions";
import { Servers } from "./servers";
import { Settings } from "./settings";
import { Users } from "./users";

const PAGES = [
  { id: "models", title: "Models", view: Models },
  { id: "tools", title: "Tools", view: null },
  { id: "agents", title: "Agents", view: Agents },
  { id: "permissions", title: "Permissions", view: Permissions },
  { id: "audit", title: "Audit", view: Audit },
  { id: "keys", title: "Keys", view: Keys },
  { id: "users", title: "Users", view: Users },
  { id: "settings", title: "Settings", view: Settings },
  { id: "account", title: "Account", view: Account },
] as const;

export default function Setup({ page, part, go }: { page: string | null; part: string | null; go: (to: string) => void }) {
  const { data: me } = useMe();
  const pages = PAGES.filter(({ id }) => (id !== "users" && id !== "settings") || me?.role === "admin");
  const shown = pages.find((one) => one.id === page)?.id ?? "models";
  return (
    <div className="scroll-page">
      <Tabs.Root className="setup" value={shown} onValueChange={(value) => go(`setup/${value}`)}>
        <Tabs.List className="tabs" aria-label="Set up">
          {pages.map(({ id, title }) => (
            <Tabs.Trigger key={id} value={id} className="tab">
              {title}
            </Tabs.Trigger>
          ))}
        </Tabs.List>
        {pages.map(({ id, view: View }) => (
          <Tabs.Content key={id} value={id} tabIndex={-1}>
            {View === null ? <Servers target={part} /> : <View />}
          </Tabs.Content>
        ))}
      </Tabs.Root>
    </div>
  );
}
