// What the server answers; docs/internals/console.md describes it. Whole numbers beyond 2^53 and decimals are text.

import type { Kind } from "./map/home_map";
import type { Whole } from "./words";

export interface HomeNode {
  id: string;
  kind: Kind;
  name: string;
  state: string;
  sentence: string;
  rows_per_second?: number;
  rows_out_per_second?: number;
  records?: Whole;
  rows?: Whole;
  lag_seconds?: number | null;
  lag_records?: Whole;
  late?: number;
  too_late?: number;
  waits_for?: string | null;
  watermark?: string | null;
  sink?: string;
  batch?: Whole | null;
  applied_at?: string | null;
  flow?: string;
  waiting?: Whole;
  held?: number;
  returned?: number;
  parked?: number;
  rejected?: number;
}

export interface HomeFacts {
  home: { name: string; at: string; log: string };
  well: { ok: boolean; sentence: string };
  totals: { rows_per_second: number; worst_lag_seconds: number; worst_lag_of: string | null; late: number; rejected: number };
  nodes: HomeNode[];
  edges: { from: string; to: string; rows_per_second: number | null }[];
  wants_a_look: { id: string; text: string; cause: string; hint: string }[];
  activity: Activity[];
  /** It is the home of an earlier time. */
  then?: boolean;
}

export interface Activity {
  at: string | null;
  subject: string | null;
  name: string | null;
  what: string | null;
  text: string | null;
  detail: string | null;
  hint: string | null;
  who: string | null;
}

export interface Lag {
  records: Whole;
  bytes: Whole | null;
  seconds: number | null;
  until_dropped_seconds: number | null;
}

export interface Column {
  name: string;
  type: string;
}

export type Row = Record<string, unknown>;
