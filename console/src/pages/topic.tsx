// A topic: its newest rows or those from a position, a filter, its partitions and its readers.

import { useEffect, useRef, useState } from "preact/hooks";
import { type Address, alter, asked, link } from "../address";
import type { Column, HomeFacts, Lag, Row } from "../api";
import { ask, type Problem, problemFrom, useAnswer } from "../ask";
import { NotKept } from "../home_then";
import { useStream, useTick } from "../live";
import { ProblemPanel } from "../problem_panel";
import { FactTable, RowTable } from "../table";
import { Name, Value } from "../value";
import { ago, count, counted, instant, moment, rate, size, span, type Whole } from "../words";
import { AppendRow } from "./append_row";
import { StateTag } from "./listing";

interface TopicFacts {
  topic: string;
  schema: string;
  key?: string[] | string | null;
  event_time?: string | null;
  keep: string;
  records: Whole;
  bytes: Whole | null;
  appended_at: string | null;
  schemas?: { version: number; since: string | null; schema: string; changes: string[] }[];
  partitions: { partition?: number; number?: number; earliest?: Whole; latest?: Whole; start?: Whole; end?: Whole; records?: Whole; bytes?: Whole | null; segments?: number | null; sealed?: number | null; damage?: string | null }[];
  groups?: { group: string; lag?: Lag; error?: string }[] | null;
  queues?: { queue: string; lag?: Lag; error?: string }[] | null;
  flows?: { flow: string; state: string; lag: Lag }[];
}

interface Records {
  columns: Column[];
  rows: (Row & { record: RecordFacts })[];
  cursor: string;
  at_end: boolean;
  looked: number;
}

interface RecordFacts {
  partition: number;
  offset: string;
  appended_at: string;
  change: string;
}

const PAGE = 25;
/** No more rows are kept on the page, however long it is open. */
const ROWS_MAX = 500;
/** Of the newest ones fewer: they are drawn again several times a second. */
const NEWEST_MAX = 100;
const LIT_MS = 4000;

const recordName = ({ record }: { record: RecordFacts }) => `${record.partition}:${record.offset}`;
const byTime = (a: { record: RecordFacts }, b: { record: RecordFacts }) =>
  a.record.appended_at < b.record.appended_at ? 1 : a.record.appended_at > b.record.appended_at ? -1 : Number(b.record.offset) - Number(a.record.offset);

export function TopicPage({ name, address, home, live }: { name: string; address: Address; home: HomeFacts; live: number }) {
  const path = `api/topics/${encodeURIComponent(name)}`;
  const at = address.query.get("at");
  const facts = useAnswer<TopicFacts>(asked(path, { at }), Math.floor(live / 5));
  const node = home.nodes.find((candidate) => candidate.id === `topic:${name}`);
  const now = instant(home.home.at);
  if (facts.problem && !facts.content) return <ProblemPanel whole problem={facts.problem} />;
  const topic = facts.content;
  return (
    <>
      <div class="crumb">
        <a href={link("topics")}>Topics</a> / <Name of={name} />
      </div>
      <h1>
        <Name of={name} />
        <span class="tag t-acc">{node ? `${rate(node.rows_per_second ?? 0)} rows/s` : "a topic of Mainstem itself"}</span>
      </h1>
      {topic && (
        <p class="words">
          <b>{counted(topic.records, "record")}</b> in {counted(topic.partitions.length, "partition")}, {topic.bytes === null ? <NotKept what="size" /> : size(topic.bytes)}, kept {topic.keep}.{" "}
          {topic.appended_at ? <>The last one was appended {ago(instant(topic.appended_at), now)}.</> : "Nothing was appended yet."}{" "}
          {topic.event_time ? <>Event time is <b><Name of={topic.event_time} /></b>.</> : "It has no event time."}
        </p>
      )}
      <RecordList key={name} path={`${path}/records`} subject={`topic:${name}`} address={address} now={now} />
      {topic && !at && <AppendRow topic={topic.topic} columns={topic.schema} />}
      {topic && <Partitions topic={topic} />}
      {topic && <Readers topic={topic} />}
      {topic && <SchemaHistory schemas={topic.schemas ?? []} now={now} />}
    </>
  );
}

function RecordList({ path, subject, address, now }: { path: string; subject: string; address: Address; now: number }) {
  const at = address.query.get("at");
  const position = address.query.get("position") ?? "";
  const filter = address.query.get("filter") ?? "";
  const [wanted, setWanted] = useState({ position, filter });
  const [shown, setShown] = useState<{ columns: Column[]; rows: Records["rows"]; cursor: string; at_end: boolean; looked: number } | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [looking, setLooking] = useState<AbortController | null>(null);
  const [lit, setLit] = useState<ReadonlySet<string>>(new Set());
  const newest = position === "";
  // The cursor means nothing any more: the topic is another one, or was deleted. The next read begins anew.
  const astray = useRef(false);
  useStream(newest && !at ? subject : null, ({ kind }) => {
    if (kind === "gap" || kind === "gone") astray.current = true;
  });
  const tick = useTick(newest && !at ? subject : null);
  const busy = useRef(false);
  // What came while a read was under way: a reason for another one.
  const missed = useRef(false);
  const fading = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const latest = useRef(shown);
  const show = (next: typeof shown) => {
    latest.current = next;
    setShown(next);
  };

  const look = async (cursor: string | null, add: boolean) => {
    if (busy.current) {
      missed.current = true;
      return;
    }
    busy.current = true;
    const asked = new AbortController();
    const slow = setTimeout(() => setLooking(asked), 300);
    try {
      const query = new URLSearchParams({ limit: String(PAGE) });
      if (cursor !== null) query.set("cursor", cursor);
      else if (position) query.set("position", position);
      if (filter) query.set("filter", filter);
      if (at) query.set("at", at);
      const found = await ask<Records>(`${path}?${query}`, { signal: asked.signal });
      setProblem(null);
      if (cursor === null) astray.current = false;
      const before = add ? latest.current : null;
      const known = before?.rows ?? [];
      const names = new Set(known.map(recordName));
      const fresh = found.rows.filter((row) => !names.has(recordName(row)));
      const rows = newest ? [...fresh, ...known].sort(byTime).slice(0, NEWEST_MAX) : [...known, ...fresh].slice(-ROWS_MAX);
      show({ columns: found.columns, rows, cursor: found.cursor, at_end: found.at_end, looked: (before?.looked ?? 0) + found.looked });
      if (before && newest && fresh.length) {
        setLit(new Set(fresh.map(recordName)));
        clearTimeout(fading.current);
        fading.current = setTimeout(() => setLit(new Set()), LIT_MS);
      }
    } catch (error) {
      if (!asked.signal.aborted) setProblem(problemFrom(error));
    } finally {
      clearTimeout(slow);
      setLooking(null);
      busy.current = false;
      if (missed.current) {
        missed.current = false;
        goOn();
      }
    }
  };
  const goOn = () => {
    if (newest && latest.current) void (astray.current ? look(null, false) : look(latest.current.cursor, true));
  };
  useEffect(() => {
    setWanted({ position, filter });
    show(null);
    void look(null, false);
  }, [path, position, filter, at]);
  useEffect(() => {
    if (newest && latest.current) goOn();
    else missed.current = busy.current;
  }, [tick]);

  const submit = (event: Event) => {
    event.preventDefault();
    alter({ position: wanted.position.trim(), filter: wanted.filter.trim() });
  };
  return (
    <>
      <form class="tools" onSubmit={submit}>
        <label>
          From
          <input class="field" size={22} value={wanted.position} placeholder="the newest" aria-describedby="positions" onInput={(event) => setWanted({ ...wanted, position: event.currentTarget.value })} />
        </label>
        <label>
          Only
          <input class="field" size={26} value={wanted.filter} placeholder="a condition: amount > 100" spellcheck={false} onInput={(event) => setWanted({ ...wanted, filter: event.currentTarget.value })} />
        </label>
        <button class="btn chief" type="submit">
          Show
        </button>
        {(position || filter) && (
          <button class="btn" type="button" onClick={() => alter({ position: null, filter: null })}>
            Newest
          </button>
        )}
        {looking && (
          <button class="btn" type="button" onClick={() => looking.abort()}>
            Cancel
          </button>
        )}
        <span class="small dim" id="positions">
          earliest, a time with its zone, offsets as 0:12,1:7, or a token
        </span>
      </form>
      {problem && <ProblemPanel problem={problem} />}
      {shown && (
        <div class="body">
          <RowTable
            label="Records"
            columns={shown.columns}
            rows={shown.rows}
            nameOf={(row) => recordName(row as Records["rows"][number])}
            lit={lit}
            lead={[
              { title: "record", cell: (row) => recordName(row as Records["rows"][number]) },
              { title: "appended", cell: (row) => moment(instant((row["record"] as RecordFacts).appended_at), now, 1) },
            ]}
            empty={filter ? `None of the ${count(shown.looked)} records that were looked at fulfils the condition.` : "There is no record here yet."}
          />
          <div class="tools">
            {!newest && (
              <button class="btn" type="button" disabled={shown.at_end} onClick={() => void look(shown.cursor, true)}>
                {shown.at_end ? "That is the end" : "More"}
              </button>
            )}
            <span class="small dim">
              {counted(shown.rows.length, "row")} shown{filter && `, ${counted(shown.looked, "record")} looked at`}
              {newest && shown.rows.length >= NEWEST_MAX && `; older ones make room`}
            </span>
          </div>
        </div>
      )}
    </>
  );
}

function Partitions({ topic }: { topic: TopicFacts }) {
  return (
    <section class="body">
      <h2>Partitions</h2>
      <div class="gap" />
      <FactTable
        label="Partitions"
        heads={[["partition", "right"], ["from offset", "right"], ["next offset", "right"], ["records", "right"], ["segments", "right"], ["sealed", "right"], ["size", "right"]]}
        rows={topic.partitions.map((partition, index) => {
          const first = partition.earliest ?? partition.start ?? 0;
          const next = partition.latest ?? partition.end ?? 0;
          return [String(partition.partition ?? partition.number ?? index), String(first), String(next), count(partition.records ?? Number(next) - Number(first)), partition.segments == null ? <NotKept /> : count(partition.segments), partition.sealed == null ? <NotKept /> : count(partition.sealed), partition.damage ? <span class="tag t-gone">damaged</span> : partition.bytes == null ? <NotKept /> : size(partition.bytes)];
        })}
        empty="It has no partition."
      />
    </section>
  );
}

function Readers({ topic }: { topic: TopicFacts }) {
  const lagText = (lag: Lag | undefined, error?: string) =>
    lag ? (Number(lag.records) === 0 ? "up to date" : `${lag.seconds === null ? "" : `${span(lag.seconds)}, `}${counted(lag.records, "record")}`) : <Value value={error ?? "not known"} />;
  const until = (lag: Lag | undefined) => (lag?.until_dropped_seconds == null ? "" : `in ${span(lag.until_dropped_seconds)}`);
  const rows = [
    ...(topic.flows ?? []).map((it) => [<>flow <a href={link("flows", it.flow)}><Name of={it.flow} /></a> <StateTag state={it.state} /></>, lagText(it.lag), until(it.lag)]),
    ...(topic.queues ?? []).map((it) => [<>queue <a href={link("queues", topic.topic, it.queue)}><Name of={it.queue} /></a></>, lagText(it.lag, it.error), until(it.lag)]),
    ...(topic.groups ?? []).map((it) => [<>group <b><Name of={it.group} /></b></>, lagText(it.lag, it.error), until(it.lag)]),
  ];
  return (
    <section class="body">
      <div class="wide-gap" />
      <h2>Readers</h2>
      <div class="gap" />
      {topic.queues === null && (
        <p class="small">
          <NotKept what="Queues and groups of then" />
        </p>
      )}
      <FactTable label="Readers" heads={[["reader", "left"], ["behind", "left"], ["falls off", "left"]]} rows={rows} empty="No flow, queue or group reads it." />
    </section>
  );
}

function SchemaHistory({ schemas, now }: { schemas: NonNullable<TopicFacts["schemas"]>; now: number }) {
  return (
    <section class="body">
      <div class="wide-gap" />
      <h2>Schema</h2>
      <div class="gap" />
      <FactTable
        label="Schema history"
        heads={[["version", "right"], ["since", "left"], ["changed", "left"], ["columns", "left"]]}
        rows={schemas.map((it) => [String(it.version), it.since ? moment(instant(it.since), now) : it.version === 1 ? "the beginning" : <NotKept />, it.changes.length ? <Value value={it.changes.join("; ")} /> : it.version === 1 ? "" : "nothing", <Value value={it.schema} />])}
        empty="Its schema is not known."
      />
    </section>
  );
}
