// Steps that whoever started the console wants shown, as the demo does: each says what to look at and where, and is ticked off
// by what happened. The server knows what happened in the home, the page what was opened here.

import { useEffect, useState } from "preact/hooks";
import { Action, Permission, useSession } from "./action";
import { type Address, link } from "./address";
import { useAnswer } from "./ask";
import { Value } from "./value";

interface Step {
  title: string;
  text: string;
  link: string;
  /** Done as soon as the address of a page has this word. */
  address: string;
  action: { name: string; label: string; body: Record<string, unknown> } | null;
  done: boolean;
  said: string;
}

export interface Walk {
  id: string;
  title: string;
  steps: Step[];
}

const KEPT = "mainstem walk";

/** The words that addresses had, in any tab, since this walk began. */
function opened(id: string): string[] {
  try {
    const kept = JSON.parse(localStorage.getItem(KEPT) ?? "{}") as { id?: string; words?: string[] };
    return kept.id === id ? (kept.words ?? []) : [];
  } catch {
    return [];
  }
}

export function useWalk(address: Address, live: number): Walk | null {
  const [none, setNone] = useState(false);
  const { content } = useAnswer<Walk>(none ? null : "api/walk", live);
  const [words, setWords] = useState<string[]>([]);
  useEffect(() => {
    if (!content) return;
    if (!content.steps.length) return setNone(true);
    const before = opened(content.id);
    const now = content.steps.map((step) => step.address).filter((word) => word && (before.includes(word) || address.query.has(word)));
    if (now.length > before.length) localStorage.setItem(KEPT, JSON.stringify({ id: content.id, words: now }));
    setWords(now);
  }, [content, address]);
  if (!content?.steps.length) return null;
  return { ...content, steps: content.steps.map((step) => ({ ...step, done: step.done || words.includes(step.address) })) };
}

const nextOf = (walk: Walk) => walk.steps.find((step) => !step.done);
const doneOf = (walk: Walk) => `${walk.steps.filter((step) => step.done).length} of ${walk.steps.length}`;

export function WalkPanel({ walk }: { walk: Walk }) {
  const session = useSession();
  const next = nextOf(walk);
  return (
    <section class="panel pad" aria-label={walk.title}>
      <h2>
        {walk.title} <span class="dim">{doneOf(walk)}</span>
      </h2>
      <ol class="steps">
        {walk.steps.map((step, index) => (
          <li class={step.done ? "ok" : step === next ? "cur" : "todo"} aria-current={step === next ? "step" : undefined} key={step.title}>
            <span class="o" aria-hidden="true">
              {step.done ? "✓" : index + 1}
            </span>
            <div>
              <a href={step.link}>
                <b>{step.title}</b>
              </a>
              {step.done && <span class="unseen"> done</span>} {step.text}
              {step.said && <div class="said num"><Value value={step.said} short={200} /></div>}
              {step.action && !step.done && (
                <div class="action-line">
                  {session?.actions.includes(step.action.name) ? <Action name={step.action.name} label={step.action.label} danger body={step.action.body} /> : <Permission name={step.action.name} to={step.action.label} />}
                </div>
              )}
            </div>
          </li>
        ))}
      </ol>
    </section>
  );
}

/** On the other pages: how far it is, and the way back. */
export function WalkLine({ walk }: { walk: Walk }) {
  const next = nextOf(walk);
  return (
    <nav class="walk-line" aria-label={walk.title}>
      <a href={link()}>
        <b>{walk.title}</b>
      </a>
      <span class="dim num">{doneOf(walk)}</span>
      {next && (
        <span>
          next: <a href={next.link}>{next.title}</a>
        </span>
      )}
    </nav>
  );
}
