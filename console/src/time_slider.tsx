// The last hour as a slider: drag it, and the page is as it was. What was appended is drawn above it, and what happened.

import { useEffect, useRef, useState } from "preact/hooks";
import { alter } from "./address";
import type { HomeFacts } from "./api";
import { useAnswer } from "./ask";
import { Plot } from "./plot";
import { Name } from "./value";
import { clock, instant } from "./words";

const MINUTES = 60;
const POINTS = 120;
const STEP_MS = 10_000;
const SETTLE_MS = 150;

interface History {
  bucket_seconds: number;
  points: { at: string; rows: number }[];
}

/** Those whose words have room. */
function spreadOut<T extends { part: number }>(marks: T[]): T[] {
  const kept: T[] = [];
  for (const mark of marks) {
    if (mark.part > 0.2 && mark.part < 0.8 && kept.every((other) => Math.abs(other.part - mark.part) > 0.2)) kept.push(mark);
  }
  return kept;
}

export function TimeSlider({ facts, now, at, live }: { facts: HomeFacts; now: number; at: number | null; live: number }) {
  const busiest = [...facts.nodes].filter((node) => node.kind === "topic").sort((a, b) => (b.rows_per_second ?? 0) - (a.rows_per_second ?? 0) || Number(b.records ?? 0) - Number(a.records ?? 0))[0];
  const last = Math.ceil(now / STEP_MS) * STEP_MS;
  const first = last - MINUTES * 60_000;
  const query = busiest && new URLSearchParams({ of: busiest.id, from: new Date(first).toISOString(), to: new Date(last).toISOString(), points: String(POINTS) });
  const { content } = useAnswer<History>(query ? `api/history?${query}` : null, Math.floor(live / 10));
  const [shown, setShown] = useState(at ?? last);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => setShown(at ?? last), [at, last]);
  const points = content?.points ?? [];
  const marks = facts.activity
    .filter((entry) => /kill|fail/.test(entry.what ?? "") && entry.at !== null && instant(entry.at) > first)
    .map((entry) => ({ what: entry.what ?? "", part: (instant(entry.at) - first) / (last - first) }));
  return (
    <section class="panel time" aria-label="Time">
      <div>
        <h2>Time</h2>
        <small class="dim">drag: the page as it was</small>
      </div>
      <div class="slide">
        <Plot
          times={points.map((point) => instant(point.at))}
          lines={[{ stroke: "accent", fill: "accent-soft", values: points.map((point) => point.rows) }]}
          label={`Rows appended to ${busiest?.name ?? "the topics"} in the last hour`}
        />
        <div class="marks" aria-hidden="true">
          {marks.map(({ part }) => (
            <i key={part} style={{ left: `${part * 100}%` }} />
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
          <span>{clock(first).slice(0, 5)}</span>
          {spreadOut(marks).map(({ what, part }) => (
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
