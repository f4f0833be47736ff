// The rows of a query as a plot: one column to the right, others upwards. What is drawn is in the address.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { alter } from "../address";
import type { Column, Row } from "../api";
import { Name, textOf } from "../value";
import { counted } from "../words";

const NUMBERS = /^(TINYINT|SMALLINT|INT|BIGINT|FLOAT|DOUBLE|DECIMAL|HUGEINT|U?INTEGER|UBIGINT|BYTE|SHORT|LONG|REAL)/i;
const TIMES = /^(TIMESTAMP|DATE)/i;
const COLOURS = ["accent", "late-fill", "ontime-fill", "gone-fill", "early-fill", "ink2"];
const FORMS = ["line", "bars", "points"] as const;
type Form = (typeof FORMS)[number];

export const isPlotted = (columns: Column[]) => columns.some(({ type }) => NUMBERS.test(type));

interface QueryPlotProps {
  columns: Column[];
  rows: Row[];
  form: string;
  x: string | null;
  y: string | null;
}

export function QueryPlot({ columns, rows, form, x, y }: QueryPlotProps) {
  const numbers = columns.filter(({ type }) => NUMBERS.test(type)).map(({ name }) => name);
  const across = columns.find(({ name }) => name === x) ?? columns.find(({ type }) => TIMES.test(type)) ?? columns.find(({ name }) => !numbers.includes(name)) ?? columns[0];
  const asked = (y ?? "").split("\u0001").filter((name) => numbers.includes(name));
  const upwards = asked.length ? asked : numbers.filter((name) => name !== across?.name).slice(0, 1);
  const chosen: Form = FORMS.find((name) => name === form) ?? "line";
  if (!across || !numbers.length) return <p class="small dim">No column has numbers: there is nothing to draw.</p>;
  return (
    <section class="panel" aria-label="Plot">
      <div class="tools pad">
        <label>
          To the right
          <select class="field" value={across.name} onChange={(event) => alter({ x: event.currentTarget.value })}>
            {columns.map(({ name }) => (
              <option value={name} key={name}>
                {name}
              </option>
            ))}
          </select>
        </label>
        <span class="choices" role="group" aria-label="Upwards">
          {numbers.map((name) => (
            <button type="button" aria-pressed={upwards.includes(name)} key={name} onClick={() => alter({ y: (upwards.includes(name) ? upwards.filter((other) => other !== name) : [...upwards, name]).join("\u0001") })}>
              <Name of={name} />
            </button>
          ))}
        </span>
        <span class="choices" role="radiogroup" aria-label="Form">
          {FORMS.map((name) => (
            <button type="button" role="radio" aria-checked={name === chosen} key={name} onClick={() => alter({ plot: name })}>
              {name}
            </button>
          ))}
        </span>
      </div>
      <Drawing rows={rows} across={across} upwards={upwards.slice(0, COLOURS.length)} form={chosen} />
    </section>
  );
}

/** Where a row is to the right: by time, by number, or by its place if it is text. */
function places(rows: Row[], { name, type }: Column): { at: number[]; labels: string[] | null; time: boolean } {
  const texts = rows.map((row) => row[name]);
  if (TIMES.test(type)) return { at: texts.map((value) => Date.parse(textOf(value)) / 1000), labels: null, time: true };
  if (NUMBERS.test(type)) return { at: texts.map(Number), labels: null, time: false };
  return { at: rows.map((_, index) => index), labels: texts.map(textOf), time: false };
}

function Drawing({ rows, across, upwards, form }: { rows: Row[]; across: Column; upwards: string[]; form: Form }) {
  const frame = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = frame.current;
    if (!element || !rows.length) return;
    const { at, labels, time } = places(rows, across);
    const order = at.map((_, index) => index).filter((index) => Number.isFinite(at[index])).sort((a, b) => (at[a] as number) - (at[b] as number));
    const data: uPlot.AlignedData = [
      order.map((index) => at[index] as number),
      ...upwards.map((name) => order.map((index) => (rows[index]?.[name] == null ? null : Number(rows[index]?.[name])))),
    ];
    let plot: uPlot | null = null;
    const draw = () => {
      plot?.destroy();
      plot = new uPlot(optionsOf(element, upwards, form, labels, time), data, element);
    };
    draw();
    const seen = new ResizeObserver(() => plot?.setSize(sizeOf(element)));
    seen.observe(element);
    const theme = matchMedia("(prefers-color-scheme: dark)");
    theme.addEventListener("change", draw);
    return () => {
      theme.removeEventListener("change", draw);
      seen.disconnect();
      plot?.destroy();
    };
  }, [rows, across.name, upwards.join("\u0001"), form]);
  return <div class="wide-plot" ref={frame} role="img" aria-label={`${upwards.join(", ")} over ${across.name}: ${counted(rows.length, "row")}`} data-drawn={`${form} ${across.name} ${upwards.join(",")}`} />;
}

const sizeOf = (element: HTMLElement) => ({ width: Math.max(120, element.clientWidth - 32), height: element.clientHeight - 60 });

function optionsOf(element: HTMLElement, upwards: string[], form: Form, labels: string[] | null, time: boolean): uPlot.Options {
  const colours = getComputedStyle(element);
  const colour = (name: string) => colours.getPropertyValue(`--${name}`).trim();
  const axis = { stroke: colour("ink3"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("line2"), width: 1 }, font: "11px Inter" };
  const cut = (text: string | undefined) => (text === undefined ? "" : text.length > 14 ? `${text.slice(0, 13)}…` : text);
  return {
    ...sizeOf(element),
    cursor: { show: false },
    legend: { show: true, live: false },
    tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "UTC"),
    scales: { x: { time, ...(labels ? { range: [-0.5, labels.length - 0.5] as [number, number] } : {}) }, ...(form === "bars" ? { y: { range: (_: uPlot, low: number, high: number): [number, number] => [Math.min(0, low), Math.max(0, high) * 1.05 || 1] } } : {}) },
    axes: [
      { ...axis, ...(labels ? { splits: () => labels.map((_, index) => index).filter((index) => index % Math.ceil(labels.length / 12) === 0), values: (_: uPlot, at: number[]) => at.map((index) => cut(labels[index])) } : {}) },
      { ...axis, size: 64 },
    ],
    series: [
      {},
      ...upwards.map((name, index) => ({
        label: name,
        stroke: colour(COLOURS[index] ?? "accent"),
        fill: form === "bars" ? colour(COLOURS[index] ?? "accent") : undefined,
        width: 1.6,
        points: { show: form === "points", size: 5 },
        paths: form === "bars" ? uPlot.paths.bars?.({ size: [0.7, 60] }) : form === "points" ? () => null : undefined,
      })),
    ],
  };
}
