// One key of a view: looked up by the columns of the key, its row, and every change of it that is kept.

import { useEffect, useState } from "preact/hooks";
import { alter, asked } from "../address";
import type { Column, Row } from "../api";
import { ask, type Problem, problemFrom, useAnswer } from "../ask";
import { ProblemPanel } from "../problem_panel";
import { FactTable, RowTable } from "../table";
import { Name, textOf, Value } from "../value";
import { counted, instant, moment } from "../words";

/** The texts of a key, one for each of its columns; those that are not given are empty. */
export function keyIn(text: string | null): string[] {
  if (!text) return [];
  try {
    const found = JSON.parse(text) as unknown;
    return Array.isArray(found) ? found.map(textOf) : [text];
  } catch {
    return [text];
  }
}

export const keyText = (texts: string[]) => (texts.some(Boolean) ? JSON.stringify(texts) : null);
export const keyOfRow = (row: Row, names: string[]) => JSON.stringify(names.map((name) => textOf(row[name])));

export function KeySearch({ shown, names }: { shown: string[]; names: string[] }) {
  const [texts, setTexts] = useState(shown);
  useEffect(() => setTexts(shown), [shown.join("\u0001")]);
  const given = names.map((_, index) => (texts[index] ?? "").trim());
  return (
    <form class="tools" onSubmit={(event) => (event.preventDefault(), alter({ key: keyText(given), after: null, older: null }))}>
      {names.map((name, index) => (
        <label key={name}>
          <Name of={name} />
          <input class="field" size={18} value={texts[index] ?? ""} spellcheck={false} placeholder={name === "window" ? "12:20" : ""} onInput={(event) => setTexts(given.map((text, place) => (place === index ? event.currentTarget.value : text)))} />
        </label>
      ))}
      <button class="btn chief" type="submit">
        Look up
      </button>
      {shown.length > 0 && (
        <button class="btn" type="button" onClick={() => alter({ key: null, older: null })}>
          All rows
        </button>
      )}
    </form>
  );
}

interface KeyRow {
  columns: Column[];
  rows: Row[];
}

interface KeyHistory {
  key: string[];
  columns: Column[];
  changes: { position: string; change: string; at: string | null; batch: number | null; before: Row | null; after: Row | null }[];
  kept: "history" | "changes";
  complete: boolean;
  next: string | null;
}

const asKeys = (texts: string[]) => texts.map((text) => `key=${encodeURIComponent(text)}`).join("&");

/** The row with a whole key, and its history. */
export function KeyPage({ path, name, texts, at, older, tick, now }: { path: string; name: string; texts: string[]; at: string | null; older: string | null; tick: number; now: number }) {
  const keys = asKeys(texts);
  const found = useAnswer<KeyRow>(`${asked(`${path}/row`, { at })}${at ? "&" : "?"}${keys}`, tick);
  const history = useAnswer<KeyHistory>(`${asked(`${path}/history`, { at, before: older, limit: "50" })}&${keys}`, tick);
  return (
    <section class="body">
      {found.problem && !found.content ? (
        <ProblemPanel problem={found.problem} />
      ) : (
        found.content && <RowTable label={`Row of ${name}`} columns={found.content.columns} rows={found.content.rows} empty="No row has this key." />
      )}
      <div class="wide-gap" />
      <h2>History of this key</h2>
      <div class="gap" />
      {history.problem && !history.content && history.problem.what !== found.problem?.what && <ProblemPanel problem={history.problem} />}
      {history.content && <Changes history={history.content} now={now} older={older} />}
    </section>
  );
}

const CHANGE_TAGS: Record<string, [string, string]> = { insert: ["t-on", "inserted"], update: ["t-late", "changed"], delete: ["t-gone", "deleted"] };

function Changes({ history, now, older }: { history: KeyHistory; now: number; older: string | null }) {
  const values = history.columns.filter(({ name }) => !history.key.includes(name));
  return (
    <>
      <FactTable
        label="History of this key"
        heads={[["when", "left"], ["change", "left"], ["batch", "right"], ...values.map(({ name }): [string, "left"] => [name, "left"])]}
        rows={history.changes.map((it) => [
          it.at === null ? "not kept" : moment(instant(it.at), now, 1),
          <span class={`tag ${CHANGE_TAGS[it.change]?.[0] ?? "t-plain"}`}>{CHANGE_TAGS[it.change]?.[1] ?? it.change}</span>,
          it.batch === null ? "switch of versions" : String(it.batch),
          ...values.map(({ name }) => <Change before={it.before} after={it.after} name={name} />),
        ])}
        empty="No change of this key is kept."
      />
      <div class="tools">
        {older && (
          <button class="btn" type="button" onClick={() => alter({ older: null })}>
            Newest changes
          </button>
        )}
        {history.next && (
          <button class="btn" type="button" onClick={() => alter({ older: history.next })}>
            Older changes
          </button>
        )}
        <span class="small dim">
          {counted(history.changes.length, "change")}, newest first.{" "}
          {history.complete ? "That is all that ever happened to it." : history.next ? "" : history.kept === "history" ? "Older ones are beyond its history." : "The view keeps only its last changes, no history."}
        </span>
      </div>
    </>
  );
}

/** A pane is told by its timing. */
const said = (value: unknown) => textOf((value as { timing?: unknown } | null | undefined)?.timing ?? value);

/** A value before and after; only one if they are the same. */
export function Change({ before, after, name }: { before: Row | null; after: Row | null; name: string }) {
  const [was, became] = [before?.[name], after?.[name]];
  if (!before) return <Value value={became} />;
  if (!after) return <s class="dim"><Value value={was} /></s>;
  if (said(was) === said(became)) return <Value value={became} />;
  return (
    <>
      <s class="dim"><Value value={was} /></s> → <Value value={became} />
    </>
  );
}

const FOUND_MAX = 200;

/** The rows of which some columns of the key have these values. */
export function FoundRows({ name, names, texts, at, tick }: { name: string; names: string[]; texts: string[]; at: string | null; tick: number }) {
  const [found, setFound] = useState<{ columns: Column[]; rows: Row[] } | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  useEffect(() => {
    const question = new AbortController();
    const wanted = names.flatMap((column, index) => (texts[index] ? [`CAST("${column.replaceAll('"', '""')}" AS VARCHAR) = '${texts[index].replaceAll("'", "''")}'`] : []));
    const sql = `SELECT * FROM "${name.replaceAll('"', '""')}" WHERE ${wanted.join(" AND ")} LIMIT ${FOUND_MAX}`;
    ask<{ columns: Column[]; rows: Row[] }>("api/query", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ sql, at }), signal: question.signal }).then(
      (answer) => (setFound(answer), setProblem(null)),
      (error) => !question.signal.aborted && setProblem(problemFrom(error)),
    );
    return () => question.abort();
  }, [name, texts.join("\u0001"), names.join(" "), at, tick]);
  if (problem) return <ProblemPanel problem={problem} />;
  return (
    found && (
      <div class="body">
        <RowTable label={`Rows of ${name}`} columns={found.columns} rows={found.rows} lead={[historyLead(names)]} empty="No row has this value in its key." />
        <p class="small dim">{counted(found.rows.length, "row")}{found.rows.length >= FOUND_MAX ? ", and maybe more" : ""}. With every column of the key, the row itself and its history.</p>
      </div>
    )
  );
}

/** Leads from a row to its key. */
export function historyLead(names: string[]) {
  return {
    title: "key",
    cell: (row: Row) => (
      <button type="button" class="more" onClick={() => alter({ key: keyOfRow(row, names), after: null })} aria-label={`History of ${names.map((name) => textOf(row[name])).join(", ").slice(0, 80)}`}>
        history
      </button>
    ),
  };
}
