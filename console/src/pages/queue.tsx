// A queue: what waits, is held, delayed or parked, and what was rejected, with the reason.

import { link } from "../address";
import type { Column, HomeFacts, Lag, Row } from "../api";
import { useAnswer } from "../ask";
import { ProblemPanel } from "../problem_panel";
import { RowTable } from "../table";
import { Name } from "../value";
import { count, counted, instant, moment, span, type Whole } from "../words";

interface QueueFacts {
  topic: string;
  queue: string;
  rejected_topic: string;
  settings: Record<string, unknown>;
  held: number;
  returned: number;
  due: number;
  parked: number;
  rejecting: number;
  rejected: number;
  counts: Record<string, Whole>;
  lag: Lag;
}

interface Records {
  columns: Column[];
  rows: (Row & { record: { partition: number; offset: string; appended_at: string } })[];
}

const REASON: Column[] = [
  { name: "cause", type: "why" },
  { name: "reason", type: "in words" },
  { name: "deliveries", type: "INT" },
  { name: "last_error", type: "the worker's" },
];

export function QueuePage({ topic, queue, home, live }: { topic: string; queue: string; home: HomeFacts; live: number }) {
  const { content: facts, problem } = useAnswer<QueueFacts>(`api/queues/${encodeURIComponent(topic)}/${encodeURIComponent(queue)}`, live);
  const rejected = useAnswer<Records>(facts && facts.rejected > 0 ? `api/topics/${encodeURIComponent(facts.rejected_topic)}/records?limit=50` : null, facts?.rejected);
  const now = instant(home.home.at);
  if (problem && !facts) return <ProblemPanel whole problem={problem} />;
  if (!facts) return null;
  const waiting = Number(facts.lag.records);
  const delivered = facts.counts["delivered"] ?? 0;
  return (
    <>
      <div class="crumb">
        <a href={link("queues")}>Queues</a> / <Name of={topic} /> / <Name of={queue} />
      </div>
      <h1>
        <Name of={`${topic} / ${queue}`} />
        {facts.rejected > 0 ? <span class="tag t-gone">{count(facts.rejected)} rejected</span> : <span class="tag t-on">none rejected</span>}
      </h1>
      <p class="words">
        Workers take messages of the topic <a href={link("topics", topic)}><b><Name of={topic} /></b></a> and acknowledge each. <b>{counted(delivered, "delivery", "deliveries")}</b> so far, {count(facts.counts["acknowledged"] ?? 0)} acknowledged.{" "}
        {waiting ? <>The oldest message waits for {span(facts.lag.seconds ?? 0)}.</> : "Nothing waits."}
      </p>
      <div class="facts num">
        {([
          [waiting, "waiting", "not done yet"],
          [facts.held, "held", "by a worker, until its lease ends"],
          [facts.returned - facts.due > 0 ? facts.returned - facts.due : 0, "delayed", "released, to be delivered later"],
          [facts.parked, "parked", "behind a message of the same key"],
          [facts.rejected, "rejected", "with their reason, below"],
        ] as [number, string, string][]).map(([value, word, said]) => (
          <div class="fact" key={word}>
            <b>
              {count(value)} {word}
            </b>
            <span>{said}</span>
          </div>
        ))}
      </div>
      {problem && <ProblemPanel problem={problem} />}
      <section class="body">
        <h2>Rejected messages</h2>
        <div class="gap" />
        {rejected.problem && <ProblemPanel problem={rejected.problem} />}
        {facts.rejected === 0 ? (
          <div class="panel">
            <p class="empty">
              No message was rejected. One that is goes to the topic <Name of={facts.rejected_topic} />, with its reason.
            </p>
          </div>
        ) : (
          rejected.content && (
            <RowTable
              label="Rejected messages"
              columns={[...REASON, ...rejected.content.columns.filter((column) => column.name !== "rejection")]}
              rows={[...rejected.content.rows].reverse().map((row) => ({ ...(row["rejection"] as Row | null), ...row }))}
              nameOf={(row) => JSON.stringify(row["record"])}
              lead={[{ title: "rejected", cell: (row) => moment(instant((row as Records["rows"][number]).record.appended_at), now, 1) }]}
              empty="They are no longer kept."
            />
          )
        )}
      </section>
    </>
  );
}
