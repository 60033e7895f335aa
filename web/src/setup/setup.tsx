// The set up: models, tools, agents and permissions, the audit of calls, and the account.

import { Tabs } from "radix-ui";

import { Account } from "./account";
import { Agents } from "./agents";
import { Audit } from "./audit";
import { Models } from "./models";
import { Permissions } from "./permissions";
import { Servers } from "./servers";

const PAGES = [
  { id: "models", title: "Models", view: Models },
  { id: "tools", title: "Tools", view: Servers },
  { id: "agents", title: "Agents", view: Agents },
  { id: "permissions", title: "Permissions", view: Permissions },
  { id: "audit", title: "Audit", view: Audit },
  { id: "account", title: "Account", view: Account },
] as const;

export default function Setup({ page, go }: { page: string | null; go: (to: string) => void }) {
  const shown = PAGES.find((one) => one.id === page)?.id ?? "models";
  return (
    <div className="scroll-page">
      <Tabs.Root className="setup" value={shown} onValueChange={(value) => go(`setup/${value}`)}>
        <Tabs.List className="tabs" aria-label="Set up">
          {PAGES.map(({ id, title }) => (
            <Tabs.Trigger key={id} value={id} className="tab">
              {title}
            </Tabs.Trigger>
          ))}
        </Tabs.List>
        {PAGES.map(({ id, view: View }) => (
          <Tabs.Content key={id} value={id} tabIndex={-1}>
            <View />
          </Tabs.Content>
        ))}
      </Tabs.Root>
    </div>
  );
}
