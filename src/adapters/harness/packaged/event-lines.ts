/** @file Reads the event streams of harnesses: one JSON object a line. */

/** The last event of a type that is whole. The last line of a killed program may be cut off, and others may be no JSON. */
export function lastEvent(lines: string, type: string): unknown {
  for (const line of lines.split('\n').toReversed()) {
    if (!line.startsWith('{') || !line.includes(`"${type}"`)) continue
    try {
      const event = JSON.parse(line) as { readonly type?: unknown }
      if (event.type === type) return event
    } catch {
      // Cut off.
    }
  }
  return undefined
}
