// Permissions that the user gave, and changed tools that wait for a review.

import { useQuery } from "@tanstack/react-query";

import * as api from "../api/client";
import type { ToolGrant } from "../api/types";
import { queries, useReviews, useServerName } from "../shell/queries";
import { brief, clock, spelled } from "../text/words";
import { Action, Section } from "./parts";
import { ReviewCard } from "./review";

export function Permissions() {
  const { data } = useQuery({ queryKey: ["grants"], queryFn: async () => (await api.get<{ data: ToolGrant[] }>("/tool-grants")).data });
  const { data: reviews } = useReviews();
  return (
    <>
      <Section title="Permissions" hint="Calls that you allowed for a conversation, or always.">
        {data?.length === 0 && <p className="faint">Every call that needs a permission asks you.</p>}
        {data?.map((grant) => <GrantCard key={grant.id} grant={grant} />)}
      </Section>
      <Section title="Changed tools" hint="A server changed these tools after you first used them. They are not offered until you accept the change.">
        {reviews?.length === 0 && <p className="faint">No tool waits for a review.</p>}
        {reviews?.map((review) => <ReviewCard key={review.id} review={review} />)}
      </Section>
    </>
  );
}

function GrantCard({ grant }: { grant: ToolGrant }) {
  const server = useServerName(grant.server);
  return (
    <div className="card" data-grant={grant.tool}>
      <div className="card-head">
        <code>{brief(spelled(grant.tool), 80)}</code>
        {server !== "" && <span className="faint">{`of ${brief(spelled(server), 60)}`}</span>}
        <span className="faint">{clock(grant.created_at)}</span>
        {grant.conversation_id === undefined ? <span className="tag">always</span> : <a href={`#/${grant.conversation_id}`}>in one conversation</a>}
        <span className="fill" />
        <Action
          act={async () => {
            await api.remove(`/tool-grants/${grant.id}`);
            await queries.invalidateQueries({ queryKey: ["grants"] });
          }}
        >
          Take back
        </Action>
      </div>
    </div>
  );
}
