// A page as it was: the home of then, and what is said above such a page.

import { alter } from "./address";
import type { HomeFacts } from "./api";
import { type Answer, useAnswer } from "./ask";
import { instant, moment } from "./words";

export function useHomeThen(at: string | null): Answer<HomeFacts> {
  const answer = useAnswer<HomeFacts>(at ? `api/home?${new URLSearchParams({ at })}` : null);
  // Not that of another time while this one is being read.
  return answer.old ? { ...answer, content: null } : answer;
}

const KEPT: Record<string, string> = {
  "": "Topics, flows, captures and views that keep history are of then; queues and stores keep none.",
  flows: "By what happened and by the reports of its batches, which are kept for 7 days.",
  topics: "By append time: what was appended later is not here.",
  views: "Views that keep history are as they were; others say that they do not.",
  queues: "Queues keep no history.",
  query: "Topics are read by append time; views must keep history.",
};

export function ThenBanner({ at, now, page }: { at: string; now: number; page: string }) {
  const valid = !Number.isNaN(instant(at));
  return (
    <p class="then-banner">
      <span>
        <b>{valid ? `As it was at ${moment(instant(at), now, 1)} UTC.` : "This is not a time."}</b> {KEPT[page] ?? ""}
      </span>
      <button type="button" class="btn chief" onClick={() => alter({ at: null })}>
        Back to now
      </button>
    </p>
  );
}

/** What has no history is said, never guessed. */
export function NotKept({ what }: { what?: string }) {
  return <span class="dim unkept">{what ? `${what}: not kept` : "not kept"}</span>;
}
