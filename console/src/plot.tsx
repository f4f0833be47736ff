// A small plot over time.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";

export interface PlotLine {
  /** Names of variables of the style sheet. */
  stroke: string;
  fill?: string;
  values: (number | null)[];
}

interface PlotProps {
  /** In milliseconds. */
  times: number[];
  lines: PlotLine[];
  bars?: boolean;
  label: string;
}

export function Plot({ times, lines, bars, label }: PlotProps) {
  const frame = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = frame.current;
    if (!element || times.length < 2) return;
    let plot: uPlot | null = null;
    const draw = () => {
      plot?.destroy();
      plot = new uPlot(optionsOf(element, lines, bars === true), dataOf(times, lines), element);
    };
    draw();
    const seen = new ResizeObserver(() => plot?.setSize({ width: element.clientWidth, height: element.clientHeight }));
    seen.observe(element);
    const theme = matchMedia("(prefers-color-scheme: dark)");
    theme.addEventListener("change", draw);
    return () => {
      theme.removeEventListener("change", draw);
      seen.disconnect();
      plot?.destroy();
    };
  });
  return <div class="plot" ref={frame} role="img" aria-label={label} />;
}

function dataOf(times: number[], lines: PlotLine[]): uPlot.AlignedData {
  return [times.map((at) => at / 1000), ...lines.map((line) => line.values)];
}

function optionsOf(element: HTMLElement, lines: PlotLine[], bars: boolean): uPlot.Options {
  const colours = getComputedStyle(element);
  const colour = (name: string) => colours.getPropertyValue(`--${name}`).trim();
  const paths = bars ? uPlot.paths.bars?.({ size: [0.7, 12] }) : undefined;
  return {
    width: element.clientWidth,
    height: element.clientHeight,
    padding: [4, 0, 2, 0],
    cursor: { show: false },
    legend: { show: false },
    select: { show: false, left: 0, top: 0, width: 0, height: 0 },
    axes: [{ show: false }, { show: false }],
    scales: { y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.08 : 1] } },
    series: [
      {},
      ...lines.map((line) => ({
        stroke: colour(line.stroke),
        fill: line.fill ? colour(line.fill) : undefined,
        width: 1.6,
        points: { show: false },
        spanGaps: false,
        paths,
      })),
    ],
  };
}
