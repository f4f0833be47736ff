// Why a row of a view is as it is: the values that it had, and the records that it was made of.

import { useState } from "preact/hooks";
import { alter, link, linkWith, parse } from "../address";
import type { Column, Row } from "../api";
import { useAnswer } from "../ask";
import { ProblemPanel } from "../problem_panel";
import { RowTable } from "../table";
import { Name, textOf } from "../value";
import { ago, count, counted, instant } from "../words";

interface WhyFacts {
  flow: string | null;
  key: string[];
  columns: Column[];
  row: Row | null;
  exact: boolean;
  sentence: string;
  ranges: string[];
  shown: { at: string | null; batch: number | null; change: string; row: Row | null }[];
  sources: { topic: string; columns: Column[]; rows: Row[] }[];
  total: number;
  after: string | null;
}

/** The question for a row, as the address has it: the values of its key. */
export const whyOf = (row: Row, key: string[]) => JSON.stringify(key.map((column) => row[column]));

export function WhyLink({ view, row, columns }: { view: string; row: Row; columns: string[] }) {
  return (
    <a href={linkWith(["views", view], { why: whyOf(row, columns), at: parse(location.hash).query.get("at") })} aria-label={`Why is this number so? ${columns.map((column) => textOf(row[column])).join(", ")}`}>
      why?
    </a>
  );
}

export function WhyPanel({ view, question, at, tick, now }: { view: string; question: string; at: string | null; tick: number; now: number }) {
  const [after, setAfter] = useState("");
  const query = new URLSearchParams({ key: question });
  if (at) query.set("at", at);
  if (after) query.set("after", after);
  const { content, problem } = useAnswer<WhyFacts>(`api/views/${encodeURIComponent(view)}/why?${query}`, tick);
  return (
    <section class="body" aria-label="Why is this number so?">
      <div class="tools">
        <h2>Why is this number so?</h2>
        <button class="btn" type="button" onClick={() => alter({ why: null })}>
          All rows
        </button>
      </div>
      {problem && <ProblemPanel problem={problem} />}
      {content && (
        <>
          <p class="words">
            <span class={`tag ${content.exact ? "t-on" : "t-early"}`}>{content.exact ? "exact" : "not exact"}</span> {content.sentence}{" "}
            {content.flow && (
              <>
                The flow <a href={link("flows", content.flow)}><b><Name of={content.flow} /></b></a> computed it.
              </>
            )}
          </p>
          {content.ranges.map((range) => (
            <p class="words" key={range}>
              {range}
            </p>
          ))}
          <div class="gap" />
          {content.row && <RowTable label="The row" columns={content.columns} rows={[content.row]} empty="" />}
          {content.shown.length > 0 && (
            <>
              <div class="gap" />
              <h2>Its values over time</h2>
              <RowTable
                label="Its values over time"
                lead={[
                  { title: "shown", cell: ({ at }) => (at ? ago(instant(String(at)), now) : "") },
                  { title: "batch", cell: ({ batch }) => (batch == null ? "" : count(Number(batch))) },
                  { title: "change", cell: ({ change }) => String(change) },
                ]}
                columns={content.columns.filter((column) => !content.key.includes(column.name))}
                rows={content.shown.map(({ row, ...shown }) => ({ ...row, ...shown }))}
                empty=""
              />
            </>
          )}
          {content.sources.map((source) => (
            <div key={source.topic}>
              <div class="gap" />
              <h2>
                Records of <a href={link("topics", source.topic)}><Name of={source.topic} /></a>
              </h2>
              <RowTable label={`Records of ${source.topic}`} lead={PLACE} columns={source.columns} rows={source.rows} empty="" />
            </div>
          ))}
          {(content.after || after) && (
            <div class="tools">
              <button class="btn" type="button" disabled={!after} onClick={() => setAfter("")}>
                First records
              </button>
              <button class="btn" type="button" disabled={!content.after} onClick={() => setAfter(content.after ?? "")}>
                {content.after ? "Next records" : "That is the end"}
              </button>
              <span class="small dim">{counted(content.total, "record")} in all</span>
            </div>
          )}
        </>
      )}
    </section>
  );
}

const recordOf = (row: Row) => row["record"] as { partition: number; offset: string };
const PLACE = [
  { title: "partition", cell: (row: Row) => String(recordOf(row).partition) },
  { title: "offset", cell: (row: Row) => String(recordOf(row).offset) },
];
