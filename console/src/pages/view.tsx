// A view: its rows by pages, sorted by key, those that change lit; a key looked up; its versions.

import { useEffect, useRef, useState } from "preact/hooks";
import { type Address, asked, go, link, linkWith } from "../address";
import type { Column, HomeFacts, Lag, Row } from "../api";
import { type Problem, useAnswer } from "../ask";
import { NotKept } from "../home_then";
import { useTick } from "../live";
import { ProblemPanel } from "../problem_panel";
import { RowTable } from "../table";
import { Name, textOf } from "../value";
import { WhyLink, WhyPanel } from "./why";
import { ago, count, counted, instant, size, span, type Whole } from "../words";
import { FoundRows, historyLead, keyIn, KeyPage, KeySearch } from "./view_key";
import { type VersionFacts, Versions } from "./view_versions";

interface ViewFacts {
  view: string;
  key: string[];
  live: number;
  rows: Whole;
  bytes: Whole | null;
  flow: string;
  applied_at: string | null;
  history_seconds: number | null;
  lag: Lag;
  all_versions: VersionFacts[];
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
  const at = address.query.get("at");
  const key = keyIn(address.query.get("key"));
  const why = address.query.get("why");
  const node = home.nodes.find((candidate) => candidate.id === `view:${name}`);
  const facts = useAnswer<ViewFacts>(asked(path, { at }), Math.floor(live / 5));
  const question = asked(`${path}/rows`, { limit: String(PAGE), after, at });
  const tick = useTick(at ? null : `view:${name}`);
  const page = useAnswer<ViewPageRows>(question, tick);
  const lit = useLit(page.content, page.old ? "" : question);
  const now = instant(home.home.at);
  const problem = facts.problem ?? page.problem;
  if (problem && !page.content) return at ? <WithoutHistory name={name} problem={problem} /> : <ProblemPanel whole problem={problem} />;
  const view = facts.content;
  const names = view?.key ?? page.content?.key ?? [];
  const whole = names.length > 0 && names.every((_, index) => key[index]);
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
          <b>{counted(node?.rows ?? view.rows, "row")}</b>, one for each <b><Name of={view.key.join(", ")} /></b>, {view.bytes === null ? <NotKept what="size" /> : size(view.bytes)}. The flow <a href={link("flows", view.flow)}><b><Name of={view.flow} /></b></a> keeps it current; it last
          changed {node?.applied_at ? ago(instant(node.applied_at), now) : "never"}. {view.history_seconds ? `Changes of ${span(view.history_seconds)} are kept.` : "It keeps no history."}
        </p>
      )}
      {why ? <WhyPanel key={why} view={name} question={why} at={at} tick={tick} now={now} /> : names.length > 0 && <KeySearch shown={key} names={names} />}
      {problem && <ProblemPanel problem={problem} />}
      {!why && whole && <KeyPage path={path} name={name} texts={key.slice(0, names.length)} at={at} older={address.query.get("older")} tick={tick} now={now} />}
      {!why && key.length > 0 && !whole && names.length > 0 && <FoundRows name={name} names={names} texts={key} at={at} tick={tick} />}
      {!why && !key.length && page.content && (
        <div class="body">
          <RowTable
            label={`Rows of ${name}`}
            columns={page.content.columns}
            rows={page.content.rows}
            nameOf={(row) => keyOf(row, page.content?.key ?? [])}
            lit={lit}
            lead={[historyLead(names), { title: "why", cell: (row) => <WhyLink view={name} row={row} columns={page.content?.key ?? []} /> }]}
            empty="There is no row yet."
          />
          <div class="tools">
            <button class="btn" type="button" disabled={!after} onClick={() => history.back()}>
              Back
            </button>
            <a class="btn" href={link("views", name)}>
              First rows
            </a>
            <button class="btn" type="button" disabled={!page.content.next} onClick={() => go(linkWith(["views", name], { at, after: page.content?.next }))}>
              {page.content.next ? "Next rows" : "That is the end"}
            </button>
            <span class="small dim">
              {counted(page.content.rows.length, "row")} of {count(page.content.total)}, sorted by key{at ? "" : "; rows that change are lit"}
            </span>
          </div>
        </div>
      )}
      {view && view.all_versions.length > 1 && <Versions path={path} versions={view.all_versions} now={now} compared={address.query.get("compare")} skip={address.query.get("skip")} at={at} />}
    </>
  );
}

/** The past of a view that keeps none, or no longer that far back. */
function WithoutHistory({ name, problem }: { name: string; problem: Problem }) {
  return (
    <>
      <div class="crumb">
        <a href={link("views")}>Views</a> / <Name of={name} />
      </div>
      <h1>
        <Name of={name} />
      </h1>
      <p class="words">
        Its rows of then are <span class="unkept">not kept</span>.
      </p>
      <ProblemPanel problem={problem} />
    </>
  );
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
