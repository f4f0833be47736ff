// A queue: what waits, is held, delayed or parked, and what was rejected, with the reason.

import { useEffect, useRef, useState } from "preact/hooks";
import { Acting, Action, Permission, useSession } from "../action";
import { type Address, link } from "../address";
import type { HomeFacts, Lag, Row } from "../api";
import { useAnswer } from "../ask";
import { ProblemPanel } from "../problem_panel";
import { FactTable } from "../table";
import { Name, Value } from "../value";
import { ago, count, counted, instant, moment, span, type Whole } from "../words";

interface Message {
  position: string;
  appended_at?: string | null;
  deliveries: number;
  last_error: string | null;
  held_by?: string;
  pid?: number | null;
  held_until?: string | null;
  taken_at?: string | null;
  due_at?: string | null;
  cause?: string;
  reason?: string | null;
  rejected_at?: string | null;
  row?: Row | null;
}

interface QueueFacts {
  topic: string;
  queue: string;
  rejected_topic: string;
  waiting: number;
  held: number;
  delayed: number;
  parked: number;
  rejected: number;
  counts: Record<string, Whole>;
  lag: Lag;
  messages: { held: Message[]; delayed: Message[]; parked: Message[]; rejected: Message[] };
}

export function QueuePage({ topic, queue, address, home, live }: { topic: string; queue: string; address: Address; home: HomeFacts; live: number }) {
  if (!address.query.get("at")) return <QueueNow topic={topic} queue={queue} home={home} live={live} />;
  return (
    <>
      <div class="crumb">
        <a href={link("queues")}>Queues</a> / <Name of={topic} /> / <Name of={queue} />
      </div>
      <h1>
        <Name of={`${topic} / ${queue}`} />
      </h1>
      <p class="words">
        A queue keeps no history: how many messages waited, were held, delayed or parked then is <span class="unkept">not kept</span>. What is in its topic <a href={link("topics", topic)}><b><Name of={topic} /></b></a> and what was rejected, in{" "}
        <a href={link("topics", `${topic}.${queue}.rejected`)}><b><Name of={`${topic}.${queue}.rejected`} /></b></a>, is known by append time.
      </p>
    </>
  );
}

function QueueNow({ topic, queue, home, live }: { topic: string; queue: string; home: HomeFacts; live: number }) {
  const [done, setDone] = useState<{ times: number; text: string }>({ times: 0, text: "" });
  const said = useRef<HTMLParagraphElement>(null);
  useEffect(() => said.current?.focus(), [done.times]);
  const settled = (text: string) => setDone({ times: done.times + 1, text });
  const { content: facts, problem } = useAnswer<QueueFacts>(`api/queues/${encodeURIComponent(topic)}/${encodeURIComponent(queue)}`, `${live} ${done.times}`);
  const actions = useSession()?.actions ?? [];
  const settling = actions.includes("restore") || actions.includes("drop");
  const now = instant(home.home.at);
  if (problem && !facts) return <ProblemPanel whole problem={problem} />;
  if (!facts) return <h1><Name of={`${topic} / ${queue}`} /></h1>;
  const { held, delayed, parked, rejected } = facts.messages;
  const behind = Number(facts.lag.records);
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
        Workers take messages of the topic <a href={link("topics", topic)}><b><Name of={topic} /></b></a> and acknowledge each. <b>{counted(facts.counts["delivered"] ?? 0, "delivery", "deliveries")}</b> so far, {count(facts.counts["acknowledged"] ?? 0)} acknowledged.{" "}
        {behind ? <>The oldest message that is not done was appended {span(facts.lag.seconds ?? 0)} ago.</> : "All is done."}
      </p>
      <div class="facts num">
        {([
          [facts.waiting, "waiting", "to be taken"],
          [facts.held, "held", "by a worker, until its lease ends"],
          [facts.delayed, "delayed", "released, to be delivered later"],
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
        {rejected.length > 0 && <Permission name="restore" to="Restore" command={`mainstem queue restore ${topic} ${queue} ${rejected[0]?.position ?? ""}`} />}
        {done.text && (
          <p class="small how" role="status" tabIndex={-1} ref={said}>
            <span class="tag t-on">done</span> <Value value={done.text} short={400} />
          </p>
        )}
        <FactTable
          label="Rejected messages"
          names={rejected.map((message) => message.position)}
          heads={[["rejected", "left"], ["message", "left"], ["reason", "left"], ["deliveries", "right"], ["row", "left"], ...(settling ? [["action", "left"] as [string, "left"]] : [])]}
          rows={rejected.map((message) => [
            message.rejected_at ? moment(instant(message.rejected_at), now, 1) : "",
            message.position,
            <>
              {message.cause && message.cause !== "rejected" && <span class="tag t-gone">{message.cause}</span>} <Value value={message.reason ?? message.last_error ?? "no reason was given"} />
            </>,
            count(message.deliveries),
            <Value value={message.row} />,
            ...(settling
              ? [
                  <span class="tools" key={message.position}>
                    {actions.includes("restore") && <Action name="restore" label="Restore" body={{ topic, queue, positions: [message.position] }} onDone={settled} />}
                    {actions.includes("drop") && <Action name="drop" label="Drop" danger body={{ topic, queue, positions: [message.position] }} onDone={settled} />}
                  </span>,
                ]
              : []),
          ])}
          empty={`No message is rejected. One that is goes to the topic ${facts.rejected_topic}, with its reason.`}
        />
        <Acting />
        <div class="wide-gap" />
        <h2>Held, delayed and parked</h2>
        <div class="gap" />
        <FactTable
          label="Held, delayed and parked messages"
          heads={[["message", "left"], ["state", "left"], ["deliveries", "right"], ["last error", "left"]]}
          rows={[
            ...held.map((message) => [message.position, <><span class="tag t-acc">held</span> by {message.pid ? `process ${message.pid}` : (message.held_by ?? "a worker")}{message.taken_at ? `, taken ${ago(instant(message.taken_at), now)}` : ""}</>, count(message.deliveries), <Value value={message.last_error ?? ""} />]),
            ...delayed.map((message) => [message.position, <><span class="tag t-early">delayed</span> {message.due_at ? `until ${moment(instant(message.due_at), now)}` : ""}</>, count(message.deliveries), <Value value={message.last_error ?? ""} />]),
            ...parked.map((message) => [message.position, <span class="tag t-plain">parked</span>, count(message.deliveries), <Value value={message.last_error ?? ""} />]),
          ]}
          empty="No message is held, delayed or parked."
        />
      </section>
    </>
  );
}
