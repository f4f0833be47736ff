// Appends a row to a topic, if the console permits it: what it will do is said first.

import { useState } from "preact/hooks";
import { Action, Permission, useSession } from "../action";
import { Value } from "../value";

export function AppendRow({ topic, columns }: { topic: string; columns: string }) {
  const actions = useSession()?.actions ?? [];
  const [text, setText] = useState("");
  const [open, setOpen] = useState(false);
  if (!actions.includes("append")) return <Permission name="append" to="Append a row" command={`mainstem topic append ${topic} FILE`} />;
  if (!open) {
    return (
      <div class="tools">
        <button type="button" class="btn" onClick={() => setOpen(true)}>
          Append a row
        </button>
      </div>
    );
  }
  return (
    <section class="panel pad append">
      <h2>Append a row</h2>
      <p class="small soft">
        One row as JSON, with the columns <Value value={columns} short={400} />
      </p>
      <textarea class="field" aria-label="Row as JSON" spellcheck={false} placeholder={'{"order_id": "o-1"}'} value={text} onInput={(event) => setText(event.currentTarget.value)} />
      <p class="action-line">
        <Action name="append" label="Append" body={{ topic, row: text }} key={text} />
      </p>
    </section>
  );
}
