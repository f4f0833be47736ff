// A view: its rows by pages, sorted by key, those that change lit; a key looked up; its versions.

import { useEffect, useRef, useState } from "preact/hooks";
import { type Address, alter, link } from "../address";
import type { Column, HomeFacts, Lag, Row } from "../api";
import { ask, type Problem, problemFrom, useAnswer } from "../ask";
import { useTick } from "../live";
import { ProblemPanel } from "../problem_panel";
import { FactTable, RowTable } from "../table";
import { Name, textOf } from "../value";
import { WhyLink, WhyPanel } from "./why";
import { ago, count, counted, instant, size, span, type Whole } from "../words";

interface ViewFacts {
  view: string;
  key: string[];
  live: number;
  rows: Whole;
  bytes: Whole;
  flow: string;
  applied_at: string | null;
  history_seconds: number | null;
  lag: Lag;
  all_versions: { version: number; live: boolean; rows: Whole; bytes: Whole; created_at: string; flow: string; lag: Lag }[];
}

interface ViewPageRows {
  key: string[];
  columns: Column[];
  rows: Row[];
  total: number;
  next: string | null;
}

const PAGE = 25;
const LIT_MS = 4000;

export function ViewPage({ name, address, home, live }: { name: string; address: Address; home: HomeFacts; live: number }) {
  const path = `api/views/${encodeURIComponent(name)}`;
  const after = address.query.get("after");
  const key = address.query.get("key") ?? "";
  const why = address.query.get("why");
  const node = home.nodes.find((candidate) => candidate.id === `view:${name}`);
  const facts = useAnswer<ViewFacts>(path, Math.floor(live / 5));
  const query = new URLSearchParams({ limit: String(PAGE) });
  if (after) query.set("after", after);
  const tick = useTick(`view:${name}`);
  const page = useAnswer<ViewPageRows>(`${path}/rows?${query}`, tick);
  const lit = useLit(page.content, page.old ? "" : query.toString());
  const now = instant(home.home.at);
  const problem = facts.problem ?? page.problem;
  if (problem && !page.content) return <ProblemPanel whole problem={problem} />;
  const view = facts.content;
  return (
    <>
      <div class="crumb">
        <a href={link("views")}>Views</a> / <Name of={name} />
      </div>
      <h1>
        <Name of={name} />
        {node && <span class={`tag ${Number(node.lag_records) ? "t-early" : "t-on"}`}>{Number(node.lag_records) ? `${span(node.lag_seconds ?? 0)} behind` : "up to date"}</span>}
      </h1>
      {view && (
        <p class="words">
          <b>{counted(node?.rows ?? view.rows, "row")}</b>, one for each <b><Name of={view.key.join(", ")} /></b>, {size(view.bytes)}. The flow <a href={link("flows", view.flow)}><b><Name of={view.flow} /></b></a> keeps it current; it last
          changed {node?.applied_at ? ago(instant(node.applied_at), now) : "never"}. {view.history_seconds ? `Changes of ${span(view.history_seconds)} are kept.` : "It keeps no history."}
        </p>
      )}
      {why ? <WhyPanel key={why} view={name} question={why} at={address.query.get("at")} tick={tick} now={now} /> : <KeySearch shown={key} names={view?.key ?? []} />}
      {problem && <ProblemPanel problem={problem} />}
      {!why && key && page.content && <FoundRows name={name} names={page.content.key} value={key} tick={tick} />}
      {!why && !key && page.content && (
        <div class="body">
          <RowTable
            label={`Rows of ${name}`}
            columns={page.content.columns}
            rows={page.content.rows}
            nameOf={(row) => keyOf(row, page.content?.key ?? [])}
            lead={[{ title: "why", cell: (row) => <WhyLink view={name} row={row} columns={page.content?.key ?? []} /> }]}
            lit={lit}
            empty="There is no row yet."
          />
          <div class="tools">
            <button class="btn" type="button" disabled={!after} onClick={() => history.back()}>
              Back
            </button>
            <a class="btn" href={link("views", name)}>
              First rows
            </a>
            <button class="btn" type="button" disabled={!page.content.next} onClick={() => (location.hash = `${link("views", name)}?${new URLSearchParams({ after: page.content?.next ?? "" })}`)}>
              {page.content.next ? "Next rows" : "That is the end"}
            </button>
            <span class="small dim">
              {counted(page.content.rows.length, "row")} of {count(page.content.total)}, sorted by key; rows that change are lit
            </span>
          </div>
        </div>
      )}
      {view && view.all_versions.length > 1 && (
        <section class="body">
          <h2>Versions</h2>
          <div class="gap" />
          <FactTable
            label="Versions"
            heads={[["version", "right"], ["state", "left"], ["rows", "right"], ["size", "right"], ["created", "left"]]}
            rows={view.all_versions.map((it) => [String(it.version), it.live ? <span class="tag t-on">live</span> : "kept", count(it.rows), size(it.bytes), ago(instant(it.created_at), now)])}
            empty=""
          />
        </section>
      )}
    </>
  );
}

function KeySearch({ shown, names }: { shown: string; names: string[] }) {
  const [text, setText] = useState(shown);
  useEffect(() => setText(shown), [shown]);
  return (
    <form class="tools" onSubmit={(event) => (event.preventDefault(), alter({ key: text.trim(), after: null }))}>
      <label>
        Key
        <input class="field" size={28} value={text} spellcheck={false} placeholder={names.join(", ") || "a key"} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      <button class="btn chief" type="submit">
        Look up
      </button>
      {shown && (
        <button class="btn" type="button" onClick={() => alter({ key: null })}>
          All rows
        </button>
      )}
    </form>
  );
}

const FOUND_MAX = 200;

/** The rows of which a column of the key has this value. */
function FoundRows({ name, names, value, tick }: { name: string; names: string[]; value: string; tick: number }) {
  const [found, setFound] = useState<{ columns: Column[]; rows: Row[] } | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  useEffect(() => {
    const asked = new AbortController();
    const text = `'${value.replaceAll("'", "''")}'`;
    const columns = names.map((column) => `CAST("${column.replaceAll('"', '""')}" AS VARCHAR) = ${text}`);
    const sql = `SELECT * FROM "${name}" WHERE ${columns.join(" OR ")} LIMIT ${FOUND_MAX}`;
    ask<{ columns: Column[]; rows: Row[] }>("api/query", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ sql }), signal: asked.signal }).then(
      (answer) => (setFound(answer), setProblem(null)),
      (error) => !asked.signal.aborted && setProblem(problemFrom(error)),
    );
    return () => asked.abort();
  }, [name, value, names.join(" "), tick]);
  if (problem) return <ProblemPanel problem={problem} />;
  return found && <RowTable label={`Rows of ${name}`} columns={found.columns} rows={found.rows} empty="No row has this value in its key." />;
}

const keyOf = (row: Row, key: string[]) => key.map((column) => textOf(row[column])).join("\u0001");

/** The keys of rows that differ from what this page showed before. */
function useLit(content: ViewPageRows | null, question: string): ReadonlySet<string> {
  const before = useRef<{ question: string; rows: Map<string, string> }>({ question: "", rows: new Map() });
  const [lit, setLit] = useState<ReadonlySet<string>>(new Set());
  useEffect(() => {
    if (!content || !question) return;
    const rows = new Map(content.rows.map((row) => [keyOf(row, content.key), JSON.stringify(row)]));
    if (before.current.question === question) {
      const known = before.current.rows;
      const changed = new Set([...rows].filter(([key, text]) => known.get(key) !== text).map(([key]) => key));
      if (changed.size) setLit(changed);
    } else setLit(new Set());
    before.current = { question, rows };
    const timer = setTimeout(() => setLit(new Set()), LIT_MS);
    return () => clearTimeout(timer);
  }, [content]);
  return lit;
}
