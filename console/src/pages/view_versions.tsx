// The versions of a view, and how two of them differ: counts, and the rows by pages.

import { alter, asked } from "../address";
import type { Column, Row } from "../api";
import { useAnswer } from "../ask";
import { NotKept } from "../home_then";
import { ProblemPanel } from "../problem_panel";
import { FactTable } from "../table";
import { Value } from "../value";
import { ago, count, counted, instant, size, type Whole } from "../words";
import { Change } from "./view_key";

export interface VersionFacts {
  version: number;
  live: boolean;
  rows: Whole | null;
  bytes: Whole | null;
  created_at: string;
}

interface Difference {
  key: string[];
  before: number;
  after: number;
  columns: Column[];
  counts: { same: number; changed: number; added: number; removed: number };
  changed: { before: Row; after: Row }[];
  added: Row[];
  removed: Row[];
  next: number | null;
}

export function Versions({ path, versions, now, compared, skip, at }: { path: string; versions: VersionFacts[]; now: number; compared: string | null; skip: string | null; at: string | null }) {
  const numbers = versions.map(({ version }) => version);
  const chosen = /^(\d+),(\d+)$/.exec(compared ?? "");
  const [before, after] = chosen ? [Number(chosen[1]), Number(chosen[2])] : [numbers[numbers.length - 2], numbers[numbers.length - 1]];
  const choose = (label: string, value: number | undefined, onChoose: (version: string) => void) => (
    <label>
      {label}
      <select class="field" value={value} onChange={(event) => onChoose(event.currentTarget.value)}>
        {numbers.map((number) => (
          <option value={number} key={number}>
            version {number}
          </option>
        ))}
      </select>
    </label>
  );
  return (
    <section class="body">
      <div class="wide-gap" />
      <h2>Versions</h2>
      <div class="gap" />
      <FactTable
        label="Versions"
        heads={[["version", "right"], ["state", "left"], ["rows", "right"], ["size", "right"], ["created", "left"]]}
        rows={versions.map((it) => [String(it.version), it.live ? <span class="tag t-on">live</span> : "kept", it.rows === null ? <NotKept /> : count(it.rows), it.bytes === null ? <NotKept /> : size(it.bytes), ago(instant(it.created_at), now)])}
        empty=""
      />
      {numbers.length > 1 && !at && (
        <>
          <div class="tools">
            {choose("From", before, (version) => alter({ compare: `${version},${after}`, skip: null }))}
            {choose("to", after, (version) => alter({ compare: `${before},${version}`, skip: null }))}
            <button class="btn" type="button" onClick={() => alter({ compare: chosen ? null : `${before},${after}`, skip: null })}>
              {chosen ? "Hide the difference" : "Show the difference"}
            </button>
          </div>
          {chosen && <DifferenceTable path={path} before={before ?? 0} after={after ?? 0} skip={skip} />}
        </>
      )}
      {at && numbers.length > 1 && <p class="small dim">Versions are compared as they are now: go back to now.</p>}
    </section>
  );
}

const KINDS: [keyof Difference["counts"], string][] = [["changed", "t-late"], ["added", "t-on"], ["removed", "t-gone"]];

function DifferenceTable({ path, before, after, skip }: { path: string; before: number; after: number; skip: string | null }) {
  const { content: found, problem } = useAnswer<Difference>(asked(`${path}/difference`, { before: String(before), after: String(after), limit: "25", skip }));
  if (problem) return <ProblemPanel problem={problem} />;
  if (!found) return <p class="dim">The versions are being compared.</p>;
  const values = found.columns.filter(({ name }) => !found.key.includes(name));
  const lines = [
    ...found.changed.map(({ before: was, after: became }): [string, string, Row | null, Row | null] => ["changed", "t-late", was, became]),
    ...found.added.map((row): [string, string, Row | null, Row | null] => ["added", "t-on", null, row]),
    ...found.removed.map((row): [string, string, Row | null, Row | null] => ["removed", "t-gone", row, null]),
  ];
  const { same, changed, added, removed } = found.counts;
  return (
    <>
      <p class="words">
        From version {before} to version {after}: {KINDS.map(([kind, tag]) => <span key={kind}><span class={`tag ${tag}`}>{count(found.counts[kind])} {kind}</span> </span>)}
        and {counted(same, "row")} the same.{changed + added + removed === 0 ? " They do not differ." : ""}
      </p>
      <div class="gap" />
      <FactTable
        label="Difference"
        heads={[["change", "left"], ...found.key.map((name): [string, "left"] => [name, "left"]), ...values.map(({ name }): [string, "left"] => [name, "left"])]}
        rows={lines.map(([kind, tag, was, became]) => [
          <span class={`tag ${tag}`}>{kind}</span>,
          ...found.key.map((name) => <Value value={(became ?? was)?.[name]} />),
          ...values.map(({ name }) => <Change before={was} after={became} name={name} />),
        ])}
        empty="No row differs."
      />
      <div class="tools">
        {skip && (
          <button class="btn" type="button" onClick={() => alter({ skip: null })}>
            First rows
          </button>
        )}
        {found.next !== null && (
          <button class="btn" type="button" onClick={() => alter({ skip: String(found.next) })}>
            Next rows
          </button>
        )}
      </div>
    </>
  );
}
