// Actions: what one will do is said first, with the command that does the same; then it is confirmed. Where there is no button,
// the page says what it takes.

import { useEffect, useRef, useState } from "preact/hooks";
import { alter, parse } from "./address";
import { ask, type Problem, problemFrom, useAnswer } from "./ask";
import { ProblemPanel } from "./problem_panel";
import { Value } from "./value";

interface Session {
  who: string;
  scope: string;
  /** What this visitor may do, and what the console permits to whoever has a token for it. */
  actions: string[];
  permitted: string[];
}

/** Who looks, and what they may do; null until it is known. */
export function useSession(): Session | null {
  return useAnswer<Session>("api/session").content;
}

const post = <T,>(path: string, body: unknown) => ask<T>(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

interface ActionProps {
  name: string;
  body: Record<string, unknown>;
  label: string;
  danger?: boolean;
  /** Says what was done, elsewhere: the button may go with what it stood beside. */
  onDone?(done: string): void;
}

export function Action({ name, body, label, danger, onDone }: ActionProps) {
  const [will, setWill] = useState<{ will: string; command: string } | null>(null);
  const [busy, setBusy] = useState(false);
  const [done, setDone] = useState("");
  const [problem, setProblem] = useState<Problem | null>(null);
  const [begun, setBegun] = useState(false);
  const first = useRef<HTMLButtonElement>(null);
  const doIt = useRef<HTMLButtonElement>(null);
  // The keyboard stays where the question is.
  useEffect(() => {
    if (begun) (will ? doIt : first).current?.focus();
  }, [will]);
  const failed = (error: unknown) => (setProblem(problemFrom(error)), setWill(null));
  const begin = () => {
    setProblem(null);
    setDone("");
    setBegun(true);
    post<{ will: string; command: string }>(`api/actions/${name}`, body).then(setWill, failed);
  };
  const confirm = () => {
    setBusy(true);
    post<{ done: string }>(`api/actions/${name}`, { ...body, confirm: true })
      .then((answer) => {
        setWill(null);
        if (onDone) onDone(answer.done);
        else setDone(answer.done);
      }, failed)
      .finally(() => setBusy(false));
  };
  return (
    <span class="action">
      {!will && (
        <button type="button" class={`btn${danger ? " danger" : ""}`} onClick={begin} ref={first}>
          {label}
        </button>
      )}
      {will && (
        <span class="confirm" role="group" aria-label={`${label}?`}>
          <span role="status">
            <Value value={will.will} short={400} />
          </span>{" "}
          <code>{will.command}</code>
          <button type="button" class={`btn ${danger ? "danger" : "chief"}`} disabled={busy} onClick={confirm} ref={doIt}>
            Do it
          </button>
          <button type="button" class="btn" disabled={busy} onClick={() => setWill(null)}>
            No
          </button>
        </span>
      )}
      {done && <span class="small soft" role="status"> <Value value={done} short={400} /></span>}
      {problem && <ProblemPanel problem={problem} />}
    </span>
  );
}

/** Instead of a button: how this could be done from here, and from a terminal. */
export function Permission({ name, to, command }: { name: string; to: string; command?: string }) {
  const session = useSession();
  if (!session || session.actions.includes(name)) return null;
  const terminal = command && <> In a terminal: <code>{command}</code></>;
  if (!session.permitted.includes(name)) {
    return (
      <p class="small soft how">
        “{to}” is not permitted here: the console was started without <code>--actions {name}</code>.{terminal}
      </p>
    );
  }
  return (
    <details class="small soft how">
      <summary>“{to}” needs a token for acting</summary>
      <p>
        You may read. Create a token with <code>mainstem token create --scope act</code>, and give it here.{terminal}
      </p>
      <TokenForm />
    </details>
  );
}

/** As whom one acts, and the way out. */
export function Acting() {
  const session = useSession();
  if (session?.scope !== "act") return null;
  return (
    <p class="small soft how">
      You act as {session.who}.{" "}
      <button type="button" class="more" onClick={() => post("api/logout", {}).finally(() => location.reload())}>
        Log out
      </button>
    </p>
  );
}

function TokenForm() {
  const [token, setToken] = useState("");
  const [refused, setRefused] = useState<Problem | null>(null);
  const submit = (event: Event) => {
    event.preventDefault();
    post("api/login", { token: token.trim() }).then(
      () => location.reload(),
      (error) => setRefused(problemFrom(error)),
    );
  };
  return (
    <>
      {refused && <ProblemPanel problem={refused} />}
      <form class="tools" onSubmit={submit}>
        <label>
          Token
          <input class="field" type="password" size={40} autocomplete="off" value={token} onInput={(event) => setToken(event.currentTarget.value)} />
        </label>
        <button class="btn chief" type="submit" disabled={!token.trim()}>
          Log in
        </button>
      </form>
    </>
  );
}

/** For a visitor who is not known: a token lets in. */
export function LogIn({ problem }: { problem: Problem }) {
  return (
    <>
      <ProblemPanel whole problem={problem} />
      <TokenForm />
    </>
  );
}

/** An address may bring a token, as the one that the demo prints: it is taken out of the address, and becomes the cookie. */
export async function takeToken(): Promise<void> {
  const token = parse(location.hash).query.get("token");
  if (token === null) return;
  alter({ token: null });
  // If it is refused, the page says what it takes to act.
  await post("api/login", { token }).catch(() => undefined);
}
