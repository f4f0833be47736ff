// SQL over topics and views: one SELECT, its rows as a table. The query is in the address.

import { useEffect, useRef, useState } from "preact/hooks";
import { type Address, alter } from "../address";
import type { Column, HomeFacts, Row } from "../api";
import { ask, type Problem, problemFrom } from "../ask";
import { ProblemPanel } from "../problem_panel";
import { RowTable } from "../table";
import { counted, milliseconds } from "../words";
import { isPlotted, QueryPlot } from "./query_plot";

interface QueryAnswer {
  columns: Column[];
  rows: Row[];
  truncated?: boolean;
  more?: boolean;
}

/** No more are drawn: nobody reads them, and the page stays quick. */
const DRAWN = 500;

export function QueryPage({ address, home }: { address: Address; home: HomeFacts }) {
  const sql = address.query.get("sql") ?? "";
  const at = address.query.get("at");
  const plot = address.query.get("plot");
  const [text, setText] = useState(sql);
  const [answer, setAnswer] = useState<(QueryAnswer & { took: number }) | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [asked, setAsked] = useState<AbortController | null>(null);
  const [again, setAgain] = useState(0);
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    setText(sql);
    setAnswer(null);
    setProblem(null);
    if (!sql) return;
    const running = new AbortController();
    setAsked(running);
    const began = performance.now();
    ask<QueryAnswer>("api/query", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ sql, at }), signal: running.signal })
      .then((found) => setAnswer({ ...found, took: performance.now() - began }))
      .catch((error) => !running.signal.aborted && setProblem(problemFrom(error)))
      .finally(() => setAsked((now) => (now === running ? null : now)));
    return () => running.abort();
  }, [sql, at, again]);
  const run = () => (text.trim() === sql ? setAgain(again + 1) : alter({ sql: text.trim(), x: null, y: null }));
  const tables = home.nodes.filter((node) => node.kind === "topic" || node.kind === "view");
  const rows = answer?.rows.length ?? 0;
  const cut = answer && (answer.truncated || answer.more);
  return (
    <>
      <h1>
        {asked ? "The query is running." : answer ? `${counted(rows, "row")}${cut ? ", and there are more" : ""}` : "Ask in SQL"}
        <span class="then">{answer ? ` in ${milliseconds(answer.took)}` : asked || problem ? "" : " what topics and views hold."}</span>
      </h1>
      <form class="tools" onSubmit={(event) => (event.preventDefault(), run())}>
        <textarea
          ref={field}
          class="field"
          aria-label="SQL"
          spellcheck={false}
          placeholder={`SELECT * FROM ${tables[0] ? tables[0].name : "orders"} LIMIT 100`}
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
              event.preventDefault();
              run();
            }
          }}
        />
        <button class="btn chief" type="submit" disabled={!text.trim()}>
          Run
        </button>
        {asked && (
          <button class="btn" type="button" onClick={() => (asked.abort(), setAsked(null))}>
            Cancel
          </button>
        )}
        <span class="small dim">
          <kbd>Ctrl</kbd> <kbd>Enter</kbd> runs it. One SELECT, at most 10 s and 10,000 rows.
        </span>
      </form>
      {problem && <ProblemPanel problem={problem} />}
      {answer && (
        <div class="body">
          {isPlotted(answer.columns) && rows > 0 && (
            <div class="tools" role="radiogroup" aria-label="Result as">
              <button type="button" class="btn" role="radio" aria-checked={!plot} onClick={() => alter({ plot: null, x: null, y: null })}>
                Table
              </button>
              <button type="button" class="btn" role="radio" aria-checked={plot !== null} onClick={() => alter({ plot: "line" })}>
                Plot
              </button>
            </div>
          )}
          {plot && <QueryPlot columns={answer.columns} rows={answer.rows} form={plot} x={address.query.get("x")} y={address.query.get("y")} />}
          {plot && <div class="gap" />}
          <RowTable label="Result" columns={answer.columns} rows={answer.rows.slice(0, DRAWN)} empty="The query gives no row." />
          {rows > DRAWN && <p class="small dim">The first {DRAWN} of {counted(rows, "row")} are drawn.</p>}
        </div>
      )}
      {!answer && !problem && !asked && tables.length > 0 && (
        <section class="panel pad">
          <h2>Tables</h2>
          <p class="choices">
            {tables.map((node) => (
              <button type="button" key={node.id} onClick={() => (setText(`SELECT * FROM ${quoted(node.name)} LIMIT 100`), field.current?.focus())}>
                {node.name}
              </button>
            ))}
          </p>
        </section>
      )}
    </>
  );
}

const quoted = (name: string) => (/^[a-z_][a-z0-9_]*$/i.test(name) ? name : `"${name.replaceAll('"', '""')}"`);
