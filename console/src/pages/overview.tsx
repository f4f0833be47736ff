// Is all well? In a sentence, in numbers, on the map, and in words.

import { useState } from "preact/hooks";
import { alter, type Address } from "../address";
import type { Activity, HomeFacts } from "../api";
import { addressOf, type Home, mapOf } from "../home";
import { NotKept } from "../home_then";
import { useStatus } from "../live";
import { around, HomeMap, MapList } from "../map/home_map";
import { Announce } from "../shell";
import { Name, Value } from "../value";
import { type Walk, WalkPanel } from "../walk";
import { count, counted, instant, moment, rate, span } from "../words";

const SHOWN = 8;

export function Overview({ home, address, walk }: { home: Home; address: Address; walk: Walk | null }) {
  const facts = home.facts as HomeFacts;
  const at = address.query.get("at");
  const status = useStatus();
  const chosen = address.query.get("around");
  const whole = mapOf(facts, home.trends);
  const shown = around(whole.nodes, whole.edges, chosen);
  const looks = facts.wants_a_look.length;
  const sentence = facts.well.sentence;
  return (
    <>
      <h1>
        {sentence} {looks > 0 && <span class="then">{looks === 1 ? "One thing wants a look." : `${count(looks)} things want a look.`}</span>}
      </h1>
      <Announce text={sentence} />
      <Facts facts={facts} />
      <div class="grid">
        <div class="stack">
          <section class="panel map" aria-label="Map of the home">
            {whole.nodes.length === 0 ? (
              <p class="empty">
                There is nothing here yet. Create a topic with mainstem topic create, or run a program with mainstem run.
              </p>
            ) : (
              <>
                {shown.nodes.length < whole.nodes.length && <Chooser whole={whole.nodes.length} shown={shown.nodes.length} home={facts} chosen={chosen} />}
                <div class="map-scroll">
                  <HomeMap nodes={shown.nodes} edges={shown.edges} moving={status.state === "live" && !at} />
                </div>
                <MapList nodes={shown.nodes} edges={shown.edges} />
              </>
            )}
          </section>
          <Feed activity={facts.activity} now={instant(facts.home.at)} />
        </div>
        <aside class="rail" aria-label="What wants a look">
          {walk && <WalkPanel walk={walk} />}
          <section class="panel pad look">
            <h2>Look here</h2>
            {looks === 0 && <p class="soft">Nothing wants a look.</p>}
            {facts.wants_a_look.slice(0, 12).map((look) => (
              <Look look={look} facts={facts} key={`${look.id} ${look.text}`} />
            ))}
            {looks > 12 && <p class="dim">and {count(looks - 12)} more</p>}
          </section>
        </aside>
      </div>
    </>
  );
}

function Facts({ facts }: { facts: HomeFacts }) {
  const flows = facts.nodes.filter((node) => node.kind === "flow");
  const running = flows.filter((node) => node.state === "running");
  const worst = facts.nodes.find((node) => node.id === facts.totals.worst_lag_of);
  const tooLate = flows.reduce((sum, node) => sum + (node.too_late ?? 0), 0);
  const queues = facts.nodes.filter((node) => node.rejected);
  const { totals } = facts;
  return (
    <div class="facts num">
      <div class="fact">
        <b>
          {rate(totals.rows_per_second)} <small>rows/s</small>
        </b>
        <span>appended, last 10 s</span>
      </div>
      <div class="fact">
        <b>
          {running.length} of {flows.length}
        </b>
        <span>flows running</span>
      </div>
      <div class="fact">
        <b>{span(totals.worst_lag_seconds)}</b>
        <span>{totals.worst_lag_seconds > 0 && worst ? <>furthest behind: {worst.kind} <Name of={worst.name} /></> : "nothing is behind"}</span>
      </div>
      <div class="fact">
        <b>{count(totals.late)} late</b>
        <span>{tooLate ? `in 15 min; ${count(tooLate)} more too late` : "in 15 min; none too late"}</span>
      </div>
      <div class="fact">
        <b>{count(totals.rejected)} rejected</b>
        <span>{facts.then ? <>by flows; <NotKept what="of queues" /></> : queues.length ? <>in <Name of={queues.map((node) => node.name).slice(0, 2).join(", ")} />, with their reason</> : "rows or messages"}</span>
      </div>
    </div>
  );
}

function Chooser({ whole, shown, home, chosen }: { whole: number; shown: number; home: HomeFacts; chosen: string | null }) {
  return (
    <div class="tools">
      <label>
        Around
        <select class="field" value={chosen ?? ""} onChange={(event) => alter({ around: event.currentTarget.value })}>
          <option value="">what flows</option>
          {home.nodes.map((node) => (
            <option value={node.id} key={node.id}>
              {node.kind} {node.name}
            </option>
          ))}
        </select>
      </label>
      <span class="small dim">
        {shown} of {counted(whole, "node")}{chosen ? ": two steps around it" : ""}
      </span>
    </div>
  );
}

function Look({ look, facts }: { look: HomeFacts["wants_a_look"][number]; facts: HomeFacts }) {
  const node = facts.nodes.find((candidate) => candidate.id === look.id);
  const address = node && addressOf(node);
  const tag = /rejected/.test(look.text) ? "rejected" : /killed/.test(look.text) ? "killed" : /failed/.test(look.text) ? "failed" : /cannot be read/.test(look.text) ? "unreadable" : "held back";
  const text = <Value value={look.text} short={240} />;
  return (
    <p>
      <span class={`tag ${tag === "held back" ? "t-early" : "t-gone"}`}>{tag}</span> {address ? <a href={address}><b>{text}</b></a> : <b>{text}</b>}
      {look.cause && <> <Value value={look.cause} short={240} /></>} {look.hint && <span class="dim"><Value value={look.hint} short={240} /></span>}
    </p>
  );
}

const TAGS: [RegExp, string][] = [
  [/kill|fail|reject|too late|fenced/, "t-gone"],
  [/late|correct/, "t-late"],
  [/wait|early|stop/, "t-early"],
  [/begun|restart|complete|used|ended/, "t-on"],
];

function Feed({ activity, now }: { activity: Activity[]; now: number }) {
  const [all, setAll] = useState(false);
  const shown = all ? activity : activity.slice(0, SHOWN);
  return (
    <section class="panel feed">
      <h2>What just happened</h2>
      {activity.length === 0 ? (
        <p class="small soft">Nothing yet: runs that begin, end, fail or are killed are listed here.</p>
      ) : (
        <ul>
          {shown.map((entry, index) => (
            <li key={`${entry.at} ${index}`}>
              <span class="dim num">{entry.at === null ? "" : moment(instant(entry.at), now, 1)}</span>
              <span>
                <span class={`tag ${TAGS.find(([pattern]) => pattern.test(entry.what ?? ""))?.[1] ?? "t-plain"}`}>{entry.what ?? "noted"}</span>
              </span>
              <span class="wide">
                {entry.subject} <b><Name of={entry.name ?? ""} /></b>
              </span>
              <span class="dim wide">
                <Value value={[entry.text, entry.detail].filter(Boolean).join(". ") || "no more is known"} short={200} />
                {entry.what === "acted" && entry.who && <>, by <Value value={entry.who} /></>}
              </span>
            </li>
          ))}
        </ul>
      )}
      {activity.length > SHOWN && (
        <button type="button" class="more" aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? "fewer" : `${activity.length - SHOWN} more`}
        </button>
      )}
    </section>
  );
}
