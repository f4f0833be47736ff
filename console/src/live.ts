// One stream for all tabs of a browser: HTTP/1.1 allows six connections, so a seventh tab with a stream of its own would
// never load. The tab that holds a lock reads the stream of the subjects that all tabs want, and passes on what it hears;
// when it is closed the lock goes to another, which goes on from the last cursors.

import { useEffect, useRef, useState } from "preact/hooks";
import { ask, problemFrom } from "./ask";

export type StreamState = "waiting" | "live" | "cut";

export interface Status {
  state: StreamState;
  /** The server's time when it was last heard of, in milliseconds; null before. */
  heard: number | null;
  /** What to add to this machine's clock to have the server's. */
  ahead: number;
  /** Why the console cannot read the home: it answers, but its brokers do not. */
  away: { what: string; hint: string } | null;
}

export interface Happening {
  subject: string;
  kind: string;
  content: unknown;
}

type Listener = (happening: Happening) => void;

type Message =
  | { kind: "want"; tab: string; subjects: string[] }
  | { kind: "gone"; tab: string }
  | { kind: "status"; status: Status; cursors: Record<string, string> }
  | { kind: "happened"; happening: Happening };

const WANT_SECONDS = 5;
const FORGET_SECONDS = 16;
// After so long without an event the server is asked whether it is there: a connection may be dead without a word.
const SILENCE_SECONDS = 10;
const AGAIN_SECONDS_MIN = 0.5;
const AGAIN_SECONDS_MAX = 4;

const tab = Math.random().toString(36).slice(2);
const channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("mainstem") : null;
const listeners = new Map<string, Set<Listener>>();
const statusListeners = new Set<(status: Status) => void>();
/** The last whole content of each subject, for pages that come later. */
const last = new Map<string, Happening>();
const others = new Map<string, { subjects: string[]; at: number }>();

let status: Status = { state: "waiting", heard: null, ahead: 0, away: null };
let cursors: Record<string, string> = {};
let leading = false;
let source: EventSource | null = null;
let open = "";
let again = AGAIN_SECONDS_MIN;
let timer: ReturnType<typeof setTimeout> | undefined;
let silence: ReturnType<typeof setTimeout> | undefined;

const wanted = () => [...listeners].filter(([, heard]) => heard.size).map(([subject]) => subject);

function setStatus(next: Partial<Status>): void {
  status = { ...status, ...next };
  for (const listener of statusListeners) listener(status);
  if (leading) channel?.postMessage({ kind: "status", status, cursors } satisfies Message);
}

function hear(happening: Happening): void {
  if (happening.kind === "home" || happening.kind === "snapshot") last.set(happening.subject, happening);
  for (const listener of listeners.get(happening.subject) ?? []) listener(happening);
}

// The tab that reads the stream.

function subjectsOfAll(): string[] {
  const now = Date.now();
  for (const [name, other] of others) if (now - other.at > FORGET_SECONDS * 1000) others.delete(name);
  return [...new Set([...wanted(), ...[...others.values()].flatMap((other) => other.subjects)])].sort();
}

function connect(): void {
  clearTimeout(timer);
  const subjects = subjectsOfAll();
  const kept = Object.fromEntries(subjects.flatMap((subject) => (subject in cursors ? [[subject, cursors[subject] as string]] : [])));
  cursors = kept;
  // If it still is away the new stream says so.
  status.away = null;
  open = subjects.join("\n");
  source?.close();
  if (!subjects.length) return;
  const query = new URLSearchParams(subjects.map((subject) => ["of", subject]));
  if (Object.keys(kept).length) query.set("last", JSON.stringify(kept));
  const here = new EventSource(`api/stream?${query}`);
  source = here;
  for (const kind of ["home", "snapshot", "changes", "rows", "gap", "gone", "trouble", "well"]) {
    here.addEventListener(kind, (event) => here === source && received(kind, event as MessageEvent<string>));
  }
  here.onopen = () => here === source && alive();
  here.onerror = () => here === source && lost();
  watchSilence();
}

function watchSilence(): void {
  clearTimeout(silence);
  silence = setTimeout(poll, SILENCE_SECONDS * 1000);
}

function alive(): void {
  again = AGAIN_SECONDS_MIN;
  watchSilence();
  setHeard();
}

function setHeard(): void {
  if (status.away) setStatus({ state: "cut" });
  else setStatus({ state: "live", heard: Date.now() + status.ahead });
}

/** The server's time is the one that counts: this machine's clock may be wrong. */
function setClock(home: { home?: { at?: string } } | undefined): void {
  const now = Date.parse(home?.home?.at ?? "");
  if (!Number.isNaN(now)) status.ahead = now - Date.now();
}

function received(kind: string, event: MessageEvent<string>): void {
  const content = JSON.parse(event.data) as { subject: string; home?: { home?: { at?: string } }; error?: { what: string; hint: string } };
  if (event.lastEventId) cursors = { ...cursors, ...(JSON.parse(event.lastEventId) as Record<string, string>) };
  setClock(content.home);
  if (content.subject === "home") status.away = kind === "trouble" || kind === "gone" ? (content.error ?? null) : null;
  alive();
  const happening = { subject: content.subject, kind, content: content.home ?? content };
  hear(happening);
  channel?.postMessage({ kind: "happened", happening } satisfies Message);
}

function lost(): void {
  clearTimeout(silence);
  source?.close();
  source = null;
  clearTimeout(timer);
  timer = setTimeout(connect, again * 1000);
  again = Math.min(AGAIN_SECONDS_MAX, again * 2);
  void poll();
}

/** A server that answers but streams nothing (a proxy between may refuse it) is asked instead; one that is silent is cut. */
async function poll(): Promise<void> {
  try {
    const content = await ask<{ home?: { at?: string } }>("api/home");
    setClock(content);
    again = Math.min(again, 2);
    status.away = null;
    setHeard();
    for (const subject of open.split("\n")) {
      const happening = { subject, kind: subject === "home" ? "home" : "asked", content };
      hear(happening);
      channel?.postMessage({ kind: "happened", happening } satisfies Message);
    }
    if (source) watchSilence();
  } catch (error) {
    const problem = problemFrom(error);
    if (problem.status === 503) {
      status.away = { what: problem.what, hint: problem.hint };
      setStatus({ state: "cut" });
      if (source) watchSilence();
    } else if (problem.status === 401) {
      // An answer: it asks for a token. Numbers that were shown before grow old.
      status.away = { what: problem.what, hint: problem.hint };
      setStatus({ state: status.heard === null ? "waiting" : "cut" });
    } else if (source) lost();
    else if (status.state !== "cut") setStatus({ state: "cut" });
  }
}

function reconsider(): void {
  if (!leading) channel?.postMessage({ kind: "want", tab, subjects: wanted() } satisfies Message);
  else if (subjectsOfAll().join("\n") !== open) {
    clearTimeout(timer);
    // Together, if a page that opens wants several.
    timer = setTimeout(connect, 30);
  }
}

function lead(): void {
  leading = true;
  connect();
}

// All tabs.

channel?.addEventListener("message", ({ data }: MessageEvent<Message>) => {
  if (data.kind === "happened") hear(data.happening);
  else if (data.kind === "status" && !leading) {
    cursors = data.cursors;
    setStatus(data.status);
  } else if (leading && data.kind === "want") {
    const known = others.get(data.tab)?.subjects ?? [];
    others.set(data.tab, { subjects: data.subjects, at: Date.now() });
    for (const subject of data.subjects) {
      const happening = last.get(subject);
      if (happening && !known.includes(subject)) channel.postMessage({ kind: "happened", happening } satisfies Message);
    }
    setStatus({});
    reconsider();
  } else if (leading && data.kind === "gone") {
    others.delete(data.tab);
    reconsider();
  }
});

export function begin(): void {
  if (channel && navigator.locks) void navigator.locks.request("mainstem stream", () => new Promise(lead));
  else lead();
  setInterval(reconsider, WANT_SECONDS * 1000);
  addEventListener("pagehide", () => channel?.postMessage({ kind: "gone", tab } satisfies Message));
}

/** What happens to a subject, from its present content on; null wants nothing. */
export function useStream(subject: string | null, listener: Listener): void {
  useEffect(() => {
    if (subject === null) return;
    const known = listeners.get(subject) ?? new Set();
    listeners.set(subject, known.add(listener));
    const before = last.get(subject);
    if (before && known.size > 1) listener(before);
    reconsider();
    return () => {
      known.delete(listener);
      if (!known.size) last.delete(subject);
      reconsider();
    };
  }, [subject]);
}

export function useStatus(): Status {
  const [shown, setShown] = useState(status);
  useEffect(() => {
    statusListeners.add(setShown);
    setShown(status);
    return () => void statusListeners.delete(setShown);
  }, []);
  return shown;
}

/** The server's time. */
export function serverNow(): number {
  return Date.now() + status.ahead;
}

const TICK_MS = 150;

/** A number that grows when something happens to a subject, at most every 150 ms: a reason to ask again. */
export function useTick(subject: string | null): number {
  const [tick, setTick] = useState(0);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  // Also the first snapshot: something may have come between the page's own read and the begin of the stream.
  useStream(subject, () => {
    timer.current ??= setTimeout(() => {
      timer.current = undefined;
      setTick((before) => before + 1);
    }, TICK_MS);
  });
  return tick;
}
