// What the server answers about a picture, as the picture draws it.

import { instant } from "../words";
import type { PictureContent, Timing } from "./picture";

export interface PictureAnswer {
  at?: string;
  now?: string;
  sampled?: boolean | number;
  rows?: { event_time: string; appended_at: string; late?: string | boolean | null; topic?: string; partition?: number; offset?: string; key?: unknown }[];
  watermark?: { at: string; watermark: string }[];
  panes?: { start: string; end: string; at: string; timing: string; key?: unknown; value?: unknown; text?: string }[];
  breaks?: { from: string; to: string; text: string }[];
}

export function contentOf(answer: PictureAnswer): PictureContent {
  return {
    now: instant(answer.now ?? answer.at),
    rows: (answer.rows ?? []).map((row) => ({
      event: instant(row.event_time),
      known: instant(row.appended_at),
      fate: row.late === "too late" || row.late === "too_late" ? "too late" : row.late ? "late" : "counted",
      title: `${row.topic} ${row.partition}:${row.offset}`,
      said: [],
    })),
    watermark: (answer.watermark ?? []).map((step) => [instant(step.at), instant(step.watermark)]),
    panes: (answer.panes ?? []).map((pane) => ({
      start: instant(pane.start),
      end: instant(pane.end),
      at: instant(pane.at),
      timing: (pane.timing === "early" ? "early" : pane.timing === "late" ? "late" : "on time") as Timing,
      key: String(pane.key ?? ""),
      value: String(pane.value ?? pane.text ?? ""),
    })),
    breaks: (answer.breaks ?? []).map((gap) => ({ from: instant(gap.from), to: instant(gap.to), text: gap.text })),
  };
}
