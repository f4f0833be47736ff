// What is around every page: its top, the search, whether it is live, and what a screen reader is told.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { go, link } from "./address";
import { serverNow, useStatus } from "./live";
import { type Kind, KindIcon } from "./map/home_map";
import { Name, Value } from "./value";
import { clock } from "./words";

export interface Found {
  kind: Kind;
  name: string;
  address: string;
  said: string;
}

const PAGES: [string, string[]][] = [
  ["Overview", []],
  ["Flows", ["flows"]],
  ["Topics", ["topics"]],
  ["Views", ["views"]],
  ["Queues", ["queues"]],
  ["Query", ["query"]],
];

/** `shown`: the moment of the facts on the page. */
export function Shell({ page, home, things, shown, children }: { page: string; home: string; things: Found[]; shown: string | undefined; children: ComponentChildren }) {
  const [searching, setSearching] = useState(false);
  const status = useStatus();
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      const writing = event.target instanceof HTMLElement && event.target.closest("input, textarea, select");
      if (event.key !== "/" || writing || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      setSearching(true);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
  const cut = status.state === "cut";
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>
        Go to the content
      </a>
      <header class="top">
        <a class="brand" href={link()}>
          <svg width="22" height="22" viewBox="0 0 22 22" aria-hidden="true">
            <path d="M1 11h7M8 11c4 0 4-7 8-7h5M8 11h13M8 11c4 0 4 7 8 7h5" />
          </svg>
          Mainstem <span class="home">{home}</span>
        </a>
        <nav class="nav" aria-label="Pages">
          {PAGES.map(([name, path]) => (
            <a href={link(...path)} aria-current={name === page ? "page" : undefined} key={name}>
              {name}
            </a>
          ))}
        </nav>
        <span class="sp" />
        <button type="button" class="find" onClick={() => setSearching(true)} aria-label="Find a topic, flow, view or queue">
          <span>Find a topic, flow, view</span>
          <kbd>/</kbd>
        </button>
        <LiveMark />
      </header>
      <main class={`wrap${cut ? " stale" : ""}`} id="main" data-at={shown} tabIndex={-1}>
        {cut && (
          <p class="banner">
            <b>Not reached since {status.heard === null ? "the page was opened" : `${clock(status.heard)} UTC`}.</b> The numbers below are of then. {status.away ? <Away problem={status.away} /> : "The console's process does not answer; start it again with mainstem console, and the page goes on by itself."}
          </p>
        )}
        {children}
      </main>
      {searching && <Search things={things} onClose={() => setSearching(false)} />}
    </>
  );
}

/** The console answers, but what it reads does not. */
function Away({ problem }: { problem: { what: string; hint: string } }) {
  const what = `${problem.what.charAt(0).toUpperCase()}${problem.what.slice(1)}.`;
  return (
    <>
      <Value value={what} short={300} /> <Value value={problem.hint} short={300} />
    </>
  );
}

function LiveMark() {
  const status = useStatus();
  const [, setTick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => setTick((tick) => tick + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  if (status.state === "cut") {
    return (
      <div class="live cut">
        <span class="pulse" />
        <span>not reached{status.heard === null ? "" : <span class="when"> since {clock(status.heard)}</span>}</span>
      </div>
    );
  }
  const live = status.state === "live";
  return (
    <div class={`live${live ? "" : " wait"}`}>
      <span class="pulse" />
      <span>{live ? "live" : "connecting"}</span>
      {live && <span class="dim num when">{clock(serverNow())} UTC</span>}
    </div>
  );
}

const FOUND_MAX = 12;

function Search({ things, onClose }: { things: Found[]; onClose(): void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  useEffect(() => dialog.current?.showModal(), []);
  const wanted = text.trim().toLowerCase();
  const place = (name: string) => name.toLowerCase().indexOf(wanted);
  const found = things
    .filter((thing) => place(thing.name) >= 0 || `${thing.kind} ${thing.name}`.includes(wanted))
    .sort((a, b) => place(a.name) - place(b.name))
    .slice(0, FOUND_MAX);
  const chosen = Math.min(at, found.length - 1);
  const take = (thing: Found | undefined) => {
    if (!thing) return;
    onClose();
    go(thing.address);
  };
  const pressed = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      setAt(Math.max(0, Math.min(found.length - 1, chosen + step)));
    } else if (event.key === "Enter") {
      event.preventDefault();
      take(found[chosen]);
    }
  };
  return (
    <dialog ref={dialog} onClose={onClose} aria-label="Find" onClick={(event) => event.target === dialog.current && onClose()}>
      <input
        type="text"
        role="combobox"
        aria-label="Name of a topic, flow, view or queue"
        aria-expanded="true"
        aria-controls="found"
        aria-activedescendant={found[chosen] ? `found-${chosen}` : undefined}
        autocomplete="off"
        spellcheck={false}
        placeholder="Find a topic, flow, view or queue"
        value={text}
        onInput={(event) => (setText(event.currentTarget.value), setAt(0))}
        onKeyDown={pressed}
      />
      <ul id="found" role="listbox" aria-label="Found">
        {found.map((thing, index) => (
          <li id={`found-${index}`} role="option" aria-selected={index === chosen} onClick={() => take(thing)} key={thing.address}>
            <KindIcon kind={thing.kind} /> <b><Name of={thing.name} /></b> <span>{thing.kind}{thing.said && `, ${thing.said}`}</span>
          </li>
        ))}
      </ul>
      {!found.length && <p class="empty">No topic, flow, view or queue has “{text}” in its name.</p>}
    </dialog>
  );
}

const SAID_SECONDS = 5;

/** Tells a screen reader, at most once in five seconds; what comes meanwhile is replaced by what is newest. */
export function Announce({ text }: { text: string }) {
  const [said, setSaid] = useState("");
  const next = useRef({ at: 0, timer: undefined as ReturnType<typeof setTimeout> | undefined });
  useEffect(() => {
    clearTimeout(next.current.timer);
    const wait = Math.max(0, next.current.at - Date.now());
    next.current.timer = setTimeout(() => {
      next.current.at = Date.now() + SAID_SECONDS * 1000;
      setSaid(text);
    }, wait);
    return () => clearTimeout(next.current.timer);
  }, [text]);
  return (
    <div class="unseen" aria-live="polite">
      {said}
    </div>
  );
}
