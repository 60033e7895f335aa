// Permissions that the user gave, and changed tools that wait for a review.

import { useQuery } from "@tanstack/react-query";

import * as api from "../api/client";
import { print } from "../api/json";
import { queries } from "../shell/queries";
import { brief, clock, spelled } from "../text/words";
import { Action, Section } from "./parts";

interface Grant {
  id: string;
  conversation_id?: string;
  server?: string;
  tool: string;
  created_at: string;
}

interface Definition {
  description: string;
  parameters: object;
}

export interface Review extends Definition {
  id: string;
  server: string;
  tool: string;
  before?: Definition;
  seen_at: string;
}

export const useReviews = () =>
  useQuery({ queryKey: ["reviews"], queryFn: async () => (await api.get<{ data: Review[] }>("/tool-pins?status=changed")).data });

export function Permissions() {
  const { data } = useQuery({ queryKey: ["grants"], queryFn: async () => (await api.get<{ data: Grant[] }>("/tool-grants")).data });
  const { data: reviews } = useReviews();
  return (
    <>
      <Section title="Permissions" hint="Calls that you allowed for a conversation, or always.">
        {data?.length === 0 && <p className="faint">Every call that needs a permission asks you.</p>}
        {data?.map((grant) => (
          <div key={grant.id} className="card" data-grant={grant.tool}>
            <div className="card-head">
              <code>{brief(spelled(grant.tool), 80)}</code>
              {grant.server !== undefined && <span className="faint">{`of ${brief(spelled(grant.server), 60)}`}</span>}
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
        ))}
      </Section>
      <Section title="Changed tools" hint="A server changed these tools after you first used them. They are not offered until you accept the change.">
        {reviews?.length === 0 && <p className="faint">No tool waits for a review.</p>}
        {reviews?.map((review) => <ReviewCard key={review.id} review={review} />)}
      </Section>
    </>
  );
}

export function ReviewCard({ review }: { review: Review }) {
  return (
    <div className="card">
      <div className="card-head">
        <code>{brief(spelled(review.tool), 80)}</code>
        <span className="faint">{`of ${brief(spelled(review.server), 60)} · changed ${clock(review.seen_at)}`}</span>
        <span className="fill" />
        <Action
          act={async () => {
            await api.post(`/tool-pins/${review.id}/accept`);
            await queries.invalidateQueries({ queryKey: ["reviews"] });
          }}
        >
          Accept the change
        </Action>
      </div>
      <pre className="diff">
        {review.before !== undefined && <span data-sign="-">{`- ${brief(spelled(review.before.description), 1_000)}\n- ${brief(spelled(print(review.before.parameters)), 1_000)}\n`}</span>}
        <span data-sign="+">{`+ ${brief(spelled(review.description), 1_000)}\n+ ${brief(spelled(print(review.parameters)), 1_000)}\n`}</span>
      </pre>
    </div>
  );
}
