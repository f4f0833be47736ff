// Rows as a table: names and types of the columns above, values as text. Wide tables scroll in their own frame.

import type { ComponentChildren } from "preact";
import type { Column, Row } from "./api";
import { Value } from "./value";

const NUMBERS = /^(TINYINT|SMALLINT|INT|BIGINT|FLOAT|DOUBLE|DECIMAL|HUGEINT|U?INTEGER|BYTE|SHORT|LONG)/i;

interface RowTableProps {
  label: string;
  columns: Column[];
  rows: Row[];
  /** What identifies a row; a row whose name is in `lit` has just changed. */
  nameOf?: (row: Row, index: number) => string;
  lit?: ReadonlySet<string>;
  lead?: { title: string; cell(row: Row): ComponentChildren }[];
  empty: string;
}

export function RowTable({ label, columns, rows, nameOf, lit, lead = [], empty }: RowTableProps) {
  return (
    <div class="panel scroll" tabIndex={0} role="region" aria-label={label}>
      <table class="list data">
        <thead>
          <tr>
            {lead.map(({ title }) => (
              <th scope="col" key={title}>
                {title}
              </th>
            ))}
            {columns.map(({ name, type }) => (
              <th scope="col" class={NUMBERS.test(type) ? "r" : undefined} key={name}>
                <Value value={name} short={60} />
                <small class="dim">{type.length > 24 ? `${type.slice(0, 23)}…` : type}</small>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, index) => {
            const name = nameOf ? nameOf(row, index) : String(index);
            return (
              <tr class={lit?.has(name) ? "lit" : undefined} key={name}>
                {lead.map(({ title, cell }) => (
                  <td class="dim" key={title}>
                    {cell(row)}
                  </td>
                ))}
                {columns.map((column) => (
                  <td class={NUMBERS.test(column.type) ? "r" : undefined} key={column.name}>
                    <Value value={row[column.name]} />
                  </td>
                ))}
              </tr>
            );
          })}
        </tbody>
      </table>
      {!rows.length && <p class="empty">{empty}</p>}
    </div>
  );
}

/** A small table of facts, whose cells are given. */
export function FactTable({ label, heads, rows, names, empty }: { label: string; heads: [string, "left" | "right"][]; rows: ComponentChildren[][]; names?: string[]; empty: string }) {
  return (
    <div class="panel scroll" tabIndex={0} role="region" aria-label={label}>
      <table class="list">
        <thead>
          <tr>
            {heads.map(([head, side]) => (
              <th scope="col" class={side === "right" ? "r" : undefined} key={head}>
                {head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((cells, index) => (
            <tr key={names?.[index] ?? index}>
              {cells.map((cell, place) => (
                <td class={heads[place]?.[1] === "right" ? "r" : undefined} key={place}>
                  {cell}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {!rows.length && <p class="empty">{empty}</p>}
    </div>
  );
}
