// The address is the state: what a page shows is in the part after "#", so that a copied address shows the same.

import { useEffect, useState } from "preact/hooks";

export interface Address {
  /** The parts of the path, decoded: ["topics", "orders"]. */
  path: string[];
  /** What follows "?". */
  query: URLSearchParams;
}

export function parse(hash: string): Address {
  const text = hash.replace(/^#\/?/, "");
  const cut = text.indexOf("?");
  const path = cut < 0 ? text : text.slice(0, cut);
  return {
    path: path.split("/").filter(Boolean).map(decode),
    query: new URLSearchParams(cut < 0 ? "" : text.slice(cut + 1)),
  };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The address of a page: link("topics", "orders") is "#/topics/orders". Who looks at the past stays there. */
export function link(...path: string[]): string {
  return linkWith(path, { at: parse(location.hash).query.get("at") });
}

export function linkWith(path: string[], query: Record<string, string | null | undefined>): string {
  const kept = Object.entries(query).filter((entry): entry is [string, string] => entry[1] != null && entry[1] !== "");
  const text = new URLSearchParams(kept).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** A question to the server, as it was at a time if the page shows the past. */
export function asked(path: string, query: Record<string, string | null | undefined> = {}): string {
  const kept = Object.entries(query).filter((entry): entry is [string, string] => entry[1] != null && entry[1] !== "");
  const text = new URLSearchParams(kept).toString();
  return text ? `${path}?${text}` : path;
}

export function go(address: string): void {
  location.hash = address.replace(/^#/, "");
}

/** Change what follows "?" without another entry in the history. */
export function alter(query: Record<string, string | null>): void {
  const now = parse(location.hash);
  const wanted: Record<string, string | null> = { ...Object.fromEntries(now.query), ...query };
  history.replaceState(null, "", linkWith(now.path, wanted));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

/** What an address has after "?" before its "#", as in http://host/?at=..., belongs after it. */
export function takeSearch(): void {
  const given = Object.fromEntries(new URLSearchParams(location.search));
  if (!Object.keys(given).length) return;
  const now = parse(location.hash);
  history.replaceState(null, "", `${location.pathname}${linkWith(now.path, { ...given, ...Object.fromEntries(now.query) })}`);
}

export function useAddress(): Address {
  const [address, setAddress] = useState(() => parse(location.hash));
  useEffect(() => {
    const changed = () => setAddress(parse(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return address;
}
