// What the server answers about a picture, as the picture draws it, with what became of each row in words.

import { linkWith } from "../address";
import { clock, instant } from "../words";
import type { PictureContent, PicturePane, PictureRow, Timing } from "./picture";

export interface PictureAnswer {
  now: string;
  /** How many rows were left out. */
  sampled: number;
  dropped: number;
  rows: { event_time: string; appended_at: string; topic: string; partition: number; offset: string; late: "late" | "too late" | null; watermark: string | null }[];
  watermark: { at: string; watermark: string }[];
  /** Where its panes are kept, if that is a view. */
  view: string | null;
  panes: { start: string; end: string; at: string; timing: string; key: string; value: string; why: unknown[] }[];
  breaks: { from: string; to: string; text: string }[];
}

const TIMINGS: Record<string, Timing> = { early: "early", late: "late" };

export function contentOf(answer: PictureAnswer, flow: string): PictureContent {
  const panes = answer.panes.map((pane) => ({
    start: instant(pane.start),
    end: instant(pane.end),
    at: instant(pane.at),
    timing: TIMINGS[pane.timing] ?? "on time",
    key: pane.key,
    value: shownValue(pane.value),
    why: answer.view === null ? null : linkWith(["views", answer.view], { why: JSON.stringify(pane.why) }),
  }));
  return {
    now: instant(answer.now),
    rows: answer.rows
      .map((row) => rowOf(row, panes, flow))
      .sort((a, b) => a.known - b.known),
    watermark: answer.watermark.map((step) => [instant(step.at), instant(step.watermark)]),
    panes,
    breaks: answer.breaks.map((gap) => ({ from: instant(gap.from), to: instant(gap.to), text: gap.text })),
  };
}

function rowOf(row: PictureAnswer["rows"][number], panes: PicturePane[], flow: string): PictureRow {
  const [event, known] = [instant(row.event_time), instant(row.appended_at)];
  const fate = row.late ?? "counted";
  const said: string[] = [];
  if (row.late) {
    said.push(`The watermark was at ${clock(instant(row.watermark))} already.`);
    const window = panes.find((pane) => pane.start <= event && event < pane.end);
    if (fate === "too late") said.push(`It is not counted; it went to ${flow}.late.`);
    else {
      const corrected = window && panes.find((pane) => pane.start === window.start && pane.timing === "late" && pane.at >= known);
      said.push(corrected ? `${clock(corrected.start)} to ${clock(corrected.end)} was corrected at ${clock(corrected.at, 1)}.` : "It is counted.");
    }
  }
  return { event, known, fate, title: `${row.topic} ${row.partition}:${row.offset}`, said };
}

const number = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });

/** A number as people write it; all else as it is. */
function shownValue(text: string): string {
  return /^-?\d{1,15}(\.\d+)?$/.test(text) ? number.format(Number(text)) : text;
}
