// Values as text. Whatever a value holds, it stays text: the browser never reads it as markup.

import { useState } from "preact/hooks";

// More is cut, and can be opened.
const SHOWN = 120;

// Characters without a shape are shown by those that Unicode has for the purpose, or as their number.
function visible(text: string): string {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g, (character) => {
    const code = character.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? "\u2421" : `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
  });
}

export function textOf(value: unknown): string {
  if (value === null || value === undefined) return "null";
  if (typeof value === "string") return value;
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

const TIMINGS: Record<string, [string, string]> = { early: ["t-early", "early"], on_time: ["t-on", "complete"], late: ["t-late", "corrected"] };

/** A window as its two times, a pane as its timing in words; null for anything else. */
function spoken(value: unknown) {
  if (typeof value !== "object" || value === null) return null;
  const { start, end, timing, index } = value as Record<string, unknown>;
  if (typeof start === "string" && typeof end === "string" && Object.keys(value).length === 2) {
    const [from, to] = [Date.parse(start), Date.parse(end)];
    if (!Number.isNaN(from) && !Number.isNaN(to)) return <span title={`${start} to ${end}`}>{`${shortTime(from)} to ${shortTime(to)}`}</span>;
  }
  if (typeof timing === "string" && index !== undefined && TIMINGS[timing]) {
    const [tag, word] = TIMINGS[timing];
    return <span class={`tag ${tag}`}>{word}</span>;
  }
  return null;
}

function shortTime(at: number): string {
  const text = new Date(at).toISOString();
  const time = at % 60_000 ? (at % 1000 ? text.slice(11, 23) : text.slice(11, 19)) : text.slice(11, 16);
  return Math.abs(Date.now() - at) < 43_200_000 ? time : `${text.slice(0, 10)} ${time}`;
}

export function Value({ value, short = SHOWN }: { value: unknown; short?: number }) {
  const [open, setOpen] = useState(false);
  if (value === null || value === undefined) return <span class="dim">null</span>;
  const words = spoken(value);
  if (words) return words;
  const text = textOf(value);
  if (text === "") return <span class="dim">empty</span>;
  // Not between the two halves of a character.
  const cut = [...text.slice(0, short + 1)].length > short && !open;
  const shown = cut ? [...text.slice(0, short)].slice(0, short - 1).join("") : text;
  return (
    <>
      <bdi class={text.length <= 40 && !text.includes("\n") ? "value short" : "value"}>{visible(shown)}</bdi>
      {cut && (
        <button type="button" class="more" onClick={() => setOpen(true)}>
          …{text.length - shown.length} more characters
        </button>
      )}
    </>
  );
}

/** A name, in one piece: quotes, arrows of direction and the like do not spoil the sentence around it. */
export function Name({ of }: { of: string }) {
  return <bdi class="name">{visible(of.length > 64 ? `${of.slice(0, 63)}…` : of)}</bdi>;
}

export function isNumber(value: unknown): boolean {
  return typeof value === "number";
}
