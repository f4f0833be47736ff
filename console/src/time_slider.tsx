// The last hour as a slider: drag it, and the page is as it was. What was appended is drawn above it, and what happened.

import { useEffect, useRef, useState } from "preact/hooks";
import { alter } from "./address";
import type { HomeFacts } from "./api";
import { useAnswer } from "./ask";
import { Plot } from "./plot";
import { Name } from "./value";
import { clock, instant, moment } from "./words";

const MINUTES = 60;
const POINTS = 120;
const STEP_MS = 10_000;
const SETTLE_MS = 150;
/** These are named below the line; whatever else happened is a fine mark. */
const BAD = /kill|fail/;

interface History {
  bucket_seconds: number;
  points: { at: string; rows?: number; rows_in?: number }[];
}

/** The rows of every bucket of the span, so that the plot lies over the slider: without a report there were none. */
function wholeSpan(history: History | null, first: number, last: number): [number, number][] {
  if (!history) return [];
  const step = history.bucket_seconds * 1000;
  const rows = new Map(history.points.map((point) => [Math.round((instant(point.at) - first) / step), point.rows ?? point.rows_in ?? 0]));
  return Array.from({ length: Math.ceil((last - first) / step) }, (_, index) => [first + index * step, rows.get(index) ?? 0]);
}

/** Those whose words have room. */
function spreadOut<T extends { part: number }>(marks: T[]): T[] {
  const kept: T[] = [];
  for (const mark of marks) {
    if (mark.part > 0.2 && mark.part < 0.8 && kept.every((other) => Math.abs(other.part - mark.part) > 0.2)) kept.push(mark);
  }
  return kept;
}

/** `subject`: whose rows are drawn above it, by default those of the busiest topic. */
export function TimeSlider({ facts, subject, at, live }: { facts: HomeFacts; subject: string | null; at: number | null; live: number }) {
  const now = instant(facts.home.at);
  const known = facts.nodes.find((node) => node.id === subject);
  const busiest = known ?? [...facts.nodes].filter((node) => node.kind === "topic").sort((a, b) => (b.rows_per_second ?? 0) - (a.rows_per_second ?? 0) || Number(b.records ?? 0) - Number(a.records ?? 0))[0];
  const last = Math.ceil(now / STEP_MS) * STEP_MS;
  // Who looks further back than an hour sees that time too.
  const hour = last - MINUTES * 60_000;
  const first = at !== null && at < hour ? Math.floor((at - (last - at) / 10) / STEP_MS) * STEP_MS : hour;
  const query = busiest && new URLSearchParams({ of: busiest.id, from: new Date(first).toISOString(), to: new Date(last).toISOString(), points: String(POINTS) });
  const { content } = useAnswer<History>(query ? `api/history?${query}` : null, Math.floor(live / 10));
  const [shown, setShown] = useState(at ?? last);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => setShown(at ?? last), [at, last]);
  const points = wholeSpan(content, first, last);
  const marks = facts.activity
    .filter((entry) => entry.at !== null && instant(entry.at) > first)
    .map((entry) => ({ what: entry.what ?? "", bad: BAD.test(entry.what ?? ""), part: (instant(entry.at) - first) / (last - first) }));
  return (
    <section class="panel time" aria-label="Time">
      <div>
        <h2>Time</h2>
        <small class="dim">drag: the page as it was</small>
      </div>
      <div class="slide">
        <Plot
          times={points.map(([at]) => at)}
          lines={[{ stroke: "accent", fill: "accent-soft", values: points.map(([, rows]) => rows) }]}
          label={`Rows of ${busiest?.name ?? "the topics"} over time`}
        />
        <div class="marks" aria-hidden="true">
          {marks.map(({ part, bad }) => (
            <i key={part} class={bad ? "bad" : undefined} style={{ left: `${part * 100}%` }} />
          ))}
        </div>
        <input
          type="range"
          aria-label="Time shown"
          aria-valuetext={at === null ? "now" : `${clock(shown)} UTC`}
          min={first}
          max={last}
          step={STEP_MS}
          value={shown}
          onInput={(event) => {
            const wanted = Number(event.currentTarget.value);
            setShown(wanted);
            clearTimeout(timer.current);
            timer.current = setTimeout(() => alter({ at: wanted >= last ? null : new Date(wanted).toISOString() }), SETTLE_MS);
          }}
        />
        <div class="ticks num" aria-hidden="true">
          <span>{moment(first, now).slice(0, -3)}</span>
          {spreadOut(marks.filter(({ bad }) => bad)).map(({ what, part }) => (
            <b key={part} style={{ left: `${part * 100}%` }}>
              {what}
            </b>
          ))}
          <span>{clock(last).slice(0, 5)}</span>
        </div>
      </div>
      <div class="shown num">
        <b>{at === null ? "now" : clock(shown)}</b>
        <br />
        <small class="dim">{busiest ? <>rows of <Name of={busiest.name} /></> : ""}</small>
      </div>
    </section>
  );
}
