/** @file The route of a recorded path. */
import { wireRoute } from '../wire/routes.ts'
import type { WireRoute } from '../wire/routes.ts'

/** @param url What follows the base URL, with the query. undefined when nothing is served there. */
export function routeOf(url: string, headers: Readonly<Record<string, unknown>>): WireRoute | undefined {
  const [path = '/', query = ''] = url.split('?', 2)
  try {
    return wireRoute(path, headers, query)
  } catch {
    return undefined
  }
}
