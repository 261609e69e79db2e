/** @file Takes away what a harness writes for itself into the system text. */
import type { Item, SystemItem } from '../core/items.ts'
import type { HarnessProfile } from './profile.ts'

function withoutLines(text: string, prefixes: readonly string[]): string {
  const lines = text.split('\n')
  const kept = lines.filter((line) => !prefixes.some((prefix) => line.startsWith(prefix)))
  return kept.length === lines.length ? text : kept.join('\n')
}

/** The same items without the profile's volatile lines; a system item of which nothing is left goes too. */
export function withoutVolatileLines(profile: HarnessProfile, items: readonly Item[]): readonly Item[] {
  const prefixes = profile.volatileSystemLines
  const isVolatile = (item: Item): item is SystemItem =>
    item.kind === 'system' && prefixes.some((prefix) => item.text.includes(prefix))
  if (prefixes.length === 0 || !items.some(isVolatile)) return items
  return items.flatMap((item): readonly Item[] => {
    if (!isVolatile(item)) return [item]
    const text = withoutLines(item.text, prefixes)
    return text.trim() === '' ? [] : [{ ...item, text }]
  })
}
