// The live picture of a flow: event time to the right, processing time upwards. Each row is a dot; what is left of the
// watermark has come, or is late; a pane is a bar over its window at the moment when it was shown.
// Dots are drawn on a canvas (4,000 of them take 3 ms there, 75 ms as SVG), all else is SVG.

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { clock, span } from "../words";
import { type Scale, scale, tickText, ticks } from "./scale";

export type Fate = "counted" | "late" | "too late";
export type Timing = "early" | "on time" | "late";

export interface PictureRow {
  /** When it happened and when it was appended, in milliseconds. */
  event: number;
  known: number;
  fate: Fate;
  /** What it is called, and what happened to it, in words. */
  title: string;
  said: string[];
}

export interface PicturePane {
  start: number;
  end: number;
  at: number;
  timing: Timing;
  key: string;
  value: string;
  /** Where it is told why it is so. */
  why: string | null;
}

export interface PictureContent {
  now: number;
  rows: PictureRow[];
  /** Where the watermark advanced: [processing time, watermark], in order. */
  watermark: [number, number][];
  panes: PicturePane[];
  /** When no run was there, and why. */
  breaks: { from: number; to: number; text: string }[];
}

export interface Region {
  event: [number, number];
  known: [number, number];
}

const LEFT = 76;
const RIGHT = 12;
const TOP = 62;
const BOTTOM = 40;
const NEAR = 14;

/** What the picture spans if nobody zoomed: the rows, and a little room. */
export function whole(content: PictureContent): Region {
  const events = [...content.rows.map((row) => row.event), ...content.panes.flatMap((pane) => [pane.start, pane.end])];
  const known = [...content.rows.map((row) => row.known), ...content.panes.map((pane) => pane.at), content.now];
  // One row with a wild time must not make all others a point: the first and the last hundredth are cut, if they are far.
  const [e0, e1] = trimmed(events);
  const [k0, k1] = trimmed(known);
  const room = Math.max(500, (e1 - e0) * 0.02);
  return { event: [Math.min(e0, k0) - room, Math.max(e1, e0 + 1000) + room], known: [Math.min(k0, e1), Math.max(k1, content.now) + Math.max(500, (k1 - k0) * 0.03)] };
}

function trimmed(times: number[]): [number, number] {
  const sorted = times.filter(Number.isFinite).sort((a, b) => a - b);
  if (!sorted.length) return [0, 1000];
  const at = (part: number) => sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))] as number;
  const [low, high, wide] = [at(0.01), at(0.99), Math.max(1000, at(0.99) - at(0.01))];
  const first = sorted[0] as number;
  const last = sorted[sorted.length - 1] as number;
  return [low - first > 3 * wide ? low : first, last - high > 3 * wide ? high : last];
}

interface PictureProps {
  content: PictureContent;
  region: Region;
  onZoom(region: Region | null): void;
  chosen: number | null;
  onChoose(row: number | null): void;
  /** The heads of the windows are of this key; null: of all keys. */
  keyShown: string | null;
  label: string;
}

export function Picture({ content, region, onZoom, chosen, onChoose, keyShown, label }: PictureProps) {
  const frame = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [drag, setDrag] = useState<{ from: [number, number]; to: [number, number] } | null>(null);
  const dark = useDarkness();
  useLayoutEffect(() => {
    const element = frame.current as HTMLDivElement;
    const seen = new ResizeObserver(() => setWidth(Math.floor(element.clientWidth)));
    seen.observe(element);
    setWidth(Math.floor(element.clientWidth));
    return () => seen.disconnect();
  }, []);
  const height = Math.round(Math.min(600, Math.max(380, width * 0.6)));
  const x = scale(...region.event, LEFT, width - RIGHT);
  const y = scale(...region.known, height - BOTTOM, TOP);
  useEffect(() => {
    if (canvas.current && width) drawRows(canvas.current, content.rows, x, y, width, height);
  });

  const nearest = (px: number, py: number): number | null => {
    let best: number | null = null;
    let least = NEAR * NEAR;
    content.rows.forEach((row, index) => {
      const far = (x(row.event) - px) ** 2 + (y(row.known) - py) ** 2;
      if (far < least) [best, least] = [index, far];
    });
    return best;
  };
  const place = (event: PointerEvent): [number, number] => {
    const box = (frame.current as HTMLDivElement).getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const released = () => {
    if (!drag) return;
    const [[ax, ay], [bx, by]] = [drag.from, drag.to];
    setDrag(null);
    if (Math.abs(ax - bx) < 12 || Math.abs(ay - by) < 12) return;
    const clipX = (p: number) => Math.min(width - RIGHT, Math.max(LEFT, p));
    const clipY = (p: number) => Math.min(height - BOTTOM, Math.max(TOP, p));
    onZoom({
      event: [x.at(clipX(Math.min(ax, bx))), x.at(clipX(Math.max(ax, bx)))],
      known: [y.at(clipY(Math.max(ay, by))), y.at(clipY(Math.min(ay, by)))],
    });
  };
  const pressed = (event: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step && content.rows.length) {
      event.preventDefault();
      const next = chosen === null ? (step > 0 ? 0 : content.rows.length - 1) : chosen + step;
      onChoose(Math.min(content.rows.length - 1, Math.max(0, next)));
    } else if (event.key === "+" || event.key === "=" || event.key === "-") {
      event.preventDefault();
      onZoom(zoomed(region, event.key === "-" ? 2 : 0.5, chosen === null ? undefined : content.rows[chosen]));
    } else if (event.key === "Escape") {
      onChoose(null);
      onZoom(null);
    }
  };
  const row = chosen === null ? undefined : content.rows[chosen];
  return (
    <div
      class="picture"
      ref={frame}
      tabIndex={0}
      role="group"
      aria-label={label}
      data-rows={content.rows.length}
      data-dark={dark}
      style={{ height: `${height}px` }}
      onKeyDown={pressed}
      onPointerDown={(event) => event.pointerType === "mouse" && event.button === 0 && setDrag({ from: place(event), to: place(event) })}
      onPointerMove={(event) => {
        const at = place(event);
        if (drag) setDrag({ ...drag, to: at });
        else onChoose(nearest(...at));
      }}
      onPointerUp={released}
      onPointerLeave={() => setDrag(null)}
    >
      {width > 0 && (
        <>
          <Ground content={content} x={x} y={y} width={width} height={height} keyShown={keyShown} />
          <canvas ref={canvas} aria-hidden="true" />
          <svg width={width} height={height} aria-hidden="true">
            <Watermark content={content} x={x} y={y} height={height} width={width} />
            {content.breaks.map((gap) => (
              <text class="lab s-gone halo" key={gap.from} x={width - RIGHT - 8} y={Math.min(height - BOTTOM - 4, y(Math.max(gap.from, region.known[0])) + 15)} text-anchor="end">
                {gap.text}
              </text>
            ))}
            {row && <circle cx={x(row.event)} cy={y(row.known)} r="7.5" fill="none" stroke="var(--ink)" stroke-width="1.6" />}
            {drag && (
              <rect
                x={Math.min(drag.from[0], drag.to[0])}
                y={Math.min(drag.from[1], drag.to[1])}
                width={Math.abs(drag.from[0] - drag.to[0])}
                height={Math.abs(drag.from[1] - drag.to[1])}
                fill="var(--accent)"
                fill-opacity=".12"
                stroke="var(--accent)"
              />
            )}
          </svg>
          {row && <Card row={row} left={x(row.event)} top={y(row.known)} width={width} height={height} />}
        </>
      )}
    </div>
  );
}

/** A region half or twice as wide, around a row or else its middle. */
function zoomed(region: Region, by: number, row: PictureRow | undefined): Region {
  const around = ([first, last]: [number, number], at: number): [number, number] => [at - (at - first) * by, at + (last - at) * by];
  const middle = ([first, last]: [number, number]) => (first + last) / 2;
  return { event: around(region.event, row?.event ?? middle(region.event)), known: around(region.known, row?.known ?? middle(region.known)) };
}

function useDarkness(): boolean {
  const asked = "(prefers-color-scheme: dark)";
  const [dark, setDark] = useState(() => matchMedia(asked).matches);
  useEffect(() => {
    const query = matchMedia(asked);
    const changed = () => setDark(query.matches);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);
  return dark;
}

function drawRows(canvas: HTMLCanvasElement, rows: PictureRow[], x: Scale, y: Scale, width: number, height: number): void {
  const dense = Math.min(2, devicePixelRatio || 1);
  if (canvas.width !== width * dense || canvas.height !== height * dense) {
    canvas.width = width * dense;
    canvas.height = height * dense;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  if (!pen) return;
  const colours = getComputedStyle(canvas);
  const [dot, late, gone, surface] = ["--dot", "--late-fill", "--gone-fill", "--surface"].map((name) => colours.getPropertyValue(name));
  pen.setTransform(dense, 0, 0, dense, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.save();
  pen.beginPath();
  pen.rect(LEFT, TOP - 4, width - LEFT - RIGHT, height - BOTTOM - TOP + 8);
  pen.clip();
  pen.globalAlpha = 0.72;
  pen.fillStyle = dot as string;
  const small = rows.length > 2000 ? 1.6 : 2.1;
  for (const row of rows) {
    if (row.fate !== "counted") continue;
    pen.beginPath();
    pen.arc(x(row.event), y(row.known), small, 0, 2 * Math.PI);
    pen.fill();
  }
  pen.globalAlpha = 1;
  for (const row of rows) {
    const [px, py] = [x(row.event), y(row.known)];
    if (row.fate === "late") {
      pen.beginPath();
      pen.arc(px, py, 4.2, 0, 2 * Math.PI);
      pen.fillStyle = late as string;
      pen.strokeStyle = surface as string;
      pen.lineWidth = 1.2;
      pen.fill();
      pen.stroke();
    } else if (row.fate === "too late") {
      pen.beginPath();
      pen.moveTo(px - 4, py - 4);
      pen.lineTo(px + 4, py + 4);
      pen.moveTo(px + 4, py - 4);
      pen.lineTo(px - 4, py + 4);
      pen.strokeStyle = gone as string;
      pen.lineWidth = 2.2;
      pen.lineCap = "round";
      pen.stroke();
    }
  }
  pen.restore();
}

interface Drawn {
  content: PictureContent;
  x: Scale;
  y: Scale;
  width: number;
  height: number;
}

/** What lies below the rows: what has come, what has not happened yet, the grid, windows and their panes. */
function Ground({ content, x, y, width, height, keyShown }: Drawn & { keyShown: string | null }) {
  const { now } = content;
  const foot = height - BOTTOM;
  const edge = Math.max(TOP, y(now));
  const narrow = width < 560;
  const across = ticks(x.first, x.last, narrow ? 5 : 9);
  const upwards = ticks(y.first, Math.min(now, y.last), 9);
  const ideal = { from: Math.max(x.first, y.first), to: Math.min(x.last, now, y.last) };
  const middle = ideal.from + (ideal.to - ideal.from) * 0.3;
  const slope = (Math.atan2(y(ideal.to) - y(ideal.from), x(ideal.to) - x(ideal.from)) * 180) / Math.PI;
  return (
    <svg width={width} height={height} aria-hidden="true">
      <defs>
        <pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
          <path d="M0 0V6" stroke="var(--line)" stroke-width="1.2" />
        </pattern>
        <clipPath id="inside">
          <rect x={LEFT} y={TOP} width={Math.max(0, width - LEFT - RIGHT)} height={Math.max(0, foot - TOP)} />
        </clipPath>
      </defs>
      <g clip-path="url(#inside)">
        <path d={`${waterline(content, x, y)}L${Math.min(LEFT, x(x.first))} ${edge}L${LEFT} ${foot}Z`} fill="var(--done)" />
        <path d={`M${x(y.first)} ${foot}L${x(Math.min(now, y.last))} ${edge}L${width} ${edge}L${width} ${foot}Z`} fill="url(#hatch)" />
      </g>
      {across.at.map((at) => (
        <g key={at}>
          <path d={`M${x(at)} ${TOP - 34}V${foot}`} stroke="var(--line)" />
          <text x={x(at)} y={foot + 18} text-anchor={x(at) > width - 30 ? "end" : "middle"}>
            {tickText(at, across.step)}
          </text>
        </g>
      ))}
      {upwards.at.map((at) => (
        <g key={at}>
          <path d={`M${LEFT} ${y(at)}H${width - RIGHT}`} stroke="var(--grid)" />
          {y(at) - edge > 12 && (
            <text x={LEFT - 8} y={y(at) + 4} text-anchor="end">
              {tickText(at, upwards.step)}
            </text>
          )}
        </g>
      ))}
      <text x={(LEFT + width) / 2} y={height - 4} text-anchor="middle">
        when it happened (event time)
      </text>
      <text transform={`translate(11 ${(TOP + foot) / 2}) rotate(-90)`} text-anchor="middle">
        when it was known (processing time)
      </text>
      <g clip-path="url(#inside)">
        {content.breaks.map((gap) => (
          <rect key={gap.from} x={LEFT} y={y(gap.to)} width={width} height={Math.max(2, y(gap.from) - y(gap.to))} fill="var(--gone-soft)" opacity=".85" />
        ))}
        {ideal.to > ideal.from && (
          <path d={`M${x(ideal.from)} ${y(ideal.from)}L${x(ideal.to)} ${y(ideal.to)}`} stroke="var(--ink3)" stroke-dasharray="5 5" fill="none" />
        )}
        <Panes content={content} x={x} y={y} keyShown={keyShown} />
      </g>
      <Heads content={content} x={x} width={width} keyShown={keyShown} />
      <path d={`M${LEFT} ${edge}H${width - RIGHT}`} stroke="var(--ink)" stroke-width="1.4" />
      <text class="lab s-ink" x={LEFT - 8} y={edge + 4} text-anchor="end">
        now
      </text>
      {!narrow && ideal.to > ideal.from && (
        <text class="ital halo" transform={`translate(${x(middle)} ${y(middle)}) rotate(${slope.toFixed(1)}) translate(0 15)`}>
          known the moment it happens
        </text>
      )}
    </svg>
  );
}

function Panes({ content, x, y, keyShown }: { content: PictureContent; x: Scale; y: Scale; keyShown: string | null }): ComponentChildren {
  return content.panes
    .filter((pane) => (keyShown === null || pane.key === keyShown) && pane.end > x.first && pane.start < x.last)
    .map((pane, index) => {
      const left = Math.max(LEFT, x(pane.start) + 4);
      const wide = Math.max(2, x(pane.end) - 4 - left);
      const thin = pane.timing === "early";
      return (
        <rect
          key={index}
          class={`pane ${pane.timing.replace(" ", "")}`}
          x={left}
          y={y(pane.at) - (thin ? 0.7 : 2.5)}
          width={wide}
          height={thin ? 1.4 : 5}
          rx={thin ? 0.7 : 2.5}
          fill={`var(--${pane.timing === "on time" ? "ontime" : pane.timing}-fill)`}
          opacity={thin ? 0.55 : 1}
        />
      );
    });
}

export interface WindowHead {
  start: number;
  end: number;
  value: string;
  said: string;
  state: "ontime" | "early" | "late";
}

/** For each window its last value and how it came to be; of several keys, how many results. */
export function windowHeads(content: PictureContent, keyShown: string | null): WindowHead[] {
  const windows = new Map<string, PicturePane[]>();
  for (const pane of content.panes) {
    if (keyShown !== null && pane.key !== keyShown) continue;
    const name = `${pane.start} ${pane.end}`;
    windows.set(name, [...(windows.get(name) ?? []), pane]);
  }
  return [...windows.values()].map((panes) => {
    const ordered = [...panes].sort((a, b) => a.at - b.at);
    const last = ordered[ordered.length - 1] as PicturePane;
    const complete = ordered.filter((pane) => pane.timing === "on time").pop();
    const corrected = ordered.some((pane) => pane.timing === "late");
    const keys = new Set(panes.map((pane) => pane.key)).size;
    const state = corrected ? "late" : complete ? "ontime" : "early";
    const single = keyShown !== null || keys === 1;
    return {
      start: last.start,
      end: last.end,
      value: single ? last.value : `${keys} keys`,
      said: corrected ? (single && complete ? `was ${complete.value}` : "corrected") : complete ? "complete" : "so far",
      state,
    };
  });
}

function Heads({ content, x, width, keyShown }: { content: PictureContent; x: Scale; width: number; keyShown: string | null }) {
  const heads = windowHeads(content, keyShown).filter((head) => {
    const middle = (x(head.start) + x(head.end)) / 2;
    return middle > LEFT && middle < width - RIGHT && x(head.end) - x(head.start) > 52;
  });
  const overlapping = heads.some((head) => heads.some((other) => other !== head && other.start < head.end && head.start < other.end));
  if (overlapping) return null;
  return (
    <>
      {heads.map((head) => {
        const middle = (x(head.start) + x(head.end)) / 2;
        const room = Math.floor((x(head.end) - x(head.start)) / 8);
        return (
          <g key={head.start}>
            <text class="sum" x={middle} y={TOP - 20} text-anchor="middle">
              {head.value.slice(0, room)}
            </text>
            <text class={`state s-${head.state}`} x={middle} y={TOP - 6} text-anchor="middle">
              {head.said.slice(0, room + 4)}
            </text>
          </g>
        );
      })}
    </>
  );
}

function waterline({ watermark, now }: PictureContent, x: Scale, y: Scale): string {
  const first = watermark[0];
  if (!first) return `M${x(x.first)} ${y(Math.min(now, y.last))}`;
  let path = `M${x(first[1]).toFixed(1)} ${y(first[0]).toFixed(1)}`;
  let before = x(first[1]).toFixed(1);
  for (const [at, mark] of watermark.slice(1)) {
    const height = y(at).toFixed(1);
    path += `L${before} ${height}`;
    before = x(mark).toFixed(1);
    path += `L${before} ${height}`;
  }
  return `${path}L${before} ${y(Math.min(now, y.last)).toFixed(1)}`;
}

function Watermark({ content, x, y, width, height }: Drawn) {
  if (!content.watermark.length) return null;
  const left = LEFT + 14;
  // Where no pane is drawn, if there is such a place.
  const free = (top: number) => content.panes.every((pane) => x(pane.start) > left + 200 || y(pane.at) < top - 16 || y(pane.at) > top + 24);
  const places = [0.42, 0.6, 0.75, 0.25, 0.9].map((part) => TOP + (height - TOP - BOTTOM) * part);
  const top = places.find(free) ?? (places[0] as number);
  const mark = content.watermark.find(([at]) => y(at) < top)?.[1] ?? content.watermark[0]?.[1] ?? 0;
  return (
    <>
      <g clip-path="url(#inside)">
        <path d={waterline(content, x, y)} fill="none" stroke="var(--accent)" stroke-width="2.4" stroke-linejoin="round" />
      </g>
      {x(mark) - left > 190 && width > 560 && (
        <>
          <text class="lab s-accent halo" x={left} y={top}>
            the watermark has passed:
          </text>
          <text class="halo" x={left} y={top + 17}>
            all of this has come, or is late
          </text>
        </>
      )}
    </>
  );
}

function Card({ row, left, top, width, height }: { row: PictureRow; left: number; top: number; width: number; height: number }) {
  const wide = Math.min(250, width - 16);
  const x = left > width / 2 ? left - wide - 16 : left + 16;
  return (
    <div
      class="card"
      role="status"
      style={{ left: `${Math.max(8, Math.min(width - wide - 8, x))}px`, top: `${Math.max(4, Math.min(height - 110, top - 30))}px`, width: `${wide}px` }}
    >
      <b>{row.title}</b>
      <p>
        happened {clock(row.event, 1)}, came {clock(row.known, 1)}, {span(Math.max(0, row.known - row.event) / 1000)} later
      </p>
      {row.said.map((sentence) => (
        <p key={sentence} class={row.fate === "late" ? "s-late" : row.fate === "too late" ? "s-gone" : ""}>
          {sentence}
        </p>
      ))}
    </div>
  );
}
