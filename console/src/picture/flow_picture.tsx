// The picture of a flow with what is around it: legend, keys, replay, zoom, and the same as a table.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { type Address, alter } from "../address";
import { useAnswer } from "../ask";
import { ProblemPanel } from "../problem_panel";
import { FactTable } from "../table";
import { clock, count, counted, span } from "../words";
import { Picture, type PictureContent, type Region, whole } from "./picture";
import { contentOf, type PictureAnswer } from "./picture_answer";

const KEYS_MAX = 8;
const TABLE_ROWS = 100;

export function FlowPicture({ name, path, address, live }: { name: string; path: string; address: Address; live: number }) {
  const { content: answer, problem } = useAnswer<PictureAnswer>(path, live);
  const region = regionIn(address.query.get("zoom"));
  const setRegion = (wanted: Region | null) => alter({ zoom: wanted && [...wanted.event, ...wanted.known].map(Math.round).join("-") });
  const [chosen, setChosen] = useState<number | null>(null);
  const [replayed, setReplayed] = useState<number | null>(null);
  const asTable = address.query.get("as") === "table";
  const keyShown = address.query.get("key");
  const content = useMemo(() => (answer ? contentOf(answer, name) : null), [answer, name]);
  const keys = useMemo(() => [...new Set((content?.panes ?? []).map((pane) => pane.key))].sort(), [content]);
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      const writing = event.target instanceof HTMLElement && event.target.closest("input, textarea, select");
      if (event.key === "t" && !writing && !event.ctrlKey && !event.metaKey && !event.altKey) alter({ as: asTable ? null : "table" });
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [asTable]);
  if (problem && !content) return problem.status === 404 || problem.status === 400 ? <Without text={problem.what} /> : <ProblemPanel problem={problem} />;
  if (!content) return <section class="panel pic"><p class="map-wait dim">The picture is being drawn.</p></section>;
  if (!content.rows.length && !content.panes.length) return <Without text="none of its topics has a row with an event time yet" />;
  const shown = replayed === null ? content : until(content, replayed);
  const span_ = whole(content);
  return (
    <section class="panel pic" aria-label="Picture">
      <div class="pic-head">
        <Legend dropped={answer?.dropped ?? 0} />
        <div class="choices" role="radiogroup" aria-label="Key">
          {keys.length > 1 &&
            [null, ...keys.slice(0, KEYS_MAX)].map((key) => (
              <button type="button" role="radio" aria-checked={key === keyShown} onClick={() => alter({ key })} key={key ?? "\u0000"}>
                {key === null ? "all" : key.length > 20 ? `${key.slice(0, 19)}…` : key}
              </button>
            ))}
        </div>
      </div>
      {asTable ? (
        <PictureTable content={shown} keyShown={keyShown} />
      ) : (
        <Picture
          content={shown}
          region={region ?? span_}
          onZoom={setRegion}
          chosen={chosen}
          onChoose={setChosen}
          keyShown={keyShown}
          label={`Event time to the right, processing time upwards: ${counted(content.rows.length, "row")} of ${name}, its watermark and ${counted(content.panes.length, "pane")}. Arrow keys go from row to row; t shows the same as a table.`}
        />
      )}
      <div class="pic-foot">
        <Replay content={content} at={replayed} speed={Number(address.query.get("speed")) || SPEED} onMove={setReplayed} />
        {region && (
          <button type="button" class="btn" onClick={() => setRegion(null)}>
            Whole picture
          </button>
        )}
        <button type="button" class="btn" onClick={() => alter({ as: asTable ? null : "table" })}>
          {asTable ? "As a picture" : "As a table"}
        </button>
        {!asTable && (
          <span class="small dim">
            drag over the picture to zoom, or <kbd>+</kbd> <kbd>-</kbd>; <kbd>←</kbd> <kbd>→</kbd> go from row to row; <kbd>t</kbd> shows it as a table
          </span>
        )}
        <span class="sp" />
        <span class="small dim">{answer?.sampled ? `${counted(answer.sampled, "row")} left out` : "every row is drawn"}</span>
      </div>
    </section>
  );
}

function Without({ text }: { text: string }) {
  return (
    <section class="panel pic">
      <h2>No picture</h2>
      <p class="small soft">{text}. A picture needs a topic that was created with an event time.</p>
    </section>
  );
}

function Legend({ dropped }: { dropped: number }) {
  return (
    <div class="legend">
      <span><i class="l-row" />a row</span>
      <span><i class="l-late" />{dropped ? `late; Spark dropped ${count(dropped)}, and does not say which` : "late, corrected"}</span>
      <span><i class="l-gone">✕</i>too late</span>
      <span><i class="l-water" />watermark</span>
      <span><i class="l-early" />early</span>
      <span><i class="l-on" />complete</span>
      <span><i class="l-fix" />corrected</span>
    </div>
  );
}

/** The picture as it was at a moment. */
function until(content: PictureContent, at: number): PictureContent {
  return {
    now: at,
    rows: content.rows.filter((row) => row.known <= at),
    watermark: content.watermark.filter(([known]) => known <= at),
    panes: content.panes.filter((pane) => pane.at <= at),
    breaks: content.breaks.filter((gap) => gap.from <= at).map((gap) => ({ ...gap, to: Math.min(gap.to, at) })),
  };
}

const SPEED = 30;
const SPEEDS = [1, 2, 5, 10, 30, 60, 120, 300];

/** A part of the picture as the address has it: four times in milliseconds. */
function regionIn(text: string | null): Region | null {
  const found = /^(\d+)-(\d+)-(\d+)-(\d+)$/.exec(text ?? "")?.slice(1).map(Number);
  if (!found) return null;
  const [e0 = 0, e1 = 0, k0 = 0, k1 = 0] = found;
  return e0 < e1 && k0 < k1 ? { event: [e0, e1], known: [k0, k1] } : null;
}

/** Plays the picture again, at any speed; the slider goes to any moment by hand. `at` is null while it is not played. */
function Replay({ content, at, speed, onMove }: { content: PictureContent; at: number | null; speed: number; onMove(at: number | null): void }) {
  const frame = useRef(0);
  const [playing, setPlaying] = useState(false);
  const first = Math.min(...content.rows.map((row) => row.known), ...content.panes.map((pane) => pane.at), content.now);
  const place = useRef(at ?? first);
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  useEffect(() => {
    if (!playing) return;
    let before = performance.now();
    const step = (now: number) => {
      place.current += (now - before) * speed;
      before = now;
      if (place.current >= content.now) {
        setPlaying(false);
        return onMove(null);
      }
      onMove(place.current);
      frame.current = requestAnimationFrame(step);
    };
    frame.current = requestAnimationFrame(step);
    return () => cancelAnimationFrame(frame.current);
  }, [playing, speed, content]);
  const begin = () => {
    if (at === null) place.current = first;
    setPlaying(true);
  };
  return (
    <span class="replay">
      {/* Motion that the reader starts; with reduced motion there is only the slider. */}
      {!still && (
        <button type="button" class="btn" onClick={() => (playing ? setPlaying(false) : begin())}>
          {playing ? "❚❚ Pause" : at === null ? `▶ Replay ${span((content.now - first) / 1000)}` : "▶ Go on"}
        </button>
      )}
      {!still && (
        <select class="field" aria-label="Speed of the replay" value={String(speed)} onChange={(event) => alter({ speed: event.currentTarget.value })}>
          {[...new Set([...SPEEDS, speed])].sort((a, b) => a - b).map((times) => (
            <option value={String(times)} key={times}>
              {times} ×
            </option>
          ))}
        </select>
      )}
      <input
        type="range"
        aria-label="Moment of the replay"
        aria-valuetext={at === null ? "the end" : clock(at)}
        min={first}
        max={content.now}
        step={Math.max(1, (content.now - first) / 1000)}
        value={at ?? content.now}
        onInput={(event) => {
          place.current = Number(event.currentTarget.value);
          onMove(place.current >= content.now ? null : place.current);
        }}
      />
      {at !== null && (
        <>
          <span class="num small">{clock(at)}</span>
          <button type="button" class="btn" onClick={() => (setPlaying(false), onMove(null))}>
            To the end
          </button>
        </>
      )}
    </span>
  );
}

function PictureTable({ content, keyShown }: { content: PictureContent; keyShown: string | null }) {
  const late = { counted: "t-plain", late: "t-late", "too late": "t-gone" };
  const timing = { early: ["t-early", "early"], "on time": ["t-on", "complete"], late: ["t-late", "corrected"] } as const;
  const rows = [...content.rows].sort((a, b) => b.known - a.known);
  const panes = content.panes.filter((pane) => keyShown === null || pane.key === keyShown).sort((a, b) => b.at - a.at);
  return (
    <div class="stack">
      <h2>
        Rows{rows.length > TABLE_ROWS && <span class="dim"> (the newest {TABLE_ROWS} of {rows.length})</span>}
      </h2>
      <FactTable
        label="Rows of the picture"
        heads={[["row", "left"], ["happened", "left"], ["came", "left"], ["after", "right"], ["what became of it", "left"]]}
        rows={rows.slice(0, TABLE_ROWS).map((row) => [row.title, clock(row.event, 1), clock(row.known, 1), span(Math.max(0, row.known - row.event) / 1000), <span class={`tag ${late[row.fate]}`}>{row.fate}</span>])}
        empty="There is no row."
      />
      <h2>
        Panes{panes.length > TABLE_ROWS && <span class="dim"> (the newest {TABLE_ROWS} of {panes.length})</span>}
      </h2>
      <FactTable
        label="Panes of the picture"
        heads={[["window", "left"], ["key", "left"], ["shown", "left"], ["timing", "left"], ["value", "right"]]}
        rows={panes.slice(0, TABLE_ROWS).map((pane) => [`${clock(pane.start)} to ${clock(pane.end)}`, pane.key, clock(pane.at, 1), <span class={`tag ${timing[pane.timing][0]}`}>{timing[pane.timing][1]}</span>, pane.why ? <a href={pane.why} title="Why is this number so?">{pane.value}</a> : pane.value])}
        empty="There is no pane."
      />
    </div>
  );
}
