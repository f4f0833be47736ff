// A flow: whether it runs and how far it is, its picture, who holds the watermark, and its figures over time.

import { Acting, Action, Permission, useSession } from "../action";
import { type Address, asked, link } from "../address";
import type { HomeFacts, HomeNode, Lag, Row } from "../api";
import { useAnswer } from "../ask";
import { behind } from "../home";
import { NotKept } from "../home_then";
import { FlowPicture } from "../picture/flow_picture";
import { Plot } from "../plot";
import { ProblemPanel } from "../problem_panel";
import { FactTable } from "../table";
import { Name, Value } from "../value";
import { clock, count, counted, instant, milliseconds, rate, size, span, type Whole } from "../words";
import { StateTag } from "./listing";

interface Holder {
  source?: string;
  topic?: string;
  partition?: number | null;
  event_time?: string | null;
  watermark?: string | null;
  at?: string | null;
  [name: string]: unknown;
}

interface FlowFacts {
  flow: string;
  state: string;
  pid: number | null;
  version: number;
  epoch: number;
  sink: string;
  batch: Whole | null;
  every: string | null;
  error: string[];
  lag: Lag;
  sources: { source: string; partition: number; offset: Whole; lag: Lag }[];
  stages: { stage: string; operator: string; rows: Whole; bytes: Whole; late: Record<string, unknown>; counts: Record<string, Whole> }[];
  watermark_holders: Holder[];
  waits_for: Holder | null;
  does: { text: string } | null;
}

interface Batches {
  rows: (Row & { at: string; epoch: Whole })[];
}

const SHOWN_MINUTES = 15;

export function FlowPage({ name, address, home, live }: { name: string; address: Address; home: HomeFacts; live: number }) {
  const path = `api/flows/${encodeURIComponent(name)}`;
  const at = address.query.get("at");
  const { content: flow, problem } = useAnswer<FlowFacts>(asked(path, { at }), live);
  const node = home.nodes.find((candidate) => candidate.id === `flow:${name}`);
  const now = instant(home.home.at);
  const since = new Date(Math.floor(now / 60_000) * 60_000 - SHOWN_MINUTES * 60_000).toISOString();
  const batches = useAnswer<Batches>(node ? asked("api/topics/mainstem.progress/records", { position: since, filter: `flow = '${name.replaceAll("'", "''")}'`, limit: "1000", at }) : null, live);
  const actions = useSession()?.actions ?? [];
  if (problem && !flow) return <ProblemPanel whole problem={problem} />;
  if (!flow) return <h1><Name of={name} /></h1>;
  return (
    <>
      <div class="crumb">
        <a href={link("flows")}>Flows</a> / <Name of={name} />
      </div>
      <h1>
        <Name of={name} />
        <span class={`tag ${flow.state === "running" ? "t-on" : flow.state === "stopped" ? "t-plain" : "t-gone"}`}>
          {flow.state}
          {node && `, ${behind(node)}`}
        </span>
      </h1>
      <Words flow={flow} node={node} />
      {flow.error.length > 0 && (
        <section class="panel problem">
          <h2>
            <span class="tag t-gone">failed</span> <Value value={flow.error[0]} short={400} />
          </h2>
          {flow.error.slice(1).map((line) => (
            <p key={line}>
              <Value value={line} short={1000} />
            </p>
          ))}
        </section>
      )}
      <div class="two">
        <div class="stack">
          <FlowPicture name={name} path={asked(`${path}/picture`, { to: at })} address={address} live={live} />
          <FactTable
            label="Sources"
            heads={[["source", "left"], ["partition", "right"], ["next offset", "right"], ["behind", "left"]]}
            rows={flow.sources.map((part) => [
              part.source.startsWith("view ") ? <a href={link("views", part.source.slice(5))}><Name of={part.source} /></a> : <a href={link("topics", part.source)}><Name of={part.source} /></a>,
              String(part.partition),
              String(part.offset),
              Number(part.lag.records) === 0 ? "up to date" : `${part.lag.seconds ? `${span(part.lag.seconds)}, ` : ""}${counted(part.lag.records, "record")}`,
            ])}
            empty="Its sources no longer exist."
          />
        </div>
        <aside class="rail" aria-label="More about the flow">
          <Holders flow={flow} now={now} />
          <section class="panel pad">
            <h2>Run</h2>
            <dl class="facts-list">
              <dt>state</dt>
              <dd>
                <StateTag state={flow.state} />
              </dd>
              <dt>process</dt>
              <dd>{at ? <NotKept /> : (flow.pid ?? "none")}</dd>
              <dt>last batch</dt>
              <dd>{flow.batch ?? "none"}</dd>
              <dt>run</dt>
              <dd>epoch {flow.epoch}, version {flow.version}</dd>
              <dt>into</dt>
              <dd>
                <Value value={flow.sink} />
              </dd>
              {flow.stages.map((stage) => (
                <>
                  <dt>
                    stage <Name of={stage.stage} />
                  </dt>
                  <dd>
                    {counted(stage.rows, "row")}, {size(stage.bytes)}
                  </dd>
                </>
              ))}
            </dl>
            {flow.state === "running" && !at && (
              <div class="action-line">{actions.includes("stop") ? <Action name="stop" label="Stop" body={{ flow: name }} /> : <Permission name="stop" to="Stop" command={`mainstem flow stop ${name}`} />}</div>
            )}
            {flow.pid !== null && !at && actions.includes("kill") && (
              <div class="action-line">
                <Action name="kill" label={`Kill process ${flow.pid}`} danger body={{ flow: name }} />
              </div>
            )}
            <Acting />
          </section>
        </aside>
      </div>
      <Strip batches={batches.content?.rows ?? []} node={node} />
    </>
  );
}

function Words({ flow, node }: { flow: FlowFacts; node: HomeNode | undefined }) {
  const sources = [...new Set(flow.sources.map((part) => part.source))];
  const [kind, ...rest] = flow.sink.split(" ");
  return (
    <p class="words">
      {flow.does ? <><Value value={/[.!?]$/.test(flow.does.text) ? flow.does.text : `${flow.does.text}.`} short={1000} /> </> : <>
      It reads {sources.length ? sources.map((source, index) => <span key={source}>{index > 0 && ", "}<b><Name of={source} /></b></span>) : "nothing"} and writes the {kind} <b><Name of={rest.join(" ")} /></b>.{" "}
      </>}
      {node?.late ? `${counted(node.late, "row")} of the last 15 minutes came late, and corrected what was shown. ` : ""}
      {node?.too_late ? `${counted(node.too_late, "row")} came too late, and ${Number(node.too_late) === 1 ? "is" : "are"} not counted. ` : ""}
      {node?.waits_for ? <>It waits for <b><Value value={node.waits_for} /></b>.</> : ""}
    </p>
  );
}

function holderTime(holder: Holder): number {
  return instant(holder.event_time ?? holder.watermark ?? holder.at);
}

function Holders({ flow, now }: { flow: FlowFacts; now: number }) {
  const holders = flow.watermark_holders.filter((holder) => !Number.isNaN(holderTime(holder))).slice(0, 8);
  if (!holders.length) {
    return (
      <section class="panel pad">
        <h2>Who holds the watermark</h2>
        <p class="small soft">Nobody: the flow has no watermark, or no batch yet.</p>
      </section>
    );
  }
  const times = holders.map(holderTime);
  const [first, last] = [Math.min(...times), Math.max(...times, now)];
  return (
    <section class="panel pad">
      <h2>Who holds the watermark</h2>
      <p class="small soft">The slowest counts{holders.length > 1 ? `; the others are ${span((Math.max(...times) - first) / 1000)} ahead` : ""}.</p>
      <div class="holders num">
        {holders.map((holder, index) => (
          <div key={index}>
            <span>
              <Name of={`${holder.source ?? holder.topic ?? "source"}${holder.partition == null ? "" : ` ${holder.partition}`}`} />
            </span>
            <span class="bar">
              <span class={index === 0 && holders.length > 1 ? "slow" : ""} style={{ width: `${last === first ? 100 : Math.max(4, 100 - ((last - holderTime(holder)) / Math.max(60_000, last - first)) * 100)}%` }} />
            </span>
            <span>{clock(holderTime(holder), 1)}</span>
          </div>
        ))}
      </div>
    </section>
  );
}

const numberOf = (value: unknown) => (value === null || value === undefined ? null : Number(value));

function Strip({ batches, node }: { batches: Batches["rows"]; node: HomeNode | undefined }) {
  if (batches.length < 2) {
    return (
      <div class="strip">
        <section class="panel cell">
          <div class="h">
            <span>Over time</span>
          </div>
          <p class="small dim">Fewer than two batches in the last {SHOWN_MINUTES} minutes.</p>
        </section>
      </div>
    );
  }
  const ordered = [...batches].sort((a, b) => (a.at < b.at ? -1 : 1));
  const times = ordered.map((row) => instant(row.at));
  const values = (name: string) => ordered.map((row) => numberOf(row[name]));
  const perSecond = ordered.map((row, index) => {
    const wide = index ? ((times[index] as number) - (times[index - 1] as number)) / 1000 : 0;
    return wide > 0 ? (numberOf(row["rows_in"]) ?? 0) / wide : null;
  });
  const [took, lag, late, tooLate, state] = [values("batch_ms"), values("lag_seconds"), values("late"), values("too_late"), values("state_rows")];
  const lastOf = (list: (number | null)[]) => list[list.length - 1] ?? 0;
  const sum = (list: (number | null)[]) => list.reduce<number>((total, value) => total + (value ?? 0), 0);
  const most = (list: (number | null)[]) => Math.max(0, ...list.map((value) => value ?? 0));
  const rowsIn = sum(values("rows_in"));
  const phases = phasesOf(ordered[ordered.length - 1] as Row);
  const minutes = span(((times[times.length - 1] as number) - (times[0] as number)) / 1000);
  return (
    <div class="strip num">
      <section class="panel cell">
        <div class="h">
          <span>Rows in</span>
          <b>{rate(node?.rows_per_second ?? lastOf(perSecond))} /s</b>
        </div>
        <Plot times={times} lines={[{ stroke: "accent", fill: "accent-soft", values: perSecond }]} label={`Rows read a second, over ${minutes}`} />
        <div class="small dim">
          last {minutes}; out {rate(node?.rows_out_per_second ?? 0)} /s
        </div>
      </section>
      <section class="panel cell">
        <div class="h">
          <span>Behind</span>
          <b>{span(node?.lag_seconds ?? lastOf(lag))}</b>
        </div>
        <Plot times={times} lines={[{ stroke: "accent", fill: "accent-soft", values: lag }]} label={`Lag in seconds, over ${minutes}`} />
        <div class="small dim">most: {span(most(lag))}</div>
      </section>
      <section class="panel cell">
        <div class="h">
          <span>A batch</span>
          <b>{milliseconds(lastOf(took))}</b>
        </div>
        <Plot times={times} lines={phaseLines(ordered, took)} label={`Milliseconds of a batch and its phases, over ${minutes}: ${phases}`} />
        <div class="small dim">{phases || `most: ${milliseconds(most(took))}`}</div>
      </section>
      <section class="panel cell">
        <div class="h">
          <span>State</span>
          <b>{counted(lastOf(state), "row")}</b>
        </div>
        <Plot times={times} lines={[{ stroke: "accent", fill: "accent-soft", values: state }]} label={`Rows of state, over ${minutes}`} />
        <div class="small dim">
          {size(lastOf(values("state_bytes")))}; most: {counted(most(state), "row")}
        </div>
      </section>
      <section class="panel cell">
        <div class="h">
          <span>Late rows</span>
          <b>{rowsIn ? `${((100 * sum(late)) / rowsIn).toFixed(1)} %` : "0 %"}</b>
        </div>
        <Plot times={times} bars lines={[{ stroke: "late-fill", fill: "late-fill", values: late.map((value) => value || null) }]} label={`Late rows, over ${minutes}`} />
        <div class="small dim">
          {count(sum(late))} corrected, {count(sum(tooLate))} too late
        </div>
      </section>
    </div>
  );
}

// Spark's names of the phases, in our words.
const PHASES: Record<string, string> = { addBatch: "work and sink", getBatch: "reading", latestOffset: "offsets", queryPlanning: "planning", planning: "planning", walCommit: "checkpoint", commitOffsets: "commit", sink: "sink", work: "work" };

function phasesIn(row: Row): [string, number][] {
  const pairs = Array.isArray(row["phases"]) ? (row["phases"] as [string, Whole][]) : [];
  const found = pairs.filter(([name, ms]) => name !== "triggerExecution" && Number(ms) > 0).map(([name, ms]): [string, number] => [name, Number(ms)]);
  const sink = Number(row["sink_ms"] ?? 0);
  // Spark counts the work and the sink as one; the sink is known apart.
  if (!sink) return found;
  return [...found.map(([name, ms]): [string, number] => (name === "addBatch" ? ["work", Math.max(0, ms - sink)] : [name, ms])), ["sink", sink]];
}

function phasesOf(row: Row): string {
  return phasesIn(row)
    .sort((a, b) => b[1] - a[1])
    .slice(0, 3)
    .map(([name, ms]) => `${PHASES[name] ?? name} ${count(ms)}`)
    .join("  ");
}

const PHASE_COLOURS: [string, string][] = [["accent", "accent-soft"], ["ontime-fill", "ontime-soft"], ["early-fill", "early-soft"]];

/** The whole batch, and below it its three longest phases, each on the one before. */
function phaseLines(rows: Row[], took: (number | null)[]) {
  const each = rows.map((row) => new Map(phasesIn(row)));
  const sums = new Map<string, number>();
  for (const phases of each) for (const [name, ms] of phases) sums.set(name, (sums.get(name) ?? 0) + ms);
  const names = [...sums].sort((a, b) => b[1] - a[1]).slice(0, PHASE_COLOURS.length).map(([name]) => name);
  const stacked = names.map((_, index) => each.map((phases) => names.slice(0, index + 1).reduce((sum, name) => sum + (phases.get(name) ?? 0), 0)));
  const lines = stacked.map((values, index) => ({ stroke: PHASE_COLOURS[index]?.[0] ?? "edge", fill: PHASE_COLOURS[index]?.[1], values: values as (number | null)[] }));
  return [{ stroke: "edge", fill: undefined, values: took }, ...lines.reverse()];
}
